//! namespaces(7): names the new namespaces, and forbids making others inside them.

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{Errno, write};
use rustix::mount::MountAttrFlags;

use crate::plan::JailPlan;
use crate::report::{JailStep, StepContext, StepFailure};
use crate::steps::mount;
use crate::sys;

const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Sets the host name of the sandbox.
pub(crate) fn set_host_name(plan: &JailPlan) -> Result<(), StepFailure> {
    rustix::system::sethostname(plan.hostname.as_bytes()).during(JailStep::Namespaces, || "name the sandbox".into())
}

/// Makes a cgroup namespace, so that code sees nothing of the host's hierarchy. Must come after this process has joined
/// its cgroup, which becomes the root of the namespace.
pub(crate) fn hide_host_cgroups() -> Result<(), StepFailure> {
    sys::unshare_cgroup_namespace().during(JailStep::Namespaces, || "create a cgroup namespace".into())
}

/// Sets the limits of the sandbox's user namespace: none on further namespaces, some on what else the kernel counts. Must
/// come after the mounts, because the kernel counts each detached mount as a namespace, and before the host's `/proc` is
/// unmounted.
pub(crate) fn limit_user(plan: &JailPlan) -> Result<(), StepFailure> {
    // In a `/proc` of its own if the kernel allows one, which it does unless something covers parts of the host's, as in a
    // container. For in the host's it looks through the files of all sandboxes, one by one.
    let folder = match mount::new_filesystem("proc", &[], MountAttrFlags::MOUNT_ATTR_NOEXEC) {
        Ok(proc) => openat(proc, "sys/user", FOLDER, Mode::empty()),
        Err(Errno::PERM) => openat(CWD, "/proc/sys/user", FOLDER, Mode::empty()),
        Err(error) => Err(error),
    };
    let folder = folder.during(JailStep::Namespaces, || "open `/proc/sys/user`".into())?;
    for limit in &plan.user_limits {
        openat(&folder, &limit.name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
            .and_then(|file| write(file, limit.value.to_string().as_bytes()))
            .during(JailStep::Namespaces, || format!("set `/proc/sys/user/{}` to {}", limit.name, limit.value))?;
    }
    Ok(())
}
