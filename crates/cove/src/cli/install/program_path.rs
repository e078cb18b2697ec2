//! The path of this program, as clients are to start it.

use std::path::{Component, Path, PathBuf};

use cove_core::error::Failure;
use cove_core::own_package::PACKAGE;
use cove_core::process_env::ProcessEnv;

/// A path at which a client can start this program at any later time.
pub(super) fn this_program() -> Result<String, Failure> {
    let fail = || Failure::operator("could not find the path of this program");
    let path: PathBuf = std::env::current_exe()
        .and_then(|path| path.canonicalize())
        .map_err(|error| fail().because(error).with_hint("run it from where it is installed"))?;
    path.to_str()
        .map(str::to_owned)
        .ok_or_else(|| fail().because("it is not valid UTF-8").with_hint("move the program to a path of plain letters"))
}

/// A package manager that runs a program from its cache, without installing it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PackageRunner {
    Uvx,
    Npx,
    Pipx,
}

impl PackageRunner {
    /// Recognises the cache by the path of the program.
    pub(super) fn of_program(program: &str) -> Option<Self> {
        let parts: Vec<&str> = Path::new(program).components().filter_map(|part| part.as_os_str().to_str()).collect();
        let has_pair = |first: &str, second: &str| parts.windows(2).any(|pair| pair == [first, second]);
        // Folders of uv's cache, wherever `UV_CACHE_DIR` puts it: `archive-v0/NAME/bin/cove`.
        let is_versioned = |part: &str, name: &str| {
            part.strip_prefix(name)
                .is_some_and(|version| !version.is_empty() && version.chars().all(|c| c.is_ascii_digit()))
        };
        let of_uv = |part: &&str| is_versioned(part, "archive-v") || is_versioned(part, "environments-v");
        match () {
            () if parts.contains(&"_npx") => Some(Self::Npx),
            () if has_pair(".cache", "pipx") || has_pair("pipx", ".cache") => Some(Self::Pipx),
            () if has_pair(".cache", "uv") || parts.iter().any(of_uv) => Some(Self::Uvx),
            () => None,
        }
    }

    /// The program that a client is to start, and the arguments before Cove's own.
    pub(super) fn command(self) -> (&'static str, Vec<String>) {
        let version = env!("CARGO_PKG_VERSION");
        match self {
            Self::Uvx => ("uvx", vec![format!("{PACKAGE}@{version}")]),
            Self::Npx => ("npx", vec!["-y".to_owned(), format!("{PACKAGE}@{version}")]),
            Self::Pipx => {
                ("pipx", ["run", "--spec", &format!("{PACKAGE}=={version}"), "cove"].map(str::to_owned).to_vec())
            }
        }
    }

    /// Says why the entry has no path, and what would be better.
    pub(super) fn note(self) -> String {
        let (program, args) = self.command();
        let install = match self {
            Self::Uvx => "uv tool install",
            Self::Npx => "npm install -g",
            Self::Pipx => "pipx install",
        };
        format!(
            "this `cove` is in a cache that may be emptied, so the entry starts `{program} {}`; better: `{install} \
             {PACKAGE}`, and then `cove install` again",
            args.join(" ")
        )
    }
}

/// Describes the folder of a program if its files do not stay.
pub(super) fn describe_temporary_folder(program: &str, env: &ProcessEnv) -> Option<&'static str> {
    let program = Path::new(program);
    let has = |name: &str| program.components().any(|part| part == Component::Normal(name.as_ref()));
    let is_in = |folder: &str| program.starts_with(folder);
    let temporary = env.directory("TMPDIR").is_some_and(|folder| program.starts_with(folder));
    match () {
        () if has("target") => Some("a build folder"),
        () if temporary || ["/tmp", "/var/tmp", "/dev/shm"].into_iter().any(is_in) => {
            Some("a folder for temporary files")
        }
        () if has(".cache") || has("_npx") => Some("a cache"),
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn recognises_the_caches_of_package_managers() {
        let check = |program: &str, runner: Option<PackageRunner>| {
            assert_eq!(PackageRunner::of_program(program), runner, "{program}");
        };
        check("/home/me/.cache/uv/archive-v0/x/bin/cove", Some(PackageRunner::Uvx));
        check("/srv/uv-cache/archive-v0/x/bin/cove", Some(PackageRunner::Uvx));
        check("/home/me/.npm/_npx/1/node_modules/cove-mcp-linux-x64/bin/cove", Some(PackageRunner::Npx));
        check("/home/me/.cache/pipx/1/bin/cove", Some(PackageRunner::Pipx));
        check("/home/me/.local/share/pipx/.cache/1/bin/cove", Some(PackageRunner::Pipx));
        check("/home/me/.local/share/pipx/venvs/cove-mcp/bin/cove", None);
        check("/home/me/.local/share/uv/tools/cove-mcp/bin/cove", None);
        check("/usr/lib/node_modules/cove-mcp/node_modules/cove-mcp-linux-x64/bin/cove", None);
        check("/home/me/archive-value/cove", None);
    }

    #[test]
    fn knows_folders_whose_files_do_not_stay() {
        let env = BTreeMap::from([("TMPDIR".to_owned(), "/scratch".into())]);
        let env = ProcessEnv { env, cwd: "/".into(), stdin_is_terminal: false };
        let check = |program: &str, place: Option<&str>| {
            assert_eq!(describe_temporary_folder(program, &env), place, "{program}")
        };
        check("/home/me/cove/target/release/cove", Some("a build folder"));
        check("/tmp/cove", Some("a folder for temporary files"));
        check("/scratch/x/cove", Some("a folder for temporary files"));
        check("/home/me/.cache/uv/archive-v0/x/bin/cove", Some("a cache"));
        check("/home/me/.npm/_npx/1/node_modules/.bin/cove", Some("a cache"));
        check("/home/me/.local/bin/cove", None);
        check("/tmpfiles/targets/cove", None);
    }
}
