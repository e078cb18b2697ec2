//! namespaces(7): names the new namespaces, and forbids making others inside them.

use std::fs;

use crate::plan::JailPlan;
use crate::report::{JailStep, StepContext, StepFailure};
use crate::sys;

/// Sets the host name of the sandbox.
pub(crate) fn set_host_name(plan: &JailPlan) -> Result<(), StepFailure> {
    rustix::system::sethostname(plan.hostname.as_bytes()).during(JailStep::Namespaces, || "name the sandbox".into())
}

/// Makes a cgroup namespace, so that code sees nothing of the host's hierarchy. Must come after this process has joined
/// its cgroup, which becomes the root of the namespace.
pub(crate) fn hide_host_cgroups() -> Result<(), StepFailure> {
    sys::unshare_cgroup_namespace().during(JailStep::Namespaces, || "create a cgroup namespace".into())
}

/// Sets the limits on further namespaces to 0. Must come after the mounts, because the kernel counts each detached
/// mount as a namespace, and before the host's `/proc` is unmounted.
pub(crate) fn forbid_nested(plan: &JailPlan) -> Result<(), StepFailure> {
    for sysctl in &plan.sysctls {
        fs::write(&sysctl.path, sysctl.value.to_string())
            .during(JailStep::Namespaces, || format!("set `{}` to {}", sysctl.path, sysctl.value))?;
    }
    Ok(())
}
