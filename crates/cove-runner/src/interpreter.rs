//! One interpreter process and the channel to the shim inside it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use cove_protocol::Language;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::shim::{self, FromShim, ShimError};

/// What an interpreter gets as its descriptors 0, 1 and 2.
pub(crate) struct Standard {
    pub(crate) input: OwnedFd,
    pub(crate) output: OwnedFd,
    pub(crate) error: OwnedFd,
}

pub(crate) struct Interpreter {
    pid: Pid,
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
        third: &mut Third,
    ) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        let mut command = Command::new(program);
        command
            .args(arguments(language))
            .stdin(standard.input)
            .stdout(standard.output)
            .stderr(standard.error);
        // A group of its own, so that an interrupt reaches what the code waits for and not the runner.
        command.process_group(0);
        let child = third.lend(theirs.as_fd(), || command.spawn())?;
        let pid = Pid::from_raw(child.id() as i32).ok_or_else(|| io::Error::other("no process id"))?;
        Ok(Self { pid, channel: ours, from_shim: Vec::new(), to_shim: Vec::new() })
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    pub(crate) fn channel(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    pub(crate) fn has_to_write(&self) -> bool {
        !self.to_shim.is_empty()
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

    /// Without what it has started, which may live on.
    pub(crate) fn kill_alone(&self) {
        let _ = kill_process(self.pid, Signal::KILL);
    }

    /// It and what it waits for.
    pub(crate) fn signal(&self, signal: Signal) {
        // It may have ended since: then there is nothing to signal.
        let _ = kill_process_group(self.pid, signal);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Received {
    Some,
    Nothing,
    Closed,
}

fn arguments(language: Language) -> &'static [&'static str] {
    match language {
        // Isolated from environment variables and user folders; its installed packages stay visible.
        Language::Python => &["-I", "-X", "utf8", "-c", include_str!("../shims/python/boot.py")],
    }
}

/// The text of a shim's part that is sent only when asked for.
pub(crate) fn part(language: Language, name: &str) -> Option<&'static str> {
    match (language, name) {
        (Language::Python, "cell") => Some(include_str!("../shims/python/cell.py")),
        (Language::Python, "draw") => Some(include_str!("../shims/python/draw.py")),
        (Language::Python, "late") => Some(include_str!("../shims/python/late.py")),
        _ => None,
    }
}
