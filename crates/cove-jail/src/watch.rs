//! Watches a sandbox from outside until it ends: reaps it, kills it when the host closes the control socket, and holds
//! it to its memory limit where no cgroup does.
//!
//! Four parties meet here, and the watcher's one thread serves them in this order:
//!
//! - The sandbox's first process, the runner. Its pidfd becomes readable when it has ended. The kernel has then killed
//!   everything else inside, because the runner was pid 1 of its namespace. The watcher looks at the pidfd first, so
//!   that an end by itself is never reported as a kill by the host.
//! - The host, on the control socket. It writes requests, each of which gets an answer, or closes its side, which means
//!   "kill". It also closes its side when it dies, so no sandbox outlives its host. The watcher then kills and reaps,
//!   but still reports `Ended`, because a host that closed only its sending side waits for that.
//! - The memory watchdog, which is only there without a cgroup. It runs when `poll` times out, and after every other
//!   event. It sets `has_killed` before it kills anything, and only the watcher reads that field, after the runner has
//!   been reaped or when the host asks: so the host never learns of a death without its cause.
//! - The kernel's OOM killer, where there is a cgroup. The watcher reads the cgroup's counter at the same two moments.
//!   The counter goes away with the cgroup, so `enter` removes the cgroup only after `until_end` has returned.
//!
//! `WatchedSandbox` holds everything that must live exactly as long as the sandbox. `enter` makes it, lends it to
//! `until_end`, and drops it afterwards: that removes the cgroups and releases the sandbox's user id for another one.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid};
use rustix::time::Timespec;

use crate::plan::JailPlan;
use crate::report::{JailEvent, JailRequest, MemoryKiller, RunnerExit};
use crate::steps::cgroup::SandboxCgroups;
use crate::steps::mount;
use crate::steps::user::HostUser;

/// A running sandbox, as the jail process outside holds it.
pub(crate) struct WatchedSandbox {
    /// The first process of the sandbox, as the host numbers it.
    pub(crate) child: Pid,
    /// The same process. Unlike the number it cannot come to mean another one.
    pub(crate) pidfd: OwnedFd,
    /// Removed when dropped.
    pub(crate) cgroups: SandboxCgroups,
    /// The user id on the host, claimed for this sandbox until dropped.
    pub(crate) host: HostUser,
}

/// Watches until the sandbox has ended and been reaped. Returns how it ended, and what killed a process of it for
/// memory, if anything did.
pub(crate) fn until_end(
    watched: &WatchedSandbox,
    plan: &JailPlan,
    control: &UnixStream,
) -> (RunnerExit, Option<MemoryKiller>) {
    let mut watchdog = plan.control.watchdog_millis.map(|millis| MemoryWatchdog::new(plan, watched, millis));
    let timeout = watchdog.as_ref().map(|watchdog| watchdog.interval);
    let exceeded = |watchdog: &Option<MemoryWatchdog>| match watchdog {
        Some(watchdog) if watchdog.has_killed => Some(MemoryKiller::Watchdog),
        _ if watched.cgroups.killed_for_memory() => Some(MemoryKiller::Kernel),
        _ => None,
    };
    loop {
        let mut fds = [
            PollFd::from_borrowed_fd(watched.pidfd.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(control.as_fd(), PollFlags::IN),
        ];
        // An interrupted or failing poll only means another turn of the loop.
        let _ = poll(&mut fds, timeout.as_ref());
        let (ended, host_is_ready) = (!fds[0].revents().is_empty(), !fds[1].revents().is_empty());
        if ended {
            return (reap(watched), exceeded(&watchdog));
        }
        if host_is_ready {
            let mut bytes = [0u8; 16];
            match (&*control).read(&mut bytes) {
                // The host has closed its side, or has died.
                Ok(0) | Err(_) => return (kill_and_reap(watched), exceeded(&watchdog)),
                Ok(count) => {
                    for _ in bytes[..count].iter().filter(|&&byte| byte == JailRequest::Memory.byte()) {
                        JailEvent::Memory { exceeded: exceeded(&watchdog) }.send(control);
                    }
                }
            }
        }
        if let Some(watchdog) = &mut watchdog {
            watchdog.check(plan, watched);
        }
    }
}

/// Kills pid 1 of the sandbox, whereupon the kernel kills everything inside. Returns how pid 1 ended.
pub(crate) fn kill_and_reap(watched: &WatchedSandbox) -> RunnerExit {
    let _ = pidfd_send_signal(&watched.pidfd, Signal::KILL);
    reap(watched)
}

/// Waits for pid 1 of the sandbox to end, and returns how it ended.
fn reap(watched: &WatchedSandbox) -> RunnerExit {
    loop {
        match waitid(WaitId::PidFd(watched.pidfd.as_fd()), WaitIdOptions::EXITED) {
            Ok(Some(status)) => {
                return match status.terminating_signal() {
                    Some(signal) => RunnerExit::Signal(signal),
                    None => RunnerExit::Code(status.exit_status().unwrap_or(-1)),
                };
            }
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            // Only if the process is not a child of this one, which cannot be.
            Err(_) => return RunnerExit::Code(-1),
        }
    }
}

/// Holds the sandbox to its memory limit where there is no cgroup. It adds up the resident memory of every process
/// inside and the contents of the sandbox's file systems. Like the kernel it first kills the largest process; if that
/// has not helped by the next check, it kills the sandbox.
struct MemoryWatchdog {
    interval: Timespec,
    limit: u64,
    /// The sandbox's pid namespace. The watchdog kills no process outside it.
    namespace: Option<u64>,
    /// The sandbox was over its limit at the last check.
    was_over: bool,
    /// It has killed something, at any time.
    has_killed: bool,
}

impl MemoryWatchdog {
    fn new(plan: &JailPlan, watched: &WatchedSandbox, millis: u64) -> Self {
        Self {
            interval: Timespec { tv_sec: (millis / 1000) as i64, tv_nsec: (millis % 1000 * 1_000_000) as i64 },
            limit: plan.control.memory,
            namespace: pid_namespace(watched.child.as_raw_nonzero().get()),
            was_over: false,
            has_killed: false,
        }
    }

    /// Measures the sandbox once, and kills if it is over its limit.
    fn check(&mut self, plan: &JailPlan, watched: &WatchedSandbox) {
        let init = watched.child.as_raw_nonzero().get();
        let processes = descendants(init);
        let files = mount::tmpfs_use(plan, init) + shared_memory(&processes);
        // This counts pages that several processes share once for each of them. Before it kills anything, the watchdog
        // counts them exactly, which takes the kernel about a hundred times as long.
        let is_over = |bytes: u64| files + bytes > self.limit;
        let exact = is_over(processes.iter().map(|&process| resident(process)).sum())
            .then(|| -> Vec<(u64, i32)> { processes.iter().map(|&one| (proportional(one), one)).collect() })
            .filter(|each| is_over(each.iter().map(|(bytes, _)| bytes).sum()));
        let Some(exact) = exact else {
            self.was_over = false;
            return;
        };
        // If pid 1 is the largest itself, no other process is worth killing first.
        let largest = exact.iter().max().map(|&(_, process)| process).filter(|&process| process != init);
        // Before the kill, so that the cause is known when the death is noticed.
        self.has_killed = true;
        match largest {
            Some(process) if !self.was_over => self.kill(process),
            _ => {
                let _ = pidfd_send_signal(&watched.pidfd, Signal::KILL);
            }
        }
        self.was_over = true;
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

/// Returns the anonymous memory of a process. Pages of program files are the host's, and shared memory is counted as a
/// file.
fn resident(process: i32) -> u64 {
    sum_kilobytes(&format!("/proc/{process}/status"), "RssAnon:")
}

/// The same, with each page that forked processes share divided among them.
fn proportional(process: i32) -> u64 {
    sum_kilobytes(&format!("/proc/{process}/smaps_rollup"), "Pss_Anon:")
}

/// Returns the bytes of shared anonymous mappings. They are files without a name, whose pages stay when a process
/// unmaps them, and then appear in no count of that process. So each counts once, with its whole length.
fn shared_memory(processes: &[i32]) -> u64 {
    let mut lengths: BTreeMap<u64, u64> = BTreeMap::new();
    for process in processes {
        let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
        for (inode, end) in maps.lines().filter_map(parse_shared_mapping) {
            let length = lengths.entry(inode).or_default();
            *length = end.max(*length);
        }
    }
    lengths.values().sum()
}

/// Reads a line of proc_pid_maps(5). Returns the inode of a shared anonymous mapping and how far into it the line
/// reaches, or `None` for any other mapping.
fn parse_shared_mapping(line: &str) -> Option<(u64, u64)> {
    let line = line.strip_suffix("/dev/zero (deleted)")?;
    let mut fields = line.split_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let offset = number(fields.nth(1)?)?;
    let inode = fields.nth(1)?.parse().ok()?;
    Some((inode, offset + number(end)?.checked_sub(number(start)?)?))
}

/// Adds up the lines of a file of `/proc` that begin with `key`, and returns bytes.
fn sum_kilobytes(file: &str, key: &str) -> u64 {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines()
        .filter_map(|line| line.strip_prefix(key))
        .filter_map(|value| value.trim().trim_end_matches("kB").trim().parse::<u64>().ok())
        .sum::<u64>()
        * 1024
}

fn pid_namespace(process: i32) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(format!("/proc/{process}/ns/pid")).ok().map(|found| found.ino())
}

/// Returns a process and all its descendants. Orphans inside the sandbox become children of its pid 1, so none is
/// missed for long.
fn descendants(root: i32) -> Vec<i32> {
    let mut found = vec![root];
    let mut next = 0;
    while let Some(&process) = found.get(next) {
        next += 1;
        let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else { continue };
        for thread in threads.flatten() {
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            found.extend(children.split_whitespace().filter_map(|child| child.parse::<i32>().ok()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognizes_shared_anonymous_mappings() {
        let shared = "7f0000000000-7f0000a00000 rw-s 00001000 00:01 1037 /dev/zero (deleted)";
        assert_eq!(parse_shared_mapping(shared), Some((1037, 0xa0_1000)));
        assert_eq!(parse_shared_mapping("7f00-7f10 r-xp 00000000 fe:00 12 /usr/bin/python3.11"), None);
        assert_eq!(parse_shared_mapping("7f00-7f10 rw-p 00000000 00:00 0 "), None);
    }
}
