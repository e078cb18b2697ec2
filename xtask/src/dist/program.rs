//! The build of the published program, and what it prints about itself.

use std::collections::BTreeMap;
use std::env;
use std::env::consts::ARCH;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::attempts::{self, ErrorContext};
use crate::cargo;

/// The processors that packages exist for, each under the names that others have for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BuildTarget {
    X86,
    Arm,
}

impl BuildTarget {
    pub(super) fn of_this_machine() -> Result<Self, String> {
        match ARCH {
            "x86_64" => Ok(Self::X86),
            "aarch64" => Ok(Self::Arm),
            other => {
                Err(format!("could not build packages for `{other}`\nhint: only x86_64 and aarch64 are supported"))
            }
        }
    }

    pub(super) fn tuple(self) -> String {
        format!("{}-unknown-linux-gnu", self.architecture())
    }

    pub(super) fn architecture(self) -> &'static str {
        match self {
            Self::X86 => "x86_64",
            Self::Arm => "aarch64",
        }
    }

    pub(super) fn debian(self) -> &'static str {
        match self {
            Self::X86 => "amd64",
            Self::Arm => "arm64",
        }
    }

    /// As Node has it.
    pub(super) fn node(self) -> &'static str {
        match self {
            Self::X86 => "x64",
            Self::Arm => "arm64",
        }
    }
}

/// Builds the program and returns its path. With the profile `release` it is the one that the tests run.
pub(super) fn build(target: BuildTarget, profile: &str) -> Result<PathBuf, String> {
    let tuple = target.tuple();
    let build = ["build", "--locked", "--profile", profile, "--target", &tuple];
    let mut command = cargo::command(&build);
    command.args(["--package", super::NAME, "--bin", "cove"]);
    let mut folder = super::target_folder();
    if profile == "dist" {
        // Apart from that of the benchmarks, which have other flags: each build would undo the other one.
        folder.push("published");
        command.arg("--target-dir").arg(&folder);
        command.env("CARGO_ENCODED_RUSTFLAGS", rust_flags()?.join("\x1f"));
        let prefixes = moved_folders().into_iter().map(|(from, to)| format!("-ffile-prefix-map={from}={to}"));
        command.env(format!("CFLAGS_{}", tuple.replace('-', "_")), prefixes.collect::<Vec<_>>().join(" "));
        // `cove --version` shows it. A build from an archive has none.
        if let (None, Some(commit)) = (env::var_os("COVE_COMMIT"), git(&["rev-parse", "--short=12", "HEAD"])) {
            command.env("COVE_COMMIT", commit);
        }
    }
    attempts::run(&mut command, &format!("cargo {}", build.join(" ")))?;
    Ok(folder.join(tuple).join(profile).join("cove"))
}

/// Those of Cargo's own configuration, which the variable replaces, and names for the folders of this machine.
fn rust_flags() -> Result<Vec<String>, String> {
    let path = cargo::root().join(".cargo/config.toml");
    let text = attempts::read(&path)?;
    let config: toml::Value = toml::from_str(&text).could_not(format_args!("read `{}`", path.display()))?;
    let flags = &config["target"]["cfg(target_os = \"linux\")"]["rustflags"];
    let flags: Vec<String> = flags.clone().try_into().could_not("read `rustflags`")?;
    let moved = moved_folders().into_iter().map(|(from, to)| format!("--remap-path-prefix={from}={to}"));
    Ok(flags.into_iter().chain(moved).collect())
}

/// Folders of this machine, and what the program calls them.
fn moved_folders() -> Vec<(String, &'static str)> {
    let cargo_home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let cargo_home = cargo_home.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")));
    let mut folders = vec![(cargo::root(), "/cove")];
    if let Some(cargo_home) = cargo_home {
        // Each registry has a folder below this one, and its name says where it is.
        let registries = fs::read_dir(cargo_home.join("registry/src")).into_iter().flatten().flatten();
        folders.push((cargo_home, "/cargo"));
        folders.extend(registries.map(|entry| (entry.path(), "/crates")));
    }
    // The compiler takes the last one that fits.
    folders.into_iter().map(|(path, name)| (path.display().to_string(), name)).collect()
}

/// The time that packages give for their files: `SOURCE_DATE_EPOCH`, or else that of the commit.
pub(super) fn time_of_release() -> Result<u64, String> {
    let time = env::var("SOURCE_DATE_EPOCH").ok().or_else(|| git(&["log", "-1", "--format=%ct"]));
    let time = time.ok_or("could not learn the time of the commit\nhint: set `SOURCE_DATE_EPOCH`")?;
    time.trim().parse().could_not(format_args!("read `{time}` as a number of seconds"))
}

/// The content of the program, without symbols.
pub(super) fn stripped(built: &Path) -> Result<Vec<u8>, String> {
    let to = built.with_extension("stripped");
    let mut strip = Command::new("strip");
    attempts::run(strip.arg("--strip-all").arg("-o").arg(&to).arg(built), "strip")?;
    fs::read(&to).could_not(format_args!("read `{}`", to.display()))
}

/// The script with which a shell completes the name `cove`.
pub(super) fn completions(built: &Path, shell: &str) -> Result<Vec<u8>, String> {
    let mut command = Command::new(built);
    command.arg0("cove").args(["completions", shell]).env_clear();
    let script = attempts::output(&mut command, &format!("cove completions {shell}"))?;
    if script.is_empty() { Err(format!("could not get completions for {shell}")) } else { Ok(script.into_bytes()) }
}

/// The pages that the program writes, by their names.
pub(super) fn man_pages(built: &Path) -> Result<BTreeMap<String, Vec<u8>>, String> {
    let folder = built.with_extension("man");
    if folder.exists() {
        fs::remove_dir_all(&folder).could_not(format_args!("remove `{}`", folder.display()))?;
    }
    let mut command = Command::new(built);
    attempts::run(command.arg("manual").arg(&folder).env_clear(), "cove manual")?;
    let mut pages = BTreeMap::new();
    for entry in fs::read_dir(&folder).could_not(format_args!("read `{}`", folder.display()))? {
        let path = entry.could_not("read a folder")?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        pages.insert(name, fs::read(&path).could_not(format_args!("read `{}`", path.display()))?);
    }
    if pages.contains_key("cove.1") { Ok(pages) } else { Err("`cove manual` wrote no `cove.1`".to_owned()) }
}

/// What git prints, if this is a repository and there is a git.
fn git(arguments: &[&str]) -> Option<String> {
    let mut git = Command::new("git");
    let output = git.args(arguments).current_dir(cargo::root()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

/// A time as RFC 3339 writes it.
pub(super) fn timestamp(seconds: u64) -> Result<String, String> {
    let mut date = Command::new("date");
    date.args(["--utc", "--date", &format!("@{seconds}"), "+%Y-%m-%dT%H:%M:%SZ"]);
    Ok(attempts::output(&mut date, "date")?.trim().to_owned())
}
