//! Makes text of servers safe to show: bounded, on one line or as plain text, and without control sequences for a
//! terminal.

use std::time::Duration;

pub(crate) use cove_core::text::cut;
use cove_core::text::remove_hidden;

/// Removes control characters except line ends and tabs, and hidden characters.
pub(crate) fn strip_control(text: &str) -> String {
    remove_hidden(text).chars().filter(|c| matches!(c, '\n' | '\t') || !c.is_control()).collect()
}

/// Returns one line of at most `most` bytes.
pub(crate) fn to_line(text: &str, most: usize) -> String {
    // Bounded first, so that a megabyte of text is not even scanned.
    let start = &text[..text.floor_char_boundary(4 * most + 4)];
    let line: String =
        remove_hidden(start).chars().map(|c| if c.is_control() { ' ' } else { c }).take(most + 1).collect();
    cut(line.trim_end(), most)
}

/// Writes a duration as people say it: `12 s`, `2 min`, `5 h`, `3 d`.
pub(crate) fn format_age(age: Duration) -> String {
    match age.as_secs() {
        seconds @ ..60 => format!("{seconds} s"),
        seconds @ ..3_600 => format!("{} min", seconds / 60),
        seconds @ ..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strips_control_and_invisible_characters() {
        assert_eq!(strip_control("a\u{1b}[2J\r\n\tb\u{202e}c\u{7}"), "a[2J\n\tbc");
        assert_eq!(to_line("a\u{1b}[2J\nb\u{200b}", 100), "a [2J b");
        assert_eq!(strip_control("ignore\u{e0041} this, 日本"), "ignore this, 日本");
    }

    #[test]
    fn ages_are_in_the_unit_that_people_use() {
        for (seconds, expected) in
            [(0, "0 s"), (59, "59 s"), (125, "2 min"), (7_300, "2 h"), (172_799, "47 h"), (300_000, "3 d")]
        {
            assert_eq!(format_age(Duration::from_secs(seconds)), expected);
        }
    }

    #[test]
    fn lines_are_bounded() {
        assert_eq!(to_line(&"x".repeat(1000), 10).len(), 10);
    }
}
