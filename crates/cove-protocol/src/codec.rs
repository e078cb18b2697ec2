//! The wire: messages as frames over any ordered byte stream.
//!
//! ```text
//! frame   := length:u32be flags:u8 body      length counts flags and body, 1..=MAX_FRAME
//! flags   := bit 0: MORE, the message goes on in the next frame; every other bit is an error
//! message := the bodies up to the first frame without MORE, together at most MAX_MESSAGE
//!          = meta_length:u32be meta payload  meta is one JSON object of at most MAX_META
//! ```
//!
//! Frames of different messages never interleave in a direction, and a stream may end only between messages.
//!
//! The decoder is pushed bytes and does no input or output, so that an asynchronous host and a blocking runner share
//! it. It must not know what a message means. On the host every byte that it sees was chosen by the guest, so:
//!
//! - A length allocates nothing, only bytes that have arrived do. (A growing vector doubles, so up to twice them; the
//!   JSON parser may need some 32 times the bytes of `meta` while it looks for the type, so MAX_META is small.)
//! - Each bound is checked as soon as the bytes that state it are there, not when the thing it bounds is complete.
//! - Work is linear in the bytes received. A frame that brings nothing and ends nothing is an error, not idle work.
//! - The first error is final, because after it nobody knows where a frame begins.

use std::mem;

use crate::limits::{MAX_FRAME, MAX_MESSAGE, MAX_META};
use crate::message::Message;

/// The message goes on in the next frame.
const MORE: u8 = 1;
/// The size of a length on the wire, both of a frame and of a message's JSON.
const LENGTH: usize = 4;
/// What one frame can carry beside its flags.
const MAX_BODY: usize = MAX_FRAME - 1;

// `encode` puts the whole JSON into the first frame, and writes every length as a `u32`.
const _: () = assert!(LENGTH + MAX_META < MAX_BODY && MAX_MESSAGE <= u32::MAX as usize);

/// Appends all frames of one message to `out`. After an error `out` is as it was.
pub fn encode<M: Message>(message: &M, payload: &[u8], out: &mut Vec<u8>) -> Result<(), EncodeError> {
    if !payload.is_empty() && !message.carries_payload() {
        return Err(EncodeError::UnexpectedPayload { length: payload.len() });
    }
    let mut head = vec![0; LENGTH];
    serde_json::to_writer(&mut head, message).map_err(EncodeError::Json)?;
    let meta = head.len() - LENGTH;
    if meta > MAX_META {
        return Err(EncodeError::MetaTooLong { length: meta });
    }
    if head.len() + payload.len() > MAX_MESSAGE {
        return Err(EncodeError::MessageTooLong { length: head.len() + payload.len() });
    }
    head[..LENGTH].copy_from_slice(&(meta as u32).to_be_bytes());

    let (first, mut rest) = payload.split_at(payload.len().min(MAX_BODY - head.len()));
    append_frame(out, &head, first, rest);
    while !rest.is_empty() {
        let body;
        (body, rest) = rest.split_at(rest.len().min(MAX_BODY));
        append_frame(out, &[], body, rest);
    }
    Ok(())
}

/// One frame of `head` and `body`; `rest` is what the frames after it will carry.
fn append_frame(out: &mut Vec<u8>, head: &[u8], body: &[u8], rest: &[u8]) {
    let length = 1 + head.len() + body.len();
    out.reserve(LENGTH + length);
    out.extend_from_slice(&(length as u32).to_be_bytes());
    out.push(if rest.is_empty() { 0 } else { MORE });
    out.extend_from_slice(head);
    out.extend_from_slice(body);
}

/// Turns the bytes of one direction of one stream back into messages. A new stream needs a new decoder.
///
/// After each `push`, call `next` until it says `None`: no more is kept then than one message, `MAX_MESSAGE` at most,
/// and the bytes of that push. Whoever pushes without that keeps all they push.
#[derive(Debug, Default)]
pub struct Decoder {
    /// Bytes as they arrived. Those before `read` have been dealt with.
    input: Vec<u8>,
    read: usize,
    /// The bodies so far of the message that is arriving. A frame with `MORE` has a body, so between frames this is
    /// empty exactly between messages.
    content: Vec<u8>,
    /// The frame that is arriving, once its length and flags are known.
    frame: Option<Frame>,
    /// The error that ended this stream.
    failed: Option<DecodeError>,
}

#[derive(Debug, Clone, Copy)]
struct Frame {
    /// How many bytes of the body have not been moved to `content`.
    missing: usize,
    more: bool,
}

impl Decoder {
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes bytes as they come, cut anywhere. After an error they are dropped.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.failed.is_some() {
            return;
        }
        // Moving what is left only when it is the smaller part keeps the work linear, however callers mix the two.
        if self.read > self.input.len() / 2 {
            self.input.drain(..self.read);
            self.read = 0;
        }
        self.input.extend_from_slice(bytes);
    }

    /// The next whole message and its payload, or `None` until more bytes are pushed. An error comes after all messages
    /// that were whole before it, and again at every later call.
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator could not go on after `None`, nor choose `M`"
    )]
    pub fn next<M: Message>(&mut self) -> Result<Option<(M, Vec<u8>)>, DecodeError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let step = self.next_content().and_then(|content| content.map(parse).transpose());
        if let Err(error) = &step {
            // Nothing can be read any more, so nothing is worth its memory.
            *self = Self { failed: Some(error.clone()), ..Self::default() };
        }
        step
    }

    /// Whether the stream may end here; to be asked after `next` said `None`.
    pub fn finish(&self) -> Result<(), DecodeError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        if self.frame.is_some() || self.read < self.input.len() {
            return Err(DecodeError::EndInsideFrame);
        }
        if !self.content.is_empty() {
            return Err(DecodeError::EndInsideMessage);
        }
        Ok(())
    }

    /// How many bytes are kept, those included that the next `push` will drop.
    pub fn buffered(&self) -> usize {
        self.input.len() + self.content.len()
    }

    /// Moves bytes from `input` to `content` until a message is whole.
    fn next_content(&mut self) -> Result<Option<Vec<u8>>, DecodeError> {
        loop {
            let Some(mut frame) = self.frame.take() else {
                self.frame = self.next_frame()?;
                if self.frame.is_none() {
                    return Ok(None);
                }
                continue;
            };
            let ahead = &self.input[self.read..];
            let body = &ahead[..ahead.len().min(frame.missing)];
            self.content.extend_from_slice(body);
            self.read += body.len();
            frame.missing -= body.len();
            check_meta_length(&self.content)?;
            if frame.missing > 0 {
                self.frame = Some(frame);
                return Ok(None);
            }
            if !frame.more {
                return Ok(Some(mem::take(&mut self.content)));
            }
        }
    }

    /// The length and flags of the frame ahead.
    fn next_frame(&mut self) -> Result<Option<Frame>, DecodeError> {
        let ahead = &self.input[self.read..];
        let Some(length) = read_length(ahead) else { return Ok(None) };
        if !(1..=MAX_FRAME).contains(&length) {
            return Err(DecodeError::FrameLength { length });
        }
        let missing = length - 1;
        if self.content.len() + missing > MAX_MESSAGE {
            return Err(DecodeError::MessageTooLong);
        }
        let Some(&flags) = ahead.get(LENGTH) else { return Ok(None) };
        if flags & !MORE != 0 {
            return Err(DecodeError::UnknownFlags { flags });
        }
        let more = flags & MORE != 0;
        if more && missing == 0 {
            return Err(DecodeError::EmptyContinuation);
        }
        self.read += LENGTH + 1;
        Ok(Some(Frame { missing, more }))
    }
}

/// The length that `bytes` begin with, once it has arrived.
fn read_length(bytes: &[u8]) -> Option<usize> {
    bytes.first_chunk().map(|length| u32::from_be_bytes(*length) as usize)
}

/// Refuses a message for its JSON's length before the rest of it has arrived.
fn check_meta_length(content: &[u8]) -> Result<(), DecodeError> {
    match read_length(content) {
        Some(length) if length > MAX_META => Err(DecodeError::MetaTooLong { length }),
        _ => Ok(()),
    }
}

fn parse<M: Message>(mut content: Vec<u8>) -> Result<(M, Vec<u8>), DecodeError> {
    let end = LENGTH + read_length(&content).ok_or(DecodeError::MetaMissing)?;
    let meta = content.get(LENGTH..end).ok_or(DecodeError::MetaMissing)?;
    // serde would also read a struct from an array of its fields.
    if meta.first() != Some(&b'{') {
        return Err(DecodeError::Json(Reason::quote("expected an object")));
    }
    let message: M =
        serde_json::from_slice(meta).map_err(|e| DecodeError::Json(Reason::quote(&e.to_string())))?;
    content.drain(..end);
    if !content.is_empty() && !message.carries_payload() {
        return Err(DecodeError::UnexpectedPayload { length: content.len() });
    }
    Ok((message, content))
}

/// Why a message of ours does not go out.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    #[error("could not write the JSON of a message")]
    Json(#[source] serde_json::Error),
    #[error("could not send a message with {length} bytes of JSON, at most {MAX_META} are allowed")]
    MetaTooLong { length: usize },
    #[error("could not send a message of {length} bytes, at most {MAX_MESSAGE} are allowed")]
    MessageTooLong { length: usize },
    #[error("could not send {length} bytes of payload with a message that carries none")]
    UnexpectedPayload { length: usize },
}

/// How a peer broke the protocol, or how its stream broke off.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("could not read a frame of {length} bytes, it must have 1 to {MAX_FRAME}")]
    FrameLength { length: usize },
    #[error("could not read a frame with the unknown flags `{flags:#04x}`")]
    UnknownFlags { flags: u8 },
    #[error("could not read a frame that is empty and yet not the last of its message")]
    EmptyContinuation,
    #[error("could not read a message of more than {MAX_MESSAGE} bytes")]
    MessageTooLong,
    #[error("could not read a message with {length} bytes of JSON, at most {MAX_META} are allowed")]
    MetaTooLong { length: usize },
    #[error("could not read a message that ends before its JSON does")]
    MetaMissing,
    #[error("could not understand the JSON of a message")]
    Json(#[source] Reason),
    #[error("could not accept {length} bytes of payload with a message that carries none")]
    UnexpectedPayload { length: usize },
    #[error("could not read the rest of a frame, the stream ended inside it")]
    EndInsideFrame,
    #[error("could not read the rest of a message, the stream ended between two of its frames")]
    EndInsideMessage,
}

/// What the JSON parser said. It quotes the peer, so it is cut short and holds nothing that a terminal would obey.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Reason(String);

impl Reason {
    /// Long enough for the parser's own words around a name of ours.
    const MAX_CHARS: usize = 200;

    fn quote(text: &str) -> Self {
        let mut quoted = String::new();
        for c in text.chars().take(Self::MAX_CHARS) {
            match c {
                '"' | '\'' => quoted.push(c),
                _ => quoted.extend(c.escape_debug()),
            }
        }
        if text.chars().nth(Self::MAX_CHARS).is_some() {
            quoted.push('…');
        }
        Self(quoted)
    }
}

#[cfg(test)]
mod tests;
