//! What the descriptors of a sandbox hold in the kernel, as proc_pid_fdinfo(5) shows it: file locks, which no cgroup
//! counts on any kernel, and epoll watches and pipes, which only a cgroup counts. The kernel gives each user a number of
//! watches and of pages for pipes. A sandbox whose user is the person shares these with the person's other programs, and
//! is ended if it takes more than a part of them.
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

use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statx};
use rustix::process::{Signal, pidfd_send_signal};

use super::processes::descendants;
use super::{WatchedSandbox, processor_time};
use crate::guest::{MAX_DESCRIPTORS, MAX_LOCKS};
use crate::plan::JailPlan;
use crate::report::MemoryKiller;
use crate::steps::user::HostUserKind;
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
/// The pages of a pipe, which code cannot enlarge: the filter refuses `F_SETPIPE_SZ`.
const PIPE_PAGES: u64 = 16;
/// The part of a person's epoll watches that a sandbox may have. The kernel lets a user fill a 25th of its memory with
/// watches, 5 million on a machine with 24 GB: a part is 300,000 there, and 14,000 with 1 GB. Servers have one for each connection,
/// and a sandbox has 32,768 descriptors at most.
const WATCHES_SHARE: (u64, u64) = (1, 16);
/// The part of the pages that a person's pipes may have before the kernel makes new ones smaller: by default 384 of 1024
/// whole pipes, enough for 128 programs at a time with three each. A look does not see descriptors on their way through a
/// socket, of which there can be `FEWER_FILES`, half of all pages: so one sandbox leaves the person an eighth whatever it does.
const PIPES_SHARE: (u64, u64) = (3, 8);
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

    /// Takes back what bounds are compared with, except pipes: other processes may have the same ones.
    fn remove(&mut self, other: &Self) {
        self.descriptors -= other.descriptors;
        self.locks -= other.locks;
        self.watches -= other.watches;
    }

    /// Returns whether this and `other` together are more than a sandbox may have, whatever its memory limit is.
    fn exceeds_with(&self, other: &Self, bounds: DescriptorBounds) -> bool {
        let has_more_pipes_than = |most: u64| {
            let both = self.pipes.len() + other.pipes.len();
            both as u64 > most && self.pipes.union(&other.pipes).count() as u64 > most
        };
        self.locks + other.locks > MAX_LOCKS
            || self.descriptors + other.descriptors > MAX_DESCRIPTORS
            || self.watches + other.watches > bounds.watches
            || has_more_pipes_than(bounds.pipes)
    }

    /// Returns the most memory that it can be.
    fn bytes(&self) -> u64 {
        let pipes = self.pipes.len() as u64;
        self.locks * LOCK_BYTES
            + self.watches * WATCH_BYTES
            + pipes.min(FULL_PIPES) * PIPE_BYTES
            + pipes.saturating_sub(FULL_PIPES) * FURTHER_PIPE_BYTES
    }

    /// Reads what one descriptor holds: a file of proc_pid_fdinfo(5). Returns the mount and the inode of a file that may
    /// be a named pipe: no such file has another position than 0.
    fn read(&mut self, text: &[u8], pipe_mount: Option<u64>) -> Option<(u64, u64)> {
        self.descriptors += 1;
        let (mut mount, mut inode, mut is_at_start) = (None, None, false);
        for line in text.split(|&byte| byte == b'\n') {
            match line {
                [b'l', b'o', b'c', b'k', b':', ..] => self.locks += 1,
                [b't', b'f', b'd', b':', ..] => self.watches += 1,
                b"pos:\t0" => is_at_start = true,
                [b'm', b'n', b't', b'_', b'i', b'd', b':', rest @ ..] => mount = parse_number(rest),
                [b'i', b'n', b'o', b':', rest @ ..] => inode = parse_number(rest),
                _ => {}
            }
        }
        if mount.is_some() && mount == pipe_mount {
            self.pipes.extend(inode);
            return None;
        }
        mount.zip(inode).filter(|_| is_at_start)
    }
}

/// How many epoll watches and pipes a sandbox may have, beside the locks and descriptors that every sandbox may have.
#[derive(Debug, Clone, Copy)]
struct DescriptorBounds {
    watches: u64,
    pipes: u64,
}

impl DescriptorBounds {
    /// Returns the bounds of a sandbox with this user: none, unless that is the person, and the kernel has a limit.
    fn read(user: HostUserKind) -> Self {
        let setting = |path: &str| parse_number(&fs::read(path).ok()?).filter(|&limit| limit > 0);
        let share = |path: &str, (part, whole)| match user {
            HostUserKind::Person => setting(path).map_or(u64::MAX, |limit| limit / whole * part),
            HostUserKind::Subordinate | HostUserKind::OfRoot => u64::MAX,
        };
        Self {
            watches: share("/proc/sys/fs/epoll/max_user_watches", WATCHES_SHARE),
            pipes: share("/proc/sys/fs/pipe-user-pages-soft", PIPES_SHARE) / PIPE_PAGES,
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
    /// The mount that all pipes without a name are on, and those on which code can make named ones.
    pipe_mount: Option<u64>,
    writable_mounts: HashSet<u64>,
    bounds: DescriptorBounds,
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
    /// Returns a meter for a sandbox with this user.
    pub(super) fn new(user: HostUserKind) -> Self {
        Self {
            known: HashMap::new(),
            run_time: 0,
            pipe_mount: find_pipe_mount(),
            writable_mounts: HashSet::new(),
            bounds: DescriptorBounds::read(user),
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
        if self.writable_mounts.is_empty() {
            self.writable_mounts = processes.first().map(|&first| find_writable_mounts(first)).unwrap_or_default();
        }
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
            if unseen > SHORT_RUN_NANOS || others.exceeds_with(&total, self.bounds) {
                let found = self.count(process, &times, &total);
                total.add(&found);
                self.known.insert(process, (times, found));
            } else {
                total.add(&last.1);
                self.known.insert(process, last.clone());
            }
            unseen -= ran;
            others.remove(&last.1);
            if total.exceeds_with(&DescriptorUse::default(), self.bounds) {
                break;
            }
        }
        let has_run = std::mem::replace(&mut self.run_time, run_time) != run_time;
        let exceeds_bounds = total.exceeds_with(&DescriptorUse::default(), self.bounds);
        self.last = DescriptorLook { bytes: total.bytes(), exceeds_bounds, has_run };
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
                if opened.is_ok_and(|file| file.take(MAX_TEXT).read_to_end(&mut text).is_ok())
                    && let Some((mount, inode)) = found.read(&text, self.pipe_mount)
                    && self.writable_mounts.contains(&mount)
                    && may_be_pipe(&format!("/proc/{process}/task/{thread}/fd/{}", file.file_name().display()))
                {
                    found.pipes.insert(inode);
                }
                if found.exceeds_with(others, self.bounds) {
                    return found;
                }
            }
        }
        found
    }
}

/// Looks at a sandbox whose memory a cgroup limits, and kills it if it has more of what descriptors hold, or data in TCP
/// connections, than it may.
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
    /// Returns a watchdog for a sandbox with this user.
    pub(super) fn new(user: HostUserKind) -> Self {
        let meter = DescriptorMeter::new(user);
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

/// Returns the numbers of a process's mounts that are not read-only, as proc_pid_mountinfo(5) shows them.
fn find_writable_mounts(process: i32) -> HashSet<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/mountinfo")).unwrap_or_default();
    let number = |line: &str| {
        let mut fields = line.split(' ');
        let number = fields.next()?.parse().ok()?;
        fields.nth(4)?.starts_with("rw").then_some(number)
    };
    text.lines().filter_map(number).collect()
}

/// Returns whether a descriptor is of a named pipe, or of a file whose kind this process may not ask for, because the user
/// of the sandbox is another one. Such a file then counts as a full pipe, which is little for programs that have few files
/// open that they have not read from.
fn may_be_pipe(descriptor: &str) -> bool {
    // A file system that does not answer must not stop the watchdog.
    let asked = statx(CWD, descriptor, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE);
    asked.map_or(true, |found| FileType::from_raw_mode(found.stx_mode.into()) == FileType::Fifo)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    fn count_own() -> DescriptorUse {
        let own = std::process::id() as i32;
        DescriptorMeter::new(HostUserKind::OfRoot).count(own, &[(own, 1)], &DescriptorUse::default())
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
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, 0o600.into(), 0).unwrap();
        let named = fs::File::options().read(true).write(true).open(&path).unwrap();
        let plain = fs::File::create(folder.path().join("plain")).unwrap();
        let own = std::process::id() as i32;
        let mut meter = DescriptorMeter::new(HostUserKind::OfRoot);
        meter.writable_mounts = find_writable_mounts(own);
        let pipes = meter.count(own, &[(own, 1)], &DescriptorUse::default()).pipes;
        let [named, plain] = [named, plain].map(|file| rustix::fs::fstat(&file).unwrap().st_ino);
        assert!(pipes.contains(&named) && !pipes.contains(&plain), "{named} and not {plain} in {pipes:?}");
    }

    #[test]
    fn reads_every_kind_of_descriptor() {
        let mut found = DescriptorUse::default();
        found.read(
            b"pos:\t0\nflags:\t02\nmnt_id:\t15\nino:\t77\nlock:\t1: POSIX  ADVISORY  WRITE 9 00:1c:5 0 0\n",
            Some(15),
        );
        assert_eq!(found.read(b"pos:\t0\nmnt_id:\t17\nino:\t79\n", Some(15)), Some((17, 79)));
        assert_eq!(found.read(b"pos:\t1\nmnt_id:\t17\nino:\t79\n", Some(15)), None);
        found.read(b"pos:\t0\nmnt_id:\t16\nino:\t78\ntfd:        5 events: 19\ntfd:        6 events: 19\n", Some(15));
        found.read(b"pos:\t0\nmnt_id:\t15\nino:\t77\n", Some(15));
        found.read(b"", None);
        let expected = DescriptorUse { descriptors: 6, locks: 1, watches: 2, pipes: HashSet::from([77]) };
        assert_eq!(found, expected);
        assert_eq!(found.bytes(), 3 * 256 + (64 << 10));
        let none = DescriptorUse::default();
        let bounds = DescriptorBounds { watches: u64::MAX, pipes: u64::MAX };
        assert!(!found.exceeds_with(&none, bounds));
        found.locks = MAX_LOCKS + 1;
        assert!(found.exceeds_with(&none, bounds));
    }

    #[test]
    fn a_person_shares_watches_and_pipes_with_a_sandbox() {
        let of_root = DescriptorBounds::read(HostUserKind::OfRoot);
        assert_eq!((of_root.watches, of_root.pipes), (u64::MAX, u64::MAX >> 4));
        let of_person = DescriptorBounds::read(HostUserKind::Person);
        assert!(of_person.watches < of_root.watches && of_person.pipes < of_root.pipes, "{of_person:?}");
        let bounds = DescriptorBounds { watches: 10, pipes: 3 };
        let with = |watches, pipes: &[u64]| DescriptorUse {
            watches,
            pipes: pipes.iter().copied().collect(),
            ..DescriptorUse::default()
        };
        for (one, other, exceeds) in [
            (with(5, &[]), with(5, &[]), false),
            (with(5, &[]), with(6, &[]), true),
            (with(0, &[1, 2, 3]), with(0, &[2, 3]), false),
            (with(0, &[1, 2]), with(0, &[3, 4]), true),
        ] {
            assert_eq!(one.exceeds_with(&other, bounds), exceeds, "{one:?} {other:?}");
        }
    }

    #[test]
    fn a_process_that_has_not_run_is_not_read_again() {
        let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = sleeper.id() as i32;
        let mut meter = DescriptorMeter::new(HostUserKind::OfRoot);
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
