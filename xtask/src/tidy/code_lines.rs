//! The rule about the amount of code: lines of product code that are neither blank nor a comment nor a test.

use std::collections::BTreeMap;

use super::product::{ProductFile, SourceLanguage};
use super::tree::SourceTree;
use super::{TidyFinding, TidyMeasure};

/// 44,140 after the crates were split, 3,065 fewer than before. Only a feature, or a hole that is closed, raises it, in the
/// commit that needs it.
const MAX_LINES: usize = 82_200;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct LineCounts {
    rust: usize,
    scripts: usize,
}

pub(super) fn check(tree: &SourceTree) -> Vec<TidyFinding> {
    check_against(tree, MAX_LINES)
}

fn check_against(tree: &SourceTree, limit: usize) -> Vec<TidyFinding> {
    let total = total(&by_package(tree));
    let sum = total.rust + total.scripts;
    let what = format!("{sum} lines of product code, more than {limit}");
    if sum > limit { vec![TidyFinding::in_file("crates", what)] } else { Vec::new() }
}

pub(super) fn measures(tree: &SourceTree) -> Vec<TidyMeasure> {
    let counts = by_package(tree);
    let row = |name: &str, counts: LineCounts| TidyMeasure {
        what: format!("code lines of {name}"),
        number: format!("{} Rust, {} scripts", counts.rust, counts.scripts),
        limit: String::new(),
    };
    let mut rows: Vec<_> = counts.iter().map(|(name, counts)| row(name, *counts)).collect();
    let total = total(&counts);
    rows.push(row("all", total));
    rows.push(TidyMeasure::new("code lines", total.rust + total.scripts, MAX_LINES));
    rows
}

fn by_package(tree: &SourceTree) -> BTreeMap<&str, LineCounts> {
    let mut packages: BTreeMap<&str, LineCounts> = BTreeMap::new();
    for file in tree.product() {
        let counts = packages.entry(&file.package).or_default();
        let lines = line_count(file);
        match file.language {
            SourceLanguage::Rust => counts.rust += lines,
            _ => counts.scripts += lines,
        }
    }
    packages
}

fn total(packages: &BTreeMap<&str, LineCounts>) -> LineCounts {
    let sum = |part: fn(&LineCounts) -> usize| packages.values().map(part).sum();
    LineCounts { rust: sum(|one| one.rust), scripts: sum(|one| one.scripts) }
}

fn line_count(file: &ProductFile) -> usize {
    let lines = file.parts.code.lines().zip(file.parts.literals.lines());
    lines.filter(|(code, literals)| !code.trim().is_empty() || !literals.trim().is_empty()).count()
}

#[cfg(test)]
mod tests {
    use super::super::tests::tree;
    use super::*;

    #[test]
    fn blanks_comments_and_tests_do_not_count() {
        let code = "//! a\n\nfn a() { // b\n    \"c\n    d\"\n}\n/* e\n f */\n#[cfg(test)]\nmod tests {\n}\n";
        let tree = tree(&[
            ("crates/a/src/b.rs", code),
            ("crates/a/shims/c.sh", "# d\n\ne # f\n"),
            ("xtask/src/main.rs", "fn main() {}"),
            ("crates/a/tests/d.rs", "fn d() {}"),
        ]);
        let expected = [("a", LineCounts { rust: 4, scripts: 1 }), ("xtask", LineCounts { rust: 1, scripts: 0 })];
        assert_eq!(by_package(&tree), BTreeMap::from(expected));
        assert!(check_against(&tree, 6).is_empty());
        let found = check_against(&tree, 5);
        assert_eq!(found, [TidyFinding::in_file("crates", "6 lines of product code, more than 5")]);
    }
}
