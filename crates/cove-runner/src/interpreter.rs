//! One interpreter process, and the channel to the shim inside it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::Command;

use cove_protocol::{CodeQuestion, Language, RequestId};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::calls;
use crate::process::{CellProcess, StandardStreams};
use crate::shim::{self, FromShim, ShimError};

/// An interpreter that runs cells of one language.
pub(crate) struct InterpreterProcess {
    language: Language,
    pub(crate) process: CellProcess,
    /// Our end of the socket whose other end is the shim's descriptor 3.
    channel: OwnedFd,
    /// Bytes of the shim that do not make a whole message yet.
    from_shim: Vec<u8>,
    /// Bytes for the shim that the channel had no room for yet.
    to_shim: Vec<u8>,
    /// The question that the shim has not answered yet.
    pub(crate) question: Option<RequestId>,
    /// Whether the runner started it for a question and it has run no cell yet.
    pub(crate) for_question: bool,
    /// Whether code has closed the channel. The process then runs until it ends by itself.
    pub(crate) is_cut_off: bool,
    /// Whether this is an `sh` that has run its one cell and left its state. The process ends with the cell's status, and
    /// nothing else that it writes to the channel counts.
    pub(crate) has_left_state: bool,
    /// Whether the runner has sent the part of the shim that answers questions. Only for Python.
    knows_questions: bool,
}

/// Descriptor 3 of this process, reserved so that nothing else gets that number. It is lent to each interpreter as it
/// starts: safe code has no other way to give a child a descriptor beyond its first three.
pub(crate) struct ReservedDescriptor(OwnedFd);

impl ReservedDescriptor {
    /// Reserves the descriptor. Must be called before anything else opens a descriptor. Fails if the process has inherited
    /// a descriptor of that number.
    pub(crate) fn reserve() -> io::Result<Self> {
        let null = std::fs::File::open("/dev/null")?;
        let third = rustix::io::fcntl_dupfd_cloexec(&null, 3)?;
        // The first descriptor that a process opens has the number 3, so `null` itself may have it.
        [third, null.into()].into_iter().find(|fd| fd.as_raw_fd() == 3).map(Self).ok_or_else(|| {
            io::Error::other("another program left descriptor 3 open for this one; start it without that descriptor")
        })
    }

    /// Makes `fd` descriptor 3 while `start` runs.
    fn lend<T>(&mut self, fd: BorrowedFd<'_>, start: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        // Without close-on-exec, so that the child keeps it. Nothing else is started meanwhile: there is one thread.
        rustix::io::dup2(fd, &mut self.0)?;
        let started = start();
        let null = std::fs::File::open("/dev/null")?;
        rustix::io::dup3(&null, &mut self.0, rustix::io::DupFlags::CLOEXEC)?;
        started
    }
}

/// Runs `start` with the limit on data as high as the hard limit permits, for the process that it starts. Nothing else is
/// started meanwhile: there is one thread.
fn with_all_data<T>(start: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let usual = getrlimit(Resource::Data);
    setrlimit(Resource::Data, Rlimit { current: usual.maximum, maximum: usual.maximum })?;
    let started = start();
    setrlimit(Resource::Data, usual)?;
    started
}

/// What a new interpreter is started with.
pub(crate) struct InterpreterStart<'a> {
    pub(crate) language: Language,
    pub(crate) program: &'a str,
    /// Which shell the program is, if the language is `Sh`.
    pub(crate) shell: PosixShell,
    /// Where its code can call the host.
    pub(crate) socket: &'a Path,
    /// Further variables of its environment.
    pub(crate) variables: &'a [(String, String)],
    /// What the `sh` before has left.
    pub(crate) shell_state: Option<&'a [u8]>,
}

/// The shell that runs cells of `sh`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PosixShell {
    /// Bash in its POSIX mode, which keeps its state in one process.
    Bash,
    /// Another shell, with a new process for each cell.
    Other,
}

impl InterpreterProcess {
    /// Starts an interpreter with its shim, as `start` says. Fails if the kernel refuses.
    pub(crate) fn start(
        start: InterpreterStart<'_>,
        streams: StandardStreams,
        shim_descriptor: &mut ReservedDescriptor,
    ) -> io::Result<Self> {
        let InterpreterStart { language, program, shell, socket, variables, shell_state } = start;
        // Other children must not inherit either end: the runner knows that the shim has ended by the end of its
        // stream.
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        let mut command = Command::new(program);
        command.args(arguments(language, shell));
        match shell_state {
            // It has every variable that the environment gave to the first `sh`, unless a cell has unset it.
            Some(_) => command.env_clear(),
            None => command.env(calls::CALL_VARIABLE, socket).envs(variables.iter().map(|(name, value)| (name, value))),
        };
        let start = || CellProcess::start(command, streams);
        let process = shim_descriptor.lend(theirs.as_fd(), || match language {
            // Exceeding the limit is an exception that code can survive.
            Language::Python => start(),
            // Node reserves memory that it never uses, and shells start Node.
            Language::Node | Language::Bash | Language::Sh => with_all_data(start),
        })?;
        let mut interpreter = Self {
            language,
            process,
            channel: ours,
            from_shim: Vec::new(),
            to_shim: Vec::new(),
            question: None,
            for_question: false,
            is_cut_off: false,
            has_left_state: false,
            knows_questions: false,
        };
        if let Some(state) = shell_state {
            interpreter.send(shim::encode_shell_state(state));
        }
        Ok(interpreter)
    }

    /// Returns the descriptor to poll for messages of the shim.
    pub(crate) fn channel(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// Returns whether bytes for the shim wait for room in the channel.
    pub(crate) fn has_to_write(&self) -> bool {
        !self.to_shim.is_empty()
    }

    /// Sends a cell to the shim. Fails if the code cannot be encoded for a shell.
    pub(crate) fn run(&mut self, name: &str, code: &[u8], args: &[String]) -> Result<(), ShimRefusal> {
        let message = match self.language {
            Language::Python | Language::Node => shim::encode_cell(name, code, args),
            Language::Bash | Language::Sh => shim::encode_shell_cell(name, code, args).ok_or(ShimRefusal)?,
        };
        self.send(message);
        Ok(())
    }

    /// Sends a question about code to the shim. Fails if another question is open, or if the code cannot be encoded
    /// for a shell.
    pub(crate) fn ask(
        &mut self,
        request: RequestId,
        question: CodeQuestion,
        program: &str,
        code: &[u8],
    ) -> Result<(), ShimRefusal> {
        if self.question.is_some() {
            return Err(ShimRefusal);
        }
        let message = match self.language {
            Language::Python => {
                // Before the question and not when the shim asks for it, because a cell could arrive in between.
                if !std::mem::replace(&mut self.knows_questions, true) {
                    self.send(shim::encode_part(PYTHON_QUESTIONS));
                }
                shim::encode_question(question, code)
            }
            Language::Node => shim::encode_question(question, code),
            Language::Bash | Language::Sh => {
                shim::encode_shell_question(SHELL_QUESTIONS, question, program, code).ok_or(ShimRefusal)?
            }
        };
        self.question = Some(request);
        self.send(message);
        Ok(())
    }

    pub(crate) fn send(&mut self, message: Vec<u8>) {
        self.to_shim.extend(message);
        self.flush();
    }

    /// Writes as much as the channel has room for. An error is ignored: it means that the process has ended, which
    /// `reap` notices.
    pub(crate) fn flush(&mut self) {
        while !self.to_shim.is_empty() {
            match rustix::net::send(&self.channel, &self.to_shim, rustix::net::SendFlags::NOSIGNAL) {
                Ok(count) => drop(self.to_shim.drain(..count)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => self.to_shim.clear(),
            }
        }
    }

    /// Reads once from the shim. `take` then returns the messages one by one.
    pub(crate) fn receive(&mut self) -> ShimRead {
        let mut buffer = [0u8; 16 * 1024];
        match rustix::io::retry_on_intr(|| rustix::io::read(&self.channel, &mut buffer)) {
            Ok(0) => ShimRead::Closed,
            // One read in each turn of the loop: a shim that never stops writing must not block the runner.
            Ok(count) => {
                if !self.has_left_state {
                    self.from_shim.extend(&buffer[..count]);
                }
                ShimRead::Bytes
            }
            Err(Errno::AGAIN) => ShimRead::Nothing,
            Err(_) => ShimRead::Closed,
        }
    }

    /// Returns the next whole message, or `None`. Fails if the bytes are no message.
    pub(crate) fn take(&mut self) -> Result<Option<FromShim>, ShimError> {
        shim::take(&mut self.from_shim)
    }
}

/// A shim cannot be given this code: it uses every control character, and a shell's frames need one that it does not
/// use. Or it cannot be asked, because another question is open.
pub(crate) struct ShimRefusal;

/// What one read from a shim's channel found.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShimRead {
    Bytes,
    Nothing,
    Closed,
}

/// A shell gets its shim as a parameter. Both `eval`s are on line 1, so that line numbers in messages are those of the
/// cell.
const SHELL_START: &str = r#"eval "$1";eval "$_cove_main""#;
const BASH_SHIM: &str = include_str!("../shims/shell/bash.sh");
const SH_SHIM: &str = include_str!("../shims/shell/sh.sh");
const SHELL_QUESTIONS: &str = include_str!("../shims/shell/questions.sh");
const PYTHON_QUESTIONS: &str = include_str!("../shims/python/questions.py");

/// Returns the arguments that make an interpreter run its shim.
fn arguments(language: Language, shell: PosixShell) -> &'static [&'static str] {
    match language {
        // `-I` isolates it from environment variables and user folders; installed packages stay visible.
        Language::Python => &["-I", "-X", "utf8", "-c", include_str!("../shims/python/boot.py")],
        Language::Node => &["--no-force-async-hooks-checks", "-e", include_str!("../shims/node/boot.js")],
        Language::Bash => &["--norc", "--noprofile", "-c", SHELL_START, "bash", BASH_SHIM],
        Language::Sh if shell == PosixShell::Bash => {
            &["--posix", "--norc", "--noprofile", "-c", SHELL_START, "sh", BASH_SHIM]
        }
        // An image may have bash under the name of sh alone. Then the shim for bash takes over.
        Language::Sh => &["-c", SHELL_START, "sh", SH_SHIM, BASH_SHIM],
    }
}

/// Returns the text of a part that a shim loads on demand, or `None` if there is no such part.
pub(crate) fn shim_part(language: Language, name: &str) -> Option<&'static str> {
    Some(match (language, name) {
        (Language::Python, "cell") => include_str!("../shims/python/cell.py"),
        (Language::Python, "errors_and_await") => include_str!("../shims/python/errors_and_await.py"),
        (Language::Python, "hints") => include_str!("../shims/python/hints.py"),
        (Language::Python, "images") => include_str!("../shims/python/images.py"),
        (Language::Python, "mcp_module") => include_str!("../shims/python/mcp_module.py"),
        (Language::Python, "pending_calls") => include_str!("../shims/python/pending_calls.py"),
        (Language::Python, "questions") => PYTHON_QUESTIONS,
        (Language::Python, "results") => include_str!("../shims/python/results.py"),
        (Language::Python, "wire") => include_str!("../shims/python/wire.py"),
        (Language::Node, "process_guard") => include_str!("../shims/node/process_guard.js"),
        (Language::Node, "faults") => include_str!("../shims/node/faults.js"),
        (Language::Node, "hints") => include_str!("../shims/node/hints.js"),
        (Language::Node, "imports") => include_str!("../shims/node/imports.js"),
        (Language::Node, "mcp") => include_str!("../shims/node/mcp.js"),
        (Language::Node, "questions") => include_str!("../shims/node/questions.js"),
        (Language::Node, "redeclarations") => include_str!("../shims/node/redeclarations.js"),
        (Language::Node, "typescript") => include_str!("../shims/node/typescript.js"),
        (Language::Node, "stream_repair") => include_str!("../shims/node/stream_repair.js"),
        (Language::Node, "interrupts") => include_str!("../shims/node/interrupts.js"),
        (Language::Node, "wire") => include_str!("../shims/node/wire.js"),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shim that asks for a part and gets none would fail in strange ways.
    #[test]
    fn shims_can_load_each_of_their_parts() {
        for (language, folder) in [(Language::Python, "python"), (Language::Node, "node")] {
            let shims = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("shims").join(folder);
            let files = std::fs::read_dir(shims).unwrap().flatten().map(|entry| entry.path());
            for file in files.filter(|path| path.is_file()) {
                let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
                let text = std::fs::read_to_string(&file).unwrap();
                assert!(name == "boot" || shim_part(language, &name) == Some(&text), "{}", file.display());
            }
        }
    }
}
