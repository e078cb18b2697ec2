//! How much memory is left to this process: of the machine, as the kernel estimates it, or of a cgroup that it is in, such
//! as that of a container.

use std::fs;
use std::path::Path;

use cove_jail::facts::own_memory_cgroups;
use cove_jail::meminfo::meminfo_kib;

/// The memory of the machine or of a cgroup, in KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryHeadroom {
    /// What new programs can have without swapping.
    pub available: u64,
    pub total: u64,
}

impl MemoryHeadroom {
    /// Returns the memory of the machine, or of the cgroup with less of its own left. Returns None if `/proc/meminfo` does
    /// not say.
    pub fn of_this_process() -> Option<Self> {
        let machine = Self::parse(&fs::read_to_string("/proc/meminfo").ok()?)?;
        let cgroups = own_memory_cgroups();
        Some(cgroups.iter().filter_map(|folder| Self::of_cgroup(folder)).fold(machine, Self::scarcer))
    }

    fn parse(meminfo: &str) -> Option<Self> {
        Some(Self { available: meminfo_kib(meminfo, "MemAvailable")?, total: meminfo_kib(meminfo, "MemTotal")? })
    }

    /// Reads the files of a cgroup of version 2 or 1. Returns None if it has no limit.
    fn of_cgroup(folder: &Path) -> Option<Self> {
        let read = |file: &str| fs::read_to_string(folder.join(file)).ok();
        let bytes = |file: &str| read(file)?.trim().parse::<u64>().ok();
        let pair = |limit: &str, used: &str| bytes(limit).zip(bytes(used));
        let (limit, used) =
            pair("memory.max", "memory.current").or_else(|| pair("memory.limit_in_bytes", "memory.usage_in_bytes"))?;
        // Pages of files count as used, but make room. The counts of version 1 that include the cgroups below say `total`.
        let stat = read("memory.stat").unwrap_or_default();
        let value = |name: &str| stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
        let cached = |name: &str| value(&format!("total_{name}")).or_else(|| value(name)).unwrap_or(0);
        let held = used.saturating_sub(cached("inactive_file") + cached("active_file"));
        Some(Self { available: limit.saturating_sub(held) / 1024, total: limit / 1024 })
    }

    /// Returns the one with the smaller part left.
    fn scarcer(self, other: Self) -> Self {
        let part = |one: Self, other: Self| u128::from(one.available) * u128::from(other.total);
        if part(other, self) < part(self, other) { other } else { self }
    }

    /// True if less than a tenth is left: nothing should be started ahead of its use.
    pub fn is_scarce(self) -> bool {
        self.available < self.total / 10
    }

    /// True if less than a twentieth is left: what was started ahead of its use should end.
    pub fn is_exhausted(self) -> bool {
        self.available < self.total / 20
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headroom_is_read_from_meminfo() {
        let text = "MemTotal:       1000 kB\nMemFree:  1 kB\nMemAvailable:    99 kB\n";
        let headroom = MemoryHeadroom::parse(text).unwrap();
        assert_eq!(headroom, MemoryHeadroom { available: 99, total: 1000 });
        assert!(headroom.is_scarce() && !headroom.is_exhausted());
        assert!(MemoryHeadroom { available: 49, ..headroom }.is_exhausted());
        assert!(!MemoryHeadroom { available: 100, ..headroom }.is_scarce());
        assert_eq!(MemoryHeadroom::parse("MemTotal: 1000 kB\n"), None);
        assert!(MemoryHeadroom::of_this_process().is_some());
    }

    /// Returns what a cgroup with these files has left.
    fn of_files(files: &[(&str, &str)]) -> Option<MemoryHeadroom> {
        let folder = tempfile::tempdir().unwrap();
        files.iter().for_each(|(name, text)| fs::write(folder.path().join(name), text).unwrap());
        MemoryHeadroom::of_cgroup(folder.path())
    }

    #[test]
    fn headroom_of_a_cgroup_leaves_out_the_pages_of_files() {
        let mib = |count: u64| (count << 20).to_string();
        let found =
            |available: u64, total: u64| Some(MemoryHeadroom { available: available << 10, total: total << 10 });
        let stat = format!("anon 1\ninactive_file {}\nactive_file {}\n", mib(100), mib(50));
        let files = [("memory.max", &*mib(512)), ("memory.current", &*mib(500)), ("memory.stat", &*stat)];
        assert_eq!(of_files(&files), found(162, 512));
        assert_eq!(of_files(&files[..2]), found(12, 512));
        assert_eq!(of_files(&[("memory.max", "max\n"), files[1]]), None);
        // Version 1: the counts of the cgroup alone are not those of its limit.
        let stat = format!("inactive_file 1\nactive_file 1\ntotal_inactive_file {}\ntotal_active_file 0\n", mib(100));
        let files =
            [("memory.limit_in_bytes", &*mib(512)), ("memory.usage_in_bytes", &*mib(400)), ("memory.stat", &*stat)];
        assert_eq!(of_files(&files), found(212, 512));
        assert_eq!(of_files(&[]), None);
        assert_eq!(of_files(&[("memory.max", "x"), ("memory.current", "")]), None);
    }

    #[test]
    fn the_scarcer_memory_counts() {
        let [machine, cgroup] =
            [(9000, 10_000), (90, 1000)].map(|(available, total)| MemoryHeadroom { available, total });
        assert_eq!((machine.scarcer(cgroup), cgroup.scarcer(machine)), (cgroup, cgroup));
        // Version 1 has a huge number for no limit.
        let unlimited = MemoryHeadroom { available: u64::MAX >> 11, total: u64::MAX >> 11 };
        assert_eq!((machine.scarcer(unlimited), unlimited.scarcer(machine)), (machine, machine));
    }
}
