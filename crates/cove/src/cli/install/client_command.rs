//! The commands that some clients have for registering servers: run with a deadline, and never believed. Whether the
//! entry is there afterwards is looked up in the file by who calls this.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::clients::Own;
use super::jsonc;
use super::places::{Scope, on_path};
use super::tree::Plain;
use crate::config::Surroundings;
use crate::error::shown;

/// A client that starts an interpreter first takes a second or two.
const DEADLINE: Duration = Duration::from_secs(30);
const MAX_WORDS: u64 = 4096;

/// One command line: the words that people know it by, and the rest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) program: &'static str,
    pub(super) words: &'static [&'static str],
    pub(super) args: Vec<String>,
}

impl Line {
    /// As messages name it.
    pub(super) fn name(&self) -> String {
        format!("{} {}", self.program, self.words.join(" "))
    }

    pub(super) fn is_on_path(&self, around: &Surroundings) -> bool {
        on_path(self.program, around).is_some()
    }
}

/// The command that adds a server, where the client has one for this scope.
pub(super) fn add(own: Own, scope: Scope, name: &str, command: &str, args: &[String]) -> Option<Line> {
    let strings = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let with_args = |words: &[&str]| strings(words).into_iter().chain(args.iter().cloned()).collect();
    let (run, list) = (("command", Plain::text(command)), ("args", Plain::List(args.to_vec())));
    match (own, scope) {
        (Own::Claude, scope) => {
            let entry = object(&[run, list]);
            let args = strings(&["-s", scope.name(), name, &entry]);
            Some(Line { program: "claude", words: &["mcp", "add-json"], args })
        }
        (Own::Codex, Scope::User) => {
            Some(Line { program: "codex", words: &["mcp", "add"], args: with_args(&[name, "--", command]) })
        }
        (Own::Code(program), Scope::User) => {
            let (name, stdio) = (("name", Plain::text(name)), ("type", Plain::text("stdio")));
            let args = vec![object(&[name, stdio, run, list])];
            Some(Line { program, words: &["--add-mcp"], args })
        }
        (Own::Gemini, Scope::User | Scope::Project) => Some(Line {
            program: "gemini",
            words: &["mcp", "add"],
            args: with_args(&["-s", scope.name(), name, command, "--"]),
        }),
        (Own::Codex | Own::Code(_) | Own::Gemini, _) => None,
    }
}

/// On one line, in this order.
fn object(fields: &[(&str, Plain)]) -> String {
    jsonc::inline(&Plain::Map(fields.iter().map(|(key, plain)| ((*key).to_owned(), plain.clone())).collect()))
}

/// The command that removes one.
pub(super) fn remove(own: Own, scope: Scope, name: &str) -> Option<Line> {
    let strings = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let (program, args) = match (own, scope) {
        (Own::Claude, scope) => ("claude", strings(&["-s", scope.name(), name])),
        (Own::Codex, Scope::User) => ("codex", strings(&[name])),
        (Own::Gemini, Scope::User | Scope::Project) => ("gemini", strings(&["-s", scope.name(), name])),
        (Own::Codex | Own::Code(_) | Own::Gemini, _) => return None,
    };
    Some(Line { program, words: &["mcp", "remove"], args })
}

/// Runs it to its end, or to the deadline. The reason if it did not end well.
pub(super) fn run(line: &Line, around: &Surroundings) -> Result<(), String> {
    let Some(program) = on_path(line.program, around) else {
        return Err(format!("there is no `{}` on `PATH`", line.program));
    };
    run_for(&program, line, around, DEADLINE)
}

fn run_for(program: &Path, line: &Line, around: &Surroundings, deadline: Duration) -> Result<(), String> {
    // A file and no pipe, so that a grandchild that lives on cannot keep us waiting for its end.
    let mut words = tempfile::tempfile().map_err(|error| error.to_string())?;
    let output = |file: &File| file.try_clone().map(Stdio::from).map_err(|error| error.to_string());
    let mut child = Command::new(program)
        .args(line.words)
        .args(&line.args)
        .current_dir(&around.cwd)
        .stdin(Stdio::null())
        .stdout(output(&words)?)
        .stderr(output(&words)?)
        .process_group(0)
        .spawn()
        .map_err(|error| error.to_string())?;
    let begun = Instant::now();
    let status = loop {
        match child.try_wait().map_err(|error| error.to_string())? {
            Some(status) => break Some(status),
            None if begun.elapsed() > deadline => break None,
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let Some(status) = status else {
        if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = child.wait();
        return Err(format!("it did not end within {} s", deadline.as_secs()));
    };
    if status.success() {
        return Ok(());
    }
    let mut said = Vec::new();
    let _ = words.rewind().and_then(|()| words.by_ref().take(MAX_WORDS).read_to_end(&mut said));
    let said = String::from_utf8_lossy(&said);
    let last = said.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("it said nothing");
    Err(format!("{status}: {}", shown(last)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn shell(script: &str, deadline: Duration) -> Result<(), String> {
        let line = Line { program: "sh", words: &["-c"], args: vec![script.to_owned()] };
        let around = Surroundings { env: BTreeMap::new(), cwd: "/".into(), stdin_is_terminal: false };
        run_for(Path::new("/bin/sh"), &line, &around, deadline)
    }

    #[test]
    fn a_command_ends_well_badly_or_at_its_deadline() {
        let long = Duration::from_secs(60);
        assert_eq!(shell("exit 0", long), Ok(()));
        assert_eq!(
            shell("echo; echo no such scope >&2; exit 3", long),
            Err("exit status: 3: no such scope".into())
        );
        let hostile =
            shell("printf '\\033[2J'; head -c 1000000 /dev/zero | tr '\\0' x; exit 1", long).unwrap_err();
        assert!(hostile.contains("\\u{1b}[2J") && hostile.len() < 1000, "{hostile}");
        // Its children hold what it printed to, and are ended with it.
        assert_eq!(shell("sleep 1000 & sleep 1000", Duration::ZERO), Err("it did not end within 0 s".into()));
        // One that leaves a child behind does not keep us.
        assert_eq!(shell("sleep 3 & exit 0", long), Ok(()));
    }

    #[test]
    fn each_client_has_its_own_words() {
        let args = ["serve".to_owned(), "--memory".to_owned(), "1g".to_owned()];
        let line =
            |own, scope| add(own, scope, "cove", "/b/cove", &args).map(|line| (line.name(), line.args));
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            line(Own::Codex, Scope::User),
            Some(("codex mcp add".into(), words(&["cove", "--", "/b/cove", "serve", "--memory", "1g"])))
        );
        assert_eq!(line(Own::Codex, Scope::Project), None);
        let (name, args) = line(Own::Claude, Scope::Local).unwrap();
        assert_eq!(
            (name.as_str(), &args[..3]),
            ("claude mcp add-json", &words(&["-s", "local", "cove"])[..])
        );
        assert_eq!(args[3], r#"{"command": "/b/cove", "args": ["serve", "--memory", "1g"]}"#);
        let (name, args) = line(Own::Code("code"), Scope::User).unwrap();
        assert_eq!(name, "code --add-mcp");
        assert!(args[0].contains(r#"{"name": "cove", "type": "stdio", "#), "{args:?}");
        assert_eq!(remove(Own::Code("code"), Scope::User, "cove"), None);
        assert_eq!(
            remove(Own::Gemini, Scope::Project, "cove").unwrap().args,
            words(&["-s", "project", "cove"])
        );
    }
}
