//! MCP on standard input and output, one message per line. Cove has its own transport because a line that is too long
//! must be refused with its request id, and because the end of input must be known at once.
//!
//! rmcp polls `receive` and may drop its future at any await, so all partial state lives in [`StdioTransport`].
//! `receive` stores a refusal in `refused`, reserves a place in the `refusals` channel, and only then moves the
//! refusal there. A task writes the refusals and shares the output lock with `send`. `ended` is cancelled at the end
//! of input, or if a refusal cannot be written; `serve_stdio` waits for it.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;

use rmcp::RoleServer;
use rmcp::model::{ClientNotification, JsonRpcError, JsonRpcMessage, JsonRpcResponse, RequestId};
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::{StdioReader, StdioWriter, Transport, stdio_pipes};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::sync::Mutex;
use tokio::sync::mpsc::{Sender, channel};
use tokio_util::sync::CancellationToken;

use super::MAX_MESSAGE;
use super::client_line::{self, ClientLine};
use super::oversized::IdSeeker;
use cove_core::sync::lock;

/// Most requests in flight. A client that sends more and reads nothing must not make the server grow.
const MAX_REQUESTS: usize = 1024;
/// Most refusals that wait to be written. Beyond this, nothing is read.
const MAX_REFUSALS: usize = 64;
/// Most bytes of buffer that are kept between lines.
const MAX_KEPT_BUFFER: usize = 256 * 1024;

/// The stdio transport for rmcp.
pub(super) struct StdioTransport {
    input: BufReader<StdioReader>,
    output: Arc<Mutex<StdioWriter>>,
    /// Ids of requests whose answers were not written yet.
    open: Arc<std::sync::Mutex<HashSet<RequestId>>>,
    /// Refusals on their way to the task that writes them. The reading future cannot write them itself: rmcp may drop
    /// it at any await, and the refusal would be lost.
    refusals: Sender<TxJsonRpcMessage<RoleServer>>,
    refused: Option<TxJsonRpcMessage<RoleServer>>,
    line: Vec<u8>,
    /// A line that is too long: its length so far, and the search for its id.
    skipped: Option<(u64, IdSeeker)>,
    /// True once a request arrived. rmcp gives up on a client whose first message is anything else.
    has_request: bool,
    ended: CancellationToken,
}

enum LineRead {
    Line,
    TooLarge(u64, IdSeeker),
    End,
}

impl StdioTransport {
    /// `ended` is cancelled when there is no more input.
    pub(super) fn new(ended: CancellationToken) -> Self {
        let (input, output) = stdio_pipes();
        let output = Arc::new(Mutex::new(output));
        let (refusals, mut to_write) = channel(MAX_REFUSALS);
        let (writer, broken) = (Arc::clone(&output), ended.clone());
        tokio::spawn(async move {
            while let Some(refusal) = to_write.recv().await {
                if write_message(&writer, &refusal).await.is_err() {
                    broken.cancel();
                    return;
                }
            }
        });
        Self {
            input: BufReader::with_capacity(64 * 1024, input),
            output,
            open: Arc::default(),
            refusals,
            refused: None,
            line: Vec::new(),
            skipped: None,
            has_request: false,
            ended,
        }
    }

    /// Reads until the end of a line. May be dropped at any await: the bytes read so far stay in `self`.
    async fn read_line(&mut self) -> io::Result<LineRead> {
        loop {
            let available = self.input.fill_buf().await?;
            if available.is_empty() {
                return Ok(LineRead::End);
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
                    Some((size, seeker)) => LineRead::TooLarge(size, seeker),
                    None => LineRead::Line,
                });
            }
        }
    }

    /// Counts a request as in flight, or returns a refusal if there are too many. A cancelled request gets no answer,
    /// so it no longer counts.
    fn admit(&self, message: &RxJsonRpcMessage<RoleServer>) -> Result<(), Box<TxJsonRpcMessage<RoleServer>>> {
        let mut open = lock(&self.open);
        match message {
            JsonRpcMessage::Request(request) => {
                if open.len() >= MAX_REQUESTS && !open.contains(&request.id) {
                    return Err(Box::new(client_line::too_many_requests_error(MAX_REQUESTS, request.id.clone())));
                }
                open.insert(request.id.clone());
            }
            JsonRpcMessage::Notification(notification) => {
                if let ClientNotification::CancelledNotification(cancelled) = &notification.notification
                    && let Some(id) = &cancelled.params.request_id
                {
                    open.remove(id);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

impl Transport<RoleServer> for StdioTransport {
    type Error = io::Error;

    fn send(&mut self, message: TxJsonRpcMessage<RoleServer>) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let (output, open) = (Arc::clone(&self.output), Arc::clone(&self.open));
        async move {
            let written = write_message(&output, &message).await;
            if let JsonRpcMessage::Response(JsonRpcResponse { id, .. })
            | JsonRpcMessage::Error(JsonRpcError { id: Some(id), .. }) = &message
            {
                lock(&open).remove(id);
            }
            written
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        loop {
            if self.refused.is_some() {
                // Waits while the channel is full. If this future is dropped, the refusal stays in `refused`.
                let Ok(place) = self.refusals.reserve().await else {
                    self.ended.cancel();
                    return None;
                };
                if let Some(refusal) = self.refused.take() {
                    place.send(refusal);
                }
                continue;
            }
            let refusal = match self.read_line().await {
                Ok(LineRead::Line) => {
                    let line = client_line::parse_line(&self.line);
                    self.line.clear();
                    self.line.shrink_to(MAX_KEPT_BUFFER);
                    match line {
                        ClientLine::Message(message) => {
                            self.has_request |= matches!(*message, JsonRpcMessage::Request(_));
                            if !self.has_request {
                                tracing::warn!("ignored a message before the first request");
                                continue;
                            }
                            match self.admit(&message) {
                                Ok(()) => return Some(*message),
                                Err(refusal) => *refusal,
                            }
                        }
                        ClientLine::Ignored("a blank line") => continue,
                        ClientLine::Ignored(what) => {
                            tracing::warn!("ignored {what} on standard input");
                            continue;
                        }
                        ClientLine::Refused(answer) => *answer,
                    }
                }
                Ok(LineRead::TooLarge(size, seeker)) => {
                    tracing::warn!(size, "refused a message that is too large");
                    client_line::too_large_error(size, MAX_MESSAGE, seeker.into_id())
                }
                Ok(LineRead::End) => {
                    self.ended.cancel();
                    return None;
                }
                Err(error) => {
                    tracing::error!(%error, "could not read standard input");
                    self.ended.cancel();
                    return None;
                }
            };
            self.refused = Some(refusal);
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        self.output.lock().await.flush().await
    }
}

async fn write_message(output: &Mutex<StdioWriter>, message: &TxJsonRpcMessage<RoleServer>) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    let mut output = output.lock().await;
    output.write_all(&line).await?;
    output.flush().await
}
