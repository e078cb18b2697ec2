//! What the report says about the machine and the programs on it.

use std::path::Path;
use std::process::Command;

use cove_testkit::measure::PYTHON;
use serde_json::{Value, json};

/// Returns the machine's processors, memory, kernel and distribution.
pub(crate) fn facts() -> Value {
    let cpu = line_of("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".to_owned());
    let kilobytes: f64 = line_of("/proc/meminfo", "MemTotal")
        .and_then(|line| line.trim_end_matches("kB").trim().parse().ok())
        .unwrap_or(0.0);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let distribution = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let distribution = distribution.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")).unwrap_or_default();
    json!({
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "processor": cpu,
        "memory_gb": (kilobytes * 1024.0 / 1e9).round() as u64,
        "kernel": kernel.trim(),
        "distribution": distribution.trim_matches('"'),
    })
}

/// Returns the value after the first `NAME:` in a file of the kernel.
fn line_of(file: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Returns the versions of the programs that need no engine.
pub(crate) fn versions() -> Vec<(&'static str, String)> {
    [("python", PYTHON), ("bwrap", "/usr/bin/bwrap")]
        .into_iter()
        .filter_map(|(name, program)| Some((name, output_of(Command::new(program).arg("--version"))?)))
        .map(|(name, version)| (name, version.split(' ').next_back().unwrap_or_default().to_owned()))
        .collect()
}

/// Returns the commit that was measured; it ends in `-dirty` if files were changed.
pub(crate) fn commit() -> String {
    let mut git = Command::new("git");
    git.args(["describe", "--always", "--dirty", "--abbrev=10"]).current_dir(env!("CARGO_MANIFEST_DIR"));
    output_of(&mut git).unwrap_or_else(|| "unknown".to_owned())
}

/// Returns the profile that Cove was compiled with: the name of the folder of its program.
pub(crate) fn profile() -> String {
    let folder = Path::new(env!("CARGO_BIN_EXE_cove")).parent().and_then(Path::file_name);
    folder.unwrap_or_default().to_string_lossy().into_owned()
}

/// Returns what a program printed, without the end of the line, or None if it failed.
pub(crate) fn output_of(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
