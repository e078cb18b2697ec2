//! A container's standard input and output as one byte stream. Standard error is kept apart: its tail explains why a
//! container ended.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use bollard::container::LogOutput;
use bollard::errors::Error as ClientError;
use bytes::Bytes;
use futures_core::Stream;
use futures_util::StreamExt;
use futures_util::stream::try_unfold;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::io::StreamReader;
use tokio_util::sync::{CancellationToken, DropGuard};

use cove_core::sync::lock;

/// How many bytes of the runner's standard error are kept.
const MAX_STDERR_TAIL: usize = 4096;

pub(super) type ContainerOutput = Pin<Box<dyn Stream<Item = Result<LogOutput, ClientError>> + Send>>;
pub(super) type ContainerInput = Pin<Box<dyn AsyncWrite + Send>>;

/// The last bytes of standard error, shared with the container's `EngineControl`.
#[derive(Debug, Clone, Default)]
pub(super) struct StderrTail(Arc<Mutex<Vec<u8>>>);

impl StderrTail {
    pub(super) fn add(&self, bytes: &[u8]) {
        let mut kept = lock(&self.0);
        kept.extend_from_slice(bytes);
        let surplus = kept.len().saturating_sub(MAX_STDERR_TAIL);
        kept.drain(..surplus);
    }

    pub(super) fn text(&self) -> String {
        let kept = lock(&self.0);
        String::from_utf8_lossy(&kept).trim().to_owned()
    }
}

/// What the watch task of a container sees of its stream.
#[derive(Clone)]
pub(super) struct StreamWatch {
    pub(super) stderr_tail: StderrTail,
    /// Cancelled when the output ends or fails, or when the stream is dropped.
    pub(super) ended: CancellationToken,
}

/// Joins a container's output and input to one stream, and returns what its watch task sees of it.
pub(super) fn container_stream(
    output: ContainerOutput,
    input: ContainerInput,
) -> (impl AsyncRead + AsyncWrite + Send + Unpin, StreamWatch) {
    let watch = StreamWatch { stderr_tail: StderrTail::default(), ended: CancellationToken::new() };
    // The state is dropped at the end of the output, at an error and together with the stream; its guard then cancels
    // the token.
    let state = (output, watch.stderr_tail.clone(), watch.ended.clone().drop_guard());
    let reader = StreamReader::new(Box::pin(try_unfold(state, next_piece)));
    (tokio::io::join(reader, input), watch)
}

type OutputState = (ContainerOutput, StderrTail, DropGuard);

/// Returns the next piece of standard output, or `None` at the end. Fails if the connection breaks.
async fn next_piece((mut output, stderr_tail, guard): OutputState) -> io::Result<Option<(Bytes, OutputState)>> {
    while let Some(piece) = output.next().await {
        match piece.map_err(io::Error::other)? {
            LogOutput::StdOut { message } => return Ok(Some((message, (output, stderr_tail, guard)))),
            LogOutput::StdErr { message } => stderr_tail.add(&message),
            // Cove requests no terminal, so the engine must not send these.
            LogOutput::StdIn { .. } | LogOutput::Console { .. } => {
                return Err(io::Error::other("bytes of no stream came from the container"));
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn keeps_a_bounded_stderr_tail() {
        let out = |text: &'static str| Ok(LogOutput::StdOut { message: Bytes::from_static(text.as_bytes()) });
        let long = Bytes::from(vec![b'x'; 2 * MAX_STDERR_TAIL]);
        let parts = vec![
            out("ab"),
            Ok(LogOutput::StdErr { message: long }),
            Ok(LogOutput::StdErr { message: Bytes::from_static(b"end\n") }),
            out("c"),
        ];
        let output: ContainerOutput = Box::pin(futures_util::stream::iter(parts));
        let (mut stream, StreamWatch { stderr_tail: words, ended }) =
            container_stream(output, Box::pin(tokio::io::sink()));
        let mut read = String::new();
        assert!(!ended.is_cancelled());
        stream.read_to_string(&mut read).await.unwrap();
        assert_eq!(read, "abc");
        assert!(ended.is_cancelled());
        assert!(words.text().ends_with("xend"));
        assert_eq!(words.text().len(), MAX_STDERR_TAIL - 1);
    }
}
