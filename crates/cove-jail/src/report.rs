//! What the jail tells the host that started it, and the little that it can be asked, over the control socket.
//!
//! Both ends are trusted: the sandbox never holds this socket. One JSON value a line.

use std::fmt;

use serde::{Deserialize, Serialize};

/// From the jail to the host, in this order: `Started` or `Failed`, then `Memory` as often as asked, then `Ended`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// Every step succeeded and the program runs.
    Started { host_uid: u32 },
    /// The sandbox was not made. Nothing of it is left.
    Failed { failure: StepFailure },
    /// The answer to `Request::Memory`.
    Memory { exceeded: Option<OutOfMemory> },
    /// The program and all its descendants are gone, and so are the sandbox's cgroups.
    Ended { exit: Exit, exceeded: Option<OutOfMemory> },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    Code(i32),
    Signal(i32),
}

/// Who ended the sandbox for using more memory than it was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutOfMemory {
    Kernel,
    Watchdog,
}

/// From the host to the jail, one byte each; the end of the host's side of the socket means "kill it".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// Has anything in the sandbox been killed for memory so far?
    Memory,
}

impl Request {
    pub const fn byte(self) -> u8 {
        match self {
            Request::Memory => b'M',
        }
    }
}

/// Each step of making a sandbox, in the order in which they are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
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

/// A step that did not succeed: what was tried, and what the kernel said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepFailure {
    pub step: Step,
    /// As in "could not <action>".
    pub action: String,
    pub errno: Option<i32>,
    /// What the kernel or the step said.
    pub cause: String,
}

impl fmt::Display for StepFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "could not {}", self.action)
    }
}

impl StepFailure {
    pub(crate) fn new(step: Step, action: impl Into<String>, error: impl Into<std::io::Error>) -> Self {
        let error = error.into();
        Self { step, action: action.into(), errno: error.raw_os_error(), cause: error.to_string() }
    }
}

/// Names the step and the act beside a failing call: `call().during(Step::Mounts, || "mount `/proc`".into())?`.
pub(crate) trait During<T> {
    fn during(self, step: Step, action: impl FnOnce() -> String) -> Result<T, StepFailure>;
}

impl<T, E: Into<std::io::Error>> During<T> for Result<T, E> {
    fn during(self, step: Step, action: impl FnOnce() -> String) -> Result<T, StepFailure> {
        self.map_err(|error| StepFailure::new(step, action(), error))
    }
}
