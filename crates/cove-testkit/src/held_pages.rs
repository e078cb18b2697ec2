//! What processes hold in memory: proportional and private pages, from proc_pid_smaps(5).

use std::collections::HashMap;
use std::fs;

/// What processes hold, in kilobytes.
#[derive(Debug, Clone, Copy)]
pub struct HeldPages {
    /// Pages that several processes share count in parts.
    pub proportional: u64,
    pub private: u64,
}

impl HeldPages {
    /// The pages of several processes. Panics if they cannot be read.
    pub fn of(pids: &[u32]) -> Self {
        let sum = |part: fn(&Self) -> u64| pids.iter().map(|&pid| part(&Self::of_process(pid))).sum();
        let held = Self { proportional: sum(|one| one.proportional), private: sum(|one| one.private) };
        assert!(held.private > 0, "the memory of {pids:?} cannot be read");
        held
    }

    fn of_process(pid: u32) -> Self {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        let of_key = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
            line.trim().trim_end_matches("kB").trim().parse().unwrap_or(0)
        };
        Self { proportional: of_key("Pss:"), private: of_key("Private_Clean:") + of_key("Private_Dirty:") }
    }
}

/// Returns a process and everything that it started.
pub fn process_tree(root: u32) -> Vec<u32> {
    let pids = all_processes();
    let parents: HashMap<u32, u32> = pids.iter().filter_map(|&pid| Some((pid, parent(pid)?))).collect();
    let is_inside = |pid: u32| std::iter::successors(Some(pid), |pid| parents.get(pid).copied()).any(|pid| pid == root);
    pids.into_iter().filter(|&pid| is_inside(pid)).collect()
}

/// Returns all processes of the machine.
pub fn all_processes() -> Vec<u32> {
    let entries = fs::read_dir("/proc").expect("it is mounted").flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}
