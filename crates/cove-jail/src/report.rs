//! What a jail process and the host that started it say to each other over the control socket.
//!
//! Both ends are trusted: the sandbox never holds this socket. The host sends the plan first (`enter::encode_plan`),
//! then any number of one-byte requests. The jail sends one JSON event per line. If the host closes its side, for
//! whatever reason, the jail kills the sandbox.

use std::fmt;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// An event from the jail to the host. They come in this order: `Started` or `Failed`, then one `Memory` for each
/// request and any number of `MemoryKill`, then `Ended`. Nothing follows `Failed` or `Ended`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum JailEvent {
    /// Every step succeeded and the program runs.
    Started {
        host_uid: u32,
        /// The file in which the kernel counts the processes that it has killed for memory, if there is a cgroup.
        kill_counter: Option<PathBuf>,
    },
    /// The jail could not make the sandbox, and has removed every trace of it.
    Failed { failure: StepFailure },
    /// Answers `JailRequest::Memory`.
    Memory { exceeded: Option<MemoryKiller> },
    /// The watchdog is about to kill a process of the sandbox, or the sandbox.
    MemoryKill {},
    /// The program and all its descendants are gone, and so are the sandbox's cgroups.
    Ended { exit: RunnerExit, exceeded: Option<MemoryKiller> },
}

impl JailEvent {
    /// Writes the event to the control socket. A failure is ignored: it means that the host is gone, and the jail does
    /// the same with or without it.
    pub(crate) fn send(&self, mut control: &UnixStream) {
        if let Ok(mut line) = serde_json::to_vec(self) {
            line.push(b'\n');
            let _ = control.write_all(&line);
        }
    }
}

/// How the first process of the sandbox, the runner, ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunnerExit {
    Code(i32),
    Signal(i32),
}

/// What killed a process of the sandbox for using more memory than the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryKiller {
    /// The kernel, because of a cgroup's limit.
    Kernel,
    /// The jail process, where no cgroup limits memory.
    Watchdog,
    /// The jail process, because of more file locks or descriptors than a sandbox may have in all its processes; or, with
    /// the person's own id, more epoll watches or pipes.
    DescriptorBound,
}

/// Reads the file of `JailEvent::Started` in which the kernel counts the processes that it has killed for memory. Returns
/// `None` if it cannot be read.
///
/// The host calls it after each cell: three system calls, half of those of a whole file. The counter is within the first
/// lines, which the kernel writes as one piece.
pub fn read_kill_counter(file: &Path) -> Option<u64> {
    let mut text = [0; 512];
    let length = File::open(file).ok()?.read(&mut text).ok()?;
    let text = std::str::from_utf8(&text[..length]).ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

/// A request from the host to the jail: one byte each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JailRequest {
    /// Asks whether anything in the sandbox has been killed for memory so far.
    Memory,
}

impl JailRequest {
    /// Returns the byte that stands for this request on the control socket.
    pub const fn byte(self) -> u8 {
        match self {
            JailRequest::Memory => b'M',
        }
    }
}

/// The steps of making a sandbox, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JailStep {
    Plan,
    Cgroup,
    Clone,
    User,
    Lifetime,
    Namespaces,
    Network,
    Mounts,
    Pivot,
    Rlimits,
    Descriptors,
    Capabilities,
    Landlock,
    Seccomp,
    Execute,
}

/// A step that failed: what the jail tried to do, and what the kernel answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepFailure {
    pub step: JailStep,
    /// As in "could not <action>".
    pub action: String,
    /// The kernel's error number, if the kernel refused.
    pub errno: Option<i32>,
    /// The error as text.
    pub cause: String,
}

impl fmt::Display for StepFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "could not {}", self.action)
    }
}

impl StepFailure {
    pub(crate) fn new(step: JailStep, action: impl Into<String>, error: impl Into<std::io::Error>) -> Self {
        let error = error.into();
        Self { step, action: action.into(), errno: error.raw_os_error(), cause: error.to_string() }
    }
}

/// Adds the step and the action to the error of a call: `call().during(JailStep::Mounts, || "mount `/proc`".into())?`.
pub(crate) trait StepContext<T> {
    fn during(self, step: JailStep, action: impl FnOnce() -> String) -> Result<T, StepFailure>;
}

impl<T, E: Into<std::io::Error>> StepContext<T> for Result<T, E> {
    fn during(self, step: JailStep, action: impl FnOnce() -> String) -> Result<T, StepFailure> {
        self.map_err(|error| StepFailure::new(step, action(), error))
    }
}
