//! MCP on standard input and output, one message per line. Cove has its own transport because a line that is too long
//! must be refused with its request id, and because the end of input must be known at once.
//!
//! rmcp polls `receive` and may drop its future at any await, so all partial state lives in [`StdioTransport`].
//! `receive` stores refusals in `refused`, reserves the place in the `refusals` channel, and only then moves the first
//! of them there. A task writes it, with the output lock that `send` uses, and then drops `written`, for which
//! `receive` waits before it reads on: a refusal comes before the answer to the next line. `ended` is cancelled at the end
//! of input, or if a refusal cannot be written; `serve_stdio` waits for it.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::sync::Arc;

use rmcp::RoleServer;
use rmcp::model::{
    ClientNotification, ClientRequest, GetMeta, JsonRpcError, JsonRpcMessage, JsonRpcResponse, ProtocolVersion,
    RequestId,
};
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::{StdioReader, StdioWriter, Transport, stdio_pipes};
use serde::Serialize;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::sync::Mutex;
use tokio::sync::mpsc::{Sender, channel};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::MAX_MESSAGE;
use super::client_line::{self, ClientLine, ErrorAnswer};
use super::request_scan::RequestScan;
use cove_core::sync::lock;

/// Most requests in flight. A client that sends more and reads nothing must not make the server grow.
const MAX_REQUESTS: usize = 1024;
/// Most bytes of buffer that are kept between lines.
const MAX_KEPT_BUFFER: usize = 256 * 1024;

/// The stdio transport for rmcp.
pub(super) struct StdioTransport {
    input: BufReader<StdioReader>,
    output: Arc<Mutex<StdioWriter>>,
    open: Arc<std::sync::Mutex<OpenRequests>>,
    /// Refusals on their way to the task that writes them. The reading future cannot write them itself: rmcp may drop
    /// it at any await, and the refusal would be lost.
    refusals: Sender<(ErrorAnswer, DropGuard)>,
    refused: VecDeque<ErrorAnswer>,
    /// The refusal on its way, if there is one. Cancelled when it is written.
    written: Option<CancellationToken>,
    line: Vec<u8>,
    /// A line that is too long: its length so far, and the search for its id.
    skipped: Option<(u64, RequestScan)>,
    /// True once a request began the connection. rmcp gives up on a client that sends anything but requests before.
    has_begun: bool,
    ended: CancellationToken,
}

/// The requests of the client that are under way.
#[derive(Default)]
struct OpenRequests {
    /// Ids of requests that have no answer yet. rmcp would answer only one of two requests with the same id.
    ids: HashSet<RequestId>,
    /// Number of requests whose answers were not written yet.
    unwritten: usize,
}

enum LineRead {
    Line,
    TooLarge(u64, RequestScan),
    End,
}

impl StdioTransport {
    /// `ended` is cancelled when there is no more input.
    pub(super) fn new(ended: CancellationToken) -> Self {
        let (input, output) = stdio_pipes();
        let output = Arc::new(Mutex::new(output));
        let (refusals, mut to_write) = channel::<(ErrorAnswer, DropGuard)>(1);
        let (writer, broken) = (Arc::clone(&output), ended.clone());
        tokio::spawn(async move {
            while let Some((refusal, _written)) = to_write.recv().await {
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
            refused: VecDeque::new(),
            written: None,
            line: Vec::new(),
            skipped: None,
            has_begun: false,
            ended,
        }
    }

    /// Reads until the end of a line. May be dropped at any await: the bytes read so far stay in `self`.
    async fn read_line(&mut self) -> io::Result<LineRead> {
        loop {
            let available = self.input.fill_buf().await?;
            if available.is_empty() {
                // The last line may have no end, as from `printf`.
                return Ok(match self.skipped.take() {
                    Some((size, scan)) => LineRead::TooLarge(size, scan),
                    None if self.line.is_empty() => LineRead::End,
                    None => LineRead::Line,
                });
            }
            let end = available.iter().position(|byte| *byte == b'\n');
            let piece = &available[..end.unwrap_or(available.len())];
            let taken = end.map_or(available.len(), |at| at + 1);
            match &mut self.skipped {
                Some((size, scan)) => {
                    *size += piece.len() as u64;
                    scan.push(piece);
                }
                None if self.line.len() + piece.len() > MAX_MESSAGE => {
                    let mut scan = RequestScan::default();
                    scan.push(&self.line);
                    scan.push(piece);
                    self.skipped = Some(((self.line.len() + piece.len()) as u64, scan));
                    self.line = Vec::new();
                }
                None => self.line.extend_from_slice(piece),
            }
            self.input.consume(taken);
            if end.is_some() {
                return Ok(match self.skipped.take() {
                    Some((size, scan)) => LineRead::TooLarge(size, scan),
                    None => LineRead::Line,
                });
            }
        }
    }

    /// Counts a request as in flight, or returns a refusal if there are too many, or one with its id. A cancelled request
    /// gets no answer, so it no longer counts.
    fn admit(&self, message: &RxJsonRpcMessage<RoleServer>) -> Result<(), Box<ErrorAnswer>> {
        let mut open = lock(&self.open);
        match message {
            JsonRpcMessage::Request(request) => {
                if open.unwritten >= MAX_REQUESTS {
                    return Err(Box::new(client_line::too_many_requests_error(MAX_REQUESTS, &request.id)));
                }
                if !open.ids.insert(request.id.clone()) {
                    return Err(Box::new(client_line::repeated_id_error(&request.id)));
                }
                open.unwritten += 1;
            }
            JsonRpcMessage::Notification(notification) => {
                if let ClientNotification::CancelledNotification(cancelled) = &notification.notification
                    && let Some(id) = &cancelled.params.request_id
                    && open.ids.remove(id)
                {
                    open.unwritten -= 1;
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
            let is_answer = match &message {
                JsonRpcMessage::Response(JsonRpcResponse { id, .. })
                | JsonRpcMessage::Error(JsonRpcError { id: Some(id), .. }) => lock(&open).ids.remove(id),
                _ => false,
            };
            // The id is free before the client can read the answer and use it again.
            let written = write_message(&output, &message).await;
            if is_answer {
                lock(&open).unwritten -= 1;
            }
            written
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        loop {
            if let Some(written) = &self.written {
                written.cancelled().await;
                self.written = None;
            }
            if !self.refused.is_empty() {
                // Waits while the channel is full. If this future is dropped, the refusal stays in `refused`.
                let Ok(place) = self.refusals.reserve().await else {
                    self.ended.cancel();
                    return None;
                };
                if let Some(refusal) = self.refused.pop_front() {
                    let written = CancellationToken::new();
                    place.send((refusal, written.clone().drop_guard()));
                    self.written = Some(written);
                }
                continue;
            }
            let line = match self.read_line().await {
                Ok(LineRead::Line) => {
                    let line = client_line::parse_line(&self.line);
                    self.line.clear();
                    self.line.shrink_to(MAX_KEPT_BUFFER);
                    line
                }
                Ok(LineRead::TooLarge(size, scan)) => {
                    tracing::warn!(size, "refused a message that is too large");
                    client_line::refuse_too_large(size, MAX_MESSAGE, scan)
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
            match line {
                ClientLine::Message(message) => {
                    self.has_begun |= begins_connection(&message);
                    if !self.has_begun && !matches!(*message, JsonRpcMessage::Request(_)) {
                        tracing::warn!("ignored a message before the first request");
                        continue;
                    }
                    match self.admit(&message) {
                        Ok(()) => return Some(*message),
                        Err(refusal) => self.refused.push_back(*refusal),
                    }
                }
                ClientLine::Blank => {}
                ClientLine::Ignored(what) => tracing::warn!("ignored {what} on standard input"),
                ClientLine::Refused(answers) => self.refused.extend(answers),
            }
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        self.output.lock().await.flush().await
    }
}

/// Returns true if rmcp leaves its wait for the first request with this message: with a handshake, or with a request of
/// the era without one. It answers others, such as `ping`, and waits on.
fn begins_connection(message: &RxJsonRpcMessage<RoleServer>) -> bool {
    let JsonRpcMessage::Request(request) = message else { return false };
    match &request.request {
        ClientRequest::InitializeRequest(_) => true,
        ClientRequest::PingRequest(_) | ClientRequest::DiscoverRequest(_) => false,
        other => {
            let meta = other.get_meta();
            let is_known = |version: &ProtocolVersion| ProtocolVersion::KNOWN_VERSIONS.contains(version);
            meta.missing_required_keys(&ProtocolVersion::V_2026_07_28).is_empty()
                && meta.protocol_version().as_ref().is_some_and(is_known)
        }
    }
}

async fn write_message(output: &Mutex<StdioWriter>, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    let mut output = output.lock().await;
    output.write_all(&line).await?;
    output.flush().await
}
