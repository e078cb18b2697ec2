//! Names of servers, tools and parameters as code can write them, and what somebody meant who wrote another one. Pure.

use std::collections::{HashMap, HashSet};

/// Words that python does not take as names. Soft keywords are names.
const KEYWORDS: [&str; 35] = [
    "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue", "def",
    "del", "elif", "else", "except", "finally", "for", "from", "global", "if", "import", "in", "is",
    "lambda", "nonlocal", "not", "or", "pass", "raise", "return", "try", "while", "with", "yield",
];
/// What code finds at a server beside its tools, in python or in JavaScript, and what JavaScript asks of any object.
const MEMBERS: [&str; 7] = ["constructor", "prompts", "resources", "then", "toJSON", "toString", "valueOf"];
/// A longer name is compared by its start alone, so that a comparison stays cheap whatever a guest sends.
const MAX_COMPARED: usize = 64;

/// The letters and digits alone, in lower case: `from_`, `a-b`, `a_b` and `aB` differ in spelling only.
pub fn plain(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

/// A name that python takes. Other languages take it too, as the name of a member.
pub fn identifier(name: &str) -> String {
    let mut text: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' }).collect();
    if text.is_empty() || text.starts_with(|c: char| c.is_ascii_digit()) {
        text.insert(0, '_');
    }
    if KEYWORDS.contains(&text.as_str()) {
        text.push('_');
    }
    text
}

/// An identifier for each name, no two the same. A name that is an identifier already stays what it is, so that it
/// never means another tool; the others follow by their sorted names, the second of a spelling with `_2`.
pub fn identifiers(names: &[&str]) -> Vec<String> {
    unique(names, identifier)
}

/// How code calls the tools of a server: none hides what else is there.
pub fn tool_aliases(names: &[&str]) -> Vec<String> {
    unique(names, |name| match identifier(name) {
        alias if MEMBERS.contains(&alias.as_str()) => alias + "_",
        // Python and its tools ask for such names to see what an object is.
        alias if alias.starts_with("__") => format!("tool{alias}"),
        alias => alias,
    })
}

/// How code calls servers: lower case besides, for `mcp_github`.
pub fn server_aliases(names: &[&str]) -> Vec<String> {
    unique(names, |name| identifier(&name.to_lowercase()))
}

fn unique(names: &[&str], cleaned: impl Fn(&str) -> String) -> Vec<String> {
    let mut taken: HashSet<String> = HashSet::new();
    let mut result: Vec<Option<String>> = names
        .iter()
        .map(|name| (cleaned(name) == **name && taken.insert((*name).to_owned())).then(|| (*name).to_owned()))
        .collect();
    let mut rest: Vec<usize> = (0..names.len()).filter(|at| result[*at].is_none()).collect();
    rest.sort_by_key(|at| (names[*at], *at));
    // Where to go on counting: ten thousand names that come to the same must not be tried ten thousand times each.
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

/// The names that somebody may have meant, the nearest first, at most three.
pub fn nearest<'a>(wrong: &str, names: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    const MOST: usize = 3;
    let wrong: Vec<char> = plain(wrong).chars().take(MAX_COMPARED).collect();
    if wrong.is_empty() {
        return Vec::new();
    }
    let mut near: Vec<(usize, &str)> = names
        .into_iter()
        .filter_map(|name| {
            let right: Vec<char> = plain(name).chars().take(MAX_COMPARED).collect();
            let shorter = wrong.len().min(right.len());
            let within = wrong.len() >= 3 && right.len() >= 3 && {
                let (short, long) =
                    if wrong.len() < right.len() { (&wrong, &right) } else { (&right, &wrong) };
                long.windows(short.len()).any(|part| part == short.as_slice())
            };
            let far = distance(&wrong, &right);
            let allowed = 1 + wrong.len().max(right.len()) / 4;
            // Part of the other name: nearer than any that must be changed in several places.
            match (within, far <= allowed && far < shorter) {
                (true, _) => Some((far.min(2), name)),
                (false, true) => Some((far, name)),
                (false, false) => None,
            }
        })
        .collect();
    near.sort_unstable();
    near.truncate(MOST);
    near.into_iter().map(|(_, name)| name).collect()
}

/// How many letters to insert, leave out, replace, or swap with their neighbour.
pub fn distance(a: &[char], b: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for i in 0..a.len() {
        let mut next = vec![i + 1; b.len() + 1];
        for j in 0..b.len() {
            let replaced = row[j] + usize::from(a[i] != b[j]);
            next[j + 1] = replaced.min(row[j + 1] + 1).min(next[j] + 1);
            if i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j] {
                next[j + 1] = next[j + 1].min(before[j - 1] + 1);
            }
        }
        before = std::mem::replace(&mut row, next);
    }
    row[b.len()]
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
            assert_eq!(identifier(name), expected, "`{name}`");
        }
    }

    #[test]
    fn names_that_come_to_the_same_stay_apart() {
        assert_eq!(identifiers(&["a_b", "a-b"]), ["a_b", "a_b_2"]);
        assert_eq!(identifiers(&["a-b", "a_b"]), ["a_b_2", "a_b"]);
        assert_eq!(identifiers(&["a.b", "a-b", "a b"]), ["a_b_3", "a_b_2", "a_b"]);
        assert_eq!(identifiers(&["a-b", "a_b", "a_b_2"]), ["a_b_3", "a_b", "a_b_2"]);
        assert_eq!(identifiers(&["from", "from_"]), ["from__2", "from_"]);
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
        let aliases: HashSet<String> = identifiers(&names).into_iter().collect();
        assert_eq!(aliases.len(), 10_000);
    }

    #[test]
    fn nearest_names() {
        let names = ["create_issue", "list_issues", "get_issue", "merge_pull_request", "fork"];
        let near = |wrong| nearest(wrong, names);
        assert_eq!(near("create_isue"), ["create_issue"]);
        assert_eq!(near("createIssues"), ["create_issue"]);
        assert_eq!(near("lsit_issues")[0], "list_issues");
        assert_eq!(near("issue").len(), 3);
        assert_eq!(near("frok"), ["fork"]);
        assert_eq!(near("zzzz"), Vec::<&str>::new());
        assert_eq!(near(""), Vec::<&str>::new());
        assert_eq!(near(&"x".repeat(1 << 20)), Vec::<&str>::new());
    }
}
