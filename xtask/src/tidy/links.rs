//! The rule about links: a relative link in a markdown file points to a file or folder of this tree. Links to the web
//! are not checked, because a test needs no network.

use super::TidyFinding;
use super::tree::SourceTree;

pub(super) fn check(tree: &SourceTree) -> Vec<TidyFinding> {
    let mut findings = Vec::new();
    for (path, text) in tree.with_extension("md") {
        let mut in_fence = false;
        for (index, line) in text.lines().enumerate() {
            if line.trim_start().starts_with("```") {
                in_fence = !in_fence;
            } else if !in_fence {
                for target in targets(&without_code(line)) {
                    let dead = resolve(path, target).is_some_and(|to| !tree.has(&to));
                    if dead {
                        findings.push(TidyFinding::on_line(
                            path,
                            index,
                            format!("the link to `{target}` leads nowhere"),
                        ));
                    }
                }
            }
        }
    }
    findings
}

/// Text between backticks is not a link.
fn without_code(line: &str) -> String {
    let outside = |(at, part): (usize, &str)| if at % 2 == 0 { part.to_owned() } else { " ".to_owned() };
    line.split('`').enumerate().map(outside).collect()
}

/// The targets of `[text](target "title")` and of lines such as `[name]: target`.
fn targets(line: &str) -> Vec<&str> {
    let inline = line.match_indices("](").filter_map(|(at, _)| line[at + 2..].split(')').next());
    let reference = line.strip_prefix('[').and_then(|rest| rest.split_once("]: ")).map(|(_, target)| target);
    inline.chain(reference).filter_map(|target| target.split_whitespace().next()).collect()
}

/// The path from the top of the tree. `None` for links that are not checked: another site, or a place on the same
/// page.
fn resolve(from: &str, target: &str) -> Option<String> {
    let target = target.trim_start_matches('<').trim_end_matches('>');
    let target = target.split('#').next().unwrap_or_default();
    if target.is_empty() || target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    // An absolute path is never in the tree; its empty first part is kept, so that it matches no file.
    for part in target.trim_end_matches('/').split('/') {
        match part {
            "." => {}
            ".." if parts.pop().is_none() => return Some("..".to_owned()),
            ".." => {}
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::super::tests::findings;
    use super::*;

    fn check_line(line: &str, dead: &[&str]) {
        let files = [("docs/guides/a.md", line), ("docs/security.md", ""), ("LICENSE", "")];
        let expected: Vec<_> =
            dead.iter().map(|target| format!("docs/guides/a.md:1: the link to `{target}` leads nowhere")).collect();
        assert_eq!(findings(check, &files), expected, "{line}");
    }

    #[test]
    fn links_to_what_exists_are_well() {
        check_line("[a](../security.md) [b](../security.md#claims \"title\") [c](a.md) [d](./a.md)", &[]);
        check_line("[a](../../LICENSE) [b](../../docs/) [c](..) [d](#here)", &[]);
        check_line("[a](https://example.org/x) [b](mailto:a@example.org) ![c](<a.md>)", &[]);
        check_line("`[a](gone.md)` is how a link is written", &[]);
    }

    #[test]
    fn dead_links_are_found() {
        check_line("[a](gone.md) and [b](../gone.md#x)", &["gone.md", "../gone.md#x"]);
        check_line("[a]: gone.md", &["gone.md"]);
        check_line("[a](../../../LICENSE)", &["../../../LICENSE"]);
        check_line("[a](/LICENSE)", &["/LICENSE"]);
        check_line("![a](gone.png)", &["gone.png"]);
    }

    #[test]
    fn code_blocks_are_not_followed() {
        let files = [("a.md", "```\n[a](gone.md)\n```\n[b](lost.md)\n")];
        assert_eq!(findings(check, &files), ["a.md:4: the link to `lost.md` leads nowhere"]);
    }
}
