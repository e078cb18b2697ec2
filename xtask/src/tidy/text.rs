//! Rules about files as text: how they open and end, how long they are, and what they must not contain.

use super::TidyFinding;
use super::source::{code_only, is_word, words};
use super::tree::{SourceTree, has_part};

const MAX_LINES: usize = 600;
/// Tests are lists of cases: longer, and still easy to read.
const MAX_LINES_OF_TESTS: usize = 800;
/// The only file that may contain `unsafe`.
const UNSAFE: &str = "crates/cove-jail/src/sys.rs";
const MACHINE_PATHS: &[&str] = &["/work/", "/root/"];

pub(super) fn opening(tree: &SourceTree) -> Vec<TidyFinding> {
    tree.rust()
        .filter(|(_, text)| !text.starts_with("//!"))
        .map(|(path, _)| TidyFinding::on_line(path, 0, "does not open with `//!` and what the file is for"))
        .collect()
}

pub(super) fn length(tree: &SourceTree) -> Vec<TidyFinding> {
    tree.rust()
        .filter_map(|(path, text)| {
            let limit = if has_part(path, "tests") { MAX_LINES_OF_TESTS } else { MAX_LINES };
            let lines = text.lines().count();
            (lines > limit).then(|| TidyFinding::in_file(path, format!("{lines} lines, more than {limit}")))
        })
        .collect()
}

pub(super) fn no_mod_rs(tree: &SourceTree) -> Vec<TidyFinding> {
    tree.rust()
        .filter(|(path, _)| path.ends_with("/mod.rs"))
        .map(|(path, _)| TidyFinding::in_file(path, "is called `mod.rs`: name it after its folder, beside it"))
        .collect()
}

pub(super) fn trailing_space(tree: &SourceTree) -> Vec<TidyFinding> {
    each_line(tree.texts().filter(|(path, _)| !is_recorded(path)), |line| {
        line.ends_with(char::is_whitespace).then(|| "white space at the end of the line".to_owned())
    })
}

pub(super) fn tabs(tree: &SourceTree) -> Vec<TidyFinding> {
    each_line(tree.rust(), |line| line.contains('\t').then(|| "a tab".to_owned()))
}

pub(super) fn final_newline(tree: &SourceTree) -> Vec<TidyFinding> {
    tree.texts()
        .filter(|(path, text)| !is_recorded(path) && !text.is_empty())
        .filter(|(_, text)| !text.ends_with('\n') || text.ends_with("\n\n") || *text == "\n")
        .map(|(path, _)| TidyFinding::in_file(path, "does not end with exactly one newline"))
        .collect()
}

pub(super) fn unsafe_code(tree: &SourceTree) -> Vec<TidyFinding> {
    let mut findings = Vec::new();
    for (path, text) in tree.rust().filter(|(path, _)| *path != UNSAFE) {
        for (index, line) in code_only(text).lines().enumerate() {
            if words(line).any(|word| word == "unsafe") {
                findings.push(TidyFinding::on_line(path, index, format!("`unsafe`, which only `{UNSAFE}` may say")));
            }
        }
    }
    findings
}

pub(super) fn machine_paths(tree: &SourceTree) -> Vec<TidyFinding> {
    // Escape cases name such folders because a guest must not reach them.
    let texts = tree.texts().filter(|(path, _)| {
        let is_for_people = [".md", ".toml", ".sh"].iter().any(|end| path.ends_with(end)) || path.starts_with(".ci/");
        is_for_people && !has_part(path, "tests")
    });
    each_line(texts, |line| {
        let found = MACHINE_PATHS.iter().find(|path| {
            line.match_indices(*path).any(|(at, _)| {
                // `~/work/` and `crates/work/` are not absolute paths.
                !line[..at].ends_with(|before| is_word(before) || "~.-})".contains(before))
            })
        });
        found.map(|path| format!("`{path}…` is a folder of one machine"))
    })
}

pub(super) fn changelog(tree: &SourceTree) -> Vec<TidyFinding> {
    if tree.has("CHANGELOG.md") { Vec::new() } else { vec![TidyFinding::in_file("CHANGELOG.md", "is missing")] }
}

/// True for snapshots that insta wrote from a program's output; their form is not checked.
fn is_recorded(path: &str) -> bool {
    path.ends_with(".snap") || path.ends_with(".snap.new")
}

fn each_line<'a>(
    texts: impl Iterator<Item = (&'a str, &'a str)>,
    find: impl Fn(&str) -> Option<String>,
) -> Vec<TidyFinding> {
    let mut findings = Vec::new();
    for (path, text) in texts {
        for (index, line) in text.split('\n').enumerate() {
            findings.extend(find(line).map(|what| TidyFinding::on_line(path, index, what)));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::tests::findings;
    use super::*;

    /// Checks a rule against a file that breaks it, with the finding, and a file that does not.
    fn check(rule: fn(&SourceTree) -> Vec<TidyFinding>, bad: (&str, &str), finding: &str, good: (&str, &str)) {
        assert_eq!(findings(rule, &[bad, good]), [format!("{}{finding}", bad.0)]);
    }

    #[test]
    fn a_file_without_an_opening_is_found() {
        let bad = ("crates/cove/build.rs", "// what\n//! late\n");
        check(opening, bad, ":1: does not open with `//!` and what the file is for", ("a.rs", "//! What it is for.\n"));
    }

    #[test]
    fn a_long_file_is_found() {
        let long = "//! x\n".repeat(601);
        check(length, ("a.rs", &long), ": 601 lines, more than 600", ("a/tests/b.rs", &long));
        let longer = "//! x\n".repeat(801);
        check(length, ("tests.rs", &longer), ": 801 lines, more than 800", ("a.md", &longer));
    }

    #[test]
    fn a_mod_rs_is_found() {
        check(
            no_mod_rs,
            ("a/mod.rs", ""),
            ": is called `mod.rs`: name it after its folder, beside it",
            ("a/amod.rs", ""),
        );
    }

    #[test]
    fn trailing_space_is_found() {
        let good = ("a.snap", "printed \n");
        check(trailing_space, ("a.md", "a\nb \nc\n"), ":2: white space at the end of the line", good);
        check(trailing_space, ("a.rs", "a\r\n"), ":1: white space at the end of the line", ("b.rs", "a\n"));
    }

    #[test]
    fn a_tab_is_found() {
        check(tabs, ("a.rs", "\tfn"), ":1: a tab", ("Makefile", "\tcargo"));
    }

    #[test]
    fn a_missing_or_doubled_final_newline_is_found() {
        let what = ": does not end with exactly one newline";
        for text in ["a", "a\n\n", "\n"] {
            check(final_newline, ("a.toml", text), what, ("b.toml", "a\n"));
        }
        assert!(findings(final_newline, &[("__init__.py", "")]).is_empty());
    }

    #[test]
    fn unsafe_elsewhere_is_found() {
        let what = ":2: `unsafe`, which only `crates/cove-jail/src/sys.rs` may say";
        for code in ["fn f() { unsafe { g() } }", "unsafe fn f() {}", "#[unsafe(no_mangle)]"] {
            let bad = format!("//! x\n{code}\n");
            check(unsafe_code, ("crates/cove-jail/src/plan.rs", &bad), what, (UNSAFE, &bad));
        }
        let good = "#![forbid(unsafe_code)] // unsafe\n/* unsafe */ let a = \"unsafe\";\n";
        assert!(findings(unsafe_code, &[("a.rs", good)]).is_empty());
    }

    #[test]
    fn a_machine_s_path_is_found() {
        let good = ("docs/a.md", "`/workspace/`, ~/work/x, crates/work/x, https://example.org/root/\n");
        check(machine_paths, ("docs/b.md", "\nin /work/main\n"), ":2: `/work/…` is a folder of one machine", good);
        let case = ("crates/cove/tests/escape/cases/a.toml", "path = '/root/.ssh'");
        check(machine_paths, (".ci/run", "cd /root/x"), ":1: `/root/…` is a folder of one machine", case);
        check(machine_paths, ("a.toml", "a='/root/x'"), ":1: `/root/…` is a folder of one machine", ("a.rs", "/root/"));
    }

    #[test]
    fn a_missing_changelog_is_found() {
        assert_eq!(findings(changelog, &[]), ["CHANGELOG.md: is missing"]);
        assert!(findings(changelog, &[("CHANGELOG.md", "")]).is_empty());
    }
}
