//! A program as a cell: found, started, and if it cannot be, why not.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use cove_protocol::Start;
use rustix::fs::Access;

use crate::calls;
use crate::process::{Process, Standard};

/// Where a program is looked for if no search path is set, as most shells have it.
const SEARCH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Starts a command that has been checked. The error is for people.
pub(crate) fn start(start: &Start, standard: Standard, socket: &Path) -> Result<Process, String> {
    let [name, args @ ..] = start.command.as_slice() else { return Err("it has no name".into()) };
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from(SEARCH));
    let found = find(name, &path)?;
    let mut command = Command::new(&found);
    // It sees the name that it was called by.
    command.arg0(name).args(args).env(calls::VARIABLE, socket);
    if let Some(directory) = &start.directory {
        command.current_dir(directory);
    }
    Process::start(command, standard).map_err(|error| reason(&error, &found, start.directory.as_deref()))
}

/// A name without a slash is looked up; anything else is a path, from the directory that the program starts in.
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

/// Why nothing can be started in a directory, if that is so.
fn closed(directory: &str) -> Option<String> {
    let is_denied = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    let may_not = || Some(format!("the user that it would run as may not enter the directory `{directory}`"));
    match std::fs::metadata(directory) {
        Err(error) if is_denied(&error) => may_not(),
        Ok(found) if found.is_dir() => match rustix::fs::access(directory, Access::EXEC_OK) {
            Ok(()) => None,
            Err(_) => may_not(),
        },
        Ok(_) | Err(_) => Some(format!("there is no directory `{directory}` to start it in")),
    }
}

/// The kernel has one number for many causes; which it was is looked up.
fn reason(error: &io::Error, program: &Path, directory: Option<&str>) -> String {
    if let Some(problem) = directory.and_then(closed) {
        return problem;
    }
    let program =
        directory.map_or_else(|| program.to_owned(), |directory| Path::new(directory).join(program));
    let name = program.display();
    match error.kind() {
        io::ErrorKind::NotFound if program.exists() => {
            format!("the interpreter that `{name}` names is not there")
        }
        io::ErrorKind::NotFound => format!("there is no file `{name}`"),
        io::ErrorKind::PermissionDenied if program.is_dir() => format!("`{name}` is a directory"),
        io::ErrorKind::PermissionDenied => format!("`{name}` is not executable"),
        io::ErrorKind::InvalidInput => "there is a NUL byte in its command".into(),
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

    /// The exit code of a command that is started in `directory`, or why it was not.
    fn run(command: &[&str], directory: Option<&str>) -> Result<Option<i32>, String> {
        let command = command.iter().map(|&word| word.to_owned()).collect();
        let start = Start { cell: CellId(1), command, directory: directory.map(str::to_owned) };
        let standard = Standard { input: null(), output: null(), error: null() };
        let process = super::start(&start, standard, Path::new("/none"))?;
        let waited = rustix::process::waitpid(Some(process.pid()), rustix::process::WaitOptions::empty());
        Ok(waited.unwrap().unwrap().1.exit_status())
    }

    #[test]
    fn names_are_looked_up_and_paths_are_not() {
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
    fn a_program_that_cannot_be_started_says_why() {
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
            ("./orphan", "the interpreter that"),
            ("/", "is a directory"),
            ("a\0b/c", "there is a NUL byte"),
            ("frobnicate", "there is no `frobnicate` on the search path"),
        ] {
            let said = run(&[name], Some(here)).unwrap_err();
            assert!(said.contains(reason), "{name:?}: {said}");
        }
        let said = run(&["sh"], Some("/missing")).unwrap_err();
        assert_eq!(said, "there is no directory `/missing` to start it in");
    }
}
