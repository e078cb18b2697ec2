//! The rule about decision records: `docs/decisions/NNNN-what.md`, numbered from 0001 without a gap, each with the same
//! four parts.

use super::TidyFinding;
use super::tree::SourceTree;

const FOLDER: &str = "docs/decisions/";
const HEADINGS: &[&str] = &["Context", "Decision", "Evidence", "Consequences"];

pub(super) fn check(tree: &SourceTree) -> Vec<TidyFinding> {
    let mut findings = Vec::new();
    let mut expected = 1;
    // In the order of their names, and so of their numbers.
    for (path, text) in tree.texts().filter(|(path, _)| path.starts_with(FOLDER)) {
        match number(&path[FOLDER.len()..]) {
            None => findings.push(TidyFinding::in_file(path, "is not called `NNNN-what-is-decided.md`")),
            Some(number) if number == expected => expected += 1,
            Some(number) => {
                findings
                    .push(TidyFinding::in_file(path, format!("has number {number:04} where {expected:04} is next")));
                expected = number + 1;
            }
        }
        let has = |heading: &str| text.lines().any(|line| line.strip_prefix("## ") == Some(heading));
        for heading in HEADINGS.iter().filter(|heading| !has(heading)) {
            findings.push(TidyFinding::in_file(path, format!("has no heading `## {heading}`")));
        }
    }
    findings
}

fn number(name: &str) -> Option<u32> {
    let (number, what) = name.strip_suffix(".md")?.split_once('-')?;
    let is_number = number.len() == 4 && number.bytes().all(|digit| digit.is_ascii_digit());
    if is_number && !what.is_empty() { number.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::super::tests::findings;
    use super::*;

    const WHOLE: &str = "# 1\n## Context\n## Decision\n## Evidence\n## Consequences\n";

    fn check_names(names: &[&str], expected: &[&str]) {
        let files: Vec<_> = names.iter().map(|name| format!("{FOLDER}{name}")).collect();
        let files: Vec<_> = files.iter().map(|path| (path.as_str(), WHOLE)).collect();
        let expected: Vec<_> = expected.iter().map(|finding| format!("{FOLDER}{finding}")).collect();
        assert_eq!(findings(check, &files), expected);
    }

    #[test]
    fn records_are_numbered_without_gaps() {
        check_names(&[], &[]);
        check_names(&["0001-a.md", "0002-b.md"], &[]);
        check_names(&["0002-b.md"], &["0002-b.md: has number 0002 where 0001 is next"]);
        check_names(&["0001-a.md", "0003-c.md", "0004-d.md"], &["0003-c.md: has number 0003 where 0002 is next"]);
        check_names(&["0001-a.md", "0001-b.md"], &["0001-b.md: has number 0001 where 0002 is next"]);
        check_names(&["1-a.md"], &["1-a.md: is not called `NNNN-what-is-decided.md`"]);
    }

    #[test]
    fn a_missing_part_is_found() {
        let found = findings(check, &[("docs/decisions/0001-a.md", "## Context\n## Decision\n### Evidence\n")]);
        assert_eq!(
            found,
            [
                "docs/decisions/0001-a.md: has no heading `## Evidence`",
                "docs/decisions/0001-a.md: has no heading `## Consequences`"
            ]
        );
    }
}
