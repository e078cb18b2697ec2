//! pivot_root(2): the new root becomes the root, and the host's tree leaves this mount namespace altogether. Unlike
//! after chroot(2) there is nothing left to climb back to.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{chdir, fchdir, pivot_root};

use crate::report::{During, Step, StepFailure};
use crate::sys;

pub(crate) fn into_root(root: OwnedFd, working_directory: &Path) -> Result<(), StepFailure> {
    fchdir(&root).during(Step::Pivot, || "enter the new root".into())?;
    // With the same folder for both, the old root ends up on top of the new one, and unmounting it uncovers that:
    // no folder is needed to put it in.
    pivot_root(".", ".").during(Step::Pivot, || "make it the root".into())?;
    unmount(".", UnmountFlags::DETACH).during(Step::Pivot, || "let go of the old root".into())?;
    chdir("/").during(Step::Pivot, || "enter the root again".into())?;
    sys::set_root_read_only(root.as_fd()).during(Step::Pivot, || "make the root read-only".into())?;
    chdir(working_directory).during(Step::Pivot, || format!("enter `{}`", working_directory.display()))
}
