//! Files and programs as every command uses them: whatever fails ends in a message that says what could not be done,
//! and why.

use std::fmt::Display;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

/// Turns the error of an attempt into a message.
pub(crate) trait ErrorContext<T> {
    /// `what` completes the sentence "could not …".
    fn could_not(self, what: impl Display) -> Result<T, String>;
}

impl<T, E: Display> ErrorContext<T> for Result<T, E> {
    fn could_not(self, what: impl Display) -> Result<T, String> {
        self.map_err(|error| format!("could not {what}\ncaused by: {error}"))
    }
}

pub(crate) fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).could_not(format_args!("read `{}`", path.display()))
}

pub(crate) fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).could_not(format_args!("write `{}`", path.display()))
}

/// Creates a folder, and those above it.
pub(crate) fn create_folder(path: &Path) -> Result<(), String> {
    fs::create_dir_all(path).could_not(format_args!("create `{}`", path.display()))
}

/// Runs a program to its end. `line` is its command line as messages show it.
pub(crate) fn run(command: &mut Command, line: &str) -> Result<(), String> {
    check(command.status().could_not(format_args!("start {}", program_in(line)))?, line)
}

/// Runs a program to its end, and returns what it printed.
pub(crate) fn output(command: &mut Command, line: &str) -> Result<String, String> {
    let output = command.output().could_not(format_args!("start {}", program_in(line)))?;
    check(output.status, line)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a program that prints nothing and reads nothing. Returns whether it could be started and succeeded.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// Fails unless the program whose command line this is has ended well.
pub(crate) fn check(status: ExitStatus, line: &str) -> Result<(), String> {
    if status.success() { Ok(()) } else { Err(format!("`{line}` failed: {status}")) }
}

fn program_in(line: &str) -> &str {
    line.split(' ').next().unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_says_what_and_why() {
        let missing = read(Path::new("/nonexistent/a")).unwrap_err();
        assert!(missing.starts_with("could not read `/nonexistent/a`\ncaused by: "), "{missing}");
        let program = run(&mut Command::new("/nonexistent/a"), "a --b").unwrap_err();
        assert!(program.starts_with("could not start a\ncaused by: "), "{program}");
        let failed = run(Command::new("sh").args(["-c", "exit 3"]), "sh -c").unwrap_err();
        assert_eq!(failed, "`sh -c` failed: exit status: 3");
        assert_eq!(output(Command::new("echo").arg("a"), "echo a").unwrap(), "a\n");
    }
}
