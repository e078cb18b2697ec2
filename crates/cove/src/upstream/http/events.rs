//! A stream of server-sent events, taken apart within bounds. It knows nothing of what they say.

use std::collections::VecDeque;

use sse_stream::Sse;

/// Takes bytes as they come, and gives events when they are whole.
#[derive(Default)]
pub(super) struct Decoder {
    line: Vec<u8>,
    after_cr: bool,
    started: bool,
    /// Of the event so far.
    size: usize,
    data: Option<Vec<u8>>,
    event: Sse,
}

/// An event has more bytes than any may have.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLarge;

impl Decoder {
    pub(super) fn push(
        &mut self,
        mut bytes: &[u8],
        most: usize,
        whole: &mut VecDeque<Sse>,
    ) -> Result<(), TooLarge> {
        while let Some(first) = bytes.first() {
            // The second half of a line's end.
            if std::mem::take(&mut self.after_cr) && *first == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let end = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            let taken = end.unwrap_or(bytes.len());
            self.size += taken + 1;
            if self.size > most {
                return Err(TooLarge);
            }
            self.line.extend_from_slice(&bytes[..taken]);
            if let Some(end) = end {
                self.after_cr = bytes[end] == b'\r';
                whole.extend(self.end_of_line());
            }
            bytes = &bytes[(taken + usize::from(end.is_some()))..];
        }
        Ok(())
    }

    fn end_of_line(&mut self) -> Option<Sse> {
        let line = std::mem::take(&mut self.line);
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
            // A comment; those that keep a connection open may come for ever.
            Some(0) => {
                self.size = self.size.saturating_sub(line.len() + 1);
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
            b"id" if !value.contains(&0) => self.event.id = Some(text()),
            b"retry" => self.event.retry = text().parse().ok(),
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(pieces: &[&str], most: usize) -> Result<Vec<Sse>, TooLarge> {
        let (mut decoder, mut whole) = (Decoder::default(), VecDeque::new());
        for piece in pieces {
            decoder.push(piece.as_bytes(), most, &mut whole)?;
        }
        Ok(whole.into())
    }

    #[test]
    fn events_are_the_same_however_they_are_cut() {
        let text = "\u{feff}: hello\r\nid: 7\nretry: 20\r\rdata: {\"a\":\r\ndata:  1}\nevent: message\n\nid\n\n:\n\ndata\n\ndata: lost";
        let whole = decoded(&[text], 1000).unwrap();
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
                assert_eq!(decoded(&[&text[..at], &text[at..]], 1000).unwrap(), whole, "{at}");
            }
        }
    }

    #[test]
    fn an_event_is_bounded_and_a_stream_is_not() {
        assert_eq!(decoded(&[&"x".repeat(200)], 100), Err(TooLarge));
        assert_eq!(decoded(&[&"data: x\n".repeat(20)], 100), Err(TooLarge));
        assert_eq!(decoded(&[&format!(":{}", "x".repeat(200))], 100), Err(TooLarge));
        assert_eq!(decoded(&[&"data: x\n\n".repeat(100)], 100).unwrap().len(), 100);
        assert_eq!(decoded(&[&":still there\n".repeat(100)], 100), Ok(Vec::new()));
    }
}
