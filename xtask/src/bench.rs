//! `cargo xtask bench`: benchmarks compare ratios in one interleaved run and are never timed tests, so they are started
//! by a person.

use std::fs;

use crate::cargo;

const FOLDER: &str = "crates/cove/benches";

pub(crate) fn run(name: &str, arguments: &[&str]) -> Result<(), String> {
    let known = names()?;
    if !known.iter().any(|one| one == name) {
        return Err(format!("could not find the benchmark `{name}`\nhint: {}", offer(&known)));
    }
    // As it is published, which is compiled longer than what tests need.
    let mut command = vec!["bench", "--profile", "dist", "--package", "cove-mcp", "--bench", name, "--"];
    command.extend(arguments);
    cargo::run(&command)
}

pub(crate) fn list() -> Result<(), String> {
    println!("{}", offer(&names()?));
    Ok(())
}

fn offer(names: &[String]) -> String {
    if names.is_empty() {
        format!("there is none in `{FOLDER}`")
    } else {
        format!("there are: {}", names.join(", "))
    }
}

fn names() -> Result<Vec<String>, String> {
    let folder = cargo::root().join(FOLDER);
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let entries =
        fs::read_dir(&folder).map_err(|error| format!("could not read `{FOLDER}`\ncaused by: {error}"))?;
    let mut names: Vec<String> = entries
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            // As cargo sees it: `NAME.rs`, or `NAME/main.rs`. Other folders hold what benchmarks share.
            let is_one =
                path.extension().is_some_and(|extension| extension == "rs") || path.join("main.rs").exists();
            is_one.then(|| path.file_stem().map(|stem| stem.to_string_lossy().into_owned()))?
        })
        .collect();
    names.sort();
    Ok(names)
}
