//! What holds for the definitions of servers, whatever text a file has: a problem is one readable line about a place in
//! the file, a definition can be used, and references in texts are found as they were written.

use std::collections::BTreeSet;
use std::path::Path;

use super::references::{TextPart, ValueReference, find_mistake, split_references};
use super::{ServerDefinition, ServerDefinitions, ServerLaunch, check_name};

/// More than any message has.
const MAX_PROBLEM: usize = 4_000;

/// Reads the text as JSON and as TOML, and panics where a definition or a problem breaks a promise.
pub fn exercise(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    for path in ["servers.d/x.json", "cove.toml"] {
        check_file(Path::new(path), text);
    }
    check_references(text);
}

fn check_file(path: &Path, text: &str) {
    let all = ServerDefinitions::from_text(path, text);
    assert_eq!(all, ServerDefinitions::from_text(path, text), "the same text gives the same definitions");
    let lines = text.split('\n').count();
    for problem in &all.problems {
        let shown = problem.to_string();
        assert!(shown.len() <= MAX_PROBLEM, "a problem has {} bytes: {shown}", shown.len());
        assert!(!shown.chars().any(char::is_control), "{shown:?} has control characters");
        assert!(problem.line.is_some_and(|line| (1..=lines).contains(&line)), "{shown:?} of {lines} lines");
    }
    let mut names = BTreeSet::new();
    let mut aliases = BTreeSet::new();
    for server in &all.servers {
        assert_eq!(check_name(&server.name), Ok(()));
        assert!(names.insert(&server.name), "`{}` is there twice", server.name);
        assert!(aliases.insert(&server.alias), "the alias `{}` is there twice", server.alias);
        assert!(is_identifier(&server.alias), "{:?}", server.alias);
        assert!((1..=lines).contains(&server.origin.line));
        check_server(server);
    }
}

fn is_identifier(text: &str) -> bool {
    !text.starts_with(|c: char| c.is_ascii_digit())
        && !text.is_empty()
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn check_server(server: &ServerDefinition) {
    assert_eq!(server.digest(), server.clone().digest());
    server.tool_filter();
    server.secret_names();
    for text in server.texts() {
        assert!(!text.contains('\0'), "a text has a NUL byte");
        assert_eq!(find_mistake(text), None, "a server would get {text:?}");
        check_references(text);
    }
    if let ServerLaunch::Stdio { command, .. } = &server.launch {
        assert!(!command.is_empty());
    }
}

/// Panics if a text refers to anything but secrets.
pub(crate) fn check_only_secrets(text: &str) {
    for part in split_references(text) {
        let is_allowed = matches!(part, TextPart::Literal(_) | TextPart::Reference(ValueReference::Secret(_)));
        assert!(is_allowed, "{part:?} is in {text:?}");
    }
}

/// A part of a text, with literals joined.
#[derive(Debug, PartialEq)]
enum OwnedPart {
    Literal(String),
    Reference(String),
}

/// Splits a text, writes its parts out again, and splits the result: the parts must be the same.
fn check_references(text: &str) {
    let parts = join_literals(&split_references(text));
    if !text.contains("${") {
        let whole = (!text.is_empty()).then(|| OwnedPart::Literal(text.to_owned()));
        assert_eq!(parts, Vec::from_iter(whole), "a text without references stays");
    }
    let written: String = parts
        .iter()
        .map(|part| match part {
            OwnedPart::Literal(literal) => literal.replace("${", "$${"),
            OwnedPart::Reference(reference) => format!("${{{reference}}}"),
        })
        .collect();
    assert_eq!(join_literals(&split_references(&written)), parts, "{text:?} written as {written:?}");
}

fn join_literals(parts: &[TextPart<'_>]) -> Vec<OwnedPart> {
    let mut joined: Vec<OwnedPart> = Vec::new();
    for part in parts {
        let reference = match part {
            TextPart::Literal(literal) => {
                match joined.last_mut() {
                    Some(OwnedPart::Literal(before)) => before.push_str(literal),
                    _ => joined.push(OwnedPart::Literal((*literal).to_owned())),
                }
                continue;
            }
            TextPart::Reference(reference) => reference,
        };
        joined.push(OwnedPart::Reference(match reference {
            ValueReference::Variable { name, default: None } => (*name).to_owned(),
            ValueReference::Variable { name, default: Some(default) } => format!("{name}:-{default}"),
            ValueReference::File(path) => format!("file:{path}"),
            ValueReference::Command(command) => format!("cmd:{command}"),
            ValueReference::Secret(name) => format!("secret:{name}"),
        }));
    }
    joined
}

#[cfg(test)]
mod tests {
    #[test]
    fn replays_the_corpus_of_definitions() {
        crate::replay::replay("definitions", super::exercise);
    }
}
