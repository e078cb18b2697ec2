//! Inspected connections with a real server behind them: which requests may follow each other on one connection, what is
//! passed on, and what is recorded.

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use tokio::io::DuplexStream;
use tokio::task::JoinHandle;
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::*;
use crate::download_cache::DownloadCache;
use crate::origin_connection::OriginTrust;
use crate::request_limits::RequestLimits;
use crate::request_path::PathPattern;

/// A server that does not read the bodies of requests, as many do not for some: what follows a head is the next request.
struct CarelessServer {
    port: u16,
    roots: rustls::RootCertStore,
    /// The number of its connection, and the head, of each request.
    heads: Arc<Mutex<Vec<(usize, String)>>>,
}

/// Returns the answer to a path.
type ServerAnswers = fn(&str) -> String;

fn plain(path: &str) -> String {
    let cache = if path.ends_with(".whl") { "Cache-Control: max-age=600\r\n" } else { "" };
    format!("HTTP/1.1 200 OK\r\n{cache}Content-Length: {}\r\n\r\n{path}", path.len())
}

impl CarelessServer {
    async fn start(answers: ServerAnswers) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(params.self_signed(&key).unwrap().der().clone()).unwrap();
        let (issuer, key) = (Issuer::new(params, key), KeyPair::generate().unwrap());
        let leaf = CertificateParams::new(vec!["allowed.test".to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = rustls::ServerConfig::builder_with_provider(Arc::new(default_provider()));
        let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let config = Arc::new(config.with_single_cert(vec![leaf.der().clone()], key).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Self { port: listener.local_addr().unwrap().port(), roots, heads: Arc::default() };
        let heads = Arc::clone(&server.heads);
        tokio::spawn(async move {
            for number in 0.. {
                let (stream, _) = listener.accept().await.unwrap();
                let (heads, config) = (Arc::clone(&heads), Arc::clone(&config));
                tokio::spawn(async move {
                    let Ok(mut stream) = TlsAcceptor::from(config).accept(stream).await else { return };
                    while let Some(head) = read_to_empty_line(&mut stream).await {
                        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
                        lock(&heads).push((number, head));
                        if path != "/silent" && stream.write_all(answers(&path).as_bytes()).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        server
    }

    /// Returns the connection and the first line of each request.
    fn requests(&self) -> Vec<(usize, String)> {
        lock(&self.heads).iter().map(|(at, head)| (*at, head.lines().next().unwrap_or_default().to_owned())).collect()
    }

    fn rule(&self, limits: RequestLimits) -> EgressRule {
        EgressRule { inspection: Some(limits), ..pinned(self.port) }
    }
}

/// Returns what comes up to an empty line, or None at the end.
async fn read_to_empty_line(stream: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    Some(String::from_utf8_lossy(&head).into_owned())
}

/// A session whose code has a connection to the server.
struct InspectedSession {
    port: u16,
    code: TlsStream<DuplexStream>,
    serving: JoinHandle<()>,
    recorder: Arc<KeptLines>,
    notes: Arc<RefusalNotes>,
}

impl InspectedSession {
    async fn open(server: &CarelessServer, rule: EgressRule) -> Self {
        Self::open_with(server, rule, None, Arc::default()).await
    }

    async fn open_with(
        server: &CarelessServer,
        rule: EgressRule,
        downloads: Option<Arc<DownloadCache>>,
        traffic: Arc<SessionTraffic>,
    ) -> Self {
        let recorder = Arc::new(KeptLines::default());
        let host = HostServices::new(Arc::clone(&recorder) as _, Box::new(ScriptedResolver::default()));
        let mut services = GatewayServices::new(rules(rule), HostServices { downloads, ..host });
        services.origin_trust = OriginTrust::of_test(server.roots.clone());
        let gateway = EgressGateway { services };
        let identity = gateway.identity(Some(&Arc::new(gateway.create().unwrap())));
        let mut roots = rustls::RootCertStore::empty();
        let certificate = identity.authority.as_ref().unwrap().certificate();
        roots.add(CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()).unwrap();
        let notes: Arc<RefusalNotes> = Arc::default();
        let (guest, mut code) = tokio::io::duplex(1 << 20);
        let noted = Arc::clone(&notes);
        let serving = tokio::spawn(async move {
            let caller = NetworkCaller { principal: "p".into(), session: "s".into(), image: None };
            let door = StreamDoor::Proxy {};
            let origin = EgressOrigin { cell: CellId(1), stream: StreamId(2), door, caller: &caller, notes: &noted };
            gateway.serve(guest, &origin, SessionContext { traffic, identity }).await;
        });
        code.write_all(format!("CONNECT allowed.test:{} HTTP/1.1\r\n\r\n", server.port).as_bytes()).await.unwrap();
        read_to_empty_line(&mut code).await.unwrap();
        let config = rustls::ClientConfig::builder_with_provider(Arc::new(default_provider()));
        let config = config.with_safe_default_protocol_versions().unwrap();
        let config = Arc::new(config.with_root_certificates(roots).with_no_client_auth());
        let name = ServerName::try_from("allowed.test").unwrap();
        let code = TlsConnector::from(config).connect(name, code).await.unwrap();
        Self { port: server.port, code, serving, recorder, notes }
    }

    /// Sends a request, and returns the status, the reason of a refusal and the body of the answer. None at the end.
    async fn ask(&mut self, method: &str, path: &str, fields: &str, body: &str) -> Option<String> {
        let length = if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
        let head =
            format!("{method} {path} HTTP/1.1\r\nHost: allowed.test:{}\r\n{fields}{length}\r\n{body}", self.port);
        self.code.write_all(head.as_bytes()).await.ok()?;
        let head = read_to_empty_line(&mut self.code).await?;
        let field = |name: &str| {
            let mut fields = head.lines().filter_map(|line| line.split_once(": "));
            fields.find(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned())
        };
        let mut body = vec![0; field("content-length").map_or(0, |length| length.parse().unwrap())];
        self.code.read_exact(&mut body).await.ok()?;
        let status = head.split(' ').nth(1).unwrap_or_default();
        Some(match field("x-cove-refused") {
            Some(reason) => format!("{status} {reason}"),
            None => format!("{status} {}", String::from_utf8_lossy(&body)),
        })
    }

    /// Ends the connection, and returns the lines and the notes.
    async fn end(self) -> (Vec<EgressAuditLine>, String) {
        drop(self.code);
        self.serving.await.unwrap();
        let notes = self.notes.take().join("\n");
        (lock(&self.recorder.lines).clone(), notes)
    }
}

fn open() -> RequestLimits {
    RequestLimits::default()
}

fn limited(methods: &[&str], path: &str) -> RequestLimits {
    let methods = methods.iter().map(|method| (*method).to_owned()).collect();
    RequestLimits { methods, paths: vec![PathPattern::parse(path).unwrap()], ..open() }
}

const HIDDEN: &str = "GET /hidden HTTP/1.1\r\nHost: allowed.test\r\nX-Ignore: ";

#[tokio::test]
async fn nothing_follows_a_body_on_its_connection_to_the_server() {
    for method in ["GET", "POST", "DELETE"] {
        let server = CarelessServer::start(plain).await;
        let mut session = InspectedSession::open(&server, server.rule(open())).await;
        assert_eq!(session.ask("GET", "/a", "", "").await.unwrap(), "200 /a");
        assert_eq!(session.ask(method, "/b", "", HIDDEN).await.unwrap(), "200 /b");
        assert_eq!(session.ask("GET", "/c", "", "").await.unwrap(), "200 /c");
        assert_eq!(session.ask("GET", "/d", "", "").await.unwrap(), "200 /d");
        let line = |path: &str| format!("GET {path} HTTP/1.1");
        let expected = [(0, line("/a")), (0, format!("{method} /b HTTP/1.1")), (1, line("/c")), (1, line("/d"))];
        assert_eq!(server.requests(), expected, "{method}");
        let closing = lock(&server.heads)[1].1.to_ascii_lowercase();
        assert!(closing.contains("\r\nconnection: close\r\n"), "{closing}");
    }
}

#[tokio::test]
async fn a_body_is_refused_where_it_could_be_a_request_that_rules_refuse() {
    let server = CarelessServer::start(plain).await;
    let rule = server.rule(limited(&["GET", "HEAD", "OPTIONS", "DELETE"], "/a/**"));
    for (method, expected) in
        [("GET", "400 malformed-request"), ("OPTIONS", "400 malformed-request"), ("DELETE", "200 /a/b")]
    {
        let mut session = InspectedSession::open(&server, rule.clone()).await;
        assert_eq!(session.ask(method, "/a/b", "", HIDDEN).await.unwrap(), expected);
    }
    assert_eq!(server.requests(), [(0, "DELETE /a/b HTTP/1.1".to_owned())]);
}

#[tokio::test]
async fn a_shared_download_has_a_connection_without_requests_of_the_code() {
    let server = CarelessServer::start(plain).await;
    let folder = tempfile::tempdir().unwrap();
    let downloads = DownloadCache::new(folder.path().join("downloads"), 1 << 30, String::new());
    let rule = server.rule(RequestLimits { caches: true, ..open() });
    let mut session = InspectedSession::open_with(&server, rule, Some(downloads), Arc::default()).await;
    for path in ["/a.whl", "/b.whl", "/c.whl?own", "/d.whl", "/e.whl?own", "/a.whl"] {
        let body = path.split('?').next().unwrap();
        let answer = session.ask("GET", path, "", "").await.unwrap();
        assert!(answer.starts_with(&format!("200 {body}")), "{answer}");
    }
    let connections: Vec<usize> = server.requests().iter().map(|(at, _)| *at).collect();
    // The last one is kept.
    assert_eq!(connections, [0, 0, 0, 1, 1]);
}

const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";

#[tokio::test]
async fn only_a_server_that_proves_to_speak_websocket_gets_its_bytes() {
    let answers = |path: &str| {
        let fields = match path {
            "/right" => {
                "Connection: upgrade\r\nUpgrade: WebSocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
            }
            "/no-proof" => "Connection: upgrade\r\nUpgrade: websocket",
            "/wrong" => {
                "Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOA="
            }
            "/other" => "Connection: upgrade\r\nUpgrade: h2c\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=",
            _ => return plain(path),
        };
        format!("HTTP/1.1 101 Switching Protocols\r\n{fields}\r\n\r\n")
    };
    let fields = |rest: &str| format!("Connection: Upgrade\r\nUpgrade: websocket\r\n{rest}");
    let whole = fields(&format!("Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n"));
    let server = CarelessServer::start(answers).await;
    for (path, fields, expected) in [
        ("/right", whole.clone(), "101 "),
        ("/no-proof", whole.clone(), "502 unreachable"),
        ("/wrong", whole.clone(), "502 unreachable"),
        ("/other", whole.clone(), "502 unreachable"),
        ("/right", String::new(), "502 unreachable"),
        ("/plain", whole.clone(), "200 /plain"),
        ("/a", fields(""), "400 malformed-request"),
        ("/a", fields(&format!("Sec-WebSocket-Key: {KEY}\r\n")), "400 malformed-request"),
        ("/a", fields("Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: short\r\n"), "400 malformed-request"),
        ("/a", format!("{whole}Sec-WebSocket-Key: {KEY}\r\n"), "400 malformed-request"),
    ] {
        let mut session = InspectedSession::open(&server, server.rule(open())).await;
        assert_eq!(session.ask("GET", path, &fields, "").await.unwrap(), expected, "{path} {fields}");
        let _ = session.code.write_all(b"GET /hidden HTTP/1.1\r\nHost: allowed.test\r\n\r\n").await;
        if expected == "101 " {
            // The bytes of a WebSocket pass, so the server has them before the next connection.
            assert_eq!(read_to_empty_line(&mut session.code).await.unwrap().lines().next(), Some("HTTP/1.1 200 OK"));
        }
        let (lines, _) = session.end().await;
        let reason = expected.split(' ').nth(1).filter(|reason| !reason.is_empty() && !reason.starts_with('/'));
        assert_eq!(lines.last().unwrap().reason.as_deref(), reason, "{path}");
    }
    let hidden = server.requests().iter().filter(|(_, line)| line.contains("/hidden")).count();
    assert_eq!(hidden, 1, "{:?}", server.requests());
    assert!(server.requests().iter().all(|(_, line)| !line.contains("/a ")));
}

#[tokio::test]
async fn answers_in_other_codings_than_chunks_are_refused() {
    let answers = |path: &str| {
        let coding = path.trim_start_matches('/').replace('+', ", ").replace('&', "\r\nTransfer-Encoding: ");
        format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: {coding}\r\n\r\n2\r\nhi\r\n0\r\n\r\n")
    };
    let server = CarelessServer::start(answers).await;
    for (path, expected) in [
        ("/chunked", "200 "),
        ("/Chunked", "200 "),
        ("/gzip+chunked", "502 encoded-answer"),
        ("/gzip&chunked", "502 encoded-answer"),
    ] {
        let mut session = InspectedSession::open(&server, server.rule(open())).await;
        assert_eq!(session.ask("GET", path, "", "").await.unwrap(), expected, "{path}");
    }
}

#[tokio::test]
async fn code_that_is_refused_again_and_again_leaves_few_lines_and_their_count() {
    let server = CarelessServer::start(plain).await;
    let notes: Arc<RefusalNotes> = Arc::default();
    let recorder = Arc::new(KeptLines::default());
    let services = GatewayServices::new(
        rules(server.rule(limited(&["GET"], "/a"))),
        HostServices::new(Arc::clone(&recorder) as _, Box::new(ScriptedResolver::default())),
    );
    for number in 0..10_000 {
        let line = EgressAuditLine { path: format!("/{number}"), decision: REFUSED.into(), ..Default::default() };
        drop(OpenEgressLine::begin(&services, line, &notes).unwrap());
        if number == 5000 {
            let line = EgressAuditLine { decision: "allowed".into(), ..Default::default() };
            drop(OpenEgressLine::begin(&services, line, &notes).unwrap());
        }
    }
    assert_eq!(lock(&recorder.lines).len(), 201);
    notes.take();
    let lines = lock(&recorder.lines).clone();
    assert_eq!((lines.len(), lines[200].decision.as_str()), (202, "allowed"));
    assert_eq!((lines[201].path.as_str(), lines[201].further), ("/200", Some(9799)));
    assert_eq!(recorder.reserved.load(Ordering::Relaxed), 0, "no room stays reserved");
}

#[tokio::test]
async fn a_connection_ends_after_many_refusals() {
    let server = CarelessServer::start(plain).await;
    let mut session = InspectedSession::open(&server, server.rule(limited(&["GET"], "/a"))).await;
    let mut refused = 0;
    while let Some(answer) = session.ask("GET", "/b", "", "").await {
        assert_eq!(answer, "403 path-not-allowed");
        refused += 1;
    }
    assert_eq!(refused, 20);
    assert_eq!(session.end().await.0.len(), 20);
}

#[tokio::test]
async fn requests_wait_for_their_turn() {
    let server = CarelessServer::start(plain).await;
    let traffic: Arc<SessionTraffic> = Arc::default();
    (0..100_000).for_each(|_| assert!(traffic.delay_request() < Duration::from_secs(1000)));
    let mut session = InspectedSession::open_with(&server, server.rule(open()), None, traffic).await;
    assert!(timeout(Duration::from_millis(300), session.ask("GET", "/a", "", "")).await.is_err());
    assert_eq!(server.requests(), []);
}

#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "the connections must be open before the clock stops")]
async fn a_request_that_stands_still_has_a_reason_and_a_note() {
    let server = CarelessServer::start(plain).await;
    let mut session = InspectedSession::open(&server, server.rule(open())).await;
    let request = format!("GET /silent HTTP/1.1\r\nHost: allowed.test:{}\r\n\r\n", server.port);
    session.code.write_all(request.as_bytes()).await.unwrap();
    while server.requests().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::pause();
    let _ = session.code.read_u8().await;
    let (lines, notes) = session.end().await;
    assert_eq!((lines.len(), lines[0].reason.as_deref()), (1, Some("limit")));
    assert!(notes.contains("(limit: idle)"), "{notes}");
}

#[tokio::test]
async fn the_upload_limit_counts_methods() {
    let server = CarelessServer::start(plain).await;
    let mut session = InspectedSession::open(&server, server.rule(open())).await;
    session.ask("GET", "/a", "", "").await.unwrap();
    session.ask("GETGETGETGET", "/a", "", "").await.unwrap();
    let (lines, _) = session.end().await;
    assert_eq!(lines.last().unwrap().bytes_up - lines[0].bytes_up, 9);
}
