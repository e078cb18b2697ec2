//! What the descriptors of a sandbox hold in the kernel, as proc_pid_fdinfo(5) shows it: file locks, which no cgroup
//! counts on any kernel, and epoll watches and pipes, which only a cgroup counts.
//!
//! A lock of fcntl(2) belongs to a table of descriptors, and ends when its process closes the file. So every such lock is
//! shown with a descriptor of a live process. The filter refuses the locks of open file descriptions, which code could
//! hide behind a mapping or in a socket. Those of flock(2) are one for each open file.
//!
//! Threads may have tables of their own, and a first thread that has ended has none: so this looks at every thread, and
//! once at a table that several threads share. A process that has not run since it was last counted has changed nothing,
//! and those that have run most are counted first: an idle sandbox costs nearly nothing, and many processes with many
//! descriptors hide nothing.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::Read;
use std::time::{Duration, Instant};

use rustix::process::{Signal, pidfd_send_signal};

use super::processes::descendants;
use super::{WatchedSandbox, processor_time};
use crate::guest::{MAX_DESCRIPTORS, MAX_LOCKS};
use crate::plan::JailPlan;
use crate::report::MemoryKiller;
use crate::sys;

/// The time between looks at a sandbox that computes.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(50);
/// The same where a cgroup limits memory, and only locks are to be counted; and at a sandbox that does nothing.
const BUSY_INTERVAL: Duration = Duration::from_millis(100);
const IDLE_INTERVAL: Duration = Duration::from_millis(500);
/// A look may take this part of one processor.
const LOOK_SHARE: u32 = 4;
/// Processes that have run this long together since they were last counted can wait: they have few new locks.
const SHORT_RUN_NANOS: u64 = 2_000_000;
/// What the kernel needs for a lock and for an epoll watch.
const LOCK_BYTES: u64 = 256;
const WATCH_BYTES: u64 = 256;
/// More text than a descriptor with as many locks as allowed has.
const MAX_TEXT: u64 = 4 << 20;
/// The most that a pipe holds, until the user of the sandbox has `FULL_PIPES` of them; and the most of each one more.
const PIPE_BYTES: u64 = 64 << 10;
const FULL_PIPES: u64 = 1024;
const FURTHER_PIPE_BYTES: u64 = 8 << 10;
/// How much processor time counts as a lock in a process whose descriptors the kernel does not show: a program that the
/// user may execute and not read.
const HIDDEN_LOCK_NANOS: u64 = 20_000;

/// What a table of descriptors holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct DescriptorUse {
    descriptors: u64,
    locks: u64,
    watches: u64,
    /// The inodes of pipes, which several processes share.
    pipes: HashSet<u64>,
}

impl DescriptorUse {
    fn add(&mut self, other: &Self) {
        self.descriptors += other.descriptors;
        self.locks += other.locks;
        self.watches += other.watches;
        self.pipes.extend(&other.pipes);
    }

    /// Takes back what bounds are compared with.
    fn remove(&mut self, other: &Self) {
        self.descriptors -= other.descriptors;
        self.locks -= other.locks;
    }

    /// Returns whether there are more than a sandbox may have, whatever its memory limit is.
    fn exceeds_bounds(&self) -> bool {
        self.exceeds_bounds_with(&Self::default())
    }

    fn exceeds_bounds_with(&self, other: &Self) -> bool {
        self.locks + other.locks > MAX_LOCKS || self.descriptors + other.descriptors > MAX_DESCRIPTORS
    }

    /// Returns the most memory that it can be.
    fn bytes(&self) -> u64 {
        let pipes = self.pipes.len() as u64;
        self.locks * LOCK_BYTES
            + self.watches * WATCH_BYTES
            + pipes.min(FULL_PIPES) * PIPE_BYTES
            + pipes.saturating_sub(FULL_PIPES) * FURTHER_PIPE_BYTES
    }

    /// Reads what one descriptor holds: a file of proc_pid_fdinfo(5).
    fn read(&mut self, text: &[u8], pipe_mount: Option<u64>) {
        self.descriptors += 1;
        let (mut mount, mut inode) = (None, None);
        for line in text.split(|&byte| byte == b'\n') {
            match line {
                [b'l', b'o', b'c', b'k', b':', ..] => self.locks += 1,
                [b't', b'f', b'd', b':', ..] => self.watches += 1,
                [b'm', b'n', b't', b'_', b'i', b'd', b':', rest @ ..] => mount = parse_number(rest),
                [b'i', b'n', b'o', b':', rest @ ..] => inode = parse_number(rest),
                _ => {}
            }
        }
        if mount.is_some() && mount == pipe_mount {
            self.pipes.extend(inode);
        }
    }
}

fn parse_number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text.trim_ascii()).ok()?.parse().ok()
}

/// Counts what the descriptors of a sandbox hold.
pub(super) struct DescriptorMeter {
    /// By process: how long each of its threads had run at the last look, and what it held then.
    known: HashMap<i32, (Vec<(i32, u64)>, DescriptorUse)>,
    /// How long all threads had run at the last look.
    run_time: u64,
    /// The mount that all pipes are on.
    pipe_mount: Option<u64>,
    /// When to look next.
    next: Instant,
    last: DescriptorLook,
}

/// The result of a look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct DescriptorLook {
    /// The most memory that it can be.
    pub(super) bytes: u64,
    pub(super) exceeds_bounds: bool,
    /// A process has run since the look before.
    pub(super) has_run: bool,
}

impl DescriptorMeter {
    pub(super) fn new() -> Self {
        Self {
            known: HashMap::new(),
            run_time: 0,
            pipe_mount: find_pipe_mount(),
            next: Instant::now(),
            last: DescriptorLook::default(),
        }
    }

    /// Looks at all processes of a sandbox, if it is time to. Returns the result of this or the last look, and the
    /// processor time that it took.
    pub(super) fn measure(&mut self, processes: &[i32]) -> (DescriptorLook, Duration) {
        if Instant::now() < self.next {
            return (self.last, Duration::ZERO);
        }
        let begun = processor_time();
        let mut before = std::mem::take(&mut self.known);
        let mut total = DescriptorUse::default();
        let mut active = Vec::new();
        let mut run_time = 0;
        for &process in processes {
            let times = run_times(process);
            let last = before.remove(&process).unwrap_or_default();
            let ran = new_run_time(&times, &last.0);
            run_time += new_run_time(&times, &[]);
            if ran > 0 {
                active.push((ran, process, times, last));
            } else {
                total.add(&last.1);
                self.known.insert(process, last);
            }
        }
        // What has run most comes first, so that other processes cannot delay the count of one that takes locks.
        active.sort_unstable_by_key(|(ran, ..)| Reverse(*ran));
        let mut unseen: u64 = active.iter().map(|(ran, ..)| *ran).sum();
        let mut others = DescriptorUse::default();
        active.iter().for_each(|(.., (_, last))| others.add(last));
        for (ran, process, times, last) in active {
            // A process that can wait must not be the reason for an end, because it may hold less by now.
            if unseen > SHORT_RUN_NANOS || others.exceeds_bounds_with(&total) {
                let found = self.count(process, &times, &total);
                total.add(&found);
                self.known.insert(process, (times, found));
            } else {
                total.add(&last.1);
                self.known.insert(process, last.clone());
            }
            unseen -= ran;
            others.remove(&last.1);
            if total.exceeds_bounds() {
                break;
            }
        }
        let has_run = std::mem::replace(&mut self.run_time, run_time) != run_time;
        self.last = DescriptorLook { bytes: total.bytes(), exceeds_bounds: total.exceeds_bounds(), has_run };
        let cost = processor_time().saturating_sub(begun);
        self.next = Instant::now() + SHORTEST_INTERVAL.max(cost * LOOK_SHARE);
        (self.last, cost)
    }

    /// Counts what a process holds, until that is too much together with `others`.
    fn count(&self, process: i32, threads: &[(i32, u64)], others: &DescriptorUse) -> DescriptorUse {
        let mut found = DescriptorUse::default();
        let mut counted: Vec<i32> = Vec::new();
        let mut text = Vec::new();
        for &(thread, ran) in threads {
            if counted.iter().any(|&other| sys::have_same_descriptors(other, thread)) {
                continue;
            }
            let folder = format!("/proc/{process}/task/{thread}/fdinfo");
            let files = match fs::read_dir(&folder) {
                Ok(files) => files,
                Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                    found.locks += ran / HIDDEN_LOCK_NANOS;
                    continue;
                }
                // It has ended.
                Err(_) => continue,
            };
            counted.push(thread);
            for file in files.flatten() {
                text.clear();
                let opened = fs::File::open(file.path());
                // What cannot be read has been closed meanwhile.
                if opened.is_ok_and(|file| file.take(MAX_TEXT).read_to_end(&mut text).is_ok()) {
                    found.read(&text, self.pipe_mount);
                }
                if found.exceeds_bounds_with(others) {
                    return found;
                }
            }
        }
        found
    }
}

/// Looks at a sandbox whose memory a cgroup limits, and kills it if it has more descriptors, locks or data in TCP
/// connections than it may.
pub(super) struct DescriptorWatchdog {
    meter: DescriptorMeter,
    /// What the sandbox's cgroup said about its processor time at the last look.
    activity: Option<[u8; 128]>,
    interval: Duration,
    /// When to look next.
    next: Instant,
    /// It has killed the sandbox for this.
    pub(super) killer: Option<MemoryKiller>,
}

impl DescriptorWatchdog {
    pub(super) fn new() -> Self {
        let meter = DescriptorMeter::new();
        Self { meter, activity: None, interval: BUSY_INTERVAL, next: Instant::now() + BUSY_INTERVAL, killer: None }
    }

    /// Returns the time until the next look.
    pub(super) fn wait(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }

    /// Looks at the sandbox, if it is time to, and kills it if it has more than it may.
    pub(super) fn look(&mut self, plan: &JailPlan, watched: &WatchedSandbox) {
        if !self.wait().is_zero() {
            return;
        }
        let activity = watched.cgroups.read_activity();
        let is_idle = activity.is_some() && activity == self.activity;
        self.activity = activity;
        let has_run = !is_idle && {
            let (found, _) = self.meter.measure(&descendants(watched.child.as_raw_nonzero().get()));
            if found.exceeds_bounds {
                self.killer = Some(MemoryKiller::DescriptorBound);
            } else if watched.cgroups.exceeds_with_tcp(plan.control.memory) {
                self.killer = Some(MemoryKiller::Watchdog);
            }
            if self.killer.is_some() {
                let _ = pidfd_send_signal(&watched.pidfd, Signal::KILL);
            }
            found.has_run
        };
        self.interval = if has_run { BUSY_INTERVAL } else { (self.interval * 2).min(IDLE_INTERVAL) };
        // The meter may not look again sooner.
        self.next = (Instant::now() + self.interval).max(self.meter.next);
    }
}

/// Returns how long the threads of a process have run since `before`, in nanoseconds. A thread without a time, on a kernel
/// that does not say, may have run for long.
fn new_run_time(times: &[(i32, u64)], before: &[(i32, u64)]) -> u64 {
    let new = |&(thread, ran): &(i32, u64)| match before.iter().find(|(other, _)| *other == thread) {
        _ if ran == 0 => 2 * SHORT_RUN_NANOS,
        Some((_, earlier)) => ran.saturating_sub(*earlier),
        None => ran,
    };
    times.iter().map(new).sum()
}

/// Returns the threads of a process and how long each has run, in nanoseconds.
fn run_times(process: i32) -> Vec<(i32, u64)> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let numbers = threads.filter_map(|thread| thread.file_name().to_str()?.parse::<i32>().ok());
    let time = |thread: i32| {
        let text = fs::read_to_string(format!("/proc/{process}/task/{thread}/schedstat")).ok()?;
        text.split(' ').next()?.parse().ok()
    };
    numbers.map(|thread| (thread, time(thread).unwrap_or(0))).collect()
}

/// Returns the number of the mount that the kernel keeps all pipes on.
fn find_pipe_mount() -> Option<u64> {
    use std::os::fd::AsRawFd;
    let (end, _other) = std::io::pipe().ok()?;
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", end.as_raw_fd())).ok()?;
    text.lines().find_map(|line| parse_number(line.strip_prefix("mnt_id:")?.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    fn count_own() -> DescriptorUse {
        let own = std::process::id() as i32;
        DescriptorMeter::new().count(own, &[(own, 1)], &DescriptorUse::default())
    }

    #[test]
    fn sees_locks_and_pipes_of_this_process() {
        let before = count_own();
        let file = tempfile::tempfile().unwrap();
        rustix::fs::fcntl_lock(&file, rustix::fs::FlockOperation::NonBlockingLockShared).unwrap();
        let (end, _other) = std::io::pipe().unwrap();
        let after = count_own();
        // Other tests have descriptors too.
        assert!(after.locks > before.locks, "{before:?} {after:?}");
        let inode = rustix::fs::fstat(&end).unwrap().st_ino;
        assert!(after.pipes.contains(&inode), "{inode} of descriptor {} in {after:?}", end.as_raw_fd());
    }

    #[test]
    fn reads_every_kind_of_descriptor() {
        let mut found = DescriptorUse::default();
        found.read(
            b"pos:\t0\nflags:\t02\nmnt_id:\t15\nino:\t77\nlock:\t1: POSIX  ADVISORY  WRITE 9 00:1c:5 0 0\n",
            Some(15),
        );
        found.read(b"pos:\t0\nmnt_id:\t16\nino:\t78\ntfd:        5 events: 19\ntfd:        6 events: 19\n", Some(15));
        found.read(b"pos:\t0\nmnt_id:\t15\nino:\t77\n", Some(15));
        found.read(b"", None);
        let expected = DescriptorUse { descriptors: 4, locks: 1, watches: 2, pipes: HashSet::from([77]) };
        assert_eq!(found, expected);
        assert_eq!(found.bytes(), 3 * 256 + (64 << 10));
        assert!(!found.exceeds_bounds());
        found.locks = MAX_LOCKS + 1;
        assert!(found.exceeds_bounds());
    }

    #[test]
    fn a_process_that_has_not_run_is_not_read_again() {
        let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = sleeper.id() as i32;
        let mut meter = DescriptorMeter::new();
        let mut look = || {
            std::thread::sleep(SHORTEST_INTERVAL * 2);
            meter.measure(&[process]).0
        };
        look();
        // It may still have been starting.
        assert!((0..600).any(|_| !look().has_run));
        assert_eq!(new_run_time(&[(1, 50), (2, 10), (3, 0)], &[(1, 20)]), 30 + 10 + 2 * SHORT_RUN_NANOS);
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
    }
}
