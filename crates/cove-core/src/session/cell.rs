//! A cell and how it ended. Every ending has its own variant, and none is guessed from the cell's output.

use std::fmt;
use std::time::Duration;

use cove_jail::guest::{MAX_DESCRIPTORS, MAX_LOCKS};
use cove_protocol::Language;
use serde::Serialize;

use crate::backend::{MemoryKiller, SandboxEnd};

/// One piece of code to run.
#[derive(Debug, Clone)]
pub struct Cell {
    pub language: Language,
    /// The name of the cell in tracebacks.
    pub name: String,
    pub code: String,
    pub args: Vec<String>,
    pub timeout: Duration,
    pub grace: Duration,
}

/// One program to start instead of code, with the session's standard input.
#[derive(Debug, Clone)]
pub struct ProgramRun {
    /// The program and its arguments. The runner looks the program up inside the sandbox unless it is a path.
    pub command: Vec<String>,
    /// The working directory; that of cells if not set.
    pub directory: Option<String>,
    pub timeout: Duration,
    pub grace: Duration,
}

/// What a cell runs.
#[derive(Debug, Clone)]
pub enum CellRequest {
    Code(Cell),
    Program(ProgramRun),
}

impl CellRequest {
    /// Returns the time until the deadline, and the time between the interrupt at the deadline and the kill.
    pub fn time_limits(&self) -> (Duration, Duration) {
        match self {
            Self::Code(Cell { timeout, grace, .. }) | Self::Program(ProgramRun { timeout, grace, .. }) => {
                (*timeout, *grace)
            }
        }
    }

    pub fn process(&self) -> CellProcess {
        match self {
            Self::Code(cell) => CellProcess::Interpreter(cell.language),
            Self::Program(_) => CellProcess::Program,
        }
    }
}

impl From<Cell> for CellRequest {
    fn from(cell: Cell) -> Self {
        Self::Code(cell)
    }
}

impl From<ProgramRun> for CellRequest {
    fn from(program: ProgramRun) -> Self {
        Self::Program(program)
    }
}

/// The process that ran a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CellProcess {
    Interpreter(Language),
    Program,
}

impl fmt::Display for CellProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interpreter(language) => language.fmt(f),
            Self::Program => f.write_str("the program"),
        }
    }
}

/// How a cell ended. `forgotten` is true if the interpreter had ended between cells, so that this cell began without
/// the variables of earlier ones.
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
    /// The code asked to exit and the interpreter still runs, or the program exited with this code.
    Exited {
        code: i32,
        forgotten: bool,
    },
    InterpreterExited {
        language: Language,
        code: i32,
    },
    Killed {
        process: CellProcess,
        signal: i32,
    },
    OutOfMemory {
        who: CellProcess,
        killer: MemoryKiller,
    },
    Stopped {
        reason: StopReason,
        survived: SurvivingState,
    },
    Unavailable {
        who: CellProcess,
        reason: String,
    },
    /// The cell never ran, because the session already had this many cells.
    Refused {
        waiting: usize,
    },
    SandboxEnded(SandboxEnd),
    /// The code ended by itself, and meanwhile another process of the sandbox was killed for memory.
    AfterMemoryKill {
        end: Box<CellEnd>,
        killer: MemoryKiller,
    },
}

/// Why the session stopped a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    Deadline,
    Cancelled,
}

/// The state of a session that is left after a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SurvivingState {
    Everything,
    /// The interpreter has ended, so its variables are lost.
    Files,
    Nothing,
}

impl CellEnd {
    /// Returns the same end with the note that another process was killed for memory, if the code ended by itself.
    pub(super) fn after_memory_kill(self, killer: Option<MemoryKiller>) -> Self {
        match (self, killer) {
            (
                end @ (Self::Completed { .. }
                | Self::Raised { .. }
                | Self::Exited { .. }
                | Self::InterpreterExited { .. }),
                Some(killer),
            ) => Self::AfterMemoryKill { end: Box::new(end), killer },
            (end, _) => end,
        }
    }

    /// Returns how the code itself ended.
    pub fn end_of_code(&self) -> &Self {
        match self {
            Self::AfterMemoryKill { end, .. } => end,
            end => end,
        }
    }

    /// Returns how much of the session's state is left.
    pub fn survived(&self) -> SurvivingState {
        match self {
            Self::Completed { .. } | Self::Raised { .. } | Self::Exited { .. } | Self::Refused { .. } => {
                SurvivingState::Everything
            }
            Self::Killed { process: who, .. } | Self::OutOfMemory { who, .. } | Self::Unavailable { who, .. } => {
                match who {
                    CellProcess::Interpreter(_) => SurvivingState::Files,
                    // A program has no variables, and the interpreters keep theirs.
                    CellProcess::Program => SurvivingState::Everything,
                }
            }
            Self::InterpreterExited { .. } => SurvivingState::Files,
            Self::Stopped { survived, .. } => *survived,
            Self::SandboxEnded(_) => SurvivingState::Nothing,
            Self::AfterMemoryKill { end, .. } => end.survived(),
        }
    }

    pub fn is_success(&self) -> bool {
        matches!(
            self.end_of_code(),
            Self::Completed { .. } | Self::Exited { code: 0, .. } | Self::InterpreterExited { code: 0, .. }
        )
    }

    /// Returns the exit code that a shell would have seen.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Completed { .. } => 0,
            Self::Raised { .. } => 1,
            Self::Exited { code, .. } | Self::InterpreterExited { code, .. } => *code as u8,
            Self::Killed { signal, .. } => signal_code(*signal),
            Self::OutOfMemory { .. } | Self::SandboxEnded(SandboxEnd::OutOfMemory(_)) => signal_code(9),
            // The exit code of timeout(1).
            Self::Stopped { reason: StopReason::Deadline, .. } => 124,
            Self::Stopped { reason: StopReason::Cancelled, .. } => signal_code(2),
            Self::Unavailable { .. } | Self::Refused { .. } | Self::SandboxEnded(_) => 125,
            Self::AfterMemoryKill { end, .. } => end.exit_code(),
        }
    }

    /// Returns one word by which programs can tell endings apart.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Completed { .. } => "completed",
            Self::Raised { .. } => "raised",
            Self::Exited { .. } => "exited",
            Self::InterpreterExited { .. } => "interpreter_exited",
            Self::Killed { process: CellProcess::Interpreter(_), .. } => "interpreter_killed",
            Self::Killed { process: CellProcess::Program, .. } => "program_killed",
            Self::OutOfMemory { .. } | Self::SandboxEnded(SandboxEnd::OutOfMemory(_)) => "out_of_memory",
            Self::Stopped { reason: StopReason::Deadline, .. } => "deadline",
            Self::Stopped { reason: StopReason::Cancelled, .. } => "cancelled",
            Self::Unavailable { .. } => "unavailable",
            Self::Refused { .. } => "refused",
            Self::SandboxEnded(_) => "lost",
            Self::AfterMemoryKill { end, .. } => end.kind(),
        }
    }
}

fn signal_code(signal: i32) -> u8 {
    128u8.wrapping_add(signal as u8)
}

/// Returns text that completes "the sandbox …".
pub fn describe_end(ending: &SandboxEnd) -> String {
    match ending {
        SandboxEnd::Exited(code) => format!("exited with code {code}"),
        SandboxEnd::Signalled(signal) => format!("was killed by signal {signal}"),
        SandboxEnd::OutOfMemory(MemoryKiller::Kernel) => "ran out of memory and was ended by the kernel".into(),
        SandboxEnd::OutOfMemory(MemoryKiller::Watchdog) => "ran out of memory and was ended by the watchdog".into(),
        SandboxEnd::OutOfMemory(MemoryKiller::DescriptorBound) => {
            format!("held {} and was ended by the watchdog", describe_descriptor_bound())
        }
        SandboxEnd::Lost(last) => format!("was lost: {last}"),
    }
}

/// Returns the bounds that every sandbox has, and those of one with the user id of the person.
pub(crate) fn describe_descriptor_bound() -> String {
    format!(
        "more than {MAX_LOCKS} file locks (limit `locks`), {MAX_DESCRIPTORS} descriptors (limit `descriptors`) or, with \
         your own user id, its part of your epoll watches and pipes"
    )
}
