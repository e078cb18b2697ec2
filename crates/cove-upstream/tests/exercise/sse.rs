//! What holds for a stream of server-sent events, whatever its bytes and however the network splits them. A simple reader
//! of whole texts says which events are right.

use std::collections::VecDeque;

use sse_stream::Sse;

use super::{EventTooLarge, SseDecoder};

/// Decodes the bytes in pieces of several sizes, with and without room, and panics if the events differ from the model's.
pub fn exercise(bytes: &[u8]) {
    for most in [16, 64, usize::MAX] {
        let expected = read_whole(bytes, most);
        for size in [1, 2, 5, bytes.len().max(1)] {
            assert_eq!(decode(bytes, size, most), expected, "in pieces of {size} with room for {most}");
        }
    }
}

/// The events before the end or before the first one that is too large, and how it ended.
type DecodedStream = (Vec<Sse>, Result<(), EventTooLarge>);

fn decode(bytes: &[u8], size: usize, most: usize) -> DecodedStream {
    let (mut decoder, mut events) = (SseDecoder::default(), VecDeque::new());
    let end = bytes.chunks(size).try_for_each(|piece| decoder.push(piece, most, &mut events));
    (events.into(), end)
}

/// Reads a whole text line by line. A line counts with its end; a comment counts only while it arrives.
fn read_whole(bytes: &[u8], most: usize) -> DecodedStream {
    let mut events = Vec::new();
    let (mut event, mut data, mut size) = (Sse::default(), None::<Vec<u8>>, 0);
    let mut rest = bytes;
    let mut is_first = true;
    loop {
        let Some(end) = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')) else {
            return (events, if size + rest.len() > most { Err(EventTooLarge) } else { Ok(()) });
        };
        let (mut line, ending) = (&rest[..end], &rest[end..]);
        rest = &ending[if ending.starts_with(b"\r\n") { 2 } else { 1 }..];
        let counted = line.len() + 1;
        if size + counted > most {
            return (events, Err(EventTooLarge));
        }
        if std::mem::take(&mut is_first) {
            line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        }
        if line.is_empty() {
            event.data = data.take().map(|data| String::from_utf8_lossy(&data).into_owned());
            events.extend(Some(std::mem::take(&mut event)).filter(|event| *event != Sse::default()));
            size = 0;
            continue;
        }
        if line.starts_with(b":") {
            continue;
        }
        size += counted;
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        let value = line.get(colon + 1..).unwrap_or_default();
        let value = value.strip_prefix(b" ").unwrap_or(value);
        let text = String::from_utf8_lossy(value).into_owned();
        match &line[..colon] {
            b"data" => {
                data = Some(match &data {
                    Some(before) => [before, value].join(&b'\n'),
                    None => value.to_vec(),
                });
            }
            b"event" => event.event = Some(text),
            b"id" if !value.contains(&0) => event.id = Some(text),
            b"retry" if !value.is_empty() && value.iter().all(u8::is_ascii_digit) => {
                event.retry = text.parse().ok().or(event.retry);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn replays_the_corpus_of_sse() {
        crate::replay::replay("sse", super::exercise);
    }
}
