//! Rust text as rules need it: without comments and literals, and as words. This is no parser; it is just enough to
//! tell a keyword from the same letters in a string.

/// One text split into three of the same shape: each has spaces where the others have text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct SourceParts {
    pub(super) code: String,
    pub(super) comments: String,
    /// Strings and characters, with their quotes.
    pub(super) literals: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PartKind {
    Code,
    Comment,
    Literal,
}

impl SourceParts {
    /// Appends to one part, and as many spaces to the others. A line break goes to all.
    pub(super) fn push(&mut self, kind: PartKind, letter: char) {
        for (own, part) in [
            (PartKind::Code, &mut self.code),
            (PartKind::Comment, &mut self.comments),
            (PartKind::Literal, &mut self.literals),
        ] {
            part.push(if own == kind || letter == '\n' { letter } else { ' ' });
        }
    }
}

/// Splits Rust text.
pub(super) fn rust_parts(text: &str) -> SourceParts {
    let letters: Vec<char> = text.chars().collect();
    let mut parts = SourceParts::default();
    let mut at = 0;
    while at < letters.len() {
        let after_word = at > 0 && is_word(letters[at - 1]);
        let (kind, end) = match (letters[at], letters.get(at + 1)) {
            ('/', Some('/')) => (PartKind::Comment, line_end(&letters, at)),
            ('/', Some('*')) => (PartKind::Comment, block_end(&letters, at)),
            ('"', _) => (PartKind::Literal, string_end(&letters, at)),
            ('\'', _) => (PartKind::Literal, character_end(&letters, at)),
            ('r' | 'b' | 'c', _) if !after_word => (PartKind::Literal, raw_end(&letters, at).unwrap_or(at)),
            _ => (PartKind::Code, at),
        };
        let (kind, end) = if end == at { (PartKind::Code, at + 1) } else { (kind, end.min(letters.len())) };
        letters[at..end].iter().for_each(|letter| parts.push(kind, *letter));
        at = end;
    }
    parts
}

/// Replaces comments, strings and characters with spaces; lines keep their numbers.
pub(super) fn code_only(text: &str) -> String {
    rust_parts(text).code
}

/// Words of one line of code, in order. A raw identifier keeps its `r#`, so that it is never taken for a keyword.
pub(super) fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|letter: char| !is_word(letter) && letter != '#').filter(|word| !word.is_empty())
}

pub(super) fn is_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

fn line_end(letters: &[char], from: usize) -> usize {
    (from..letters.len()).find(|at| letters[*at] == '\n').unwrap_or(letters.len())
}

/// Block comments nest.
fn block_end(letters: &[char], from: usize) -> usize {
    let mut depth = 0_usize;
    let mut at = from;
    while at < letters.len() {
        match (letters[at], letters.get(at + 1)) {
            ('/', Some('*')) => (depth, at) = (depth + 1, at + 2),
            ('*', Some('/')) => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn string_end(letters: &[char], from: usize) -> usize {
    let mut at = from + 1;
    while at < letters.len() && letters[at] != '"' {
        at += if letters[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

/// `'a'` and `'\n'` end; `'a` is a lifetime and is left as it is.
fn character_end(letters: &[char], from: usize) -> usize {
    match (letters.get(from + 1), letters.get(from + 2)) {
        // The letter after the backslash may itself be a quote.
        (Some('\\'), _) => (from + 3..letters.len()).find(|at| letters[*at] == '\'').map_or(letters.len(), |at| at + 1),
        (Some(_), Some('\'')) => from + 3,
        _ => from,
    }
}

/// The end of `r"…"`, `br#"…"#` and similar. `None` if no raw string begins here.
fn raw_end(letters: &[char], from: usize) -> Option<usize> {
    let raw = from + usize::from(matches!(letters[from], 'b' | 'c'));
    if letters.get(raw) != Some(&'r') {
        return None;
    }
    let hashes = letters[raw + 1..].iter().take_while(|letter| **letter == '#').count();
    let open = raw + 1 + hashes;
    if letters.get(open) != Some(&'"') {
        return None;
    }
    let closes = |at: usize| {
        letters[at] == '"' && letters[at + 1..].iter().take(hashes).filter(|one| **one == '#').count() == hashes
    };
    Some((open + 1..letters.len()).find(|at| closes(*at)).map_or(letters.len(), |at| at + 1 + hashes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_is_left() {
        let cases = [
            ("a // b", "a     "),
            ("a /* b /* c */ d */ e", "a                   e"),
            ("a \"b \\\" c\" d", "a          d"),
            ("a r#\"b \" c\"# d", "a            d"),
            ("a br\"\\\" d", "a       d"),
            ("a b\"c\" d", "a b    d"),
            ("'a' b", "    b"),
            ("'\\'' b", "     b"),
            ("'\\u{1f}' b", "         b"),
            ("<'a> b", "<'a> b"),
            ("r#type b", "r#type b"),
            ("\"a\nb\" c", "  \n   c"),
            ("\"open", "     "),
        ];
        for (text, expected) in cases {
            assert_eq!(code_only(text), expected, "{text}");
        }
    }

    #[test]
    fn comments_and_literals_keep_their_place() {
        let parts = rust_parts("a \"b\" // c\nd 'e'");
        assert_eq!(parts.code, "a         \nd    ");
        assert_eq!(parts.literals, "  \"b\"     \n  'e'");
        assert_eq!(parts.comments, "      // c\n     ");
    }

    #[test]
    fn words_are_whole() {
        let found: Vec<_> = words("pub(crate) fn r#type(unsafe_code: u8)").collect();
        assert_eq!(found, ["pub", "crate", "fn", "r#type", "unsafe_code", "u8"]);
    }
}
