//! A change as people read it: like a unified diff with one hunk, harmless to terminals and bounded.

use crate::error::escaped;

const AROUND: usize = 3;
/// Of a line; a file that is one line has thousands.
const WIDTH: usize = 160;

pub(super) fn text(name: &str, before: &str, after: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (before.lines().collect(), after.lines().collect());
    let same = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let rest = old[same..].iter().rev().zip(new[same..].iter().rev()).take_while(|(a, b)| a == b).count();
    let start = same.saturating_sub(AROUND);
    let tail = rest.min(AROUND);
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
    // In a long line, from a little before what differs.
    let skip = match (old.get(same), new.get(same)) {
        (Some(a), Some(b)) => {
            let common = a.chars().zip(b.chars()).take_while(|(a, b)| a == b).count();
            if common > WIDTH / 2 { common - WIDTH / 4 } else { 0 }
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
    if count <= WIDTH {
        return escaped(line);
    }
    let before = if skip > 0 { "…" } else { "" };
    let after = if skip + WIDTH < count { "…" } else { "" };
    let shown: String = line.chars().skip(skip).take(WIDTH).collect();
    format!("{before}{}{after}", escaped(&shown))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_shown_with_what_is_around_it() {
        let before = "1\n2\n3\n4\n5\n6\n7\n8\n";
        let after = "1\n2\n3\n4\nfive\nmore\n6\n7\n8\n";
        insta::assert_snapshot!(text("f", before, after), @"
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
        assert_eq!(text("f", "", "a\n"), "--- f\n+++ f\n@@ -1,0 +1,1 @@\n+a\n");
    }

    #[test]
    fn long_and_hostile_lines_are_bounded() {
        let line = "x".repeat(1000);
        let shown = text("f", &format!("{line}a{line}"), &format!("{line}b\u{1b}[2J{line}"));
        assert!(
            shown.chars().count() < 500 && shown.contains("xa") && shown.contains("xb\\u{1b}[2J"),
            "{shown}"
        );
    }
}
