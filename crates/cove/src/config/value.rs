//! Values as people write them, with units: text in, a typed value or what would be right out. No files, no environment.

use std::time::Duration;

use crate::config::{BackendChoice, ComposeRisk};
use crate::error::shown;
use crate::policy::{Network, User};

/// Why a value is refused. Whoever read it adds where it came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wrong {
    pub cause: String,
    pub hint: String,
}

impl Wrong {
    pub fn new(cause: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { cause: cause.into(), hint: hint.into() }
    }
}

pub const KIB: u64 = 1024;
pub const MIB: u64 = 1024 * KIB;
/// A petabyte: no machine has more, and no sum of sizes comes near an overflow.
const MAX_SIZE: u64 = 1024 * 1024 * 1024 * MIB;
/// A bound, so that a deadline can always be computed.
const MAX_DURATION: Duration = Duration::from_secs(24 * 60 * 60);
/// As many as are kept of one cell's output.
const MAX_OUTPUT: u64 = 16_000_000;
/// The kernel's own limit of process ids.
const MAX_PIDS: u64 = 4_194_304;

/// `512m`, `1g`, `512MiB`, `64k` or plain bytes. Units are powers of 1024, as docker's are.
pub fn size(text: &str, least: u64) -> Result<u64, Wrong> {
    let wrong = |problem: &str, bound: &str, limit: u64| {
        Wrong::new(
            format!("`{}` is {problem}", shown(text)),
            format!("write a number with a unit, such as `512m` or `2g` ({bound} `{}`)", show_size(limit)),
        )
    };
    let not_a_size = || wrong("not a size", "at least", least);
    let (digits, unit) = split_number(text);
    let power = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 1,
        "m" | "mb" | "mib" => 2,
        "g" | "gb" | "gib" => 3,
        "t" | "tb" | "tib" => 4,
        _ => return Err(not_a_size()),
    };
    if digits.is_empty() {
        return Err(not_a_size());
    }
    // The digits are digits, so the only way not to fit is to be too large.
    let bytes = digits.parse().ok().and_then(|n: u64| n.checked_mul(KIB.pow(power)));
    match bytes {
        Some(bytes) if bytes < least => Err(wrong("too small", "at least", least)),
        Some(bytes) if bytes <= MAX_SIZE => Ok(bytes),
        _ => Err(wrong("too large", "at most", MAX_SIZE)),
    }
}

/// `30s`, `500ms`, `2m`, `1h`, `1m30s` or plain seconds; more than nothing.
pub fn duration(text: &str) -> Result<Duration, Wrong> {
    let wrong = |problem: &str| {
        Wrong::new(
            format!("`{}` is {problem}", shown(text)),
            "write a whole number with a unit, such as `30s`, `500ms` or `1m30s` (at most `24h`)",
        )
    };
    let mut total = Duration::ZERO;
    let mut rest = text;
    // Units must fall, so that `1s1m` and `1s1s`, which are likely mistakes, are refused.
    let mut unit_before = u64::MAX;
    loop {
        let (digits, tail) = split_number(rest);
        let unit_len = tail.bytes().take_while(|b| !b.is_ascii_digit()).count();
        let (unit, tail) = tail.split_at(unit_len);
        let millis = match unit.to_ascii_lowercase().as_str() {
            "ms" => 1,
            "s" => 1000,
            // Plain seconds stand alone: in `1m30` it would be a guess.
            "" if rest.len() == text.len() => 1000,
            "m" => 60 * 1000,
            "h" => 60 * 60 * 1000,
            _ => return Err(wrong("not a duration")),
        };
        if digits.is_empty() || millis >= unit_before {
            return Err(wrong("not a duration"));
        }
        let part = digits.parse().ok().and_then(|n: u64| n.checked_mul(millis)).map(Duration::from_millis);
        total = part.and_then(|part| total.checked_add(part)).ok_or_else(|| wrong("too long"))?;
        unit_before = millis;
        rest = tail;
        if rest.is_empty() {
            break;
        }
    }
    match total {
        Duration::ZERO => Err(wrong("no time at all")),
        total if total > MAX_DURATION => Err(wrong("too long")),
        total => Ok(total),
    }
}

pub fn cpus(text: &str) -> Result<f64, Wrong> {
    // The kernel's least quota is a hundredth of a processor.
    match text.parse() {
        Ok(cpus) if (0.01..=1024.0).contains(&cpus) => Ok(cpus),
        Ok(_) => Err("out of range"),
        Err(_) => Err("not a number of processors"),
    }
    .map_err(|problem: &str| {
        Wrong::new(
            format!("`{}` is {problem}", shown(text)),
            "write a number from `0.01` to `1024`, such as `0.5` or `2`",
        )
    })
}

pub fn pids(text: &str) -> Result<u32, Wrong> {
    count(text, MAX_PIDS).map(|pids| pids as u32)
}

pub fn max_output(text: &str) -> Result<usize, Wrong> {
    count(text, MAX_OUTPUT).map(|characters| characters as usize)
}

fn count(text: &str, most: u64) -> Result<u64, Wrong> {
    let problem = match text.parse() {
        Ok(number) if (1..=most).contains(&number) => return Ok(number),
        Ok(_) => "out of range",
        Err(_) => "not a whole number",
    };
    Err(Wrong::new(
        format!("`{}` is {problem}", shown(text)),
        format!("write a whole number from `1` to `{most}`"),
    ))
}

/// `uid:gid`, or `uid` for both; numbers only, because names mean something else inside the sandbox.
pub fn user(text: &str) -> Result<User, Wrong> {
    let wrong = |cause: String| {
        Wrong::new(cause, "write `UID:GID` with numbers from `1` to `4294967294`, such as `65534:65534`")
    };
    let id = |part: &str| match part.parse() {
        Ok(0) => Err(wrong("code never runs as root".to_owned())),
        // The last number means "no change" to the kernel.
        Ok(u32::MAX) | Err(_) => Err(wrong(format!("`{}` is not a user and group", shown(text)))),
        Ok(id) => Ok(id),
    };
    let (uid, gid) = text.split_once(':').unwrap_or((text, text));
    Ok(User { uid: id(uid)?, gid: id(gid)? })
}

pub fn backend(text: &str) -> Result<BackendChoice, Wrong> {
    match text {
        "auto" => Ok(BackendChoice::Auto),
        "jail" => Ok(BackendChoice::Jail),
        "docker" => Ok(BackendChoice::Docker),
        "podman" => Ok(BackendChoice::Podman),
        _ => Err(Wrong::new(
            format!("`{}` is not a backend", shown(text)),
            "write `auto`, `jail`, `docker` or `podman`",
        )),
    }
}

pub fn network(text: &str) -> Result<Network, Wrong> {
    let hint = "write `none`, or the name of a network made for sandboxes (`docker network create`)";
    match text {
        "none" => Ok(Network::None),
        // Whoever shares a namespace with the machine or another container is not isolated from it.
        "host" => Err(Wrong::new("the machine's own network is open to no sandbox", hint)),
        _ if is_word(text) => Ok(Network::Named(text.to_owned())),
        _ => Err(Wrong::new(format!("`{}` is not the name of a network", shown(text)), hint)),
    }
}

/// As Docker and Podman know it.
pub fn runtime(text: &str) -> Result<Option<String>, Wrong> {
    match is_word(text) {
        true => Ok(Some(text.to_owned())),
        false => Err(Wrong::new(
            format!("`{}` is not the name of a runtime", shown(text)),
            "write a name that `docker info` lists under Runtimes, such as `runsc`",
        )),
    }
}

pub fn compose_risk(text: &str) -> Result<ComposeRisk, Wrong> {
    ComposeRisk::ALL.into_iter().find(|risk| risk.as_str() == text).ok_or_else(|| {
        let names: Vec<&str> = ComposeRisk::ALL.iter().map(|risk| risk.as_str()).collect();
        Wrong::new(
            format!("`{}` cannot be allowed", shown(text)),
            format!("write one of {}", names.join(", ")),
        )
    })
}

/// What Docker and Podman take for a name.
fn is_word(text: &str) -> bool {
    let first = text.starts_with(|c: char| c.is_ascii_alphanumeric());
    first && text.len() <= 128 && text.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c))
}

/// For settings that are not in a file or a sandbox: `true`, `false`, `1` or `0`.
pub fn boolean(text: &str) -> Result<bool, Wrong> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => {
            Err(Wrong::new(format!("`{}` is neither true nor false", shown(text)), "write `true` or `false`"))
        }
    }
}

/// The number of bytes in the largest unit that shows it exactly.
pub fn show_size(bytes: u64) -> String {
    let units = [("t", MIB * MIB), ("g", KIB * MIB), ("m", MIB), ("k", KIB)];
    match units.iter().find(|(_, unit)| bytes >= *unit && bytes.is_multiple_of(*unit)) {
        Some((name, unit)) => format!("{}{name}", bytes / unit),
        None => bytes.to_string(),
    }
}

pub fn show_duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    if millis.is_multiple_of(1000) { format!("{}s", millis / 1000) } else { format!("{millis}ms") }
}

fn split_number(text: &str) -> (&str, &str) {
    text.split_at(text.bytes().take_while(u8::is_ascii_digit).count())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each case: the text, and the value or what the cause says.
    fn check<T: PartialEq + std::fmt::Debug>(
        parse: impl Fn(&str) -> Result<T, Wrong>,
        cases: &[(&str, Result<T, &str>)],
    ) {
        for (text, expected) in cases {
            let result = parse(text);
            match (&result, expected) {
                (Ok(value), Ok(expected)) => assert_eq!(value, expected, "`{text}`"),
                (Err(wrong), Err(expected)) => {
                    assert!(wrong.cause.contains(expected), "`{text}`: {}", wrong.cause);
                    assert!(!wrong.hint.is_empty(), "`{text}`");
                }
                _ => panic!("`{text}`: {result:?} is not {expected:?}"),
            }
        }
    }

    #[test]
    fn sizes() {
        let (g, t) = (KIB * MIB, MIB * MIB);
        check(
            |text| size(text, 64 * KIB),
            &[
                ("512m", Ok(512 * MIB)),
                ("512M", Ok(512 * MIB)),
                ("512mb", Ok(512 * MIB)),
                ("512MiB", Ok(512 * MIB)),
                ("1g", Ok(g)),
                ("1GB", Ok(g)),
                ("64k", Ok(64 * KIB)),
                ("64kib", Ok(64 * KIB)),
                ("65536", Ok(64 * KIB)),
                ("65536b", Ok(64 * KIB)),
                ("0065536", Ok(64 * KIB)),
                ("1t", Ok(t)),
                ("1024t", Ok(1024 * t)),
                ("1025t", Err("too large")),
                ("99999999999g", Err("too large")),
                ("18446744073709551616", Err("too large")),
                ("99999999999999999999999999999", Err("too large")),
                ("63k", Err("too small")),
                ("0", Err("too small")),
                ("", Err("not a size")),
                ("m", Err("not a size")),
                ("lots", Err("not a size")),
                ("-1m", Err("not a size")),
                ("+1m", Err("not a size")),
                ("1.5g", Err("not a size")),
                ("1 g", Err("not a size")),
                ("1g ", Err("not a size")),
                ("1p", Err("not a size")),
                ("1mm", Err("not a size")),
                ("٣m", Err("not a size")),
                ("1é", Err("not a size")),
                ("1m\0", Err("not a size")),
            ],
        );
    }

    #[test]
    fn durations() {
        let (s, ms) = (Duration::from_secs, Duration::from_millis);
        check(
            duration,
            &[
                ("30s", Ok(s(30))),
                ("500ms", Ok(ms(500))),
                ("2m", Ok(s(120))),
                ("1h", Ok(s(3600))),
                ("24h", Ok(s(86400))),
                ("90", Ok(s(90))),
                ("1m30s", Ok(s(90))),
                ("1h1m1s1ms", Ok(ms(3_661_001))),
                ("1M30S", Ok(s(90))),
                ("0", Err("no time at all")),
                ("0s", Err("no time at all")),
                ("0m0s", Err("no time at all")),
                ("", Err("not a duration")),
                ("s", Err("not a duration")),
                ("soon", Err("not a duration")),
                ("-1s", Err("not a duration")),
                ("1.5s", Err("not a duration")),
                ("1m30", Err("not a duration")),
                ("30s1m", Err("not a duration")),
                ("1s1s", Err("not a duration")),
                ("1 s", Err("not a duration")),
                ("1d", Err("not a duration")),
                ("1é2", Err("not a duration")),
                ("24h1ms", Err("too long")),
                ("99999999999999999999s", Err("too long")),
                ("18446744073709551615h", Err("too long")),
            ],
        );
    }

    #[test]
    fn numbers() {
        check(
            cpus,
            &[
                ("1", Ok(1.0)),
                ("0.5", Ok(0.5)),
                ("0.01", Ok(0.01)),
                ("1024", Ok(1024.0)),
                ("1024.1", Err("out of range")),
                ("0", Err("out of range")),
                ("-1", Err("out of range")),
                ("inf", Err("out of range")),
                ("NaN", Err("out of range")),
                ("1e300", Err("out of range")),
                ("", Err("not a number")),
                ("two", Err("not a number")),
                ("1,5", Err("not a number")),
            ],
        );
        check(
            pids,
            &[
                ("1", Ok(1)),
                ("4194304", Ok(4_194_304)),
                ("4194305", Err("out of range")),
                ("0", Err("out of range")),
                ("-1", Err("not a whole number")),
                ("1.5", Err("not a whole number")),
                ("", Err("not a whole number")),
            ],
        );
        check(
            max_output,
            &[("20000", Ok(20_000)), ("0", Err("out of range")), ("16000001", Err("out of range"))],
        );
    }

    #[test]
    fn users() {
        check(
            user,
            &[
                ("65534:65534", Ok(User { uid: 65534, gid: 65534 })),
                ("1000", Ok(User { uid: 1000, gid: 1000 })),
                ("1000:100", Ok(User { uid: 1000, gid: 100 })),
                ("4294967294:1", Ok(User { uid: 4_294_967_294, gid: 1 })),
                ("0", Err("never runs as root")),
                ("0:1000", Err("never runs as root")),
                ("1000:0", Err("never runs as root")),
                ("4294967295", Err("not a user")),
                ("4294967296:1", Err("not a user")),
                ("nobody", Err("not a user")),
                ("1:2:3", Err("not a user")),
                ("1000:", Err("not a user")),
                (":1000", Err("not a user")),
                ("", Err("not a user")),
                ("-1", Err("not a user")),
            ],
        );
    }

    #[test]
    fn words() {
        check(
            backend,
            &[
                ("auto", Ok(BackendChoice::Auto)),
                ("jail", Ok(BackendChoice::Jail)),
                ("docker", Ok(BackendChoice::Docker)),
                ("Docker", Err("not a backend")),
                ("", Err("not a backend")),
            ],
        );
        check(
            network,
            &[
                ("none", Ok(Network::None)),
                ("egress-1", Ok(Network::Named("egress-1".into()))),
                ("host", Err("the machine's own network")),
                ("container:other", Err("not the name of a network")),
                ("", Err("not the name of a network")),
            ],
        );
        check(runtime, &[("runsc", Ok(Some("runsc".into()))), ("/bin/sh", Err("not the name"))]);
        check(compose_risk, &[("ports", Ok(ComposeRisk::Ports)), ("socket", Err("cannot be allowed"))]);
        check(
            boolean,
            &[
                ("true", Ok(true)),
                ("1", Ok(true)),
                ("FALSE", Ok(false)),
                ("0", Ok(false)),
                ("yes", Err("neither")),
            ],
        );
    }

    #[test]
    fn shown_as_written() {
        let sizes: [(u64, &str); 5] =
            [(512 * MIB, "512m"), (MAX_SIZE, "1024t"), (65536, "64k"), (1500, "1500"), (0, "0")];
        for (bytes, text) in sizes {
            assert_eq!(show_size(bytes), text);
        }
        for (millis, text) in [(30_000, "30s"), (120_000, "120s"), (1_500, "1500ms")] {
            assert_eq!(show_duration(Duration::from_millis(millis)), text);
        }
    }
}
