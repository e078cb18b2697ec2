//! Runs a program of the person's own and returns what it prints: a helper that keeps secrets, `${cmd:…}`, `headers_cmd`.
//!
//! No shell is involved. What the program prints may be a secret, also when it fails, so no error repeats any of it: its
//! standard error goes nowhere, and a person who runs the program by hand sees it there.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

use cove_core::error::Refusal;
use cove_core::process_env::ProcessEnv;
use cove_core::search_path::{is_executable, programs};

/// Most bytes that a program may print.
const MAX_PRINTED: usize = 64 * 1024;
const MAX_WORDS: usize = 64;
const MAX_COMMAND: usize = 4_096;
const TIMEOUT: Duration = Duration::from_secs(10);
/// A program may ask the person at the terminal for a password.
const TIMEOUT_WITH_TERMINAL: Duration = Duration::from_secs(60);

/// A program and its arguments, written on one line. Quotes keep spaces inside a word; nothing else is special.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProgramWords {
    text: String,
    words: Vec<String>,
}

impl ProgramWords {
    /// Splits a line into words. Fails if there is none, or if a quote is not closed.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        let refuse = |cause: &str, hint: &str| Err(Refusal::new(cause, hint));
        let mut words: Vec<String> = Vec::new();
        let (mut quote, mut is_inside) = (None, false);
        for c in text.chars() {
            match quote {
                Some(open) if open == c => quote = None,
                None if matches!(c, '"' | '\'') => {
                    quote = Some(c);
                    if !is_inside {
                        words.push(String::new());
                        is_inside = true;
                    }
                }
                None if c.is_whitespace() => is_inside = false,
                _ => {
                    if !is_inside {
                        words.push(String::new());
                        is_inside = true;
                    }
                    words.last_mut().expect("a word was begun").push(c);
                }
            }
        }
        match words.first() {
            _ if quote.is_some() => refuse("a quote is not closed", "close it, or leave it out"),
            _ if text.len() > MAX_COMMAND || words.len() > MAX_WORDS => {
                refuse("it is too long for a command", "write a script, and name that")
            }
            _ if text.contains('\0') => refuse("it has a NUL byte", "leave the NUL byte out"),
            Some(program) if !program.is_empty() => Ok(Self { text: text.trim().to_owned(), words }),
            _ => refuse("it names no program", "write a program and its arguments, such as `pass show token`"),
        }
    }

    pub(crate) fn program(&self) -> &str {
        &self.words[0]
    }

    /// Finds the program on the search path, or by its own path. Returns `None` if there is no executable file.
    pub(crate) fn find(&self, env: &ProcessEnv) -> Option<PathBuf> {
        let program = self.program();
        if program.contains('/') {
            return Some(env.absolute_path(program)).filter(|path| is_executable(path));
        }
        programs(program, env.env.get("PATH")?).next()
    }

    /// Runs the program with further arguments, and `input` on its standard input. Returns what it prints. Fails if it
    /// is missing, if its exit code is not 0, or if it prints or takes too much; the failure says which.
    pub(crate) async fn run(&self, more: &[&str], input: &[u8], env: &ProcessEnv) -> Result<String, ProgramFailure> {
        let timeout = if env.stdin_is_terminal { TIMEOUT_WITH_TERMINAL } else { TIMEOUT };
        self.run_within(timeout, more, input, env).await
    }

    pub(super) async fn run_within(
        &self,
        timeout: Duration,
        more: &[&str],
        input: &[u8],
        env: &ProcessEnv,
    ) -> Result<String, ProgramFailure> {
        let path = self.find(env).ok_or(ProgramFailure::Missing)?;
        // A process group of its own has no terminal to ask at, and can be ended as a whole.
        let is_alone = !env.stdin_is_terminal;
        let mut child = start(self, &path, more, env, is_alone).map_err(|error| ProgramFailure::Start(error.kind()))?;
        let printed = tokio::time::timeout(timeout, collect_output(&mut child, input)).await;
        let failure = match printed {
            Ok(Ok(printed)) => return String::from_utf8(printed).map_err(|_| ProgramFailure::NotText),
            Ok(Err(failure)) => failure,
            Err(_) => ProgramFailure::TimedOut(timeout),
        };
        // A program that has exited was waited for, so its number may be that of another one by now: `id` is `None` then.
        let group = child.id().filter(|_| is_alone).and_then(|id| Pid::from_raw(id.cast_signed()));
        if let Some(group) = group {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = child.kill().await;
        Err(failure)
    }
}

fn start(words: &ProgramWords, path: &Path, more: &[&str], env: &ProcessEnv, is_alone: bool) -> std::io::Result<Child> {
    let mut command = Command::new(path);
    command
        .args(&words.words[1..])
        .args(more)
        .env_clear()
        // Such programs need what the person's shell has: agents, buses, service accounts. Cove's own settings, and the
        // token of its server, are not for them.
        .envs(env.env.iter().filter(|(name, _)| !name.starts_with("COVE_") && *name != "PWD" && *name != "OLDPWD"))
        // Not the working directory: scripts of version managers read files there, which may name a project's program.
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    if is_alone {
        command.process_group(0);
    }
    command.spawn()
}

/// Writes the input, reads the output until it ends, and waits for the exit.
async fn collect_output(child: &mut Child, input: &[u8]) -> Result<Vec<u8>, ProgramFailure> {
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let write = async {
        if let Some(mut stdin) = stdin {
            // A program need not read what it gets.
            let _ = stdin.write_all(input).await;
        }
    };
    let read = async {
        let mut printed = Vec::new();
        if let Some(stdout) = stdout {
            let read = stdout.take(MAX_PRINTED as u64 + 1).read_to_end(&mut printed).await;
            read.map_err(|error| ProgramFailure::Start(error.kind()))?;
        }
        if printed.len() > MAX_PRINTED { Err(ProgramFailure::TooLong) } else { Ok(printed) }
    };
    // Reading must not wait for a program that does not read.
    let printed = tokio::select! {
        biased;
        printed = read => printed?,
        printed = async { write.await; std::future::pending().await } => printed,
    };
    let status = child.wait().await.map_err(|error| ProgramFailure::Start(error.kind()))?;
    match (status.code(), status.signal()) {
        (Some(0), _) => Ok(printed),
        (Some(code), _) => Err(ProgramFailure::Exit(code)),
        (None, signal) => Err(ProgramFailure::Signal(signal.unwrap_or(0))),
    }
}

impl fmt::Display for ProgramWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Why a program gave nothing. Repeats none of its output.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ProgramFailure {
    #[error("there is no such program")]
    Missing,
    #[error("it could not be run ({0})")]
    Start(std::io::ErrorKind),
    #[error("it ended with exit code {0}")]
    Exit(i32),
    #[error("it was ended by signal {0}")]
    Signal(i32),
    #[error("it did not end within {} s", .0.as_secs())]
    TimedOut(Duration),
    #[error("it printed more than 64 KiB")]
    TooLong,
    #[error("it printed something that is not UTF-8")]
    NotText,
}
