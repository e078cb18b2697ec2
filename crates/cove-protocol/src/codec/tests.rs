//! Tests the codec with frames made by hand, so that encoder and decoder cannot agree on the same mistake.

use super::*;
use crate::limits::{MAX_COMMAND, MAX_COMMAND_BYTES, MAX_PATH};
use crate::{CellId, CommandError, FromRunner, OutputStream, ProgramCell, ToRunner};

const NEED_INPUT: &str = r#"{"type":"need_input"}"#;

fn frame(flags: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = (body.len() as u32 + 1).to_be_bytes().to_vec();
    bytes.push(flags);
    bytes.extend_from_slice(body);
    bytes
}

fn content(meta: &str, payload: &[u8]) -> Vec<u8> {
    [&(meta.len() as u32).to_be_bytes(), meta.as_bytes(), payload].concat()
}

fn whole(meta: &str) -> Vec<u8> {
    frame(0, &content(meta, b""))
}

fn output(payload: &[u8]) -> (FromRunner, Vec<u8>) {
    (FromRunner::Output { cell: CellId(1), stream: OutputStream::Stdout, offset: 0 }, payload.to_vec())
}

const OUTPUT: &str = r#"{"type":"output","cell":1,"stream":"stdout","offset":0}"#;

type DecodedMessages = Vec<(FromRunner, Vec<u8>)>;

/// Returns all messages in `bytes`, and how the stream ended.
fn decode(bytes: &[u8]) -> (DecodedMessages, Result<(), DecodeError>) {
    let mut decoder = FrameDecoder::new();
    decoder.push(bytes);
    let mut messages = Vec::new();
    loop {
        match decoder.next() {
            Ok(Some(message)) => messages.push(message),
            Ok(None) => return (messages, decoder.finish()),
            Err(error) => {
                decoder.push(&whole(NEED_INPUT));
                assert_eq!(decoder.next::<FromRunner>(), Err(error.clone()), "the first error is final");
                assert_eq!(decoder.finish(), Err(error.clone()));
                assert_eq!(decoder.buffered(), 0, "a failed decoder keeps nothing");
                return (messages, Err(error));
            }
        }
    }
}

#[track_caller]
fn check(frames: &[Vec<u8>], messages: &[(FromRunner, Vec<u8>)], end: Result<(), DecodeError>) {
    assert_eq!(decode(&frames.concat()), (messages.to_vec(), end));
}

/// Checks that the decoder refuses a message with this JSON for the expected reason.
#[track_caller]
fn check_json(meta: &str, expected: &str) {
    match decode(&whole(meta)).1 {
        Err(DecodeError::Json(reason)) => assert_eq!(reason.to_string(), expected),
        other => panic!("{meta}: {other:?}"),
    }
}

#[test]
fn reads_messages_in_one_or_many_frames() {
    let need = (FromRunner::NeedInput {}, Vec::new());
    let body = content(OUTPUT, b"hello");
    let (a, b) = body.split_at(2);
    check(&[], &[], Ok(()));
    check(&[whole(NEED_INPUT)], std::slice::from_ref(&need), Ok(()));
    check(&[frame(0, &body), whole(NEED_INPUT)], &[output(b"hello"), need.clone()], Ok(()));
    check(&[frame(MORE, a), frame(0, b), whole(NEED_INPUT)], &[output(b"hello"), need], Ok(()));
    // A sender that learns late that it is done may end a message with an empty frame.
    check(&[frame(MORE, &body), frame(0, b"")], &[output(b"hello")], Ok(()));
    check(&[frame(0, &content(OUTPUT, b""))], &[output(b"")], Ok(()));
}

#[test]
fn reports_where_a_stream_ended() {
    let body = content(OUTPUT, b"hello");
    let one = frame(0, &body);
    for cut in 1..one.len() {
        check(&[one.clone(), one[..cut].to_vec()], &[output(b"hello")], Err(DecodeError::EndInsideFrame));
    }
    check(&[frame(MORE, &body)], &[], Err(DecodeError::EndInsideMessage));
    check(&[frame(MORE, &body), vec![0]], &[], Err(DecodeError::EndInsideFrame));
}

#[test]
fn finish_fails_while_a_whole_message_is_unread() {
    let mut decoder = FrameDecoder::new();
    decoder.push(&whole(NEED_INPUT));
    assert_eq!(decoder.finish(), Err(DecodeError::EndInsideFrame));
}

#[test]
fn refuses_bad_frames() {
    let length = |length: u32| length.to_be_bytes().to_vec();
    let over = MAX_FRAME as u32 + 1;
    check(&[length(0)], &[], Err(DecodeError::FrameLength { length: 0 }));
    check(&[length(over)], &[], Err(DecodeError::FrameLength { length: over as usize }));
    check(&[length(u32::MAX)], &[], Err(DecodeError::FrameLength { length: u32::MAX as usize }));
    check(&[length(MAX_FRAME as u32)], &[], Err(DecodeError::EndInsideFrame));
    check(&[frame(MORE, b"")], &[], Err(DecodeError::EmptyContinuation));
    check(&[frame(MORE, b"x"), frame(MORE, b"")], &[], Err(DecodeError::EmptyContinuation));
    for bit in 1..8 {
        check(&[frame(1 << bit, b"x")], &[], Err(DecodeError::UnknownFlags { flags: 1 << bit }));
    }
    check(&[whole(NEED_INPUT), length(0)], &[(FromRunner::NeedInput {}, vec![])], {
        Err(DecodeError::FrameLength { length: 0 })
    });
}

#[test]
fn refuses_bad_messages() {
    check(&[frame(0, b"")], &[], Err(DecodeError::MetaMissing));
    check(&[frame(0, &[0, 0, 0])], &[], Err(DecodeError::MetaMissing));
    check(&[frame(0, &[0, 0, 0, 2, b'{'])], &[], Err(DecodeError::MetaMissing));
    check(&[frame(0, &[0, 0, 0, 0])], &[], Err(DecodeError::Json(QuotedReason::quote("expected an object"))));
    check(
        &[frame(0, &content(NEED_INPUT, b"x"))],
        &[],
        Err(DecodeError::UnexpectedPayload { message: "need_input", length: 1 }),
    );
    // The decoder knows this long before the message is whole.
    let long = MAX_META as u32 + 1;
    check(&[frame(MORE, &long.to_be_bytes())], &[], Err(DecodeError::MetaTooLong { length: MAX_META + 1 }));
}

#[test]
fn refuses_bad_json() {
    check_json("", "expected an object");
    check_json(r#"["need_input"]"#, "expected an object");
    check_json("{", "EOF while parsing an object at line 1 column 1");
    check_json("{}", "missing field `type` at line 1 column 2");
    check_json(r#"{"type":"need_input"}{}"#, "trailing characters at line 1 column 22");
    check_json(r#"{"type":"need_input","x":1}"#, "unknown field `x`, there are no fields");
    check_json(r#"{"type":"need_input","type":"need_input"}"#, "duplicate field `type` at line 1 column 27");
    check_json(
        r#"{"type":"bye"}"#,
        "unknown variant `bye`, expected one of `ready`, `output`, `image`, `need_input`, `memory_kill`, `done`, `answer`, `stored`, `file`, `listing`, `refused`, `call`, `forget`, `taken`, `open_stream`, `unknown_name`, `more_unknown_names`, `stream_data`, `stream_credit`, `end_stream`, `reset_stream`…",
    );
    check_json(r#"{"type":"pong","nonce":1.5,"received":0}"#, "invalid type: floating point `1.5`, expected u64");
    check_json(r#"{"type":"pong","nonce":-1,"received":0}"#, "invalid value: integer `-1`, expected u64");
    check_json(r#"{"type":"pong","nonce":1}"#, "missing field `received`");
    check_json(r#"{"type":"pong","nonce":1,"received":0,"nonce":2}"#, "duplicate field `nonce`");
    check_json(r#"{"type":"pong","nonce":1,"received":0,"x":0}"#, "unknown field `x`, expected `nonce` or `received`");
    check_json(
        r#"{"type":"done","cell":1,"outcome":{"kind":"completed","x":1}}"#,
        "unknown field `x`, there are no fields",
    );
    check_json(
        r#"{"type":"ready","version":1,"interpreters":[],"received":0,"x":1}"#,
        "unknown field `x`, expected one of `version`, `interpreters`, `received`, `proxy_port`, `name_door`",
    );
    check_json(
        r#"{"type":"open_stream","cell":1,"stream":1,"door":{"kind":"back"}}"#,
        "unknown variant `back`, expected `proxy` or `name`",
    );
    check_json(&format!("{{\"type\":{}", "[".repeat(1000)), {
        "invalid type: sequence, expected variant identifier at line 1 column 8"
    });
    check_json(&format!("{{\"x\":{}", "[".repeat(1000)), "recursion limit exceeded at line 1 column 132");
}

#[test]
fn messages_without_fields_refuse_unknown_fields() {
    fn refuses<M: WireMessage>(meta: &str) -> bool {
        let mut decoder = FrameDecoder::new();
        decoder.push(&whole(meta));
        matches!(decoder.next::<M>(), Err(DecodeError::Json(_)))
    }
    assert!(refuses::<ToRunner>(r#"{"type":"bye","x":1}"#));
    assert!(refuses::<FromRunner>(r#"{"type":"need_input","x":1}"#));
    let start = |more| format!(r#"{{"type":"start","cell":1,"command":["a"]{more}}}"#);
    assert!(!refuses::<ToRunner>(&start("")), "a directory is optional");
    assert!(refuses::<ToRunner>(&start(r#","x":1"#)));
    for kind in ["completed", "interrupted"] {
        let done = |more| format!(r#"{{"type":"done","cell":1,"fresh":true,"outcome":{{"kind":"{kind}"{more}}}}}"#);
        assert!(!refuses::<FromRunner>(&done("")));
        assert!(refuses::<FromRunner>(&done(r#","x":1"#)));
    }
}

#[test]
fn errors_quote_the_guest_briefly_and_without_control_characters() {
    let name = format!("\u{202e}\\u001b[2J{}", "x".repeat(MAX_META / 2));
    let (_, end) = decode(&whole(&format!(r#"{{"type":"{name}"}}"#)));
    let Err(DecodeError::Json(reason)) = end else { panic!("{end:?}") };
    let text = reason.to_string();
    assert!(text.starts_with(r"unknown variant `\u{202e}\u{1b}[2Jxxx"), "{text}");
    assert!(text.ends_with("x…") && text.chars().count() < 320, "{text}");
}

#[test]
fn accepts_a_message_at_its_limit_and_refuses_one_byte_more() {
    let (message, _) = output(b"");
    let room = MAX_MESSAGE - LENGTH - OUTPUT.len();
    let mut bytes = Vec::new();
    encode(&message, &vec![7; room], &mut bytes).unwrap();
    let (messages, end) = decode(&bytes);
    assert_eq!((messages.len(), messages[0].1.len(), end), (1, room, Ok(())));

    let before = bytes.len();
    let error = encode(&message, &vec![7; room + 1], &mut bytes).unwrap_err();
    assert!(matches!(error, EncodeError::MessageTooLong { length, .. } if length == MAX_MESSAGE + 1));
    assert_eq!(bytes.len(), before, "a failed encode leaves nothing behind");

    // The decoder refuses the frame that exceeds the limit by its length alone.
    let mut decoder = FrameDecoder::new();
    let full = frame(MORE, &[0; MAX_BODY]);
    for _ in 0..MAX_MESSAGE / MAX_BODY {
        decoder.push(&full);
        assert!(decoder.next::<FromRunner>().unwrap().is_none());
    }
    assert!(decoder.buffered() <= MAX_MESSAGE + full.len());
    decoder.push(&(MAX_FRAME as u32).to_be_bytes());
    assert_eq!(decoder.next::<FromRunner>(), Err(DecodeError::MessageTooLong));
}

#[test]
fn encode_refuses_messages_that_the_peer_would_refuse() {
    #[track_caller]
    fn check(message: FromRunner, payload: &[u8], expected: &str) {
        let mut out = b"before".to_vec();
        let error = encode(&message, payload, &mut out).unwrap_err();
        assert_eq!((error.to_string().as_str(), out.as_slice()), (expected, &b"before"[..]));
    }
    check(FromRunner::NeedInput {}, b"x", {
        "could not send `need_input` with a payload, which it cannot carry (payload length 1)"
    });
    check(FromRunner::Fault { message: "x".repeat(MAX_META) }, b"", {
        "could not send `fault` with 262173 bytes of JSON, at most 262144 are allowed"
    });
}

/// The largest allowed command fits into a message, however JSON escapes its words.
#[test]
fn commands_are_bounded_and_fit_into_a_message() {
    let worst = |length: usize| "\u{1}".repeat(length);
    let mut command: Vec<String> = vec!["a".into(); MAX_COMMAND - 1];
    command.push(worst(MAX_COMMAND_BYTES - command.len()));
    let most = ProgramCell { cell: CellId(u64::MAX), command, directory: Some(worst(MAX_PATH)) };
    assert_eq!(most.check(), Ok(()));
    encode(&ToRunner::Start(most.clone()), b"", &mut Vec::new()).unwrap();

    let with = |command: Vec<String>| ProgramCell { command, ..most.clone() }.check();
    assert_eq!(with(vec![]), Err(CommandError::Empty));
    assert_eq!(with(vec![String::new(), "x".into()]), Err(CommandError::Empty));
    let bytes = MAX_COMMAND_BYTES + 1;
    assert_eq!(with(vec!["a".repeat(bytes)]), Err(CommandError::TooLong { bytes }));
    let words = MAX_COMMAND + 1;
    assert_eq!(with(vec!["a".into(); words]), Err(CommandError::TooMany { words }));
    let directory = Some(worst(MAX_PATH + 1));
    assert_eq!(ProgramCell { directory, ..most.clone() }.check(), Err(CommandError::Directory));
}

/// The type that errors name is the one on the wire.
#[test]
fn messages_know_their_type_on_the_wire() {
    #[track_caller]
    fn check<M: WireMessage>(metas: &[&str]) {
        for meta in metas {
            let message: M = serde_json::from_str(meta).unwrap();
            assert_eq!(serde_json::to_value(&message).unwrap()["type"], message.type_name());
        }
    }
    check::<ToRunner>(&[
        r#"{"type":"hello","version":1,"stdin":"empty","interpreters":[],"warm":null,"network":{"names":[],"authority":null,"variables":[]},"resume":null}"#,
        r#"{"type":"run","cell":1,"language":"sh","name":"","args":[]}"#,
        r#"{"type":"start","cell":1,"command":[]}"#,
        r#"{"type":"interrupt","cell":1}"#,
        r#"{"type":"kill","cell":1}"#,
        r#"{"type":"input","end":true}"#,
        r#"{"type":"put","request":1,"path":""}"#,
        r#"{"type":"get","request":1,"path":"","most":1}"#,
        r#"{"type":"list","request":1,"path":""}"#,
        r#"{"type":"reply","call":1}"#,
        r#"{"type":"stream_data","stream":1}"#,
        r#"{"type":"stream_credit","stream":1,"bytes":1}"#,
        r#"{"type":"end_stream","stream":1}"#,
        r#"{"type":"reset_stream","stream":1}"#,
        r#"{"type":"ping","nonce":1,"received":1}"#,
        r#"{"type":"bye"}"#,
    ]);
    check::<FromRunner>(&[
        r#"{"type":"ready","version":1,"interpreters":[],"received":1,"proxy_port":3128,"name_door":true}"#,
        OUTPUT,
        r#"{"type":"image","cell":1,"format":"png"}"#,
        NEED_INPUT,
        r#"{"type":"done","cell":1,"outcome":{"kind":"completed"},"fresh":true}"#,
        r#"{"type":"stored","request":1,"bytes":1}"#,
        r#"{"type":"file","request":1}"#,
        r#"{"type":"listing","request":1,"entries":[],"left_out":0}"#,
        r#"{"type":"refused","request":1,"problem":{"kind":"not_found"}}"#,
        r#"{"type":"call","cell":1,"call":1}"#,
        r#"{"type":"forget","call":1}"#,
        r#"{"type":"taken","call":1}"#,
        r#"{"type":"open_stream","cell":1,"stream":1,"door":{"kind":"proxy"}}"#,
        r#"{"type":"unknown_name","cell":1,"name":"a"}"#,
        r#"{"type":"more_unknown_names","cell":1,"count":1}"#,
        r#"{"type":"stream_data","stream":1}"#,
        r#"{"type":"stream_credit","stream":1,"bytes":1}"#,
        r#"{"type":"end_stream","stream":1}"#,
        r#"{"type":"reset_stream","stream":1}"#,
        r#"{"type":"pong","nonce":1,"received":1}"#,
        r#"{"type":"fault","message":""}"#,
    ]);
}

#[test]
fn encodes_messages_as_documented() {
    let mut out = Vec::new();
    encode(&output(b"").0, b"hi", &mut out).unwrap();
    encode(&ToRunner::Bye {}, b"", &mut out).unwrap();
    assert_eq!(out, [frame(0, &content(OUTPUT, b"hi")), whole(r#"{"type":"bye"}"#)].concat());
}

#[test]
fn splits_a_long_message_into_full_frames() {
    let payload = vec![9; 2 * MAX_BODY];
    let body = content(OUTPUT, &payload);
    let mut out = Vec::new();
    encode(&output(b"").0, &payload, &mut out).unwrap();
    let (a, rest) = body.split_at(MAX_BODY);
    let (b, c) = rest.split_at(MAX_BODY);
    assert!(out == [frame(MORE, a), frame(MORE, b), frame(0, c)].concat());

    // No empty frame follows a message that fills exactly one frame.
    let mut out = Vec::new();
    encode(&output(b"").0, &payload[..a.len() - LENGTH - OUTPUT.len()], &mut out).unwrap();
    assert!(out == frame(0, a));
}

#[test]
fn a_length_alone_allocates_nothing() {
    let mut decoder = FrameDecoder::new();
    decoder.push(&(MAX_FRAME as u32).to_be_bytes());
    decoder.push(&[0, 0, 0]);
    assert!(decoder.next::<FromRunner>().unwrap().is_none());
    assert!(decoder.input.capacity() + decoder.content.capacity() < 64);
}

#[test]
fn decodes_many_small_frames_in_linear_time() {
    // If the decoder moved the rest of its input after each message, this would take minutes.
    const MESSAGES: usize = 200_000;
    let bytes = whole(NEED_INPUT).repeat(MESSAGES);
    let (messages, end) = decode(&bytes);
    assert_eq!((messages.len(), end), (MESSAGES, Ok(())));

    // The same with one message pushed for each that is taken, so that the decoder never runs dry.
    let mut decoder = FrameDecoder::new();
    decoder.push(&bytes);
    for _ in 0..MESSAGES {
        assert!(decoder.next::<FromRunner>().unwrap().is_some());
        decoder.push(&whole(NEED_INPUT));
    }
    assert!(decoder.buffered() <= 2 * bytes.len() + 64);
}
