//! Watches a sandbox from outside until it ends: reaps it, kills it when the host closes the control socket, and holds
//! it to its memory limit where no cgroup does, and everywhere to a number of what no cgroup counts: file locks, and a person's quotas.
//!
//! Four parties meet here, and the watcher's one thread serves them in this order:
//!
//! - The sandbox's first process, the runner. Its pidfd becomes readable when it has ended. The kernel has then killed
//!   everything else inside, because the runner was pid 1 of its namespace. The watcher looks at the pidfd first, so
//!   that an end by itself is never reported as a kill by the host.
//! - The host, on the control socket. It writes requests, each of which gets an answer, or closes its side, which means
//!   "kill". It also closes its side when it dies, so no sandbox outlives its host. The watcher then kills and reaps,
//!   but still reports `Ended`, because a host that closed only its sending side waits for that.
//! - The watchdog: of all memory without a cgroup, of what cgroups do not count with one. It decides when it looks next, and `poll`
//!   waits no longer than that. Before it kills anything it sets `killer`, which the watcher reads after the runner has
//!   been reaped or when the host asks. If the sandbox may survive it, it reports `MemoryKill` first: so the host never
//!   learns of a death without its cause.
//! - The kernel's OOM killer, where there is a cgroup. The watcher reads the cgroup's counter at the same two moments.
//!   The counter goes away with the cgroup, so `enter` removes the cgroup only after `until_end` has returned.
//!
//! `WatchedSandbox` holds everything that must live exactly as long as the sandbox. `enter` makes it, lends it to
//! `until_end`, and drops it afterwards: that removes the cgroups and releases the sandbox's user id for another one.

mod descriptors;
mod fork_depths;
mod memory;
mod processes;
mod processor_share;
mod shared_memory;
mod sockets;

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};
use rustix::time::{ClockId, Timespec, clock_gettime};

use crate::plan::JailPlan;
use crate::report::{JailEvent, JailRequest, MemoryKiller, RunnerExit};
use crate::steps::cgroup::SandboxCgroups;
use crate::steps::user::HostUser;
use descriptors::DescriptorWatchdog;
use memory::MemoryWatchdog;
pub(crate) use sockets::SocketMeter;

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
    /// The priority of its session, where the kernel has one.
    pub(crate) priority: Option<File>,
}

/// Watches until the sandbox has ended and been reaped. Returns how it ended, and what killed a process of it for
/// memory, if anything did. `sockets` is for the watchdog.
pub(crate) fn until_end(
    watched: &WatchedSandbox,
    plan: &JailPlan,
    sockets: SocketMeter,
    control: &UnixStream,
) -> (RunnerExit, Option<MemoryKiller>) {
    let mut watchdog = match plan.control.watchdog_millis {
        Some(millis) => SandboxWatchdog::Memory(Box::new(MemoryWatchdog::new(plan, watched, millis, sockets))),
        None => SandboxWatchdog::Descriptors(Box::new(DescriptorWatchdog::new(watched.host.kind))),
    };
    let exceeded = |watchdog: &SandboxWatchdog| {
        watchdog.killer().or_else(|| watched.cgroups.killed_for_memory().then_some(MemoryKiller::Kernel))
    };
    loop {
        let mut fds = [
            PollFd::from_borrowed_fd(watched.pidfd.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(control.as_fd(), PollFlags::IN),
        ];
        // An interrupted or failing poll only means another turn of the loop.
        let timeout = Timespec::try_from(watchdog.wait()).ok();
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
        match &mut watchdog {
            SandboxWatchdog::Memory(one) => one.look(plan, watched, || JailEvent::MemoryKill {}.send(control)),
            SandboxWatchdog::Descriptors(one) => one.look(plan, watched),
        }
    }
}

/// Looks at what the kernel does not limit.
enum SandboxWatchdog {
    /// Without a cgroup: all memory, that of descriptors too.
    Memory(Box<MemoryWatchdog>),
    /// With one: locks, which no cgroup counts, and what TCP connections hold, which version 1 does not.
    Descriptors(Box<DescriptorWatchdog>),
}

impl SandboxWatchdog {
    fn wait(&self) -> Duration {
        match self {
            Self::Memory(one) => one.wait(),
            Self::Descriptors(one) => one.wait(),
        }
    }

    /// Returns what it has killed something for, if it has.
    fn killer(&self) -> Option<MemoryKiller> {
        match self {
            Self::Memory(one) => one.killer,
            Self::Descriptors(one) => one.killer,
        }
    }
}

/// Returns the processor time that this process has used. By it a look does not seem expensive on a busy machine.
fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
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
