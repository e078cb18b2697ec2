//! What holds for the code that a model reads about a tool, whatever the server's schema is: it is bounded, no text of the
//! server leaves its quotes or its comment, and everything else is plain code with closed brackets.

use serde_json::{Map, Value, json};

use super::{CommentDetail, Language, MAX_LENGTH, ToolReference, comment_mark};
use crate::catalog::sanitize::sanitize_tool;
use crate::catalog::validate::check_arguments;
use crate::catalog::{ToolDocument, names, parse_tool};

const LANGUAGES: [Language; 4] = [Language::Python, Language::Node, Language::Bash, Language::Sh];
const DETAILS: [CommentDetail; 3] = [CommentDetail::Brief, CommentDetail::Whole, CommentDetail::Everything];
/// Room for names of a server and a tool, which a signature repeats in its hint.
const MAX_NAMES: usize = 1_500;
/// A comment repeats what the server says, which is bounded when it comes in.
const MAX_COMMENT: usize = 200_000;

/// Takes the bytes as a tool that a server lists, or as the schema of one. Panics if anything that Cove writes about it
/// breaks a promise.
pub fn exercise(bytes: &[u8]) {
    let Ok(value) = serde_json::from_slice::<Value>(bytes) else { return };
    let tool = match &value {
        Value::Object(fields) if fields.contains_key("inputSchema") => value,
        schema => json!({ "name": "t", "inputSchema": schema, "outputSchema": schema }),
    };
    let arguments = tool["arguments"].as_object().cloned();
    let Some(Ok(document)) = parse_tool(tool).map(sanitize_tool) else { return };
    let alias = names::tool_aliases(&[&document.name]).remove(0);
    for language in LANGUAGES {
        let tool = ToolReference { language, server: "s", tool: &alias, document: &document, learned: None };
        let signature = tool.signature();
        check_code(language, &signature, MAX_LENGTH + MAX_NAMES);
        for detail in DETAILS {
            check_code(language, &tool.call(detail), detail.max_signature() + MAX_NAMES);
            check_comment(language, &tool.comment(detail));
            check_text(&tool.stub(detail), MAX_LENGTH + detail.max_signature() + MAX_COMMENT);
        }
        assert_eq!(tool.signature(), signature, "the same tool has the same signature");
    }
    check_call(&document, arguments.unwrap_or_else(|| document.input_schema.clone()));
}

/// Checks arguments against the schema. What is accepted is accepted again, unchanged.
fn check_call(document: &ToolDocument, arguments: Map<String, Value>) {
    match check_arguments(document, arguments) {
        Ok(corrected) => assert_eq!(check_arguments(document, corrected.clone()), Ok(corrected)),
        Err(refusal) => {
            let shown = refusal.to_string();
            assert!(!refusal.problems.is_empty() && refusal.problems.len() <= 6, "{shown}");
            assert!(shown.len() <= 20_000, "a refusal has {} bytes", shown.len());
        }
    }
}

fn check_text(text: &str, most: usize) {
    assert!(text.len() <= most, "{} bytes, more than {most}: {text}", text.len());
    let is_hidden = |c: &char| {
        matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0061}'
            | '\u{e0080}'..='\u{e00ff}' | '\u{e0120}'..='\u{e0fff}')
    };
    if let Some(bad) = text.chars().find(|c| (c.is_control() && *c != '\n') || is_hidden(c)) {
        panic!("{bad:?} is in {text:?}");
    }
}

/// Every line of a comment begins with its mark.
fn check_comment(language: Language, comment: &str) {
    check_text(comment, MAX_COMMENT);
    for line in comment.lines() {
        let line = line.trim_start();
        assert!(line.is_empty() || line.starts_with(comment_mark(language)), "{line:?} in {comment:?}");
    }
}

/// Reads code as its language does: strings and comments end where they should, brackets are closed in their order, and
/// nothing else than ASCII stands outside.
fn check_code(language: Language, code: &str, most: usize) {
    check_text(code, most);
    let is_shell = matches!(language, Language::Bash | Language::Sh);
    let mut open = Vec::new();
    let mut rest = code;
    let bad = |what: &str| -> ! { panic!("{what} in {code:?}") };
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        match c {
            '"' if !is_shell => loop {
                match rest.chars().next() {
                    None | Some('\n') => bad("a string without an end"),
                    Some('"') => break rest = &rest[1..],
                    Some('\\') => rest = rest.get(2..).unwrap_or_else(|| bad("half an escape")),
                    Some(c) => rest = &rest[c.len_utf8()..],
                }
            },
            '\'' if is_shell => match rest.split_once('\'') {
                Some((quoted, behind)) if !quoted.contains('\n') => rest = behind,
                _ => bad("a word without an end"),
            },
            '\\' if is_shell && rest.starts_with('\'') => rest = &rest[1..],
            '#' if language != Language::Node => rest = rest.find('\n').map_or("", |end| &rest[end..]),
            '/' if language == Language::Node && rest.starts_with('/') => {
                rest = rest.find('\n').map_or("", |end| &rest[end..]);
            }
            '/' if language == Language::Node && rest.starts_with('*') => match rest[1..].split_once("*/") {
                Some((comment, behind)) if !comment.contains('\n') => rest = behind,
                _ => bad("a comment without an end"),
            },
            '(' => open.push(')'),
            '[' => open.push(']'),
            '{' => open.push('}'),
            ')' | ']' | '}' if open.pop() != Some(c) => bad("a bracket that was not opened"),
            '…' if is_shell => {}
            '`' | '$' | ';' | '&' if is_shell => bad("a character that a shell obeys"),
            c if c.is_ascii() => {}
            _ => bad("a character that is not code"),
        }
    }
    assert!(open.is_empty(), "{open:?} is not closed in {code:?}");
}

#[cfg(test)]
mod tests {
    #[test]
    fn replays_the_corpus_of_signature() {
        crate::replay::replay("signature", super::exercise);
    }
}
