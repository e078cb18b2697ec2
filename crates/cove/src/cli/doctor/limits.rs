//! Runs into each limit in turn, in a sandbox with low limits.

use cove_core::backend::jail::hints;
use cove_core::backend::{Backend, MemoryKiller, SandboxEnd};
use std::time::{Duration, Instant};

use cove_jail::facts::CgroupFacts;
use cove_jail::probe::MachineProbe;
use cove_jail::{HostFacts, JailRoot};
use cove_protocol::Language;

use crate::config::Config;
use cove_core::policy::{Policy, SandboxLimits, SandboxRoot};
use cove_core::session::{CellEnd, Session, SessionOptions, StopReason};
use cove_core::units::{show_duration, show_size};

use super::report::{DoctorCheck, HOLE_FIX, REPORT_FIX, ReportSection};
use super::trial_program::{TrialResult, run_program};

/// Far more than the programs need, even on a busy machine.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(30);
/// The timeout of the endless loop.
const TIMEOUT: Duration = Duration::from_secs(1);
const MIB: u64 = 1024 * 1024;
const MEMORY: u64 = 64 * MIB;
const PIDS: u64 = 16;
const WORKSPACE: u64 = 8 * MIB;

pub(super) async fn try_limits(backend: &dyn Backend, config: &Config) -> Vec<DoctorCheck> {
    let mut checks = vec![level_check(config)];
    let policy = Policy {
        limits: SandboxLimits {
            memory: MEMORY,
            pids: PIDS as u32,
            workspace: WORKSPACE,
            // The larger of the two also limits the size of each file, and that limit must not be the one that stops
            // the program.
            tmp: 2 * WORKSPACE,
            cpus: config.policy.limits.cpus,
        },
        ..config.policy.clone()
    };
    let session = match Session::start(backend, &policy, SessionOptions::default()).await {
        Ok(session) => session,
        Err(error) => {
            checks.push(ReportSection::Limits.check("all").fail_with(&error));
            return checks;
        }
    };
    // Memory comes last, because exceeding it costs the interpreter.
    let twice = 2 * WORKSPACE / MIB;
    let tried = run_python(&session, include_str!("limits/files.py"), Some(twice), PROGRAM_TIMEOUT).await;
    let held = format!("a file beyond {} found no room", show_size(WORKSPACE));
    checks.push(judge_output("files", &tried, "ENOSPC", &held));
    let tried = run_python(&session, include_str!("limits/processes.py"), Some(2 * PIDS), PROGRAM_TIMEOUT).await;
    checks.push(judge_output("processes", &tried, "EAGAIN", &format!("a process beyond {PIDS} was refused")));
    checks.push(check_time(&session).await);
    checks.push(check_memory(&session).await);
    session.stop().await;
    checks
}

/// Reports which mechanism enforces the limits.
fn level_check(config: &Config) -> DoctorCheck {
    let check = ReportSection::Limits.check("level");
    if let SandboxRoot::Image(_) = config.policy.root {
        return check.ok("cgroups, set by the engine");
    }
    match HostFacts::gather(&JailRoot::Host).map(|facts| facts.cgroup) {
        Ok(CgroupFacts::None { reason }) => {
            let level = CgroupFacts::None { reason: String::new() }.level();
            let weaknesses = hints::WATCHDOG_WEAKNESSES;
            check
                .note(format!("{level}, since {reason}: {weaknesses}"))
                .fix(hints::delegation_hint(&MachineProbe::gather()))
        }
        Ok(cgroup @ (CgroupFacts::V2 { cpu: true, .. } | CgroupFacts::V1 { cpu: Some(_), .. })) => {
            check.ok(cgroup.level())
        }
        Ok(cgroup) => {
            check.note(format!("{}, without its cpu controller: `--cpus` takes whole ones only", cgroup.level()))
        }
        Err(error) => check.fail(format!("could not look at this machine: {error}")).fix(REPORT_FIX),
    }
}

async fn check_time(session: &Session) -> DoctorCheck {
    let check = ReportSection::Limits.check("time");
    let begun = Instant::now();
    let tried = run_python(session, include_str!("limits/time.py"), None, TIMEOUT).await;
    match tried.end {
        CellEnd::Stopped { reason: StopReason::Deadline, .. } => check.ok(format!(
            "an endless loop was stopped at its {}, after {:.1} s",
            show_duration(TIMEOUT),
            begun.elapsed().as_secs_f32()
        )),
        _ => check.fail(format!("an endless loop was not stopped: {}", tried.describe_end())).fix(HOLE_FIX),
    }
}

async fn check_memory(session: &Session) -> DoctorCheck {
    let check = ReportSection::Limits.check("memory");
    let four_times = 4 * MEMORY / MIB;
    let tried = run_python(session, include_str!("limits/memory.py"), Some(four_times), PROGRAM_TIMEOUT).await;
    match tried.end {
        CellEnd::OutOfMemory { killer, .. } | CellEnd::SandboxEnded(SandboxEnd::OutOfMemory(killer)) => {
            let killer = match killer {
                MemoryKiller::Kernel => "kernel",
                MemoryKiller::Watchdog | MemoryKiller::DescriptorBound => "watchdog",
            };
            check.ok(format!("a program beyond {} was ended by the {killer}", show_size(MEMORY)))
        }
        _ => check
            .fail(format!("a program beyond {} was not ended: {}", show_size(MEMORY), tried.describe_end()))
            .fix(HOLE_FIX),
    }
}

/// Runs a program, whose argument says how much to use.
async fn run_python(session: &Session, code: &str, amount: Option<u64>, timeout: Duration) -> TrialResult {
    let args = amount.iter().map(u64::to_string).collect();
    run_program(session, Language::Python, code, args, timeout).await
}

/// Judges a program that prints the name of the error that stopped it.
fn judge_output(name: &'static str, tried: &TrialResult, expected: &str, held: &str) -> DoctorCheck {
    let check = ReportSection::Limits.check(name);
    match (&tried.end, tried.output.trim()) {
        (CellEnd::Completed { .. }, said) if said == expected => check.ok(format!("{held} ({expected})")),
        (CellEnd::Completed { .. }, said) => check.fail(format!("not held: {said}")).fix(HOLE_FIX),
        _ => check.fail(tried.describe_end()).fix(REPORT_FIX),
    }
}
