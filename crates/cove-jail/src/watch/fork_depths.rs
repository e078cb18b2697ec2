//! How deep in forks the processes of a sandbox are, which decides what the kernel needs for a mapping.
//!
//! fork(2) copies for each mapping with anonymous pages the records (`anon_vma_chain`) by which its pages can be found from
//! every process that it was forked from, and adds one. So M mappings in N processes, each forked from the one before,
//! cost M times N * N / 2 records, of which no file of proc(5) tells. execve(2) starts again without any.
//!
//! A process keeps the depth that it had when it was first seen, which is one more than that of its parent, also if it
//! gets another parent later. If its parent had ended before, it may come from any process with the same program in memory: then it
//! counts as deeper than all of them. The kernel reuses the records of processes that have ended, so there are never many
//! more than one for each that lives.

use std::collections::HashMap;

use super::processes::ProcessStat;

/// What the kernel needs for a mapping of a process that was not forked: its own record and those of its pages.
pub(super) const MAPPING_BYTES: u64 = 384;
/// What it needs for each process that this one was forked from.
const CHAIN_BYTES: u64 = 64;

/// The processes of the last look.
#[derive(Debug, Default)]
pub(super) struct ForkDepths {
    known: HashMap<i32, ForkedProcess>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ForkedProcess {
    born: u64,
    stack: u64,
    depth: u64,
}

impl ForkDepths {
    /// Takes note of all processes, each after its parent.
    pub(super) fn update(&mut self, all: &[ProcessStat]) {
        let before = std::mem::take(&mut self.known);
        let mut relatives: HashMap<u64, u64> = HashMap::new();
        let mut deepest: HashMap<u64, u64> = HashMap::new();
        for one in before.values() {
            let depth = deepest.entry(one.stack).or_default();
            *depth = one.depth.max(*depth);
        }
        all.iter().for_each(|one| *relatives.entry(one.stack).or_default() += 1);
        for one in all {
            let is_relative = |other: &&ForkedProcess| other.stack == one.stack;
            let same = before.get(&one.process).filter(is_relative).filter(|earlier| earlier.born == one.born);
            let parent = || self.known.get(&one.parent).or(before.get(&one.parent)).filter(is_relative);
            let depth = match (same, deepest.get(&one.stack)) {
                (Some(earlier), _) => earlier.depth,
                (None, Some(deepest)) => parent().map_or(*deepest, |parent| parent.depth) + 1,
                (None, None) => 0,
            };
            // With one child that lives for each that has ended, twice as many can be left.
            let depth = depth.min(2 * relatives[&one.stack]);
            self.known.insert(one.process, ForkedProcess { born: one.born, stack: one.stack, depth });
            let deepest = deepest.entry(one.stack).or_default();
            *deepest = depth.max(*deepest);
        }
    }

    /// Returns what the kernel needs for each mapping of a process.
    pub(super) fn mapping_bytes(&self, process: i32) -> u64 {
        MAPPING_BYTES + self.forked_bytes(process)
    }

    /// Returns the part of that which comes from forks.
    pub(super) fn forked_bytes(&self, process: i32) -> u64 {
        self.known.get(&process).map_or(0, |one| one.depth * CHAIN_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(process: i32, parent: i32, stack: u64) -> ProcessStat {
        ProcessStat { process, parent, stack, born: process as u64, ..ProcessStat::default() }
    }

    fn depths(known: &ForkDepths, processes: &[i32]) -> Vec<u64> {
        processes.iter().map(|process| known.known[process].depth).collect()
    }

    #[test]
    fn an_orphan_keeps_its_depth() {
        let mut found = ForkDepths::default();
        let init = process(1, 0, 10);
        let chain: Vec<ProcessStat> = (2..9).map(|number| process(number, number - 1, 20)).collect();
        found.update(&[&[init], &chain[..]].concat());
        assert_eq!(depths(&found, &[1, 2, 3, 8]), [0, 0, 1, 6]);
        assert_eq!((found.mapping_bytes(2), found.mapping_bytes(8)), (384, 384 + 6 * 64));
        let orphans: Vec<ProcessStat> = (3..9).map(|number| process(number, 1, 20)).collect();
        found.update(&[&[init], &orphans[..]].concat());
        assert_eq!(depths(&found, &[3, 8]), [1, 6]);
        // Its parent came and went between two looks.
        found.update(&[&[init, process(30, 1, 20)], &orphans[..]].concat());
        assert_eq!(depths(&found, &[30, 3, 8]), [7, 1, 6]);
        // Its parent ended with the look.
        found.update(&[&[init, process(31, 3, 20)], &orphans[1..]].concat());
        assert_eq!(depths(&found, &[31, 8]), [2, 6]);
    }

    #[test]
    fn workers_and_programs_are_not_deep() {
        let mut found = ForkDepths::default();
        let (init, master) = (process(1, 0, 10), process(2, 1, 20));
        let workers: Vec<ProcessStat> = (3..43).map(|number| process(number, 2, 20)).collect();
        found.update(&[&[init, master], &workers[..]].concat());
        assert!(workers.iter().all(|one| found.known[&one.process].depth == 1), "{found:?}");
        // One executes another program, and a number comes to mean another process.
        let reused = ProcessStat { born: 500, ..process(4, 1, 40) };
        found.update(&[init, master, process(3, 2, 30), reused]);
        assert_eq!(depths(&found, &[2, 3, 4]), [0, 0, 0]);
    }

    #[test]
    fn depth_is_bounded_by_those_that_live() {
        let mut found = ForkDepths::default();
        let init = process(1, 0, 10);
        // Each ends as soon as it has forked the next.
        for number in 2..200 {
            found.update(&[init, process(number, 1, 20)]);
        }
        assert_eq!(depths(&found, &[199]), [2]);
    }
}
