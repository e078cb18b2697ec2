//! Tests of the front with real sockets and a fake [`McpHandler`]. Clients write raw bytes, as hostile ones do.

use std::sync::Arc;

use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::telemetry::metrics::Metrics;
use cove_core::session::registry::RegistryFigures;

mod binding;
mod bounds;
mod checks;
mod ends;

const ALICE: &str = "alice-0123456789abcdef";
const BOB: &str = "bob-0123456789abcdef";

/// How long a test waits for an event; far longer than any takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a fake server observed.
#[derive(Debug, Clone, PartialEq, Eq)]
enum FakeMcpEvent {
    /// A request arrived: its principal, and the length of its body.
    Came(String, usize),
    /// The answer or its body was dropped before it was complete.
    Dropped,
    /// Everything of this principal was ended.
    Ended(String),
}

/// Does what the header `do` asks for.
#[derive(Clone)]
struct FakeMcp {
    events: mpsc::UnboundedSender<FakeMcpEvent>,
    /// Releases requests that wait.
    release: Arc<Notify>,
}

/// Sends an event when it is dropped.
struct DropNotifier(mpsc::UnboundedSender<FakeMcpEvent>);

impl Drop for DropNotifier {
    fn drop(&mut self) {
        let _ = self.0.send(FakeMcpEvent::Dropped);
    }
}

/// A body of one part that never ends.
struct EndlessBody(Option<Bytes>, #[expect(dead_code, reason = "is there to be dropped")] DropNotifier);

impl Body for EndlessBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match self.0.take() {
            Some(part) => std::task::Poll::Ready(Some(Ok(Frame::data(part)))),
            None => std::task::Poll::Pending,
        }
    }
}

impl McpHandler for FakeMcp {
    async fn answer(&self, request: Request<Full<Bytes>>) -> HttpResponse {
        let (parts, body) = request.into_parts();
        assert!(!parts.headers.contains_key(AUTHORIZATION), "the token must not come this far");
        let principal = parts.extensions.get::<Principal>().unwrap().0.clone();
        let bytes = body.collect().await.unwrap().to_bytes();
        let _ = self.events.send(FakeMcpEvent::Came(principal.clone(), bytes.len()));
        let wanted = parts.headers.get("do").map(|value| value.to_str().unwrap());
        match wanted {
            Some("wait") => {
                let guard = DropNotifier(self.events.clone());
                self.release.notified().await;
                std::mem::forget(guard);
            }
            Some("stream") => {
                let body = EndlessBody(Some(Bytes::from_static(b"first\n")), DropNotifier(self.events.clone()));
                return Response::new(BodyExt::boxed(body));
            }
            Some("panic") => panic!("asked for"),
            _ => {}
        }
        response::new_response(StatusCode::OK, "text/plain", format!("{principal} sent {}", bytes.len()))
    }

    async fn end_principal(&self, principal: &Principal) {
        let _ = self.events.send(FakeMcpEvent::Ended(principal.0.clone()));
    }
}

struct TestFront {
    address: SocketAddr,
    metrics: Arc<Metrics>,
    events: mpsc::UnboundedReceiver<FakeMcpEvent>,
    release: Arc<Notify>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

fn config() -> HttpConfig {
    HttpConfig {
        address: Some("127.0.0.1:0".parse().unwrap()),
        auth: HttpAuth::Token,
        token_file: None,
        allowed_hosts: Vec::new(),
        allowed_origins: vec![crate::http_config::WebOrigin::parse("https://app.example.com").unwrap()],
        max_connections: 64,
        rate_limit: 10_000,
    }
}

impl TestFront {
    async fn start() -> Self {
        Self::start_with(config(), HttpBounds::default()).await
    }

    async fn start_with(config: HttpConfig, bounds: HttpBounds) -> Self {
        let tokens = TokenSet::parse(&format!("alice {ALICE}\nbob {BOB}\n")).unwrap();
        let keeper = TokenKeeper::new(tokens, None, config.rate_limit);
        Self::start_with_tokens(config, bounds, keeper).await
    }

    /// Reads its tokens from a file.
    async fn start_with_file(config: HttpConfig, file: &Path) -> Self {
        let tokens = token::file::load(file).unwrap().tokens;
        let keeper = TokenKeeper::new(tokens, Some(file.to_owned()), config.rate_limit);
        Self::start_with_tokens(config, HttpBounds::default(), keeper).await
    }

    async fn start_with_tokens(config: HttpConfig, bounds: HttpBounds, tokens: TokenKeeper) -> Self {
        let listener = TcpListener::bind(config.address.unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let tokens = (config.auth == HttpAuth::Token).then_some(tokens);
        let front = HttpFront::new(&config, tokens, address, bounds);
        let bound = BoundListener { listener, address, greeting: String::new(), front };
        let (sender, events) = mpsc::unbounded_channel();
        let (metrics, release, stop) = (Arc::new(Metrics::new()), Arc::new(Notify::new()), CancellationToken::new());
        let fake = FakeMcp { events: sender, release: Arc::clone(&release) };
        let task = tokio::spawn(serve(
            bound,
            fake,
            Arc::clone(&metrics),
            || RegistryFigures { open: 7, ..RegistryFigures::default() },
            || true,
            stop.clone(),
        ));
        Self { address, metrics, events, release, stop, task }
    }

    async fn connect(&self) -> RawClient {
        RawClient(TcpStream::connect(self.address).await.unwrap())
    }

    /// Connects until the server has answered a request with 200, and returns that connection.
    async fn connect_until_answered(&self, request: &str) -> RawClient {
        let connected = async {
            loop {
                let mut client = self.connect().await;
                // A connection that the server closes gives an error or no byte.
                let sent = client.0.write_all(request.as_bytes()).await;
                if sent.is_ok() && client.0.peek(&mut [0]).await.is_ok_and(|count| count > 0) {
                    assert_eq!(client.reply().await.status, 200);
                    return client;
                }
            }
        };
        timeout(PATIENCE, connected).await.expect("no such client gets in")
    }

    /// Sends one request on a connection of its own.
    async fn request(&self, request: &str) -> RawReply {
        let mut client = self.connect().await;
        client.send(request).await;
        client.reply().await
    }

    async fn event(&mut self) -> FakeMcpEvent {
        timeout(PATIENCE, self.events.recv()).await.expect("nothing happened").unwrap()
    }

    /// Returns when the server has ended.
    async fn stop(self) {
        self.stop.cancel();
        timeout(PATIENCE, self.task).await.expect("the server did not end").unwrap();
    }

    fn count(&self, line: &str) -> u64 {
        let page = self.metrics.render(&RegistryFigures::default());
        let found = page.lines().find_map(|found| found.strip_prefix(line));
        found.map_or(0, |value| value.trim().parse().unwrap())
    }
}

struct RawClient(TcpStream);

#[derive(Debug)]
struct RawReply {
    status: u16,
    head: String,
    body: String,
}

impl RawReply {
    fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

impl RawClient {
    async fn send(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).await.unwrap();
    }

    /// Reads the next answer, whose body has a declared length.
    async fn reply(&mut self) -> RawReply {
        timeout(PATIENCE, self.read_reply()).await.expect("no answer came")
    }

    async fn read_reply(&mut self) -> RawReply {
        let mut bytes = Vec::new();
        while !bytes.ends_with(b"\r\n\r\n") {
            let byte = self.0.read_u8().await.unwrap_or_else(|error| panic!("{error} after {:?}", text(&bytes)));
            bytes.push(byte);
        }
        let head = text(&bytes);
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let mut reply = RawReply { status, head, body: String::new() };
        let length = reply.header("content-length").map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).await.unwrap();
        reply.body = text(&body);
        reply
    }

    /// Reads until the server closes the connection.
    async fn read_to_end(&mut self) -> String {
        let mut bytes = Vec::new();
        // A reset ends it too.
        let _ = timeout(PATIENCE, self.0.read_to_end(&mut bytes)).await.expect("the connection stayed open");
        text(&bytes)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A request to `/mcp` with a valid token.
fn post(headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {ALICE}\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    )
}

fn get(path: &str, headers: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n")
}
