//! The rule about claims: in the README, `CONTRIBUTING.md` and `docs/`, a marker names the test that holds the sentence
//! before it. Reference documents show it as `[test: NAME]`; pages that people read to use Cove hide it in a comment,
//! `<!-- test: NAME -->`. `NAME` is one word: a Rust `fn`, a python `def`, or an escape case,
//! `tests/escape/cases/NAME.toml`. The word `NAME` itself stands for any, so that documents can explain this.

use std::collections::BTreeSet;
use std::path::Path;

use super::TidyFinding;
use super::source::{code_only, words};
use super::tree::SourceTree;

/// A way to write a marker: what opens it, what closes it, and how a message quotes it.
struct MarkerForm {
    open: &'static str,
    close: &'static str,
    example: &'static str,
    /// How near misses begin. Without these a misspelt marker would be prose that no check reads.
    near_misses: &'static [&'static str],
}

const VISIBLE: MarkerForm =
    MarkerForm { open: "[test: ", close: "]", example: "[test: NAME]", near_misses: &["[test:", "[Test:", "`test:"] };

const HIDDEN: MarkerForm = MarkerForm {
    open: "<!-- test: ",
    close: " -->",
    example: "<!-- test: NAME -->",
    near_misses: &["<!-- test", "<!-- Test", "<!--test", "<!--Test"],
};

pub(super) fn check(tree: &SourceTree) -> Vec<TidyFinding> {
    let known = known(tree);
    let mut findings = Vec::new();
    for (path, text) in tree.with_extension("md").filter(|(path, _)| makes_claims(path)) {
        for (index, line) in text.lines().enumerate() {
            for what in [&VISIBLE, &HIDDEN].into_iter().flat_map(|form| problems(line, form, &known)) {
                findings.push(TidyFinding::on_line(path, index, what));
            }
            if hides_markers(path) && line.replace(VISIBLE.example, "").contains(VISIBLE.open) {
                let what = format!("write `{}` here, so that readers do not see it", HIDDEN.example);
                findings.push(TidyFinding::on_line(path, index, what));
            }
        }
    }
    findings
}

fn makes_claims(path: &str) -> bool {
    path.starts_with("docs/") || hides_markers(path)
}

/// True for documents that people read to use Cove, not to review its claims.
fn hides_markers(path: &str) -> bool {
    ["README.md", "CONTRIBUTING.md"].contains(&path) || path.starts_with("docs/guides/")
}

fn problems(line: &str, form: &MarkerForm, known: &BTreeSet<String>) -> Vec<String> {
    let mut problems = Vec::new();
    for (at, almost) in form.near_misses.iter().flat_map(|almost| line.match_indices(almost)) {
        let rest = line[at..].strip_prefix(form.open);
        let name = rest.and_then(|rest| rest.split_once(form.close)).map(|(name, _)| name);
        match name {
            Some("NAME") => {}
            Some(name) if is_name(name) => {
                if !known.contains(name) {
                    problems.push(format!("there is no test `{name}`"));
                }
            }
            _ => problems.push(format!("`{}…` is not `{}`", almost.trim_start_matches('`'), form.example)),
        }
    }
    problems
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|letter| letter.is_ascii_alphanumeric() || "_-".contains(letter))
}

fn known(tree: &SourceTree) -> BTreeSet<String> {
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
        check_line("a claim. <!-- test: holds --> <!-- test: read-shadow -->", &[]);
        check_line("write `<!-- test: NAME -->` after a claim <!-- tokens -->", &[]);
    }

    #[test]
    fn a_test_that_is_gone_is_found() {
        check_line("a [test: gone], b [test: holds]", &["there is no test `gone`"]);
        check_line("[test: only_a_comment]", &["there is no test `only_a_comment`"]);
        check_line("a <!-- test: gone -->, b <!-- test: holds -->", &["there is no test `gone`"]);
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
    fn finds_misspelt_comments() {
        let what = |begin: &str| format!("`{begin}…` is not `<!-- test: NAME -->`");
        for (line, begin) in [
            ("<!-- test:holds -->", "<!-- test"),
            ("<!-- test: two words -->", "<!-- test"),
            ("<!-- test: holds-->", "<!-- test"),
            ("<!-- test: holds", "<!-- test"),
            ("<!-- tests: holds -->", "<!-- test"),
            ("<!-- Test: holds -->", "<!-- Test"),
            ("<!--test: holds -->", "<!--test"),
        ] {
            check_line(line, &[&what(begin)]);
        }
    }

    #[test]
    fn the_readme_and_guides_hide_their_markers() {
        let test = ("crates/cove/tests/it/main.rs", "#[test]\nfn holds() {}\n");
        for (path, line, count) in [
            ("README.md", "a claim [test: holds]", 1),
            ("README.md", "a claim <!-- test: holds -->", 0),
            ("CONTRIBUTING.md", "write `[test: NAME]`", 0),
            ("docs/guides/a.md", "a claim [test: holds]", 1),
            ("docs/guides/a.md", "a claim <!-- test: holds -->", 0),
            ("docs/specification.md", "a claim [test: holds]", 0),
        ] {
            assert_eq!(findings(check, &[(path, line), test]).len(), count, "{path}: {line}");
        }
    }

    #[test]
    fn only_documents_make_claims() {
        assert_eq!(findings(check, &[("README.md", "<!-- test: gone -->")]).len(), 1);
        assert_eq!(findings(check, &[("fuzz/README.md", "<!-- test: gone -->")]).len(), 0);
    }
}
