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
//! The caller pushes bytes into the decoder, which does no input or output itself, so that an asynchronous host and a
//! blocking runner share it. It must not know what a message means. On the host the guest chose every byte that the
//! decoder sees, so:
//!
//! - A length allocates nothing; only bytes that have arrived do. (A growing vector doubles, so up to twice as many.
//!   The JSON parser may need some 32 times the bytes of `meta` while it looks for the type, so MAX_META is small.)
//! - Each bound is checked as soon as the bytes that state it are there, not when the thing it bounds is complete.
//! - Work is linear in the bytes received. A frame that brings nothing and ends nothing is an error, not idle work.
//! - The first error is final, because after it the decoder cannot know where the next frame begins.

use std::mem;

use crate::limits::{MAX_FRAME, MAX_MESSAGE, MAX_META};
use crate::message::WireMessage;

/// Flag: the message continues in the next frame.
const MORE: u8 = 1;
/// The size of a length on the wire, both of a frame and of a message's JSON.
const LENGTH: usize = 4;
/// The longest body of a frame: all of it but its flags.
const MAX_BODY: usize = MAX_FRAME - 1;

// `encode` puts the whole JSON into the first frame, and writes every length as a `u32`.
const _: () = assert!(LENGTH + MAX_META < MAX_BODY && MAX_MESSAGE <= u32::MAX as usize);

/// Appends all frames of one message to `out`.
///
/// Fails if the message or its JSON is too long, or if it has a payload that it cannot carry. `out` is then unchanged.
pub fn encode<M: WireMessage>(message: &M, payload: &[u8], out: &mut Vec<u8>) -> Result<(), EncodeError> {
    if !payload.is_empty() && !message.carries_payload() {
        return Err(EncodeError::UnexpectedPayload { message: message.type_name(), length: payload.len() });
    }
    // The JSON is written after room for its own length, so that it need not be copied.
    let mut head = vec![0; LENGTH];
    serde_json::to_writer(&mut head, message)
        .map_err(|source| EncodeError::Json { message: message.type_name(), source })?;
    let meta = head.len() - LENGTH;
    if meta > MAX_META {
        return Err(EncodeError::MetaTooLong { message: message.type_name(), length: meta });
    }
    if head.len() + payload.len() > MAX_MESSAGE {
        let length = head.len() + payload.len();
        return Err(EncodeError::MessageTooLong { message: message.type_name(), length });
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

/// Appends one frame of `head` and `body`. `rest` is what the frames after it will carry.
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
/// After each `push`, call `next` until it returns `None`. The decoder then buffers no more than one message, at most
/// `MAX_MESSAGE` bytes, and the bytes of that push. Without the calls of `next` it buffers everything that is pushed.
#[derive(Debug, Default)]
pub struct FrameDecoder {
    /// Bytes as they arrived. Those before `read` have been processed.
    input: Vec<u8>,
    read: usize,
    /// The bodies so far of the message that is arriving. A frame with `MORE` has a body, so between two frames this is
    /// empty only between messages.
    content: Vec<u8>,
    /// The frame that is arriving, once its length and flags are known.
    frame: Option<PartialFrame>,
    /// The error that ended this stream.
    failed: Option<DecodeError>,
}

/// A frame whose length and flags have arrived, but not its whole body.
#[derive(Debug, Clone, Copy)]
struct PartialFrame {
    /// How many bytes of the body are not in `content` yet.
    missing: usize,
    more: bool,
}

impl FrameDecoder {
    /// Returns a decoder for a new stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next bytes of the stream, cut anywhere. After an error it drops them.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.failed.is_some() {
            return;
        }
        // Moving the rest only when it is the smaller part keeps the work linear, however callers mix `push` and
        // `next`.
        if self.read > self.input.len() / 2 {
            self.input.drain(..self.read);
            self.read = 0;
        }
        self.input.extend_from_slice(bytes);
    }

    /// Returns the next whole message and its payload, or `None` if more bytes are needed.
    ///
    /// Fails if the peer broke the protocol, after all messages that were whole before, and then at every later call.
    #[expect(clippy::should_implement_trait, reason = "an iterator could not go on after `None`, nor choose `M`")]
    pub fn next<M: WireMessage>(&mut self) -> Result<Option<(M, Vec<u8>)>, DecodeError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let step = self.next_content().and_then(|content| content.map(parse).transpose());
        if let Err(error) = &step {
            // No message can follow, so the buffers are freed.
            *self = Self { failed: Some(error.clone()), ..Self::default() };
        }
        step
    }

    /// Fails if the stream must not end here. Call it after `next` has returned `None`.
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

    /// Returns how many bytes are buffered, including those that the next `push` will drop.
    pub fn buffered(&self) -> usize {
        self.input.len() + self.content.len()
    }

    /// Moves bytes from `input` to `content` until a message is whole. Returns that message, or `None` if more bytes
    /// are needed.
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
            // After every piece, because the length of the JSON may arrive long before the JSON itself.
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

    /// Reads the length and flags of the next frame. Returns `None` if they have not arrived yet.
    fn next_frame(&mut self) -> Result<Option<PartialFrame>, DecodeError> {
        let ahead = &self.input[self.read..];
        let Some(length) = read_length(ahead) else { return Ok(None) };
        if !(1..=MAX_FRAME).contains(&length) {
            return Err(DecodeError::FrameLength { length });
        }
        // Checked before the flags have arrived: the length alone is enough to refuse the frame.
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
        Ok(Some(PartialFrame { missing, more }))
    }
}

/// Returns the length that `bytes` begin with, or `None` if it has not arrived yet.
fn read_length(bytes: &[u8]) -> Option<usize> {
    bytes.first_chunk().map(|length| u32::from_be_bytes(*length) as usize)
}

/// Refuses a message whose JSON is too long, before the rest of it has arrived.
fn check_meta_length(content: &[u8]) -> Result<(), DecodeError> {
    match read_length(content) {
        Some(length) if length > MAX_META => Err(DecodeError::MetaTooLong { length }),
        _ => Ok(()),
    }
}

/// Splits a whole message into its JSON, which must be an `M`, and its payload.
fn parse<M: WireMessage>(mut content: Vec<u8>) -> Result<(M, Vec<u8>), DecodeError> {
    let end = LENGTH + read_length(&content).ok_or(DecodeError::MetaMissing)?;
    let meta = content.get(LENGTH..end).ok_or(DecodeError::MetaMissing)?;
    // serde would also read a struct from an array of its fields.
    if meta.first() != Some(&b'{') {
        return Err(DecodeError::Json(QuotedReason::quote("expected an object")));
    }
    let message: M =
        serde_json::from_slice(meta).map_err(|e| DecodeError::Json(QuotedReason::quote(&e.to_string())))?;
    content.drain(..end);
    if !content.is_empty() && !message.carries_payload() {
        return Err(DecodeError::UnexpectedPayload { message: message.type_name(), length: content.len() });
    }
    Ok((message, content))
}

/// Why `encode` refused a message. `message` is its type on the wire.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    #[error("could not write the JSON of `{message}`")]
    Json { message: &'static str, source: serde_json::Error },
    #[error("could not send `{message}` with {length} bytes of JSON, at most {MAX_META} are allowed")]
    MetaTooLong { message: &'static str, length: usize },
    #[error("could not send `{message}` of {length} bytes, at most {MAX_MESSAGE} are allowed")]
    MessageTooLong { message: &'static str, length: usize },
    #[error("could not send `{message}` with a payload, which it cannot carry (payload length {length})")]
    UnexpectedPayload { message: &'static str, length: usize },
}

/// How a peer broke the protocol, or how its stream broke off.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("could not read a frame of length {length}, it must be 1 to {MAX_FRAME}")]
    FrameLength { length: usize },
    #[error("could not read a frame with the unknown flags `{flags:#04x}`")]
    UnknownFlags { flags: u8 },
    #[error("could not read an empty frame that is not the last of its message")]
    EmptyContinuation,
    #[error("could not read a message of more than {MAX_MESSAGE} bytes")]
    MessageTooLong,
    #[error("could not read a message with {length} bytes of JSON, at most {MAX_META} are allowed")]
    MetaTooLong { length: usize },
    #[error("could not read a message that ends before its JSON does")]
    MetaMissing,
    #[error("could not understand the JSON of a message")]
    Json(#[source] QuotedReason),
    #[error("could not accept `{message}` with a payload, which it cannot carry (payload length {length})")]
    UnexpectedPayload { message: &'static str, length: usize },
    #[error("could not read the rest of a frame, the stream ended inside it")]
    EndInsideFrame,
    #[error("could not read the rest of a message, the stream ended between two of its frames")]
    EndInsideMessage,
}

/// The JSON parser's error message. It quotes the peer, so it is cut short and its control characters are escaped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct QuotedReason(String);

impl QuotedReason {
    /// Long enough for the parser's message about any field or variant of this protocol.
    const MAX_CHARS: usize = 294;

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
