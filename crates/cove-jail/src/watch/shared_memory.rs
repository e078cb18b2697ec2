//! Shared memory that code has touched and unmapped again.
//!
//! A shared anonymous mapping is a file without a name, which lives as long as any page of it is mapped. If code unmaps
//! all but its first page, the other pages stay, and no count of a process shows them. Two things do:
//!
//! - An earlier look, if it saw the mapping while it was whole. So each file counts with the most that was ever seen.
//! - The machine's count of shared memory. What it grew by between two looks, beyond the sandbox's own file systems,
//!   belongs to the files that are new since, as far as these do not explain it by their size. Other programs may have
//!   caused some of it, so a sandbox without new files is not charged.

use std::collections::{BTreeSet, HashMap};
use std::fs;

use crate::meminfo::meminfo_kib;

/// How much the machine's shared memory must have changed before mappings are read because of it.
const STEP: i64 = 4 << 20;

/// The nameless files of a sandbox.
#[derive(Debug, Default)]
pub(super) struct SharedMemory {
    /// The machine's shared memory beyond the sandbox's file systems, at the last look.
    elsewhere: Option<i64>,
    /// What the machine had in swap then, which may be shared memory too.
    swapped: u64,
    /// How much that has grown since mappings were last read.
    growth: i64,
    /// The files by inode, each with the most of it that was ever mapped when mappings were read.
    reaches: HashMap<u64, u64>,
    hidden: Vec<HiddenPages>,
    /// Mappings could not all be read, so that any growth may be the sandbox's.
    is_unread: bool,
}

/// Pages that belong to some of these files, beyond what was mapped of them.
#[derive(Debug)]
struct HiddenPages {
    files: BTreeSet<u64>,
    bytes: u64,
}

impl SharedMemory {
    /// Takes note of the machine's shared memory and of the size of the sandbox's file systems. Returns whether mappings
    /// should be read.
    pub(super) fn observe(&mut self, machine: Option<MachineMemory>, file_systems: u64) -> bool {
        let Some(machine) = machine else { return false };
        self.swapped = machine.swapped;
        let elsewhere = machine.shared as i64 - file_systems as i64;
        self.growth += elsewhere - self.elsewhere.replace(elsewhere).unwrap_or(elsewhere);
        self.growth >= STEP || self.growth <= -STEP && !self.reaches.is_empty()
    }

    /// Returns what the files hold at most, as far as it is known.
    pub(super) fn bytes(&self) -> u64 {
        self.reaches.values().sum::<u64>() + self.bound(self.hidden.iter(), 0)
    }

    /// Returns what files hold beyond what was mapped of them: `hidden`, the growth that may be the sandbox's, and what
    /// processes with mappings that were not read can have. It is no more than there is on the machine.
    fn bound<'a>(&self, hidden: impl Iterator<Item = &'a HiddenPages>, unread: u64) -> u64 {
        let growth = if self.is_unread { u64::try_from(self.growth).unwrap_or(0) } else { 0 };
        let all = hidden.map(|pages| pages.bytes).sum::<u64>() + growth + unread;
        self.elsewhere.map_or(all, |bytes| all.min(u64::try_from(bytes).unwrap_or(0) + self.swapped))
    }

    /// Takes note that mappings could not all be read.
    pub(super) fn give_up(&mut self) {
        self.is_unread = true;
    }

    /// Returns the same for the files among `seen`, which has the present reach of each, and for processes with this much
    /// in mappings that were not read.
    pub(super) fn bytes_of(&self, seen: &HashMap<u64, u64>, unread: u64) -> u64 {
        let reach = |(file, now): (&u64, &u64)| *self.reaches.get(file).unwrap_or(now).max(now);
        let hidden = self.hidden.iter().filter(|pages| pages.files.iter().any(|file| seen.contains_key(file)));
        seen.iter().map(reach).sum::<u64>() + self.bound(hidden, unread)
    }

    /// Takes note of all files that are mapped now, each with its present reach.
    pub(super) fn update(&mut self, seen: &HashMap<u64, u64>) {
        self.is_unread = false;
        // What has gone may have made room for what is new.
        let before = self.bytes();
        self.hidden.retain(|pages| pages.files.iter().any(|file| seen.contains_key(file)));
        self.reaches.retain(|file, _| seen.contains_key(file));
        let gone = before - self.bytes();
        let new: BTreeSet<u64> = seen.keys().filter(|file| !self.reaches.contains_key(file)).copied().collect();
        let explained: u64 = new.iter().map(|file| seen[file]).sum();
        let bytes = gone.saturating_add_signed(self.growth).saturating_sub(explained);
        if !new.is_empty() && bytes > 0 {
            self.hidden.push(HiddenPages { files: new, bytes });
        }
        for (file, now) in seen {
            let reach = self.reaches.entry(*file).or_default();
            *reach = (*now).max(*reach);
        }
        self.growth = 0;
    }
}

/// What the kernel says about the memory of the machine, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MachineMemory {
    /// Shared memory without the files in `/dev/shm`: they are not the sandbox's, and other programs may fill it faster than
    /// their share of the rest can be told.
    shared: u64,
    swapped: u64,
}

impl MachineMemory {
    /// Reads it, if the kernel says it.
    pub(super) fn read() -> Option<Self> {
        let named = rustix::fs::statfs("/dev/shm").ok().filter(|found| found.f_type as u32 == libc::TMPFS_MAGIC as u32);
        let named = named.map_or(0, |found| (found.f_blocks - found.f_bfree) * found.f_bsize as u64);
        Self::parse(&fs::read_to_string("/proc/meminfo").ok()?, named)
    }

    fn parse(meminfo: &str, named: u64) -> Option<Self> {
        let field = |name: &str| Some(meminfo_kib(meminfo, name)? << 10);
        let swapped = field("SwapTotal")?.saturating_sub(field("SwapFree")?);
        Some(Self { shared: field("Shmem")?.saturating_sub(named), swapped })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn machine(shared: u64) -> Option<MachineMemory> {
        Some(MachineMemory { shared: shared * MIB, swapped: 0 })
    }

    fn files(files: &[(u64, u64)]) -> HashMap<u64, u64> {
        files.iter().map(|&(file, reach)| (file, reach * MIB)).collect()
    }

    #[test]
    fn pages_that_were_unmapped_between_looks_count() {
        let mut memory = SharedMemory::default();
        assert!(!memory.observe(machine(500), 100 * MIB));
        // The sandbox's own file systems explain this.
        assert!(!memory.observe(machine(600), 200 * MIB));
        assert!(memory.observe(machine(650), 200 * MIB));
        memory.update(&files(&[(1, 2)]));
        assert_eq!(memory.bytes(), 50 * MIB);
        assert!(!memory.observe(machine(650), 200 * MIB));
        // A second time, while a file that was seen goes.
        assert!(memory.observe(machine(670), 200 * MIB));
        memory.update(&files(&[(1, 2), (2, 20)]));
        assert_eq!(memory.bytes(), 70 * MIB);
        assert!(!memory.observe(machine(670), 200 * MIB));
        memory.update(&files(&[(1, 2), (3, 1)]));
        assert_eq!(memory.bytes(), 70 * MIB);
        assert_eq!(memory.bytes_of(&files(&[(1, 2)]), 0), 50 * MIB);
        // There is no more than that on the machine.
        memory.observe(machine(230), 200 * MIB);
        assert_eq!(memory.bytes(), (30 + 2 + 1) * MIB);
        memory.update(&files(&[]));
        assert_eq!(memory.bytes(), 0);
    }

    #[test]
    fn a_file_counts_as_far_as_it_was_ever_mapped() {
        let mut memory = SharedMemory::default();
        memory.update(&files(&[(1, 64)]));
        assert_eq!(memory.bytes_of(&files(&[(1, 1), (2, 8)]), 0), 72 * MIB);
        memory.update(&files(&[(1, 1)]));
        assert_eq!(memory.bytes(), 64 * MIB);
    }

    #[test]
    fn what_others_use_is_not_charged() {
        let mut memory = SharedMemory::default();
        memory.update(&files(&[(1, 8)]));
        memory.observe(machine(0), 0);
        assert!(memory.observe(machine(900), 0));
        memory.update(&files(&[(1, 8)]));
        assert_eq!(memory.bytes(), 8 * MIB);
        // A large file goes and a small one comes.
        assert!(memory.observe(machine(892), 0));
        memory.update(&files(&[(2, 1)]));
        assert_eq!(memory.bytes(), MIB);
        // Unless it cannot be known.
        memory.observe(machine(992), 0);
        memory.give_up();
        assert_eq!(memory.bytes(), 101 * MIB);
    }

    /// A process with a large library whose mappings there was no time to read has not all of that in shared memory.
    #[test]
    fn what_was_not_read_is_no_more_than_there_is() {
        let mut memory = SharedMemory::default();
        assert_eq!(memory.bytes_of(&files(&[]), 300 * MIB), 300 * MIB, "the kernel has said nothing");
        memory.observe(machine(110), 100 * MIB);
        assert_eq!(memory.bytes_of(&files(&[]), 300 * MIB), 10 * MIB);
        assert_eq!(memory.bytes_of(&files(&[(1, 7)]), 3 * MIB), 10 * MIB);
        memory.observe(Some(MachineMemory { shared: 110 * MIB, swapped: 50 * MIB }), 100 * MIB);
        assert_eq!(memory.bytes_of(&files(&[]), 300 * MIB), 60 * MIB);
    }

    #[test]
    fn reads_the_memory_of_the_machine() {
        let text = "MemTotal: 900 kB\nSwapCached: 4 kB\nSwapTotal: 100 kB\nSwapFree: 30 kB\nShmem: 50 kB\nShmemHugePages: 0 kB\n";
        let expected = MachineMemory { shared: 40 << 10, swapped: 70 << 10 };
        assert_eq!(MachineMemory::parse(text, 10 << 10), Some(expected));
        assert_eq!(MachineMemory::parse("MemTotal: 900 kB\n", 0), None);
    }

    #[test]
    fn files_of_neighbours_are_not_counted() {
        let before = MachineMemory::read().unwrap().shared;
        let Ok(mut neighbour) = tempfile::tempfile_in("/dev/shm") else { return };
        std::io::Write::write_all(&mut neighbour, &vec![1; 48 << 20]).unwrap();
        assert!(MachineMemory::read().unwrap().shared < before + (32 << 20));
    }
}
