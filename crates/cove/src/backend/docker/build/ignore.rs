//! `.dockerignore`: which files of a folder are not sent to be built. The patterns that people use are understood as Docker
//! does: `*`, `?`, `[a-z]`, `**`, `\` before a letter that means itself, `!` for exceptions, the last match counting, and a
//! folder that matches taking what is in it along. Not understood, and so matching nothing: classes that name a range
//! backwards or do not end.

/// What a `.dockerignore` says.
#[derive(Debug, Default)]
pub(super) struct Ignored {
    rules: Vec<Rule>,
}

#[derive(Debug)]
struct Rule {
    /// Between slashes.
    parts: Vec<Part>,
    is_exception: bool,
}

#[derive(Debug)]
enum Part {
    /// `**`: any number of folders, none included.
    Any,
    Name(Vec<char>),
}

impl Ignored {
    pub(super) fn parse(text: &str) -> Self {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        Self { rules: text.lines().filter_map(Rule::parse).collect() }
    }

    /// Whether a path, its parts between slashes, is left out. What decides its parents decides it, unless a later rule
    /// says otherwise.
    pub(super) fn leaves_out(&self, path: &[&str]) -> bool {
        let mut is_out = false;
        for rule in &self.rules {
            if is_out == rule.is_exception && (1..=path.len()).any(|length| rule.matches(&path[..length])) {
                is_out = !rule.is_exception;
            }
        }
        is_out
    }

    /// Whether something may be wanted inside a folder that is left out.
    pub(super) fn has_exceptions(&self) -> bool {
        self.rules.iter().any(|rule| rule.is_exception)
    }
}

impl Rule {
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
                "**" => parts.push(Part::Any),
                name => parts.push(Part::Name(name.chars().collect())),
            }
        }
        (!parts.is_empty()).then_some(Self { parts, is_exception })
    }

    fn matches(&self, path: &[&str]) -> bool {
        parts_match(&self.parts, path)
    }
}

fn parts_match(parts: &[Part], path: &[&str]) -> bool {
    // As for letters: where the last `**` was, and how much of the path it has taken.
    let (mut at, mut of) = (0, 0);
    let mut again: Option<(usize, usize)> = None;
    while of < path.len() {
        match parts.get(at) {
            Some(Part::Any) => {
                again = Some((at, of));
                at += 1;
                continue;
            }
            Some(Part::Name(pattern)) if name_matches(pattern, path[of]) => {
                (at, of) = (at + 1, of + 1);
                continue;
            }
            _ => {}
        }
        let Some((any, taken)) = again else { return false };
        again = Some((any, taken + 1));
        (at, of) = (any + 1, taken + 1);
    }
    // At the end `**` stands for what is inside, so the folder itself is not meant by `a/**`.
    parts[at..].is_empty()
}

/// Never more steps than the two lengths multiplied: only the last `*` is ever tried again.
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

/// How much of the pattern stands for this letter, if it does.
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

    /// The rules, then paths with whether they are left out.
    #[test]
    fn paths_are_left_out_as_docker_does() {
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
            let ignored = Ignored::parse(text);
            for (path, expected) in *paths {
                let parts: Vec<&str> = path.split('/').collect();
                assert_eq!(ignored.leaves_out(&parts), *expected, "`{path}` by `{text}`");
            }
        }
    }

    #[test]
    fn a_hostile_pattern_takes_no_time() {
        let ignored = Ignored::parse(&format!("{}b\n{}b", "*a".repeat(500), "**/a/".repeat(500)));
        let long = "a".repeat(255);
        let deep = vec!["a"; 1000];
        let start = std::time::Instant::now();
        assert!(!ignored.leaves_out(&[&long]));
        assert!(!parts_match(&ignored.rules[1].parts, &deep));
        assert!(start.elapsed() < std::time::Duration::from_secs(5));
    }
}
