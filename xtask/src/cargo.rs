//! Calling cargo again, from the top of the workspace. The cargo that started us has finished building by then, so the
//! inner one waits for no lock.

use std::env;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

/// What `cargo metadata` is asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Platforms {
    /// Needs nothing that building here did not fetch already.
    Host,
    All,
}

pub(crate) fn root() -> PathBuf {
    // Cargo sets this at run time too; the compiled-in path is for whoever starts the program without cargo.
    let member = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let mut root = PathBuf::from(member);
    root.pop();
    root
}

pub(crate) fn command(arguments: &[&str]) -> Command {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(arguments).current_dir(root());
    command
}

/// Runs to the end with our own output; `Err` says which command failed.
pub(crate) fn run(arguments: &[&str]) -> Result<(), String> {
    let status =
        command(arguments).status().map_err(|error| format!("could not start cargo\ncaused by: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("`cargo {}` failed: {status}", arguments.join(" "))) }
}

/// Whether `cargo NAME` exists: `fmt`, `clippy` and `fuzz` are programs of their own.
pub(crate) fn has(name: &str) -> bool {
    command(&[name, "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

pub(crate) fn metadata(platforms: Platforms) -> Result<Value, String> {
    let mut arguments = vec!["metadata", "--format-version", "1", "--locked"];
    let host;
    if platforms == Platforms::Host {
        host = host_tuple()?;
        arguments.extend(["--filter-platform", &host]);
    }
    let text = output_of(&arguments)?;
    serde_json::from_str(&text)
        .map_err(|error| format!("could not read `cargo metadata`\ncaused by: {error}"))
}

fn host_tuple() -> Result<String, String> {
    let version = output_of(&["-vV"])?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "could not learn the host's target from `cargo -vV`".to_owned())
}

fn output_of(arguments: &[&str]) -> Result<String, String> {
    let output = command(arguments)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("could not start cargo\ncaused by: {error}"))?;
    if !output.status.success() {
        return Err(format!("`cargo {}` failed: {}", arguments.join(" "), output.status));
    }
    String::from_utf8(output.stdout).map_err(|_| "could not read cargo's output as text".to_owned())
}
