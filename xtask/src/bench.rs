//! `cargo xtask bench`: benchmarks compare ratios in one interleaved run and are never timed tests, so a person
//! starts them. With `--report` one of them measures what `docs/benchmarks.md` shows, and the page and its plots are made
//! from what it wrote.

use std::fs;
use std::path::Path;

use crate::attempts::{self, ErrorContext};
use crate::{cargo, containers, judges, test};

mod goals;
mod page;
mod plot;
mod report;

use report::MeasuredReport;

const FOLDER: &str = "crates/cove/benches";
/// What the benchmark `report` wrote, from the top of the workspace.
const MEASURED: &str = "docs/benchmarks/measured.json";
/// The peers from PyPI are installed for it.
const PYTHON: &str = "/usr/bin/python3";

pub(crate) fn run(name: &str, arguments: &[&str]) -> Result<(), String> {
    let known = names()?;
    if !known.iter().any(|one| one == name) {
        return Err(format!("could not find the benchmark `{name}`\nhint: {}", offer(&known)));
    }
    cargo::run(&[&command_of(name), arguments].concat())
}

/// The cargo arguments that run a benchmark as the program is published, which takes longer to compile than what the
/// tests run.
fn command_of(name: &str) -> [&str; 8] {
    ["bench", "--profile", "dist", "--package", "cove-mcp", "--bench", name, "--"]
}

pub(crate) fn list() -> Result<(), String> {
    println!("{}", offer(&names()?));
    Ok(())
}

/// Measures with the engines of the tests, if this user can start them, and makes the page. `numbers` are the rounds and
/// the repeats.
pub(crate) fn measure_report(numbers: &[&str]) -> Result<(), String> {
    let is_number = |argument: &&str| argument.parse::<usize>().is_ok_and(|number| number > 0);
    if numbers.len() > 2 || !numbers.iter().all(is_number) {
        return Err("could not understand what follows `--report`\nhint: [ROUNDS [REPEATS]]".to_owned());
    }
    // Dropping this ends them.
    let engines = match containers::are_given() {
        true => None,
        false => test::prepare_as_root()
            .and_then(containers::start)
            .inspect_err(|error| eprintln!("measuring without containers: {error}"))
            .ok(),
    };
    let peers = judges::prepare_peers(Path::new(PYTHON));
    let file = cargo::root().join(MEASURED);
    attempts::create_folder(&cargo::root().join("docs/benchmarks"))?;
    let (rounds, repeats) = (numbers.first().unwrap_or(&"40"), numbers.get(1).unwrap_or(&"3"));
    let file = file.to_str().ok_or("could not name the file with the measured times: its path is not UTF-8")?;
    let arguments = [&command_of("report")[..], &[rounds, repeats, file]].concat();
    let mut command = cargo::command(&arguments);
    for trouble in engines.iter().flat_map(|engines| &engines.troubles) {
        eprintln!("{trouble}");
    }
    command.envs(engines.iter().flat_map(|engines| engines.environment()));
    command.envs(peers.map(|folder| ("COVE_BENCH_PEERS", folder)));
    attempts::run(&mut command, "cargo bench --bench report")?;
    write_report()
}

/// Makes the page and its plots from what was measured before.
pub(crate) fn write_report() -> Result<(), String> {
    for (path, text) in generated_files()? {
        attempts::write(&cargo::root().join(&path), &text)?;
        println!("wrote `{path}`");
    }
    Ok(())
}

/// The page and the plots that the kept measurement makes, by path.
fn generated_files() -> Result<Vec<(String, String)>, String> {
    let text = attempts::read(&cargo::root().join(MEASURED))?;
    let report = MeasuredReport::parse(&text).could_not(format_args!("understand `{MEASURED}`"))?;
    let mut files = vec![("docs/benchmarks.md".to_owned(), page::page(&report)?)];
    for plot in page::plots(&report) {
        let of_theme =
            |theme: &plot::PlotTheme| (format!("docs/benchmarks/{}-{}.svg", plot.id, theme.name), plot.svg(theme));
        files.extend(plot::THEMES.iter().map(of_theme));
    }
    Ok(files)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kept_page_and_plots_are_those_of_the_kept_measurement() {
        for (path, text) in generated_files().unwrap() {
            let kept = attempts::read(&cargo::root().join(&path)).unwrap();
            assert!(kept == text, "`{path}` differs: run `cargo xtask bench --report --from-measured`");
        }
    }
}
