//! Makes the seeds of the fuzzer (`fuzz/corpus/decode`), and checks that each still gets the verdict in its name.
//!
//! An `ok-` file is a stream that one direction accepts to its end; a `bad-` file is one that neither accepts. Files
//! that the fuzzer added have other names, and are only checked against the promises of the codec. To write the seeds
//! again: `cargo test --release -p cove-protocol --test corpus -- --ignored`

use std::fs;
use std::path::PathBuf;

use cove_protocol::limits::{MAX_FRAME, MAX_META};
use cove_protocol::{
    CallId, CellId, CellOutcome, CodeCell, CodeQuestion, FromRunner, HostHello, InterpreterPath, Language,
    NetworkSetup, OutputStream, ProgramCell, ReachableName, RequestId, ResumePoint, RunnerReady, StdinSource,
    StreamDoor, StreamId, ToRunner, VERSION, WireMessage, encode,
};

#[path = "exercise/decode.rs"]
mod decode;

use decode::exercise;

const MORE: u8 = 1;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/decode")
}

fn frame(flags: u8, body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32 + 1).to_be_bytes()[..], &[flags], body].concat()
}

fn content(meta: &[u8], payload: &[u8]) -> Vec<u8> {
    [&(meta.len() as u32).to_be_bytes(), meta, payload].concat()
}

fn encoded<M: WireMessage>(message: M, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    encode(&message, payload, &mut out).expect("a seed can be encoded");
    out
}

fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let interpreters = vec![InterpreterPath { language: Language::Python, program: "/usr/bin/python3".into() }];
    let taken = interpreters.clone();
    let ready =
        RunnerReady { version: VERSION, interpreters: taken, received: 0, proxy_port: Some(3128), name_door: true };
    let ready = encoded(FromRunner::Ready(ready), b"");
    let cell = CellId(1);
    let output = encoded(FromRunner::Output { cell, stream: OutputStream::Stderr, offset: 7 }, b"\x1b[1mhi\0\xff");
    let raised = CellOutcome::Raised { exception: "ValueError".into(), message: "\"ä\"\n".into() };
    let done = |outcome| encoded(FromRunner::Done { cell, outcome, fresh: false }, b"");
    let pong = encoded(FromRunner::Pong { nonce: u64::MAX, received: 3 }, b"");
    let names = vec![ReachableName { pattern: "*.a.test".into(), ports: vec![443] }];
    let hello = encoded(
        ToRunner::Hello(HostHello {
            version: VERSION,
            stdin: StdinSource::Host,
            interpreters,
            warm: Some(Language::Python),
            network: Some(NetworkSetup {
                names,
                authority: Some("-----BEGIN".into()),
                variables: vec![("TOKEN".into(), "x".into())],
            }),
            resume: Some(ResumePoint { received: 2 }),
        }),
        b"",
    );
    let run = CodeCell { cell, language: Language::Python, name: "<cell>".into(), args: vec!["-x".into()] };
    let run = encoded(ToRunner::Run(run), b"print(1)\n");
    let start = |directory| {
        let command = vec!["node".into(), "-".into(), "\0\u{1b}ä".into()];
        encoded(ToRunner::Start(ProgramCell { cell, command, directory }), b"")
    };
    let request = RequestId(3);
    let ask = |question| encoded(ToRunner::Ask { request, language: Language::Sh, question }, b"if true");
    let killed = |out_of_memory| CellOutcome::InterpreterKilled { signal: 9, out_of_memory };
    let id = CallId(9);
    let call = encoded(FromRunner::Call { cell, call: id }, br#"{"id":1,"ask":"servers"}"#);
    let called = [call, encoded(FromRunner::Forget { call: id }, b""), encoded(FromRunner::Taken { call: id }, b"")];
    let reply = encoded(ToRunner::Reply { call: id }, br#"{"ok":[]}"#);
    let stream = StreamId(4);
    let door = StreamDoor::Name { host: "a.test".into(), port: 443 };
    let streamed = [
        encoded(FromRunner::OpenStream { cell, stream, door: StreamDoor::Proxy {} }, b""),
        encoded(FromRunner::OpenStream { cell, stream, door }, b""),
        encoded(FromRunner::UnknownName { cell, name: "evil.test".into() }, b""),
        encoded(FromRunner::MoreUnknownNames { cell, count: 7 }, b""),
        encoded(FromRunner::StreamData { stream }, b"CONNECT a.example:443 HTTP/1.1\r\n\r\n"),
        encoded(FromRunner::StreamCredit { stream, bytes: 39 }, b""),
        encoded(FromRunner::EndStream { stream }, b""),
        encoded(FromRunner::ResetStream { stream }, b""),
    ];
    let answered = [
        encoded(ToRunner::StreamData { stream }, b"HTTP/1.1 200 OK\r\n\r\n"),
        encoded(ToRunner::StreamCredit { stream, bytes: u32::MAX }, b""),
        encoded(ToRunner::EndStream { stream }, b""),
        encoded(ToRunner::ResetStream { stream }, b""),
    ];
    let body = &output[5..];
    let json = |meta: &[u8]| frame(0, &content(meta, b""));
    let deep = [br#"{"x":"#, &[b'['; 300][..]].concat();
    vec![
        ("ok-ready", ready.clone()),
        ("ok-output", output.clone()),
        ("ok-cell", [ready, output.clone(), done(CellOutcome::Completed {}), pong.clone()].concat()),
        ("ok-raised", done(raised)),
        ("ok-killed", [done(killed(None)), done(killed(Some(true)))].concat()),
        ("ok-start", [start(None), start(Some("/workspace".into()))].concat()),
        ("ok-ask", [ask(CodeQuestion::Completeness), ask(CodeQuestion::Completions)].concat()),
        ("ok-answer", encoded(FromRunner::Answer { request }, b"open")),
        ("ok-calls", called.concat()),
        ("ok-reply", reply),
        ("ok-streams", streamed.concat()),
        ("ok-streams-to-runner", answered.concat()),
        ("ok-to-runner", [hello, run, encoded(ToRunner::Bye {}, b"")].concat()),
        ("ok-one-byte-frames", {
            let (last, before) = body.split_last().expect("a message has bytes");
            [before.iter().flat_map(|b| frame(MORE, &[*b])).collect(), frame(0, &[*last])].concat()
        }),
        ("ok-empty-last-frame", [frame(MORE, body), frame(0, b"")].concat()),
        ("bad-length-zero", 0_u32.to_be_bytes().to_vec()),
        ("bad-length-over", (MAX_FRAME as u32 + 1).to_be_bytes().to_vec()),
        ("bad-length-after-a-message", [output.clone(), vec![0xff; 4]].concat()),
        ("bad-flags", frame(2, body)),
        ("bad-empty-continuation", frame(MORE, b"").repeat(3)),
        ("bad-end-inside-frame", output[..output.len() - 1].to_vec()),
        ("bad-end-inside-length", [output.clone(), vec![0, 0]].concat()),
        ("bad-end-inside-message", frame(MORE, body)),
        ("bad-meta-length", frame(0, &(MAX_META as u32 + 1).to_be_bytes())),
        ("bad-meta-missing", frame(0, &[0, 0, 0, 9, b'{'])),
        ("bad-empty-message", frame(0, b"")),
        ("bad-array", json(br#"["need_input"]"#)),
        ("bad-unknown-field", json(br#"{"type":"need_input","x":1}"#)),
        ("bad-unknown-type", json(b"{\"type\":\"\\u001b[2J\"}")),
        ("bad-trailing-json", json(br#"{"type":"need_input"} {}"#)),
        ("bad-not-utf8", json(b"{\"type\":\"fault\",\"message\":\"\xff\"}")),
        ("bad-deep-json", json(&deep)),
        ("bad-start-field", json(br#"{"type":"start","cell":1,"command":["a"],"shell":true}"#)),
        ("bad-number", json(br#"{"type":"pong","nonce":18446744073709551616,"received":-1}"#)),
        ("bad-stream-credit", json(br#"{"type":"stream_credit","stream":1,"bytes":4294967296}"#)),
        ("bad-stream-door", json(br#"{"type":"open_stream","cell":1,"stream":1,"port":22}"#)),
        ("bad-stream-payload", frame(0, &content(br#"{"type":"end_stream","stream":1}"#, b"x"))),
        ("bad-payload", frame(0, &content(br#"{"type":"need_input"}"#, b"x"))),
    ]
}

#[test]
fn every_corpus_file_gets_the_verdict_in_its_name() {
    let mut replayed = 0;
    for entry in fs::read_dir(folder()).expect("the corpus is there") {
        let path = entry.expect("the corpus can be listed").path();
        let name = path.file_name().expect("a file has a name").to_string_lossy().into_owned();
        let verdict = exercise(&fs::read(&path).expect("a seed can be read"));
        let accepted = [&verdict.from_runner, &verdict.to_runner].iter().any(|(n, end)| *n > 0 && end.is_ok());
        match name.split('-').next() {
            Some("ok") => assert!(accepted, "{name}: {verdict:?}"),
            Some("bad") => assert!(!accepted, "{name}: {verdict:?}"),
            _ => continue,
        }
        replayed += 1;
    }
    assert!(replayed > 0, "the corpus is empty");
}

/// After a change of the format, stale seeds would all fail at their first byte and test nothing.
#[test]
fn the_seeds_are_up_to_date() {
    for (name, bytes) in seeds() {
        assert_eq!(
            fs::read(folder().join(name)).ok(),
            Some(bytes),
            "`{name}` is stale; the top of this file says how to write it again"
        );
    }
}

#[test]
#[ignore = "writes the corpus instead of reading it"]
fn write_the_seeds() {
    fs::create_dir_all(folder()).expect("the corpus folder can be made");
    for (name, bytes) in seeds() {
        fs::write(folder().join(name), bytes).expect("a seed can be written");
    }
}
