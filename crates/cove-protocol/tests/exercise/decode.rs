//! The promises of the codec that hold for any bytes at all. The fuzz target, the replay of its corpus and a property
//! test all call this one function, so the fuzzer's checks are themselves tested. It must not know where the bytes come
//! from.

use cove_protocol::limits::{CHUNK, MAX_FRAME, MAX_MESSAGE};
use cove_protocol::{DecodeError, FrameDecoder, FromRunner, ToRunner, WireMessage, encode};

/// How many messages the bytes held and how the stream ended, for each direction that they could belong to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DecodeVerdict {
    pub(crate) from_runner: (usize, Result<(), DecodeError>),
    pub(crate) to_runner: (usize, Result<(), DecodeError>),
}

/// Decodes the bytes in both directions and panics where the codec breaks a promise.
pub(crate) fn exercise(bytes: &[u8]) -> DecodeVerdict {
    DecodeVerdict { from_runner: exercise_as::<FromRunner>(bytes), to_runner: exercise_as::<ToRunner>(bytes) }
}

fn exercise_as<M: WireMessage + Clone + PartialEq>(bytes: &[u8]) -> (usize, Result<(), DecodeError>) {
    let (messages, end) = decode::<M>(bytes, CHUNK);
    assert!(
        decode::<M>(bytes, 1) == (messages.clone(), end.clone()),
        "the same bytes decode alike, one by one or at once"
    );

    let mut again = Vec::new();
    for (message, payload) in &messages {
        encode(message, payload, &mut again).expect("a received message can be sent");
    }
    let count = messages.len();
    assert!(decode::<M>(&again, CHUNK) == (messages, Ok(())), "a message survives encoding and decoding");
    (count, end)
}

type DecodeResult<M> = (Vec<(M, Vec<u8>)>, Result<(), DecodeError>);

fn decode<M: WireMessage>(bytes: &[u8], piece: usize) -> DecodeResult<M> {
    let mut decoder = FrameDecoder::new();
    let mut messages = Vec::new();
    for piece in bytes.chunks(piece) {
        decoder.push(piece);
        loop {
            assert!(decoder.buffered() <= MAX_MESSAGE + MAX_FRAME, "kept {} bytes", decoder.buffered());
            match decoder.next::<M>() {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(error) => {
                    decoder.push(piece);
                    assert!(matches!(decoder.next::<M>(), Err(again) if again == error), "errors are final");
                    assert_eq!(decoder.buffered(), 0);
                    return (messages, Err(error));
                }
            }
        }
    }
    (messages, decoder.finish())
}
