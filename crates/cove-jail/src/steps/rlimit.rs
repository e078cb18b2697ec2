//! setrlimit(2) and sched(7): what each process may use. The sandbox as a whole is held by `cgroup` or the watchdog.

use rustix::process::{Resource as Kernel, Rlimit as Value, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::plan::{Plan, Resource};
use crate::report::{During, Step, StepFailure};

pub(crate) fn apply(plan: &Plan) -> Result<(), StepFailure> {
    for limit in &plan.rlimits {
        let resource = match limit.resource {
            Resource::Core => Kernel::Core,
            Resource::Data => Kernel::Data,
            Resource::Fsize => Kernel::Fsize,
            Resource::Memlock => Kernel::Memlock,
            Resource::Msgqueue => Kernel::Msgqueue,
            Resource::Nofile => Kernel::Nofile,
            Resource::Nproc => Kernel::Nproc,
            Resource::Sigpending => Kernel::Sigpending,
            Resource::Stack => Kernel::Stack,
        };
        // A limit that is lower already stays: without privilege it cannot be raised.
        let now = rustix::process::getrlimit(resource);
        let hard = now.maximum.map_or(limit.hard, |maximum| maximum.min(limit.hard));
        let value = Value { current: Some(limit.soft.min(hard)), maximum: Some(hard) };
        setrlimit(resource, value)
            .during(Step::Rlimits, || format!("limit {:?} to {}", limit.resource, limit.soft))?;
    }
    if let Some(cpus) = plan.control.affinity {
        restrict_cpus(cpus)?;
    }
    Ok(())
}

/// Takes that many of the processors this process may use, starting anywhere, so that sandboxes spread over them.
fn restrict_cpus(wanted: u32) -> Result<(), StepFailure> {
    let action = || format!("hold the sandbox to {wanted} processors");
    let allowed = sched_getaffinity(None).during(Step::Rlimits, action)?;
    let usable: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect();
    let mut start = [0u8; 4];
    rustix::rand::getrandom(&mut start, rustix::rand::GetRandomFlags::empty())
        .during(Step::Rlimits, action)?;
    let start = u32::from_ne_bytes(start) as usize;
    let mut chosen = CpuSet::new();
    for offset in 0..(wanted as usize).min(usable.len()) {
        chosen.set(usable[(start + offset) % usable.len()]);
    }
    sched_setaffinity(None, &chosen).during(Step::Rlimits, action)
}
