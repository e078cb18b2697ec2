//! Messages about the end of a cell, for people and for agents: what happened, why, and what to do next. They do not
//! repeat what the code printed itself, such as a traceback.

use std::fmt;
use std::time::Duration;

use cove_protocol::Language;
use serde::Serialize;

use crate::backend::{MemoryKiller, SandboxEnd};
use crate::policy::EffectiveLimits;
use crate::session::cell::{describe_descriptor_bound, describe_end};
use crate::session::{CellEnd, CellProcess, StopReason, SurvivingState};
use crate::units::show_size;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Advice {
    #[serde(rename = "status")]
    pub message: String,
    /// Empty if there is nothing to do.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub hint: String,
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if self.hint.is_empty() { Ok(()) } else { write!(f, "\nhint: {}", self.hint) }
    }
}

/// The reader of a message: a person can change flags, an agent can change parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audience {
    Person,
    Agent,
}

/// Returns the message about the end of a cell, or None if the output of the code already says everything.
pub fn advise(end: &CellEnd, bounds: EffectiveLimits, audience: Audience) -> Option<Advice> {
    let advice = |message: String, hint: String| Some(Advice { message, hint });
    let survived = match (bounds.session_persists, audience) {
        (true, _) => describe_survived(end.survived()),
        (false, Audience::Agent) => "the next call starts fresh",
        // `cove run` is over with its session.
        (false, Audience::Person) => "",
    }
    .to_owned();
    match end {
        CellEnd::Completed { forgotten: true }
        | CellEnd::Raised { forgotten: true, .. }
        | CellEnd::Exited { forgotten: true, .. } => advice(
            "the interpreter had ended since the cell before, so this one ran in a new one".into(),
            "variables of earlier cells are lost; files were kept".into(),
        ),
        // A person sees the exit code in the shell; an agent sees it only here.
        CellEnd::Exited { code, .. } if *code != 0 && audience == Audience::Agent => {
            advice(format!("the code exited with code {code}"), survived)
        }
        CellEnd::Raised { exception, message, .. } => advise_limit(exception, message, bounds, audience),
        CellEnd::Completed { .. } | CellEnd::Exited { .. } => None,
        CellEnd::InterpreterExited { language, code } => {
            advice(format!("{language} ended itself with exit code {code}"), survived)
        }
        CellEnd::Killed { process: who, signal } => {
            advice(format!("{who} was killed by signal {signal}{}", signal_name(*signal)), survived)
        }
        CellEnd::OutOfMemory { who, killer: by } => {
            Some(advise_out_of_memory(&who.to_string(), *by, &survived, bounds, audience))
        }
        CellEnd::SandboxEnded(SandboxEnd::OutOfMemory(by)) => {
            Some(advise_out_of_memory("the sandbox", *by, &survived, bounds, audience))
        }
        CellEnd::Stopped { reason: StopReason::Deadline, .. } => {
            let most = format_seconds(bounds.max_timeout);
            let larger = match (bounds.timeout < bounds.max_timeout, audience) {
                (true, Audience::Person) => format!("pass a larger `--timeout` (at most {most}); "),
                (true, Audience::Agent) => format!("pass a larger `timeout` (at most {most}); "),
                (false, Audience::Person) => "do less in one cell, or raise `--max-timeout`; ".to_owned(),
                (false, Audience::Agent) => "do less in one cell; ".to_owned(),
            };
            let message = format!("cell stopped after {} (limit `timeout`)", format_seconds(bounds.timeout));
            advice(message, format!("{larger}{survived}").trim_end_matches("; ").to_owned())
        }
        CellEnd::Stopped { reason: StopReason::Cancelled, .. } => {
            advice("cell stopped because it was cancelled".into(), survived)
        }
        CellEnd::Unavailable { who, reason } => {
            let hint = match (audience, who) {
                (Audience::Agent, CellProcess::Interpreter(_)) => {
                    "use another language; the operator can install this one".into()
                }
                (Audience::Agent, CellProcess::Program) => {
                    "use another image; the operator can change what this one starts".into()
                }
                (Audience::Person, CellProcess::Interpreter(Language::Python)) => {
                    "install python 3.9 or later, or name one with `--python /path/to/python3`; `cove explain` shows what it sees".into()
                }
                (Audience::Person, CellProcess::Interpreter(other)) => {
                    format!("install {other} where the sandbox finds it; `cove explain` shows what it sees")
                }
                (Audience::Person, CellProcess::Program) => "name a program that the sandbox has".into(),
            };
            advice(format!("could not run {who}\ncaused by: {reason}"), hint)
        }
        CellEnd::Refused { waiting } => advice(
            format!(
                "cell refused because {} in this session",
                match waiting {
                    1 => "1 other is waiting".to_owned(),
                    waiting => format!("{waiting} others are waiting"),
                }
            ),
            "wait for some of them to end, or use another session".into(),
        ),
        CellEnd::SandboxEnded(ending) => advice(format!("the sandbox {}", describe_end(ending)), survived),
        CellEnd::AfterMemoryKill { end, killer } => {
            let kill = advise_out_of_memory("another process of the sandbox", *killer, "", bounds, audience);
            Some(match advise(end, bounds, audience) {
                Some(own) => Advice { message: format!("{}; {}", own.message, kill.message), hint: own.hint },
                None => kill,
            })
        }
    }
}

/// Returns the limit behind an exception that says only that something is full or has ended, or None for any other
/// exception. Code can raise such an exception itself: then the advice is beside the point, and does no harm.
fn advise_limit(exception: &str, message: &str, bounds: EffectiveLimits, audience: Audience) -> Option<Advice> {
    if exception.ends_with("MemoryError") {
        let hint = match audience {
            Audience::Person => "use less memory at a time, or pass a larger `--memory`",
            Audience::Agent => {
                "use less memory at a time: stream, or work in pieces; the operator can raise `--memory`"
            }
        };
        let message = format!("the sandbox may use {} of memory (limit `memory`)", show_size(bounds.memory));
        return Some(Advice { message, hint: hint.into() });
    }
    // A file may be as large as the whole workspace: beyond that comes EFBIG.
    if ["[Errno 28]", "ENOSPC", "[Errno 27]", "EFBIG"].iter().any(|start| message.starts_with(start)) {
        let (workspace, tmp) = (show_size(bounds.workspace), show_size(bounds.tmp));
        let larger = match audience {
            Audience::Person => "or pass a larger `--workspace-size` or `--tmp-size`",
            Audience::Agent => "or write less; the operator can raise `--workspace-size` and `--tmp-size`",
        };
        return Some(Advice {
            message: format!(
                "`/workspace` may hold {workspace} (limit `workspace-size`), `/tmp` {tmp} (limit `tmp-size`)"
            ),
            hint: format!("delete files that are no longer needed, {larger}"),
        });
    }
    if exception == "EOFError" && message.starts_with("EOF when reading a line") {
        let hint = match (audience, bounds.session_persists) {
            (Audience::Person, false) => "pass input through a pipe, as in `echo 42 | cove run script.py`",
            (Audience::Person, true) | (Audience::Agent, _) => "write the value into the code",
        };
        return Some(Advice { message: "standard input has no more lines".into(), hint: hint.into() });
    }
    None
}

fn advise_out_of_memory(
    who: &str,
    by: MemoryKiller,
    survived: &str,
    bounds: EffectiveLimits,
    audience: Audience,
) -> Advice {
    let by = match by {
        MemoryKiller::Kernel => "kernel",
        MemoryKiller::Watchdog => "watchdog",
        MemoryKiller::DescriptorBound => {
            return Advice {
                message: format!("{who} held {} and was killed", describe_descriptor_bound()),
                hint: format!("release locks and close files and pipes that are no longer needed; {survived}")
                    .trim_end_matches("; ")
                    .to_owned(),
            };
        }
    };
    let limit = show_size(bounds.memory);
    let advice = match audience {
        Audience::Person => "use less memory at a time, or pass a larger `--memory`",
        Audience::Agent => "use less memory at a time: stream, or work in pieces",
    };
    Advice {
        message: format!("{who} ran out of memory and was killed by the {by} (limit `memory`, {limit})"),
        hint: format!("{advice}; {survived}").trim_end_matches("; ").to_owned(),
    }
}

/// Returns a sentence about the state that is left after a cell.
pub fn describe_survived(survived: SurvivingState) -> &'static str {
    match survived {
        SurvivingState::Everything => "variables and files were kept",
        SurvivingState::Files => "variables are lost; files in `/workspace` were kept",
        SurvivingState::Nothing => "variables and files are lost",
    }
}

/// Writes a duration for people: `30 s`, `0.5 s`.
pub fn format_seconds(duration: Duration) -> String {
    format!("{} s", duration.as_millis() as f64 / 1000.0)
}

fn signal_name(signal: i32) -> &'static str {
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
