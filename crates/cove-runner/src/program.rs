//! Starts a program as a cell, and explains why one cannot be started.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use cove_protocol::ProgramCell;
use rustix::fs::Access;

use crate::calls;
use crate::process::{CellProcess, StandardStreams};

/// The search path if `PATH` is not set, as in most shells.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Starts a command that `ProgramCell::check` has accepted. If it fails, it returns the reason for people.
pub(crate) fn start(
    start: &ProgramCell,
    streams: StandardStreams,
    socket: &Path,
    variables: &[(String, String)],
) -> Result<CellProcess, String> {
    let [name, args @ ..] = start.command.as_slice() else { return Err("it has no name".into()) };
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from(DEFAULT_PATH));
    let found = find(name, &path)?;
    let mut command = Command::new(&found);
    // The program sees the name that it was called by.
    command.arg0(name).args(args).env(calls::CALL_VARIABLE, socket);
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    if let Some(directory) = &start.directory {
        command.current_dir(directory);
    }
    CellProcess::start(command, streams).map_err(|error| reason(&error, &found, start.directory.as_deref()))
}

/// Returns the path of a program. A name without a slash is looked up on the search path; any other name is a path
/// already, relative to the directory that the program starts in. Fails with a reason if nothing is found.
fn find(name: &str, search: &OsStr) -> Result<PathBuf, String> {
    if name.contains('/') {
        return Ok(name.into());
    }
    let all = || std::env::split_paths(search).map(|folder| folder.join(name));
    if let Some(found) = all().find(|path| is_executable(path)) {
        return Ok(found);
    }
    Err(match all().find(|path| path.is_file()) {
        Some(path) => format!("`{}` is not executable", path.display()),
        None => format!("there is no `{name}` on the search path"),
    })
}

pub(crate) fn is_executable(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, Access::EXEC_OK).is_ok()
}

/// Returns why no program can be started in a directory, or `None` if one can.
fn directory_problem(directory: &str) -> Option<String> {
    let is_denied = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    let may_not = || Some(format!("the user that it would run as may not enter the directory `{directory}`"));
    match std::fs::metadata(directory) {
        Err(error) if is_denied(&error) => may_not(),
        Ok(found) if found.is_dir() => rustix::fs::access(directory, Access::EXEC_OK).err().and_then(|_| may_not()),
        Ok(_) | Err(_) => Some(format!("there is no directory `{directory}` to start it in")),
    }
}

/// Returns why a program was not started. The kernel has one error number for many causes, so this looks for the cause.
fn reason(error: &io::Error, program: &Path, directory: Option<&str>) -> String {
    if let Some(problem) = directory.and_then(directory_problem) {
        return problem;
    }
    let program = directory.map_or_else(|| program.to_owned(), |directory| Path::new(directory).join(program));
    let name = program.display();
    match error.kind() {
        io::ErrorKind::NotFound if program.exists() => {
            format!("`{name}` names an interpreter that does not exist")
        }
        io::ErrorKind::NotFound => format!("there is no file `{name}`"),
        io::ErrorKind::PermissionDenied if program.is_dir() => format!("`{name}` is a directory"),
        io::ErrorKind::PermissionDenied => format!("`{name}` is not executable"),
        io::ErrorKind::InvalidInput => "its command has a NUL byte".into(),
        _ => format!("`{name}`: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use cove_protocol::CellId;

    use super::*;

    fn null() -> std::os::fd::OwnedFd {
        fs::OpenOptions::new().read(true).write(true).open("/dev/null").unwrap().into()
    }

    /// Returns the exit code of a command that is started in `directory`, or why it was not started.
    fn run(command: &[&str], directory: Option<&str>) -> Result<Option<i32>, String> {
        let command = command.iter().map(|&word| word.to_owned()).collect();
        let start = ProgramCell { cell: CellId(1), command, directory: directory.map(str::to_owned) };
        let streams = StandardStreams { input: null(), output: null(), error: null() };
        let process = super::start(&start, streams, Path::new("/none"), &[])?;
        let waited = rustix::process::waitpid(Some(process.pid()), rustix::process::WaitOptions::empty());
        Ok(waited.unwrap().unwrap().1.exit_status())
    }

    #[test]
    fn looks_up_names_but_not_paths() {
        let folder = tempfile::tempdir().unwrap();
        let (first, second) = (folder.path().join("first"), folder.path().join("second"));
        for (folder, mode) in [(&first, 0o644), (&second, 0o755)] {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join("tool"), "").unwrap();
            fs::set_permissions(folder.join("tool"), fs::Permissions::from_mode(mode)).unwrap();
        }
        fs::create_dir(first.join("folder")).unwrap();
        let search = std::env::join_paths([&first, &second]).unwrap();
        assert_eq!(find("tool", &search), Ok(second.join("tool")), "the first that can be executed");
        assert_eq!(find("./tool", &search), Ok("./tool".into()));
        assert_eq!(find("folder", &search), Err("there is no `folder` on the search path".into()));
        assert!(find("tool", first.as_os_str()).unwrap_err().ends_with("first/tool` is not executable"));
        assert_eq!(find("tool", OsStr::new("")), Err("there is no `tool` on the search path".into()));
    }

    #[test]
    fn explains_why_a_program_cannot_be_started() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str, mode: u32| {
            fs::write(folder.path().join(name), text).unwrap();
            fs::set_permissions(folder.path().join(name), fs::Permissions::from_mode(mode)).unwrap();
        };
        file("closed", "#!/bin/sh\n", 0o644);
        file("orphan", "#!/missing/interpreter\n", 0o755);
        file("script", "#!/bin/sh\ntest \"$PWD\" = \"$1\"; exit $((3 + $?))\n", 0o755);
        let here = folder.path().to_str().unwrap();
        assert_eq!(run(&["./script", here], Some(here)), Ok(Some(3)), "from where it starts");
        assert_eq!(run(&["sh", "-c", "exit 4"], None), Ok(Some(4)));
        for (name, reason) in [
            ("./missing", "there is no file"),
            ("./closed", "is not executable"),
            ("./orphan", "names an interpreter that does not exist"),
            ("/", "is a directory"),
            ("a\0b/c", "its command has a NUL byte"),
            ("frobnicate", "there is no `frobnicate` on the search path"),
        ] {
            let error = run(&[name], Some(here)).unwrap_err();
            assert!(error.contains(reason), "{name:?}: {error}");
        }
        let error = run(&["sh"], Some("/missing")).unwrap_err();
        assert_eq!(error, "there is no directory `/missing` to start it in");
    }
}
