//! The front with real sockets before a fake [`Mcp`]. Clients write bytes by hand, because the hostile ones do.

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

mod binding;
mod bounds;
mod checks;
mod ends;

const ALICE: &str = "alice-0123456789abcdef";
const BOB: &str = "bob-0123456789abcdef";

/// How long a test waits for what must come; far longer than anything takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a fake server saw happen.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Event {
    /// A request came through: its principal, and how long its body is.
    Came(String, usize),
    /// The answer, or its body, was dropped before it was whole.
    Dropped,
}

/// Does what the header `do` asks.
#[derive(Clone)]
struct Fake {
    events: mpsc::UnboundedSender<Event>,
    /// Lets those that wait go on.
    release: Arc<Notify>,
}

/// Tells when it is dropped.
struct Guard(mpsc::UnboundedSender<Event>);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.send(Event::Dropped);
    }
}

/// A body of one part, and then silence.
struct Endless(Option<Bytes>, #[expect(dead_code, reason = "is there to be dropped")] Guard);

impl Body for Endless {
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

impl Mcp for Fake {
    async fn answer(&self, request: Request<Full<Bytes>>) -> Answer {
        let (parts, body) = request.into_parts();
        assert!(!parts.headers.contains_key(AUTHORIZATION), "the token must not come this far");
        let principal = parts.extensions.get::<Principal>().unwrap().0.clone();
        let bytes = body.collect().await.unwrap().to_bytes();
        let _ = self.events.send(Event::Came(principal.clone(), bytes.len()));
        let wanted = parts.headers.get("do").map(|value| value.to_str().unwrap());
        match wanted {
            Some("wait") => {
                let guard = Guard(self.events.clone());
                self.release.notified().await;
                std::mem::forget(guard);
            }
            Some("stream") => {
                let body = Endless(Some(Bytes::from_static(b"first\n")), Guard(self.events.clone()));
                return Response::new(BodyExt::boxed(body));
            }
            Some("panic") => panic!("asked for"),
            _ => {}
        }
        answer::of(StatusCode::OK, "text/plain", format!("{principal} sent {}", bytes.len()))
    }
}

struct Server {
    address: SocketAddr,
    metrics: Arc<Metrics>,
    events: mpsc::UnboundedReceiver<Event>,
    release: Arc<Notify>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

fn config() -> HttpConfig {
    HttpConfig {
        address: Some("127.0.0.1:0".parse().unwrap()),
        auth: Auth::Token,
        token_file: None,
        allowed_hosts: Vec::new(),
        allowed_origins: vec![crate::config::WebOrigin::parse("https://app.example.com").unwrap()],
        max_connections: 64,
        rate_limit: 10_000,
    }
}

impl Server {
    async fn start() -> Self {
        Self::with(config(), Bounds::default()).await
    }

    async fn with(config: HttpConfig, bounds: Bounds) -> Self {
        let listener = TcpListener::bind(config.address.unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let tokens = Tokens::parse(&format!("alice {ALICE}\nbob {BOB}\n")).unwrap();
        let tokens = (config.auth == Auth::Token).then_some(tokens);
        let front = Front::new(&config, tokens, address, bounds);
        let bound = Bound { listener, address, greeting: String::new(), front };
        let (sender, events) = mpsc::unbounded_channel();
        let (metrics, release, stop) =
            (Arc::new(Metrics::new()), Arc::new(Notify::new()), CancellationToken::new());
        let fake = Fake { events: sender, release: Arc::clone(&release) };
        let task = tokio::spawn(serve(bound, fake, Arc::clone(&metrics), || 7, || true, stop.clone()));
        Self { address, metrics, events, release, stop, task }
    }

    async fn connect(&self) -> Client {
        Client(TcpStream::connect(self.address).await.unwrap())
    }

    /// One request on a connection of its own.
    async fn ask(&self, request: &str) -> Reply {
        let mut client = self.connect().await;
        client.send(request).await;
        client.reply().await
    }

    async fn event(&mut self) -> Event {
        timeout(PATIENCE, self.events.recv()).await.expect("nothing happened").unwrap()
    }

    /// Ends when the server has ended.
    async fn stop(self) {
        self.stop.cancel();
        timeout(PATIENCE, self.task).await.expect("the server did not end").unwrap();
    }

    fn count(&self, line: &str) -> u64 {
        let page = self.metrics.render(0);
        let found = page.lines().find_map(|found| found.strip_prefix(line));
        found.map_or(0, |value| value.trim().parse().unwrap())
    }
}

struct Client(TcpStream);

#[derive(Debug)]
struct Reply {
    status: u16,
    head: String,
    body: String,
}

impl Reply {
    fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

impl Client {
    async fn send(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).await.unwrap();
    }

    /// The next answer, with a body whose length is declared.
    async fn reply(&mut self) -> Reply {
        timeout(PATIENCE, self.read_reply()).await.expect("no answer came")
    }

    async fn read_reply(&mut self) -> Reply {
        let mut bytes = Vec::new();
        while !bytes.ends_with(b"\r\n\r\n") {
            let byte =
                self.0.read_u8().await.unwrap_or_else(|error| panic!("{error} after {:?}", text(&bytes)));
            bytes.push(byte);
        }
        let head = text(&bytes);
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let mut reply = Reply { status, head, body: String::new() };
        let length = reply.header("content-length").map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).await.unwrap();
        reply.body = text(&body);
        reply
    }

    /// Everything until the server closes.
    async fn rest(&mut self) -> String {
        let mut bytes = Vec::new();
        // A reset ends it too.
        let _ = timeout(PATIENCE, self.0.read_to_end(&mut bytes)).await.expect("the connection stayed open");
        text(&bytes)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A request to `/mcp` with a right token.
fn post(headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {ALICE}\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    )
}

fn get(path: &str, headers: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n")
}
