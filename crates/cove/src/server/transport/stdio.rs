//! MCP on standard input and output, one message a line. Ours because a line that is too long must be refused to whoever
//! waits for its answer, and because the end of input must be known at once.

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
use super::message::{self, Line};
use super::oversized::IdSeeker;

/// Requests that may be under way at once: a client that sends more and reads nothing must not make us grow.
const MAX_REQUESTS: usize = 1024;
/// Refusals that may wait to be written; then nothing more is read.
const MAX_REFUSALS: usize = 64;
/// Room for a line that is kept between lines.
const KEPT: usize = 256 * 1024;

pub(super) struct Stdio {
    input: BufReader<StdioReader>,
    output: Arc<Mutex<StdioWriter>>,
    /// Requests without an answer that has been written.
    open: Arc<std::sync::Mutex<HashSet<RequestId>>>,
    /// What this side refuses, on its way to be written by a task of its own: the future that reads may be dropped at
    /// any await, and with it whatever it was about to write.
    refusals: Sender<TxJsonRpcMessage<RoleServer>>,
    refused: Option<TxJsonRpcMessage<RoleServer>>,
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
        let output = Arc::new(Mutex::new(output));
        let (refusals, mut to_write) = channel(MAX_REFUSALS);
        let (writer, broken) = (Arc::clone(&output), ended.clone());
        tokio::spawn(async move {
            while let Some(refusal) = to_write.recv().await {
                if write(&writer, &refusal).await.is_err() {
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

impl Stdio {
    /// Counts a request in, if there is room; a request that is cancelled has no answer to wait for.
    fn admit(&self, message: &RxJsonRpcMessage<RoleServer>) -> Result<(), Box<TxJsonRpcMessage<RoleServer>>> {
        let mut open = lock(&self.open);
        match message {
            JsonRpcMessage::Request(request) => {
                if open.len() >= MAX_REQUESTS && !open.contains(&request.id) {
                    return Err(Box::new(message::too_many(MAX_REQUESTS, request.id.clone())));
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

fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Transport<RoleServer> for Stdio {
    type Error = io::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let (output, open) = (Arc::clone(&self.output), Arc::clone(&self.open));
        async move {
            let written = write(&output, &message).await;
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
                // Waits while too many wait already; dropped here, the refusal stays where it is.
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
                Ok(Read::Line) => {
                    let line = message::read(&self.line);
                    self.line.clear();
                    self.line.shrink_to(KEPT);
                    match line {
                        Line::Message(message) => {
                            self.begun |= matches!(*message, JsonRpcMessage::Request(_));
                            if !self.begun {
                                tracing::warn!("ignored a message before the first request");
                                continue;
                            }
                            match self.admit(&message) {
                                Ok(()) => return Some(*message),
                                Err(refusal) => *refusal,
                            }
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
            self.refused = Some(refusal);
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
