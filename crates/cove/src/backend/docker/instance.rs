//! Which process of ours a container belongs to, and whether that process still lives. Written into a label, because a
//! killed process leaves nothing else.

use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Longest life of a container. Whatever cannot be found out about its process, it ends then.
pub(super) const LIFE: Duration = Duration::from_secs(24 * 60 * 60);

/// A process that cannot be mistaken for another: where it lives, its number there, and when it began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Instance {
    boot: String,
    /// The namespace that the process's number counts in.
    place: u64,
    process: u32,
    began: u64,
}

/// What can be said of the process of another container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    Alive,
    Dead,
    /// It is, or was, where we cannot look.
    Elsewhere,
}

impl Instance {
    /// This process.
    pub(super) fn own() -> Self {
        Self::of(std::process::id())
    }

    pub(super) fn of(process: u32) -> Self {
        Self { boot: boot(), place: place(), process, began: began(process).unwrap_or(0) }
    }

    pub(super) fn life(&self) -> Life {
        if self.boot != boot() || self.place != place() {
            return Life::Elsewhere;
        }
        match began(self.process) {
            Some(began) if began == self.began => Life::Alive,
            // Processes of other users may be hidden.
            None if exists(self.process) => Life::Elsewhere,
            _ => Life::Dead,
        }
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('/');
        let (boot, place, process, began) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let is_boot = boot.len() == 36 && boot.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
        let parsed = Self {
            boot: boot.to_owned(),
            place: place.parse().ok()?,
            process: process.parse().ok()?,
            began: began.parse().ok()?,
        };
        // Only what we could have written, to the letter.
        (is_boot && parts.next().is_none() && parsed.to_string() == text).then_some(parsed)
    }
}

impl std::fmt::Display for Instance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}/{}/{}", self.boot, self.place, self.process, self.began)
    }
}

fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

fn place() -> u64 {
    use std::os::unix::fs::MetadataExt;
    fs::metadata("/proc/self/ns/pid").map(|file| file.ino()).unwrap_or(0)
}

/// Whether there is such a process, also one that cannot be looked at.
fn exists(process: u32) -> bool {
    let pid = i32::try_from(process).ok().and_then(rustix::process::Pid::from_raw);
    let asked = pid.map(rustix::process::test_kill_process);
    matches!(asked, Some(Err(rustix::io::Errno::PERM)))
}

/// When a process began, in ticks since the machine did. Nothing if there is no such process.
fn began(process: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name in parentheses may hold anything.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    // One that has ended and waits for its parent is no longer of use to anybody.
    if matches!(fields.next(), Some("Z" | "X")) {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// Seconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map(|since| since.as_secs()).unwrap_or(0)
}

/// Seconds since 1970 of a time as in `2026-01-02T03:04:05.678+09:00`.
pub(super) fn seconds(time: &str) -> Option<u64> {
    let number = |range: std::ops::Range<usize>| time.get(range)?.parse::<i64>().ok();
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    let zone = time.get(19..)?.trim_start_matches(|c: char| c == '.' || c.is_ascii_digit());
    let ahead = match zone {
        "Z" => 0,
        _ => {
            let (hours, minutes) =
                (zone.get(1..3)?.parse::<i64>().ok()?, zone.get(4..6)?.parse::<i64>().ok()?);
            let size = hours * 3600 + minutes * 60;
            if zone.starts_with('-') { -size } else { size }
        }
    };
    // Years that begin in March have their odd day at the end.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 719_469;
    u64::try_from(days * 86_400 + hour * 3600 + minute * 60 + second - ahead).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_wherever_they_are() {
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
        ] {
            assert_eq!(seconds(time), expected, "{time}");
        }
    }

    #[test]
    fn a_process_is_itself_and_no_other() {
        let own = Instance::own();
        assert_eq!(Instance::parse(&own.to_string()), Some(own.clone()));
        assert_eq!(own.life(), Life::Alive);
        let later = Instance { began: own.began + 1, ..own.clone() };
        assert_eq!(later.life(), Life::Dead, "its number was given to another");
        let elsewhere = Instance { place: own.place + 1, ..own.clone() };
        assert_eq!(elsewhere.life(), Life::Elsewhere);
    }

    #[test]
    fn what_ended_is_dead() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let process = child.id();
        let began = (0..100).find_map(|_| began(process)).unwrap_or(1);
        let instance = Instance { process, began, ..Instance::own() };
        child.wait().unwrap();
        assert_eq!(instance.life(), Life::Dead);
    }

    #[test]
    fn only_what_we_write_is_ours() {
        let own = Instance::own().to_string();
        for foreign in [
            "",
            "1",
            "a/b/c/d",
            &format!("{own}/1"),
            &own.replacen('/', "/+", 1),
            &own.to_uppercase().replacen('-', "", 1),
        ] {
            assert_eq!(Instance::parse(foreign), None, "{foreign}");
        }
    }
}
