//! setrlimit(2) and sched(7): limits on each process. `cgroup` or the watchdog limits the sandbox as a whole.

use rustix::process::{Resource as Kernel, Rlimit as Value, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::guest::RlimitResource;
use crate::plan::JailPlan;
use crate::report::{JailStep, StepContext, StepFailure};
use crate::steps::random_number;

/// Limits this process, and all that it starts, as the plan says.
pub(crate) fn apply(plan: &JailPlan) -> Result<(), StepFailure> {
    for limit in &plan.rlimits {
        let resource = match limit.resource {
            RlimitResource::Core => Kernel::Core,
            RlimitResource::Data => Kernel::Data,
            RlimitResource::Fsize => Kernel::Fsize,
            RlimitResource::Memlock => Kernel::Memlock,
            RlimitResource::Msgqueue => Kernel::Msgqueue,
            RlimitResource::Nofile => Kernel::Nofile,
            RlimitResource::Nproc => Kernel::Nproc,
            RlimitResource::Sigpending => Kernel::Sigpending,
            RlimitResource::Stack => Kernel::Stack,
        };
        // A hard limit that is already lower stays, because raising it takes a privilege.
        let now = rustix::process::getrlimit(resource);
        let hard = now.maximum.map_or(limit.hard, |maximum| maximum.min(limit.hard));
        let value = Value { current: Some(limit.soft.min(hard)), maximum: Some(hard) };
        setrlimit(resource, value)
            .during(JailStep::Rlimits, || format!("limit {:?} to {}", limit.resource, limit.soft))?;
    }
    if let Some(cpus) = plan.control.affinity {
        restrict_cpus(cpus)?;
    }
    Ok(())
}

/// Restricts this process to `wanted` of the processors that it may use. The first is random, so that sandboxes spread
/// over all of them.
fn restrict_cpus(wanted: u32) -> Result<(), StepFailure> {
    let action = || match wanted {
        1 => "limit the sandbox to 1 processor".to_owned(),
        _ => format!("limit the sandbox to {wanted} processors"),
    };
    // Cove itself may be restricted to some processors, and the sandbox must not get others.
    let allowed = sched_getaffinity(None).during(JailStep::Rlimits, action)?;
    let usable: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect();
    let start = random_number(JailStep::Rlimits)? as u32 as usize;
    let mut chosen = CpuSet::new();
    for offset in 0..(wanted as usize).min(usable.len()) {
        chosen.set(usable[(start + offset) % usable.len()]);
    }
    sched_setaffinity(None, &chosen).during(JailStep::Rlimits, action)
}
