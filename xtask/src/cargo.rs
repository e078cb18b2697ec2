//! Runs cargo again, from the top of the workspace. The cargo that started xtask has finished building by then, so
//! the inner one waits for no lock.

use std::env;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::attempts::{self, ErrorContext};

/// The platforms that `cargo metadata` reports on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MetadataPlatforms {
    /// Needs only packages that building here has fetched already.
    Host,
    All,
}

pub(crate) fn root() -> PathBuf {
    // Cargo sets this at run time too; the compiled-in path is for a start without cargo.
    let member = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let mut root = PathBuf::from(member);
    root.pop();
    root
}

pub(crate) fn command(arguments: &[&str]) -> Command {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(arguments).current_dir(root());
    // These describe xtask. Build scripts of some packages run again if they change, and then everything above such a
    // package is compiled again.
    let describes_xtask = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in env::vars_os().filter(|(name, _)| name.to_str().is_some_and(describes_xtask)) {
        command.env_remove(name);
    }
    command
}

/// Runs cargo to its end with this program's output. The error names the command that failed.
pub(crate) fn run(arguments: &[&str]) -> Result<(), String> {
    attempts::run(&mut command(arguments), &line_of(arguments))
}

/// True if `cargo NAME` exists: `fmt`, `clippy` and `fuzz` are programs of their own.
pub(crate) fn has(name: &str) -> bool {
    attempts::succeeds(&mut command(&[name, "--version"]))
}

pub(crate) fn metadata(platforms: MetadataPlatforms) -> Result<Value, String> {
    let mut arguments = vec!["metadata", "--format-version", "1", "--locked"];
    let host;
    if platforms == MetadataPlatforms::Host {
        host = host_tuple()?;
        arguments.extend(["--filter-platform", &host]);
    }
    serde_json::from_str(&output_of(&arguments)?).could_not("read `cargo metadata`")
}

/// The elements of a list in `cargo metadata` or another JSON document; none if it is no list.
pub(crate) fn elements(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// The packages of `cargo metadata`, each with whether it is a member of the workspace. Fails without any: a check of
/// nothing would always succeed.
pub(crate) fn packages(metadata: &Value) -> Result<Vec<(&Value, bool)>, String> {
    let is_member = |package: &Value| elements(&metadata["workspace_members"]).any(|id| *id == package["id"]);
    let packages: Vec<_> = elements(&metadata["packages"]).map(|package| (package, is_member(package))).collect();
    if packages.is_empty() { Err("could not find any package in `cargo metadata`".to_owned()) } else { Ok(packages) }
}

pub(crate) fn host_tuple() -> Result<String, String> {
    let version = output_of(&["-vV"])?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "could not learn the host's target from `cargo -vV`".to_owned())
}

fn output_of(arguments: &[&str]) -> Result<String, String> {
    attempts::output(command(arguments).stderr(Stdio::inherit()), &line_of(arguments))
}

fn line_of(arguments: &[&str]) -> String {
    format!("cargo {}", arguments.join(" "))
}
