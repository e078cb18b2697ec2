//! Drives the door by hand, as the loop would, and checks what the host would receive.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown as StdShutdown, TcpStream};

use rustix::event::{PollFd, Timespec, poll};

use super::*;

/// A door with a running cell, and a record of what it has sent to the host.
struct DoorBench {
    door: NetworkDoor,
    sent: Vec<(FromRunner, Vec<u8>)>,
}

impl DoorBench {
    fn new() -> Self {
        let mut door = NetworkDoor::default();
        door.open(NetworkSetup::default());
        door.begin(CellId(3));
        Self { door, sent: Vec::new() }
    }

    fn connect(&mut self) -> TcpStream {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.door.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        self.settle();
        stream
    }

    fn with_host(&mut self, act: impl FnOnce(&mut NetworkDoor, SendToHost<'_>) -> io::Result<()>) -> io::Result<()> {
        let sent = &mut self.sent;
        act(&mut self.door, &mut |message, payload| {
            sent.push((message.clone(), payload.to_vec()));
            Ok(())
        })
    }

    /// Runs the loop until nothing is ready for some time: the kernel delivers on the loopback at once, or nearly so.
    fn settle(&mut self) {
        loop {
            let (mut sources, mut fds) = (Vec::new(), Vec::new());
            for (source, fd, wanted) in self.door.sources() {
                sources.push(source);
                fds.push(PollFd::from_borrowed_fd(fd, wanted));
            }
            if poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 50_000_000 })).unwrap() == 0 {
                return;
            }
            let found: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
            for (source, found) in sources.into_iter().zip(found).filter(|(_, found)| !found.is_empty()) {
                self.with_host(|door, send| door.handle(source, found, send)).unwrap();
            }
        }
    }

    fn receive(&mut self, id: u64, bytes: &[u8]) -> io::Result<()> {
        let received = self.with_host(|door, send| door.receive(StreamId(id), bytes, send));
        self.settle();
        received
    }

    fn end(&mut self) {
        self.with_host(|door, send| door.end(send)).unwrap();
    }

    fn end_stream(&mut self, id: u64) {
        self.with_host(|door, send| door.end_stream(StreamId(id), send)).unwrap();
        self.settle();
    }

    /// Returns what the host has received, in short, and clears the record.
    fn take(&mut self) -> Vec<String> {
        let short = |(message, payload): (FromRunner, Vec<u8>)| match message {
            FromRunner::OpenStream { stream, .. } => format!("{} open", stream.0),
            FromRunner::StreamData { stream } => format!("{} data {}", stream.0, payload.len()),
            FromRunner::StreamCredit { stream, bytes } => format!("{} credit {bytes}", stream.0),
            FromRunner::EndStream { stream } => format!("{} end", stream.0),
            FromRunner::ResetStream { stream } => format!("{} reset", stream.0),
            other => panic!("{other:?}"),
        };
        self.sent.drain(..).map(short).collect()
    }
}

#[test]
fn passes_bytes_both_ways_and_ends_each_direction() {
    let mut bench = DoorBench::new();
    let mut code = bench.connect();
    code.write_all(b"question").unwrap();
    code.shutdown(StdShutdown::Write).unwrap();
    bench.settle();
    assert_eq!(bench.take(), ["1 open", "1 data 8", "1 end"]);
    bench.receive(1, b"answer").unwrap();
    bench.end_stream(1);
    let mut answer = String::new();
    code.read_to_string(&mut answer).unwrap();
    assert_eq!((answer.as_str(), bench.door.connections.len()), ("answer", 0));
    assert_eq!(bench.take(), [] as [&str; 0]);
    bench.receive(1, b"late").unwrap();
    assert!(bench.receive(2, b"x").is_err(), "a stream that was never opened");
}

#[test]
fn neither_side_gets_more_than_its_window() {
    let mut bench = DoorBench::new();
    let mut code = bench.connect();
    code.set_nonblocking(true).unwrap();
    while code.write(&[0; 65536]).is_ok() {}
    bench.settle();
    let sent: usize = bench.sent.iter().map(|(_, payload)| payload.len()).sum();
    assert_eq!(sent, STREAM_WINDOW, "no more than its credit");
    bench.sent.clear();
    bench.door.add_credit(StreamId(1), 10).unwrap();
    bench.settle();
    assert_eq!(bench.take(), ["1 data 10"]);
    assert!(bench.door.add_credit(StreamId(1), STREAM_WINDOW as u32 + 1).is_err());

    let mut bench = DoorBench::new();
    let mut code = bench.connect();
    bench.receive(1, &[7; STREAM_WINDOW / 2]).unwrap();
    assert_eq!(bench.take(), ["1 open".to_owned(), format!("1 credit {}", STREAM_WINDOW / 2)]);
    code.read_exact(&mut [0; STREAM_WINDOW / 2]).unwrap();
    assert!(bench.receive(1, &[7; STREAM_WINDOW + 1]).is_err());
}

#[test]
fn a_refusal_reaches_code_that_still_sends() {
    let mut bench = DoorBench::new();
    let mut code = bench.connect();
    code.write_all(&vec![0; 3 * STREAM_WINDOW]).unwrap();
    bench.settle();
    bench.receive(1, b"HTTP/1.1 403").unwrap();
    bench.end_stream(1);
    bench.door.reset(StreamId(1)).unwrap();
    bench.settle();
    let mut answer = String::new();
    code.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "HTTP/1.1 403");
    drop(code);
    bench.settle();
    assert!(bench.door.connections.is_empty());
    assert!(!bench.take().contains(&"1 reset".to_owned()), "the host has forgotten it");
}

#[test]
fn half_an_answer_is_an_error_for_the_code() {
    let mut bench = DoorBench::new();
    let mut code = bench.connect();
    bench.receive(1, b"half").unwrap();
    bench.door.reset(StreamId(1)).unwrap();
    let error = code.read_to_end(&mut Vec::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let mut other = bench.connect();
    bench.end();
    assert_eq!(other.read_to_end(&mut Vec::new()).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn code_that_goes_away_resets_its_stream() {
    let mut bench = DoorBench::new();
    let code = bench.connect();
    rustix::net::sockopt::set_socket_linger(&code, Some(Duration::ZERO)).unwrap();
    drop(code);
    bench.settle();
    assert_eq!(bench.take(), ["1 open", "1 reset"]);
    assert!(bench.door.connections.is_empty());
}

#[test]
fn between_cells_connections_are_closed_and_beyond_the_limit_they_wait() {
    let mut bench = DoorBench::new();
    bench.end();
    let mut code = bench.connect();
    assert_eq!(code.read(&mut [0]).unwrap(), 0);
    assert_eq!(bench.take(), [] as [&str; 0]);
    bench.door.begin(CellId(4));
    let port = bench.door.port;
    let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    let mut all: Vec<TcpStream> = (0..MAX_STREAMS / 2).map(|_| connect()).collect();
    bench.settle();
    // What waits must fit into the listen queue.
    all.extend((0..MAX_STREAMS / 2 + 3).map(|_| connect()));
    bench.settle();
    assert_eq!(bench.take().len(), MAX_STREAMS);
    all.truncate(MAX_STREAMS);
    drop(all.swap_remove(0));
    bench.settle();
    assert_eq!(bench.take(), ["1 end"]);
    bench.end_stream(1);
    assert_eq!(bench.take()[0], format!("{} open", MAX_STREAMS + 1));
}

#[test]
fn variables_name_the_door_only_if_it_is_open() {
    assert!(NetworkDoor::default().variables().is_empty());
    let bench = DoorBench::new();
    let variables = bench.door.variables();
    let value = |name| variables.iter().find(|(own, _)| *own == name).map(|(_, value)| value.clone());
    assert_eq!(value("https_proxy"), Some(format!("http://127.0.0.1:{}", bench.door.port)));
    assert_eq!(value("NO_PROXY").as_deref(), Some("localhost,127.0.0.1,::1"));
}
