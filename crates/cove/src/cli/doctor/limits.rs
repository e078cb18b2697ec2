//! The limits, run into one after the other in a sandbox that has little of everything.

use std::time::{Duration, Instant};

use cove_jail::HostFacts;
use cove_jail::facts::CgroupFacts;
use cove_jail::plan::Root as JailRoot;
use cove_jail::probe::Machine;
use cove_protocol::Language;

use crate::backend::jail::hints;
use crate::backend::{Backend, Ending, MemoryKiller};
use crate::config::Config;
use crate::config::value::{show_duration, show_size};
use crate::policy::{Limits, Policy, Root};
use crate::session::{CellEnd, Options, Session, Stop};

use super::report::{Check, HOLE, REPORT, Section};
use super::trial::{Trial, Tried};

/// Far more than the programs take, also on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(30);
/// What the loop gets.
const TIMEOUT: Duration = Duration::from_secs(1);
const MIB: u64 = 1024 * 1024;
const MEMORY: u64 = 64 * MIB;
const PIDS: u32 = 16;
const WORKSPACE: u64 = 8 * MIB;

pub(super) async fn run_into_all(backend: &dyn Backend, config: &Config) -> Vec<Check> {
    let mut checks = vec![level(config)];
    let policy = Policy {
        limits: Limits {
            memory: MEMORY,
            pids: PIDS,
            workspace: WORKSPACE,
            // The larger of the two bounds each file, which must not be what stops it.
            tmp: 2 * WORKSPACE,
            cpus: config.policy.limits.cpus,
        },
        ..config.policy.clone()
    };
    let session = match Session::start(backend, &policy, Options::default()).await {
        Ok(session) => session,
        Err(error) => {
            checks.push(Check::new(Section::Limits, "all").failed(&error));
            return checks;
        }
    };
    let trial = Trial::new(session);
    // Memory last: it costs the interpreter.
    checks.push(files(&trial).await);
    checks.push(processes(&trial).await);
    checks.push(time(&trial).await);
    checks.push(memory(&trial).await);
    trial.stop().await;
    checks
}

/// What holds them.
fn level(config: &Config) -> Check {
    let check = Check::new(Section::Limits, "level");
    if let Root::Image(_) = config.policy.root {
        return check.ok("cgroups, by whoever makes the container");
    }
    match HostFacts::gather(&JailRoot::Host).map(|facts| facts.cgroup) {
        Ok(CgroupFacts::None { reason }) => {
            let level = CgroupFacts::None { reason: String::new() }.level();
            check.note(format!("{level}, since {reason}")).fix(hints::delegation(&Machine::look()))
        }
        Ok(place @ (CgroupFacts::V2 { cpu: true, .. } | CgroupFacts::V1 { cpu: Some(_), .. })) => {
            check.ok(place.level())
        }
        Ok(place) => check
            .note(format!("{}, without its cpu controller: `--cpus` takes whole ones only", place.level())),
        Err(error) => check.fail(format!("could not look at this machine: {error}")).fix(REPORT),
    }
}

async fn files(trial: &Trial) -> Check {
    let check = Check::new(Section::Limits, "files");
    let twice = (2 * WORKSPACE / MIB).to_string();
    let tried = run(trial, include_str!("limits/files.py"), vec![twice], PATIENCE).await;
    judge_word(check, &tried, "ENOSPC", &format!("a file beyond {} found no room", show_size(WORKSPACE)))
}

async fn processes(trial: &Trial) -> Check {
    let check = Check::new(Section::Limits, "processes");
    let twice = (2 * PIDS).to_string();
    let tried = run(trial, include_str!("limits/processes.py"), vec![twice], PATIENCE).await;
    judge_word(check, &tried, "EAGAIN", &format!("a process beyond {PIDS} was refused"))
}

async fn time(trial: &Trial) -> Check {
    let check = Check::new(Section::Limits, "time");
    let begun = Instant::now();
    let tried = run(trial, include_str!("limits/time.py"), Vec::new(), TIMEOUT).await;
    match tried.end {
        CellEnd::Stopped { why: Stop::Deadline, .. } => check.ok(format!(
            "an endless loop was stopped at its {}, after {:.1} s",
            show_duration(TIMEOUT),
            begun.elapsed().as_secs_f32()
        )),
        _ => check.fail(format!("an endless loop was not stopped: {}", tried.instead())).fix(HOLE),
    }
}

async fn memory(trial: &Trial) -> Check {
    let check = Check::new(Section::Limits, "memory");
    let four_times = (4 * MEMORY / MIB).to_string();
    let tried = run(trial, include_str!("limits/memory.py"), vec![four_times], PATIENCE).await;
    match tried.end {
        CellEnd::OutOfMemory { by, .. } | CellEnd::SandboxEnded(Ending::OutOfMemory(by)) => {
            let by = match by {
                MemoryKiller::Kernel => "kernel",
                MemoryKiller::Watchdog => "watchdog",
            };
            check.ok(format!("a program beyond {} was ended by the {by}", show_size(MEMORY)))
        }
        _ => check
            .fail(format!("a program beyond {} was not ended: {}", show_size(MEMORY), tried.instead()))
            .fix(HOLE),
    }
}

async fn run(trial: &Trial, code: &str, args: Vec<String>, timeout: Duration) -> Tried {
    trial.run(Language::Python, code, args, timeout).await
}

/// For programs that print the name of the error that stopped them.
fn judge_word(check: Check, tried: &Tried, expected: &str, held: &str) -> Check {
    match (&tried.end, tried.output.trim()) {
        (CellEnd::Completed { .. }, said) if said == expected => check.ok(format!("{held} ({expected})")),
        (CellEnd::Completed { .. }, said) => check.fail(format!("not held: {said}")).fix(HOLE),
        _ => check.fail(tried.instead()).fix(REPORT),
    }
}
