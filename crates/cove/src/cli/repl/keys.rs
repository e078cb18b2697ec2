//! What a terminal sends, as keys. Bytes go in as they come; what is not whole yet waits for more.

use cove_protocol::limits::MAX_CODE;

/// More than any terminal sends for one key.
const MAX_SEQUENCE: usize = 32;
const PASTE_END: &[u8] = b"\x1b[201~";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Key {
    Char(char),
    /// Text that was pasted, whole, with `\n` at its line ends.
    Paste(String),
    Enter,
    Tab,
    Backspace,
    Delete,
    Left,
    Right,
    Up,
    Down,
    Home,
    End,
    WordLeft,
    WordRight,
    /// Control and this letter, in lower case.
    Control(char),
    Alt(char),
    /// Nothing that we know.
    Other,
}

/// Bytes that are not keys yet. It outlives the reading of one cell, so that nothing typed ahead is lost.
#[derive(Default)]
pub(super) struct Decoder {
    bytes: Vec<u8>,
    paste: Option<Vec<u8>>,
}

impl Decoder {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(super) fn next(&mut self) -> Option<Key> {
        loop {
            if self.paste.is_some() {
                return self.next_of_paste();
            }
            let (key, used) = parse(&self.bytes)?;
            self.bytes.drain(..used);
            match key {
                Parsed::Key(key) => return Some(key),
                Parsed::PasteBegins => self.paste = Some(Vec::new()),
            }
        }
    }

    fn next_of_paste(&mut self) -> Option<Key> {
        let paste = self.paste.as_mut()?;
        let end = self.bytes.windows(PASTE_END.len()).position(|bytes| bytes == PASTE_END);
        // Without its end, the last bytes may be the beginning of it.
        let count = end.unwrap_or_else(|| (self.bytes.len() + 1).saturating_sub(PASTE_END.len()));
        // What is beyond the limit is not kept, and the cell is refused for what is.
        let room = (2 * MAX_CODE).saturating_sub(paste.len());
        paste.extend(self.bytes.drain(..count).take(room));
        end?;
        self.bytes.drain(..PASTE_END.len());
        let paste = self.paste.take().unwrap_or_default();
        let text = String::from_utf8_lossy(&paste).replace("\r\n", "\n").replace('\r', "\n");
        Some(Key::Paste(text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect()))
    }
}

enum Parsed {
    Key(Key),
    PasteBegins,
}

/// The first key and how many bytes it takes; nothing when it is not whole.
fn parse(bytes: &[u8]) -> Option<(Parsed, usize)> {
    let (key, used) = match *bytes.first()? {
        0x1b => return parse_escape(bytes),
        b'\r' | b'\n' => (Key::Enter, 1),
        b'\t' => (Key::Tab, 1),
        0x7f | 0x08 => (Key::Backspace, 1),
        byte @ 1..=26 => (Key::Control((byte - 1 + b'a') as char), 1),
        byte if byte < 0x20 => (Key::Other, 1),
        _ => parse_char(bytes)?,
    };
    Some((Parsed::Key(key), used))
}

fn parse_char(bytes: &[u8]) -> Option<(Key, usize)> {
    let length = match bytes[0] {
        0xc2..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf4 => 4,
        _ => 1,
    };
    match std::str::from_utf8(&bytes[..length.min(bytes.len())]) {
        Ok(text) => {
            text.chars().next().map(|c| (if c.is_control() { Key::Other } else { Key::Char(c) }, length))
        }
        Err(wrong) if wrong.error_len().is_none() => None,
        Err(_) => Some((Key::Other, 1)),
    }
}

/// `ESC [ … x`, `ESC O x`, or a key pressed with Alt.
fn parse_escape(bytes: &[u8]) -> Option<(Parsed, usize)> {
    let (key, used) = match bytes.get(1)? {
        b'[' => {
            let length = bytes[2..].iter().position(|byte| !(0x20..=0x3f).contains(byte));
            let Some(length) = length else {
                return if bytes.len() > MAX_SEQUENCE {
                    Some((Parsed::Key(Key::Other), bytes.len()))
                } else {
                    None
                };
            };
            let (parameters, last) = (&bytes[2..2 + length], bytes[2 + length]);
            if (parameters, last) == (b"200", b'~') {
                return Some((Parsed::PasteBegins, 6));
            }
            (sequence(parameters, last), length + 3)
        }
        b'O' => (sequence(b"", *bytes.get(2)?), 3),
        // Enter with Alt.
        b'\r' | b'\n' => (Key::Alt('\r'), 2),
        0x7f | 0x08 => (Key::Alt('\x7f'), 2),
        byte if *byte < 0x20 => (Key::Other, 2),
        _ => match parse_char(&bytes[1..])? {
            (Key::Char(c), used) => (Key::Alt(c), used + 1),
            (_, used) => (Key::Other, used + 1),
        },
    };
    Some((Parsed::Key(key), used))
}

fn sequence(parameters: &[u8], last: u8) -> Key {
    // `1;5` before an arrow: with Control; `1;3`: with Alt.
    let by_word = parameters.ends_with(b";5") || parameters.ends_with(b";3");
    match (last, parameters) {
        (b'A', _) => Key::Up,
        (b'B', _) => Key::Down,
        (b'C', _) if by_word => Key::WordRight,
        (b'D', _) if by_word => Key::WordLeft,
        (b'C', _) => Key::Right,
        (b'D', _) => Key::Left,
        (b'H', _) | (b'~', b"1" | b"7") => Key::Home,
        (b'F', _) | (b'~', b"4" | b"8") => Key::End,
        (b'~', b"3") => Key::Delete,
        _ => Key::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(bytes: &[u8], expected: &[Key]) {
        // Whole, and a byte at a time.
        for size in [bytes.len().max(1), 1] {
            let mut decoder = Decoder::default();
            let mut keys = Vec::new();
            for piece in bytes.chunks(size) {
                decoder.push(piece);
                keys.extend(std::iter::from_fn(|| decoder.next()));
            }
            assert_eq!(keys, expected, "{:?} by {size}", bytes.escape_ascii().to_string());
        }
    }

    #[test]
    fn keys() {
        check(b"", &[]);
        check(b"a\r", &[Key::Char('a'), Key::Enter]);
        check("é😀".as_bytes(), &[Key::Char('é'), Key::Char('😀')]);
        check(b"\x03\x04\x12", &[Key::Control('c'), Key::Control('d'), Key::Control('r')]);
        check(b"\t\x7f\x08", &[Key::Tab, Key::Backspace, Key::Backspace]);
        check(b"\x1b[A\x1bOB\x1b[C\x1b[D", &[Key::Up, Key::Down, Key::Right, Key::Left]);
        check(
            b"\x1b[1;5C\x1b[1;3D\x1bb\x1bf",
            &[Key::WordRight, Key::WordLeft, Key::Alt('b'), Key::Alt('f')],
        );
        check(b"\x1b[H\x1b[F\x1b[1~\x1b[4~\x1b[3~", &[Key::Home, Key::End, Key::Home, Key::End, Key::Delete]);
        check(b"\x1b\r", &[Key::Alt('\r')]);
        check("\u{1b}é".as_bytes(), &[Key::Alt('é')]);
    }

    #[test]
    fn what_is_unknown_is_passed_over() {
        check(b"\x1b[99;1~a", &[Key::Other, Key::Char('a')]);
        check(b"\xff\xc3(", &[Key::Other, Key::Other, Key::Char('(')]);
        check(b"\x00\x1c", &[Key::Other, Key::Other]);
        check("\u{85}".as_bytes(), &[Key::Other]);
        // Half of something is nothing yet.
        check(b"\xc3", &[]);
        check(b"\x1b[1;", &[]);
        check(b"\x1b", &[]);
        let mut decoder = Decoder::default();
        decoder.push(&[b"\x1b[".to_vec(), vec![b'1'; 100]].concat());
        assert_eq!(decoder.next(), Some(Key::Other));
    }

    #[test]
    fn a_paste_is_one_key() {
        let paste = |text: &str| Key::Paste(text.to_owned());
        check(b"\x1b[200~a\r\nb\rc\x1b[201~d", &[paste("a\nb\nc"), Key::Char('d')]);
        check(b"\x1b[200~\x1b[201~", &[paste("")]);
        check(b"\x1b[200~\tx\x03\x1b[A\x1b[201~", &[paste("\tx[A")]);
        check(b"\x1b[200~ab\x1b[20", &[]);
        // Neither its own end nor anything in it is a key.
        check("\u{1b}[200~é\u{1b}[20\u{1b}[201~".as_bytes(), &[paste("é[20")]);
    }

    #[test]
    fn a_paste_is_bounded() {
        let mut decoder = Decoder::default();
        decoder.push(b"\x1b[200~");
        for _ in 0..5 {
            decoder.push(&vec![b'x'; MAX_CODE]);
            assert_eq!(decoder.next(), None);
        }
        decoder.push(PASTE_END);
        let Some(Key::Paste(text)) = decoder.next() else { panic!("a paste") };
        assert_eq!(text.len(), 2 * MAX_CODE);
    }
}
