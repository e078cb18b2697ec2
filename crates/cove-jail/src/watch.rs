//! From outside, until the sandbox ends: reaps it, kills it when the host says so or goes away, and holds it to its
//! memory where no cgroup does.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid,
};
use rustix::time::Timespec;

use crate::enter::tell;
use crate::plan::Plan;
use crate::report::{Event, Exit, OutOfMemory, Request};
use crate::steps::cgroup::Cgroups;
use crate::steps::mount;
use crate::steps::user::HostUser;

/// A sandbox, seen from outside.
pub(crate) struct Watched {
    pub(crate) child: Pid,
    pub(crate) pidfd: OwnedFd,
    pub(crate) cgroups: Cgroups,
    pub(crate) host: HostUser,
}

pub(crate) fn until_end(watched: &Watched, plan: &Plan, control: &UnixStream) -> (Exit, Option<OutOfMemory>) {
    let mut watchdog = plan.control.watchdog_millis.map(|millis| Watchdog::new(plan, watched, millis));
    let timeout = watchdog.as_ref().map(|watchdog| watchdog.interval);
    let exceeded = |watchdog: &Option<Watchdog>| match watchdog {
        Some(watchdog) if watchdog.has_killed => Some(OutOfMemory::Watchdog),
        _ if watched.cgroups.killed_for_memory() => Some(OutOfMemory::Kernel),
        _ => None,
    };
    loop {
        let mut fds = [
            PollFd::from_borrowed_fd(watched.pidfd.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(control.as_fd(), PollFlags::IN),
        ];
        // An interrupted or failing poll only means another look.
        let _ = poll(&mut fds, timeout.as_ref());
        let (ended, spoken) = (!fds[0].revents().is_empty(), !fds[1].revents().is_empty());
        if ended {
            return (reap(watched), exceeded(&watchdog));
        }
        if spoken {
            let mut bytes = [0u8; 16];
            match (&*control).read(&mut bytes) {
                // The host has closed its side, or is gone.
                Ok(0) | Err(_) => return (kill_and_reap(watched), exceeded(&watchdog)),
                Ok(count) => {
                    for _ in bytes[..count].iter().filter(|&&byte| byte == Request::Memory.byte()) {
                        tell(control, &Event::Memory { exceeded: exceeded(&watchdog) });
                    }
                }
            }
        }
        if let Some(watchdog) = &mut watchdog {
            watchdog.look(plan, watched);
        }
    }
}

/// Kills pid 1 of the sandbox, and with it, by the kernel's doing, everything inside.
pub(crate) fn kill_and_reap(watched: &Watched) -> Exit {
    let _ = pidfd_send_signal(&watched.pidfd, Signal::KILL);
    reap(watched)
}

fn reap(watched: &Watched) -> Exit {
    loop {
        match waitid(WaitId::PidFd(watched.pidfd.as_fd()), WaitIdOptions::EXITED) {
            Ok(Some(status)) => {
                return match status.terminating_signal() {
                    Some(signal) => Exit::Signal(signal),
                    None => Exit::Code(status.exit_status().unwrap_or(-1)),
                };
            }
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return Exit::Code(-1),
        }
    }
}

/// Memory held by looking at it, for want of a cgroup: the resident memory of every process inside and the contents
/// of the sandbox's file systems, added up. Like the kernel it first kills the largest process; when that did not
/// help by the next look, the sandbox.
struct Watchdog {
    interval: Timespec,
    limit: u64,
    namespace: Option<u64>,
    was_over: bool,
    has_killed: bool,
}

impl Watchdog {
    fn new(plan: &Plan, watched: &Watched, millis: u64) -> Self {
        Self {
            interval: Timespec {
                tv_sec: (millis / 1000) as i64,
                tv_nsec: (millis % 1000 * 1_000_000) as i64,
            },
            limit: plan.control.memory,
            namespace: pid_namespace(watched.child.as_raw_nonzero().get()),
            was_over: false,
            has_killed: false,
        }
    }

    fn look(&mut self, plan: &Plan, watched: &Watched) {
        let init = watched.child.as_raw_nonzero().get();
        let processes = descendants(init);
        let files = mount::tmpfs_use(plan, init) + shared_memory(&processes);
        let quick = measure(&processes, resident);
        // Pages that several processes share were counted once for each: before anything is killed, count them right,
        // which takes the kernel about a hundred times as long.
        if files + quick.total <= self.limit {
            self.was_over = false;
            return;
        }
        let exact = measure(&processes, proportional);
        if files + exact.total <= self.limit {
            self.was_over = false;
            return;
        }
        let largest = exact.largest.filter(|&process| process != init);
        self.has_killed = true;
        match largest {
            Some(process) if !self.was_over => self.kill(process),
            _ => {
                let _ = pidfd_send_signal(&watched.pidfd, Signal::KILL);
            }
        }
        self.was_over = true;
    }

    /// The id may have been given to another process since it was read. The descriptor pins one process, and only if
    /// that one is in the sandbox is it killed.
    fn kill(&self, process: i32) {
        let Some(pid) = Pid::from_raw(process) else { return };
        let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { return };
        if self.namespace.is_some() && pid_namespace(process) == self.namespace {
            let _ = pidfd_send_signal(&pidfd, Signal::KILL);
        }
    }
}

struct Measured {
    total: u64,
    largest: Option<i32>,
}

fn measure(processes: &[i32], of: impl Fn(i32) -> u64) -> Measured {
    let each: Vec<(u64, i32)> = processes.iter().map(|&process| (of(process), process)).collect();
    Measured {
        total: each.iter().map(|(bytes, _)| bytes).sum(),
        largest: each.iter().max().map(|&(_, process)| process),
    }
}

/// Memory of its own; not the pages of program files, which are the host's, nor shared memory, which is counted as a file.
fn resident(process: i32) -> u64 {
    add_kilobytes(&format!("/proc/{process}/status"), &["RssAnon:"])
}

/// The same, with each page that a fork shares divided among those who share it.
fn proportional(process: i32) -> u64 {
    add_kilobytes(&format!("/proc/{process}/smaps_rollup"), &["Pss_Anon:"])
}

/// Shared anonymous mappings are files without a name, whose pages stay when a process forgets them, and then show in no
/// count of its own. So each counts with its whole length, once, however many have it mapped.
fn shared_memory(processes: &[i32]) -> u64 {
    let mut lengths: BTreeMap<u64, u64> = BTreeMap::new();
    for process in processes {
        let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
        for (inode, end) in maps.lines().filter_map(nameless_file) {
            let length = lengths.entry(inode).or_default();
            *length = end.max(*length);
        }
    }
    lengths.values().sum()
}

/// Of a line of proc_pid_maps(5) that is a shared anonymous mapping: which file, and how far into it this reaches.
fn nameless_file(line: &str) -> Option<(u64, u64)> {
    let line = line.strip_suffix("/dev/zero (deleted)")?;
    let mut fields = line.split_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let offset = number(fields.nth(1)?)?;
    let inode = fields.nth(1)?.parse().ok()?;
    Some((inode, offset + number(end)?.checked_sub(number(start)?)?))
}

fn add_kilobytes(file: &str, keys: &[&str]) -> u64 {
    let text = fs::read_to_string(file).unwrap_or_default();
    let of = |line: &str| keys.iter().find_map(|key| line.strip_prefix(key)).map(str::to_owned);
    text.lines()
        .filter_map(of)
        .filter_map(|value| value.trim().trim_end_matches("kB").trim().parse::<u64>().ok())
        .sum::<u64>()
        * 1024
}

fn pid_namespace(process: i32) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(format!("/proc/{process}/ns/pid")).ok().map(|found| found.ino())
}

/// A process and all below it. Orphans inside the sandbox become children of its pid 1, so none is missed for long.
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
    fn shared_mappings_are_told_from_others() {
        let shared = "7f0000000000-7f0000a00000 rw-s 00001000 00:01 1037 /dev/zero (deleted)";
        assert_eq!(nameless_file(shared), Some((1037, 0xa0_1000)));
        assert_eq!(nameless_file("7f00-7f10 r-xp 00000000 fe:00 12 /usr/bin/python3.11"), None);
        assert_eq!(nameless_file("7f00-7f10 rw-p 00000000 00:00 0 "), None);
    }
}
