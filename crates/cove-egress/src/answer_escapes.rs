//! The escapes in which answers write characters of a secret: those of addresses, of JSON and scripts, and of HTML. Knows no
//! secret.

/// Bytes of the longest escape, `&#x00002F;`.
const MAX_ESCAPE: usize = 10;

const HTML_NAMES: [(&[u8], char); 8] = [
    (b"amp", '&'),
    (b"lt", '<'),
    (b"gt", '>'),
    (b"quot", '"'),
    (b"apos", '\''),
    (b"sol", '/'),
    (b"plus", '+'),
    (b"equals", '='),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EscapeNotation {
    /// `%2F`
    Percent,
    /// `\/`, `\u002F`, `\x2f`
    Backslash,
    /// `&#47;`, `&#x2F;`, `&sol;`
    Html,
}

/// What a text begins with.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum EscapeReading {
    /// The character itself.
    Literal,
    /// The beginning of an escape.
    Partial,
    /// An escape of so many bytes for this text.
    Escape { length: usize, text: Vec<u8> },
}

impl EscapeNotation {
    pub(crate) const ALL: [Self; 3] = [Self::Percent, Self::Backslash, Self::Html];

    /// Returns the byte that every escape begins with.
    pub(crate) fn start(self) -> u8 {
        match self {
            Self::Percent => b'%',
            Self::Backslash => b'\\',
            Self::Html => b'&',
        }
    }

    /// Reads what begins with the start of an escape. An escape has no control characters.
    pub(crate) fn read(self, bytes: &[u8]) -> EscapeReading {
        let rest = bytes.get(1..).unwrap_or_default();
        match (self, rest) {
            (Self::Percent, digits) => read_digits(1, digits, 2, |value| vec![value as u8]),
            (Self::Backslash, []) => EscapeReading::Partial,
            (Self::Backslash, [b'u', digits @ ..]) => read_digits(2, digits, 4, encode),
            (Self::Backslash, [b'x', digits @ ..]) => read_digits(2, digits, 2, encode),
            (Self::Backslash, [mark, ..]) if mark.is_ascii_punctuation() => {
                EscapeReading::Escape { length: 2, text: vec![*mark] }
            }
            (Self::Backslash, _) => EscapeReading::Literal,
            (Self::Html, rest) => read_html(rest),
        }
    }
}

/// Reads so many hexadecimal digits, with `before` bytes before them.
fn read_digits(before: usize, bytes: &[u8], count: usize, decode: impl Fn(u32) -> Vec<u8>) -> EscapeReading {
    let digits = &bytes[..bytes.len().min(count)];
    if !digits.iter().all(u8::is_ascii_hexdigit) {
        return EscapeReading::Literal;
    }
    if digits.len() < count {
        return EscapeReading::Partial;
    }
    let value =
        digits.iter().filter_map(|digit| char::from(*digit).to_digit(16)).fold(0, |all, digit| all * 16 + digit);
    escape_of(before + count, decode(value))
}

fn escape_of(length: usize, text: Vec<u8>) -> EscapeReading {
    if text.is_empty() { EscapeReading::Literal } else { EscapeReading::Escape { length, text } }
}

/// Returns a character as UTF-8. Empty if there is none with this number.
fn encode(value: u32) -> Vec<u8> {
    char::from_u32(value).map(|c| c.to_string().into_bytes()).unwrap_or_default()
}

fn read_html(bytes: &[u8]) -> EscapeReading {
    let count = bytes.iter().take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'#').count();
    let (name, rest) = bytes.split_at(count);
    if rest.first() != Some(&b';') || count + 2 > MAX_ESCAPE {
        let is_partial = rest.is_empty() && count + 2 <= MAX_ESCAPE;
        return if is_partial { EscapeReading::Partial } else { EscapeReading::Literal };
    }
    let number = |digits: &[u8], radix| u32::from_str_radix(std::str::from_utf8(digits).ok()?, radix).ok();
    let value = match name {
        [b'#', b'x' | b'X', digits @ ..] => number(digits, 16),
        [b'#', digits @ ..] => number(digits, 10),
        name => HTML_NAMES.iter().find(|(own, _)| *own == name).map(|(_, c)| u32::from(*c)),
    };
    escape_of(count + 2, value.map(encode).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(notation: EscapeNotation, text: &str, expected: &str) {
        let shown = match notation.read(text.as_bytes()) {
            EscapeReading::Literal => "literal".to_owned(),
            EscapeReading::Partial => "partial".to_owned(),
            EscapeReading::Escape { length, text } => format!("{} {length}", String::from_utf8_lossy(&text)),
        };
        assert_eq!(shown, expected, "{text}");
    }

    #[test]
    fn reads_the_escapes_of_each_notation() {
        use EscapeNotation::{Backslash, Html, Percent};
        for (notation, text, expected) in [
            (Percent, "%2Fx", "/ 3"),
            (Percent, "%2f", "/ 3"),
            (Percent, "%2", "partial"),
            (Percent, "%", "partial"),
            (Percent, "%\n", "literal"),
            (Percent, "%2g", "literal"),
            (Backslash, r"\/x", "/ 2"),
            (Backslash, r"\u002Bx", "+ 6"),
            (Backslash, r"\u002b", "+ 6"),
            (Backslash, r"\u00fc", "ü 6"),
            (Backslash, r"\ud83d", "literal"),
            (Backslash, r"\u002", "partial"),
            (Backslash, r"\u00-", "literal"),
            (Backslash, r"\x2F", "/ 4"),
            (Backslash, "\\", "partial"),
            (Backslash, r"\n", "literal"),
            (Backslash, "\\\n", "literal"),
            (Html, "&amp;x", "& 5"),
            (Html, "&#x2F;", "/ 6"),
            (Html, "&#X3d;", "= 6"),
            (Html, "&#43;", "+ 5"),
            (Html, "&#0039;", "' 7"),
            (Html, "&equals;", "= 8"),
            (Html, "&#x00002F;", "/ 10"),
            (Html, "&#x000002F;", "literal"),
            (Html, "&#x", "partial"),
            (Html, "&a", "partial"),
            (Html, "&amp", "partial"),
            (Html, "&amp\n", "literal"),
            (Html, "&;", "literal"),
            (Html, "&#;", "literal"),
            (Html, "&abcdefghi", "literal"),
        ] {
            check(notation, text, expected);
        }
    }

    #[test]
    fn no_beginning_of_an_escape_is_longer_than_an_escape() {
        for notation in EscapeNotation::ALL {
            for filler in *b"0#;u" {
                let text: Vec<u8> = [notation.start()].into_iter().chain([filler; MAX_ESCAPE]).collect();
                assert_ne!(notation.read(&text[..MAX_ESCAPE]), EscapeReading::Partial);
            }
        }
    }
}
