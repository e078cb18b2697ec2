//! File names of a guest as text that shows every byte and leads back to the same name. A name is any bytes but `/` and
//! NUL, so it may hold what is no text, what a terminal obeys or what no person sees.
//!
//! `\xHH` stands for the byte `HH`. A backslash stands for itself, and is written as `\x5c` only where it would otherwise
//! begin such an escape. So ordinary names, with backslashes too, are shown as they are.

use std::str::Chars;

/// Returns a name as text. Escapes bytes that are not UTF-8, control characters, and the characters that `is_hidden`
/// accepts. It gets every character in order, with those that follow.
pub fn escape_name(name: &[u8], mut is_hidden: impl FnMut(char, Chars<'_>) -> bool) -> String {
    let mut text = String::with_capacity(name.len());
    let mut rest = name;
    for chunk in name.utf8_chunks() {
        let mut chars = chunk.valid().chars();
        while let Some(c) = chars.next() {
            let bytes = &rest[..c.len_utf8()];
            if is_hidden(c, chars.clone()) || c.is_control() || read_escape(rest).is_some() {
                push_escaped(&mut text, bytes);
            } else {
                text.push(c);
            }
            rest = &rest[bytes.len()..];
        }
        push_escaped(&mut text, chunk.invalid());
        rest = &rest[chunk.invalid().len()..];
    }
    text
}

/// Returns the bytes of a path, or of one name, whose names `escape_name` has written. Text that it would not have written
/// stands for itself.
pub fn unescape_path(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let escaped = read_escape(rest);
        bytes.push(escaped.unwrap_or(first));
        rest = if escaped.is_some() { &rest[4..] } else { after };
    }
    bytes
}

fn push_escaped(text: &mut String, bytes: &[u8]) {
    text.extend(bytes.iter().map(|byte| format!("\\x{byte:02x}")));
}

/// Returns the byte that an escape at the beginning of the text stands for, or `None` if there is none.
fn read_escape(text: &[u8]) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let [b'\\', b'x', high, low, ..] = *text else { return None };
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &[u8], shown: &str) {
        assert_eq!(escape_name(name, |c, _| c == '\u{200b}'), shown);
        assert_eq!(unescape_path(shown), name, "{shown}");
    }

    #[test]
    fn names_are_shown_so_that_they_can_be_read_back() {
        check(b"notes.txt", "notes.txt");
        check("é ☃ 😀".as_bytes(), "é ☃ 😀");
        check(b"a\\b\\n\\\\", "a\\b\\n\\\\");
        check(b"\xff\n\x1b[31m", "\\xff\\x0a\\x1b[31m");
        check("a\u{200b}b\u{85}".as_bytes(), "a\\xe2\\x80\\x8bb\\xc2\\x85");
        check(b"a\\x0a", "a\\x5cx0a");
        check(b"\\x5c\\x5C\\xg0\\x5", "\\x5cx5c\\x5cx5C\\xg0\\x5");
        check(b"\\\n\\x\xff0\\x0\xff", "\\\\x0a\\x\\xff0\\x0\\xff");
        check(b"\xe2\x80", "\\xe2\\x80");
    }

    #[test]
    fn other_ways_to_write_an_escape_are_understood() {
        assert_eq!(unescape_path("/workspace/\\x41\\xFF\\x"), b"/workspace/A\xff\\x");
        assert_eq!(unescape_path("\\x5cx0a"), b"\\x0a");
    }
}
