//! `.dockerignore`: which files of a folder are not sent to the builder. Patterns have Docker's meaning: `*`, `?`,
//! `[a-z]`, `**`, `\` to escape a character, and `!` for exceptions. The last match counts, and a matching folder
//! includes its contents. Character classes that are unterminated or have a reversed range match nothing.

/// The rules of a `.dockerignore`.
#[derive(Debug, Default)]
pub(super) struct IgnoreFile {
    rules: Vec<IgnoreRule>,
}

#[derive(Debug)]
struct IgnoreRule {
    /// The segments between slashes.
    parts: Vec<PatternSegment>,
    is_exception: bool,
}

#[derive(Debug)]
enum PatternSegment {
    /// `**`: any number of folders, including none.
    AnyFolders,
    Name(Vec<char>),
}

impl IgnoreFile {
    pub(super) fn parse(text: &str) -> Self {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        Self { rules: text.lines().filter_map(IgnoreRule::parse).collect() }
    }

    /// Returns true if a path, given as its segments, is ignored. A rule that matches a parent folder applies to the
    /// path too, unless a later rule overrides it.
    pub(super) fn is_ignored(&self, path: &[&str]) -> bool {
        let mut is_out = false;
        for rule in &self.rules {
            if is_out == rule.is_exception && (1..=path.len()).any(|length| rule.matches(&path[..length])) {
                is_out = !rule.is_exception;
            }
        }
        is_out
    }

    /// Returns true if the file has exceptions, so that an ignored folder may contain files to send.
    pub(super) fn has_exceptions(&self) -> bool {
        self.rules.iter().any(|rule| rule.is_exception)
    }
}

impl IgnoreRule {
    fn parse(line: &str) -> Option<Self> {
        if line.starts_with('#') {
            return None;
        }
        let line = line.trim();
        let (is_exception, line) = match line.strip_prefix('!') {
            Some(rest) => (true, rest.trim()),
            None => (false, line),
        };
        let mut parts = Vec::new();
        for part in line.split('/') {
            match part {
                "" | "." => {}
                ".." => drop(parts.pop()),
                "**" => parts.push(PatternSegment::AnyFolders),
                name => parts.push(PatternSegment::Name(name.chars().collect())),
            }
        }
        (!parts.is_empty()).then_some(Self { parts, is_exception })
    }

    fn matches(&self, path: &[&str]) -> bool {
        segments_match(&self.parts, path)
    }
}

fn segments_match(parts: &[PatternSegment], path: &[&str]) -> bool {
    // As in `name_matches`: `again` holds the position of the last `**` and how much of the path it has taken.
    let (mut at, mut of) = (0, 0);
    let mut again: Option<(usize, usize)> = None;
    while of < path.len() {
        match parts.get(at) {
            Some(PatternSegment::AnyFolders) => {
                again = Some((at, of));
                at += 1;
                continue;
            }
            Some(PatternSegment::Name(pattern)) if name_matches(pattern, path[of]) => {
                (at, of) = (at + 1, of + 1);
                continue;
            }
            _ => {}
        }
        let Some((any, taken)) = again else { return false };
        again = Some((any, taken + 1));
        (at, of) = (any + 1, taken + 1);
    }
    // A `**` at the end stands for the contents, so `a/**` does not match the folder `a` itself.
    parts[at..].is_empty()
}

/// Matches one segment. Takes at most the product of both lengths in steps, because only the last `*` is ever retried.
fn name_matches(pattern: &[char], name: &str) -> bool {
    let name: Vec<char> = name.chars().collect();
    let (mut at, mut of) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while of < name.len() {
        if pattern.get(at) == Some(&'*') {
            star = Some((at, of));
            at += 1;
            continue;
        }
        if let Some(length) = letter_matches(&pattern[at..], name[of]) {
            (at, of) = (at + length, of + 1);
            continue;
        }
        let Some((again, taken)) = star else { return false };
        star = Some((again, taken + 1));
        (at, of) = (again + 1, taken + 1);
    }
    pattern[at..].iter().all(|letter| *letter == '*')
}

/// Returns the length of the pattern that matches this letter, or `None` if it does not match.
fn letter_matches(pattern: &[char], letter: char) -> Option<usize> {
    match *pattern.first()? {
        '?' => Some(1),
        '\\' => (pattern.get(1) == Some(&letter)).then_some(2),
        '[' => class_matches(pattern, letter),
        plain => (plain == letter).then_some(1),
    }
}

fn class_matches(pattern: &[char], letter: char) -> Option<usize> {
    let negated = matches!(pattern.get(1), Some('^' | '!'));
    let mut at = if negated { 2 } else { 1 };
    let mut is_in = false;
    let first = at;
    loop {
        let low = match *pattern.get(at)? {
            ']' if at > first => break,
            '\\' => {
                at += 1;
                *pattern.get(at)?
            }
            letter => letter,
        };
        at += 1;
        let mut high = low;
        if pattern.get(at) == Some(&'-') && pattern.get(at + 1).is_some_and(|next| *next != ']') {
            high = pattern[at + 1];
            at += 2;
        }
        is_in |= (low..=high).contains(&letter);
    }
    (is_in != negated).then_some(at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each case has rules, and paths with whether they are ignored.
    #[test]
    fn ignores_paths_like_docker() {
        let cases: &[(&str, &[(&str, bool)])] = &[
            ("", &[("a", false)]),
            ("# a\n\n  \nb", &[("a", false), ("b", true), ("b/c", true), ("x/b", false)]),
            ("/a/", &[("a", true), ("a/b/c", true)]),
            ("*.log", &[("x.log", true), ("d/x.log", false), ("x.log.gz", false)]),
            ("*/*.log", &[("x.log", false), ("d/x.log", true), ("d/e/x.log", false)]),
            ("**/*.log", &[("x.log", true), ("d/x.log", true), ("d/e/x.log", true)]),
            ("a/**", &[("a/b", true), ("a/b/c", true), ("a", false)]),
            ("a/**/z", &[("a/z", true), ("a/b/c/z", true), ("a/b", false), ("z", false)]),
            ("**", &[("a", true), ("a/b", true)]),
            ("*\n!keep", &[("a", true), ("keep", false), ("keep/x", false)]),
            ("*\n!a/b", &[("a", true), ("a/b", false), ("a/c", true)]),
            ("!a\na", &[("a", true)]),
            ("?[0-9].txt", &[("a1.txt", true), ("ab.txt", false)]),
            ("[^a]", &[("a", false), ("b", true)]),
            ("\\*", &[("*", true), ("a", false)]),
            ("[a", &[("a", false), ("[a", false)]),
            ("./a/../b", &[("b", true), ("a", false)]),
            ("  spaced name  ", &[("spaced name", true)]),
        ];
        for (text, paths) in cases {
            let ignored = IgnoreFile::parse(text);
            for (path, expected) in *paths {
                let parts: Vec<&str> = path.split('/').collect();
                assert_eq!(ignored.is_ignored(&parts), *expected, "`{path}` by `{text}`");
            }
        }
    }

    #[test]
    fn hostile_ignore_pattern_is_fast() {
        let ignored = IgnoreFile::parse(&format!("{}b\n{}b", "*a".repeat(500), "**/a/".repeat(500)));
        let long = "a".repeat(255);
        let deep = vec!["a"; 1000];
        let start = std::time::Instant::now();
        assert!(!ignored.is_ignored(&[&long]));
        assert!(!segments_match(&ignored.rules[1].parts, &deep));
        assert!(start.elapsed() < std::time::Duration::from_secs(60));
    }
}
