//! pivot_root(2): the new root becomes the root, and the host's tree leaves this mount namespace altogether. Unlike
//! after chroot(2), no way leads back to it.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{chdir, fchdir, pivot_root};

use crate::report::{JailStep, StepContext, StepFailure};
use crate::sys;

/// Makes `root` the root of this process, read-only, and enters `working_directory` in it.
pub(crate) fn into_root(root: OwnedFd, working_directory: &Path) -> Result<(), StepFailure> {
    fchdir(&root).during(JailStep::Pivot, || "enter the new root".into())?;
    // With the same folder for both arguments the old root ends up on top of the new one, and unmounting it uncovers
    // the new one. So the new root needs no folder to hold the old one.
    pivot_root(".", ".").during(JailStep::Pivot, || "make it the root".into())?;
    unmount(".", UnmountFlags::DETACH).during(JailStep::Pivot, || "unmount the old root".into())?;
    chdir("/").during(JailStep::Pivot, || "enter the root again".into())?;
    sys::set_root_read_only(root.as_fd()).during(JailStep::Pivot, || "make the root read-only".into())?;
    chdir(working_directory).during(JailStep::Pivot, || format!("enter `{}`", working_directory.display()))
}
