//! namespaces(7): names the new namespaces, and forbids making others inside them.

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{Errno, write};
use rustix::mount::MountAttrFlags;

use crate::plan::{JailPlan, NameLookup};
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

/// Sets the limits of the sandbox's user namespace: none on further namespaces, some on what else the kernel counts. If
/// the runner answers names, opens the low ports of the sandbox's loopback too. Must come after the mounts, because the
/// kernel counts each detached mount as a namespace, and before the host's `/proc` is unmounted.
pub(crate) fn set_limits(plan: &JailPlan) -> Result<(), StepFailure> {
    // In a `/proc` of its own if the kernel allows one, which it does unless something covers parts of the host's, as in a
    // container. For in the host's it looks through the files of all sandboxes, one by one.
    let folder = match mount::new_filesystem("proc", &[], MountAttrFlags::MOUNT_ATTR_NOEXEC) {
        Ok(proc) => openat(proc, "sys", FOLDER, Mode::empty()),
        Err(Errno::PERM) => openat(CWD, "/proc/sys", FOLDER, Mode::empty()),
        Err(error) => Err(error),
    };
    let folder = folder.during(JailStep::Namespaces, || "open `/proc/sys`".into())?;
    let set = |name: &str, value: u64| {
        openat(&folder, name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
            .and_then(|file| write(file, value.to_string().as_bytes()))
    };
    for limit in &plan.user_limits {
        set(&format!("user/{}", limit.name), limit.value)
            .during(JailStep::Namespaces, || format!("set `/proc/sys/user/{}` to {}", limit.name, limit.value))?;
    }
    if plan.names == NameLookup::Runner {
        // Where this cannot be set, the runner reports that it does not answer names.
        let _ = set("net/ipv4/ip_unprivileged_port_start", 0);
    }
    Ok(())
}
