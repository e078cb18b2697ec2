//! Properties that hold for every sequence of messages, however the bytes between two peers are cut, lost or forged.

#[path = "exercise/decode.rs"]
mod decode;
#[path = "properties/messages.rs"]
mod messages;
#[path = "properties/resume.rs"]
mod resume;

use cove_protocol::limits::{MAX_FRAME, MAX_MESSAGE};
use cove_protocol::{DecodeError, FrameDecoder, FromRunner, WireMessage, encode, escape_name, unescape_path};
use proptest::prelude::*;
use proptest::sample::Index;

use messages::{from_runner, to_runner};

/// Configures `cases` runs, without files for failures: a failure prints its input, which becomes a test of its own.
fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

type MessageList<M> = Vec<(M, Vec<u8>)>;

fn encoded<M: WireMessage>(messages: &[(M, Vec<u8>)]) -> Vec<Vec<u8>> {
    let one = |(message, payload): &(M, Vec<u8>)| {
        let mut out = Vec::new();
        encode(message, payload, &mut out).unwrap();
        out
    };
    messages.iter().map(one).collect()
}

/// Returns the same message in frames whose bodies have these lengths, repeated.
fn reframed(encoded: &[u8], lengths: &[usize]) -> Vec<u8> {
    let mut rest = &encoded[5..];
    let mut out = Vec::new();
    for length in lengths.iter().cycle() {
        let body;
        (body, rest) = rest.split_at(rest.len().min(*length));
        out.extend_from_slice(&(body.len() as u32 + 1).to_be_bytes());
        out.push(u8::from(!rest.is_empty()));
        out.extend_from_slice(body);
        if rest.is_empty() {
            break;
        }
    }
    out
}

/// Decodes `bytes`, pushed in pieces that end at `cuts`.
fn decode_cut<M: WireMessage>(bytes: &[u8], cuts: &[usize]) -> (MessageList<M>, Result<(), DecodeError>) {
    let mut cuts = cuts.to_vec();
    cuts.push(bytes.len());
    cuts.sort_unstable();
    let mut decoder = FrameDecoder::new();
    let mut messages = Vec::new();
    let mut start = 0;
    for cut in cuts {
        decoder.push(&bytes[start..cut]);
        start = cut;
        loop {
            match decoder.next() {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(error) => return (messages, Err(error)),
            }
        }
    }
    (messages, decoder.finish())
}

fn positions(cuts: &[Index], bytes: &[u8]) -> Vec<usize> {
    cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect()
}

/// Bytes that a hostile guest might send: noise, frames around noise, or an honest stream with a few bytes changed.
fn hostile() -> impl Strategy<Value = Vec<u8>> {
    let noise = prop::collection::vec(any::<u8>(), 0..2000);
    let body = prop::collection::vec(any::<u8>(), 0..50);
    let frame = (any::<bool>(), body)
        .prop_map(|(more, body)| [&(body.len() as u32 + 1).to_be_bytes()[..], &[u8::from(more)], &body].concat());
    let frames = prop::collection::vec(frame, 0..30).prop_map(|frames| frames.concat());
    let changes = prop::collection::vec((any::<Index>(), any::<u8>()), 1..4);
    let changed = (prop::collection::vec(from_runner(), 1..5), changes).prop_map(|(messages, changes)| {
        let mut bytes = encoded(&messages).concat();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes
    });
    prop_oneof![noise, frames, changed]
}

/// A name with what escapes consist of, and with any other bytes.
fn file_name() -> impl Strategy<Value = Vec<u8>> {
    let pieces = prop_oneof![
        any::<u8>().prop_map(|byte| vec![byte]),
        any::<char>().prop_map(|c| c.to_string().into_bytes()),
        proptest::sample::select(vec!["\\", "\\x", "x", "0a", "5c", "5C", "\\x0a", "\n"]).prop_map(|text| text.into()),
    ];
    prop::collection::vec(pieces, 0..24).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(cases(1024))]

    #[test]
    fn names_of_files_can_be_read_back_as_shown(name in file_name(), hidden in any::<char>()) {
        let shown = escape_name(&name, |c, _| c == hidden && !c.is_ascii());
        prop_assert_eq!(unescape_path(&shown), &name[..]);
        prop_assert!(!shown.contains(char::is_control));
        // What is shown is a name too, and another one unless nothing had to be escaped.
        let again = escape_name(shown.as_bytes(), |_, _| false);
        prop_assert_eq!(again == shown, shown.as_bytes() == name, "{} {}", shown, again);
    }

    #[test]
    fn messages_survive_any_cut(
        from in prop::collection::vec(from_runner(), 0..8),
        to in prop::collection::vec(to_runner(), 0..8),
        lengths in prop::collection::vec(1_usize..100, 1..4),
        cuts in prop::collection::vec(any::<Index>(), 0..20),
    ) {
        let bytes = encoded(&from).concat();
        prop_assert_eq!(decode_cut(&bytes, &positions(&cuts, &bytes)), (from.clone(), Ok(())));

        let bytes = encoded(&from).iter().flat_map(|one| reframed(one, &lengths)).collect::<Vec<_>>();
        prop_assert_eq!(decode_cut(&bytes, &positions(&cuts, &bytes)), (from, Ok(())));

        let bytes = encoded(&to).concat();
        prop_assert_eq!(decode_cut(&bytes, &positions(&cuts, &bytes)), (to, Ok(())));
    }

    #[test]
    fn the_codec_keeps_its_promises_for_hostile_bytes(bytes in hostile()) {
        decode::exercise(&bytes);
    }
}

proptest! {
    #![proptest_config(cases(128))]

    #[test]
    fn a_stream_may_end_only_between_messages(
        messages in prop::collection::vec(from_runner(), 0..4),
        lengths in prop::collection::vec(1_usize..100, 1..4),
    ) {
        let encoded = encoded(&messages).iter().map(|one| reframed(one, &lengths)).collect::<Vec<_>>();
        let borders = encoded.iter().scan(0, |end, one| { *end += one.len(); Some(*end) }).collect::<Vec<_>>();
        let bytes = encoded.concat();
        for cut in 0..=bytes.len() {
            let (prefix, end) = decode_cut::<FromRunner>(&bytes[..cut], &[]);
            let whole = borders.iter().filter(|border| **border <= cut).count();
            prop_assert_eq!(&prefix[..], &messages[..whole]);
            let clean = cut == 0 || borders.contains(&cut);
            prop_assert_eq!(end.is_ok(), clean, "cut at {}: {:?}", cut, end);
        }
    }
}

proptest! {
    #![proptest_config(cases(6))]

    #[test]
    fn long_messages_survive_any_cut(
        mebibytes in 1_usize..8,
        process_env in 0_usize..100,
        seed in any::<u8>(),
        cuts in prop::collection::vec(any::<Index>(), 0..200),
    ) {
        // A pattern whose period divides no frame, so that swapped or doubled frames show.
        let length = mebibytes * MAX_FRAME - process_env;
        let payload = (0..length).map(|i| (i % 251) as u8 ^ seed).collect::<Vec<_>>();
        let (message, _) = messages::output(1);
        let sent = vec![(message.clone(), payload), (message, vec![seed])];
        let bytes = encoded(&sent).concat();
        let (received, end) = decode_cut(&bytes, &positions(&cuts, &bytes));
        prop_assert!(received == sent && end.is_ok());
    }
}

/// A message without end costs no more memory than one message.
#[test]
fn refuses_an_endless_message() {
    for body in [1000, MAX_FRAME - 1] {
        let mut decoder = FrameDecoder::new();
        let frame = [&(body as u32 + 1).to_be_bytes()[..], &[1], &vec![0; body]].concat();
        let mut sent = 0;
        let error = loop {
            decoder.push(&frame);
            match decoder.next::<FromRunner>() {
                Ok(None) => sent += body,
                Ok(Some(message)) => panic!("{message:?}"),
                Err(error) => break error,
            }
            assert!(decoder.buffered() <= MAX_MESSAGE + MAX_FRAME + 4);
        };
        assert_eq!(error, DecodeError::MessageTooLong);
        assert!(sent <= MAX_MESSAGE && sent + body > MAX_MESSAGE);
    }
}
