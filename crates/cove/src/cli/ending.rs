//! How a cell ended, in words: what happened, why, and what to do next. What the code said itself is not said again.

use std::fmt;
use std::time::Duration;

use cove_protocol::Language;
use serde::Serialize;

use crate::backend::{Ending, MemoryKiller};
use crate::config::Config;
use crate::config::value::{show_duration, show_size};
use crate::session::cell::describe_ending;
use crate::session::{CellEnd, Stop, Survived};

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

/// Nothing when the code's own words, such as a traceback, have told it all.
pub fn tell(end: &CellEnd, config: &Config) -> Option<Told> {
    let told = |message: String, hint: String| Some(Told { message, hint });
    let survived = survived(end.survived());
    match end {
        CellEnd::Completed { forgotten }
        | CellEnd::Raised { forgotten, .. }
        | CellEnd::Exited { forgotten, .. } => {
            let message = "the interpreter had ended since the cell before, so this one ran in a new one";
            if *forgotten {
                told(message.into(), "variables of earlier cells are lost; files were kept".into())
            } else {
                None
            }
        }
        CellEnd::InterpreterExited { language, code } => {
            told(format!("{language} ended itself with exit code {code}"), survived)
        }
        CellEnd::InterpreterKilled { language, signal } => {
            told(format!("{language} was killed by signal {signal}{}", name_of(*signal)), survived)
        }
        CellEnd::OutOfMemory { language, by } => out_of_memory(&language.to_string(), *by, &survived, config),
        CellEnd::SandboxEnded(Ending::OutOfMemory(by)) => {
            out_of_memory("the sandbox", *by, &survived, config)
        }
        CellEnd::Stopped { why: Stop::Deadline, .. } => {
            let CellTimes { timeout, most } = CellTimes::of(config);
            let larger = if timeout < most {
                format!("pass a larger `--timeout` (at most {}); ", show_duration(most))
            } else {
                "do less in one cell, or raise `--max-timeout`; ".to_owned()
            };
            let message = format!("cell stopped after {} (limit `timeout`)", show_duration(timeout));
            told(message, format!("{larger}{survived}"))
        }
        CellEnd::Stopped { why: Stop::Cancelled, .. } => {
            told("cell stopped because it was cancelled".into(), survived)
        }
        CellEnd::Unavailable { language, reason } => {
            let install = match language {
                Language::Python => {
                    "install python 3.9 or later, or name one with `--python /path/to/python3`".into()
                }
                other => format!("install {other} where the sandbox finds it"),
            };
            told(
                format!("could not run {language}\ncaused by: {reason}"),
                format!("{install}; `cove explain` shows what it sees"),
            )
        }
        CellEnd::Refused { waiting } => told(
            format!("cell refused because {waiting} others are waiting in this session"),
            "wait for some of them to end, or use another session".into(),
        ),
        CellEnd::SandboxEnded(ending) => told(format!("the sandbox {}", describe_ending(ending)), survived),
    }
}

fn out_of_memory(who: &str, by: MemoryKiller, survived: &str, config: &Config) -> Option<Told> {
    let by = match by {
        MemoryKiller::Kernel => "kernel",
        MemoryKiller::Watchdog => "watchdog",
    };
    let limit = show_size(config.policy.limits.memory);
    Some(Told {
        message: format!("{who} ran out of memory and was killed by the {by} (limit `memory`, {limit})"),
        hint: format!("use less memory at a time, or pass a larger `--memory`; {survived}"),
    })
}

fn survived(survived: Survived) -> String {
    match survived {
        Survived::Everything => "variables and files were kept",
        Survived::Files => "variables are lost; files in `/workspace` were kept",
        Survived::Nothing => "variables and files are lost",
    }
    .to_owned()
}

struct CellTimes {
    timeout: Duration,
    most: Duration,
}

impl CellTimes {
    fn of(config: &Config) -> Self {
        Self { timeout: config.cell.timeout, most: config.cell.max_timeout }
    }
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
