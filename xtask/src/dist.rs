//! `cargo xtask dist`: the program as it is published, a static binary for musl. Its C library reads `/etc/hosts` and
//! `/etc/resolv.conf` by itself and loads nothing at run time, so that it runs on every Linux of its processor. Plain `cargo
//! build` and `cargo install` need the host's target alone.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::attempts::{ErrorContext, succeeds};
use crate::cargo;

/// A target of musl whose standard library and C compiler are here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MuslTarget(String);

impl MuslTarget {
    pub(crate) fn name(&self) -> &str {
        &self.0
    }

    /// The one for this machine's processor. Its standard library is installed where rustup can; its C compiler is a
    /// package of the system's.
    pub(crate) fn prepare() -> Result<Self, String> {
        if !cfg!(target_os = "linux") {
            return Err("could not build for musl\ncaused by: the host is not Linux".to_owned());
        }
        let target = Self(format!("{}-unknown-linux-musl", env::consts::ARCH));
        if !has_standard_library(target.name()) {
            println!("installing the standard library for {}", target.name());
            add_with_rustup(target.name())?;
        }
        // ring and mimalloc have parts in C.
        if !succeeds(Command::new("musl-gcc").arg("--version")) {
            return Err("could not find `musl-gcc`\nhint: Debian has it in the package `musl-tools`".to_owned());
        }
        Ok(target)
    }
}

pub(crate) fn run() -> Result<(), String> {
    let target = MuslTarget::prepare()?;
    let arguments = ["--locked", "--profile", "dist", "--package", "cove-mcp", "--bin", "cove"];
    cargo::run(&[&["build", "--target", target.name()], &arguments[..]].concat())?;
    let folder = env::var_os("CARGO_TARGET_DIR").map_or_else(|| cargo::root().join("target"), PathBuf::from);
    let program = folder.join(target.name()).join("dist/cove");
    let size = fs::metadata(&program).could_not(format_args!("find `{}`", program.display()))?.len();
    println!("{} ({:.1} MB)", program.display(), size as f64 / 1e6);
    Ok(())
}

fn has_standard_library(target: &str) -> bool {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output =
        Command::new(rustc).args(["--print", "target-libdir", "--target", target]).stderr(Stdio::null()).output();
    output.is_ok_and(|output| {
        let folder = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        // Rustc names the folder of any target that it knows.
        output.status.success() && has_a_library(Path::new(&folder))
    })
}

fn has_a_library(folder: &Path) -> bool {
    fs::read_dir(folder)
        .is_ok_and(|entries| entries.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with("libstd-")))
}

fn add_with_rustup(target: &str) -> Result<(), String> {
    if succeeds(Command::new("rustup").args(["target", "add", target])) && has_standard_library(target) {
        return Ok(());
    }
    Err(format!(
        "could not install the standard library for `{target}`\n\
         hint: `rustup target add {target}`, or install it as you installed Rust"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_without_its_library_is_not_there() {
        assert!(!has_standard_library("no-such-target"));
        assert!(!has_a_library(Path::new("/")));
        let host = cargo::host_tuple().unwrap();
        assert!(has_standard_library(&host), "{host}");
    }

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
