//! The socket and the routing, driven by hand: what the loop would see, and what the host would hear.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, Timespec, poll};
use serde_json::{Value, json};

use super::*;

struct Bench {
    calls: Calls,
    /// What the host has heard.
    said: Vec<(FromRunner, Vec<u8>)>,
    folder: tempfile::TempDir,
}

const CELL: CellId = CellId(7);

impl Bench {
    /// With a cell that runs.
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let calls = Calls::new(&folder.path().join("in/mcp"));
        let mut bench = Self { calls, said: Vec::new(), folder };
        bench.calls.begin(CELL);
        bench
    }

    fn connect(&mut self) -> UnixStream {
        let stream = UnixStream::connect(self.folder.path().join("in/mcp")).unwrap();
        stream.set_nonblocking(true).unwrap();
        self.settle();
        stream
    }

    /// Turns the loop until nothing is ready any more.
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
                self.with_host(|calls, say| calls.ready(source, found, say));
            }
        }
    }

    fn with_host(&mut self, act: impl FnOnce(&mut Calls, Say<'_>) -> io::Result<()>) {
        let said = &mut self.said;
        act(&mut self.calls, &mut |message, payload| {
            said.push((message.clone(), payload.to_vec()));
            Ok(())
        })
        .unwrap();
    }

    fn reply(&mut self, call: CallId, object: &str) {
        self.with_host(|calls, say| calls.reply(call, object.into(), say));
        self.settle();
    }

    fn end(&mut self) {
        self.with_host(|calls, say| calls.end(say));
        self.settle();
    }

    /// The calls that the host has heard of, and forgets with this.
    fn heard(&mut self) -> Vec<CallId> {
        let calls = self.said.iter().filter_map(|(message, _)| match message {
            FromRunner::Call { cell: CELL, call } => Some(*call),
            _ => None,
        });
        let calls = calls.collect();
        self.said.clear();
        calls
    }

    /// All that is kept for code that reads or writes too slowly.
    fn kept(&self) -> usize {
        self.calls.connections.values().map(Connection::kept).sum()
    }
}

fn framed(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat()
}

/// As much as there is room for.
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

/// All whole replies that can be read now, and whether the runner has closed the connection.
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

/// Writes all of a long request while the loop turns.
fn write_long(bench: &mut Bench, stream: &UnixStream, bytes: &[u8]) -> usize {
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

fn request_of(length: usize) -> Vec<u8> {
    let around = r#"{"id":1,"x":""}"#;
    framed(&format!(r#"{{"id":1,"x":"{}"}}"#, "y".repeat(length - around.len())))
}

#[test]
fn ids_that_collide_find_their_own_reply() {
    let mut bench = Bench::new();
    let (one, two) = (bench.connect(), bench.connect());
    write(&one, &framed(r#"{"id":1,"ask":"a"}"#));
    write(&two, &framed(r#" {"ask":"b","id":1} "#));
    bench.settle();
    let requests: Vec<&[u8]> = bench.said.iter().map(|(_, request)| &request[..]).collect();
    assert_eq!(requests, [&br#"{"id":1,"ask":"a"}"#[..], br#" {"ask":"b","id":1} "#], "as they were written");
    let calls = bench.heard();
    assert_eq!(calls, [CallId(1), CallId(2)]);
    bench.reply(calls[1], r#"{"ok":"b"}"#);
    bench.reply(calls[0], r#"{"error":{"kind":"tool"}}"#);
    assert_eq!(read(&two), (vec![json!({"id": 1, "ok": "b"})], false));
    assert_eq!(read(&one), (vec![json!({"id": 1, "error": {"kind": "tool"}})], false));
}

#[test]
fn requests_may_come_in_pieces_and_in_heaps() {
    let mut bench = Bench::new();
    let stream = bench.connect();
    for byte in framed(r#"{"id":5}"#) {
        write(&stream, &[byte]);
        bench.settle();
    }
    write(&stream, &[framed(r#"{"id":6}"#), framed(r#"{"id":7}"#)].concat());
    bench.settle();
    let calls = bench.heard();
    assert_eq!(calls.len(), 3);
    for call in calls.into_iter().rev() {
        bench.reply(call, r#"{"ok":1}"#);
    }
    let ids: Vec<Value> = read(&stream).0.into_iter().map(|reply| reply["id"].clone()).collect();
    assert_eq!(ids, [7, 6, 5]);
}

#[test]
fn without_a_cell_nothing_is_called() {
    let mut bench = Bench::new();
    let stream = bench.connect();
    write(&stream, &framed(r#"{"id":3}"#));
    bench.settle();
    let call = bench.heard()[0];
    bench.end();
    write(&stream, &framed(r#"{"id":4}"#));
    bench.settle();
    let (replies, _) = read(&stream);
    let kinds: Vec<(&Value, &Value)> =
        replies.iter().map(|reply| (&reply["id"], &reply["error"]["kind"])).collect();
    assert_eq!(kinds, [(&json!(3), &json!("cancelled")), (&json!(4), &json!("refused"))]);
    assert_eq!(bench.said, [], "the host hears of neither");
    // The reply was on its way when the cell ended.
    bench.reply(call, r#"{"ok":1}"#);
    assert_eq!(read(&stream), (vec![], false));
    let long = format!(r#"{{"ok":"{}"}}"#, "x".repeat(FREE_REPLY));
    bench.reply(call, &long);
    assert_eq!(bench.said, [(FromRunner::Taken { call }, vec![])], "and the host hears that it is gone");
}

#[test]
fn only_so_many_are_under_way() {
    let mut bench = Bench::new();
    let (greedy, other) = (bench.connect(), bench.connect());
    write(&greedy, &framed(r#"{"id":1}"#).repeat(200));
    bench.settle();
    let calls = bench.heard();
    assert_eq!(calls.len(), MAX_CALLS);
    write(&other, &framed(r#"{"id":2}"#));
    bench.settle();
    assert_eq!(bench.heard(), []);
    bench.reply(calls[0], r#"{"ok":1}"#);
    bench.reply(calls[1], r#"{"ok":1}"#);
    assert_eq!(bench.heard().len(), 2);
    assert_eq!(bench.calls.open.values().filter(|caller| caller.id == 2).count(), 1, "each has its turn");
}

#[test]
fn long_requests_wait_for_one_another() {
    let mut bench = Bench::new();
    let request = request_of(MAX_CALL);
    let streams: Vec<UnixStream> = (0..6).map(|_| bench.connect()).collect();
    let half = MAX_CALL / 2;
    for stream in &streams {
        write_long(&mut bench, stream, &request[..half]);
    }
    assert!(bench.kept() <= MAX_ARRIVING, "{}", bench.kept());
    for stream in &streams[..4] {
        assert_eq!(write_long(&mut bench, stream, &request[half..]), request.len() - half);
    }
    let calls = bench.heard();
    assert_eq!(calls.len(), 4, "as many bytes as the host takes at once");
    assert!(bench.kept() <= MAX_ARRIVING, "{}", bench.kept());
    // A short one need not wait for leave, but for room with the host.
    let short = bench.connect();
    write(&short, &framed(r#"{"id":1}"#));
    bench.settle();
    assert_eq!(bench.heard(), []);
    bench.reply(calls[0], r#"{"ok":1}"#);
    assert_eq!(bench.heard().len(), 1);
    drop(streams);
    drop(short);
    bench.settle();
    assert_eq!((bench.kept(), bench.calls.arriving, bench.calls.open_bytes), (0, 0, 0));
}

#[test]
fn who_does_not_read_is_not_listened_to() {
    let mut bench = Bench::new();
    bench.end();
    let stream = bench.connect();
    let flood = framed(r#"{"id":1}"#).repeat(10_000);
    while write_long(&mut bench, &stream, &flood) == flood.len() {
        assert!(bench.kept() < 1 << 20, "{}", bench.kept());
    }
    assert!(bench.kept() < 1 << 20, "{}", bench.kept());
    let other = bench.connect();
    write(&other, &framed(r#"{"id":2}"#));
    bench.settle();
    assert_eq!(read(&other).0.len(), 1, "others are");
    // What it left is answered as it reads; only its last request is cut.
    let mut answered = 0;
    loop {
        let mut some = [0; 64 * 1024];
        let Ok(count) = (&stream).read(&mut some) else { break };
        answered += count;
        bench.settle();
    }
    assert!(answered > 0 && bench.kept() < 64, "{answered} {}", bench.kept());
}

#[test]
fn a_long_reply_is_taken_when_it_is_read() {
    let mut bench = Bench::new();
    let stream = bench.connect();
    write(&stream, &framed(r#"{"id":1}"#));
    bench.settle();
    let call = bench.heard()[0];
    let long = format!(r#"{{"ok":"{}"}}"#, "x".repeat(1 << 20));
    bench.reply(call, &long);
    assert_eq!(bench.said, []);
    let mut got = Vec::new();
    while let Ok(count) = (&stream).read(&mut [0; 100_000][..]).inspect(|_| bench.settle()) {
        got.push(count);
    }
    let prefix = r#"{"id":1,"#.len() - 1;
    assert_eq!(got.iter().sum::<usize>(), 4 + prefix + long.len());
    assert_eq!(bench.said, [(FromRunner::Taken { call }, vec![])]);
}

#[test]
fn a_connection_that_goes_takes_its_calls_with_it() {
    let mut bench = Bench::new();
    let (gone, stays) = (bench.connect(), bench.connect());
    write(&gone, &framed(r#"{"id":1}"#).repeat(3));
    write(&stays, &framed(r#"{"id":1}"#));
    bench.settle();
    let calls = bench.heard();
    let long = format!(r#"{{"ok":"{}"}}"#, "x".repeat(1 << 20));
    bench.reply(calls[0], &long);
    drop(gone);
    bench.settle();
    let forgotten = |call| (FromRunner::Forget { call }, vec![]);
    let taken = (FromRunner::Taken { call: calls[0] }, vec![]);
    assert_eq!(bench.said, [taken, forgotten(calls[1]), forgotten(calls[2])]);
    bench.reply(calls[1], r#"{"ok":1}"#);
    bench.reply(calls[3], r#"{"ok":1}"#);
    assert_eq!(read(&stays).0, [json!({"id": 1, "ok": 1})]);
    assert_eq!(bench.calls.connections.len(), 1);
}

#[test]
fn who_has_written_all_still_hears() {
    let mut bench = Bench::new();
    let stream = bench.connect();
    write(&stream, &framed(r#"{"id":1}"#));
    stream.shutdown(Shutdown::Write).unwrap();
    bench.settle();
    let call = bench.heard()[0];
    bench.reply(call, r#"{"ok":1}"#);
    assert_eq!(read(&stream), (vec![json!({"id": 1, "ok": 1})], true), "and then it is closed");
    assert_eq!(bench.calls.connections.len(), 0);
}

#[test]
fn nonsense_closes_the_connection() {
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
        let mut bench = Bench::new();
        let stream = bench.connect();
        write(&stream, &framed(r#"{"id":1}"#));
        bench.settle();
        let call = bench.heard()[0];
        write(&stream, nonsense);
        bench.settle();
        let (replies, closed) = read(&stream);
        assert!(closed && replies.len() == 1 && replies[0]["id"].is_null(), "{nonsense:?}: {replies:?}");
        assert_eq!(bench.said, [(FromRunner::Forget { call }, vec![])]);
    }
}

#[test]
fn connections_beyond_the_limit_wait() {
    let mut bench = Bench::new();
    let mut streams: Vec<UnixStream> = (0..=MAX_CONNECTIONS).map(|_| bench.connect()).collect();
    assert_eq!(bench.calls.connections.len(), MAX_CONNECTIONS);
    write(&streams[MAX_CONNECTIONS], &framed(r#"{"id":1}"#));
    bench.settle();
    assert_eq!(bench.heard(), []);
    streams.remove(0);
    bench.settle();
    assert_eq!(bench.heard().len(), 1);
}

#[test]
fn a_socket_that_was_removed_or_replaced_is_made_again() {
    let mut bench = Bench::new();
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
        assert_eq!(bench.heard().len(), 1);
    }
    // What cannot be put right: calls fail, and nothing else does.
    std::fs::remove_file(&socket).unwrap();
    std::fs::create_dir(&socket).unwrap();
    bench.end();
    bench.calls.begin(CELL);
    assert!(bench.calls.listener.is_none());
    write(&before, &framed(r#"{"id":1}"#));
    bench.settle();
    assert_eq!(bench.heard().len(), 1, "a connection from before lives on");
}

#[test]
fn a_host_that_makes_no_sense_is_not_obeyed() {
    let mut bench = Bench::new();
    let mut nothing = |_: &FromRunner, _: &[u8]| Ok(());
    assert!(bench.calls.reply(CallId(1), b"{}".to_vec(), &mut nothing).is_err());
    let stream = bench.connect();
    write(&stream, &framed(r#"{"id":1}"#));
    bench.settle();
    assert!(bench.calls.reply(CallId(1), b"".to_vec(), &mut nothing).is_err());
}
