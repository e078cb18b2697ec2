//! namespaces(7): what the new namespaces are called and that none can be made inside them.

use std::fs;

use crate::plan::Plan;
use crate::report::{During, Step, StepFailure};
use crate::sys;

pub(crate) fn name_host(plan: &Plan) -> Result<(), StepFailure> {
    rustix::system::sethostname(plan.hostname.as_bytes())
        .during(Step::Namespaces, || "name the sandbox".into())
}

/// Only once this process is in its cgroup, so that this is what the namespace's root is.
pub(crate) fn close_cgroup_view() -> Result<(), StepFailure> {
    sys::unshare_cgroup_namespace().during(Step::Namespaces, || "create a cgroup namespace".into())
}

/// After the mounts are made, since each detached mount is a small namespace of its own to the kernel, and before the
/// host's `/proc` goes out of sight.
pub(crate) fn forbid_nested(plan: &Plan) -> Result<(), StepFailure> {
    for sysctl in &plan.sysctls {
        fs::write(&sysctl.path, sysctl.value.to_string())
            .during(Step::Namespaces, || format!("set `{}` to {}", sysctl.path, sysctl.value))?;
    }
    Ok(())
}
