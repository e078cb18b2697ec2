//! Text of servers inside code, quoted or in a comment, so that it cannot end the string or the comment. Pure
//! functions.

use serde_json::Value;

use cove_core::text::{cut, is_invisible};

const MAX_SUMMARY: usize = 160;
/// Longer values of an enum are not shown.
pub(super) const MAX_VALUE: usize = 60;
const MAX_TYPE_NAME: usize = 40;

/// Returns the first sentence of a description on one line.
pub fn first_sentence(description: &str) -> String {
    let line = description.trim_start_matches(['#', '*', ' ', '\n', '\t']);
    // An empty line ends a sentence too.
    let line = line.split("\n\n").next().unwrap_or_default();
    let line = to_comment_text(line, 4 * MAX_SUMMARY);
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

/// Returns text for a comment: one line in every language, without anything that ends a comment or a multi-line
/// string.
pub(super) fn to_comment_text(text: &str, most: usize) -> String {
    let visible: String = cut(text, 4 * most).chars().map(|c| if is_hidden(c) { ' ' } else { c }).collect();
    let line = visible.split_whitespace().collect::<Vec<_>>().join(" ");
    let line = line.replace("*/", "* /").replace("\"\"\"", "'''").replace('\\', "/");
    cut(&line, most)
}

/// Quotes text with escapes that Python and JavaScript share.
pub(super) fn quote(text: &str) -> String {
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
            // Python and JavaScript escape these differently, and no parameter needs them.
            c if is_hidden(c) => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Joins texts, each of them once.
pub(super) fn join_distinct(texts: impl Iterator<Item = String>, between: &str) -> String {
    let mut distinct: Vec<String> = Vec::new();
    for text in texts {
        if !distinct.contains(&text) {
            distinct.push(text);
        }
    }
    distinct.join(between)
}

/// Returns true if a value is short enough to be shown.
pub(super) fn is_short(value: &Value) -> bool {
    value.as_str().is_none_or(|text| text.len() <= MAX_VALUE)
}

/// Returns `create_issue` as a part of a type name: `CreateIssue`.
pub(super) fn to_pascal_case(name: &str) -> String {
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

/// Also hides joiners: outside strings, code is ASCII.
fn is_hidden(c: char) -> bool {
    c.is_control() || is_invisible(c) || matches!(c, '\u{200c}' | '\u{200d}')
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
            assert_eq!(first_sentence(text), expected, "{text:?}");
        }
        assert!(first_sentence(&"word ".repeat(100_000)).len() <= MAX_SUMMARY);
    }

    #[test]
    fn comment_text_cannot_end_the_comment() {
        for bad in ["a\nb", "a\rb", "a\u{2028}b", "a\u{85}b", "a\u{c}b", "*/ b", "\"\"\" b", "\\\nb", "\0b"] {
            let comment = to_comment_text(bad, 100);
            assert!(!comment.contains(['\n', '\r', '\u{2028}', '\u{85}', '\0', '\\']), "{comment:?}");
            assert!(!comment.contains("*/") && !comment.contains("\"\"\""), "{comment:?}");
        }
    }

    #[test]
    fn quoted_text_cannot_end_the_string() {
        assert_eq!(quote("a\"b\\c\nd\u{0}\u{202e}é😀"), "\"a\\\"b\\\\c\\nd\\u0000\\u202eé😀\"");
    }

    #[test]
    fn converts_names_to_pascal_case() {
        assert_eq!(to_pascal_case("API-post_search"), "APIPostSearch");
        assert_eq!(to_pascal_case("2fa"), "T2fa");
        assert_eq!(to_pascal_case("名"), "T");
    }
}
