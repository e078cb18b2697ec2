//! Which tools code may call: those that the operator allows, without those that the operator denies and without the
//! servers that a run did not ask for.

use std::cell::LazyCell;

use crate::error::display_value;

/// `SERVER.TOOL`, where `*` stands for any run of characters. Case does not matter, because people choose the names of
/// servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolPattern {
    server: String,
    tool: String,
}

impl std::fmt::Display for ToolPattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.server, self.tool)
    }
}

impl ToolPattern {
    /// Parses `SERVER.TOOL`, or `SERVER` for all its tools. Fails if a part is empty, too long or has control
    /// characters.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (server, tool) = text.split_once('.').unwrap_or((text, "*"));
        if !fits(server) || !fits(tool) {
            return Err(format!("`{}` is not a pattern of tools", display_value(text)));
        }
        Ok(Self { server: server.to_lowercase(), tool: tool.to_lowercase() })
    }

    /// Parses the pattern of a tool in the definition of its server, which it does not name. Fails as [`Self::parse`] does.
    pub fn for_tool(text: &str) -> Result<Self, String> {
        let mut pattern = Self::parse("*")?;
        // The name of a tool may have dots.
        pattern.tool = text.to_lowercase();
        fits(text).then_some(pattern).ok_or_else(|| format!("`{}` is not a pattern of tools", display_value(text)))
    }

    /// True if the pattern covers a tool of a server, both in lower case.
    fn matches(&self, server: &str, tool: &str) -> bool {
        self.matches_server(server) && matches_wildcard(self.tool.as_bytes(), tool.as_bytes())
    }

    fn matches_server(&self, server: &str) -> bool {
        matches_wildcard(self.server.as_bytes(), server.as_bytes())
    }
}

fn fits(part: &str) -> bool {
    !part.is_empty() && part.len() <= 256 && !part.contains(char::is_control)
}

/// True if the text matches the pattern. Goes back to the last `*` only, so that no pattern takes long.
fn matches_wildcard(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        if p < pattern.len() && pattern[p] == b'*' {
            star = Some((p, t));
            p += 1;
        } else if p < pattern.len() && pattern[p] == text[t] {
            p += 1;
            t += 1;
        } else if let Some((at, from)) = star {
            p = at + 1;
            t = from + 1;
            star = Some((at, t));
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// The operator's rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Grants {
    /// If empty, everything is allowed.
    pub allowed: Vec<ToolPattern>,
    pub denied: Vec<ToolPattern>,
}

/// The decision about a call. A refusal names the rule that it follows from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GrantVerdict {
    Granted,
    /// The operator's `deny-call` matches.
    Denied,
    /// The operator's `allow-call` does not match.
    NotAllowed,
    /// The run named the servers that it needs, and this is not one of them.
    NotAskedFor,
}

impl Grants {
    /// Returns whether a tool may be called. `narrowed` has the servers that the run asked for; None means all allowed
    /// ones.
    pub fn evaluate(&self, server: &str, alias: &str, tool: &str, narrowed: Option<&[String]>) -> GrantVerdict {
        // Searches ask this for thousands of tools, and most operators write no patterns.
        let low = LazyCell::new(|| (server.to_lowercase(), tool.to_lowercase()));
        let any = |patterns: &[ToolPattern]| patterns.iter().any(|one| one.matches(&low.0, &low.1));
        if any(&self.denied) {
            return GrantVerdict::Denied;
        }
        if !self.allowed.is_empty() && !any(&self.allowed) {
            return GrantVerdict::NotAllowed;
        }
        match narrowed {
            Some(asked) if !contains_server(asked, server, alias) => GrantVerdict::NotAskedFor,
            _ => GrantVerdict::Granted,
        }
    }

    /// True if at least one tool of a server may be callable.
    pub fn allows_any_tool(&self, server: &str) -> bool {
        let low = server.to_lowercase();
        let denied = self.denied.iter().any(|pattern| pattern.tool == "*" && pattern.matches_server(&low));
        !denied && (self.allowed.is_empty() || self.allowed.iter().any(|pattern| pattern.matches_server(&low)))
    }
}

/// True if `names` contains a server by its name or its alias.
pub fn contains_server(names: &[String], server: &str, alias: &str) -> bool {
    names.iter().any(|name| name.eq_ignore_ascii_case(server) || name.eq_ignore_ascii_case(alias))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(texts: &[&str]) -> Vec<ToolPattern> {
        texts.iter().map(|text| ToolPattern::parse(text).unwrap()).collect()
    }

    #[test]
    fn wildcards_match_any_run_of_characters() {
        let cases = [
            ("*", "anything", true),
            ("list_*", "list_issues", true),
            ("*_issue*", "create_issue_comment", true),
            ("a*b*c", "axxbyyc", true),
            ("a*b*c", "axxbyy", false),
            ("", "", true),
            ("a", "", false),
            ("get", "GET", false),
        ];
        for (pattern, text, expected) in cases {
            assert_eq!(matches_wildcard(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
        // A naive matcher would need exponential time for this.
        assert!(!matches_wildcard("*a".repeat(100).as_bytes(), "b".repeat(10_000).as_bytes()));
    }

    #[test]
    fn deny_wins_and_a_run_can_only_narrow_grants() {
        let grants = Grants { allowed: patterns(&["github.*", "files.read*"]), denied: patterns(&["github.delete_*"]) };
        let judge = |server, tool| grants.evaluate(server, "", tool, None);
        assert_eq!(judge("github", "list_issues"), GrantVerdict::Granted);
        assert_eq!(judge("GitHub", "Delete_Repo"), GrantVerdict::Denied);
        assert_eq!(judge("files", "write_file"), GrantVerdict::NotAllowed);
        assert_eq!(judge("files", "read_file"), GrantVerdict::Granted);
        assert_eq!(judge("slack", "post"), GrantVerdict::NotAllowed);
        let narrowed = ["files".to_owned()];
        assert_eq!(grants.evaluate("github", "", "list_issues", Some(&narrowed)), GrantVerdict::NotAskedFor);
        assert_eq!(grants.evaluate("files", "", "read_file", Some(&narrowed)), GrantVerdict::Granted);
        assert_eq!(grants.evaluate("files", "", "write_file", Some(&narrowed)), GrantVerdict::NotAllowed);
        assert_eq!(grants.evaluate("github", "", "x", Some(&[])), GrantVerdict::NotAskedFor, "none is none");
        let by_alias = ["git_hub".to_owned()];
        let grants_all = Grants::default();
        assert_eq!(grants_all.evaluate("git-hub", "git_hub", "x", Some(&by_alias)), GrantVerdict::Granted);
        assert!(
            grants.allows_any_tool("github") && grants.allows_any_tool("files") && !grants.allows_any_tool("slack")
        );
        let all_but = Grants { allowed: vec![], denied: patterns(&["slack"]) };
        assert!(all_but.allows_any_tool("github") && !all_but.allows_any_tool("slack"));
        assert_eq!(all_but.evaluate("slack", "", "post", None), GrantVerdict::Denied);
    }

    #[test]
    fn rejects_malformed_tool_patterns() {
        for text in ["", ".x", "x.", "a\nb", &"x".repeat(300)] {
            assert!(ToolPattern::parse(text).is_err(), "{text:?}");
        }
    }
}
