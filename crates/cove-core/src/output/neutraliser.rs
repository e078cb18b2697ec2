//! Turns bytes from the guest into harmless text. A terminal obeys control sequences, and a model reads characters that
//! a person cannot see. So control sequences are removed, and other control characters and invisible characters are
//! shown as numbers. Works on a stream of pieces, wherever it is cut.

use crate::text::{FLAG_TAGS, HiddenTextFinder, depends_on_next};

/// Longer than any sequence that a program writes on purpose. After this many characters the rest is text again.
const MAX_SEQUENCE: usize = 4096;

/// Returns a whole text without control sequences, its invisible characters shown as numbers.
pub fn neutralise(bytes: impl AsRef<[u8]>) -> String {
    let mut neutral = TextNeutraliser::default();
    neutral.push(bytes.as_ref()) + &neutral.finish()
}

#[derive(Default)]
pub struct TextNeutraliser {
    state: EscapeState,
    /// The first bytes of a character whose other bytes have not arrived yet.
    partial: Vec<u8>,
    /// Characters of the current sequence so far.
    length: usize,
    finder: HiddenTextFinder,
    /// Characters that may be hidden: the next one decides.
    held: Vec<char>,
    count: u64,
}

/// The state of the stream in terms of ECMA-48.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum EscapeState {
    #[default]
    Text,
    /// After a carriage return. A line feed that follows belongs to the same line end.
    Return,
    Escape,
    /// ESC [ …: parameters until a final letter.
    Control,
    /// ESC ] …, ESC P … and the like: a string until BEL or ST.
    String,
    /// ESC inside a string, perhaps the first half of ST.
    StringEscape,
}

impl TextNeutraliser {
    pub fn push(&mut self, bytes: &[u8]) -> String {
        let mut out = String::with_capacity(bytes.len());
        let pending;
        let bytes = if self.partial.is_empty() {
            bytes
        } else {
            let mut joined = std::mem::take(&mut self.partial);
            joined.extend_from_slice(bytes);
            pending = joined;
            &pending
        };
        let mut chunks = bytes.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            self.push_text(chunk.valid(), &mut out);
            let invalid = chunk.invalid();
            if invalid.is_empty() {
                continue;
            }
            // The next piece may complete a character that begins at the very end.
            if chunks.peek().is_none() && is_partial_char(invalid) {
                self.partial = invalid.to_vec();
            } else {
                self.step('\u{fffd}', &mut out);
            }
        }
        out
    }

    /// Returns the remaining text at the end of the stream.
    pub fn finish(&mut self) -> String {
        let mut out = String::new();
        if !std::mem::take(&mut self.partial).is_empty() {
            self.step('\u{fffd}', &mut out);
        }
        self.resolve_held(None, &mut out);
        if self.state == EscapeState::Return {
            out.push('\n');
        }
        self.state = EscapeState::Text;
        out
    }

    /// Returns how many sequences were removed and characters shown as numbers.
    pub fn count(&self) -> u64 {
        self.count
    }

    fn push_text(&mut self, mut text: &str, out: &mut String) {
        while !text.is_empty() {
            if self.state == EscapeState::Text && self.held.is_empty() {
                // Plain text, which is nearly all output, is copied in one piece.
                let plain = plain_length(text.as_bytes());
                out.push_str(&text[..plain]);
                if let Some(last) = text.as_bytes()[..plain].last() {
                    self.finder.note_visible(char::from(*last), plain);
                }
                text = &text[plain..];
            }
            if let Some(c) = text.chars().next() {
                self.step(c, out);
                text = &text[c.len_utf8()..];
            }
        }
    }

    fn step(&mut self, c: char, out: &mut String) {
        match self.state {
            EscapeState::Text => self.push_char(c, out),
            EscapeState::Return => {
                self.state = EscapeState::Text;
                self.finder.note_visible('\n', 1);
                out.push('\n');
                if c != '\n' {
                    self.push_char(c, out);
                }
            }
            EscapeState::Escape => match c {
                '[' => self.state = EscapeState::Control,
                ']' | 'P' | 'X' | '^' | '_' => self.state = EscapeState::String,
                // Intermediate characters of a longer sequence, such as ESC ( B.
                ' '..='/' if self.length < 4 => self.length += 1,
                '\u{1b}' => self.begin_sequence(EscapeState::Escape),
                '0'..='~' | ' '..='/' => self.state = EscapeState::Text,
                _ => self.resume_text(c, out),
            },
            EscapeState::Control => match c {
                '@'..='~' => self.state = EscapeState::Text,
                ' '..='?' if self.length < MAX_SEQUENCE => self.length += 1,
                _ => self.resume_text(c, out),
            },
            EscapeState::String => match c {
                '\u{7}' | '\u{9c}' => self.state = EscapeState::Text,
                '\u{1b}' => self.state = EscapeState::StringEscape,
                _ if self.length < MAX_SEQUENCE => self.length += 1,
                _ => self.resume_text(c, out),
            },
            EscapeState::StringEscape => match c {
                '\\' => self.state = EscapeState::Text,
                _ => {
                    self.state = EscapeState::Escape;
                    self.step(c, out);
                }
            },
        }
    }

    fn push_char(&mut self, c: char, out: &mut String) {
        if depends_on_next(c) && self.held.len() < FLAG_TAGS {
            self.held.push(c);
            return;
        }
        // What waits goes on waiting: a sequence shows nothing.
        match c {
            '\u{1b}' => return self.begin_sequence(EscapeState::Escape),
            // The one-character forms of the same sequences.
            '\u{9b}' => return self.begin_sequence(EscapeState::Control),
            '\u{90}' | '\u{98}' | '\u{9d}' | '\u{9e}' | '\u{9f}' => return self.begin_sequence(EscapeState::String),
            _ => self.resolve_held(Some(c), out),
        }
        match c {
            '\n' | '\t' => {
                self.finder.note_visible(c, 1);
                out.push(c);
            }
            '\r' => self.state = EscapeState::Return,
            _ if depends_on_next(c) => self.held.push(c),
            _ => {
                let is_hidden = self.finder.is_hidden(c, None) || c.is_control();
                self.show(c, is_hidden, out);
            }
        }
    }

    fn show(&mut self, c: char, is_hidden: bool, out: &mut String) {
        if is_hidden {
            self.count += 1;
            out.extend(c.escape_unicode());
        } else {
            out.push(c);
        }
    }

    /// Writes the characters that wait, now that the next one is known.
    fn resolve_held(&mut self, next: Option<char>, out: &mut String) {
        let held = std::mem::take(&mut self.held);
        for (index, c) in held.iter().enumerate() {
            let is_hidden = self.finder.is_hidden(*c, held[index + 1..].iter().copied().chain(next));
            self.show(*c, is_hidden, out);
        }
    }

    fn begin_sequence(&mut self, state: EscapeState) {
        self.state = state;
        self.length = 0;
        self.count += 1;
    }

    /// Returns to text, because the sequence is malformed or too long.
    fn resume_text(&mut self, c: char, out: &mut String) {
        self.state = EscapeState::Text;
        self.push_char(c, out);
    }
}

/// Returns how many bytes from the start are plain. Checks whole blocks first without a branch for each byte, so that
/// the compiler can use vector instructions: a cell may write gigabytes.
fn plain_length(bytes: &[u8]) -> usize {
    const BLOCK: usize = 64;
    let is_plain = |byte: u8| (byte.wrapping_sub(0x20) < 0x5f) | (byte == b'\n') | (byte == b'\t');
    let blocks = bytes.chunks_exact(BLOCK);
    let whole =
        blocks.take_while(|block| block.iter().fold(true, |plain, &byte| plain & is_plain(byte))).count() * BLOCK;
    let rest = &bytes[whole..];
    whole + rest.iter().position(|&byte| !is_plain(byte)).unwrap_or(rest.len())
}

/// True if the bytes could be the start of a character.
fn is_partial_char(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that the result is the same wherever the stream is cut.
    fn check(bytes: &[u8], expected: &str, count: u64) {
        for size in [1, 2, 3, 7, bytes.len().max(1)] {
            let mut neutral = TextNeutraliser::default();
            let mut text: String = bytes.chunks(size).map(|piece| neutral.push(piece)).collect();
            text += &neutral.finish();
            assert_eq!((text.as_str(), neutral.count()), (expected, count), "{bytes:?} in pieces of {size}");
        }
    }

    #[test]
    fn plain_text_stays_as_it_is() {
        check("one\ttwo\n é€😀 👩‍👩‍👧 עברית\n".as_bytes(), "one\ttwo\n é€😀 👩‍👩‍👧 עברית\n", 0);
        check("1️⃣ ❤️ می‌خواهم क्‍ष".as_bytes(), "1️⃣ ❤️ می‌خواهم क्‍ष", 0);
        let flag = "🏴\u{e0067}\u{e0062}\u{e0065}\u{e006e}\u{e0067}\u{e007f}🏴";
        check(flag.as_bytes(), flag, 0);
        check("ក\u{200b}ខ 葛\u{e0100}".as_bytes(), "ក\u{200b}ខ 葛\u{e0100}", 0);
        check(b"", "", 0);
        check(b"100%\r\ndone\r\n", "100%\ndone\n", 0);
        check(b"10%\r20%\r", "10%\n20%\n", 0);
    }

    #[test]
    fn marks_bytes_that_are_not_text() {
        check(b"a\xff\xfeb\xc3", "a\u{fffd}\u{fffd}b\u{fffd}", 0);
        check(b"\xc3\xa9\xe2\x82\xac", "é€", 0);
    }

    #[test]
    fn removes_control_sequences() {
        check(b"\x1b[31mred\x1b[0m", "red", 2);
        check(b"\x1b[2J\x1b[1;1Htop", "top", 2);
        check(b"\x1b]52;c;c2VjcmV0\x07after", "after", 1);
        check(b"\x1b]0;title\x1b\\after", "after", 1);
        check(b"\x1bP1$r\x1b\\\x1b_apc\x1b\\x", "x", 2);
        check(b"\x1b(B\x1b7\x1bcx", "x", 3);
        check("\u{9b}31mred\u{9d}0;t\u{9c}x".as_bytes(), "redx", 2);
    }

    #[test]
    fn unterminated_sequence_does_not_swallow_text() {
        let mut bytes = b"\x1b]".to_vec();
        bytes.extend(vec![b'x'; MAX_SEQUENCE + 10]);
        check(&bytes, &"x".repeat(10), 1);
        check(b"\x1b[12\nnext", "\nnext", 1);
        check(b"\x1b\nnext", "\nnext", 1);
        check(b"open \x1b]0;never", "open ", 1);
    }

    #[test]
    fn shows_invisible_characters_as_numbers() {
        check("a\u{202e}b".as_bytes(), "a\\u{202e}b", 1);
        check("\u{e0041}\u{e007f}".as_bytes(), "\\u{e0041}\\u{e007f}", 2);
        check(b"bell\x07 back\x08 nul\0", "bell\\u{7} back\\u{8} nul\\u{0}", 3);
        check("zero\u{200b}width".as_bytes(), "zero\\u{200b}width", 1);
        check("a\u{200d}\u{200c}b".as_bytes(), "a\\u{200d}\\u{200c}b", 2);
        check("😀\u{200d}".as_bytes(), "😀\\u{200d}", 1);
        check("🏴\u{e0067}\u{e0062}x".as_bytes(), "🏴\\u{e0067}\\u{e0062}x", 2);
        check("😀\u{200d}\r\n".as_bytes(), "😀\\u{200d}\n", 1);
        check("😀\u{200d}\u{1b}[1m😀".as_bytes(), "😀\u{200d}😀", 1);
        check("😀\u{200d}\u{1b}[1ma".as_bytes(), "😀\\u{200d}a", 2);
        check("ក\u{200b}\u{1b}[1m".as_bytes(), "ក\\u{200b}", 2);
        check("❤\r\u{fe0f}".as_bytes(), "❤\n\\u{fe0f}", 1);
        check("❤\u{7}\u{fe0f}".as_bytes(), "❤\\u{7}\\u{fe0f}", 2);
        check("😀\u{fe00}\u{fe01}\u{3164}".as_bytes(), "😀\\u{fe00}\\u{fe01}\\u{3164}", 3);
    }
}
