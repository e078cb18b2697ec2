//! The figures of a fuzz target over all its runs, in a file beside its corpus. A commit of the corpus has them too.

use std::fmt;
use std::fs;
use std::path::PathBuf;

use crate::attempts::{self, ErrorContext};

const HEADING: &str = "# What this target has done in all its runs. `cargo xtask fuzz` adds to it.\n";
/// The kernel counts processor time in these for programs, on every architecture.
const TICKS_PER_SECOND: f64 = 100.0;

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct FuzzRecord {
    /// Processor time.
    pub(super) seconds: f64,
    pub(super) executions: u64,
    /// Edges of the code that the newest corpus reaches.
    pub(super) edges: u64,
}

impl fmt::Display for FuzzRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seconds, executions, edges } = self;
        write!(f, "{seconds:.1} s of processor time, {executions} executions, {edges} edges")
    }
}

impl FuzzRecord {
    /// Reads the figures in the log of one round.
    pub(super) fn from_log(log: &str, seconds: f64) -> Self {
        let number = |text: &str| text.split_whitespace().next().and_then(|word| word.parse().ok());
        let newest = |mark: &str| log.lines().rev().find_map(|line| number(line.split_once(mark)?.1)).unwrap_or(0);
        Self { seconds, executions: newest("stat::number_of_executed_units:"), edges: newest(" cov:") }
    }

    /// Returns the figures of all runs. A target that never ran has none.
    pub(super) fn read(target: &str) -> Result<Self, String> {
        let path = path(target);
        if !path.exists() {
            return Ok(Self::default());
        }
        Self::parse(&attempts::read(&path)?).could_not(format_args!("read `{}`", path.display()))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| error.to_string())?;
        let count = |key: &str| {
            let value = table.get(key).and_then(toml::Value::as_integer);
            value.and_then(|value| u64::try_from(value).ok()).ok_or(format!("it has no `{key}`"))
        };
        let seconds = table.get("seconds").and_then(toml::Value::as_float).ok_or("it has no `seconds`")?;
        Ok(Self { seconds, executions: count("executions")?, edges: count("edges")? })
    }

    fn to_text(self) -> String {
        let Self { seconds, executions, edges } = self;
        format!("{HEADING}seconds = {seconds:.1}\nexecutions = {executions}\nedges = {edges}\n")
    }

    /// Adds a round to the file, which a reader sees as a whole before or after.
    pub(super) fn add_to(self, target: &str) -> Result<(), String> {
        let before = Self::read(target)?;
        let all = Self {
            seconds: before.seconds + self.seconds,
            executions: before.executions + self.executions,
            edges: if self.edges > 0 { self.edges } else { before.edges },
        };
        let (path, fresh) = (path(target), path(target).with_extension("new"));
        attempts::write(&fresh, &all.to_text())?;
        fs::rename(&fresh, &path).could_not(format_args!("write `{}`", path.display()))
    }
}

fn path(target: &str) -> PathBuf {
    super::folder().join("corpus").join(format!("{target}.toml"))
}

/// Returns the processor time of all child processes that have ended, by proc_pid_stat(5).
pub(super) fn children_seconds() -> Result<f64, String> {
    let stat = fs::read_to_string("/proc/self/stat").could_not("read `/proc/self/stat`")?;
    parse_children_seconds(&stat).ok_or_else(|| "could not find the times in `/proc/self/stat`".to_owned())
}

fn parse_children_seconds(stat: &str) -> Option<f64> {
    // The name of the program, in brackets, may itself have brackets and spaces.
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks = fields.split_whitespace().skip(13).take(2).map(str::parse::<f64>);
    let ticks: Vec<f64> = ticks.collect::<Result<_, _>>().ok()?;
    (ticks.len() == 2).then(|| ticks.iter().sum::<f64>() / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_come_from_the_end_of_a_log() {
        let log = "#2\tINITED cov: 12 ft: 13\n#9\tNEW    cov: 15 ft: 20 corp: 2\nDone 9 runs\n\
                   stat::number_of_executed_units: 9\nstat::peak_rss_mb: 30\n";
        assert_eq!(FuzzRecord::from_log(log, 1.5), FuzzRecord { seconds: 1.5, executions: 9, edges: 15 });
        assert_eq!(FuzzRecord::from_log("", 0.5), FuzzRecord { seconds: 0.5, executions: 0, edges: 0 });
    }

    #[test]
    fn a_record_survives_writing_and_reading() {
        let record = FuzzRecord { seconds: 3600.5, executions: 9_000_000, edges: 1234 };
        assert_eq!(FuzzRecord::parse(&record.to_text()), Ok(record));
        assert!(FuzzRecord::parse("seconds = 1.0").is_err());
    }

    #[test]
    fn times_of_children_are_found_behind_any_name() {
        let stat = "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 400 500 250 50 20 0 1";
        assert_eq!(parse_children_seconds(stat), Some(3.0));
        assert_eq!(parse_children_seconds("7 (a) S 1"), None);
        assert!(children_seconds().is_ok());
    }
}
