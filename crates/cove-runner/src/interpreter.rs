//! One interpreter process and the channel to the shim inside it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::Command;

use cove_protocol::Language;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::calls;
use crate::process::{Process, Standard};
use crate::shim::{self, FromShim, ShimError};

pub(crate) struct Interpreter {
    language: Language,
    process: Process,
    channel: OwnedFd,
    from_shim: Vec<u8>,
    to_shim: Vec<u8>,
}

/// Holds descriptor 3 of this process, so that nothing else gets that number, and lends it to each child as it
/// starts. Safe code has no other way to hand a child a descriptor beyond its first three.
pub(crate) struct Third(OwnedFd);

impl Third {
    pub(crate) fn reserve() -> io::Result<Self> {
        let null = std::fs::File::open("/dev/null")?;
        let third = rustix::io::fcntl_dupfd_cloexec(&null, 3)?;
        let number = std::os::fd::AsRawFd::as_raw_fd(&third);
        // The very first descriptor opened gets 3 anyway, as `null` has by now.
        if number == 3 { Ok(Self(third)) } else { Ok(Self(null.into())) }
    }

    fn lend<T>(&mut self, fd: BorrowedFd<'_>, start: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        rustix::io::dup2(fd, &mut self.0)?;
        let started = start();
        let null = std::fs::File::open("/dev/null")?;
        rustix::io::dup3(&null, &mut self.0, rustix::io::DupFlags::CLOEXEC)?;
        started
    }
}

impl Interpreter {
    pub(crate) fn start(
        language: Language,
        program: &str,
        standard: Standard,
        socket: &Path,
        third: &mut Third,
    ) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        let mut command = Command::new(program);
        command.args(arguments(language)).env(calls::VARIABLE, socket);
        let process = third.lend(theirs.as_fd(), || Process::start(command, standard))?;
        Ok(Self { language, process, channel: ours, from_shim: Vec::new(), to_shim: Vec::new() })
    }

    pub(crate) fn process(&self) -> Process {
        self.process
    }

    pub(crate) fn channel(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    pub(crate) fn has_to_write(&self) -> bool {
        !self.to_shim.is_empty()
    }

    /// Hands it a cell. Fails for code that cannot be written in its wire.
    pub(crate) fn run(&mut self, name: &str, code: &[u8], args: &[String]) -> Result<(), Unwritable> {
        let message = match self.language {
            Language::Python | Language::Node => shim::run(name, code, args),
            Language::Bash | Language::Sh => shim::run_in_shell(name, code, args).ok_or(Unwritable)?,
        };
        self.send(message);
        Ok(())
    }

    pub(crate) fn moved_to(&mut self, process: i32) {
        self.process.moved_to(process);
    }

    pub(crate) fn send(&mut self, message: Vec<u8>) {
        self.to_shim.extend(message);
        self.flush();
    }

    /// Writes what the channel has room for. A shim that is gone is noticed when it is reaped.
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

    /// Reads what has come; `take` then yields it message by message.
    pub(crate) fn receive(&mut self) -> Received {
        let mut buffer = [0u8; 16 * 1024];
        loop {
            match rustix::io::read(&self.channel, &mut buffer) {
                Ok(0) => return Received::Closed,
                Ok(count) => {
                    self.from_shim.extend(&buffer[..count]);
                    // No more than one read a turn: a shim that never stops talking must not keep the runner.
                    return Received::Some;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Received::Nothing,
                Err(_) => return Received::Closed,
            }
        }
    }

    pub(crate) fn take(&mut self) -> Result<Option<FromShim>, ShimError> {
        shim::take(&mut self.from_shim)
    }
}

/// The code has every control character there is.
pub(crate) struct Unwritable;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Received {
    Some,
    Nothing,
    Closed,
}

/// A shell has its shim as a parameter: both evaluations being on its first line makes line numbers in messages those of
/// the cell.
const SHELL_START: &str = r#"eval "$1";eval "$_cove_main""#;
const BASH_SHIM: &str = include_str!("../shims/shell/bash.sh");
const SH_SHIM: &str = include_str!("../shims/shell/sh.sh");

fn arguments(language: Language) -> &'static [&'static str] {
    match language {
        // Isolated from environment variables and user folders; its installed packages stay visible.
        Language::Python => &["-I", "-X", "utf8", "-c", include_str!("../shims/python/boot.py")],
        Language::Node => &["--no-force-async-hooks-checks", "-e", include_str!("../shims/node/boot.js")],
        Language::Bash => &["--norc", "--noprofile", "-c", SHELL_START, "bash", BASH_SHIM],
        // Where sh is bash, its shim takes over.
        Language::Sh => &["-c", SHELL_START, "sh", SH_SHIM, BASH_SHIM],
    }
}

/// The text of a shim's part that is sent only when asked for.
pub(crate) fn part(language: Language, name: &str) -> Option<&'static str> {
    Some(match (language, name) {
        (Language::Python, "cell") => include_str!("../shims/python/cell.py"),
        (Language::Python, "draw") => include_str!("../shims/python/draw.py"),
        (Language::Python, "late") => include_str!("../shims/python/late.py"),
        (Language::Python, "more") => include_str!("../shims/python/more.py"),
        (Language::Python, "tool") => include_str!("../shims/python/tool.py"),
        (Language::Python, "wait") => include_str!("../shims/python/wait.py"),
        (Language::Python, "wire") => include_str!("../shims/python/wire.py"),
        (Language::Node, "around") => include_str!("../shims/node/around.js"),
        (Language::Node, "faults") => include_str!("../shims/node/faults.js"),
        (Language::Node, "imports") => include_str!("../shims/node/imports.js"),
        (Language::Node, "mcp") => include_str!("../shims/node/mcp.js"),
        (Language::Node, "redeclare") => include_str!("../shims/node/redeclare.js"),
        (Language::Node, "repair") => include_str!("../shims/node/repair.js"),
        (Language::Node, "watch") => include_str!("../shims/node/watch.js"),
        (Language::Node, "wire") => include_str!("../shims/node/wire.js"),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A part that a shim asks for and does not get would be a mystery in the sandbox.
    #[test]
    fn every_part_of_a_shim_can_be_asked_for() {
        for (language, folder) in [(Language::Python, "python"), (Language::Node, "node")] {
            let shims = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("shims").join(folder);
            let files = std::fs::read_dir(shims).unwrap().flatten().map(|entry| entry.path());
            for file in files.filter(|path| path.is_file()) {
                let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
                let text = std::fs::read_to_string(&file).unwrap();
                assert!(name == "boot" || part(language, &name) == Some(&text), "{}", file.display());
            }
        }
    }
}
