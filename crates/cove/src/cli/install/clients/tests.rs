//! The names of clients, and how people write them.

use std::collections::BTreeSet;

use super::*;

#[test]
fn names_and_aliases_are_unique() {
    let mut seen = BTreeSet::new();
    for client in CLIENTS {
        for name in client.names {
            assert!(seen.insert(*name), "{name} is not unique");
            assert!(find(name).is_ok_and(|found| found.id() == client.id()), "{name}");
        }
        assert!(!client.user.is_empty() && !client.signs.is_empty(), "{}", client.id());
        assert!(!client.next.is_empty() && !client.next.ends_with('.'), "{}", client.id());
    }
}

#[test]
fn finds_clients_as_people_write_them() {
    let check = |word: &str, id: &str| assert_eq!(find(word).map(|client| client.id()), Ok(id), "{word}");
    check("claude", "claude-code");
    check("Claude Desktop", "claude-desktop");
    check("code", "vscode");
    check("VS_Code", "vscode");
    check("gemini-cli", "gemini");
    let near = |word: &str, name: Option<&str>| {
        assert_eq!(find(word).map(|client| client.id()), Err(name), "{word}");
    };
    near("cursr", Some("cursor"));
    near("claude-dekstop", Some("claude-desktop"));
    near("emacs", None);
    near(&"x".repeat(1 << 20), None);
}
