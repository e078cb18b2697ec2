//! A cell and how it ended. Every ending is its own case: none is guessed from output, none passes for another.

use std::fmt;
use std::time::Duration;

use cove_protocol::Language;
use serde::Serialize;

use crate::backend::{Ending, MemoryKiller};

/// One piece of code to run.
#[derive(Debug, Clone)]
pub struct Cell {
    pub language: Language,
    /// What tracebacks call it.
    pub name: String,
    pub code: String,
    pub args: Vec<String>,
    pub timeout: Duration,
    pub grace: Duration,
}

/// One program to start in the place of code, with the session's standard input.
#[derive(Debug, Clone)]
pub struct Program {
    /// Its name, looked up inside the sandbox unless it is a path, and its arguments.
    pub command: Vec<String>,
    /// Where it starts; where cells do if not set.
    pub directory: Option<String>,
    pub timeout: Duration,
    pub grace: Duration,
}

/// What ran a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    Interpreter(Language),
    Program,
}

impl From<Language> for Who {
    fn from(language: Language) -> Self {
        Self::Interpreter(language)
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interpreter(language) => language.fmt(f),
            Self::Program => f.write_str("the program"),
        }
    }
}

/// `forgotten` says that the interpreter had ended between cells, so that this one began without the variables of
/// those before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CellEnd {
    Completed {
        forgotten: bool,
    },
    Raised {
        exception: String,
        message: String,
        forgotten: bool,
    },
    /// The code asked to exit and the interpreter goes on, or the program ended so.
    Exited {
        code: i32,
        forgotten: bool,
    },
    InterpreterExited {
        language: Language,
        code: i32,
    },
    Killed {
        who: Who,
        signal: i32,
    },
    OutOfMemory {
        who: Who,
        by: MemoryKiller,
    },
    Stopped {
        why: Stop,
        survived: Survived,
    },
    Unavailable {
        who: Who,
        reason: String,
    },
    /// It never ran: this many cells were waiting before it.
    Refused {
        waiting: usize,
    },
    SandboxEnded(Ending),
}

/// Why we stopped a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    Deadline,
    Cancelled,
}

/// What of the session is still there after a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Survived {
    Everything,
    /// The interpreter is gone, and its variables with it.
    Files,
    Nothing,
}

impl CellEnd {
    pub fn survived(&self) -> Survived {
        match self {
            Self::Completed { .. } | Self::Raised { .. } | Self::Exited { .. } | Self::Refused { .. } => {
                Survived::Everything
            }
            Self::Killed { who, .. } | Self::OutOfMemory { who, .. } | Self::Unavailable { who, .. } => {
                match who {
                    Who::Interpreter(_) => Survived::Files,
                    // It had nothing that could last, and others keep what they have.
                    Who::Program => Survived::Everything,
                }
            }
            Self::InterpreterExited { .. } => Survived::Files,
            Self::Stopped { survived, .. } => *survived,
            Self::SandboxEnded(_) => Survived::Nothing,
        }
    }

    pub fn is_success(&self) -> bool {
        matches!(
            self,
            Self::Completed { .. } | Self::Exited { code: 0, .. } | Self::InterpreterExited { code: 0, .. }
        )
    }

    /// What a shell would have seen had the code run in it.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Completed { .. } => 0,
            Self::Raised { .. } => 1,
            Self::Exited { code, .. } | Self::InterpreterExited { code, .. } => *code as u8,
            Self::Killed { signal, .. } => signal_code(*signal),
            Self::OutOfMemory { .. } | Self::SandboxEnded(Ending::OutOfMemory(_)) => signal_code(9),
            // As timeout(1) has it.
            Self::Stopped { why: Stop::Deadline, .. } => 124,
            Self::Stopped { why: Stop::Cancelled, .. } => signal_code(2),
            Self::Unavailable { .. } | Self::Refused { .. } | Self::SandboxEnded(_) => 125,
        }
    }

    /// One word for programs to tell endings apart by.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Completed { .. } => "completed",
            Self::Raised { .. } => "raised",
            Self::Exited { .. } => "exited",
            Self::InterpreterExited { .. } => "interpreter_exited",
            Self::Killed { who: Who::Interpreter(_), .. } => "interpreter_killed",
            Self::Killed { who: Who::Program, .. } => "program_killed",
            Self::OutOfMemory { .. } | Self::SandboxEnded(Ending::OutOfMemory(_)) => "out_of_memory",
            Self::Stopped { why: Stop::Deadline, .. } => "deadline",
            Self::Stopped { why: Stop::Cancelled, .. } => "cancelled",
            Self::Unavailable { .. } => "unavailable",
            Self::Refused { .. } => "refused",
            Self::SandboxEnded(_) => "lost",
        }
    }
}

fn signal_code(signal: i32) -> u8 {
    128u8.wrapping_add(signal as u8)
}

/// As in "the sandbox …".
pub(crate) fn describe_ending(ending: &Ending) -> String {
    match ending {
        Ending::Exited(code) => format!("exited with code {code}"),
        Ending::Signalled(signal) => format!("was killed by signal {signal}"),
        Ending::OutOfMemory(MemoryKiller::Kernel) => "ran out of memory and was ended by the kernel".into(),
        Ending::OutOfMemory(MemoryKiller::Watchdog) => {
            "ran out of memory and was ended by the watchdog".into()
        }
        Ending::Lost(last) => format!("was lost: {last}"),
    }
}
