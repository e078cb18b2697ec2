//! Holds a sandbox to its memory limit where there is no cgroup, by looking at it from outside.
//!
//! Code that wants more memory than it may have must not gain time by making a look expensive. So a look has three
//! parts, and each later one is only reached if the earlier ones cannot decide:
//!
//! 1. `status` of every process, the sizes of the file systems, and the sockets. This gives a lower bound: if that is
//!    over the limit, the watchdog kills at once. It also gives an upper bound, in which pages that forked processes
//!    share count for each of them and every mapping counts as if it were full.
//! 2. The page faults of every process since the last exact count. Nothing that the first part does not see can grow
//!    without them, so while they cannot have carried the sandbox over its limit there is nothing more to do.
//! 3. The exact count, from `smaps_rollup` and `maps`, the largest process first, until it is over the limit. It has a
//!    budget of processor time. Processes that it cannot count within the budget count with their upper bound. It reads
//!    processes without a page fault since the last one only if their earlier counts would be a reason to kill.
//!
//! The time between looks shrinks as use grows: a sandbox that fills memory at `FASTEST_FILL` is seen before it reaches
//! its limit. It is never less than ten times the processor time that the last look took, and the time between exact
//! counts never less than twice that of the last one.

mod exact_counter;

use std::collections::HashMap;
use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::descriptors::DescriptorMeter;
use super::fork_depths::{ForkDepths, MAPPING_BYTES};
use super::processes::{MappingsBudget, ProcessMemory, ProcessStat, descendants, pid_namespace};
use super::processor_share::ProcessorShare;
use super::shared_memory::{MachineMemory, SharedMemory};
use super::sockets::SocketMeter;
use super::{WatchedSandbox, processor_time};
use crate::plan::JailPlan;
use crate::report::MemoryKiller;
use crate::steps::mount;
use exact_counter::ExactCounter;

/// The time between looks when memory is nearly full.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(5);
/// Bytes a second. One process reaches about a quarter of it with ordinary pages.
const FASTEST_FILL: u64 = 4 << 30;
/// A look may take this part of one processor.
const LOOK_SHARE: u32 = 10;
/// The same for an exact count that is urgent, and for one that only makes sure.
const URGENT_SHARE: u32 = 2;
const PRECAUTION_SHARE: u32 = 20;
/// The same for reading mappings, which only code that hides its memory makes expensive.
const MAPPINGS_SHARE: u32 = 4;
/// The time between exact counts that only make sure.
const PRECAUTION_INTERVAL: Duration = Duration::from_secs(1);
/// The processor time of one exact count. A hundred processes that share 200 MB take about as long.
const EXACT_BUDGET: Duration = Duration::from_millis(500);
/// How long a killed process may take to end.
const TIME_TO_END: Duration = Duration::from_millis(200);
/// The part of the budget for processes with many mappings. Ordinary ones have a few hundred, which take a fifth of a
/// millisecond.
const MAPPINGS_BUDGET: Duration = Duration::from_millis(60);
/// What a page fault can add that no count of a process shows: a page that was shared before, or that is shared memory.
const FAULT_BYTES: u64 = 4096;
/// What the kernel needs for a thread: its stack and its record.
const THREAD_BYTES: u64 = 24 << 10;
/// The kernel's default for the most mappings of a process.
const DEFAULT_MAX_MAPPINGS: u64 = 65_530;

/// Looks at the memory of a sandbox and kills. Like the kernel it first kills the largest process. If that cannot help, or
/// the others go on to pass the limit while that one ends, it kills the sandbox.
pub(super) struct MemoryWatchdog {
    limit: u64,
    longest_interval: Duration,
    /// When to look next.
    next: Instant,
    /// The sandbox's pid namespace. The watchdog kills no process outside it.
    namespace: Option<u64>,
    sockets: SocketMeter,
    descriptors: DescriptorMeter,
    depths: ForkDepths,
    max_mappings: u64,
    exact: ExactCount,
    shared: SharedMemory,
    /// When mappings were last read because of the machine's shared memory, and what that took.
    shared_read: (Instant, Duration),
    /// The process that it has killed last, and when. While that one ends, its memory does not count.
    victim: Option<(i32, Instant)>,
    share: ProcessorShare,
    /// It has killed something, at any time, for this.
    pub(super) killer: Option<MemoryKiller>,
}

/// The last exact count.
struct ExactCount {
    at: Instant,
    cost: Duration,
    /// The memory of processes, without what every look counts exactly.
    bytes: u64,
    /// The upper bound of the same, from the look that led to the count.
    visible: u64,
    processes: HashMap<i32, ProcessCount>,
    /// The part of `bytes` that is shared memory and the kernel's memory for mappings: when they were read last, and
    /// what that took.
    mapped: u64,
    mapped_at: Instant,
    mapped_cost: Duration,
    /// What nameless files held then.
    shared: u64,
}

/// A process in an exact count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ProcessCount {
    faults: u64,
    /// The upper bound of its anonymous memory.
    anonymous: u64,
    /// Its part of the anonymous memory.
    proportional: u64,
}

/// What a look has found.
#[derive(Debug, PartialEq, Eq)]
enum MemoryVerdict {
    /// The sandbox uses at most this much.
    Within(u64),
    /// It has more of what descriptors hold than it may, whatever its memory limit is.
    TooManyDescriptors,
    /// It uses at least `total`.
    Over { total: u64, largest: Option<LargestProcess> },
}

/// The process that uses most memory. The order is by use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct LargestProcess {
    bytes: u64,
    /// The most that its end can free.
    can_free: u64,
    process: i32,
}

impl LargestProcess {
    /// Returns the place of a process, if this much of its anonymous memory is its own.
    fn new(one: &ProcessMemory, anonymous: u64) -> Self {
        let others = one.tables + one.shared;
        let can_free = one.anonymous + others + one.unexplained;
        Self { bytes: anonymous + others, can_free, process: one.process }
    }
}

impl MemoryWatchdog {
    pub(super) fn new(plan: &JailPlan, watched: &WatchedSandbox, millis: u64, sockets: SocketMeter) -> Self {
        let max_mappings = fs::read_to_string("/proc/sys/vm/max_map_count").ok();
        Self {
            limit: plan.control.memory,
            longest_interval: Duration::from_millis(millis),
            next: Instant::now(),
            namespace: pid_namespace(watched.child.as_raw_nonzero().get()),
            sockets,
            descriptors: DescriptorMeter::new(watched.host.kind),
            depths: ForkDepths::default(),
            max_mappings: max_mappings.and_then(|text| text.trim().parse().ok()).unwrap_or(DEFAULT_MAX_MAPPINGS),
            exact: ExactCount {
                at: Instant::now(),
                cost: Duration::ZERO,
                bytes: 0,
                visible: 0,
                processes: HashMap::new(),
                mapped: 0,
                mapped_at: Instant::now(),
                mapped_cost: Duration::ZERO,
                shared: 0,
            },
            shared: SharedMemory::default(),
            shared_read: (Instant::now(), Duration::ZERO),
            victim: None,
            share: ProcessorShare::new(watched.priority.as_ref().and_then(|file| file.try_clone().ok())),
            killer: None,
        }
    }

    /// Returns the time until the next look.
    pub(super) fn wait(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }

    /// Looks at the sandbox, if it is time to, and kills if it is over its limit. `announce` is called before anything
    /// is killed, so that the cause is known when the death is noticed.
    pub(super) fn look(&mut self, plan: &JailPlan, watched: &WatchedSandbox, announce: impl FnOnce()) {
        if !self.wait().is_zero() {
            return;
        }
        self.victim = self.victim.filter(|(_, killed)| killed.elapsed() < TIME_TO_END);
        let begun = processor_time();
        let init = watched.child.as_raw_nonzero().get();
        let (verdict, exact_cost) = self.measure(plan, init);
        // Exact counts have a share of their own.
        let cost = processor_time().saturating_sub(begun + exact_cost);
        let room = match verdict {
            MemoryVerdict::Within(used) => self.limit.saturating_sub(used),
            MemoryVerdict::TooManyDescriptors => {
                self.killer = Some(MemoryKiller::DescriptorBound);
                self.kill_sandbox(watched);
                return;
            }
            MemoryVerdict::Over { total, largest } => {
                self.killer = Some(MemoryKiller::Watchdog);
                announce();
                match largest {
                    // If pid 1 is the largest itself, no other process is worth killing first.
                    Some(largest)
                        if largest.process != init && self.victim.is_none() && self.may_suffice(largest, total) =>
                    {
                        self.kill(largest.process);
                        self.victim = Some((largest.process, Instant::now()));
                    }
                    _ => {
                        self.kill_sandbox(watched);
                        return;
                    }
                }
                0
            }
        };
        self.next = Instant::now() + interval(room, self.longest_interval).max(cost * LOOK_SHARE);
    }

    /// True if the end of this process may bring the sandbox below its limit. It may have grown since it was read, as
    /// the total was read later.
    fn may_suffice(&self, largest: LargestProcess, total: u64) -> bool {
        let is_enough = |can_free| total.saturating_sub(can_free) <= self.limit;
        is_enough(largest.can_free)
            || ProcessMemory::read(largest.process)
                .is_some_and(|one| is_enough(LargestProcess::new(&one, one.anonymous).can_free))
    }

    fn kill_sandbox(&mut self, watched: &WatchedSandbox) {
        let _ = pidfd_send_signal(&watched.pidfd, Signal::KILL);
        // Its end is near, and nothing is left to decide.
        self.next = Instant::now() + Duration::from_secs(3600);
    }

    /// Returns the verdict, and the processor time that an exact count took.
    fn measure(&mut self, plan: &JailPlan, init: i32) -> (MemoryVerdict, Duration) {
        let all = descendants(init);
        self.share.check(&all);
        let (descriptors, descriptors_cost) = self.descriptors.measure(&all);
        if descriptors.exceeds_bounds {
            return (MemoryVerdict::TooManyDescriptors, descriptors_cost);
        }
        let counted = all.into_iter().filter(|&one| self.victim.is_none_or(|(victim, _)| one != victim));
        let processes: Vec<ProcessMemory> = counted.filter_map(ProcessMemory::read).collect();
        let stats: Vec<ProcessStat> = processes.iter().filter_map(ProcessStat::read).collect();
        self.depths.update(&stats);
        let sum = |part: fn(&ProcessMemory) -> u64| processes.iter().map(part).sum::<u64>();
        let file_systems = mount::tmpfs_use(plan, init);
        // Looks at shared memory and at descriptors have shares of their own too.
        let shared_cost = descriptors_cost + self.look_at_shared_memory(&processes, file_systems);
        let decided = |verdict| (verdict, shared_cost);
        let fixed = file_systems
            + self.sockets.measure(init)
            + descriptors.bytes
            + sum(|one| one.tables)
            + sum(|one| one.threads) * THREAD_BYTES;
        let largest = processes.iter().map(|one| LargestProcess::new(one, one.anonymous)).max();
        let most_anonymous = processes.iter().map(|one| one.anonymous).max().unwrap_or(0);
        if fixed + most_anonymous > self.limit {
            return decided(MemoryVerdict::Over { total: fixed + most_anonymous, largest });
        }
        let mappings = |one: &ProcessMemory| (one.size / 4096).min(self.max_mappings);
        // A fork adds to mappings without a page fault.
        let forked: u64 = processes.iter().map(|one| mappings(one) * self.depths.forked_bytes(one.process)).sum();
        let visible = sum(|one| one.anonymous + one.shared) + forked;
        let records = processes.iter().map(mappings).sum::<u64>() * MAPPING_BYTES;
        let shared = self.shared.bytes();
        if fixed + visible + shared + sum(|one| one.unexplained) + records <= self.limit {
            return decided(MemoryVerdict::Within(fixed + visible));
        }
        let faults = stats.iter().map(|one| (one.process, one.faults)).collect();
        let growth = visible.saturating_sub(self.exact.visible) + self.exact.new_faults(&faults) * FAULT_BYTES;
        let new_shared = shared.saturating_sub(self.exact.shared);
        let possible = fixed + self.exact.bytes + growth + new_shared;
        let since = self.exact.at.elapsed();
        let is_urgent = possible > self.limit && since >= self.exact.cost * URGENT_SHARE;
        let whole_cost = self.exact.cost + self.exact.mapped_cost;
        let is_due = growth + new_shared > 0 && since >= PRECAUTION_INTERVAL.max(whole_cost * PRECAUTION_SHARE);
        if !is_urgent && !is_due {
            return decided(MemoryVerdict::Within(possible));
        }
        let begun = processor_time();
        let mut counter = ExactCounter {
            limit: self.limit,
            deadline: begun + EXACT_BUDGET,
            max_mappings: self.max_mappings,
            known: if is_due { HashMap::new() } else { std::mem::take(&mut self.exact.processes) },
            counted: HashMap::new(),
            begun,
            looked: Instant::now(),
            processes_cost: Duration::ZERO,
            recent_mapped: (!is_due
                && new_shared == 0
                && self.exact.mapped_at.elapsed() < self.exact.mapped_cost * MAPPINGS_SHARE)
                .then_some(self.exact.mapped),
            mapped: None,
            shared: &mut self.shared,
            depths: &self.depths,
        };
        let verdict = counter.count(processes, &faults, fixed);
        let cost = processor_time().saturating_sub(begun);
        let bytes = match verdict {
            MemoryVerdict::Within(total) => total - fixed,
            MemoryVerdict::Over { .. } | MemoryVerdict::TooManyDescriptors => self.limit,
        };
        if let Some(mapped) = counter.mapped {
            self.exact.mapped = mapped;
            self.exact.mapped_at = Instant::now();
            self.exact.mapped_cost = cost.saturating_sub(counter.processes_cost);
        }
        self.exact.at = Instant::now();
        self.exact.cost = counter.processes_cost;
        self.exact.bytes = bytes;
        self.exact.visible = visible;
        self.exact.processes = counter.counted;
        self.exact.shared = self.shared.bytes();
        (verdict, shared_cost + cost)
    }

    /// Reads mappings if the machine's shared memory has changed much. Returns the processor time that it took.
    fn look_at_shared_memory(&mut self, processes: &[ProcessMemory], file_systems: u64) -> Duration {
        let (read, cost) = self.shared_read;
        if !self.shared.observe(MachineMemory::read(), file_systems) || read.elapsed() < cost * MAPPINGS_SHARE {
            return Duration::ZERO;
        }
        let begun = processor_time();
        let mut seen = HashMap::new();
        let budget = MappingsBudget { end_of_patience: begun + MAPPINGS_BUDGET, end: begun + EXACT_BUDGET };
        if processes.iter().all(|one| one.read_mappings(&mut seen, budget).is_some()) {
            self.shared.update(&seen);
        } else {
            self.shared.give_up();
        }
        let cost = processor_time().saturating_sub(begun);
        self.shared_read = (Instant::now(), cost);
        cost
    }

    /// Kills a process of the sandbox. Its number may have come to mean another process since it was read: the pidfd
    /// pins one process, which is killed only if it is in the sandbox.
    fn kill(&self, process: i32) {
        let Some(pid) = Pid::from_raw(process) else { return };
        let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { return };
        if self.namespace.is_some() && pid_namespace(process) == self.namespace {
            let _ = pidfd_send_signal(&pidfd, Signal::KILL);
        }
    }
}

impl ExactCount {
    /// Returns how many page faults there have been since the count.
    fn new_faults(&self, faults: &HashMap<i32, u64>) -> u64 {
        let before = |process| self.processes.get(process).map_or(0, |one| one.faults);
        // Fewer than before means another process with the same number.
        faults.iter().map(|(process, &now)| now.checked_sub(before(process)).unwrap_or(now)).sum()
    }
}

/// Returns the time until the next look at a sandbox that has this much room below its limit.
fn interval(room: u64, longest: Duration) -> Duration {
    let until_full = Duration::from_micros(room / (FASTEST_FILL / 1_000_000));
    until_full.clamp(SHORTEST_INTERVAL.min(longest), longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_more_often_when_there_is_less_room() {
        let longest = Duration::from_millis(100);
        let at = |room: u64| interval(room, longest).as_millis();
        assert_eq!(at(u64::MAX >> 20), 100);
        assert!((40..60).contains(&at(200 << 20)), "{}", at(200 << 20));
        assert_eq!(at(1 << 20), 5);
        assert_eq!(at(0), 5);
    }

    fn count(faults: u64, anonymous: u64, proportional: u64) -> ProcessCount {
        ProcessCount { faults, anonymous, proportional }
    }

    #[test]
    fn counts_faults_since_the_last_exact_count() {
        let exact = ExactCount {
            at: Instant::now(),
            cost: Duration::ZERO,
            bytes: 0,
            visible: 0,
            processes: [(1, count(100, 0, 0)), (2, count(1000, 0, 0)), (3, count(50, 0, 0))].into(),
            mapped: 0,
            mapped_at: Instant::now(),
            mapped_cost: Duration::ZERO,
            shared: 0,
        };
        // 2 has ended, 3 is another process now, 4 is new.
        assert_eq!(exact.new_faults(&[(1, 110), (3, 5), (4, 7)].into()), 10 + 5 + 7);
    }
}
