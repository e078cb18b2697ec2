//! proc(5): what the kernel says about the memory of the processes of a sandbox.

use std::collections::HashMap;
use std::fs;
use std::io::Read;
use std::time::Duration;

use super::processor_time;
use crate::sys;

/// The length of the list of mappings that an ordinary process has at most: about 1,300 lines.
const ORDINARY_LIST: usize = 128 << 10;

/// What proc_pid_status(5) says about the memory of a process, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ProcessMemory {
    pub(super) process: i32,
    /// The thread through which the kernel shows its memory.
    pub(super) thread: i32,
    /// Anonymous pages, also those in swap. Pages of program files are the host's.
    pub(super) anonymous: u64,
    /// Pages of shared memory and of files in the sandbox's own file systems.
    pub(super) shared: u64,
    /// Page tables, and huge pages of the machine's pool, which are in no other count.
    pub(super) tables: u64,
    pub(super) threads: u64,
    /// All mappings together.
    pub(super) size: u64,
    /// The part of `size` that can be shared memory: neither private and writable, nor a program or a library.
    pub(super) unexplained: u64,
}

impl ProcessMemory {
    /// Reads it. Returns `None` for a process that has ended.
    pub(super) fn read(process: i32) -> Option<Self> {
        let read_thread = |thread: i32| {
            let text = read_lossy(&format!("/proc/{thread}/status"))?;
            Some(Self { process, thread, ..Self::parse(&text) })
        };
        let found = read_thread(process)?;
        // The first thread may have ended before the others. Then it shows nothing, and they have all the memory.
        if found.size > 0 || found.threads < 2 {
            return Some(found);
        }
        let threads = fs::read_dir(format!("/proc/{process}/task")).ok()?.flatten();
        let numbers = threads.filter_map(|thread| thread.file_name().to_str()?.parse().ok());
        numbers.filter_map(read_thread).find(|one| one.size > 0).or(Some(found))
    }

    fn parse(status: &str) -> Self {
        let mut found = Self::default();
        let mut private = 0;
        for (key, value) in status.lines().filter_map(|line| line.split_once(':')) {
            let number: u64 = value.trim().trim_end_matches(" kB").parse().unwrap_or(0);
            match key {
                "VmSize" => found.size = number << 10,
                "VmData" | "VmStk" | "VmExe" | "VmLib" => private += number << 10,
                "RssAnon" | "VmSwap" => found.anonymous += number << 10,
                "RssShmem" => found.shared = number << 10,
                "VmPTE" | "HugetlbPages" => found.tables += number << 10,
                "Threads" => found.threads = number,
                _ => {}
            }
        }
        found.unexplained = found.size.saturating_sub(private);
        found
    }

    /// Returns the anonymous memory with each page that forked processes share divided among them, or all of it if the
    /// kernel does not say. A process that has ended has none.
    pub(super) fn proportional(&self) -> u64 {
        let rollup = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.thread)).unwrap_or_default();
        let parts = rollup.lines().filter_map(|line| {
            let (key, value) = line.split_once(':')?;
            let is_counted = matches!(key, "Pss_Anon" | "SwapPss");
            is_counted.then(|| value.trim().trim_end_matches(" kB").parse::<u64>().ok())?
        });
        let sum = parts.map(|kilobytes| kilobytes << 10).reduce(|all, part| all + part);
        sum.unwrap_or_else(|| Self::read(self.process).map_or(0, |now| now.anonymous))
    }

    /// True if both are one address space, as between vfork(2) and execve(2).
    pub(super) fn shares_memory_with(&self, other: &Self) -> bool {
        Self { process: other.process, thread: other.thread, threads: other.threads, ..self.clone() } == *other
            && sys::have_same_memory(self.thread, other.thread)
    }

    /// Adds the length of each shared anonymous mapping by its inode. They are files without a name, whose pages stay
    /// when a process unmaps them, and then appear in no count of that process. So each counts once, with its whole
    /// length. Returns the number of all mappings, or `None` if the budget did not allow to read them all.
    pub(super) fn read_mappings(&self, shared: &mut HashMap<u64, u64>, budget: MappingsBudget) -> Option<u64> {
        let mut mappings = 0;
        let mut file = match fs::File::open(format!("/proc/{}/maps", self.thread)) {
            Ok(file) => file,
            // Of a program that its user may execute and not read.
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => return None,
            Err(_) => return Some(mappings),
        };
        let mut buffer = [0u8; 16 << 10];
        let mut rest = Vec::new();
        let mut length = 0;
        while budget.allows(length) {
            let Ok(count @ 1..) = file.read(&mut buffer) else { return Some(mappings) };
            length += count;
            rest.extend_from_slice(&buffer[..count]);
            let end = rest.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
            for line in String::from_utf8_lossy(&rest[..end]).lines() {
                mappings += 1;
                if let Some((inode, reach)) = parse_shared_mapping(line) {
                    let length = shared.entry(inode).or_default();
                    *length = reach.max(*length);
                }
            }
            rest.drain(..end);
        }
        None
    }
}

/// The processor time for reading the mappings of processes, by the clock of this process.
#[derive(Debug, Clone, Copy)]
pub(super) struct MappingsBudget {
    /// When only ordinary processes are still read. Those with so many mappings that reading them takes long cannot use up
    /// the time of the others.
    pub(super) end_of_patience: Duration,
    pub(super) end: Duration,
}

impl MappingsBudget {
    /// Returns whether more may be read of a process, after this much of its list.
    fn allows(&self, length: usize) -> bool {
        let now = processor_time();
        now <= self.end && (length < ORDINARY_LIST || now <= self.end_of_patience)
    }
}

/// Reads a line of proc_pid_maps(5). Returns the inode of a shared anonymous mapping and how far into it the line
/// reaches, or `None` for any other mapping.
fn parse_shared_mapping(line: &str) -> Option<(u64, u64)> {
    let line = match line.strip_suffix("/dev/zero (deleted)") {
        Some(line) => line,
        // The name that code gave to it with prctl(2), `PR_SET_VMA`, replaces that of the file.
        None => line.split_once(" [anon_shmem:")?.0,
    };
    let mut fields = line.split_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let offset = number(fields.nth(1)?)?;
    let inode = fields.nth(1)?.parse().ok()?;
    Some((inode, offset + number(end)?.checked_sub(number(start)?)?))
}

/// Reads a file that holds the name of a process, which may be any bytes. Returns `None` if the process has ended.
pub(super) fn read_lossy(file: &str) -> Option<String> {
    Some(String::from_utf8_lossy(&fs::read(file).ok()?).into_owned())
}

/// What proc_pid_stat(5) says about a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ProcessStat {
    pub(super) process: i32,
    pub(super) parent: i32,
    /// Its page faults, and those of the children that it has waited for.
    pub(super) faults: u64,
    /// When it began.
    pub(super) born: u64,
    /// Where the kernel put its stack: the same in a process and in those that it forks, and another one, by chance, after
    /// execve(2). The filter lets no process change it.
    pub(super) stack: u64,
}

impl ProcessStat {
    /// Reads it. Returns `None` for a process that has ended.
    pub(super) fn read(one: &ProcessMemory) -> Option<Self> {
        Self::parse(one.process, &read_lossy(&format!("/proc/{}/stat", one.thread))?)
    }

    /// Adds up `minflt`, `cminflt`, `majflt` and `cmajflt`. `starttime` and `startstack` are further on.
    fn parse(process: i32, stat: &str) -> Option<Self> {
        let fields: Vec<u64> = stat_fields(stat)?.map(|field| field.parse().unwrap_or(0)).collect();
        let field = |number: usize| fields.get(number - 3).copied().unwrap_or(0);
        let faults = (10..14).map(field).sum();
        Some(Self { process, parent: field(4) as i32, faults, born: field(22), stack: field(28) })
    }
}

/// Returns the fields of proc_pid_stat(5) from the third, `state`, on. The second is a name that may hold anything, also
/// parentheses and spaces.
pub(super) fn stat_fields(stat: &str) -> Option<impl Iterator<Item = &str>> {
    Some(stat.rsplit_once(')')?.1.split_whitespace())
}

pub(super) fn pid_namespace(process: i32) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(format!("/proc/{process}/ns/pid")).ok().map(|found| found.ino())
}

/// Returns a process and all its descendants. Orphans inside the sandbox become children of its pid 1, so none is
/// missed for long.
pub(super) fn descendants(root: i32) -> Vec<i32> {
    let mut found = vec![root];
    let mut next = 0;
    while let Some(&process) = found.get(next) {
        next += 1;
        let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else { continue };
        for thread in threads.flatten() {
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            found.extend(children.split_whitespace().filter_map(|child| child.parse::<i32>().ok()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognizes_shared_anonymous_mappings() {
        let shared = "7f0000000000-7f0000a00000 rw-s 00001000 00:01 1037 /dev/zero (deleted)";
        assert_eq!(parse_shared_mapping(shared), Some((1037, 0xa0_1000)));
        let named = "7f0000000000-7f0000a00000 rw-s 00001000 00:01 1037                       [anon_shmem:a /b]";
        assert_eq!(parse_shared_mapping(named), Some((1037, 0xa0_1000)));
        assert_eq!(parse_shared_mapping("7f00-7f10 r-xp 00000000 fe:00 12 /usr/bin/python3.11"), None);
        assert_eq!(parse_shared_mapping("7f00-7f10 rw-p 00000000 00:00 0 "), None);
    }

    #[test]
    fn reads_the_memory_of_a_process() {
        let status = "Name:\tVmPTE: 9\nVmSize:\t 10000 kB\nVmData:\t 1000 kB\nVmStk:\t 100 kB\nVmExe:\t 10 kB\n\
                      VmLib:\t 20 kB\nRssAnon:\t 700 kB\nRssFile:\t 5000 kB\nRssShmem:\t 30 kB\nVmPTE:\t 40 kB\n\
                      VmSwap:\t 3 kB\nHugetlbPages:\t 2 kB\nThreads:\t7\n";
        let expected = ProcessMemory {
            process: 0,
            thread: 0,
            anonymous: 703 << 10,
            shared: 30 << 10,
            tables: 42 << 10,
            threads: 7,
            size: 10_000 << 10,
            unexplained: (10_000 - 1130) << 10,
        };
        assert_eq!(ProcessMemory::parse(status), expected);
        // A kernel thread and a process that is ending have none.
        assert_eq!(ProcessMemory::parse("Name:\tx\nThreads:\t1\n").size, 0);
    }

    #[test]
    fn reads_a_process_behind_any_name() {
        let stat = "12 (a) 9 (b) S 7 2 3 0 -1 4194304 10 200 3000 40000 5 6 0 0 20 0 1 0 99 8 9 1 2 3 77 0";
        let expected = ProcessStat { process: 12, parent: 7, faults: 43_210, born: 99, stack: 77 };
        assert_eq!(ProcessStat::parse(12, stat), Some(expected));
        assert_eq!(ProcessStat::parse(12, "12 no name"), None);
    }
}
