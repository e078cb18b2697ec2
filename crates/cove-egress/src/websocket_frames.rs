//! Finds where the messages of a WebSocket server end (RFC 6455, section 5). Knows nothing of what they say.

use crate::answer_scrubber::AnswerPart;

/// A frame that says to be longer is malformed. Its length then has no bytes that text could have.
const MAX_FRAME: u64 = u32::MAX as u64;

/// The server sent something else than the frames that were agreed on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MalformedFrame;

/// Some bytes of a stream of frames.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FramePiece<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) part: AnswerPart,
    /// True if no message goes on behind these bytes.
    pub(crate) ends_message: bool,
}

/// The state of a stream of frames.
#[derive(Default)]
pub(crate) struct WebSocketFrames {
    head: Vec<u8>,
    /// How many bytes of the frame's content are to come.
    left: u64,
    /// True if this content stands between two pieces of a message that belong together.
    is_inserted: bool,
    /// True if a message goes on with the next frame that is not about the connection.
    is_open: bool,
}

impl WebSocketFrames {
    /// Takes the first bytes, as many as belong together. There must be some. Fails if they are not those of a server
    /// that was offered no extension.
    pub(crate) fn take<'a>(&mut self, bytes: &mut &'a [u8]) -> Result<FramePiece<'a>, MalformedFrame> {
        let all = *bytes;
        let (count, part) = if self.left > 0 {
            let count = all.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
            self.left -= count as u64;
            (count, if self.is_inserted { AnswerPart::Framing } else { AnswerPart::Content })
        } else {
            self.read_head(all[0])?;
            (1, AnswerPart::Framing)
        };
        *bytes = &all[count..];
        let ends_message = self.left == 0 && self.head.is_empty() && !self.is_open;
        Ok(FramePiece { bytes: &all[..count], part, ends_message })
    }

    /// Takes the next byte of the head of a frame.
    fn read_head(&mut self, byte: u8) -> Result<(), MalformedFrame> {
        self.head.push(byte);
        let (is_last, kind) = (self.head[0] & 0x80 != 0, self.head[0] & 0x7f);
        let is_expected = match kind {
            0 => self.is_open,
            1 | 2 => !self.is_open,
            8..=10 => is_last,
            _ => false,
        };
        let Some(&size) = self.head.get(1) else {
            return if is_expected { Ok(()) } else { Err(MalformedFrame) };
        };
        let length = match (size, &self.head[2..]) {
            (126, long) if long.len() < 2 && kind < 8 => return Ok(()),
            (127, long) if long.len() < 8 && kind < 8 => return Ok(()),
            // A server does not mask what it sends.
            (128.., _) | (126.., []) => return Err(MalformedFrame),
            (..126, _) => u64::from(size),
            (_, long) => long.iter().fold(0, |length, byte| length << 8 | u64::from(*byte)),
        };
        if length > MAX_FRAME {
            return Err(MalformedFrame);
        }
        self.head.clear();
        self.left = length;
        self.is_inserted = kind >= 8 && self.is_open;
        self.is_open = if kind < 8 { !is_last } else { self.is_open };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the content of the frames, with `|` where a message ends, or None if they are malformed.
    fn read(stream: &[u8], piece: usize) -> Option<String> {
        let (mut frames, mut shown) = (WebSocketFrames::default(), String::new());
        for mut bytes in stream.chunks(piece) {
            while !bytes.is_empty() {
                let piece = frames.take(&mut bytes).ok()?;
                if piece.part == AnswerPart::Content {
                    shown.push_str(&String::from_utf8_lossy(piece.bytes));
                }
                if piece.ends_message {
                    shown.push('|');
                }
            }
        }
        Some(shown)
    }

    #[test]
    fn finds_the_ends_of_messages_however_they_are_cut() {
        let long = vec![b'x'; 70_000];
        let parts: [&[u8]; 11] = [
            b"\x81\x02hi\x82\x00",
            b"\x01\x02ab\x89\x01p\x00\x01c\x80\x01d",
            b"\x81\x7e\x01\x00",
            &long[..256],
            b"\x82\x7f\x00\x00\x00\x00\x00\x01\x11\x70",
            &long,
            b"\x01\x00",
            b"\x80\x00",
            b"\x8a\x00",
            b"\x88\x02by",
            b"\x81\x01",
        ];
        let stream = parts.concat();
        let expected = format!("hi||abcd|{}|{}|||by|", "x".repeat(256), "x".repeat(70_000));
        for piece in [1, 2, 3, 5, 1000, stream.len()] {
            assert_eq!(read(&stream, piece).as_deref(), Some(expected.as_str()), "pieces of {piece}");
        }
    }

    #[test]
    fn refuses_what_a_server_may_not_send() {
        let cases: [&[u8]; 10] = [
            b"text",
            b"\xc1\x01x",
            b"\x83\x01x",
            b"\x81\x81mask",
            b"\x80\x01x",
            b"\x01\x01x\x81\x01x",
            b"\x09\x00",
            b"\x89\x7e\x00\x7e",
            b"\x81\x7f\x00\x00\x00\x01\x00\x00\x00\x00",
            b"\x81\x7fT0kenTok",
        ];
        for stream in cases {
            assert_eq!(read(stream, 1), None, "{stream:?}");
        }
        // No byte of a printable text begins a frame, so none passes as the beginning of one.
        assert!((b' '..=b'~').all(|byte| read(&[byte], 1).is_none()));
    }
}
