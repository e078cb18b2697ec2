//! A process that runs a cell, an interpreter's or a program's, and the group it was started in.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Pid, Signal, getpgid, kill_process, kill_process_group};

/// What it gets as its descriptors 0, 1 and 2.
pub(crate) struct Standard {
    pub(crate) input: OwnedFd,
    pub(crate) output: OwnedFd,
    pub(crate) error: OwnedFd,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Process {
    pid: Pid,
    /// Its first process; whatever it became since is still in this group.
    group: Pid,
}

impl Process {
    pub(crate) fn start(mut command: Command, standard: Standard) -> io::Result<Self> {
        command.stdin(standard.input).stdout(standard.output).stderr(standard.error);
        // A group of its own, so that an interrupt reaches what the code waits for and not the runner.
        command.process_group(0);
        let child = command.spawn()?;
        let pid = Pid::from_raw(child.id() as i32).ok_or_else(|| io::Error::other("no process id"))?;
        Ok(Self { pid, group: pid })
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// It says that it lives on in another process. If that is a lie it harms only itself.
    pub(crate) fn moved_to(&mut self, process: i32) {
        if let Some(pid) = Pid::from_raw(process) {
            self.pid = pid;
        }
    }

    /// Without what it has started, which may live on.
    pub(crate) fn kill_alone(&self) {
        let _ = kill_process(self.pid, Signal::KILL);
    }

    /// It and what it waits for.
    pub(crate) fn signal(&self, signal: Signal) {
        // It may have left its group, and then only its own id reaches it; and it may have ended since.
        if getpgid(Some(self.pid)) != Ok(self.group) {
            let _ = kill_process(self.pid, signal);
        }
        let _ = kill_process_group(self.group, signal);
    }
}
