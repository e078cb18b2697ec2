//! The rule about claims: in `README.md` and under `docs/`, `[test: NAME]` says which test holds the sentence before
//! it. `NAME` is one word: a Rust `fn`, a python `def`, or an escape case, `tests/escape/cases/NAME.toml`. The word
//! `NAME` itself stands for any, so that documents can explain this.

use std::collections::BTreeSet;
use std::path::Path;

use super::Finding;
use super::source::{code_only, words};
use super::tree::Tree;

const OPEN: &str = "[test: ";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let known = known(tree);
    let mut findings = Vec::new();
    let documents =
        tree.with_extension("md").filter(|(path, _)| *path == "README.md" || path.starts_with("docs/"));
    for (path, text) in documents {
        for (index, line) in text.lines().enumerate() {
            for what in problems(line, &known) {
                findings.push(Finding::on_line(path, index, what));
            }
        }
    }
    findings
}

fn problems(line: &str, known: &BTreeSet<String>) -> Vec<String> {
    let mut problems = Vec::new();
    // Almost the syntax would be prose that nobody checks.
    for (at, almost) in ["[test:", "[Test:", "`test:"].iter().flat_map(|almost| line.match_indices(almost)) {
        let rest = &line[at..];
        let name = rest.strip_prefix(OPEN).and_then(|rest| rest.split_once(']')).map(|(name, _)| name);
        match name {
            Some("NAME") => {}
            Some(name) if is_name(name) => {
                if !known.contains(name) {
                    problems.push(format!("there is no test `{name}`"));
                }
            }
            _ => problems.push(format!("`{}…` is not `[test: NAME]`", almost.trim_start_matches('`'))),
        }
    }
    problems
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|letter| letter.is_ascii_alphanumeric() || "_-".contains(letter))
}

fn known(tree: &Tree) -> BTreeSet<String> {
    let mut known = BTreeSet::new();
    for (_, text) in tree.rust() {
        add_after("fn", &code_only(text), &mut known);
    }
    for (_, text) in tree.with_extension("py") {
        add_after("def", text, &mut known);
    }
    for path in tree.paths().filter(|path| path.contains("tests/escape/cases/")) {
        known.extend(Path::new(path).file_stem().map(|stem| stem.to_string_lossy().into_owned()));
    }
    known
}

fn add_after(keyword: &str, text: &str, known: &mut BTreeSet<String>) {
    for line in text.lines() {
        let mut words = words(line);
        while let Some(word) = words.next() {
            if word == keyword {
                known.extend(words.next().map(str::to_owned));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::findings;
    use super::*;

    fn check_line(line: &str, expected: &[&str]) {
        let files = [
            ("docs/security.md", line),
            ("crates/cove/tests/escape/main.rs", "#[test]\nfn holds() {}\n// fn only_a_comment()\n"),
            ("crates/cove-runner/shims/python/tests/test_cell.py", "class A:\n    def test_cell(self):\n"),
            ("crates/cove/tests/escape/cases/read-shadow.toml", ""),
        ];
        let expected: Vec<_> = expected.iter().map(|what| format!("docs/security.md:1: {what}")).collect();
        assert_eq!(findings(check, &files), expected, "{line}");
    }

    #[test]
    fn tests_that_exist_are_known() {
        check_line("| claim | [test: holds] [test: test_cell] | [test: read-shadow] |", &[]);
        check_line("write `[test: NAME]` after a claim; a [test](a.md) is a link", &[]);
    }

    #[test]
    fn a_test_that_is_gone_is_found() {
        check_line("a [test: gone], b [test: holds]", &["there is no test `gone`"]);
        check_line("[test: only_a_comment]", &["there is no test `only_a_comment`"]);
    }

    #[test]
    fn almost_the_syntax_is_found() {
        let what = &["`[test:…` is not `[test: NAME]`"];
        for line in ["[test:holds]", "[test: two words]", "[test: it::holds]", "[test: ]", "[test: holds"] {
            check_line(line, what);
        }
        check_line("[Test: holds]", &["`[Test:…` is not `[test: NAME]`"]);
        check_line("`test:holds`", &["`test:…` is not `[test: NAME]`"]);
    }

    #[test]
    fn only_documents_make_claims() {
        assert_eq!(findings(check, &[("README.md", "[test: gone]")]).len(), 1);
        assert_eq!(findings(check, &[("fuzz/README.md", "[test: gone]")]).len(), 0);
    }
}
