//! `cargo xtask tidy`, and a test of the same: what the compiler, rustfmt and clippy do not check. Rules are data, each
//! with the reason why it is there, which is printed with whatever breaks it.

use crate::cargo::{self, Platforms};

mod decisions;
mod dependencies;
mod links;
mod named_tests;
mod names;
mod source;
mod text;
mod tree;

use tree::Tree;

/// What breaks a rule, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Finding {
    path: String,
    /// Counted from 1.
    line: Option<usize>,
    what: String,
}

struct Rule {
    name: &'static str,
    why: &'static str,
    check: fn(&Tree) -> Vec<Finding>,
}

#[rustfmt::skip]
const RULES: &[Rule] = &[
    Rule { name: "opening", why: "a reader learns first what a file is for", check: text::opening },
    Rule { name: "length", why: "a file that goes on is two rooms in one", check: text::length },
    Rule { name: "no mod.rs", why: "a file is found by its name, and `mod.rs` is everyone's", check: text::no_mod_rs },
    Rule { name: "trailing space", why: "it makes changes that nobody meant", check: text::trailing_space },
    Rule { name: "tabs", why: "a tab is as wide as each editor likes", check: text::tabs },
    Rule { name: "final newline", why: "without one the next addition changes two lines", check: text::final_newline },
    Rule { name: "unsafe", why: "who audits memory safety reads one file", check: text::unsafe_code },
    Rule { name: "machine paths", why: "such a folder is on one machine only", check: text::machine_paths },
    Rule { name: "names", why: "these words fit everything, so they tell nothing", check: names::check },
    Rule { name: "dependencies", why: "the trust edge carries little code", check: dependencies::check },
    Rule { name: "named tests", why: "a claim whose test is gone is a claim only", check: named_tests::check },
    Rule { name: "links", why: "a dead link costs every reader a search", check: links::check },
    Rule { name: "changelog", why: "a user learns there what changed", check: text::changelog },
    Rule { name: "decisions", why: "a gap or a missing part hides why something is as it is", check: decisions::check },
];

pub(crate) fn run() -> Result<(), String> {
    let tree = Tree::read(&cargo::root(), cargo::metadata(Platforms::Host)?)?;
    let report = report(&tree);
    if report.is_empty() {
        println!("tidy: {} files, {} rules", tree.file_count(), RULES.len());
        Ok(())
    } else {
        Err(format!("{report}tidy: not yet"))
    }
}

fn report(tree: &Tree) -> String {
    let mut report = String::new();
    for rule in RULES {
        let findings = (rule.check)(tree);
        for Finding { path, line, what } in &findings {
            let line = line.map_or_else(String::new, |line| format!(":{line}"));
            report += &format!("{path}{line}: {what}\n");
        }
        if !findings.is_empty() {
            report += &format!("  why ({}): {}\n", rule.name, rule.why);
        }
    }
    report
}

impl Finding {
    fn in_file(path: &str, what: impl Into<String>) -> Self {
        Finding { path: path.to_owned(), line: None, what: what.into() }
    }

    /// `index` as `enumerate` gives it, counted from 0.
    fn on_line(path: &str, index: usize, what: impl Into<String>) -> Self {
        Finding { path: path.to_owned(), line: Some(index + 1), what: what.into() }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::Value;

    use super::*;

    /// Findings of one rule over files made up for it, as `path:line: what`.
    pub(super) fn findings(check: fn(&Tree) -> Vec<Finding>, files: &[(&str, &str)]) -> Vec<String> {
        findings_with(check, files, Value::Null)
    }

    pub(super) fn findings_with(
        check: fn(&Tree) -> Vec<Finding>,
        files: &[(&str, &str)],
        metadata: Value,
    ) -> Vec<String> {
        let files: BTreeMap<_, _> =
            files.iter().map(|(path, text)| ((*path).to_owned(), Some((*text).to_owned()))).collect();
        let found = check(&Tree::new(files, metadata));
        found
            .into_iter()
            .map(|Finding { path, line, what }| match line {
                Some(line) => format!("{path}:{line}: {what}"),
                None => format!("{path}: {what}"),
            })
            .collect()
    }

    #[test]
    fn the_workspace_is_tidy() {
        if let Err(report) = run() {
            panic!("{report}");
        }
    }

    #[test]
    fn a_report_says_where_what_and_why() {
        let files = BTreeMap::from([
            ("CHANGELOG.md".to_owned(), Some("none yet \n".to_owned())),
            ("a.rs".to_owned(), Some("//! a\n".to_owned())),
        ]);
        let report = report(&Tree::new(files, Value::Null));
        let expected =
            "CHANGELOG.md:1: white space at the end of the line\n  why (trailing space): it makes changes";
        assert!(report.contains(expected), "{report}");
        assert!(!report.contains("a.rs"), "{report}");
    }
}
