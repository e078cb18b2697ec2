//! The exact count of the memory of processes, with each page that they share divided among them. It must not end a
//! sandbox that is within its limit, nor give one time to grow while it goes on.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::super::fork_depths::ForkDepths;
use super::super::processes::{MappingsBudget, ProcessMemory};
use super::super::processor_time;
use super::super::shared_memory::SharedMemory;
use super::{FAULT_BYTES, LargestProcess, MAPPINGS_BUDGET, MemoryVerdict, ProcessCount};

/// How long an exact count may go on before the cheap figures are read again.
const LOOK_AGAIN_INTERVAL: Duration = Duration::from_millis(20);

/// Counts the memory of processes exactly.
pub(super) struct ExactCounter<'a> {
    pub(super) limit: u64,
    /// The processor time of this process at which the budget is used up.
    pub(super) deadline: Duration,
    pub(super) max_mappings: u64,
    /// Earlier counts. Without a page fault since, they are right but for pages that the process shares: when one of those
    /// that share them forks, the part of each becomes smaller.
    pub(super) known: HashMap<i32, ProcessCount>,
    pub(super) counted: HashMap<i32, ProcessCount>,
    pub(super) begun: Duration,
    /// When the sandbox was looked at last.
    pub(super) looked: Instant,
    /// What counting processes took, without their mappings.
    pub(super) processes_cost: Duration,
    /// The last figure for mappings, if it is too early to read them again.
    pub(super) recent_mapped: Option<u64>,
    /// The new figure for mappings, if they were read.
    pub(super) mapped: Option<u64>,
    pub(super) shared: &'a mut SharedMemory,
    pub(super) depths: &'a ForkDepths,
}

impl ExactCounter<'_> {
    fn is_late(&self) -> bool {
        processor_time() > self.deadline
    }

    /// Counts on top of `fixed`, until it is over the limit.
    pub(super) fn count(
        &mut self,
        mut processes: Vec<ProcessMemory>,
        faults: &HashMap<i32, u64>,
        fixed: u64,
    ) -> MemoryVerdict {
        processes.sort_unstable_by_key(|one| std::cmp::Reverse(one.anonymous));
        let mut spaces = Vec::<&ProcessMemory>::new();
        for one in &processes {
            if spaces.iter().any(|other| one.shares_memory_with(other)) {
                continue;
            }
            spaces.push(one);
            self.count_anonymous_part(one, faults.get(&one.process).copied().unwrap_or(0));
            if let over @ MemoryVerdict::Over { .. } = self.judge(&spaces, fixed) {
                return over;
            }
            if let Some(over) = self.look_again(&processes, fixed) {
                return over;
            }
        }
        self.processes_cost = processor_time().saturating_sub(self.begun);
        if let Some(mapped) = self.recent_mapped {
            return self.judge(&spaces, fixed + mapped);
        }
        let budget = MappingsBudget { end_of_patience: processor_time() + MAPPINGS_BUDGET, end: self.deadline };
        spaces.sort_unstable_by_key(|one| std::cmp::Reverse(one.shared + one.unexplained));
        let mut shared: HashMap<u64, u64> = HashMap::new();
        let mut unread = 0;
        let mut records = 0;
        for one in &spaces {
            let mappings = one.read_mappings(&mut shared, budget).unwrap_or_else(|| {
                unread += one.unexplained;
                (one.size / 4096).min(self.max_mappings)
            });
            records += mappings * self.depths.mapping_bytes(one.process);
            let all = records + self.shared.bytes_of(&shared, unread);
            if let over @ MemoryVerdict::Over { .. } = self.judge(&spaces, fixed + all) {
                return over;
            }
            if let Some(over) = self.look_again(&processes, fixed) {
                return over;
            }
        }
        if unread == 0 {
            self.shared.update(&shared);
        } else {
            self.shared.give_up();
        }
        let mapped = records + self.shared.bytes_of(&shared, unread);
        self.mapped = Some(mapped);
        self.judge(&spaces, fixed + mapped)
    }

    /// Returns the verdict if page tables, which every look counts exactly, have grown beyond the limit since the count
    /// began. On a busy machine it can take seconds.
    fn look_again(&mut self, processes: &[ProcessMemory], fixed: u64) -> Option<MemoryVerdict> {
        if self.looked.elapsed() < LOOK_AGAIN_INTERVAL {
            return None;
        }
        self.looked = Instant::now();
        let now: Vec<ProcessMemory> = processes.iter().filter_map(|one| ProcessMemory::read(one.process)).collect();
        let tables = |all: &[ProcessMemory]| all.iter().map(|one| one.tables).sum::<u64>();
        let most_anonymous = now.iter().map(|one| one.anonymous).max().unwrap_or(0);
        let total = fixed.saturating_sub(tables(processes)) + tables(&now) + most_anonymous;
        let largest = now.iter().map(|one| LargestProcess::new(one, one.anonymous)).max();
        (total > self.limit).then_some(MemoryVerdict::Over { total, largest })
    }

    /// Returns the verdict on the counted processes together with `others`.
    fn judge(&mut self, spaces: &[&ProcessMemory], others: u64) -> MemoryVerdict {
        let sum =
            |counted: &HashMap<i32, ProcessCount>| others + counted.values().map(|one| one.proportional).sum::<u64>();
        let mut total = sum(&self.counted);
        if total > self.limit {
            self.renew_known(spaces, total);
            total = sum(&self.counted);
        }
        // Processes that end meanwhile leave their shared pages to the others, where they would count again.
        if total > self.limit {
            self.forget_ended();
            total = sum(&self.counted);
        }
        if total > self.limit {
            self.recount(spaces);
            total = sum(&self.counted);
        }
        if total <= self.limit {
            return MemoryVerdict::Within(total);
        }
        let place = |one: &&ProcessMemory| Some(LargestProcess::new(one, self.counted.get(&one.process)?.proportional));
        MemoryVerdict::Over { total, largest: spaces.iter().filter_map(place).max() }
    }

    /// Counts the processes again whose parts of `total` are those of an earlier count, until it is over the limit without
    /// the rest of them.
    fn renew_known(&mut self, spaces: &[&ProcessMemory], total: u64) {
        let earlier = |process: &i32| {
            let part = self.known.get(process)?;
            (self.counted.get(process) == Some(part)).then_some(part.proportional)
        };
        let mut certain = total - spaces.iter().filter_map(|one| earlier(&one.process)).sum::<u64>();
        let old: Vec<_> = spaces.iter().filter(|one| earlier(&one.process).is_some()).collect();
        for one in old {
            if certain > self.limit || self.is_late() {
                return;
            }
            self.known.remove(&one.process);
            if let Some(count) = self.counted.get_mut(&one.process) {
                count.proportional = one.proportional();
                certain += count.proportional;
            }
        }
    }

    /// Counts the counted processes again. A process that forks between the first look at it and the one at its child would
    /// otherwise count with more than its part of the pages that both share.
    fn recount(&mut self, spaces: &[&ProcessMemory]) {
        for one in spaces {
            if self.is_late() {
                return;
            }
            if let Some(count) = self.counted.get_mut(&one.process) {
                count.proportional = one.proportional();
            }
        }
    }

    /// Forgets the counted processes that have ended.
    fn forget_ended(&mut self) {
        self.counted.retain(|process, _| ProcessMemory::read(*process).is_some_and(|now| now.size > 0));
    }

    /// Counts the anonymous memory of a process, with each page that forked processes share divided among them.
    fn count_anonymous_part(&mut self, one: &ProcessMemory, faults: u64) {
        let known = self.known.get(&one.process).copied();
        let proportional = match known {
            Some(known) if (known.faults, known.anonymous) == (faults, one.anonymous) => known.proportional,
            _ if !self.is_late() => one.proportional(),
            Some(known) => {
                let growth = one.anonymous.saturating_sub(known.anonymous)
                    + faults.checked_sub(known.faults).unwrap_or(faults) * FAULT_BYTES;
                one.anonymous.min(known.proportional + growth)
            }
            None => one.anonymous,
        };
        let count = ProcessCount { faults, anonymous: one.anonymous, proportional };
        self.counted.insert(one.process, count);
    }
}

#[cfg(test)]
mod tests {
    use super::super::DEFAULT_MAX_MAPPINGS;
    use super::*;

    fn count(faults: u64, anonymous: u64, proportional: u64) -> ProcessCount {
        ProcessCount { faults, anonymous, proportional }
    }

    fn counter(limit: u64, deadline: Duration) -> ExactCounter<'static> {
        ExactCounter {
            limit,
            deadline,
            max_mappings: DEFAULT_MAX_MAPPINGS,
            known: HashMap::new(),
            counted: HashMap::new(),
            begun: Duration::ZERO,
            looked: Instant::now(),
            processes_cost: Duration::ZERO,
            recent_mapped: None,
            mapped: None,
            shared: Box::leak(Box::default()),
            depths: Box::leak(Box::default()),
        }
    }

    #[test]
    fn an_exact_count_stops_at_the_limit() {
        let own = std::process::id() as i32;
        let this = ProcessMemory::read(own).unwrap();
        let over = counter(0, Duration::MAX).count(vec![this.clone()], &HashMap::new(), 0);
        let MemoryVerdict::Over { total: 1.., largest: Some(largest) } = over else { panic!("{over:?}") };
        assert_eq!(largest.process, own);
        let all = |processes| match counter(u64::MAX, Duration::MAX).count(processes, &HashMap::new(), 0) {
            MemoryVerdict::Within(total) => total,
            over => panic!("{over:?}"),
        };
        // The same address space counts once.
        let (once, twice) = (all(vec![this.clone()]), all(vec![this.clone(), this]));
        assert!(once > 0 && twice < once + once / 2, "{once} {twice}");
    }

    #[test]
    fn an_earlier_count_is_no_reason_to_kill() {
        let own = std::process::id() as i32;
        let this = ProcessMemory::read(own).unwrap();
        let count_with = |earlier: u64, deadline| {
            let mut counter = counter(1 << 40, deadline);
            counter.known.insert(own, count(7, this.anonymous, earlier));
            counter.count(vec![this.clone()], &[(own, 7)].into(), 0)
        };
        // The process has had no fault since, but it shares its pages with more processes now.
        let verdict = count_with(2 << 40, Duration::MAX);
        assert!(matches!(verdict, MemoryVerdict::Within(..=0xffff_ffff)), "{verdict:?}");
        let verdict = count_with(1 << 39, Duration::MAX);
        assert!(matches!(verdict, MemoryVerdict::Within(total) if total >= 1 << 39), "{verdict:?}: no need to count");
        let verdict = count_with(2 << 40, Duration::ZERO);
        assert!(matches!(verdict, MemoryVerdict::Over { .. }), "{verdict:?}: no time to count");
    }

    /// A process that was counted alone may have forked before its child was counted.
    #[test]
    fn an_excess_is_counted_twice() {
        let own = std::process::id() as i32;
        let this = ProcessMemory::read(own).unwrap();
        let judge_with = |deadline| {
            let mut counter = counter(1 << 40, deadline);
            counter.counted.insert(own, count(7, this.anonymous, 2 << 40));
            counter.judge(&[&this], 0)
        };
        let verdict = judge_with(Duration::MAX);
        assert!(matches!(verdict, MemoryVerdict::Within(..=0xffff_ffff)), "{verdict:?}");
        let verdict = judge_with(Duration::ZERO);
        assert!(matches!(verdict, MemoryVerdict::Over { .. }), "{verdict:?}: no time to count");
    }

    #[test]
    fn what_there_is_no_time_to_count_counts_with_its_upper_bound() {
        let mut late = counter(u64::MAX, Duration::ZERO);
        late.known.insert(2, count(10, 800, 100));
        late.known.insert(3, count(10, 800, 100));
        let one = |process| ProcessMemory { process, anonymous: 800, ..ProcessMemory::default() };
        let mut part = |process, faults| {
            late.count_anonymous_part(&one(process), faults);
            late.counted[&process].proportional
        };
        assert_eq!(part(1, 5), 800, "not counted before");
        assert_eq!(part(2, 10), 100, "no fault since");
        assert_eq!(part(3, 11), 800, "a fault may have added a page");
        let own = std::process::id() as i32;
        let this = ProcessMemory { process: own, thread: own, unexplained: 5000, ..one(0) };
        let spent = MappingsBudget { end_of_patience: Duration::ZERO, end: Duration::ZERO };
        assert_eq!(this.read_mappings(&mut HashMap::new(), spent), None);
    }
}
