//! Drives the socket and the routing by hand, as the loop would, and checks what the host would receive.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, Timespec, poll};
use serde_json::{Value, json};

use super::*;

/// A router with its own socket, and a record of what it has sent to the host.
struct RouterBench {
    calls: CallRouter,
    /// What the host has received.
    sent: Vec<(FromRunner, Vec<u8>)>,
    folder: tempfile::TempDir,
}

const CELL: CellId = CellId(7);

impl RouterBench {
    /// A router with a running cell.
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let calls = CallRouter::new(&folder.path().join("in/mcp"));
        let mut bench = Self { calls, sent: Vec::new(), folder };
        bench.calls.begin(CELL);
        bench
    }

    fn connect(&mut self) -> UnixStream {
        let stream = UnixStream::connect(self.folder.path().join("in/mcp")).unwrap();
        stream.set_nonblocking(true).unwrap();
        self.settle();
        stream
    }

    /// Runs the loop until nothing is ready any more.
    fn settle(&mut self) {
        loop {
            let mut sources = Vec::new();
            let mut fds = Vec::new();
            for (source, fd, wanted) in self.calls.sources() {
                sources.push(source);
                fds.push(PollFd::from_borrowed_fd(fd, wanted));
            }
            poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
            let found: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
            if found.iter().all(|found| found.is_empty()) {
                return;
            }
            for (source, found) in sources.into_iter().zip(found).filter(|(_, found)| !found.is_empty()) {
                self.with_host(|calls, send| calls.handle(source, found, send));
            }
        }
    }

    fn with_host(&mut self, act: impl FnOnce(&mut CallRouter, SendToHost<'_>) -> io::Result<()>) {
        let sent = &mut self.sent;
        act(&mut self.calls, &mut |message, payload| {
            sent.push((message.clone(), payload.to_vec()));
            Ok(())
        })
        .unwrap();
    }

    fn reply(&mut self, call: CallId, object: &str) {
        self.with_host(|calls, send| calls.reply(call, object.into(), send));
        self.settle();
    }

    fn end(&mut self) {
        self.with_host(|calls, send| calls.end(send));
        self.settle();
    }

    /// Returns the calls that the host has received, and clears the record.
    fn take_calls(&mut self) -> Vec<CallId> {
        let calls = self.sent.iter().filter_map(|(message, _)| match message {
            FromRunner::Call { cell: CELL, call } => Some(*call),
            _ => None,
        });
        let calls = calls.collect();
        self.sent.clear();
        calls
    }

    /// Returns how many bytes are buffered for code that reads or writes too slowly.
    fn buffered(&self) -> usize {
        self.calls.connections.values().map(CallConnection::buffered).sum()
    }
}

fn framed(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat()
}

/// Writes as much as there is room for, and returns how much that was.
fn write(mut stream: &UnixStream, bytes: &[u8]) -> usize {
    let mut written = 0;
    while written < bytes.len() {
        match stream.write(&bytes[written..]) {
            Ok(count) => written += count,
            Err(_) => break,
        }
    }
    written
}

/// Returns all whole replies that can be read now, and whether the runner has closed the connection.
fn read(mut stream: &UnixStream) -> (Vec<Value>, bool) {
    let mut bytes = Vec::new();
    let closed = stream.read_to_end(&mut bytes).is_ok();
    let mut rest = &bytes[..];
    let mut replies = Vec::new();
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let (reply, after) = after.split_at(u32::from_be_bytes(*length) as usize);
        replies.push(serde_json::from_slice(reply).unwrap());
        rest = after;
    }
    (replies, closed)
}

/// Writes a long request while the loop runs, until the runner takes no more. Returns how much it has taken.
fn write_long(bench: &mut RouterBench, stream: &UnixStream, bytes: &[u8]) -> usize {
    let mut written = 0;
    loop {
        let count = write(stream, &bytes[written..]);
        written += count;
        bench.settle();
        if count == 0 {
            return written;
        }
    }
}

/// Returns the frame of a request of this length.
fn request_of(length: usize) -> Vec<u8> {
    let process_env = r#"{"id":1,"x":""}"#;
    framed(&format!(r#"{{"id":1,"x":"{}"}}"#, "y".repeat(length - process_env.len())))
}

#[test]
fn equal_ids_of_two_connections_get_their_own_replies() {
    let mut bench = RouterBench::new();
    let (one, two) = (bench.connect(), bench.connect());
    write(&one, &framed(r#"{"id":1,"ask":"a"}"#));
    write(&two, &framed(r#" {"ask":"b","id":1} "#));
    bench.settle();
    let requests: Vec<&[u8]> = bench.sent.iter().map(|(_, request)| &request[..]).collect();
    assert_eq!(requests, [&br#"{"id":1,"ask":"a"}"#[..], br#" {"ask":"b","id":1} "#], "as they were written");
    let calls = bench.take_calls();
    assert_eq!(calls, [CallId(1), CallId(2)]);
    bench.reply(calls[1], r#"{"ok":"b"}"#);
    bench.reply(calls[0], r#"{"error":{"kind":"tool"}}"#);
    assert_eq!(read(&two), (vec![json!({"id": 1, "ok": "b"})], false));
    assert_eq!(read(&one), (vec![json!({"id": 1, "error": {"kind": "tool"}})], false));
}

#[test]
fn accepts_requests_in_pieces_and_several_at_once() {
    let mut bench = RouterBench::new();
    let stream = bench.connect();
    for byte in framed(r#"{"id":5}"#) {
        write(&stream, &[byte]);
        bench.settle();
    }
    write(&stream, &[framed(r#"{"id":6}"#), framed(r#"{"id":7}"#)].concat());
    bench.settle();
    let calls = bench.take_calls();
    assert_eq!(calls.len(), 3);
    for call in calls.into_iter().rev() {
        bench.reply(call, r#"{"ok":1}"#);
    }
    let ids: Vec<Value> = read(&stream).0.into_iter().map(|reply| reply["id"].clone()).collect();
    assert_eq!(ids, [7, 6, 5]);
}

#[test]
fn refuses_calls_while_no_cell_runs() {
    let mut bench = RouterBench::new();
    let stream = bench.connect();
    write(&stream, &framed(r#"{"id":3}"#));
    bench.settle();
    let call = bench.take_calls()[0];
    bench.end();
    write(&stream, &framed(r#"{"id":4}"#));
    bench.settle();
    let (replies, _) = read(&stream);
    let kinds: Vec<(&Value, &Value)> = replies.iter().map(|reply| (&reply["id"], &reply["error"]["kind"])).collect();
    assert_eq!(kinds, [(&json!(3), &json!("cancelled")), (&json!(4), &json!("refused"))]);
    assert_eq!(bench.sent, [], "the host receives neither");
    // The reply was on its way when the cell ended.
    bench.reply(call, r#"{"ok":1}"#);
    assert_eq!(read(&stream), (vec![], false));
    let long = format!(r#"{{"ok":"{}"}}"#, "x".repeat(FREE_REPLY));
    bench.reply(call, &long);
    assert_eq!(bench.sent, [(FromRunner::Taken { call }, vec![])], "the host learns that it is gone");
}

#[test]
fn bounds_the_calls_without_a_reply() {
    let mut bench = RouterBench::new();
    let (greedy, other) = (bench.connect(), bench.connect());
    write(&greedy, &framed(r#"{"id":1}"#).repeat(200));
    bench.settle();
    let calls = bench.take_calls();
    assert_eq!(calls.len(), MAX_CALLS);
    write(&other, &framed(r#"{"id":2}"#));
    bench.settle();
    assert_eq!(bench.take_calls(), []);
    bench.reply(calls[0], r#"{"ok":1}"#);
    bench.reply(calls[1], r#"{"ok":1}"#);
    assert_eq!(bench.take_calls().len(), 2);
    assert_eq!(bench.calls.open.values().filter(|caller| caller.id == 2).count(), 1, "each connection has its turn");
}

#[test]
fn long_requests_wait_for_each_other() {
    let mut bench = RouterBench::new();
    let request = request_of(MAX_CALL);
    let streams: Vec<UnixStream> = (0..6).map(|_| bench.connect()).collect();
    let half = MAX_CALL / 2;
    for stream in &streams {
        write_long(&mut bench, stream, &request[..half]);
    }
    assert!(bench.buffered() <= MAX_ARRIVING, "{}", bench.buffered());
    for stream in &streams[..4] {
        assert_eq!(write_long(&mut bench, stream, &request[half..]), request.len() - half);
    }
    let calls = bench.take_calls();
    assert_eq!(calls.len(), 4, "as many bytes as the host accepts without a reply");
    assert!(bench.buffered() <= MAX_ARRIVING, "{}", bench.buffered());
    // A short request needs no reservation, but it waits for room at the host.
    let short = bench.connect();
    write(&short, &framed(r#"{"id":1}"#));
    bench.settle();
    assert_eq!(bench.take_calls(), []);
    bench.reply(calls[0], r#"{"ok":1}"#);
    assert_eq!(bench.take_calls().len(), 1);
    drop(streams);
    drop(short);
    bench.settle();
    assert_eq!((bench.buffered(), bench.calls.reserved_bytes, bench.calls.open_bytes), (0, 0, 0));
}

#[test]
fn stops_reading_from_code_that_does_not_read_its_replies() {
    let mut bench = RouterBench::new();
    bench.end();
    let stream = bench.connect();
    let flood = framed(r#"{"id":1}"#).repeat(10_000);
    while write_long(&mut bench, &stream, &flood) == flood.len() {
        assert!(bench.buffered() < 1 << 20, "{}", bench.buffered());
    }
    assert!(bench.buffered() < 1 << 20, "{}", bench.buffered());
    let other = bench.connect();
    write(&other, &framed(r#"{"id":2}"#));
    bench.settle();
    assert_eq!(read(&other).0.len(), 1, "other connections go on");
    // The requests that wait are answered as the code reads. Only the last one is cut off.
    let mut answered = 0;
    loop {
        let mut some = [0; 64 * 1024];
        let Ok(count) = (&stream).read(&mut some) else { break };
        answered += count;
        bench.settle();
    }
    assert!(answered > 0 && bench.buffered() < 64, "{answered} {}", bench.buffered());
}

#[test]
fn reports_a_long_reply_as_taken_when_it_is_read() {
    let mut bench = RouterBench::new();
    let stream = bench.connect();
    write(&stream, &framed(r#"{"id":1}"#));
    bench.settle();
    let call = bench.take_calls()[0];
    let long = format!(r#"{{"ok":"{}"}}"#, "x".repeat(1 << 20));
    bench.reply(call, &long);
    assert_eq!(bench.sent, []);
    let mut got = Vec::new();
    while let Ok(count) = (&stream).read(&mut [0; 100_000][..]).inspect(|_| bench.settle()) {
        got.push(count);
    }
    let prefix = r#"{"id":1,"#.len() - 1;
    assert_eq!(got.iter().sum::<usize>(), 4 + prefix + long.len());
    assert_eq!(bench.sent, [(FromRunner::Taken { call }, vec![])]);
}

#[test]
fn forgets_the_calls_of_a_closed_connection() {
    let mut bench = RouterBench::new();
    let (gone, stays) = (bench.connect(), bench.connect());
    write(&gone, &framed(r#"{"id":1}"#).repeat(3));
    write(&stays, &framed(r#"{"id":1}"#));
    bench.settle();
    let calls = bench.take_calls();
    let long = format!(r#"{{"ok":"{}"}}"#, "x".repeat(1 << 20));
    bench.reply(calls[0], &long);
    drop(gone);
    bench.settle();
    let forgotten = |call| (FromRunner::Forget { call }, vec![]);
    let taken = (FromRunner::Taken { call: calls[0] }, vec![]);
    assert_eq!(bench.sent, [taken, forgotten(calls[1]), forgotten(calls[2])]);
    bench.reply(calls[1], r#"{"ok":1}"#);
    bench.reply(calls[3], r#"{"ok":1}"#);
    assert_eq!(read(&stays).0, [json!({"id": 1, "ok": 1})]);
    assert_eq!(bench.calls.connections.len(), 1);
}

#[test]
fn replies_to_code_that_has_closed_its_writing_side() {
    let mut bench = RouterBench::new();
    let stream = bench.connect();
    write(&stream, &framed(r#"{"id":1}"#));
    stream.shutdown(Shutdown::Write).unwrap();
    bench.settle();
    let call = bench.take_calls()[0];
    bench.reply(call, r#"{"ok":1}"#);
    assert_eq!(read(&stream), (vec![json!({"id": 1, "ok": 1})], true), "then the runner closes it");
    assert_eq!(bench.calls.connections.len(), 0);
}

#[test]
fn closes_a_connection_that_sends_nonsense() {
    let long = (MAX_CALL as u32 + 1).to_be_bytes();
    for nonsense in [
        &b"\0\0\0\0"[..],
        &long,
        b"GET / HTTP/1.1\r\n",
        &framed("[1]"),
        &framed("{}"),
        &framed(r#"{"id":"1"}"#),
        &framed(r#"{"id":-1}"#),
        &framed(r#"{"id":1,"id":2}"#),
        &framed(r#"{"id":1}}"#),
        &[b"\0\0\0\x0d", &b"{\"id\":1,\"\xff\":0"[..]].concat(),
    ] {
        let mut bench = RouterBench::new();
        let stream = bench.connect();
        write(&stream, &framed(r#"{"id":1}"#));
        bench.settle();
        let call = bench.take_calls()[0];
        write(&stream, nonsense);
        bench.settle();
        let (replies, closed) = read(&stream);
        assert!(closed && replies.len() == 1 && replies[0]["id"].is_null(), "{nonsense:?}: {replies:?}");
        assert_eq!(bench.sent, [(FromRunner::Forget { call }, vec![])]);
    }
}

#[test]
fn connections_beyond_the_limit_wait() {
    let mut bench = RouterBench::new();
    let mut streams: Vec<UnixStream> = (0..=MAX_CONNECTIONS).map(|_| bench.connect()).collect();
    assert_eq!(bench.calls.connections.len(), MAX_CONNECTIONS);
    write(&streams[MAX_CONNECTIONS], &framed(r#"{"id":1}"#));
    bench.settle();
    assert_eq!(bench.take_calls(), []);
    streams.remove(0);
    bench.settle();
    assert_eq!(bench.take_calls().len(), 1);
}

#[test]
fn makes_a_removed_or_replaced_socket_again() {
    let mut bench = RouterBench::new();
    let socket = bench.folder.path().join("in/mcp");
    let folder = bench.folder.path().join("in");
    let before = bench.connect();
    let damages: [&dyn Fn(); 4] = [
        &|| std::fs::remove_dir_all(&folder).unwrap(),
        &|| {
            std::fs::remove_file(&socket).unwrap();
            std::fs::write(&socket, "not a socket").unwrap();
        },
        &|| {
            std::fs::remove_dir_all(&folder).unwrap();
            std::os::unix::fs::symlink("/nonexistent", &folder).unwrap();
        },
        &|| {
            std::fs::remove_file(&socket).unwrap();
            drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        },
    ];
    for damage in damages {
        damage();
        bench.end();
        bench.calls.begin(CELL);
        let stream = bench.connect();
        write(&stream, &framed(r#"{"id":1}"#));
        bench.settle();
        assert_eq!(bench.take_calls().len(), 1);
    }
    // Code can make this impossible. Then calls fail, and nothing else does.
    std::fs::remove_file(&socket).unwrap();
    std::fs::create_dir(&socket).unwrap();
    bench.end();
    bench.calls.begin(CELL);
    assert!(bench.calls.listener.is_none());
    write(&before, &framed(r#"{"id":1}"#));
    bench.settle();
    assert_eq!(bench.take_calls().len(), 1, "an earlier connection still works");
}

#[test]
fn refuses_replies_that_break_the_protocol() {
    let mut bench = RouterBench::new();
    let mut nothing = |_: &FromRunner, _: &[u8]| Ok(());
    assert!(bench.calls.reply(CallId(1), b"{}".to_vec(), &mut nothing).is_err());
    let stream = bench.connect();
    write(&stream, &framed(r#"{"id":1}"#));
    bench.settle();
    assert!(bench.calls.reply(CallId(1), b"".to_vec(), &mut nothing).is_err());
}
