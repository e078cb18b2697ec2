//! Turns names of servers, tools and parameters into identifiers. Pure functions.

use std::collections::{HashMap, HashSet};

pub use cove_core::spelling::plain;

/// Python's reserved words. Soft keywords are valid names.
const KEYWORDS: [&str; 35] = [
    "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue", "def", "del",
    "elif", "else", "except", "finally", "for", "from", "global", "if", "import", "in", "is", "lambda", "nonlocal",
    "not", "or", "pass", "raise", "return", "try", "while", "with", "yield",
];
/// Members of a server object besides its tools, in Python or JavaScript, and members that JavaScript expects of any
/// object.
const MEMBERS: [&str; 7] = ["constructor", "prompts", "resources", "then", "toJSON", "toString", "valueOf"];

/// Names in the module `mcp` of Python besides servers, in lower case as aliases are. A server of such a name is reached by
/// `mcp["find"]`.
const MODULE_MEMBERS: [&str; 7] = ["call", "find", "help", "logs", "output", "runtime", "servers"];

/// Returns how Python code names a server: `mcp.github`, or `mcp["find"]` where an attribute would mean something else.
pub(crate) fn python_server(alias: &str) -> String {
    match MODULE_MEMBERS.contains(&alias) || KEYWORDS.contains(&alias) {
        true => format!("mcp[\"{alias}\"]"),
        false => format!("mcp.{alias}"),
    }
}

/// Returns how JavaScript code names a server. Where `mcp` has a function of that name, `mcp.servers` has the server.
pub(crate) fn typescript_server(alias: &str) -> String {
    match MODULE_MEMBERS.contains(&alias) {
        true => format!("mcp.servers.{alias}"),
        false => format!("mcp.{alias}"),
    }
}

/// Returns the name with `_` for every sign that an identifier cannot have, and before a digit at its start.
fn replace_signs(name: &str) -> String {
    let mut text: String = name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' }).collect();
    if text.is_empty() || text.starts_with(|c: char| c.is_ascii_digit()) {
        text.insert(0, '_');
    }
    text
}

/// Returns a valid Python identifier. Other languages accept it as the name of a member.
pub fn to_identifier(name: &str) -> String {
    let mut text = replace_signs(name);
    if KEYWORDS.contains(&text.as_str()) {
        text.push('_');
    }
    text
}

/// Returns a unique identifier for each name. A name that is already an identifier stays unchanged, so it never means
/// another tool. The others follow in sorted order; a second name with the same spelling gets `_2`.
pub fn to_identifiers(names: &[&str]) -> Vec<String> {
    make_unique(names, to_identifier)
}

/// Returns how code calls the tools of a server. No alias hides another member.
pub fn tool_aliases(names: &[&str]) -> Vec<String> {
    make_unique(names, |name| match to_identifier(name) {
        alias if MEMBERS.contains(&alias.as_str()) => alias + "_",
        // Python and its tools look up such names to inspect an object.
        alias if alias.starts_with("__") => format!("tool{alias}"),
        alias => alias,
    })
}

/// Returns how code calls servers: in lower case, with `_` for other signs. The aliases depend only on the set of
/// names, not on its order; a name that is its own alias keeps it.
pub fn server_aliases(names: &[&str]) -> Vec<String> {
    make_unique(names, |name| replace_signs(&name.to_lowercase()))
}

/// FNV-1a: stable across builds, for inputs that are no secret.
pub(crate) fn stable_hash(bytes: impl IntoIterator<Item = u8>) -> u64 {
    let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, fold)
}

fn make_unique(names: &[&str], cleaned: impl Fn(&str) -> String) -> Vec<String> {
    let mut taken: HashSet<String> = HashSet::new();
    let mut result: Vec<Option<String>> = names
        .iter()
        .map(|name| (cleaned(name) == **name && taken.insert((*name).to_owned())).then(|| (*name).to_owned()))
        .collect();
    let mut rest: Vec<usize> = (0..names.len()).filter(|at| result[*at].is_none()).collect();
    rest.sort_by_key(|at| (names[*at], *at));
    // The next number to try for each spelling. Without it, ten thousand equal names would take quadratic time.
    let mut next: HashMap<String, usize> = HashMap::new();
    for at in rest {
        let base = cleaned(names[at]);
        let count = next.entry(base.clone()).or_insert(1);
        let mut alias = base.clone();
        while !taken.insert(alias.clone()) {
            *count += 1;
            alias = format!("{base}_{count}");
        }
        result[at] = Some(alias);
    }
    result.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_identifiers() {
        let cases = [
            ("get-sum", "get_sum"),
            ("API-post-search", "API_post_search"),
            ("files.get", "files_get"),
            ("a b/c", "a_b_c"),
            ("2fa", "_2fa"),
            ("from", "from_"),
            ("None", "None_"),
            ("match", "match"),
            ("getURL", "getURL"),
            ("", "_"),
            ("名前", "__"),
            ("x\"); import os", "x____import_os"),
        ];
        for (name, expected) in cases {
            assert_eq!(to_identifier(name), expected, "`{name}`");
        }
    }

    #[test]
    fn names_with_equal_identifiers_get_numbers() {
        assert_eq!(to_identifiers(&["a_b", "a-b"]), ["a_b", "a_b_2"]);
        assert_eq!(to_identifiers(&["a-b", "a_b"]), ["a_b_2", "a_b"]);
        assert_eq!(to_identifiers(&["a.b", "a-b", "a b"]), ["a_b_3", "a_b_2", "a_b"]);
        assert_eq!(to_identifiers(&["a-b", "a_b", "a_b_2"]), ["a_b_3", "a_b", "a_b_2"]);
        assert_eq!(to_identifiers(&["from", "from_"]), ["from__2", "from_"]);
        assert_eq!(
            server_aliases(&["GitHub", "github", "1password", "my-db"]),
            ["github_2", "github", "_1password", "my_db"]
        );
        assert_eq!(
            tool_aliases(&["resources", "then", "__init__", "名前", "get"]),
            ["resources_", "then_", "tool__init__", "tool__", "get"]
        );
        let many: Vec<String> = (0..10_000).map(|n| "-".to_owned() + &"?".repeat(n % 3) + "x").collect();
        let names: Vec<&str> = many.iter().map(String::as_str).collect();
        let aliases: HashSet<String> = to_identifiers(&names).into_iter().collect();
        assert_eq!(aliases.len(), 10_000);
    }
}
