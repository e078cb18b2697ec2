//! The rule about names: words of the architecture that no type, function, module or file of ours carries. Tests are
//! exempt, for their names are sentences.

use super::Finding;
use super::source::{code_only, is_word, words};
use super::tree::Tree;

const FORBIDDEN: &[&str] = &["manager", "service", "handler", "helper", "util", "executor", "engine"];
const DEFINING: &[&str] = &["struct", "enum", "trait", "fn", "mod", "type"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.rust().filter(|(path, _)| is_ours(path)) {
        let name = path.rsplit('/').next().unwrap_or(path).trim_end_matches(".rs");
        if let Some(word) = forbidden_in(name) {
            findings.push(Finding::in_file(path, format!("the file's name says `{word}`")));
        }
        let code = code_only(text);
        let lines: Vec<&str> = code.lines().collect();
        for (index, line) in lines.iter().enumerate() {
            for name in defined_on(line) {
                let Some(word) = forbidden_in(name) else { continue };
                if !is_test(&lines, index) {
                    findings.push(Finding::on_line(path, index, format!("`{name}` says `{word}`")));
                }
            }
        }
    }
    findings
}

fn is_ours(path: &str) -> bool {
    path.starts_with("xtask/src/") || (path.starts_with("crates/") && path.contains("/src/"))
}

fn defined_on(line: &str) -> impl Iterator<Item = &str> {
    let all: Vec<&str> = words(line).collect();
    let pairs: Vec<_> =
        all.windows(2).filter(|pair| DEFINING.contains(&pair[0])).map(|pair| pair[1]).collect();
    // `fn(Name)` is a type, not a definition: a name follows its keyword after a space.
    pairs.into_iter().filter(move |name| {
        line.match_indices(name).any(|(at, _)| {
            let before = line[..at].trim_end();
            before.len() < at && DEFINING.iter().any(|keyword| before.ends_with(keyword))
        })
    })
}

fn is_test(lines: &[&str], index: usize) -> bool {
    let above = lines[..index].iter().rev().map(|line| line.trim());
    let mut attributes = above.take_while(|line| line.starts_with("#[") || line.is_empty());
    attributes.any(|line| words(line).any(|word| word == "test"))
}

fn forbidden_in(name: &str) -> Option<&'static str> {
    let parts = parts(name);
    FORBIDDEN
        .iter()
        .copied()
        .find(|word| parts.iter().any(|part| part == word || *part == format!("{word}s")))
}

/// `ToolHandler`, `tool_handler` and `HTTPHandler` all have the part `handler`.
fn parts(name: &str) -> Vec<String> {
    let letters: Vec<char> = name.chars().collect();
    let mut parts = vec![String::new()];
    for (at, letter) in letters.iter().enumerate() {
        let follows_lower = at > 0 && (letters[at - 1].is_lowercase() || letters[at - 1].is_numeric());
        let ends_capitals = at > 0
            && letters[at - 1].is_uppercase()
            && letters.get(at + 1).is_some_and(|next| next.is_lowercase());
        if *letter == '_' || !is_word(*letter) || (letter.is_uppercase() && (follows_lower || ends_capitals))
        {
            parts.push(String::new());
        }
        if is_word(*letter) && *letter != '_' {
            parts.last_mut().expect("never empty").extend(letter.to_lowercase());
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::super::tests::findings;
    use super::*;

    #[test]
    fn forbidden_words_in_definitions_are_found() {
        let cases = [
            ("pub struct SessionManager;", "SessionManager", "manager"),
            ("pub(crate) async fn call_handler() {}", "call_handler", "handler"),
            ("trait HTTPService {}", "HTTPService", "service"),
            ("enum Engine { A }", "Engine", "engine"),
            ("mod utils;", "utils", "util"),
            ("type Executor = u8;", "Executor", "executor"),
            ("const fn HELPER() {}", "HELPER", "helper"),
        ];
        for (code, name, word) in cases {
            let found = findings(check, &[("crates/cove/src/a.rs", code)]);
            assert_eq!(found, [format!("crates/cove/src/a.rs:1: `{name}` says `{word}`")]);
            assert!(findings(check, &[("crates/cove/tests/a.rs", code)]).is_empty());
        }
    }

    #[test]
    fn forbidden_words_elsewhere_are_not_our_names() {
        let cases = [
            "impl ServerHandler for Cove {}",
            "use rmcp::service::Service;",
            "// struct Manager",
            "let a = \"fn helper\";",
            "struct Engineer;",
            "fn utility() {}",
            "let call: fn(Service) -> Engine;",
            "#[test]\nfn a_service_is_asked() {}",
            "#[tokio::test(flavor = \"current_thread\")]\n#[ignore]\nasync fn a_handler_fails() {}",
        ];
        for code in cases {
            assert_eq!(findings(check, &[("crates/cove/src/a.rs", code)]), Vec::<String>::new(), "{code}");
        }
    }

    #[test]
    fn a_file_s_name_is_one_too() {
        let found = findings(check, &[("xtask/src/string_utils.rs", "//! x")]);
        assert_eq!(found, ["xtask/src/string_utils.rs: the file's name says `util`"]);
    }

    #[test]
    fn names_are_split_as_people_read_them() {
        assert_eq!(parts("HTTPHandler"), ["http", "handler"]);
        assert_eq!(parts("tool_handler"), ["tool", "handler"]);
        assert_eq!(parts("Utf8Util"), ["utf8", "util"]);
        assert_eq!(parts("MANAGER"), ["manager"]);
    }
}
