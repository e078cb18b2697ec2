//! The path of this program, as clients are to start it.

use std::path::{Component, Path, PathBuf};

use cove_core::error::Failure;
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
