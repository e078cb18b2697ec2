//! Identifies the Cove process that a container belongs to, and tells whether that process is still alive. The identity
//! is stored in a label, because a killed process leaves nothing else behind.

use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The longest life of a container. It ends then even if the state of its process is unknown.
pub(super) const MAX_CONTAINER_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// A process, identified by the boot, the PID namespace, the PID and the start time, so that a reused PID does not
/// match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProcessIdentity {
    boot: String,
    /// The inode of the PID namespace that `pid` belongs to.
    pid_namespace: u64,
    pid: u32,
    start_time: u64,
}

/// Whether the process that created a container is alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProcessLiveness {
    Alive,
    Dead,
    /// The process is, or was, in a boot or namespace that this process cannot see.
    Unknown,
}

impl ProcessIdentity {
    /// Returns the identity of this process.
    pub(super) fn current() -> Self {
        Self::for_process(std::process::id())
    }

    pub(super) fn for_process(pid: u32) -> Self {
        Self { boot: boot_id(), pid_namespace: pid_namespace(), pid, start_time: process_start_time(pid).unwrap_or(0) }
    }

    /// Returns whether the process is alive, or `Unknown` if it belongs to another boot or PID namespace or is hidden.
    pub(super) fn liveness(&self) -> ProcessLiveness {
        if self.boot != boot_id() || self.pid_namespace != pid_namespace() {
            return ProcessLiveness::Unknown;
        }
        match process_start_time(self.pid) {
            Some(began) if began == self.start_time => ProcessLiveness::Alive,
            // The kernel may hide the processes of other users.
            None if process_exists(self.pid) => ProcessLiveness::Unknown,
            _ => ProcessLiveness::Dead,
        }
    }

    /// Parses the label's text. Returns `None` for any text that `Display` would not have written exactly so.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let [boot, place, process, began] = text.split('/').collect::<Vec<_>>()[..] else { return None };
        let is_boot = boot.len() == 36 && boot.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
        let parsed = Self {
            boot: boot.to_owned(),
            pid_namespace: place.parse().ok()?,
            pid: process.parse().ok()?,
            start_time: began.parse().ok()?,
        };
        // Accept only a text that Cove itself would write.
        (is_boot && parsed.to_string() == text).then_some(parsed)
    }
}

impl std::fmt::Display for ProcessIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}/{}/{}", self.boot, self.pid_namespace, self.pid, self.start_time)
    }
}

fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

fn pid_namespace() -> u64 {
    use std::os::unix::fs::MetadataExt;
    fs::metadata("/proc/self/ns/pid").map(|file| file.ino()).unwrap_or(0)
}

/// Returns true if the process exists but belongs to another user, so that this one may not signal it.
fn process_exists(process: u32) -> bool {
    let pid = i32::try_from(process).ok().and_then(rustix::process::Pid::from_raw);
    let asked = pid.map(rustix::process::test_kill_process);
    matches!(asked, Some(Err(rustix::io::Errno::PERM)))
}

/// Returns the start time of a process in clock ticks since boot, or `None` if there is no such process.
fn process_start_time(process: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The process name in parentheses may contain any character, including `)`.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    // A zombie has ended, even if its parent has not waited for it yet.
    if matches!(fields.next(), Some("Z" | "X")) {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// Returns the current time in seconds since 1970.
pub(super) fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map(|since| since.as_secs()).unwrap_or(0)
}

/// Parses a time such as `2026-01-02T03:04:05.678+09:00`. Returns seconds since 1970, or nothing for an earlier time.
pub(super) fn parse_timestamp(time: &str) -> Option<u64> {
    u64::try_from(chrono::DateTime::parse_from_rfc3339(time).ok()?.timestamp()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_timestamps_in_any_time_zone() {
        for (time, expected) in [
            ("1970-01-01T00:00:00Z", Some(0)),
            ("2000-02-29T12:00:00Z", Some(951_825_600)),
            ("2026-01-02T03:04:05.123456789Z", Some(1_767_323_045)),
            ("2026-01-02T12:04:05.123456789+09:00", Some(1_767_323_045)),
            ("2026-01-01T21:34:05-05:30", Some(1_767_323_045)),
            ("0001-01-01T00:00:00Z", None),
            ("", None),
            ("2026-01-02", None),
            ("2026-01-02T03:04:05", None),
            ("2026-13-02T03:04:05Z", None),
            ("2026-00-02T03:04:05Z", None),
            ("2026-02-30T03:04:05Z", None),
            ("2026-01-02T24:04:05Z", None),
            ("2026-01-02T03:60:05Z", None),
            ("2026-01-02T03:04:05+99:00", None),
        ] {
            assert_eq!(parse_timestamp(time), expected, "{time}");
        }
    }

    #[test]
    fn process_identity_matches_only_its_process() {
        let own = ProcessIdentity::current();
        assert_eq!(ProcessIdentity::parse(&own.to_string()), Some(own.clone()));
        assert_eq!(own.liveness(), ProcessLiveness::Alive);
        let later = ProcessIdentity { start_time: own.start_time + 1, ..own.clone() };
        assert_eq!(later.liveness(), ProcessLiveness::Dead, "its number was given to another");
        let elsewhere = ProcessIdentity { pid_namespace: own.pid_namespace + 1, ..own.clone() };
        assert_eq!(elsewhere.liveness(), ProcessLiveness::Unknown);
    }

    #[test]
    fn an_ended_process_is_dead() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let process = child.id();
        let began = (0..100).find_map(|_| process_start_time(process)).unwrap_or(1);
        let instance = ProcessIdentity { pid: process, start_time: began, ..ProcessIdentity::current() };
        child.wait().unwrap();
        assert_eq!(instance.liveness(), ProcessLiveness::Dead);
    }

    #[test]
    fn parses_only_own_instance_labels() {
        let own = ProcessIdentity::current().to_string();
        for foreign in [
            "",
            "1",
            "a/b/c/d",
            &format!("{own}/1"),
            &own.replacen('/', "/+", 1),
            &own.to_uppercase().replacen('-', "", 1),
        ] {
            assert_eq!(ProcessIdentity::parse(foreign), None, "{foreign}");
        }
    }
}
