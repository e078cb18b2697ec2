//! The bytes of a container's standard input and output as one stream. What it writes to standard error is no part of
//! it: its end is kept, for when somebody asks why it ended.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bollard::container::LogOutput;
use bollard::errors::Error as ClientError;
use bytes::{Buf, Bytes};
use futures_core::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Of what the runner writes to standard error, this much is kept.
const KEPT_WORDS: usize = 4096;

pub(super) type Output = Pin<Box<dyn Stream<Item = Result<LogOutput, ClientError>> + Send>>;
pub(super) type Input = Pin<Box<dyn AsyncWrite + Send>>;

/// What was said last on standard error.
#[derive(Debug, Clone, Default)]
pub(super) struct LastWords(Arc<Mutex<Vec<u8>>>);

impl LastWords {
    fn add(&self, bytes: &[u8]) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend_from_slice(bytes);
        let surplus = kept.len().saturating_sub(KEPT_WORDS);
        kept.drain(..surplus);
    }

    pub(super) fn text(&self) -> String {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&kept).trim().to_owned()
    }
}

pub(super) struct ContainerStream {
    output: Output,
    input: Input,
    /// Come and not yet read.
    rest: Bytes,
    words: LastWords,
    /// Also when nobody reads any more.
    ended: DropGuard,
}

impl ContainerStream {
    pub(super) fn new(output: Output, input: Input) -> Self {
        let ended = CancellationToken::new().drop_guard();
        Self { output, input, rest: Bytes::new(), words: LastWords::default(), ended }
    }

    /// Tells of the end of the output, or of whoever reads it.
    pub(super) fn ended(&self) -> CancellationToken {
        self.ended.token().clone()
    }

    pub(super) fn words(&self) -> LastWords {
        self.words.clone()
    }

    fn has_ended(&self) {
        self.ended.token().cancel();
    }
}

impl AsyncRead for ContainerStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.rest.is_empty() {
            match ready!(self.output.as_mut().poll_next(cx)) {
                Some(Ok(LogOutput::StdOut { message })) => self.rest = message,
                Some(Ok(LogOutput::StdErr { message })) => self.words.add(&message),
                // Not asked for: without a terminal there is no such output.
                Some(Ok(LogOutput::StdIn { .. } | LogOutput::Console { .. })) => {
                    return Poll::Ready(Err(io::Error::other("bytes of no stream came from the container")));
                }
                Some(Err(error)) => {
                    self.has_ended();
                    return Poll::Ready(Err(io::Error::other(error)));
                }
                None => {
                    self.has_ended();
                    return Poll::Ready(Ok(()));
                }
            }
        }
        let count = self.rest.len().min(buffer.remaining());
        buffer.put_slice(&self.rest[..count]);
        self.rest.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ContainerStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.input.as_mut().poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.input.as_mut().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.input.as_mut().poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn standard_error_is_kept_apart_and_short() {
        let out = |text: &'static str| Ok(LogOutput::StdOut { message: Bytes::from_static(text.as_bytes()) });
        let long = Bytes::from(vec![b'x'; 2 * KEPT_WORDS]);
        let parts = vec![
            out("ab"),
            Ok(LogOutput::StdErr { message: long }),
            Ok(LogOutput::StdErr { message: Bytes::from_static(b"end\n") }),
            out("c"),
        ];
        let output: Output = Box::pin(futures_util::stream::iter(parts));
        let mut stream = ContainerStream::new(output, Box::pin(tokio::io::sink()));
        let (words, ended) = (stream.words(), stream.ended());
        let mut read = String::new();
        assert!(!ended.is_cancelled());
        stream.read_to_string(&mut read).await.unwrap();
        assert_eq!(read, "abc");
        assert!(ended.is_cancelled());
        assert!(words.text().ends_with("xend"));
        assert_eq!(words.text().len(), KEPT_WORDS - 1);
    }
}
