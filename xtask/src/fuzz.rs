//! `cargo xtask fuzz`: runs the targets in `fuzz/` to find new inputs, and keeps what they found. A run is a sequence of
//! short rounds. Each continues with the inputs of those before it and adds its processor time to the record of its target,
//! so that a run can be stopped at any time. The tests replay the committed corpus without a fuzzer.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use crate::attempts::{self, ErrorContext};
use crate::cargo;

mod corpus;
mod record;

use record::FuzzRecord;

const MISSING: &str = "\
could not find cargo-fuzz
hint: `cargo install --locked cargo-fuzz`";

/// Processor time of a target if the caller names none.
const DEFAULT_SECONDS: u64 = 60;
/// Processor time of each target in `cargo xtask test --full`.
const TEST_SECONDS: u64 = 30;
/// A round takes at most this long by the clock, so that a run that is stopped loses little.
const ROUND_SECONDS: u64 = 120;
const MIN_ROUND_SECONDS: u64 = 5;
/// Limits of the fuzzer. The time for one input is by the clock, and the machine may be busy.
const LIMITS: [&str; 4] = ["-rss_limit_mb=1500", "-timeout=120", "-max_len=16384", "-print_final_stats=1"];
/// Built without a sanitizer: the checked code has no `unsafe`, and runs twice as fast. `--release` leaves it to
/// `fuzz/Cargo.toml` which crates assert what they assume.
const BUILD: [&str; 5] = ["fuzz", "build", "--release", "--sanitizer", "none"];

/// What the caller asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FuzzOptions {
    /// All targets in turn if none is named.
    target: Option<String>,
    /// Processor time for each target.
    seconds: u64,
}

impl FuzzOptions {
    pub(crate) fn parse(arguments: &[&str]) -> Result<Self, String> {
        let (target, seconds) = match arguments {
            [] => (None, None),
            [one] if one.parse::<u64>().is_ok() => (None, Some(*one)),
            [target] => (Some(*target), None),
            [target, seconds] => (Some(*target), Some(*seconds)),
            [.., unknown] => return Err(format!("could not understand `{unknown}` after `fuzz`")),
        };
        let seconds = match seconds.map(str::parse) {
            None => DEFAULT_SECONDS,
            Some(Ok(seconds)) => seconds,
            Some(Err(_)) => return Err("could not understand the number of seconds after `fuzz`".to_owned()),
        };
        Ok(Self { target: target.map(str::to_owned), seconds })
    }
}

pub(crate) fn run(options: &FuzzOptions) -> Result<(), String> {
    if !cargo::has("fuzz") {
        return Err(MISSING.to_owned());
    }
    let known = target_names()?;
    let targets = match &options.target {
        None => known,
        Some(target) if known.contains(target) => vec![target.clone()],
        Some(unknown) => {
            return Err(format!("could not find the target `{unknown}`\nhint: there are {}", known.join(", ")));
        }
    };
    let mut failed = Vec::new();
    for target in targets {
        if let Err(reason) = FuzzTarget::build(&target)?.run(options.seconds) {
            eprintln!("{reason}");
            failed.push(target);
        }
    }
    print!("{}", totals()?);
    if failed.is_empty() { Ok(()) } else { Err(format!("fuzzing failed: {}", failed.join(", "))) }
}

/// For `cargo xtask test --full`: a short run of every target. Without cargo-fuzz it only prints the recorded totals.
pub(crate) fn run_briefly() -> Result<(), String> {
    if !cargo::has("fuzz") {
        println!("fuzzing is left out\n{MISSING}");
        print!("{}", totals()?);
        return Ok(());
    }
    run(&FuzzOptions { target: None, seconds: TEST_SECONDS })
}

fn folder() -> PathBuf {
    cargo::root().join("fuzz")
}

fn target_names() -> Result<Vec<String>, String> {
    let mut targets = Vec::new();
    for entry in fs::read_dir(folder().join("fuzz_targets")).could_not("read `fuzz/`")? {
        if let Some(name) = entry.could_not("read `fuzz/`")?.path().file_stem() {
            targets.push(name.to_string_lossy().into_owned());
        }
    }
    targets.sort();
    Ok(targets)
}

/// Returns the recorded figures of all targets, a line each.
fn totals() -> Result<String, String> {
    let mut lines = String::from("fuzzed so far:\n");
    for target in target_names()? {
        lines += &format!("  {target:<12} {}\n", FuzzRecord::read(&target)?);
    }
    Ok(lines)
}

/// A target whose program is built.
struct FuzzTarget {
    name: String,
    program: PathBuf,
    /// The committed inputs.
    corpus: PathBuf,
    /// All inputs that were found here. Git ignores them; a run that finds the folder empty starts from the corpus.
    found: PathBuf,
}

impl FuzzTarget {
    fn build(name: &str) -> Result<Self, String> {
        let line = format!("cargo {} {name}", BUILD.join(" "));
        let mut build = cargo::command(&BUILD);
        // Lets a stable compiler instrument the code. It has no effect on nightly.
        build.arg(name).current_dir(folder()).env("RUSTC_BOOTSTRAP", "1");
        attempts::run(&mut build, &line)?;
        let built = folder().join("target");
        let program = built.join(cargo::host_tuple()?).join("release").join(name);
        let found = built.join("found").join(name);
        attempts::create_folder(&found)?;
        Ok(Self { name: name.to_owned(), program, corpus: folder().join("corpus").join(name), found })
    }

    /// Runs rounds until they took so much processor time, and then renews the corpus. Fails at the first input that
    /// breaks a promise.
    fn run(&self, seconds: u64) -> Result<(), String> {
        let mut left = seconds as f64;
        while left > 0.0 {
            // Processor time is never longer than the clock's, so a round does not take more than is left.
            let round = (left.ceil() as u64).clamp(MIN_ROUND_SECONDS, ROUND_SECONDS);
            let done = self.run_round(round)?;
            left -= done.seconds;
            println!("{}: {done}", self.name);
        }
        corpus::renew(&self.program, &self.found, &self.corpus)
    }

    fn run_round(&self, seconds: u64) -> Result<FuzzRecord, String> {
        let artifacts = folder().join("artifacts").join(&self.name);
        attempts::create_folder(&artifacts)?;
        let before = record::children_seconds()?;
        let ended = std::process::Command::new(&self.program)
            .arg(format!("-max_total_time={seconds}"))
            .arg(format!("-artifact_prefix={}/", artifacts.display()))
            .args(LIMITS)
            .args([&self.found, &self.corpus])
            .stdin(Stdio::null())
            .output()
            .could_not(format_args!("start `{}`", self.program.display()))?;
        let log = String::from_utf8_lossy(&ended.stderr);
        let done = FuzzRecord::from_log(&log, record::children_seconds()? - before);
        done.add_to(&self.name)?;
        if ended.status.success() {
            return Ok(done);
        }
        let end: Vec<&str> = log.lines().rev().take(40).collect();
        let end: Vec<&str> = end.into_iter().rev().collect();
        Err(format!(
            "{}\nthe target `{}` found an input that breaks a promise\nhint: correct the code, and keep the input as \
             `fuzz/corpus/{}/bug-NAME`",
            end.join("\n"),
            self.name,
            self.name
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_and_a_time_are_optional() {
        let options = |target: Option<&str>, seconds| FuzzOptions { target: target.map(str::to_owned), seconds };
        assert_eq!(FuzzOptions::parse(&[]), Ok(options(None, DEFAULT_SECONDS)));
        assert_eq!(FuzzOptions::parse(&["7"]), Ok(options(None, 7)));
        assert_eq!(FuzzOptions::parse(&["sse"]), Ok(options(Some("sse"), DEFAULT_SECONDS)));
        assert_eq!(FuzzOptions::parse(&["sse", "3600"]), Ok(options(Some("sse"), 3600)));
        assert!(FuzzOptions::parse(&["sse", "long"]).is_err());
        assert!(FuzzOptions::parse(&["sse", "1", "2"]).is_err());
    }

    #[test]
    fn every_target_has_a_corpus() {
        for target in target_names().unwrap() {
            let inputs = fs::read_dir(folder().join("corpus").join(&target)).unwrap();
            assert!(inputs.count() > 0, "{target}");
            assert!(FuzzRecord::read(&target).is_ok(), "{target}");
        }
    }
}
