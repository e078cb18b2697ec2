//! The commands with which some clients register servers. Cove runs them with a deadline and does not rely on their
//! exit codes: the caller looks into the file to see whether the entry is there.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::clients::ClientTool;
use super::edit::inline;
use super::locations::{InstallScope, on_path};
use cove_core::document::{DocumentFormat, DocumentMember, DocumentNode};
use cove_core::error::display_value;
use cove_core::process_env::ProcessEnv;

/// A client that starts an interpreter first takes a second or two.
const DEADLINE: Duration = Duration::from_secs(30);
const MAX_OUTPUT: u64 = 4096;

/// One command line: the words that people know it by, and the arguments of this call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ClientCommandLine {
    pub(super) program: &'static str,
    pub(super) words: &'static [&'static str],
    pub(super) args: Vec<String>,
    /// True if the working directory says what the command changes. Otherwise it runs in `/`, where no file of a project
    /// can choose another program.
    is_of_project: bool,
}

impl ClientCommandLine {
    pub(super) fn new(
        program: &'static str,
        words: &'static [&'static str],
        args: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        Self { program, words, args: args.into_iter().map(Into::into).collect(), is_of_project: false }
    }

    fn of_scope(self, scope: InstallScope) -> Self {
        Self { is_of_project: scope != InstallScope::User, ..self }
    }

    /// The name that messages use.
    pub(super) fn name(&self) -> String {
        format!("{} {}", self.program, self.words.join(" "))
    }

    pub(super) fn is_on_path(&self, env: &ProcessEnv) -> bool {
        on_path(self.program, env).is_some()
    }
}

/// The command that adds a server, if the client has one for this scope.
pub(super) fn add(
    tool: ClientTool,
    scope: InstallScope,
    name: &str,
    program: &str,
    args: &[String],
) -> Option<ClientCommandLine> {
    let fields = || {
        let args = DocumentNode::list(args.iter().cloned());
        [DocumentMember::new("command", program), DocumentMember::new("args", args)]
    };
    let then_args = |words: &[&str]| [&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>(), args].concat();
    let line = match (tool, scope) {
        (ClientTool::Claude, scope) => {
            let args = ["-s", scope.as_str(), name, &object(fields())];
            Some(ClientCommandLine::new("claude", &["mcp", "add-json"], args))
        }
        (ClientTool::Codex, InstallScope::User) => {
            Some(ClientCommandLine::new("codex", &["mcp", "add"], then_args(&[name, "--", program])))
        }
        (ClientTool::VsCode(editor), InstallScope::User) => {
            let named = [DocumentMember::new("name", name), DocumentMember::new("type", "stdio")];
            let entry = object(named.into_iter().chain(fields()));
            Some(ClientCommandLine::new(editor, &["--add-mcp"], [entry]))
        }
        (ClientTool::Gemini, InstallScope::User | InstallScope::Project) => {
            let args = then_args(&["-s", scope.as_str(), name, program, "--"]);
            Some(ClientCommandLine::new("gemini", &["mcp", "add"], args))
        }
        (ClientTool::Codex | ClientTool::VsCode(_) | ClientTool::Gemini, _) => None,
    };
    line.map(|line| line.of_scope(scope))
}

/// A JSON object on one line.
fn object(fields: impl IntoIterator<Item = DocumentMember>) -> String {
    inline(DocumentFormat::Json, &DocumentNode::map(fields))
}

/// The command that removes a server, if the client has one for this scope.
pub(super) fn remove(tool: ClientTool, scope: InstallScope, name: &str) -> Option<ClientCommandLine> {
    let scoped = ["-s", scope.as_str(), name];
    let line = |program, args: &[&str]| ClientCommandLine::new(program, &["mcp", "remove"], args.to_vec());
    let line = match (tool, scope) {
        (ClientTool::Claude, _) => Some(line("claude", &scoped)),
        (ClientTool::Codex, InstallScope::User) => Some(line("codex", &[name])),
        (ClientTool::Gemini, InstallScope::User | InstallScope::Project) => Some(line("gemini", &scoped)),
        (ClientTool::Codex | ClientTool::VsCode(_) | ClientTool::Gemini, _) => None,
    };
    line.map(|line| line.of_scope(scope))
}

/// Runs a command until it ends or its deadline passes. Returns the reason if it failed.
pub(super) fn run(line: &ClientCommandLine, env: &ProcessEnv) -> Result<(), String> {
    let Some(program) = on_path(line.program, env) else {
        return Err(format!("there is no `{}` on `PATH`", line.program));
    };
    run_for(&program, line, env, DEADLINE)
}

fn run_for(program: &Path, line: &ClientCommandLine, env: &ProcessEnv, deadline: Duration) -> Result<(), String> {
    // A file rather than a pipe: a grandchild that lives on could hold a pipe open, and Cove would wait for it.
    let mut output = tempfile::tempfile().map_err(|error| error.to_string())?;
    let handle = |file: &File| file.try_clone().map(Stdio::from).map_err(|error| error.to_string());
    let mut child = Command::new(program)
        .args(line.words)
        .args(&line.args)
        .current_dir(if line.is_of_project { env.cwd.as_path() } else { Path::new("/") })
        .stdin(Stdio::null())
        .stdout(handle(&output)?)
        .stderr(handle(&output)?)
        .process_group(0)
        .spawn()
        .map_err(|error| error.to_string())?;
    let started = Instant::now();
    let status = loop {
        match child.try_wait().map_err(|error| error.to_string())? {
            Some(status) => break Some(status),
            None if started.elapsed() > deadline => break None,
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
    let mut bytes = Vec::new();
    let _ = output.rewind().and_then(|()| output.by_ref().take(MAX_OUTPUT).read_to_end(&mut bytes));
    let text = String::from_utf8_lossy(&bytes);
    let last = text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("it printed nothing");
    Err(format!("{status}: {}", display_value(last)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn shell(script: &str, deadline: Duration) -> Result<(), String> {
        let line = ClientCommandLine::new("sh", &["-c"], [script]);
        let env = ProcessEnv { env: BTreeMap::new(), cwd: "/".into(), stdin_is_terminal: false };
        run_for(Path::new("/bin/sh"), &line, &env, deadline)
    }

    #[test]
    fn a_command_ends_well_badly_or_at_its_deadline() {
        let long = Duration::from_secs(60);
        assert_eq!(shell("exit 0", long), Ok(()));
        assert_eq!(shell("echo; echo no such scope >&2; exit 3", long), Err("exit status: 3: no such scope".into()));
        let hostile = shell("printf '\\033[2J'; head -c 1000000 /dev/zero | tr '\\0' x; exit 1", long).unwrap_err();
        assert!(hostile.contains("\\u{1b}[2J") && hostile.len() < 1000, "{hostile}");
        // Its children hold its output open, and are killed with it.
        assert_eq!(shell("sleep 1000 & sleep 1000", Duration::ZERO), Err("it did not end within 0 s".into()));
        // A command that leaves a child behind is not waited for.
        assert_eq!(shell("sleep 3 & exit 0", long), Ok(()));
    }

    #[test]
    fn builds_the_command_line_of_each_client() {
        let args = ["serve".to_owned(), "--memory".to_owned(), "1g".to_owned()];
        let line = |own, scope| add(own, scope, "cove", "/b/cove", &args).map(|line| (line.name(), line.args));
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            line(ClientTool::Codex, InstallScope::User),
            Some(("codex mcp add".into(), words(&["cove", "--", "/b/cove", "serve", "--memory", "1g"])))
        );
        assert_eq!(line(ClientTool::Codex, InstallScope::Project), None);
        let (name, args) = line(ClientTool::Claude, InstallScope::Local).unwrap();
        assert_eq!((name.as_str(), &args[..3]), ("claude mcp add-json", &words(&["-s", "local", "cove"])[..]));
        assert_eq!(args[3], r#"{"command": "/b/cove", "args": ["serve", "--memory", "1g"]}"#);
        let (name, args) = line(ClientTool::VsCode("code"), InstallScope::User).unwrap();
        assert_eq!(name, "code --add-mcp");
        assert!(args[0].contains(r#"{"name": "cove", "type": "stdio", "#), "{args:?}");
        assert_eq!(remove(ClientTool::VsCode("code"), InstallScope::User, "cove"), None);
        assert_eq!(
            remove(ClientTool::Gemini, InstallScope::Project, "cove").unwrap().args,
            words(&["-s", "project", "cove"])
        );
    }
}
