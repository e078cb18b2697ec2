//! prctl(2) PR_SET_PDEATHSIG: the sandbox never outlives the jail process outside it.

use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Signal, set_parent_process_death_signal, setsid};

use crate::report::{During, Step, StepFailure};

/// After `user`: a change of user clears the signal.
pub(crate) fn tie_to_parent(parent: BorrowedFd<'_>) -> Result<(), StepFailure> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .during(Step::Lifetime, || "tie the sandbox's life to its parent's".into())?;
    // The parent may have died before the signal was armed. getppid(2) cannot tell from inside a new pid namespace,
    // but the parent's end of the socket can.
    let mut fds = [PollFd::from_borrowed_fd(parent, PollFlags::empty())];
    poll(&mut fds, Some(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 }))
        .during(Step::Lifetime, || "look for the parent".into())?;
    if fds[0].revents().contains(PollFlags::HUP) {
        return Err(StepFailure::new(Step::Lifetime, "find the parent alive", rustix::io::Errno::SRCH));
    }
    // No controlling terminal, so that nothing inside can type into it.
    setsid().during(Step::Lifetime, || "leave the terminal".into())?;
    Ok(())
}
