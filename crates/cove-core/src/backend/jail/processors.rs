//! Chooses the processors of sandboxes where no cgroup divides processor time: those with the fewest sandboxes of this
//! process and the least other work.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::thread::CpuSet;

use crate::random::random_bits;
use crate::sync::lock;

/// How old the last look at the machine must be before another replaces it: the kernel counts in steps of ten
/// milliseconds.
const MIN_AGE: Duration = Duration::from_millis(200);
/// How many sandboxes a processor counts for that is busy all the time.
const BUSY_WEIGHT: f64 = 2.0;

/// The processors of this machine, as this process uses them. Clones share all state.
#[derive(Clone, Default)]
pub(super) struct ProcessorChooser {
    shared: Arc<Mutex<ProcessorUse>>,
}

#[derive(Default)]
struct ProcessorUse {
    /// How many sandboxes of this process each has.
    sandboxes: BTreeMap<u32, u32>,
    /// An earlier look, to compare with.
    earlier: Option<(Instant, BTreeMap<u32, ProcessorTimes>)>,
}

/// What a processor has done since the machine started, in clock ticks.
#[derive(Clone, Copy, Default)]
struct ProcessorTimes {
    busy: u64,
    idle: u64,
}

/// A sandbox's place on its processors. Dropping it frees the place.
pub(super) struct ProcessorClaim {
    chooser: ProcessorChooser,
    processors: Vec<u32>,
}

impl ProcessorChooser {
    /// Chooses `wanted` of the processors that this process may use.
    pub(super) fn claim(&self, wanted: u32) -> ProcessorClaim {
        let allowed = rustix::thread::sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
        let usable: Vec<u32> = (0..CpuSet::MAX_CPU as u32).filter(|&one| allowed.is_set(one as usize)).collect();
        self.claim_among(&usable, wanted)
    }

    fn claim_among(&self, usable: &[u32], wanted: u32) -> ProcessorClaim {
        let times = parse_times(&fs::read_to_string("/proc/stat").unwrap_or_default());
        let mut shared = lock(&self.shared);
        let mut scores: Vec<(f64, u128, u32)> = usable
            .iter()
            .map(|&processor| {
                let sandboxes = shared.sandboxes.get(&processor).copied().unwrap_or_default();
                let busy = shared.busy_part(processor, &times);
                (f64::from(sandboxes) + BUSY_WEIGHT * busy, random_bits(), processor)
            })
            .collect();
        scores.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
        let processors: Vec<u32> = scores.iter().take(wanted as usize).map(|(_, _, processor)| *processor).collect();
        for processor in &processors {
            *shared.sandboxes.entry(*processor).or_default() += 1;
        }
        if shared.earlier.as_ref().is_none_or(|(looked, _)| looked.elapsed() >= MIN_AGE) {
            shared.earlier = Some((Instant::now(), times));
        }
        ProcessorClaim { chooser: self.clone(), processors }
    }
}

impl ProcessorUse {
    /// Returns which part of the time since the earlier look the processor was busy; 0 if that is unknown.
    fn busy_part(&self, processor: u32, now: &BTreeMap<u32, ProcessorTimes>) -> f64 {
        let before = self.earlier.as_ref().and_then(|(_, times)| times.get(&processor));
        let (Some(before), Some(now)) = (before, now.get(&processor)) else { return 0.0 };
        let busy = now.busy.saturating_sub(before.busy) as f64;
        let all = busy + now.idle.saturating_sub(before.idle) as f64;
        if all > 0.0 { busy / all } else { 0.0 }
    }
}

impl ProcessorClaim {
    pub(super) fn processors(&self) -> &[u32] {
        &self.processors
    }
}

impl Drop for ProcessorClaim {
    fn drop(&mut self) {
        let mut shared = lock(&self.chooser.shared);
        for processor in &self.processors {
            if let Some(count) = shared.sandboxes.get_mut(processor) {
                *count = count.saturating_sub(1);
            }
        }
    }
}

/// Reads the lines of proc_stat(5) that begin with `cpu` and a number.
fn parse_times(text: &str) -> BTreeMap<u32, ProcessorTimes> {
    let parse = |line: &str| {
        let mut words = line.strip_prefix("cpu")?.split_whitespace();
        let processor = words.next()?.parse().ok()?;
        let ticks: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
        // user, nice, system, idle, iowait, irq, softirq, steal; guest times are parts of the first two.
        let idle = ticks.get(3)? + ticks.get(4)?;
        let busy = ticks.iter().take(8).sum::<u64>().saturating_sub(idle);
        Some((processor, ProcessorTimes { busy, idle }))
    };
    text.lines().take_while(|line| line.starts_with("cpu")).filter_map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sandboxes_spread_evenly() {
        let chooser = ProcessorChooser::default();
        let claims: Vec<ProcessorClaim> = (0..8).map(|_| chooser.claim_among(&[1000, 1001, 1003, 1004], 1)).collect();
        for processor in [1000, 1001, 1003, 1004] {
            let count = claims.iter().filter(|claim| claim.processors() == [processor]).count();
            assert_eq!(count, 2, "{processor}");
        }
        drop(claims);
        assert!(lock(&chooser.shared).sandboxes.values().all(|count| *count == 0));
    }

    #[test]
    fn a_busy_processor_is_avoided() {
        let quiet = "cpu 9 9 9 9\ncpu0 10 0 0 90 0 0 0 0 0 0\ncpu1 10 0 0 90 0 0 0 0 0 0\nintr 5\n";
        let loud = "cpu 9 9 9 9\ncpu0 100 0 0 100 0 0 0 0 0 0\ncpu1 20 0 0 180 0 0 0 0 0 0\n";
        let earlier = Some((Instant::now(), parse_times(quiet)));
        let shared = ProcessorUse { sandboxes: BTreeMap::new(), earlier };
        let now = parse_times(loud);
        assert!(shared.busy_part(0, &now) > 0.8 && shared.busy_part(1, &now) < 0.2);
        assert_eq!(shared.busy_part(7, &now), 0.0);
    }
}
