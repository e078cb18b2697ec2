//! The rule about type names of product code: noun phrases, unique in the workspace. It counts names of one word and
//! names that several types share, and finds names that are only a participle, a pronoun or an adverb.

use std::collections::{BTreeMap, BTreeSet};

use super::product::SourceLanguage;
use super::source::is_word;
use super::tree::SourceTree;
use super::{TidyFinding, TidyMeasure};

/// How many names may break the rule, as percentages of all type names.
struct NameLimits {
    one_word_percent: usize,
    shared_percent: usize,
}

/// May only fall.
const LIMITS: NameLimits = NameLimits { one_word_percent: 10, shared_percent: 1 };
/// Each crate may have one of these names.
const ONE_PER_CRATE: &[&str] = &["Error", "Options", "State"];
#[rustfmt::skip]
const NO_NOUNS: &[&str] = &[
    "Allowed", "Answered", "Around", "Asked", "Asking", "Away", "Begun", "Bound", "Broken", "Brought", "Built", "Called",
    "Caught", "Changed", "Checked", "Chosen", "Closed", "Composed", "Connected", "Connecting", "Counted", "Done", "Drawn",
    "Elsewhere", "Ended", "Expected", "Failed", "Filled", "Finished", "Followed", "Forgotten", "Found", "Further", "Gained",
    "Given", "Gone", "Granted", "Heard", "Held", "Here", "How", "Installed", "Judged", "Kept", "Known", "Left", "Listed",
    "Loaded", "Looked", "Lost", "Made", "Marked", "Meant", "Missing", "Mixed", "More", "Named", "Needed", "Offered", "Opened",
    "Parked", "Parsed", "Passed", "Pinned", "Placed", "Planned", "Prepared", "Promised", "Put", "Raised", "Reached", "Read",
    "Received", "Refused", "Remembered", "Running", "Said", "Saved", "Seen", "Sent", "Served", "Shared", "Shown", "Spoken",
    "Started", "Stopped", "Stored", "Taken", "There", "Tidied", "Told", "Tried", "Under", "Understood", "Unread", "Used",
    "Waiting", "Wanted", "Watched", "What", "When", "Where", "Which", "Who", "Whom", "Whose", "Why", "Within", "Written",
];

/// A type that product code defines.
#[derive(Debug, Clone, Copy)]
struct TypeDefinition<'a> {
    name: &'a str,
    package: &'a str,
    path: &'a str,
    /// Counted from 0.
    line: usize,
}

struct TypeCounts<'a> {
    total: usize,
    one_word: usize,
    shared: Vec<TypeDefinition<'a>>,
    no_nouns: Vec<TypeDefinition<'a>>,
}

pub(super) fn check(tree: &SourceTree) -> Vec<TidyFinding> {
    check_against(tree, &LIMITS)
}

pub(super) fn measures(tree: &SourceTree) -> Vec<TidyMeasure> {
    let counts = TypeCounts::new(tree);
    let total = counts.total;
    let percent = |what: &str, count: usize, limit: usize| TidyMeasure {
        what: what.to_owned(),
        number: format!("{:.1} % ({count} of {total})", count as f64 * 100.0 / total.max(1) as f64),
        limit: format!("{limit} %"),
    };
    vec![
        percent("type names of one word", counts.one_word, LIMITS.one_word_percent),
        percent("types that share a name", counts.shared.len(), LIMITS.shared_percent),
        TidyMeasure::new("type names that are no nouns", counts.no_nouns.len(), 0),
    ]
}

fn check_against(tree: &SourceTree, limits: &NameLimits) -> Vec<TidyFinding> {
    let TypeCounts { total, one_word, shared, no_nouns } = TypeCounts::new(tree);
    let excess = |what: &str, count: usize, percent: usize| {
        let what = format!("{what}: {count} of {total}, more than {percent} %");
        (count * 100 > total * percent).then(|| TidyFinding::in_file("crates", what))
    };
    let mut findings: Vec<_> = no_nouns.iter().map(|one| one.finding("is no noun: say what the type is")).collect();
    findings.extend(excess("type names of one word", one_word, limits.one_word_percent));
    if let Some(finding) = excess("types that share a name", shared.len(), limits.shared_percent) {
        findings.extend(shared.iter().map(|one| one.finding("is the name of several types")));
        findings.push(finding);
    }
    findings
}

impl TypeDefinition<'_> {
    fn finding(&self, what: &str) -> TidyFinding {
        TidyFinding::on_line(self.path, self.line, format!("`{}` {what}", self.name))
    }
}

impl<'a> TypeCounts<'a> {
    fn new(tree: &'a SourceTree) -> Self {
        let types = definitions(tree);
        let mut uses: BTreeMap<&str, usize> = BTreeMap::new();
        for definition in &types {
            *uses.entry(definition.name).or_default() += 1;
        }
        let mut exempt = BTreeSet::new();
        let mut is_shared = |one: &TypeDefinition<'a>| {
            let is_exempt = ONE_PER_CRATE.contains(&one.name) && exempt.insert((one.package, one.name));
            !is_exempt && uses[one.name] > 1
        };
        let mut shared: Vec<_> = types.iter().copied().filter(|one| is_shared(one)).collect();
        shared.sort_by_key(|one| (one.name, one.path, one.line));
        TypeCounts {
            total: types.len(),
            one_word: types.iter().filter(|one| word_count(one.name) == 1).count(),
            shared,
            no_nouns: types.iter().copied().filter(|one| NO_NOUNS.contains(&one.name)).collect(),
        }
    }
}

fn definitions(tree: &SourceTree) -> Vec<TypeDefinition<'_>> {
    let mut found = Vec::new();
    for file in tree.product().iter().filter(|file| file.language == SourceLanguage::Rust) {
        for (line, name) in defined_types(&file.parts.code) {
            found.push(TypeDefinition { name, package: &file.package, path: &file.path, line });
        }
    }
    found
}

/// Defined names with their lines. `type` inside an `impl` or a `trait` is an associated type, which does not count.
fn defined_types(code: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    // For every open block, whether it is an `impl` or a `trait`.
    let mut blocks = Vec::new();
    let mut statement: Vec<&str> = Vec::new();
    for (index, line) in code.lines().enumerate() {
        for token in tokens(line) {
            match token {
                "{" => {
                    let is_function = statement.contains(&"fn");
                    let holds_types = statement.iter().any(|word| matches!(*word, "impl" | "trait"));
                    blocks.push(holds_types && !is_function);
                }
                "}" => drop(blocks.pop()),
                _ => {}
            }
            if matches!(token, "{" | "}" | ";") {
                statement.clear();
                continue;
            }
            let is_definition = match statement.last() {
                Some(&("struct" | "enum" | "trait" | "union")) => true,
                Some(&"type") => blocks.last() != Some(&true),
                _ => false,
            };
            if is_definition && token.starts_with(char::is_uppercase) {
                found.push((index, token));
            }
            statement.push(token);
        }
    }
    found
}

/// Words, and every other visible character on its own.
pub(super) fn tokens(line: &str) -> impl Iterator<Item = &str> {
    let mut rest = line;
    std::iter::from_fn(move || {
        rest = rest.trim_start();
        let first = rest.chars().next()?;
        let length =
            if is_word(first) { rest.find(|letter| !is_word(letter)).unwrap_or(rest.len()) } else { first.len_utf8() };
        let (token, after) = rest.split_at(length);
        rest = after;
        Some(token)
    })
}

/// `HttpFront` and `HTTPFront` are two words, `Utf8` is one.
fn word_count(name: &str) -> usize {
    let letters: Vec<char> = name.chars().collect();
    let begins = |at: &usize| {
        let ends_capitals = letters.get(at + 1).is_some_and(|next| next.is_lowercase());
        letters[*at].is_uppercase() && (!letters[at - 1].is_uppercase() || ends_capitals)
    };
    1 + (1..letters.len()).filter(begins).count()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{findings, tree};
    use super::*;

    fn strict(tree: &SourceTree) -> Vec<TidyFinding> {
        check_against(tree, &NameLimits { one_word_percent: 35, shared_percent: 8 })
    }

    #[test]
    fn types_are_found_where_they_are_defined() {
        let code = "pub(crate) struct A<T>(T);\nenum B {}\npub trait C: X {\n type D;\n}\ntype E = u8;\n\
                    impl C for A {\n type D = u8;\n fn f() { struct F; type G = u8; }\n}\n\
                    fn g(x: impl C) { type H = u8; }\nlet x: fn(I);\nstruct $name;";
        let names: Vec<_> = defined_types(code).into_iter().map(|(_, name)| name).collect();
        assert_eq!(names, ["A", "B", "C", "E", "F", "G", "H"]);
    }

    #[test]
    fn words_of_a_name_are_counted_as_people_read_them() {
        for (name, count) in [("Session", 1), ("SessionLease", 2), ("HTTPFront", 2), ("Utf8", 1), ("IO", 1)] {
            assert_eq!(word_count(name), count, "{name}");
        }
    }

    #[test]
    fn too_many_names_of_one_word_are_found() {
        let files = [("crates/a/src/lib.rs", "struct Lease;\nstruct ImageFolder;")];
        assert_eq!(findings(strict, &files), ["crates: type names of one word: 1 of 2, more than 35 %"]);
        let files = [("crates/a/tests/it.rs", "struct Lease;"), ("crates/a/src/lib.rs", "struct ImageFolder;")];
        assert!(findings(strict, &files).is_empty());
    }

    #[test]
    fn shared_names_are_found_except_one_error_of_each_crate() {
        let files = [
            ("crates/a/src/lib.rs", "enum Error {}\nstruct ImageFolder;"),
            ("crates/b/src/lib.rs", "enum Error {}\nstruct SessionLease;\nstruct ImageFolder;\nstruct CellRequest;"),
        ];
        let expected = [
            "crates/a/src/lib.rs:2: `ImageFolder` is the name of several types",
            "crates/b/src/lib.rs:3: `ImageFolder` is the name of several types",
            "crates: types that share a name: 2 of 6, more than 8 %",
        ];
        assert_eq!(findings(strict, &files), expected);
        let twice = tree(&[("crates/a/src/lib.rs", "enum Error {}"), ("crates/a/src/b.rs", "enum Error {}")]);
        assert_eq!(TypeCounts::new(&twice).shared.len(), 1);
    }

    #[test]
    fn a_participle_alone_is_found() {
        let code = "struct Asked;\nstruct AskedQuestion;\nstruct SessionLease;\nstruct CellRequest;";
        let expected = "crates/a/src/b.rs:1: `Asked` is no noun: say what the type is";
        assert_eq!(findings(strict, &[("crates/a/src/b.rs", code)]), [expected]);
    }
}
