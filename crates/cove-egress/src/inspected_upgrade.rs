//! Passes on the bytes of a WebSocket after its request was judged. What the server sends is searched for credentials, and its
//! lengths stay as they are. A message is passed on whole as soon as it has ended.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};

use crate::answer_forms::AnswerForms;
use crate::answer_scrubber::AnswerScrubber;
use crate::origin_connection::OriginConnection;
use crate::relay::{RelayError, relay_tunnel};
use crate::request_record::RequestRecord;
use crate::websocket_frames::WebSocketFrames;

const PIECE: usize = 16 * 1024;

/// Passes on bytes until both sides have ended. `origin` stays open meanwhile.
pub(crate) async fn relay_upgrade(
    client: OnUpgrade,
    server: OnUpgrade,
    origin: Option<OriginConnection>,
    record: Arc<RequestRecord>,
    forms: Option<Arc<AnswerForms>>,
) {
    let (Ok(client), Ok(server)) = tokio::join!(client, server) else { return };
    let server = ScrubbedStream::new(TokioIo::new(server), forms);
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
    forms: Option<Arc<AnswerForms>>,
    frames: WebSocketFrames,
    scrubber: AnswerScrubber,
    /// Bytes that can be passed on.
    clean: Vec<u8>,
}

impl<S> ScrubbedStream<S> {
    fn new(inner: S, forms: Option<Arc<AnswerForms>>) -> Self {
        let (frames, scrubber) = (WebSocketFrames::default(), AnswerScrubber::new());
        Self { inner, forms, frames, scrubber, clean: Vec::new() }
    }

    /// Takes what the server sent. Fails if that is no WebSocket: then Cove cannot tell where a message ends.
    fn take(&mut self, forms: &AnswerForms, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let piece = self.frames.take(&mut bytes).map_err(|_| io::ErrorKind::InvalidData)?;
            self.scrubber.read(forms, piece.bytes, piece.part);
            if piece.ends_message {
                self.clean.extend(self.scrubber.pass_all(forms));
            }
        }
        self.clean.extend(self.scrubber.pass(forms));
        Ok(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ScrubbedStream<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let Some(forms) = this.forms.clone() else { return Pin::new(&mut this.inner).poll_read(context, buffer) };
        while this.clean.is_empty() {
            let mut piece = [0; PIECE];
            let mut read = ReadBuf::new(&mut piece);
            ready!(Pin::new(&mut this.inner).poll_read(context, &mut read))?;
            if read.filled().is_empty() {
                this.clean = this.scrubber.pass_all(&forms);
                break;
            }
            this.take(&forms, read.filled())?;
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

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;
    use tokio::runtime::Builder;

    use super::*;
    use crate::answer_forms::SecretForms;

    const SECRET: &str = "T0kenThatNoSandboxMaySee";

    fn scrubbed<S>(server: S) -> ScrubbedStream<S> {
        let forms = AnswerForms::new(vec![Arc::new(SecretForms::new(SECRET))], "PLACEHOLDER");
        ScrubbedStream::new(server, forms.map(Arc::new))
    }

    /// Returns what code gets of frames that a server sends while it stays connected.
    fn pass(frames: &[u8]) -> io::Result<Vec<u8>> {
        let runtime = Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (mut server, client) = tokio::io::duplex(4096);
            let (mut client, mut got) = (scrubbed(client), vec![0; frames.len()]);
            server.write_all(frames).await.unwrap();
            client.read_exact(&mut got).await?;
            Ok(got)
        })
    }

    #[test]
    fn a_message_passes_as_soon_as_it_has_ended() {
        // Each of them would wait for the next one if it did so for the beginning of a form.
        for end in 0..SECRET.len() {
            let text = format!("said {}", &SECRET[..end]);
            let frame = [&[0x81, text.len() as u8], text.as_bytes()].concat();
            assert_eq!(pass(&frame).unwrap(), frame);
        }
    }

    #[test]
    fn a_secret_is_found_across_frames_and_between_their_heads() {
        let (one, two) = SECRET.split_at(9);
        let frames = [b"\x01\x0b, ", one.as_bytes(), b"\x89\x01p\x80\x10", two.as_bytes(), b"!"].concat();
        let expected = b"\x01\x0b, PLACEHOLD\x89\x01p\x80\x10PLACEHOLDERPLAC!";
        let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert_eq!(shown(&pass(&frames).unwrap()), shown(expected));
        // A server that knows no frames: the first byte of the secret is the length of one.
        let raw = [b"\x82", SECRET.as_bytes(), &[b'x'; 61]].concat();
        assert!(!shown(&pass(&raw).unwrap()).contains(&SECRET[1..]));
        assert_eq!(pass(SECRET.as_bytes()).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
