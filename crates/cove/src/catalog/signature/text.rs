//! Text of servers inside of code: quoted, or as a comment, and in neither way able to end what it stands in. Pure.

use serde_json::Value;

use super::super::clean::cut;

const MAX_SUMMARY: usize = 160;
/// A longer value of an enum is no word that anyone would write.
pub(super) const MAX_VALUE: usize = 60;
const MAX_TYPE_NAME: usize = 40;

/// The first sentence of a description, as text for one line.
pub fn summary(description: &str) -> String {
    let line = description.trim_start_matches(['#', '*', ' ', '\n', '\t']);
    // An empty line ends a sentence too.
    let line = line.split("\n\n").next().unwrap_or_default();
    let line = comment(line, 4 * MAX_SUMMARY);
    let mut from = 0;
    while let Some(at) = line[from..].find(['.', '!', '?']) {
        let end = from + at + 1;
        let before = line[..end].rsplit(' ').next().unwrap_or_default();
        let ends = line[end..].is_empty() || line[end..].starts_with(' ');
        if ends && !["e.g.", "i.e.", "etc.", "vs.", "cf.", "ca.", "(e.g.", "(i.e."].contains(&before) {
            return cut(&line[..end], MAX_SUMMARY);
        }
        from = end;
    }
    cut(&line, MAX_SUMMARY)
}

/// Text after the mark of a comment: one line, whatever ends lines in whatever language, and nothing that ends a comment
/// or a string of several lines.
pub(super) fn comment(text: &str, most: usize) -> String {
    let visible: String = cut(text, 4 * most).chars().map(|c| if is_hidden(c) { ' ' } else { c }).collect();
    let line = visible.split_whitespace().collect::<Vec<_>>().join(" ");
    let line = line.replace("*/", "* /").replace("\"\"\"", "'''").replace('\\', "/");
    cut(&line, most)
}

/// Escapes that both python and JavaScript have, so that a text stands for itself in either.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out += "\\\"",
            '\\' => out += "\\\\",
            '\n' => out += "\\n",
            '\r' => out += "\\r",
            '\t' => out += "\\t",
            c if is_hidden(c) && (c as u32) < 0x10000 => out += &format!("\\u{:04x}", c as u32),
            // Beyond what both can write the same way, and nothing that a parameter needs.
            c if is_hidden(c) => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// A value that is short enough to be shown.
pub(super) fn is_short(value: &Value) -> bool {
    value.as_str().is_none_or(|text| text.len() <= MAX_VALUE)
}

/// `create_issue` as a part of a type's name: `CreateIssue`.
pub(super) fn pascal(name: &str) -> String {
    let mut out = String::new();
    let mut upper = true;
    for c in name.chars().take(4 * MAX_TYPE_NAME) {
        if !c.is_ascii_alphanumeric() {
            upper = true;
        } else if out.len() < MAX_TYPE_NAME {
            out.push(if upper { c.to_ascii_uppercase() } else { c });
            upper = false;
        }
    }
    if out.is_empty() || out.starts_with(|c: char| c.is_ascii_digit()) {
        out.insert(0, 'T');
    }
    out
}

fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_are_first_sentences() {
        let cases = [
            ("Create an issue. Then more.", "Create an issue."),
            ("Finds files, e.g. by name. More.", "Finds files, e.g. by name."),
            ("Version 1.2 of it", "Version 1.2 of it"),
            ("Line one\nline two\n\nArgs: x", "Line one line two"),
            ("## Title\n\nBody", "Title"),
            ("", ""),
            ("Ends\u{2028}import os", "Ends import os"),
        ];
        for (text, expected) in cases {
            assert_eq!(summary(text), expected, "{text:?}");
        }
        assert!(summary(&"word ".repeat(100_000)).len() <= MAX_SUMMARY);
    }

    #[test]
    fn comments_stay_comments() {
        for bad in ["a\nb", "a\rb", "a\u{2028}b", "a\u{85}b", "a\u{c}b", "*/ b", "\"\"\" b", "\\\nb", "\0b"] {
            let comment = comment(bad, 100);
            assert!(!comment.contains(['\n', '\r', '\u{2028}', '\u{85}', '\0', '\\']), "{comment:?}");
            assert!(!comment.contains("*/") && !comment.contains("\"\"\""), "{comment:?}");
        }
    }

    #[test]
    fn quotes_are_closed_once() {
        assert_eq!(quoted("a\"b\\c\nd\u{0}\u{202e}é😀"), "\"a\\\"b\\\\c\\nd\\u0000\\u202eé😀\"");
    }

    #[test]
    fn type_names() {
        assert_eq!(pascal("API-post_search"), "APIPostSearch");
        assert_eq!(pascal("2fa"), "T2fa");
        assert_eq!(pascal("名"), "T");
    }
}
