//! How much memory this machine has left, as the kernel estimates it.

use std::fs;

use cove_jail::meminfo::meminfo_kib;

/// The memory of this machine, in KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryHeadroom {
    /// What new programs can have without swapping.
    pub available: u64,
    pub total: u64,
}

impl MemoryHeadroom {
    /// Reads `/proc/meminfo`. Returns None if it does not say.
    pub fn of_machine() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/meminfo").ok()?)
    }

    fn parse(meminfo: &str) -> Option<Self> {
        Some(Self { available: meminfo_kib(meminfo, "MemAvailable")?, total: meminfo_kib(meminfo, "MemTotal")? })
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
        assert!(MemoryHeadroom::of_machine().is_some());
    }
}
