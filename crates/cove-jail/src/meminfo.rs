//! The lines of `/proc/meminfo`.

/// Returns a value in KiB, or None if the text does not have it.
pub fn meminfo_kib(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}
