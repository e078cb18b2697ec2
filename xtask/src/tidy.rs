//! `cargo xtask tidy`, which is also a test: checks what the compiler, rustfmt and clippy do not. Rules are data,
//! each with its reason, which is printed with every finding.

use crate::cargo::{self, MetadataPlatforms};

mod code_lines;
mod crate_order;
mod decisions;
mod dependencies;
mod dialect;
mod links;
mod module_circles;
mod named_tests;
mod product;
mod source;
mod text;
mod tree;
mod type_names;

use tree::SourceTree;

/// A place that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TidyFinding {
    path: String,
    /// Counted from 1.
    line: Option<usize>,
    what: String,
}

struct TidyRule {
    name: &'static str,
    why: &'static str,
    check: fn(&SourceTree) -> Vec<TidyFinding>,
}

#[rustfmt::skip]
const RULES: &[TidyRule] = &[
    TidyRule { name: "opening", why: "a reader learns first what a file is for", check: text::opening },
    TidyRule { name: "length", why: "a file that goes on is two rooms in one", check: text::length },
    TidyRule { name: "no mod.rs", why: "a file is found by its name, and `mod.rs` is everyone's", check: text::no_mod_rs },
    TidyRule { name: "trailing space", why: "it makes changes without a meaning", check: text::trailing_space },
    TidyRule { name: "tabs", why: "a tab is as wide as each editor likes", check: text::tabs },
    TidyRule { name: "final newline", why: "without one the next addition changes two lines", check: text::final_newline },
    TidyRule { name: "unsafe", why: "who audits memory safety reads one file", check: text::unsafe_code },
    TidyRule { name: "machine paths", why: "such a folder is on one machine only", check: text::machine_paths },
    TidyRule { name: "type names", why: "a reader knows a type by its name, without its path", check: type_names::check },
    TidyRule { name: "crates", why: "what is below can be read, tested and used without what is above", check: crate_order::check },
    TidyRule { name: "owners", why: "a library changes in one crate alone", check: crate_order::check_owners },
    TidyRule { name: "modules", why: "modules in a circle can only be read all at once", check: module_circles::check },
    TidyRule { name: "words", why: "a sentence names its actor", check: dialect::check },
    TidyRule { name: "code lines", why: "code that is not there has no faults", check: code_lines::check },
    TidyRule { name: "dependencies", why: "the trust edge carries little code", check: dependencies::check },
    TidyRule { name: "named tests", why: "a claim whose test is gone is a claim only", check: named_tests::check },
    TidyRule { name: "links", why: "a dead link costs every reader a search", check: links::check },
    TidyRule { name: "changelog", why: "a user learns there what changed", check: text::changelog },
    TidyRule { name: "decisions", why: "a gap or a missing part hides why something is as it is", check: decisions::check },
];

/// A line of the table that `tidy` prints.
struct TidyMeasure {
    what: String,
    number: String,
    /// Empty if there is no limit.
    limit: String,
}

const MEASURES: &[fn(&SourceTree) -> Vec<TidyMeasure>] =
    &[type_names::measures, crate_order::measures, module_circles::measures, dialect::measures, code_lines::measures];

pub(crate) fn run() -> Result<(), String> {
    let tree = SourceTree::read(&cargo::root(), cargo::metadata(MetadataPlatforms::Host)?)?;
    print!("{}", table(&tree));
    let report = report(&tree);
    if report.is_empty() {
        println!("tidy: {} files, {} rules", tree.paths().count(), RULES.len());
        Ok(())
    } else {
        Err(format!("{report}tidy: not yet"))
    }
}

fn table(tree: &SourceTree) -> String {
    let mut table = String::new();
    for TidyMeasure { what, number, limit } in MEASURES.iter().flat_map(|measures| measures(tree)) {
        let limit = if limit.is_empty() { limit } else { format!("at most {limit}") };
        table += format!("{what:<36} {number:<26} {limit}").trim_end();
        table.push('\n');
    }
    table
}

fn report(tree: &SourceTree) -> String {
    let mut report = String::new();
    for rule in RULES {
        let findings = (rule.check)(tree);
        for TidyFinding { path, line, what } in &findings {
            let line = line.map_or_else(String::new, |line| format!(":{line}"));
            report += &format!("{path}{line}: {what}\n");
        }
        if !findings.is_empty() {
            report += &format!("  why ({}): {}\n", rule.name, rule.why);
        }
    }
    report
}

impl TidyMeasure {
    fn new(what: impl Into<String>, count: usize, limit: usize) -> Self {
        TidyMeasure { what: what.into(), number: count.to_string(), limit: limit.to_string() }
    }
}

impl TidyFinding {
    fn in_file(path: &str, what: impl Into<String>) -> Self {
        TidyFinding { path: path.to_owned(), line: None, what: what.into() }
    }

    /// `index` comes from `enumerate` and counts from 0.
    fn on_line(path: &str, index: usize, what: impl Into<String>) -> Self {
        TidyFinding { path: path.to_owned(), line: Some(index + 1), what: what.into() }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::Value;

    use super::*;

    /// The findings of one rule over made-up files, as `path:line: what`.
    pub(super) fn findings(check: fn(&SourceTree) -> Vec<TidyFinding>, files: &[(&str, &str)]) -> Vec<String> {
        findings_with(check, files, Value::Null)
    }

    pub(super) fn findings_with(
        check: fn(&SourceTree) -> Vec<TidyFinding>,
        files: &[(&str, &str)],
        metadata: Value,
    ) -> Vec<String> {
        let tree = SourceTree::new(made_up(files), metadata);
        check(&tree)
            .into_iter()
            .map(|TidyFinding { path, line, what }| match line {
                Some(line) => format!("{path}:{line}: {what}"),
                None => format!("{path}: {what}"),
            })
            .collect()
    }

    /// A tree of made-up files.
    pub(super) fn tree(files: &[(&str, &str)]) -> SourceTree {
        SourceTree::new(made_up(files), Value::Null)
    }

    fn made_up(files: &[(&str, &str)]) -> BTreeMap<String, Option<String>> {
        files.iter().map(|(path, text)| ((*path).to_owned(), Some((*text).to_owned()))).collect()
    }

    #[test]
    fn the_table_has_every_measure() {
        let table = table(&tree(&[("crates/a/src/b.rs", "struct SessionLease;\nstruct Lease;")]));
        for line in [
            "type names that are no nouns         0",
            "type names of one word               50.0 % (1 of 2)",
            "upward dependencies between crates   0                          at most 0",
            "code lines of a                      2 Rust, 0 scripts",
        ] {
            assert!(table.lines().any(|own| own.starts_with(line)), "{line}\n{table}");
        }
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
        let report = report(&SourceTree::new(files, Value::Null));
        let expected = "CHANGELOG.md:1: white space at the end of the line\n  why (trailing space): it makes changes";
        assert!(report.contains(expected), "{report}");
        assert!(!report.contains("a.rs"), "{report}");
    }
}
