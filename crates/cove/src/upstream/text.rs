//! Text of servers is data: shown on one line or as plain text, within bounds, and without anything that commands a
//! terminal.

/// Without control characters but line ends and tabs, and without what turns the direction of text or hides in it.
pub(super) fn plain(text: &str) -> String {
    text.chars().filter(|c| matches!(c, '\n' | '\t') || !(c.is_control() || is_invisible(*c))).collect()
}

/// One line of at most `most` bytes.
pub(super) fn line(text: &str, most: usize) -> String {
    let line: String = text
        .chars()
        .filter(|c| !is_invisible(*c))
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(most + 1)
        .collect();
    cut(line.trim_end(), most)
}

/// At most `most` bytes, and a sign that there was more.
pub(super) fn cut(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let end =
        (0..=most.saturating_sub('…'.len_utf8())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    format!("{}…", &text[..end])
}

/// Marks of direction, zero widths and tags: the ways to show a person something else than what is read. Joiners stay,
/// for some scripts are not written without them.
fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}'
        | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_commands_or_hides_is_taken_out() {
        assert_eq!(plain("a\u{1b}[2J\r\n\tb\u{202e}c\u{7}"), "a[2J\n\tbc");
        assert_eq!(line("a\u{1b}[2J\nb\u{200b}", 100), "a [2J b");
        assert_eq!(plain("ignore\u{e0041} this, 日本"), "ignore this, 日本");
    }

    #[test]
    fn cuts_keep_characters_whole() {
        assert_eq!(cut("abc", 3), "abc");
        assert_eq!(cut("ééééé", 6), "é…");
        assert_eq!(line(&"x".repeat(1000), 10).len(), 10);
        assert_eq!(cut("", 0), "");
    }
}
