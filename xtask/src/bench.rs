//! `cargo xtask bench`: benchmarks compare ratios in one interleaved run and are never timed tests, so a person
//! starts them.

use std::fs;

use crate::cargo;

const FOLDER: &str = "crates/cove/benches";

pub(crate) fn run(name: &str, arguments: &[&str]) -> Result<(), String> {
    let known = names()?;
    if !known.iter().any(|one| one == name) {
        return Err(format!("could not find the benchmark `{name}`\nhint: {}", offer(&known)));
    }
    // As the program is published, which takes longer to compile than what the tests run.
    let own = ["bench", "--profile", "dist", "--package", "cove-mcp", "--bench", name, "--"];
    cargo::run(&[&own, arguments].concat())
}

pub(crate) fn list() -> Result<(), String> {
    println!("{}", offer(&names()?));
    Ok(())
}

fn offer(names: &[String]) -> String {
    if names.is_empty() { format!("there is none in `{FOLDER}`") } else { format!("there are: {}", names.join(", ")) }
}

fn names() -> Result<Vec<String>, String> {
    let folder = cargo::root().join(FOLDER);
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let entries = fs::read_dir(&folder).map_err(|error| format!("could not read `{FOLDER}`\ncaused by: {error}"))?;
    let mut names: Vec<String> = entries
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            // As cargo finds them: `NAME.rs`, or `NAME/main.rs`. Other folders hold code that benchmarks share.
            let is_one = path.extension().is_some_and(|extension| extension == "rs") || path.join("main.rs").exists();
            is_one.then(|| path.file_stem().map(|stem| stem.to_string_lossy().into_owned()))?
        })
        .collect();
    names.sort();
    Ok(names)
}
