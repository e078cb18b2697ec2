//! prctl(2) PR_SET_PDEATHSIG: the kernel kills the sandbox when the jail process outside it dies.

use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Signal, set_parent_process_death_signal, setsid};

use crate::report::{JailStep, StepContext, StepFailure};

/// Ties the life of this process to its parent's, and leaves the terminal. Must come after `user`, because a change of
/// user clears the signal.
pub(crate) fn tie_to_parent(parent: BorrowedFd<'_>) -> Result<(), StepFailure> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .during(JailStep::Lifetime, || "tie the sandbox's life to that of its parent".into())?;
    // The parent may have died before the signal was armed. getppid(2) cannot tell from inside a new pid namespace,
    // but the parent's end of the socket can.
    let mut fds = [PollFd::from_borrowed_fd(parent, PollFlags::empty())];
    poll(&mut fds, Some(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 }))
        .during(JailStep::Lifetime, || "look for the parent".into())?;
    if fds[0].revents().contains(PollFlags::HUP) {
        return Err(StepFailure::new(JailStep::Lifetime, "find the parent alive", rustix::io::Errno::SRCH));
    }
    // No controlling terminal, so that nothing inside can type into it.
    setsid().during(JailStep::Lifetime, || "leave the terminal".into())?;
    Ok(())
}
