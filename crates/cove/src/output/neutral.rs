//! Bytes of the guest's made into text that does nothing but be read. A terminal obeys control sequences, and a model
//! reads characters that a person cannot see: sequences are taken out, and every other such character is shown as its
//! number. Works on a stream, piece by piece, however the pieces are cut.

/// Longer than any sequence a program means; what goes on longer is text again.
const MAX_SEQUENCE: usize = 4096;

/// A whole text that does nothing but be read.
pub fn harmless(bytes: impl AsRef<[u8]>) -> String {
    let mut neutral = Neutral::default();
    neutral.push(bytes.as_ref()) + &neutral.finish()
}

#[derive(Default)]
pub struct Neutral {
    state: State,
    /// The bytes of a character that has not come whole yet.
    partial: Vec<u8>,
    /// Characters inside the sequence so far.
    length: usize,
    count: u64,
}

/// Where in ECMA-48 the stream is.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Text,
    /// A carriage return, which before a line feed is part of it.
    Return,
    Escape,
    /// ESC [ …: parameters until a final letter.
    Control,
    /// ESC ] …, ESC P … and their kin: a string until BEL or ST.
    String,
    /// ESC inside a string, perhaps the first half of ST.
    StringEscape,
}

impl Neutral {
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
            // The start of a character at the very end may become one with what comes next.
            if chunks.peek().is_none() && may_be_completed(invalid) {
                self.partial = invalid.to_vec();
            } else {
                self.step('\u{fffd}', &mut out);
            }
        }
        out
    }

    /// What is left when the stream ends.
    pub fn finish(&mut self) -> String {
        let mut out = String::new();
        if !std::mem::take(&mut self.partial).is_empty() {
            self.step('\u{fffd}', &mut out);
        }
        if self.state == State::Return {
            out.push('\n');
        }
        self.state = State::Text;
        out
    }

    /// Sequences taken out and characters shown as numbers.
    pub fn count(&self) -> u64 {
        self.count
    }

    fn push_text(&mut self, mut text: &str, out: &mut String) {
        while !text.is_empty() {
            if self.state == State::Text {
                // Plain text, nearly all there ever is, goes through in one piece.
                let plain = plain_length(text.as_bytes());
                out.push_str(&text[..plain]);
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
            State::Text => self.text(c, out),
            State::Return => {
                self.state = State::Text;
                out.push('\n');
                if c != '\n' {
                    self.text(c, out);
                }
            }
            State::Escape => match c {
                '[' => self.state = State::Control,
                ']' | 'P' | 'X' | '^' | '_' => self.state = State::String,
                // Intermediate characters of a longer sequence, such as ESC ( B.
                ' '..='/' if self.length < 4 => self.length += 1,
                '\u{1b}' => self.begin(State::Escape),
                '0'..='~' | ' '..='/' => self.state = State::Text,
                _ => self.resume(c, out),
            },
            State::Control => match c {
                '@'..='~' => self.state = State::Text,
                ' '..='?' if self.length < MAX_SEQUENCE => self.length += 1,
                _ => self.resume(c, out),
            },
            State::String => match c {
                '\u{7}' | '\u{9c}' => self.state = State::Text,
                '\u{1b}' => self.state = State::StringEscape,
                _ if self.length < MAX_SEQUENCE => self.length += 1,
                _ => self.resume(c, out),
            },
            State::StringEscape => match c {
                '\\' => self.state = State::Text,
                _ => {
                    self.state = State::Escape;
                    self.step(c, out);
                }
            },
        }
    }

    fn text(&mut self, c: char, out: &mut String) {
        match c {
            '\n' | '\t' => out.push(c),
            '\r' => self.state = State::Return,
            '\u{1b}' => self.begin(State::Escape),
            // The one-character forms of the same.
            '\u{9b}' => self.begin(State::Control),
            '\u{90}' | '\u{98}' | '\u{9d}' | '\u{9e}' | '\u{9f}' => self.begin(State::String),
            _ if is_hidden(c) => {
                self.count += 1;
                out.extend(c.escape_unicode());
            }
            _ => out.push(c),
        }
    }

    fn begin(&mut self, state: State) {
        self.state = state;
        self.length = 0;
        self.count += 1;
    }

    /// It was no sequence after all, or one without end: what comes is text again.
    fn resume(&mut self, c: char, out: &mut String) {
        self.state = State::Text;
        self.text(c, out);
    }
}

/// How many bytes from the start are plain. Whole blocks first, without a branch for each byte, which the compiler turns
/// into a few instructions: a gigabyte of output comes through here.
fn plain_length(bytes: &[u8]) -> usize {
    const BLOCK: usize = 64;
    let is_plain = |byte: u8| (byte.wrapping_sub(0x20) < 0x5f) | (byte == b'\n') | (byte == b'\t');
    let blocks = bytes.chunks_exact(BLOCK);
    let whole =
        blocks.take_while(|block| block.iter().fold(true, |plain, &byte| plain & is_plain(byte))).count()
            * BLOCK;
    let rest = &bytes[whole..];
    whole + rest.iter().position(|&byte| !is_plain(byte)).unwrap_or(rest.len())
}

/// Characters that steer a terminal, turn the direction of text round, or cannot be seen at all.
fn is_hidden(c: char) -> bool {
    matches!(c,
        '\u{0}'..='\u{8}' | '\u{b}'..='\u{1f}' | '\u{7f}'..='\u{9f}'
        | '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}' | '\u{200e}' | '\u{200f}'
        | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e0fff}')
}

/// Whether bytes that are not a character yet could be the start of one.
fn may_be_completed(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same however the stream is cut.
    fn check(bytes: &[u8], expected: &str, count: u64) {
        for size in [1, 2, 3, 7, bytes.len().max(1)] {
            let mut neutral = Neutral::default();
            let mut text: String = bytes.chunks(size).map(|piece| neutral.push(piece)).collect();
            text += &neutral.finish();
            assert_eq!((text.as_str(), neutral.count()), (expected, count), "{bytes:?} in pieces of {size}");
        }
    }

    #[test]
    fn plain_text_stays_as_it_is() {
        check("one\ttwo\n é€😀 👩‍👩‍👧 עברית\n".as_bytes(), "one\ttwo\n é€😀 👩‍👩‍👧 עברית\n", 0);
        check(b"", "", 0);
        check(b"100%\r\ndone\r\n", "100%\ndone\n", 0);
        check(b"10%\r20%\r", "10%\n20%\n", 0);
    }

    #[test]
    fn what_is_not_text_is_marked() {
        check(b"a\xff\xfeb\xc3", "a\u{fffd}\u{fffd}b\u{fffd}", 0);
        check(b"\xc3\xa9\xe2\x82\xac", "é€", 0);
    }

    #[test]
    fn sequences_are_taken_out() {
        check(b"\x1b[31mred\x1b[0m", "red", 2);
        check(b"\x1b[2J\x1b[1;1Htop", "top", 2);
        check(b"\x1b]52;c;c2VjcmV0\x07after", "after", 1);
        check(b"\x1b]0;title\x1b\\after", "after", 1);
        check(b"\x1bP1$r\x1b\\\x1b_apc\x1b\\x", "x", 2);
        check(b"\x1b(B\x1b7\x1bcx", "x", 3);
        check("\u{9b}31mred\u{9d}0;t\u{9c}x".as_bytes(), "redx", 2);
    }

    #[test]
    fn a_sequence_without_end_does_not_swallow_everything() {
        let mut bytes = b"\x1b]".to_vec();
        bytes.extend(vec![b'x'; MAX_SEQUENCE + 10]);
        check(&bytes, &"x".repeat(10), 1);
        check(b"\x1b[12\nnext", "\nnext", 1);
        check(b"\x1b\nnext", "\nnext", 1);
        check(b"open \x1b]0;never", "open ", 1);
    }

    #[test]
    fn what_cannot_be_seen_is_shown() {
        check("a\u{202e}b".as_bytes(), "a\\u{202e}b", 1);
        check("\u{e0041}\u{e007f}".as_bytes(), "\\u{e0041}\\u{e007f}", 2);
        check(b"bell\x07 back\x08 nul\0", "bell\\u{7} back\\u{8} nul\\u{0}", 3);
        check("zero\u{200b}width".as_bytes(), "zero\\u{200b}width", 1);
    }
}
