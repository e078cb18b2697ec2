//! Tells a WebSocket from other protocols, and passes on its bytes after its request was judged. What the server sends is
//! searched for credentials, and its lengths stay as they are.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::{HeaderMap, HeaderName, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};

use crate::answer_scrubber::{AnswerScrubber, SecretForms};
use crate::origin_connection::OriginConnection;
use crate::relay::{RelayError, relay_tunnel};
use crate::request_record::RequestRecord;

const PIECE: usize = 16 * 1024;
pub(crate) const WEBSOCKET: &str = "websocket";
/// What a server of WebSockets adds to the key of its client (RFC 6455).
const KEY_SUFFIX: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Proves that a server speaks WebSocket: what it must answer to the key of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WebSocketProof(String);

impl WebSocketProof {
    /// Returns what the answer to a request must have. None if the request does not ask for a WebSocket of version 13.
    pub(crate) fn expected(request: &HeaderMap) -> Option<Self> {
        let key = only_value(request, &SEC_WEBSOCKET_KEY)?;
        let is_key = STANDARD.decode(key).is_ok_and(|random| random.len() == 16);
        let is_whole = is_key && only_value(request, &SEC_WEBSOCKET_VERSION) == Some(b"13");
        is_whole.then(|| Self(STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, &[key, KEY_SUFFIX].concat()))))
    }

    /// True if an answer of status 101 has it. Otherwise what follows may be anything, such as another request of HTTP.
    pub(crate) fn is_in(&self, answer: &HeaderMap) -> bool {
        let is_upgrade =
            only_value(answer, &UPGRADE).is_some_and(|value| value.eq_ignore_ascii_case(WEBSOCKET.as_bytes()));
        only_value(answer, &SEC_WEBSOCKET_ACCEPT) == Some(self.0.as_bytes()) && is_upgrade
    }
}

/// Returns the value of a field that is there exactly once.
fn only_value<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a [u8]> {
    let mut values = headers.get_all(name).iter();
    values.next().map(|value| value.as_bytes()).filter(|_| values.next().is_none())
}

/// Passes on bytes until both sides have ended. `origin` stays open meanwhile.
pub(crate) async fn relay_upgrade(
    client: OnUpgrade,
    server: OnUpgrade,
    origin: Option<OriginConnection>,
    record: Arc<RequestRecord>,
    forms: Option<Arc<SecretForms>>,
) {
    let (Ok(client), Ok(server)) = tokio::join!(client, server) else { return };
    let server =
        ScrubbedStream { inner: TokioIo::new(server), forms, scrubber: AnswerScrubber::default(), clean: Vec::new() };
    if let Err(RelayError::Limit { name, hint }) = relay_tunnel(TokioIo::new(client), server, &record.meter).await {
        record.break_off(name, hint);
    }
    drop(origin);
}

/// Ends a connection whose client asked for another protocol and got a plain answer. `hyper` would drop it, and with it what
/// the client has not read yet.
pub(crate) async fn close_unused(client: OnUpgrade) {
    if let Ok(client) = client.await {
        // A client that has gone needs no end.
        let _ = TokioIo::new(client).shutdown().await;
    }
}

/// The stream of a server, without secrets in what it sends.
struct ScrubbedStream<S> {
    inner: S,
    forms: Option<Arc<SecretForms>>,
    scrubber: AnswerScrubber,
    /// Bytes that can be passed on.
    clean: Vec<u8>,
}

impl<S: AsyncRead + Unpin> AsyncRead for ScrubbedStream<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let Some(forms) = &this.forms else { return Pin::new(&mut this.inner).poll_read(context, buffer) };
        while this.clean.is_empty() {
            let mut piece = [0; PIECE];
            let mut read = ReadBuf::new(&mut piece);
            ready!(Pin::new(&mut this.inner).poll_read(context, &mut read))?;
            let is_end = read.filled().is_empty();
            this.clean = if is_end { this.scrubber.finish(forms) } else { this.scrubber.push(forms, read.filled()) };
            if is_end {
                break;
            }
        }
        let count = this.clean.len().min(buffer.remaining());
        buffer.put_slice(&this.clean[..count]);
        this.clean.drain(..count);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ScrubbedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}
