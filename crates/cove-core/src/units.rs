//! Sizes, durations and counts as people write them: text in, a number or the reason for the refusal out.

use std::time::Duration;

use crate::error::Refusal;

pub const KIB: u64 = 1024;
pub const MIB: u64 = 1024 * KIB;
/// A pebibyte: no machine has more, and no sum of sizes comes near an overflow.
const MAX_SIZE: u64 = 1024 * 1024 * 1024 * MIB;
/// Bounded, so that a deadline can always be computed.
const MAX_DURATION: Duration = Duration::from_secs(24 * 60 * 60);
/// The kernel's own limit on process ids.
pub const MAX_PIDS: u64 = 4_194_304;

/// Parses `512m`, `1g`, `512MiB`, `64k` or plain bytes. Units are powers of 1024, as in Docker.
pub fn size(text: &str, least: u64) -> Result<u64, Refusal> {
    let refusal = |problem: &str, bound: &str, limit: u64| {
        let right = format!("write a number with a unit, such as `512m` or `2g` ({bound} `{}`)", show_size(limit));
        Refusal::of_value(text, problem, right)
    };
    let not_a_size = || refusal("is not a size", "at least", least);
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
    // Digits fail to parse only if the number is too large.
    let bytes = digits.parse().ok().and_then(|n: u64| n.checked_mul(KIB.pow(power)));
    match bytes {
        Some(bytes) if bytes < least => Err(refusal("is too small", "at least", least)),
        Some(bytes) if bytes <= MAX_SIZE => Ok(bytes),
        _ => Err(refusal("is too large", "at most", MAX_SIZE)),
    }
}

/// Parses `30s`, `500ms`, `2m`, `1h`, `1m30s` or plain seconds. Refuses zero.
pub fn duration(text: &str) -> Result<Duration, Refusal> {
    let right = "write a whole number with a unit, such as `30s`, `500ms` or `1m30s` (at most `24h`)";
    let refusal = |problem: &str| Refusal::of_value(text, problem, right);
    let mut total = Duration::ZERO;
    let mut rest = text;
    // Each unit must be smaller than the one before: `1s1m` and `1s1s` are likely mistakes.
    let mut unit_before = u64::MAX;
    loop {
        let (digits, tail) = split_number(rest);
        let unit_len = tail.bytes().take_while(|b| !b.is_ascii_digit()).count();
        let (unit, tail) = tail.split_at(unit_len);
        let millis = match unit.to_ascii_lowercase().as_str() {
            "ms" => 1,
            "s" => 1000,
            // A number without a unit means seconds only if it stands alone: in `1m30` that would be a guess.
            "" if rest.len() == text.len() => 1000,
            "m" => 60 * 1000,
            "h" => 60 * 60 * 1000,
            _ => return Err(refusal("is not a duration")),
        };
        if digits.is_empty() || millis >= unit_before {
            return Err(refusal("is not a duration"));
        }
        let part = digits.parse().ok().and_then(|n: u64| n.checked_mul(millis)).map(Duration::from_millis);
        total = part.and_then(|part| total.checked_add(part)).ok_or_else(|| refusal("is too long"))?;
        unit_before = millis;
        rest = tail;
        if rest.is_empty() {
            break;
        }
    }
    match total {
        Duration::ZERO => Err(refusal("is no time at all")),
        total if total > MAX_DURATION => Err(refusal("is too long")),
        total => Ok(total),
    }
}

/// Parses a number of CPUs, which may be a fraction. The kernel's smallest quota is a hundredth of a CPU.
pub fn cpus(text: &str) -> Result<f64, Refusal> {
    let problem = match text.parse() {
        Ok(cpus) if (0.01..=1024.0).contains(&cpus) => return Ok(cpus),
        Ok(_) => "is out of range",
        Err(_) => "is not a number of CPUs",
    };
    Err(Refusal::of_value(text, problem, "write a number from `0.01` to `1024`, such as `0.5` or `2`"))
}

/// Parses a limit on processes and threads.
pub fn pids(text: &str) -> Result<u32, Refusal> {
    whole_number(text, MAX_PIDS)
}

/// Parses a whole number from 1 to `most`.
pub fn whole_number<T: TryFrom<u64>>(text: &str, most: u64) -> Result<T, Refusal> {
    let number = match text.parse::<u64>() {
        Ok(number) => T::try_from(number).ok().filter(|_| (1..=most).contains(&number)).ok_or("is out of range"),
        Err(_) => Err("is not a whole number"),
    };
    number.map_err(|problem| Refusal::of_value(text, problem, format!("write a whole number from `1` to `{most}`")))
}

/// Writes a number of bytes in the largest unit that divides it, as [`size`] reads it.
pub fn show_size(bytes: u64) -> String {
    let units = [("t", MIB * MIB), ("g", KIB * MIB), ("m", MIB), ("k", KIB)];
    match units.iter().find(|(_, unit)| bytes >= *unit && bytes.is_multiple_of(*unit)) {
        Some((name, unit)) => format!("{}{name}", bytes / unit),
        None => bytes.to_string(),
    }
}

/// Writes a duration in seconds, or in milliseconds if it has any, as [`duration`] reads it.
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
        parse: impl Fn(&str) -> Result<T, Refusal>,
        cases: &[(&str, Result<T, &str>)],
    ) {
        for (text, expected) in cases {
            let result = parse(text);
            match (&result, expected) {
                (Ok(value), Ok(expected)) => assert_eq!(value, expected, "`{text}`"),
                (Err(refusal), Err(expected)) => {
                    assert!(refusal.cause.contains(expected), "`{text}`: {}", refusal.cause);
                    assert!(!refusal.hint.is_empty(), "`{text}`");
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
            |text| whole_number::<usize>(text, 16_000_000),
            &[("20000", Ok(20_000)), ("0", Err("out of range")), ("16000001", Err("out of range"))],
        );
        check(
            |text| whole_number::<usize>(text, 5),
            &[("5", Ok(5)), ("0", Err("out of range")), ("6", Err("out of range")), ("x", Err("not a whole"))],
        );
        check(|text| whole_number::<u8>(text, 1000), &[("255", Ok(255)), ("256", Err("out of range"))]);
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
