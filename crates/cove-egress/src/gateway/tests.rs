//! The gateway with real servers on this machine: what is allowed arrives, and what is refused reaches no one.

mod inspected;
mod time_limits;

use std::io;
use std::net::IpAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use cove_core::sync::lock;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

use super::*;
use crate::audit_line::EgressRecorder;
use crate::client_hello::tests::client_hello;
use crate::host_pattern::HostPattern;
use crate::name_lookups::NameResolver;

/// Keeps the lines, or fails.
#[derive(Default)]
struct KeptLines {
    lines: Mutex<Vec<EgressAuditLine>>,
    /// Lines for which there is room, and which are not written yet.
    reserved: AtomicUsize,
    is_full: bool,
}

impl EgressRecorder for KeptLines {
    fn prepare(&self) -> io::Result<()> {
        self.reserved.fetch_add(1, Ordering::Relaxed);
        if self.is_full { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn release(&self) {
        self.reserved.fetch_sub(1, Ordering::Relaxed);
    }

    fn write(&self, line: &EgressAuditLine) {
        self.release();
        lock(&self.lines).push(line.clone());
    }
}

/// Answers with the first addresses once, and with the others from then on. Counts questions.
#[derive(Default)]
struct ScriptedResolver {
    first: Vec<IpAddr>,
    later: Vec<IpAddr>,
    questions: Arc<AtomicUsize>,
}

impl NameResolver for ScriptedResolver {
    fn resolve(&self, _name: &str) -> io::Result<Vec<IpAddr>> {
        let asked = self.questions.fetch_add(1, Ordering::Relaxed);
        Ok(if asked == 0 { self.first.clone() } else { self.later.clone() })
    }
}

/// What came of one connection.
struct AnsweredConnection {
    answer: String,
    line: Option<EgressAuditLine>,
    notes: String,
    /// Lookups of names.
    questions: usize,
}

/// Sends bytes through a gateway, reads the answer to its end, and returns what came of it.
async fn send(rules: EgressRules, resolver: ScriptedResolver, recorder: KeptLines, sent: &[u8]) -> AnsweredConnection {
    send_through(StreamDoor::Proxy {}, rules, resolver, recorder, sent).await
}

/// The same, through any door.
async fn send_through(
    door: StreamDoor,
    rules: EgressRules,
    resolver: ScriptedResolver,
    recorder: KeptLines,
    sent: &[u8],
) -> AnsweredConnection {
    let (guest, mut code) = tokio::io::duplex(1 << 20);
    let talk = async move {
        // A refusal through the name door may come before the first byte.
        let _ = code.write_all(sent).await;
        let mut answer = Vec::new();
        let _ = code.read_to_end(&mut answer).await;
        drop(code);
        String::from_utf8_lossy(&answer).into_owned()
    };
    talk_through(door, rules, resolver, recorder, guest, talk).await
}

/// Serves one side of a connection while `talk` has the other, and returns what came of it, with what `talk` read.
async fn talk_through(
    door: StreamDoor,
    rules: EgressRules,
    resolver: ScriptedResolver,
    recorder: KeptLines,
    guest: tokio::io::DuplexStream,
    talk: impl Future<Output = String>,
) -> AnsweredConnection {
    let (recorder, questions) = (Arc::new(recorder), Arc::clone(&resolver.questions));
    let gateway = EgressGateway::new(rules, HostServices::new(Arc::clone(&recorder) as _, Box::new(resolver)));
    let notes: Arc<RefusalNotes> = Arc::default();
    let identity = gateway.identity(Some(&Arc::new(gateway.create().unwrap())));
    let caller = NetworkCaller { principal: "p".into(), session: "s".into(), image: None };
    let origin = EgressOrigin { cell: CellId(1), stream: StreamId(2), door, caller: &caller, notes: &notes };
    let session = SessionContext { traffic: Arc::default(), identity };
    let (answer, ()) = tokio::join!(talk, gateway.serve(guest, &origin, session));
    let line = lock(&recorder.lines).pop();
    AnsweredConnection { answer, line, notes: notes.take().join("\n"), questions: questions.load(Ordering::Relaxed) }
}

fn rules(rule: EgressRule) -> EgressRules {
    EgressRules { allow: vec![rule], ..EgressRules::default() }
}

/// A rule for `allowed.test` on this machine.
fn pinned(port: u16) -> EgressRule {
    let rule = EgressRule::parse(&format!("allowed.test:{port}")).unwrap();
    EgressRule { pinned: Some(IpAddr::from([127, 0, 0, 1])), ..rule }
}

/// A server that answers each connection with what it got, after this many bytes, and counts connections.
async fn echo_server(expected: usize) -> (u16, Arc<Mutex<Vec<Vec<u8>>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (port, got) = (listener.local_addr().unwrap().port(), Arc::new(Mutex::new(Vec::new())));
    let heard = Arc::clone(&got);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut bytes = vec![0; expected];
            let whole = stream.read_exact(&mut bytes).await.is_ok();
            lock(&heard).push(if whole { bytes.clone() } else { Vec::new() });
            let _ = stream.write_all(&bytes).await;
        }
    });
    (port, got)
}

async fn connect_and_send(rule: EgressRule, port: u16, sent: &[u8]) -> AnsweredConnection {
    let bytes = [format!("CONNECT allowed.test:{port} HTTP/1.1\r\n\r\n").as_bytes(), sent].concat();
    send(rules(rule), ScriptedResolver::default(), KeptLines::default(), &bytes).await
}

#[tokio::test]
async fn a_tunnel_carries_tls_to_the_host_that_it_names() {
    let hello = client_hello("allowed.test");
    let (port, got) = echo_server(hello.len()).await;
    let outcome = connect_and_send(pinned(port), port, &hello).await;
    assert!(outcome.answer.starts_with("HTTP/1.1 200 "), "{}", outcome.answer);
    assert_eq!(*lock(&got), std::slice::from_ref(&hello));
    let line = outcome.line.unwrap();
    assert_eq!((line.decision.as_str(), line.reason, line.address.as_deref()), ("allowed", None, Some("127.0.0.1")));
    assert_eq!((line.bytes_up, line.bytes_down), (hello.len() as u64, hello.len() as u64));
    assert_eq!((line.kind.as_str(), line.principal.as_str(), line.cell, line.stream), ("net", "p", 1, 2));
    assert_eq!((outcome.notes.as_str(), outcome.questions), ("", 0));
}

#[tokio::test]
async fn nothing_is_sent_through_a_tunnel_that_is_not_tls_with_its_host() {
    let (port, got) = echo_server(1).await;
    for (sent, reason) in [
        (client_hello("evil.test"), "sni-mismatch"),
        (client_hello("192.0.2.1"), "sni-mismatch"),
        (b"SSH-2.0-x\r\n".to_vec(), "not-tls"),
        (b"GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n".to_vec(), "not-tls"),
    ] {
        let outcome = connect_and_send(pinned(port), port, &sent).await;
        assert_eq!(outcome.line.unwrap().reason.as_deref(), Some(reason));
        assert!(outcome.notes.contains("network: refused allowed.test"), "{}", outcome.notes);
    }
    assert!(lock(&got).iter().all(Vec::is_empty), "no byte arrives");
    let tcp = EgressRule { protocol: crate::rules::RuleProtocol::Tcp, ..pinned(port) };
    assert!(connect_and_send(tcp, port, b"SSH").await.answer.ends_with('S'));
}

#[tokio::test]
async fn a_refused_host_is_neither_resolved_nor_connected_to() {
    for (request, reason) in [
        ("CONNECT evil.test:443 HTTP/1.1\r\n\r\n", "host-not-allowed"),
        ("CONNECT allowed.test:22 HTTP/1.1\r\n\r\n", "port-not-allowed"),
        ("CONNECT 127.0.0.1:443 HTTP/1.1\r\n\r\n", "host-not-allowed"),
        ("GET http://allowed.test:443/ HTTP/1.1\r\nHost: allowed.test:443\r\n\r\n", "protocol-not-allowed"),
        ("CONNECT 0x7f.1:443 HTTP/1.1\r\n\r\n", "malformed-host"),
        ("GET / HTTP/1.1\r\nHost: allowed.test\r\n\r\n", "malformed-request"),
        (
            &*format!("{} http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n", "A".repeat(60_000)),
            "malformed-request",
        ),
    ] {
        let rules = rules(EgressRule::parse("allowed.test").unwrap());
        let outcome = send(rules, ScriptedResolver::default(), KeptLines::default(), request.as_bytes()).await;
        assert!(outcome.answer.contains(&format!("X-Cove-Refused: {reason}\r\n")), "{request}: {}", outcome.answer);
        let line = outcome.line.unwrap();
        assert_eq!((line.decision.as_str(), line.reason.as_deref()), ("refused", Some(reason)));
        assert!(serde_json::to_string(&line).unwrap().len() < 1000, "{line:?}");
        assert_eq!((outcome.questions, outcome.notes.lines().count()), (0, 1));
    }
}

#[tokio::test]
async fn every_address_of_a_name_is_judged_and_only_once() {
    let public: IpAddr = "192.0.2.1".parse().unwrap();
    for bad in ["127.0.0.1", "10.0.0.1", "169.254.169.254", "64:ff9b::a9fe:a9fe", "::ffff:10.0.0.1", "::1"] {
        for first in [vec![bad.parse().unwrap()], vec!["1.1.1.1".parse().unwrap(), bad.parse().unwrap()]] {
            let resolver = ScriptedResolver { first, ..ScriptedResolver::default() };
            let rules = rules(EgressRule::parse("allowed.test").unwrap());
            let outcome =
                send(rules, resolver, KeptLines::default(), b"CONNECT allowed.test:443 HTTP/1.1\r\n\r\n").await;
            assert_eq!(outcome.line.unwrap().reason.as_deref(), Some("private-address"), "{bad}");
            // The hint has the usual address of this machine, whatever the name resolves to.
            assert!(bad == "127.0.0.1" || !outcome.answer.contains(bad), "{}", outcome.answer);
        }
    }
    // The first answer counts: a second lookup could lead elsewhere.
    let (port, got) = echo_server(1).await;
    let rule = EgressRule::parse(&format!("allowed.test:{port}")).unwrap();
    let rule = EgressRule { addresses: vec!["192.0.2.0/24".parse().unwrap()], ..rule };
    let resolver =
        ScriptedResolver { first: vec![public], later: vec![IpAddr::from([127, 0, 0, 1])], ..Default::default() };
    let request = format!("CONNECT allowed.test:{port} HTTP/1.1\r\n\r\n");
    let outcome = send(rules(rule), resolver, KeptLines::default(), request.as_bytes()).await;
    assert_eq!((outcome.questions, outcome.line.unwrap().reason.as_deref()), (1, Some("unreachable")));
    assert!(lock(&got).is_empty());
}

#[tokio::test]
async fn a_denied_address_is_denied_under_every_name() {
    let deny: HostPattern = HostPattern::parse("10.0.0.1").unwrap();
    let private =
        || EgressRule { addresses: vec!["10.0.0.0/8".parse().unwrap()], ..EgressRule::parse("allowed.test").unwrap() };
    let pinned = |address: &str| EgressRule { pinned: Some(address.parse().unwrap()), ..private() };
    let named = |address: &str| EgressRule::parse(address).unwrap();
    for (rule, host, leads_to) in [
        (private(), "allowed.test", vec!["10.0.0.1"]),
        (private(), "allowed.test", vec!["10.0.0.2", "10.0.0.1"]),
        (private(), "allowed.test", vec!["::ffff:10.0.0.1"]),
        (private(), "allowed.test", vec!["64:ff9b::a00:1"]),
        (pinned("10.0.0.1"), "allowed.test", vec![]),
        (pinned("::ffff:10.0.0.1"), "allowed.test", vec![]),
        (named("10.0.0.1"), "10.0.0.1", vec![]),
        (named("::ffff:10.0.0.1"), "[::ffff:10.0.0.1]", vec![]),
    ] {
        let first = leads_to.iter().map(|address| address.parse().unwrap()).collect();
        let resolver = ScriptedResolver { first, ..ScriptedResolver::default() };
        let rules = EgressRules { deny: vec![(deny.clone(), vec![443])], ..rules(rule) };
        let request = format!("CONNECT {host}:443 HTTP/1.1\r\n\r\n");
        let outcome = send(rules, resolver, KeptLines::default(), request.as_bytes()).await;
        assert_eq!(outcome.line.unwrap().reason.as_deref(), Some("denied"), "{host} {leads_to:?}");
        assert!(host != "allowed.test" || !outcome.answer.contains("10.0.0.1"), "{}", outcome.answer);
    }
    // The rule denies one port.
    let rule = EgressRule { ports: vec![9], ..pinned("10.0.0.1") };
    let rules = EgressRules { deny: vec![(deny, vec![443])], ..rules(rule) };
    let target = HostTarget::parse("allowed.test:9", None).unwrap();
    let caller = NetworkCaller { principal: "p".into(), session: "s".into(), image: None };
    assert!(rules.decide(&target, RequestKind::Tunnel, &caller).is_ok());
}

#[tokio::test]
async fn names_that_code_chose_count_as_what_it_sends() {
    let wild = |pattern: &str| EgressRule::new(HostPattern::parse(pattern).unwrap(), vec![443]).unwrap();
    let request = b"CONNECT sixteen-bytes.it.test:443 HTTP/1.1\r\n\r\n";
    let pinned = EgressRule { pinned: Some(IpAddr::from([127, 0, 0, 1])), ..wild("*.it.test") };
    for (rule, max_upload, questions, sent, reason) in [
        (wild("*.it.test"), 21, 1, 21, "unreachable"),
        (wild("**.it.test"), 20, 0, 0, "limit"),
        // The operator chose this name, and the next rule needs no lookup.
        (wild("sixteen-bytes.it.test"), 0, 1, 0, "unreachable"),
        (pinned, 0, 0, 0, "unreachable"),
    ] {
        let limits = crate::rules::TrafficLimits { max_upload, max_download: 0 };
        let rules = EgressRules { limits, ..rules(rule) };
        let outcome = send(rules, ScriptedResolver::default(), KeptLines::default(), request).await;
        let line = outcome.line.unwrap();
        assert_eq!((line.reason.as_deref(), line.bytes_up), (Some(reason), sent), "{:?}", line.rule);
        assert_eq!(outcome.questions, questions, "{:?}", line.rule);
        assert!(reason != "limit" || outcome.notes.contains("(limit: max_upload)"), "{}", outcome.notes);
    }
}

#[tokio::test]
async fn a_session_looks_up_a_bounded_number_of_different_names() {
    let traffic: Arc<SessionTraffic> = Arc::default();
    let resolver = ScriptedResolver::default();
    let questions = Arc::clone(&resolver.questions);
    let rule = EgressRule::new(HostPattern::parse("*.it.test").unwrap(), vec![443]).unwrap();
    let services =
        GatewayServices::new(rules(rule), HostServices::new(Arc::default() as Arc<KeptLines>, Box::new(resolver)));
    let meter = RelayMeter::new(traffic, &services, Arc::default());
    let mut refused = None;
    for number in 0..=4096 {
        let target = HostTarget::parse(&format!("x{number}.it.test:443"), None).unwrap();
        let found = find_addresses(&services.rules.allow[0], &target, &services, &meter).await.unwrap_err();
        assert!(number == 4096 || found.reason == RefusalReason::Unreachable, "{number}: {found:?}");
        refused = Some(found);
    }
    assert!(refused.unwrap().cause.contains("(limit: names)"));
    assert_eq!(questions.load(Ordering::Relaxed), 4096);
}

#[tokio::test]
async fn a_plain_request_is_passed_on_and_what_follows_it_is_not() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut got = vec![0; 4096];
        let mut length = 0;
        while !got[..length].ends_with(b"0\r\n\r\n") {
            length += stream.read(&mut got[length..]).await.unwrap();
        }
        stream.write_all(b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        let more = tokio::time::timeout(Duration::from_millis(50), stream.read(&mut got[length..])).await;
        assert!(more.is_err(), "no byte follows the request");
        String::from_utf8_lossy(&got[..length]).into_owned()
    });
    let rule = EgressRule { protocol: crate::rules::RuleProtocol::Http, ..pinned(port) };
    let request = format!(
        "POST http://allowed.test:{port}/a?b HTTP/1.1\r\nHost: allowed.test:{port}\r\nTransfer-Encoding: chunked\r\n\r\n\
         5;x=y\r\nhello\r\n0\r\nTrailer: x\r\n\r\nGET http://evil.test/ HTTP/1.1\r\n\r\n"
    );
    let outcome = send(rules(rule), ScriptedResolver::default(), KeptLines::default(), request.as_bytes()).await;
    assert!(outcome.answer.starts_with("HTTP/1.1 201 Created") && outcome.answer.ends_with("ok"), "{}", outcome.answer);
    let expected = format!(
        "POST /a?b HTTP/1.1\r\nHost: allowed.test:{port}\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n\
         5\r\nhello\r\n0\r\n\r\n"
    );
    assert_eq!(server.await.unwrap(), expected);
    let line = outcome.line.unwrap();
    assert_eq!((line.method.as_str(), line.path.as_str(), line.status), ("POST", "/a", Some(201)));
}

#[tokio::test]
async fn limits_end_a_connection_by_name() {
    let hello = client_hello("allowed.test");
    let (port, _) = echo_server(hello.len()).await;
    let bytes = [format!("CONNECT allowed.test:{port} HTTP/1.1\r\n\r\n").as_bytes(), &hello].concat();
    for (upload, download, name) in [(10, 1 << 20, "max_upload"), (1 << 20, 10, "max_download")] {
        let limits = crate::rules::TrafficLimits { max_upload: upload, max_download: download };
        let rules = EgressRules { limits, ..rules(pinned(port)) };
        let outcome = send(rules, ScriptedResolver::default(), KeptLines::default(), &bytes).await;
        assert_eq!(outcome.line.unwrap().reason.as_deref(), Some("limit"));
        assert!(outcome.notes.contains(&format!("(limit: {name})")), "{}", outcome.notes);
    }
}

#[tokio::test]
async fn what_cannot_be_recorded_is_not_done() {
    let (port, got) = echo_server(1).await;
    let full = KeptLines { is_full: true, ..KeptLines::default() };
    let request = format!("CONNECT allowed.test:{port} HTTP/1.1\r\n\r\n");
    let outcome = send(rules(pinned(port)), ScriptedResolver::default(), full, request.as_bytes()).await;
    assert!(outcome.answer.starts_with("HTTP/1.1 503 ") && outcome.line.is_none(), "{}", outcome.answer);
    assert!(lock(&got).is_empty());
}

/// Sends bytes through the name door, as the runner would pass them on.
async fn send_to_name(host: &str, port: u16, rules: EgressRules, sent: &[u8]) -> AnsweredConnection {
    let door = StreamDoor::Name { host: host.to_owned(), port };
    send_through(door, rules, ScriptedResolver::default(), KeptLines::default(), sent).await
}

#[tokio::test]
async fn the_name_door_carries_tls_with_the_name_and_nothing_else() {
    let hello = client_hello("allowed.test");
    let (port, got) = echo_server(hello.len()).await;
    let outcome = send_to_name("allowed.test", port, rules(pinned(port)), &hello).await;
    assert_eq!((outcome.answer.as_bytes(), lock(&got).len()), (String::from_utf8_lossy(&hello).as_bytes(), 1));
    let line = outcome.line.unwrap();
    assert_eq!((line.door.as_str(), line.method.as_str(), line.decision.as_str()), ("name", "CONNECT", "allowed"));
    lock(&got).clear();
    for (sent, reason) in [
        (client_hello("evil.test"), "sni-mismatch"),
        (b"SSH-2.0-x\r\n".to_vec(), "not-tls"),
        (b"GET / HTTP/1.1\r\nHost: allowed.test\r\n\r\n".to_vec(), "not-tls"),
        (b"CONNECT allowed.test:443 HTTP/1.1\r\n\r\n".to_vec(), "not-tls"),
    ] {
        let outcome = send_to_name("allowed.test", port, rules(pinned(port)), &sent).await;
        assert_eq!((outcome.line.unwrap().reason.as_deref(), outcome.answer.as_str()), (Some(reason), ""));
        assert!(outcome.notes.contains("network: refused allowed.test"), "{}", outcome.notes);
    }
    assert!(lock(&got).iter().all(Vec::is_empty), "no byte arrives");
    let tcp = EgressRule { protocol: crate::rules::RuleProtocol::Tcp, ..pinned(port) };
    let long = vec![b'x'; hello.len()];
    assert_eq!(send_to_name("allowed.test", port, rules(tcp), &long).await.answer.as_bytes(), long);
}

#[tokio::test]
async fn the_host_does_not_trust_the_name_of_the_runner() {
    for (host, port, reason) in [
        ("evil.test", 443, "host-not-allowed"),
        ("allowed.test", 22, "port-not-allowed"),
        ("allowed.test", 80, "port-not-allowed"),
        ("127.0.0.1", 443, "host-not-allowed"),
        ("169.254.169.254", 80, "host-not-allowed"),
        ("0x7f.1", 443, "malformed-host"),
        ("127.1", 443, "malformed-host"),
        ("a..b", 443, "malformed-host"),
    ] {
        let outcome = send_to_name(host, port, rules(EgressRule::parse("allowed.test").unwrap()), b"").await;
        assert_eq!((outcome.answer.as_str(), outcome.questions), ("", 0), "no answer in the name of `{host}`");
        let line = outcome.line.unwrap();
        assert_eq!((line.decision.as_str(), line.reason.as_deref()), ("refused", Some(reason)), "{host}:{port}");
        assert_eq!(outcome.notes.lines().count(), 1);
    }
    let resolver = ScriptedResolver { first: vec!["10.0.0.1".parse().unwrap()], ..ScriptedResolver::default() };
    let door = StreamDoor::Name { host: "allowed.test".to_owned(), port: 443 };
    let rules = rules(EgressRule::parse("allowed.test").unwrap());
    let outcome = send_through(door, rules, resolver, KeptLines::default(), &client_hello("allowed.test")).await;
    assert_eq!((outcome.line.unwrap().reason.as_deref(), outcome.questions), (Some("private-address"), 1));
}

#[tokio::test]
async fn plain_http_through_the_name_door_is_read_strictly() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let heads = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&heads);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut got = vec![0; 4096];
            let length = stream.read(&mut got).await.unwrap_or(0);
            lock(&heard).push(String::from_utf8_lossy(&got[..length]).into_owned());
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
        }
    });
    let rule = EgressRule { protocol: crate::rules::RuleProtocol::Http, ..pinned(port) };
    let host = format!("Host: allowed.test:{port}\r\n");
    let request = format!("GET /a?b HTTP/1.1\r\n{host}Connection: keep-alive\r\n\r\nGET /c HTTP/1.1\r\n\r\n");
    let outcome = send_to_name("allowed.test", port, rules(rule.clone()), request.as_bytes()).await;
    assert!(outcome.answer.ends_with("ok"), "{}", outcome.answer);
    assert_eq!(*lock(&heads), [format!("GET /a?b HTTP/1.1\r\n{host}Connection: close\r\n\r\n")]);
    let line = outcome.line.unwrap();
    assert_eq!((line.method.as_str(), line.path.as_str(), line.status), ("GET", "/a", Some(200)));
    lock(&heads).clear();
    for (head, reason) in [
        ("GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n", "malformed-request"),
        ("GET / HTTP/1.1\r\n\r\n", "malformed-request"),
        ("GET http://evil.test/ HTTP/1.1\r\nHost: allowed.test\r\n\r\n", "malformed-request"),
        ("GET http://allowed.test/ HTTP/1.1\r\nHost: allowed.test\r\n\r\n", "malformed-request"),
        ("CONNECT evil.test:443 HTTP/1.1\r\nHost: allowed.test\r\n\r\n", "malformed-request"),
        ("OPTIONS * HTTP/1.1\r\nHost: allowed.test\r\n\r\n", "malformed-request"),
        (
            "POST / HTTP/1.1\r\nHost: allowed.test\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            "malformed-request",
        ),
        ("\x16\x03\x01\x02\x00\x01", "protocol-not-allowed"),
    ] {
        let outcome = send_to_name("allowed.test", port, rules(rule.clone()), head.as_bytes()).await;
        assert_eq!((outcome.line.unwrap().reason.as_deref(), outcome.answer.as_str()), (Some(reason), ""), "{head:?}");
    }
    assert!(lock(&heads).is_empty(), "nothing of it arrives");
}

#[test]
fn refused_names_are_recorded_and_a_flood_is_counted() {
    let recorder = Arc::new(KeptLines::default());
    let questions = ScriptedResolver::default();
    let asked = Arc::clone(&questions.questions);
    let gateway =
        EgressGateway::new(rules(pinned(443)), HostServices::new(Arc::clone(&recorder) as _, Box::new(questions)));
    let (traffic, notes) = (SessionTraffic::default(), Arc::<RefusalNotes>::default());
    let caller = NetworkCaller { principal: "p".into(), session: "s".into(), image: None };
    let refuse = |name: &str| gateway.refuse_name(name, CellId(1), &traffic, &caller, &notes);
    for name in ["evil.test", "evil?.allowed.test", "127.1", "allowed.test"] {
        refuse(name);
    }
    let reasons: Vec<Option<String>> = lock(&recorder.lines).iter().map(|line| line.reason.clone()).collect();
    let expected = ["host-not-allowed", "malformed-host", "malformed-host", "limit"];
    assert_eq!(reasons.iter().map(|reason| reason.as_deref().unwrap()).collect::<Vec<_>>(), expected);
    let first = lock(&recorder.lines)[0].clone();
    assert_eq!((first.method.as_str(), first.host.as_str()), ("LOOKUP", "evil.test"));
    (0..5000).for_each(|number| refuse(&format!("x{number}.evil.test")));
    assert!(lock(&recorder.lines).len() < 400, "a flood leaves few lines");
    notes.add_further(u64::MAX);
    let taken = notes.take();
    assert!(taken.len() == 6 && taken[0].starts_with("network: refused evil.test (no egress rule"), "{taken:?}");
    assert_eq!(asked.load(Ordering::Relaxed), 0, "no name is looked up");
}
