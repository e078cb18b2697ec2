//! A change as a unified diff with one hunk. Control characters other than tabs are escaped for terminals.

use cove_core::error::escape_control;

const CONTEXT_LINES: usize = 3;
/// Characters of a line. Lines are shown whole, but a file of megabytes may be one line.
const MAX_WIDTH: usize = 20_000;

pub(in crate::cli) fn unified(name: &str, before: &str, after: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (before.lines().collect(), after.lines().collect());
    let same = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let rest = old[same..].iter().rev().zip(new[same..].iter().rev()).take_while(|(a, b)| a == b).count();
    let start = same.saturating_sub(CONTEXT_LINES);
    let tail = rest.min(CONTEXT_LINES);
    let mut lines = vec![
        format!("--- {name}"),
        format!("+++ {name}"),
        format!(
            "@@ -{},{} +{},{} @@",
            start + 1,
            old.len() - rest + tail - start,
            start + 1,
            new.len() - rest + tail - start
        ),
    ];
    // A long line is shown from a little before the first difference.
    let skip = match (old.get(same), new.get(same)) {
        (Some(a), Some(b)) => {
            let common = a.chars().zip(b.chars()).take_while(|(a, b)| a == b).count();
            if common > MAX_WIDTH / 2 { common - MAX_WIDTH / 4 } else { 0 }
        }
        _ => 0,
    };
    lines.extend(old[start..same].iter().map(|line| format!(" {}", part(line, 0))));
    lines.extend(old[same..old.len() - rest].iter().map(|line| format!("-{}", part(line, skip))));
    lines.extend(new[same..new.len() - rest].iter().map(|line| format!("+{}", part(line, skip))));
    lines.extend(new[new.len() - rest..].iter().take(tail).map(|line| format!(" {}", part(line, 0))));
    lines.join("\n") + "\n"
}

fn part(line: &str, skip: usize) -> String {
    let count = line.chars().count();
    if count <= MAX_WIDTH {
        return escape_line(line);
    }
    let before = if skip > 0 { "…" } else { "" };
    let after = if skip + MAX_WIDTH < count { "…" } else { "" };
    let shown: String = line.chars().skip(skip).take(MAX_WIDTH).collect();
    format!("{before}{}{after}", escape_line(&shown))
}

fn escape_line(line: &str) -> String {
    line.split('\t').map(escape_control).collect::<Vec<_>>().join("\t")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_a_change_with_its_context() {
        let before = "1\n2\n3\n4\n5\n6\n7\n8\n";
        let after = "1\n2\n3\n4\nfive\nmore\n6\n7\n8\n";
        insta::assert_snapshot!(unified("f", before, after), @"
        --- f
        +++ f
        @@ -2,7 +2,8 @@
         2
         3
         4
        -5
        +five
        +more
         6
         7
         8
        ");
        assert_eq!(unified("f", "", "a\n"), "--- f\n+++ f\n@@ -1,0 +1,1 @@\n+a\n");
    }

    #[test]
    fn limits_and_escapes_long_and_hostile_lines() {
        let line = "x".repeat(1000);
        let whole = unified("f", &format!("\t{line}a"), &format!("\t{line}b\u{1b}[2J"));
        assert_eq!(whole, format!("--- f\n+++ f\n@@ -1,1 +1,1 @@\n-\t{line}a\n+\t{line}b\\u{{1b}}[2J\n"));
        let line = "x".repeat(1_000_000);
        let shown = unified("f", &format!("{line}a{line}"), &format!("{line}b\u{1b}[2J{line}"));
        assert!(shown.chars().count() < 50_000 && shown.contains("xa") && shown.contains("xb\\u{1b}[2J"));
    }
}
