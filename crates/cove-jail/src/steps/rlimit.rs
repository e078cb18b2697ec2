//! setrlimit(2) and sched(7): limits on each process. `cgroup` or the watchdog limits the sandbox as a whole.

use std::io;

use rustix::process::{Resource as Kernel, Rlimit as Value, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::guest::{Rlimit, RlimitResource};
use crate::plan::JailPlan;
use crate::report::{JailStep, StepContext, StepFailure};

/// Limits this process, and all that it starts, as the plan says.
pub(crate) fn apply(plan: &JailPlan) -> Result<(), StepFailure> {
    limit_processes(&plan.rlimits)?;
    if let Some(cpus) = plan.control.affinity {
        restrict_cpus(cpus, &plan.control.processors)?;
    }
    Ok(())
}

/// Limits this process, and all that it starts. Fails if the kernel refuses.
pub fn limit_processes(limits: &[Rlimit]) -> Result<(), StepFailure> {
    for limit in limits {
        let resource = match limit.resource {
            RlimitResource::Core => Kernel::Core,
            RlimitResource::Data => Kernel::Data,
            RlimitResource::Fsize => Kernel::Fsize,
            RlimitResource::Memlock => Kernel::Memlock,
            RlimitResource::Msgqueue => Kernel::Msgqueue,
            RlimitResource::Nice => Kernel::Nice,
            RlimitResource::Nofile => Kernel::Nofile,
            RlimitResource::Nproc => Kernel::Nproc,
            RlimitResource::Rtprio => Kernel::Rtprio,
            RlimitResource::Sigpending => Kernel::Sigpending,
            RlimitResource::Stack => Kernel::Stack,
        };
        // A hard limit that is already lower stays, because raising it takes a privilege.
        let now = getrlimit(resource);
        let hard = now.maximum.map_or(limit.hard, |maximum| maximum.min(limit.hard));
        let value = Value { current: Some(limit.soft.min(hard)), maximum: Some(hard) };
        setrlimit(resource, value)
            .during(JailStep::Rlimits, || format!("limit {:?} to {}", limit.resource, limit.soft))?;
    }
    Ok(())
}

/// In the jail process, before the clone: no program of the host's `core_pattern` is started for this process or the
/// sandbox. Only root can do it later too, if the hard limit is 0; an ordinary user's jail then keeps that limit.
pub(crate) fn forbid_core_files() -> Result<(), StepFailure> {
    let limit = Value { current: Some(1), maximum: Some(1) };
    let failure = |error| Err(StepFailure::new(JailStep::Rlimits, "limit core files", error));
    match setrlimit(Kernel::Core, limit) {
        // A filter around this process can answer that it is done.
        Ok(()) if getrlimit(Kernel::Core) != limit => failure(io::Error::other("the limit did not change")),
        Ok(()) | Err(rustix::io::Errno::PERM) => Ok(()),
        Err(error) => failure(error.into()),
    }
}

/// Restricts this process to `wanted` of the processors that it may use: those that the host chose, if it did.
fn restrict_cpus(wanted: u32, chosen: &[u32]) -> Result<(), StepFailure> {
    let action = || match wanted {
        1 => "limit the sandbox to 1 processor".to_owned(),
        _ => format!("limit the sandbox to {wanted} processors"),
    };
    // Cove itself may be restricted to some processors, and the sandbox must not get others.
    let allowed = sched_getaffinity(None).during(JailStep::Rlimits, action)?;
    let is_chosen = |cpu: &usize| chosen.is_empty() || chosen.iter().any(|one| *one as usize == *cpu);
    let usable = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
    let mut processors = CpuSet::new();
    for cpu in usable.filter(is_chosen).take(wanted as usize) {
        processors.set(cpu);
    }
    sched_setaffinity(None, &processors).during(JailStep::Rlimits, action)
}
