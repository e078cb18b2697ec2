//! `cargo xtask dist`: the program as it is published, a static binary for this machine's processor. It loads nothing at run
//! time, so it runs on every Linux.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::attempts::{self, ErrorContext};
use crate::cargo;

pub(crate) fn run() -> Result<(), String> {
    let build = ["build", "--locked", "--profile", "dist", "--package", "cove-mcp", "--bin", "cove"];
    let mut command = cargo::command(&build);
    // `cove --version` shows it. A build from an archive has none.
    if let (None, Some(commit)) = (env::var_os("COVE_COMMIT"), commit()) {
        command.env("COVE_COMMIT", commit);
    }
    attempts::run(&mut command, "cargo build --profile dist")?;
    let folder = env::var_os("CARGO_TARGET_DIR").map_or_else(|| cargo::root().join("target"), PathBuf::from);
    let program = folder.join(cargo::host_tuple()?).join("dist/cove");
    let size = fs::metadata(&program).could_not(format_args!("find `{}`", program.display()))?.len();
    println!("{} ({:.1} MB)", program.display(), size as f64 / 1e6);
    Ok(())
}

/// The commit that is checked out, if this is a repository and there is a git.
fn commit() -> Option<String> {
    let mut git = Command::new("git");
    let output = git.args(["rev-parse", "--short=12", "HEAD"]).current_dir(cargo::root()).output().ok()?;
    let commit = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !commit.is_empty()).then_some(commit)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `dist` inherits the levels that `release` sets for single crates.
    #[test]
    fn the_published_program_is_optimised_everywhere() {
        let text = fs::read_to_string(cargo::root().join("Cargo.toml")).unwrap();
        let manifest: toml::Table = text.parse().unwrap();
        let levels = |profile: &str| manifest["profile"][profile]["package"].as_table().unwrap().clone();
        let mut levels_of_dist = levels("release");
        levels_of_dist.extend(levels("dist"));
        for (package, level) in &levels_of_dist {
            assert_eq!(level["opt-level"].as_integer(), Some(3), "{package}");
        }
        assert_eq!(manifest["profile"]["dist"]["opt-level"].as_integer(), Some(3));
    }
}
