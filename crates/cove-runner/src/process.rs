//! A process that runs cells, an interpreter or a program, and the process group that it was started in.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Pid, Signal, getpgid, kill_process, kill_process_group};

/// The descriptors 0, 1 and 2 of a new process.
pub(crate) struct StandardStreams {
    pub(crate) input: OwnedFd,
    pub(crate) output: OwnedFd,
    pub(crate) error: OwnedFd,
}

/// A process that runs cells. A shell may move to another process while it lives.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CellProcess {
    pid: Pid,
    /// The group of the first process. A shell that has moved is still in this group.
    group: Pid,
}

impl CellProcess {
    /// Starts a command in a process group of its own. Fails if the kernel refuses.
    pub(crate) fn start(mut command: Command, streams: StandardStreams) -> io::Result<Self> {
        command.stdin(streams.input).stdout(streams.output).stderr(streams.error);
        // So that an interrupt reaches the children that the code waits for, but not the runner.
        command.process_group(0);
        let child = command.spawn()?;
        let pid = Pid::from_raw(child.id() as i32).ok_or_else(|| io::Error::other("the new process has no id"))?;
        Ok(Self { pid, group: pid })
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// The shell reports that it has moved to another process. If that is a lie, it harms only itself.
    pub(crate) fn moved_to(&mut self, process: i32) {
        if let Some(pid) = Pid::from_raw(process) {
            self.pid = pid;
        }
    }

    /// Kills the process, but not the children that it has started, which may live on.
    pub(crate) fn kill_alone(&self) {
        let _ = kill_process(self.pid, Signal::KILL);
    }

    /// Signals the process and the children that it waits for.
    pub(crate) fn signal(&self, signal: Signal) {
        // If it has left its group, only its own id reaches it. Errors are ignored, because it may have ended since.
        if getpgid(Some(self.pid)) != Ok(self.group) {
            let _ = kill_process(self.pid, signal);
        }
        let _ = kill_process_group(self.group, signal);
    }
}
