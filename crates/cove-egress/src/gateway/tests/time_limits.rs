//! How long a connection may take for each step, with a clock that stands still while something is under way.

use tokio::net::TcpSocket;
use tokio::time::{Instant, sleep};

use super::*;
use crate::egress_meter::NoMeter;
use crate::request_limits::RequestLimits;
use crate::target_host::HostTarget;

/// A piece of what a client sends, and how many seconds it waits before.
type DelayedPiece = (u64, Vec<u8>);

/// Sends pieces through a gateway, and keeps the connection open afterwards. Returns what came of it, and after how many
/// seconds it was over.
async fn send_slowly(
    rules: EgressRules,
    resolver: ScriptedResolver,
    pieces: Vec<DelayedPiece>,
) -> (AnsweredConnection, u64) {
    let (guest, code) = tokio::io::duplex(1 << 20);
    let talk = async move {
        let (mut from_host, mut to_host) = tokio::io::split(code);
        let write = async {
            for (seconds, piece) in pieces {
                sleep(Duration::from_secs(seconds)).await;
                if to_host.write_all(&piece).await.is_err() {
                    break;
                }
            }
            std::future::pending::<()>().await;
        };
        let mut answer = Vec::new();
        tokio::select! {
            _ = from_host.read_to_end(&mut answer) => {}
            () = write => {}
        }
        String::from_utf8_lossy(&answer).into_owned()
    };
    let begun = Instant::now();
    let outcome = talk_through(StreamDoor::Proxy {}, rules, resolver, KeptLines::default(), guest, talk).await;
    (outcome, begun.elapsed().as_secs())
}

fn request(port: u16) -> Vec<u8> {
    format!("CONNECT allowed.test:{port} HTTP/1.1\r\n\r\n").into_bytes()
}

fn assert_ended((outcome, seconds): &(AnsweredConnection, u64), expected: u64, reason: &str, note: &str) {
    assert_eq!(*seconds, expected, "{}", outcome.notes);
    assert_eq!(outcome.line.as_ref().unwrap().reason.as_deref(), Some(reason), "{}", outcome.notes);
    assert!(outcome.notes.contains(note), "{}", outcome.notes);
}

#[tokio::test(start_paused = true)]
async fn the_head_of_a_request_has_half_a_minute_however_it_comes() {
    let dribble = |text: &str| text.bytes().map(|byte| (2, vec![byte])).collect();
    for pieces in [vec![], vec![(0, b"CONNECT ".to_vec())], dribble("CONNECT allowed.test:443 HTTP/1.1\r\n\r\n")] {
        let rules = rules(EgressRule::parse("allowed.test").unwrap());
        let ended = send_slowly(rules, ScriptedResolver::default(), pieces).await;
        assert_ended(&ended, 30, "limit", "(limit: head)");
        assert_eq!(ended.0.questions, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_message_through_a_tunnel_has_half_a_minute() {
    let hello = client_hello("allowed.test");
    let (port, got) = echo_server(1).await;
    let dribble: Vec<DelayedPiece> = hello.iter().map(|byte| (1, vec![*byte])).collect();
    assert!(dribble.len() > 30);
    for pieces in [vec![], vec![(25, hello[..9].to_vec())], dribble] {
        let pieces = [vec![(0, request(port))], pieces].concat();
        let ended = send_slowly(rules(pinned(port)), ScriptedResolver::default(), pieces).await;
        assert_ended(&ended, 30, "not-tls", "no TLS came in time");
    }
    // Where requests are inspected, no server is connected to before the handshake.
    let inspected = || EgressRule { inspection: Some(RequestLimits::default()), ..pinned(port) };
    for pieces in [vec![], vec![(25, hello[..9].to_vec())]] {
        let pieces = [vec![(0, request(port))], pieces].concat();
        let ended = send_slowly(rules(inspected()), ScriptedResolver::default(), pieces).await;
        assert_ended(&ended, 30, "not-tls", "no TLS came in time");
    }
    assert!(lock(&got).iter().all(Vec::is_empty), "no byte arrives");
}

/// Returns the port of a server at every address of this machine that answers no further connection, and what keeps it so.
async fn silent_server() -> (u16, impl Sized) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("0.0.0.0:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut waiting = Vec::new();
    while let Ok(connected) = timeout(Duration::from_secs(1), TcpStream::connect(("127.0.0.1", port))).await {
        waiting.push(connected.unwrap());
    }
    (port, (listener, waiting))
}

#[tokio::test(start_paused = true)]
async fn an_address_has_four_seconds_to_answer_and_all_of_a_name_ten() {
    let (port, _kept) = silent_server().await;
    let ended = send_slowly(rules(pinned(port)), ScriptedResolver::default(), vec![(0, request(port))]).await;
    assert_ended(&ended, 4, "unreachable", "it did not answer in time");
    let target = HostTarget { host: TargetHost::parse("allowed.test").unwrap(), port };
    let addresses: Vec<IpAddr> = (1..=4).map(|last| IpAddr::from([127, 0, 0, last])).collect();
    let begun = Instant::now();
    let refused = connect(&target, &addresses, &NoMeter).await.unwrap_err();
    assert_eq!((begun.elapsed().as_secs(), refused.cause.as_str()), (10, "it did not answer in time"));
}

#[tokio::test(start_paused = true)]
async fn a_connection_ends_when_nothing_moves_for_two_minutes() {
    let hello = client_hello("allowed.test");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            kept.push(stream);
        }
    });
    let quiet = vec![(0, request(port)), (0, hello.clone())];
    let ended = send_slowly(rules(pinned(port)), ScriptedResolver::default(), quiet.clone()).await;
    assert_ended(&ended, 120, "limit", "(limit: idle)");
    // Every byte gives it two minutes more.
    let busy = [quiet, vec![(100, b"x".to_vec()), (119, b"x".to_vec())]].concat();
    let ended = send_slowly(rules(pinned(port)), ScriptedResolver::default(), busy).await;
    assert_ended(&ended, 100 + 119 + 120, "limit", "(limit: idle)");
}
