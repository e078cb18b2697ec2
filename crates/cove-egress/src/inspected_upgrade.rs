//! Passes on the bytes of a WebSocket after its request was judged. What the server sends is searched for credentials, and its
//! lengths stay as they are.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};

use crate::answer_scrubber::{AnswerScrubber, SecretForms};
use crate::origin_connection::OriginConnection;
use crate::relay::{RelayError, relay_tunnel};
use crate::request_record::RequestRecord;

const PIECE: usize = 16 * 1024;

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
