//! How a cell ended, in words: what happened, why, and what to do next, for people and for agents. What the code said
//! itself is not said again.

use std::fmt;
use std::time::Duration;

use cove_protocol::Language;
use serde::Serialize;

use crate::backend::{Ending, MemoryKiller};
use crate::config::value::show_size;
use crate::session::cell::describe_ending;
use crate::session::{CellEnd, Stop, Survived, Who};

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Told {
    #[serde(rename = "status")]
    pub message: String,
    pub hint: String,
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\nhint: {}", self.message, self.hint)
    }
}

/// Who is told: a person has flags, an agent has parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audience {
    Person,
    Agent,
}

/// The limits that a cell ran under.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub timeout: Duration,
    pub max_timeout: Duration,
    pub memory: u64,
    /// Whether there is a next cell that could find anything kept.
    pub lasts: bool,
}

/// Nothing when the code's own words, such as a traceback, have told it all.
pub fn tell(end: &CellEnd, bounds: Bounds, audience: Audience) -> Option<Told> {
    let told = |message: String, hint: String| Some(Told { message, hint });
    let survived =
        if bounds.lasts { survived(end.survived()) } else { "the next call starts anew" }.to_owned();
    match end {
        CellEnd::Completed { forgotten: true }
        | CellEnd::Raised { forgotten: true, .. }
        | CellEnd::Exited { forgotten: true, .. } => told(
            "the interpreter had ended since the cell before, so this one ran in a new one".into(),
            "variables of earlier cells are lost; files were kept".into(),
        ),
        // A shell shows it to a person; an agent has nothing else to see it by.
        CellEnd::Exited { code, .. } if *code != 0 && audience == Audience::Agent => {
            told(format!("the code exited with code {code}"), survived)
        }
        CellEnd::Completed { .. } | CellEnd::Raised { .. } | CellEnd::Exited { .. } => None,
        CellEnd::InterpreterExited { language, code } => {
            told(format!("{language} ended itself with exit code {code}"), survived)
        }
        CellEnd::Killed { who, signal } => {
            told(format!("{who} was killed by signal {signal}{}", name_of(*signal)), survived)
        }
        CellEnd::OutOfMemory { who, by } => {
            Some(out_of_memory(&who.to_string(), *by, &survived, bounds, audience))
        }
        CellEnd::SandboxEnded(Ending::OutOfMemory(by)) => {
            Some(out_of_memory("the sandbox", *by, &survived, bounds, audience))
        }
        CellEnd::Stopped { why: Stop::Deadline, .. } => {
            let most = seconds(bounds.max_timeout);
            let larger = match (bounds.timeout < bounds.max_timeout, audience) {
                (true, Audience::Person) => format!("pass a larger `--timeout` (at most {most}); "),
                (true, Audience::Agent) => format!("pass a larger `timeout` (at most {most}); "),
                (false, Audience::Person) => "do less in one cell, or raise `--max-timeout`; ".to_owned(),
                (false, Audience::Agent) => "do less in one cell; ".to_owned(),
            };
            let message = format!("cell stopped after {} (limit `timeout`)", seconds(bounds.timeout));
            told(message, format!("{larger}{survived}"))
        }
        CellEnd::Stopped { why: Stop::Cancelled, .. } => {
            told("cell stopped because it was cancelled".into(), survived)
        }
        CellEnd::Unavailable { who, reason } => {
            let hint = match (audience, who) {
                (Audience::Agent, Who::Interpreter(_)) => {
                    "use another language; the operator can install this one".into()
                }
                (Audience::Agent, Who::Program) => {
                    "use another image; the operator can change what this one starts".into()
                }
                (Audience::Person, Who::Interpreter(Language::Python)) => {
                    "install python 3.9 or later, or name one with `--python /path/to/python3`; `cove explain` shows what it sees".into()
                }
                (Audience::Person, Who::Interpreter(other)) => {
                    format!("install {other} where the sandbox finds it; `cove explain` shows what it sees")
                }
                (Audience::Person, Who::Program) => "name a program that the sandbox has".into(),
            };
            told(format!("could not run {who}\ncaused by: {reason}"), hint)
        }
        CellEnd::Refused { waiting } => told(
            format!("cell refused because {waiting} others are waiting in this session"),
            "wait for some of them to end, or use another session".into(),
        ),
        CellEnd::SandboxEnded(ending) => told(format!("the sandbox {}", describe_ending(ending)), survived),
    }
}

fn out_of_memory(who: &str, by: MemoryKiller, survived: &str, bounds: Bounds, audience: Audience) -> Told {
    let by = match by {
        MemoryKiller::Kernel => "kernel",
        MemoryKiller::Watchdog => "watchdog",
    };
    let limit = show_size(bounds.memory);
    let advice = match audience {
        Audience::Person => "use less memory at a time, or pass a larger `--memory`",
        Audience::Agent => "use less memory at a time: stream, or work in pieces",
    };
    Told {
        message: format!("{who} ran out of memory and was killed by the {by} (limit `memory`, {limit})"),
        hint: format!("{advice}; {survived}"),
    }
}

pub fn survived(survived: Survived) -> &'static str {
    match survived {
        Survived::Everything => "variables and files were kept",
        Survived::Files => "variables are lost; files in `/workspace` were kept",
        Survived::Nothing => "variables and files are lost",
    }
}

/// As people say it: `30 s`, `0.5 s`.
pub fn seconds(duration: Duration) -> String {
    format!("{} s", duration.as_millis() as f64 / 1000.0)
}

fn name_of(signal: i32) -> &'static str {
    match signal {
        4 => " (SIGILL)",
        6 => " (SIGABRT)",
        7 => " (SIGBUS)",
        8 => " (SIGFPE)",
        9 => " (SIGKILL)",
        11 => " (SIGSEGV)",
        15 => " (SIGTERM)",
        24 => " (SIGXCPU)",
        25 => " (SIGXFSZ)",
        31 => " (SIGSYS)",
        _ => "",
    }
}
