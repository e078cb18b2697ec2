//! Fair shares of the processors where no cgroup divides them: a sandbox that computes for long gets a lower priority, so
//! that others, and new ones, are served first. Where the machine is idle, a low priority costs nothing.
//!
//! The kernel may divide time among sessions of setsid(2) before it looks at processes ("autogroup", see sched(7)). Then
//! the priority of the session counts; otherwise that of the process group. Each sandbox starts with a session of its
//! own. Code that makes very many sessions gets more than its share for some seconds, because the kernel accepts only ten
//! changes in a second from an ordinary user; and where the sandbox has a user of its own, only its first session yields.
//! `/proc` is read-only inside, so code cannot take its priority back.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::time::{Duration, Instant};

use rustix::process::{Pid, setpriority_pgrp};

use super::processes::{read_lossy, stat_fields};

/// How long a sandbox may compute before its processes get this nice value.
const LEVELS: [(f64, i32); 3] = [(0.0, 0), (2.0, 10), (20.0, 19)];
/// Clock ticks in a second, as `/proc` counts them on every architecture.
const TICKS: f64 = 100.0;
/// The memory watchdog looks more often than processor time can be measured.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(90);
/// Most seconds of computing that are remembered, so that a quiet session has its priority back soon.
const MAX_DEBT: f64 = 30.0;

/// How much processor time a sandbox has had lately.
pub(super) struct ProcessorShare {
    /// Seconds that the sandbox was busy, less those that it was quiet.
    debt: f64,
    checked: Instant,
    /// Processor time so far, in clock ticks.
    ticks: u64,
    nice: i32,
    /// It had another priority at any time.
    has_yielded: bool,
    /// The priority of the sandbox's own session, opened before the sandbox became another user.
    own_session: Option<File>,
}

/// What a line of proc_pid_stat(5) says.
#[derive(Debug, PartialEq, Eq)]
struct ProcessState {
    is_running: bool,
    group: i32,
    session: i32,
    /// With those of children that have ended.
    ticks: u64,
}

impl ProcessorShare {
    pub(super) fn new(own_session: Option<File>) -> Self {
        Self { debt: 0.0, checked: Instant::now(), ticks: 0, nice: 0, has_yielded: false, own_session }
    }

    /// Looks at the processes of the sandbox once, and sets their priority if it must change.
    pub(super) fn check(&mut self, processes: &[i32]) {
        let elapsed = self.checked.elapsed();
        if elapsed < SHORTEST_INTERVAL {
            return;
        }
        let read = |process: &i32| ProcessState::parse(&read_lossy(&format!("/proc/{process}/stat"))?);
        let states: Vec<(i32, ProcessState)> =
            processes.iter().filter_map(|process| Some((*process, read(process)?))).collect();
        let ticks = states.iter().map(|(_, state)| state.ticks).sum();
        let elapsed = elapsed.as_secs_f64();
        self.checked = Instant::now();
        let used = (ticks as f64 - self.ticks as f64) / TICKS;
        self.ticks = ticks;
        // Times of children that no process waits for are lost, so a process that is running also counts.
        let is_busy = used > elapsed / 2.0 || states.iter().any(|(_, state)| state.is_running);
        self.debt = (self.debt + if is_busy { elapsed } else { -elapsed }).clamp(0.0, MAX_DEBT);

        let level = LEVELS.iter().rev().find(|(debt, _)| self.debt >= *debt);
        let nice = level.map_or(0, |(_, nice)| *nice);
        // Back to normal only once the debt is paid.
        if nice > self.nice || self.debt == 0.0 && self.nice != 0 {
            self.nice = nice;
            self.has_yielded = true;
        }
        if self.has_yielded {
            self.spread(&states);
        }
    }

    /// Gives the priority to the session of a process. Returns whether it has it. The kernel accepts few changes, so the
    /// next look repeats what failed. A process of another user, or one that is not dumpable, such as the runner, has a
    /// file that this process may not open; `own` is the one that was opened before.
    fn change_session(&self, process: i32, own: Option<&File>) -> bool {
        let file = format!("/proc/{process}/autogroup");
        // Empty where the kernel does not look at sessions.
        let present = fs::read_to_string(&file).unwrap_or_default();
        let has_it = present.trim_end().ends_with(&format!(" nice {}", self.nice));
        let nice = self.nice.to_string();
        let write = |mut own: &File| own.write_all(nice.as_bytes()).is_ok();
        present.is_empty() || has_it || own.is_some_and(write) || fs::write(&file, &nice).is_ok()
    }

    /// Gives the priority to every session and process group that does not have it.
    fn spread(&self, states: &[(i32, ProcessState)]) {
        let (mut sessions, mut groups) = (BTreeSet::new(), BTreeSet::new());
        for (index, (process, state)) in states.iter().enumerate() {
            let own = self.own_session.as_ref().filter(|_| index == 0);
            if !sessions.contains(&state.session) && self.change_session(*process, own) {
                sessions.insert(state.session);
            }
            // Only root could raise it again, so a group that once yielded stays behind.
            if let Some(group) = Pid::from_raw(state.group).filter(|_| self.nice > 0 && groups.insert(state.group)) {
                let _ = setpriority_pgrp(Some(group), self.nice);
            }
        }
    }
}

impl ProcessState {
    fn parse(line: &str) -> Option<Self> {
        let mut fields = stat_fields(line)?;
        let is_running = fields.next()? == "R";
        let mut number = |skip: usize| fields.nth(skip)?.parse::<i64>().ok();
        let group = i32::try_from(number(1)?).ok()?;
        let session = i32::try_from(number(0)?).ok()?;
        let mut ticks = 0;
        for skip in [7, 0, 0, 0] {
            ticks += u64::try_from(number(skip)?).ok()?;
        }
        Some(Self { is_running, group, session, ticks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_state_of_a_process_whatever_its_name() {
        let line = "42 (a) R (b) S 1 7 9 0 -1 4194560 1 2 3 4 100 20 3 4 20 0 1 0 55 0 0";
        let expected = ProcessState { is_running: false, group: 7, session: 9, ticks: 127 };
        assert_eq!(ProcessState::parse(line), Some(expected));
        assert_eq!(ProcessState::parse("42 (a"), None);
    }

    #[test]
    fn a_busy_sandbox_yields_and_is_forgiven() {
        let mut share = ProcessorShare::new(None);
        // It stays until the debt is paid.
        for (debt, nice) in [(1.0, 0), (2.5, 10), (25.0, 19), (1.0, 19), (0.05, 0)] {
            share.debt = debt;
            share.checked = Instant::now() - Duration::from_millis(100);
            share.check(&[]);
            assert_eq!(share.nice, nice, "{debt}");
        }
    }
}
