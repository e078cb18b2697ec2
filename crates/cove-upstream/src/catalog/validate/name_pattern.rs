//! The patterns of `patternProperties`, as far as they are simple: literals, character classes and quantifiers, with
//! anchors. A schema with any other pattern is left to the server, because a wrong refusal is worse than none.

use serde_json::{Map, Value};

/// Longest name that a pattern is tried on, and longest pattern.
const MAX_LENGTH: usize = 200;

/// A pattern of names.
#[derive(Debug)]
pub(super) struct NamePattern {
    pieces: Vec<PatternPiece>,
    from_start: bool,
    to_end: bool,
}

/// A set of characters, and how many of them may follow one another.
#[derive(Debug)]
struct PatternPiece {
    ranges: Vec<(char, char)>,
    negated: bool,
    least: usize,
    most: usize,
}

/// Returns the patterns of names that a schema allows; none if it has no patterns. Returns `None` if a pattern is not
/// understood.
pub(super) fn read_patterns(schema: &Map<String, Value>) -> Option<Vec<NamePattern>> {
    let Some(patterns) = schema.get("patternProperties") else { return Some(Vec::new()) };
    patterns.as_object()?.keys().map(|pattern| NamePattern::parse(pattern)).collect()
}

impl NamePattern {
    /// Parses a pattern. Returns `None` for groups, alternatives and everything else that is not simple.
    fn parse(text: &str) -> Option<Self> {
        if text.len() > MAX_LENGTH {
            return None;
        }
        let from_start = text.starts_with('^');
        let text = text.strip_prefix('^').unwrap_or(text);
        let to_end = text.ends_with('$') && !text.ends_with("\\$");
        let mut rest = if to_end { &text[..text.len() - 1] } else { text }.chars().peekable();
        let mut pieces = Vec::new();
        while let Some(c) = rest.next() {
            let (ranges, negated) = match c {
                '.' => (vec![('\n', '\n')], true),
                '[' => parse_class(&mut rest)?,
                '\\' => (escaped_set(rest.next()?)?, false),
                '(' | ')' | '|' | '*' | '+' | '?' | '{' | '}' | ']' | '^' | '$' => return None,
                c => (vec![(c, c)], false),
            };
            let (least, most) = parse_quantifier(&mut rest)?;
            pieces.push(PatternPiece { ranges, negated, least, most });
        }
        Some(Self { pieces, from_start, to_end })
    }

    /// Returns true if the pattern matches the name, or the name is too long to say.
    pub(super) fn allows(&self, name: &str) -> bool {
        let name: Vec<char> = name.chars().take(MAX_LENGTH + 1).collect();
        if name.len() > MAX_LENGTH {
            return true;
        }
        // The places in the name that the pieces so far can reach. Each piece moves all of them at once, so the time
        // is bounded whatever the pattern is.
        let mut places = vec![!self.from_start; name.len() + 1];
        places[0] = true;
        for piece in &self.pieces {
            let mut reached = vec![false; name.len() + 1];
            for start in (0..=name.len()).filter(|start| places[*start]) {
                let fitting = name[start..].iter().take(piece.most).take_while(|c| piece.contains(**c)).count();
                (piece.least..=fitting).for_each(|count| reached[start + count] = true);
            }
            places = reached;
        }
        if self.to_end { places[name.len()] } else { places.contains(&true) }
    }
}

impl PatternPiece {
    fn contains(&self, c: char) -> bool {
        self.ranges.iter().any(|(first, last)| (*first..=*last).contains(&c)) != self.negated
    }
}

type PatternText<'a> = std::iter::Peekable<std::str::Chars<'a>>;

/// Returns the characters of a class such as `[a-z0-9_-]`, after its first bracket, and whether they are excluded.
fn parse_class(rest: &mut PatternText) -> Option<(Vec<(char, char)>, bool)> {
    let negated = rest.next_if_eq(&'^').is_some();
    let mut ranges = Vec::new();
    loop {
        match rest.next()? {
            ']' => return Some((ranges, negated)),
            '\\' => ranges.extend(escaped_set(rest.next()?)?),
            '-' if ranges.last().is_some_and(|(first, last)| first == last) && rest.peek() != Some(&']') => {
                let last = rest.next().filter(|last| *last != '\\')?;
                ranges.last_mut()?.1 = last;
            }
            c => ranges.push((c, c)),
        }
    }
}

/// Returns the characters that a backslash and this letter mean.
fn escaped_set(letter: char) -> Option<Vec<(char, char)>> {
    match letter {
        'd' => Some(vec![('0', '9')]),
        'w' => Some(vec![('a', 'z'), ('A', 'Z'), ('0', '9'), ('_', '_')]),
        's' => Some(vec![(' ', ' '), ('\t', '\r')]),
        c if c.is_ascii_punctuation() => Some(vec![(c, c)]),
        _ => None,
    }
}

/// Returns how often the piece before may occur. Returns `None` for lazy quantifiers and malformed ones.
fn parse_quantifier(rest: &mut PatternText) -> Option<(usize, usize)> {
    let found = match rest.peek() {
        Some('*') => (0, MAX_LENGTH),
        Some('+') => (1, MAX_LENGTH),
        Some('?') => (0, 1),
        Some('{') => {
            let counts: String = rest.by_ref().skip(1).take_while(|c| *c != '}').collect();
            let (least, most) = counts.split_once(',').unwrap_or((counts.as_str(), counts.as_str()));
            let most = if most.is_empty() { MAX_LENGTH } else { most.parse().ok()? };
            return Some((least.parse().ok()?, most)).filter(|_| rest.peek() != Some(&'?'));
        }
        _ => return Some((1, 1)),
    };
    rest.next();
    Some(found).filter(|_| rest.peek() != Some(&'?'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pattern: &str, fits: &[&str], fails: &[&str]) {
        let parsed = NamePattern::parse(pattern).unwrap_or_else(|| panic!("{pattern} is not understood"));
        fits.iter().for_each(|name| assert!(parsed.allows(name), "{pattern} and {name}"));
        fails.iter().for_each(|name| assert!(!parsed.allows(name), "{pattern} and {name}"));
    }

    #[test]
    fn understands_simple_patterns() {
        check("^x-", &["x-a", "x-"], &["ax-", "y"]);
        check("_id$", &["user_id"], &["user_ids"]);
        check("^[a-zA-Z_][a-zA-Z0-9_.-]*$", &["a", "_b.c-d"], &["", "1a", "a b"]);
        check("^\\d{4}-\\d{2}$", &["2024-01"], &["2024-1", "2024-011"]);
        check("^a{2,3}b?$", &["aa", "aaab"], &["a", "aaaab"]);
        check("^.*$", &["", "anything"], &[]);
        check("", &["", "x"], &[]);
        check("^[^a-z]+$", &["ABC", "1"], &["a", ""]);
        check("^S\\.", &["S.x"], &["Sx"]);
    }

    #[test]
    fn refuses_patterns_that_are_not_simple() {
        for pattern in ["^(a|b)$", "a|b", "a*?", "^\\p{L}+$", "[", "[a", "*", "a{", "\\", "(?=x)", "a{x}", "\\bx"] {
            assert!(NamePattern::parse(pattern).is_none(), "{pattern}");
        }
        assert!(NamePattern::parse(&"a".repeat(201)).is_none());
    }

    #[test]
    fn hostile_patterns_take_bounded_time() {
        let pattern = NamePattern::parse(&format!("^{}$", "a*".repeat(90))).unwrap();
        assert!(!pattern.allows(&format!("{}b", "a".repeat(190))));
        assert!(pattern.allows(&"b".repeat(1 << 20)), "too long to say");
    }
}
