//! Decodes a stream of server-sent events within bounds. It does not interpret their data.

#[cfg(any(test, fuzzing))]
#[path = "../../../tests/exercise/sse.rs"]
pub(super) mod exercise;

use std::collections::VecDeque;

use sse_stream::Sse;

/// Takes bytes as they arrive and returns complete events.
#[derive(Default)]
pub(super) struct SseDecoder {
    line: Vec<u8>,
    after_cr: bool,
    started: bool,
    /// Bytes of the current event.
    size: usize,
    data: Option<Vec<u8>>,
    event: Sse,
}

/// An event exceeds the size limit.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct EventTooLarge;

/// Longest id of an event. rmcp keeps the last one of each stream.
const MAX_EVENT_ID: usize = 1024;

impl SseDecoder {
    /// Returns how many bytes of an event wait for its end.
    pub(super) fn buffered_bytes(&self) -> usize {
        self.size
    }

    /// Decodes the next bytes and appends complete events to `whole`. Fails if an event exceeds `most` bytes.
    pub(super) fn push(
        &mut self,
        mut bytes: &[u8],
        most: usize,
        whole: &mut VecDeque<Sse>,
    ) -> Result<(), EventTooLarge> {
        while let Some(first) = bytes.first() {
            // The second half of a CRLF.
            if std::mem::take(&mut self.after_cr) && *first == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let end = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            let taken = end.unwrap_or(bytes.len());
            // The end of a line counts once, however many pieces the line arrives in.
            self.size += taken + usize::from(end.is_some());
            if self.size > most {
                return Err(EventTooLarge);
            }
            self.line.extend_from_slice(&bytes[..taken]);
            if let Some(end) = end {
                self.after_cr = bytes[end] == b'\r';
                whole.extend(self.finish_line());
            }
            bytes = &bytes[(taken + usize::from(end.is_some()))..];
        }
        Ok(())
    }

    fn finish_line(&mut self) -> Option<Sse> {
        let line = std::mem::take(&mut self.line);
        let size = line.len() + 1;
        let line = match line.strip_prefix("\u{feff}".as_bytes()) {
            Some(rest) if !self.started => rest,
            _ => line.as_slice(),
        };
        self.started = true;
        if line.is_empty() {
            self.size = 0;
            let mut event = std::mem::take(&mut self.event);
            event.data = self.data.take().map(|data| String::from_utf8_lossy(&data).into_owned());
            return Some(event).filter(|event| *event != Sse::default());
        }
        let (name, value) = match line.iter().position(|byte| *byte == b':') {
            // A comment. Keep-alive comments may arrive without end, so they do not count.
            Some(0) => {
                self.size = self.size.saturating_sub(size);
                return None;
            }
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, &[][..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        let text = || String::from_utf8_lossy(value).into_owned();
        match name {
            b"data" => match &mut self.data {
                Some(data) => {
                    data.push(b'\n');
                    data.extend_from_slice(value);
                }
                None => self.data = Some(value.to_vec()),
            },
            b"event" => self.event.event = Some(text()),
            b"id" if !value.contains(&0) && value.len() <= MAX_EVENT_ID => self.event.id = Some(text()),
            b"retry" if value.iter().all(u8::is_ascii_digit) => {
                self.event.retry = text().parse().ok().or(self.event.retry);
            }
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode_pieces(pieces: &[&str], most: usize) -> Result<Vec<Sse>, EventTooLarge> {
        let (mut decoder, mut whole) = (SseDecoder::default(), VecDeque::new());
        for piece in pieces {
            decoder.push(piece.as_bytes(), most, &mut whole)?;
        }
        Ok(whole.into())
    }

    #[test]
    fn decodes_events_at_any_chunk_boundary() {
        let text = "\u{feff}: hello\r\nid: 7\nretry: 20\r\rdata: {\"a\":\r\ndata:  1}\nevent: message\n\nid\n\n:\n\ndata\n\ndata: lost";
        let whole = decode_pieces(&[text], 1000).unwrap();
        let event = |data: Option<&str>, event: Option<&str>, id: Option<&str>, retry| Sse {
            event: event.map(str::to_owned),
            data: data.map(str::to_owned),
            id: id.map(str::to_owned),
            retry,
        };
        assert_eq!(
            whole,
            [
                event(None, None, Some("7"), Some(20)),
                event(Some("{\"a\":\n 1}"), Some("message"), None, None),
                event(None, None, Some(""), None),
                event(Some(""), None, None, None),
            ]
        );
        for at in 1..text.len() {
            if text.is_char_boundary(at) {
                assert_eq!(decode_pieces(&[&text[..at], &text[at..]], 1000).unwrap(), whole, "{at}");
            }
        }
    }

    #[test]
    fn limits_event_size_but_not_stream_length() {
        assert_eq!(decode_pieces(&[&"x".repeat(200)], 100), Err(EventTooLarge));
        assert_eq!(decode_pieces(&[&"data: x\n".repeat(20)], 100), Err(EventTooLarge));
        assert_eq!(decode_pieces(&[&format!(":{}", "x".repeat(200))], 100), Err(EventTooLarge));
        assert_eq!(decode_pieces(&[&"data: x\n\n".repeat(100)], 100).unwrap().len(), 100);
        assert_eq!(decode_pieces(&[&":still there\n".repeat(100)], 100), Ok(Vec::new()));
    }
}
