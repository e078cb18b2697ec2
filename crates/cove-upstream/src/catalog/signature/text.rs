//! Text of servers inside code, quoted or in a comment, so that it cannot end the string or the comment. Pure
//! functions.

use serde_json::Value;

use cove_core::text::{cut, is_invisible};

const MAX_SUMMARY: usize = 160;
/// A line that ends before this ended because its sentence did; others end at the margin of their author.
const SHORT_LINE: usize = 60;
/// Longer values of an enum are not shown.
pub(super) const MAX_VALUE: usize = 60;
const MAX_TYPE_NAME: usize = 40;
const MAX_LINE: usize = 2_000;

/// Returns the first sentence of a description on one line.
pub fn first_sentence(description: &str) -> String {
    first_sentences(description, 0)
}

/// Returns the first sentence on one line, and further ones of the same paragraph while all have at most `wanted`
/// bytes.
pub(super) fn first_sentences(text: &str, wanted: usize) -> String {
    let line = first_paragraph(text);
    let mut shown = 0;
    let mut from = 0;
    while let Some(at) = line[from..].find(['.', '!', '?']) {
        let end = from + at + 1;
        let before = line[..end].rsplit(' ').next().unwrap_or_default();
        let ends = line[end..].is_empty() || line[end..].starts_with(' ');
        if ends && !["e.g.", "i.e.", "etc.", "vs.", "cf.", "ca.", "(e.g.", "(i.e."].contains(&before) {
            if shown > 0 && end > wanted {
                break;
            }
            shown = end;
        }
        from = end;
    }
    // Text without a full stop at its end is a sentence too.
    if shown == 0 || line.len() <= wanted {
        shown = line.len();
    }
    cut(&line[..shown], MAX_SUMMARY.max(wanted))
}

/// Returns the lines up to the first that begins a new thought, joined.
fn first_paragraph(text: &str) -> String {
    let text = cut(text.trim_start_matches(['#', '*', ' ', '\n', '\t']), 8 * MAX_SUMMARY);
    let mut paragraph = String::new();
    for line in text.lines().map(str::trim) {
        if !paragraph.is_empty() && begins_new_thought(&paragraph, line) {
            break;
        }
        paragraph += line;
        paragraph.push('\n');
    }
    to_comment_text(&paragraph, 4 * MAX_SUMMARY)
}

/// Returns true if a line does not go on with the sentence before it: it is empty, a heading or a list item, or it
/// begins with a capital after a line that ended early.
fn begins_new_thought(before: &str, line: &str) -> bool {
    let before = before.trim_end().rsplit('\n').next().unwrap_or_default();
    let number = line.trim_start_matches(|c: char| c.is_ascii_digit());
    let is_item = line.starts_with(['-', '*', '•', '#', '|', '`', '<', '='])
        || (number.len() < line.len() && number.starts_with(['.', ')', ':']));
    // A line that ends so goes on, however short it is.
    let goes_on = before.ends_with(',')
        || ["a", "an", "and", "by", "for", "from", "in", "of", "on", "or", "the", "to", "with"]
            .contains(&before.rsplit(' ').next().unwrap_or_default());
    line.is_empty() || is_item || (line.starts_with(char::is_uppercase) && before.len() < SHORT_LINE && !goes_on)
}

/// Returns the words of a name or of text in lower case: `createIssue` is `create` and `issue`.
pub(super) fn words(text: &str) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    let mut previous = ' ';
    for c in cut(text, 8 * MAX_SUMMARY).chars() {
        if c.is_alphanumeric() {
            match all.last_mut() {
                Some(word) if previous.is_alphanumeric() && !(previous.is_lowercase() && c.is_uppercase()) => {
                    word.extend(c.to_lowercase());
                }
                _ => all.push(c.to_lowercase().collect()),
            }
        }
        previous = c;
    }
    all
}

/// Returns a line of a server's text for a comment.
pub fn to_comment_line(line: &str) -> String {
    to_comment_text(line, MAX_LINE)
}

/// Returns text for a comment: one line in every language. All comments end with their line, so everything else stays
/// as the server wrote it: agents copy patterns such as `**/*.ext` and `\d+` from there.
pub(super) fn to_comment_text(text: &str, most: usize) -> String {
    let visible: String = cut(text, 4 * most).chars().map(|c| if is_hidden(c) { ' ' } else { c }).collect();
    let line = visible.split_whitespace().collect::<Vec<_>>().join(" ");
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

/// Also hides joiners and selectors that other texts need: outside strings, code is ASCII.
fn is_hidden(c: char) -> bool {
    c.is_control() || is_invisible(c)
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
            ("Notion | Retrieve a page\nError Responses:\n400: Bad request", "Notion | Retrieve a page"),
            ("Create issues in\nGitHub", "Create issues in GitHub"),
            ("Does it\n- one\n- two", "Does it"),
            ("Does it\n1. one", "Does it"),
            ("Does it\nArgs:\n    x: y", "Does it"),
            (
                "A line that its author wrapped at the margin, and that goes on in the\nNotion API.",
                "A line that its author wrapped at the margin, and that goes on in the Notion API.",
            ),
            ("", ""),
            ("Ends\u{2028}import os", "Ends import os"),
        ];
        for (text, expected) in cases {
            assert_eq!(first_sentence(text), expected, "{text:?}");
        }
        assert!(first_sentence(&"word ".repeat(100_000)).len() <= MAX_SUMMARY);
        assert!(first_sentence(&"word\n".repeat(100_000)).len() <= MAX_SUMMARY);
        let three = "One is here. Two is here. Three is here.";
        assert_eq!(first_sentences(three, 25), "One is here. Two is here.");
        assert_eq!(first_sentences(three, 3), "One is here.");
        assert_eq!(first_sentences("No full stop", 100), "No full stop");
    }

    #[test]
    fn splits_names_into_words() {
        assert_eq!(words("sourceTimezone_id"), ["source", "timezone", "id"]);
        assert_eq!(words("The URL-path."), ["the", "url", "path"]);
    }

    #[test]
    fn comment_text_cannot_end_the_comment() {
        for bad in ["a\nb", "a\rb", "a\u{2028}b", "a\u{85}b", "a\u{c}b", "\\\nb", "\0b"] {
            let comment = to_comment_text(bad, 100);
            assert!(!comment.contains(['\n', '\r', '\u{2028}', '\u{85}', '\u{c}', '\0']), "{comment:?}");
        }
        let patterns = r#"'**/*.ext', ^\d+$, C:\new, """text""""#;
        assert_eq!(to_comment_text(patterns, 100), patterns);
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
