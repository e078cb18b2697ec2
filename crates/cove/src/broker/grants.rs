//! Which tools code may call: what the operator allows, less what is denied, less what a run did not ask for.

use crate::error::shown;

/// `SERVER.TOOL`, each with `*` for any run of characters. Compared without case, because servers are named by people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    server: String,
    tool: String,
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.server, self.tool)
    }
}

impl Pattern {
    pub fn parse(text: &str) -> Result<Self, String> {
        let (server, tool) = text.split_once('.').unwrap_or((text, "*"));
        let fits = |part: &str| !part.is_empty() && part.len() <= 256 && !part.contains(char::is_control);
        if !fits(server) || !fits(tool) {
            return Err(format!("`{}` is not a pattern of tools", shown(text)));
        }
        Ok(Self { server: server.to_lowercase(), tool: tool.to_lowercase() })
    }

    fn matches(&self, server: &str, tool: &str) -> bool {
        wild(self.server.as_bytes(), server.as_bytes()) && wild(self.tool.as_bytes(), tool.as_bytes())
    }
}

/// `*` matches any run. Walks once and goes back to the last star only, so no pattern takes long.
fn wild(pattern: &[u8], text: &[u8]) -> bool {
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

/// What the operator set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Grants {
    /// Everything, when there are none.
    pub allowed: Vec<Pattern>,
    pub denied: Vec<Pattern>,
}

/// Who said no.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Granted,
    /// The operator's `deny-call`.
    Denied,
    /// Not in the operator's `allow-call`.
    NotAllowed,
    /// The run named the servers it needs, and this is none of them.
    NotAskedFor,
}

impl Grants {
    /// `narrowed` is what one run asked for; all that is allowed when it asked for nothing special.
    pub fn judge(&self, server: &str, alias: &str, tool: &str, narrowed: Option<&[String]>) -> Verdict {
        let (low_server, low_tool) = (server.to_lowercase(), tool.to_lowercase());
        let any = |patterns: &[Pattern]| patterns.iter().any(|one| one.matches(&low_server, &low_tool));
        if any(&self.denied) {
            return Verdict::Denied;
        }
        if !self.allowed.is_empty() && !any(&self.allowed) {
            return Verdict::NotAllowed;
        }
        match narrowed {
            Some(asked) if !names(asked, server, alias) => Verdict::NotAskedFor,
            _ => Verdict::Granted,
        }
    }

    /// Whether any tool of a server could be called.
    pub fn shows(&self, server: &str) -> bool {
        let low = server.to_lowercase();
        let whole =
            |pattern: &&Pattern| pattern.tool == "*" && wild(pattern.server.as_bytes(), low.as_bytes());
        let denied = self.denied.iter().any(|pattern| whole(&pattern));
        let touched = |pattern: &Pattern| wild(pattern.server.as_bytes(), low.as_bytes());
        !denied && (self.allowed.is_empty() || self.allowed.iter().any(touched))
    }
}

/// Whether a server is one of those named.
pub fn names(names: &[String], server: &str, alias: &str) -> bool {
    names.iter().any(|name| name.eq_ignore_ascii_case(server) || name.eq_ignore_ascii_case(alias))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(texts: &[&str]) -> Vec<Pattern> {
        texts.iter().map(|text| Pattern::parse(text).unwrap()).collect()
    }

    #[test]
    fn stars_match_runs() {
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
            assert_eq!(wild(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
        // Takes a blink, not for ever.
        assert!(!wild("*a".repeat(100).as_bytes(), "b".repeat(10_000).as_bytes()));
    }

    #[test]
    fn deny_wins_and_a_run_can_only_narrow() {
        let grants = Grants {
            allowed: patterns(&["github.*", "files.read*"]),
            denied: patterns(&["github.delete_*"]),
        };
        let judge = |server, tool| grants.judge(server, "", tool, None);
        assert_eq!(judge("github", "list_issues"), Verdict::Granted);
        assert_eq!(judge("GitHub", "Delete_Repo"), Verdict::Denied);
        assert_eq!(judge("files", "write_file"), Verdict::NotAllowed);
        assert_eq!(judge("files", "read_file"), Verdict::Granted);
        assert_eq!(judge("slack", "post"), Verdict::NotAllowed);
        let narrowed = ["files".to_owned()];
        assert_eq!(grants.judge("github", "", "list_issues", Some(&narrowed)), Verdict::NotAskedFor);
        assert_eq!(grants.judge("files", "", "read_file", Some(&narrowed)), Verdict::Granted);
        assert_eq!(grants.judge("files", "", "write_file", Some(&narrowed)), Verdict::NotAllowed);
        assert_eq!(grants.judge("github", "", "x", Some(&[])), Verdict::NotAskedFor, "none is none");
        let by_alias = ["git_hub".to_owned()];
        let grants_all = Grants::default();
        assert_eq!(grants_all.judge("git-hub", "git_hub", "x", Some(&by_alias)), Verdict::Granted);
        assert!(grants.shows("github") && grants.shows("files") && !grants.shows("slack"));
        let all_but = Grants { allowed: vec![], denied: patterns(&["slack"]) };
        assert!(all_but.shows("github") && !all_but.shows("slack"));
        assert_eq!(all_but.judge("slack", "", "post", None), Verdict::Denied);
    }

    #[test]
    fn nonsense_is_no_pattern() {
        for text in ["", ".x", "x.", "a\nb", &"x".repeat(300)] {
            assert!(Pattern::parse(text).is_err(), "{text:?}");
        }
    }
}
