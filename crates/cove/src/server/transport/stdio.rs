//! MCP on standard input and output, one message a line. Ours because a line that is too long must be refused to whoever
//! waits for its answer, and because the end of input must be known at once.

use std::io;
use std::sync::Arc;

use rmcp::RoleServer;
use rmcp::model::JsonRpcMessage;
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::{StdioReader, StdioWriter, Transport, stdio_pipes};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::MAX_MESSAGE;
use super::message::{self, Line};
use super::oversized::IdSeeker;

/// Room for a line that is kept between lines.
const KEPT: usize = 256 * 1024;

pub(super) struct Stdio {
    input: BufReader<StdioReader>,
    output: Arc<Mutex<StdioWriter>>,
    line: Vec<u8>,
    /// A line that is too long: how long it is so far, and whose it is.
    skipped: Option<(u64, IdSeeker)>,
    /// Whether a request has come: rmcp gives up on a client whose first message is anything else.
    begun: bool,
    ended: CancellationToken,
}

enum Read {
    Line,
    TooLarge(u64, IdSeeker),
    End,
}

impl Stdio {
    /// `ended` is cancelled when there is no more input.
    pub(super) fn new(ended: CancellationToken) -> Self {
        let (input, output) = stdio_pipes();
        Self {
            input: BufReader::with_capacity(64 * 1024, input),
            output: Arc::new(Mutex::new(output)),
            line: Vec::new(),
            skipped: None,
            begun: false,
            ended,
        }
    }

    /// May be dropped at any await: what was read so far stays here.
    async fn read_line(&mut self) -> io::Result<Read> {
        loop {
            let available = self.input.fill_buf().await?;
            if available.is_empty() {
                return Ok(Read::End);
            }
            let end = available.iter().position(|byte| *byte == b'\n');
            let piece = &available[..end.unwrap_or(available.len())];
            let taken = end.map_or(available.len(), |at| at + 1);
            match &mut self.skipped {
                Some((size, seeker)) => {
                    *size += piece.len() as u64;
                    seeker.push(piece);
                }
                None if self.line.len() + piece.len() > MAX_MESSAGE => {
                    let mut seeker = IdSeeker::default();
                    seeker.push(&self.line);
                    seeker.push(piece);
                    self.skipped = Some(((self.line.len() + piece.len()) as u64, seeker));
                    self.line = Vec::new();
                }
                None => self.line.extend_from_slice(piece),
            }
            self.input.consume(taken);
            if end.is_some() {
                return Ok(match self.skipped.take() {
                    Some((size, seeker)) => Read::TooLarge(size, seeker),
                    None => Read::Line,
                });
            }
        }
    }
}

impl Transport<RoleServer> for Stdio {
    type Error = io::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let output = Arc::clone(&self.output);
        async move { write(&output, &message).await }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        loop {
            let refusal = match self.read_line().await {
                Ok(Read::Line) => {
                    let line = message::read(&self.line);
                    self.line.clear();
                    self.line.shrink_to(KEPT);
                    match line {
                        Line::Message(message) => {
                            self.begun |= matches!(*message, JsonRpcMessage::Request(_));
                            if self.begun {
                                return Some(*message);
                            }
                            tracing::warn!("ignored a message before the first request");
                            continue;
                        }
                        Line::Ignored("a blank line") => continue,
                        Line::Ignored(what) => {
                            tracing::warn!("ignored {what} on standard input");
                            continue;
                        }
                        Line::Refused(answer) => *answer,
                    }
                }
                Ok(Read::TooLarge(size, seeker)) => {
                    tracing::warn!(size, "refused a message that is too large");
                    message::too_large(size, MAX_MESSAGE, seeker.found())
                }
                Ok(Read::End) => {
                    self.ended.cancel();
                    return None;
                }
                Err(error) => {
                    tracing::error!(%error, "could not read standard input");
                    self.ended.cancel();
                    return None;
                }
            };
            if write(&self.output, &refusal).await.is_err() {
                self.ended.cancel();
                return None;
            }
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        self.output.lock().await.flush().await
    }
}

async fn write(output: &Mutex<StdioWriter>, message: &TxJsonRpcMessage<RoleServer>) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    let mut output = output.lock().await;
    output.write_all(&line).await?;
    output.flush().await
}
