//! The one canonical form of a path, and patterns for it. What a server could read as another path is refused, instead of
//! guessing what the server does.

use std::fmt;

use cove_core::error::Refusal;

/// Which paths a rule is about. Each part between slashes is a text, `*` for exactly one part, or `**` at the end for one
/// part or more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathPattern {
    written: String,
    parts: Vec<PatternPart>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum PatternPart {
    Text(String),
    One,
    Rest,
}

impl PathPattern {
    /// Fails if the text is no path, or has stars that are not a whole part.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        let hint = "write a path such as `/user`, `/repos/*/issues` for one part, or `/repos/**` for all below";
        let refuse = |problem: &str| Refusal::of_value(text, problem, hint);
        if text.contains(['?', '#']) {
            return Err(refuse("has a query or a fragment, which paths do not have"));
        }
        let path = canonical_path(text).map_err(|problem| refuse(&format!("is not a path: {problem}")))?;
        let mut parts = Vec::new();
        for part in path[1..].split('/') {
            parts.push(match part {
                _ if parts.last() == Some(&PatternPart::Rest) => return Err(refuse("goes on behind `**`")),
                "*" => PatternPart::One,
                "**" => PatternPart::Rest,
                _ if part.contains('*') => return Err(refuse("has a `*` that is not a whole part")),
                _ => PatternPart::Text(part.to_owned()),
            });
        }
        Ok(Self { written: path, parts })
    }

    /// Returns whether a canonical path is one of these.
    pub(crate) fn matches(&self, path: &str) -> bool {
        let mut found = path.strip_prefix('/').unwrap_or_default().split('/');
        for part in &self.parts {
            let Some(next) = found.next() else { return false };
            match part {
                PatternPart::Text(text) if text == next => {}
                PatternPart::One if !next.is_empty() => {}
                PatternPart::Rest => return true,
                PatternPart::Text(_) | PatternPart::One => return false,
            }
        }
        found.next().is_none()
    }

    /// True if every path of the other pattern is one of these.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        let mut others = other.parts.iter();
        for part in &self.parts {
            match (part, others.next()) {
                (_, None) => return false,
                (PatternPart::Rest, Some(_)) => return true,
                (PatternPart::One, Some(PatternPart::Text(text))) if !text.is_empty() => {}
                (_, Some(other)) if part == other => {}
                (PatternPart::One | PatternPart::Text(_), Some(_)) => return false,
            }
        }
        others.next().is_none()
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.written)
    }
}

/// Returns a path without needless escapes and with capital hexadecimal digits. Fails with the problem if two servers
/// could read it differently.
pub(crate) fn canonical_path(path: &str) -> Result<String, &'static str> {
    if !path.starts_with('/') {
        return Err("it does not begin with `/`");
    }
    let mut canonical = String::with_capacity(path.len());
    let mut bytes = path.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'%' => {
                let digits = [bytes.next(), bytes.next()].map(|digit| digit.and_then(|d| char::from(d).to_digit(16)));
                let [Some(high), Some(low)] = digits else { return Err("it has a `%` without two digits") };
                // Two hexadecimal digits make at most 255.
                let byte = (high * 16 + low) as u8;
                match byte {
                    b'/' | b'\\' | 0 => return Err("it has an escaped `/`, `\\` or NUL"),
                    b'-' | b'.' | b'_' | b'~' => canonical.push(char::from(byte)),
                    _ if byte.is_ascii_alphanumeric() => canonical.push(char::from(byte)),
                    _ => canonical.push_str(&format!("%{byte:02X}")),
                }
            }
            b'\\' => return Err("it has a `\\`"),
            _ if byte.is_ascii_graphic() => canonical.push(char::from(byte)),
            _ => return Err("it has a character that must be escaped"),
        }
    }
    if canonical.contains("//") {
        return Err("it has `//`");
    }
    let is_digits = |text: &str| text.len() >= 2 && text.bytes().take(2).all(|byte| byte.is_ascii_hexdigit());
    if canonical.split("%25").skip(1).any(is_digits) {
        return Err("it has an escape within an escape, which a second decoding changes");
    }
    // Some servers take what is behind a `;` for no part of the name, and some decode it before.
    let is_dots = |part: &str| matches!(part.replace("%3B", ";").split(';').next(), Some("." | ".."));
    match canonical.split('/').any(is_dots) {
        true => Err("it has `.` or `..` as a part"),
        false => Ok(canonical),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pattern: &str, matching: &[&str], others: &[&str]) {
        let pattern = PathPattern::parse(pattern).unwrap();
        for path in matching {
            assert!(pattern.matches(&canonical_path(path).unwrap()), "{pattern} {path}");
        }
        for path in others {
            assert!(!pattern.matches(&canonical_path(path).unwrap()), "{pattern} {path}");
        }
    }

    #[test]
    fn a_pattern_stands_for_exactly_its_paths() {
        check("/user", &["/user", "/%75ser", "/us%65r"], &["/", "/user/", "/users", "/user/x", "/User"]);
        check("/repos/*/issues", &["/repos/a/issues"], &["/repos//issues".replace("//", "/").as_str(), "/repos/a/b"]);
        check(
            "/repos/acme/**",
            &["/repos/acme/a", "/repos/acme/a/b", "/repos/acme/"],
            &["/repos/acme", "/repos/acm/a"],
        );
        check("/**", &["/", "/a/b"], &[]);
        check("/a%20b", &["/a%20b"], &["/a+b", "/ab"]);
        check("/é".replace('é', "%c3%a9").as_str(), &["/%C3%A9"], &["/e"]);
    }

    #[test]
    fn refuses_paths_that_two_servers_could_read_differently() {
        for path in [
            "/repos/acme/../../admin",
            "/repos/acme/%2e%2e/admin",
            "/repos/acme/.%2E/admin",
            "/a/./b",
            "/a/..;x=1/b",
            "/a/..%3b/b",
            "/a/%2e%2E%3Bx=1/b",
            "/a/.%3b/b",
            "/a%252e%252e/b",
            "/a%252f",
            "/a%25%32%65%25%32%65/b",
            "/a%2fb",
            "/a%2Fb",
            "/a%5cb",
            "/a\\b",
            "/a%00",
            "//admin",
            "/a//b",
            "/a%",
            "/a%4",
            "/a%zz",
            "/a b",
            "/\u{e9}",
            "a",
            "",
        ] {
            assert!(canonical_path(path).is_err(), "{path}");
        }
        for (path, canonical) in [("/100%25", "/100%25"), ("/a%25b/c;d=1/e%3b", "/a%25b/c;d=1/e%3B")] {
            assert_eq!(canonical_path(path).unwrap(), canonical);
        }
    }

    #[test]
    fn a_pattern_covers_another_if_it_has_all_its_paths() {
        let covers =
            |one: &str, other: &str| PathPattern::parse(one).unwrap().covers(&PathPattern::parse(other).unwrap());
        for (one, other) in [("/**", "/a/*"), ("/a/**", "/a/"), ("/a/*", "/a/b"), ("/a/*", "/a/*"), ("/a", "/%61")] {
            assert!(covers(one, other), "{one} {other}");
        }
        for (one, other) in [("/a/*", "/a/**"), ("/a/*", "/a/"), ("/a", "/a/b"), ("/a/**", "/a"), ("/a/b", "/a/*")] {
            assert!(!covers(one, other), "{one} {other}");
        }
    }

    #[test]
    fn rules_cannot_have_half_stars() {
        for text in ["/a*", "/**/a", "/a?b", "/a#b", "a", "/../a", "/a//b"] {
            assert!(PathPattern::parse(text).is_err(), "{text}");
        }
    }
}
