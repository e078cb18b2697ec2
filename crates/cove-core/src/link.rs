//! The host's end of the stream to a runner. The runner may be hostile: the codec bounds its messages, and an answer
//! without a request ends the link.
//!
//! Tasks: one task writes the frames of the `outgoing` queue to the stream. Another, `dispatch_messages`, reads the
//! stream and sends each message to its receiver: messages of the running cell to `CellMessages`, answers to the caller
//! that asked, `Taken` to the reply window. If the session does not read `CellMessages`, that queue fills up, the task
//! stops reading, and the runner has to wait; answers wait with it.
//!
//! Requests: `Link::ask` puts a oneshot sender into `PendingRequests` before it sends the request, so the answer cannot
//! arrive earlier. `dispatch_messages` removes the sender and sends it the answer. A caller that stops waiting leaves
//! its sender there until the runner answers, so that the answer is not taken for a forged one; until then it counts
//! against `MAX_REQUESTS`.
//!
//! Reply window: `ReplySender::send` takes one permit per byte of a long reply, then a slot in the queue. From then on
//! it does not wait any more: it forgets the permits, enters the reply in `unacknowledged` and queues the frame.
//! `dispatch_messages` removes the entry when the runner sends `Taken`, and adds the permits back. If the future is
//! dropped while it waits, the permits return by themselves and nothing is sent.
//!
//! Streams: `dispatch_messages` passes the runner's messages about streams to the `StreamTable`, which never waits, and
//! announces each new stream to `CellMessages`. The writing task sends frames of streams only while `outgoing` is empty,
//! so that a download delays no other message by more than one frame. `Done` ends the streams of its cell.
//!
//! The end: only the reading task knows why the link ended. First it sets `PendingRequests::closed` and drops all
//! waiting senders, so that every open request and every later one fails with `LinkError::Closed`. Then it sends the
//! error to `CellMessages` as the last message. The writing task ends silently on an error, because the reading task
//! sees the end of the stream too.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use cove_protocol::limits::{FREE_REPLY, REPLY_WINDOW};
use cove_protocol::{
    CallId, DecodeError, FrameDecoder, FromRunner, HostHello, InterpreterPath, RequestId, RunnerReady, StreamId,
    ToRunner, VERSION, encode,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf};
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::backend::ByteStream;
use crate::error::display_value;
use crate::guest_streams::{GuestStream, SessionNetwork, SessionTraffic, StreamBreach, StreamTable};
use crate::sync::lock;

/// Messages in each queue. The protocol allows few outstanding messages; if a queue is full, its sender waits.
const QUEUE_LENGTH: usize = 16;
/// Requests that may be open at once.
const MAX_REQUESTS: usize = 64;

pub type RunnerMessage = (FromRunner, Vec<u8>);

/// Sends messages and requests to the runner.
pub struct Link {
    outgoing: mpsc::Sender<Vec<u8>>,
    pending: Arc<Mutex<PendingRequests>>,
    window: Arc<ReplyWindow>,
    streams: Arc<StreamTable>,
}

/// Room in the queue for one message.
pub type SendPermit<'a> = mpsc::Permit<'a, Vec<u8>>;

/// Sends replies to calls. Each task that answers a call has its own clone.
#[derive(Clone)]
pub struct ReplySender {
    outgoing: mpsc::Sender<Vec<u8>>,
    window: Arc<ReplyWindow>,
}

/// Limits the bytes of long replies that the runner has not taken yet.
struct ReplyWindow {
    /// One permit for each free byte.
    permits: Semaphore,
    /// The lengths of the long replies that were sent and not taken yet.
    unacknowledged: Mutex<BTreeMap<CallId, usize>>,
}

/// The runner's messages about the running cell. The last one is the error that ended the link.
pub struct CellMessages(mpsc::Receiver<Result<RunnerMessage, LinkError>>);

#[derive(Default)]
struct PendingRequests {
    next_id: u64,
    waiting: BTreeMap<RequestId, oneshot::Sender<RunnerMessage>>,
    /// Set by `dispatch_messages` when the link ends; `Link::ask` refuses requests from then on.
    closed: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The stream ended where it may end.
    #[error("the runner closed the stream")]
    Closed,
    #[error("the stream to the runner broke")]
    Io(#[from] std::io::Error),
    #[error("the runner sent what it may not")]
    Decode(#[from] DecodeError),
    #[error("the runner does not follow the protocol: {0}")]
    Protocol(&'static str),
    #[error("the runner could not go on: {0}")]
    Fault(String),
    /// The session has no certificates: they did not fit, or `/tmp` cannot be written.
    #[error("{message}")]
    NoCertificates { bytes: u64, message: String },
    #[error("could not encode a message")]
    Encode(#[from] cove_protocol::EncodeError),
    #[error("too many requests are open")]
    Busy,
}

impl From<StreamBreach> for LinkError {
    fn from(StreamBreach(what): StreamBreach) -> Self {
        Self::Protocol(what)
    }
}

impl Link {
    /// Sends `Hello`, waits for `Ready` and starts the tasks of the link. Fails if the stream ends, or if the runner
    /// has another version, reports a fault or names an interpreter that was not offered.
    pub async fn open(
        stream: Box<dyn ByteStream>,
        hello: HostHello,
        session_network: Option<SessionNetwork>,
    ) -> Result<(Self, CellMessages, RunnerReady), LinkError> {
        let (read, mut write) = tokio::io::split(stream);
        let (outgoing, mut queue) = mpsc::channel::<Vec<u8>>(QUEUE_LENGTH);
        // Writing has its own task, so that the host goes on reading while the runner does not read.
        let streams = Arc::new(StreamTable::new(session_network));
        let outgoing_streams = Arc::clone(&streams);
        tokio::spawn(async move {
            loop {
                let bytes = tokio::select! {
                    // A download must not delay an interrupt.
                    biased;
                    bytes = queue.recv() => bytes,
                    (message, payload) = outgoing_streams.next_frame() => encode_frame(&message, &payload).ok(),
                };
                let Some(bytes) = bytes else { break };
                // The reading task sees the end of the stream too, and reports it.
                if write.write_all(&bytes).await.is_err() {
                    break;
                }
            }
        });
        let window = ReplyWindow { permits: Semaphore::new(REPLY_WINDOW), unacknowledged: Mutex::default() };
        let link = Self { outgoing, pending: Arc::default(), window: Arc::new(window), streams };
        let mut reader = MessageReader { read, decoder: FrameDecoder::default(), buffer: vec![0; 128 * 1024] };
        let (offered, network) = (hello.interpreters.clone(), hello.network.clone());
        link.send(&ToRunner::Hello(hello), &[]).await?;
        let ready = match reader.receive().await? {
            (FromRunner::Ready(ready), _) if ready.version == VERSION => {
                check_interpreters(&ready.interpreters, &offered)?;
                let has_names = network.as_ref().is_some_and(|network| !network.names.is_empty());
                if network.is_some() != ready.proxy_port.is_some() || ready.name_door && !has_names {
                    return Err(LinkError::Protocol(
                        "it opened no door to the network, or one that it was not asked for",
                    ));
                }
                if ready.proxy_port.is_some() {
                    link.streams.allow_proxy_door();
                }
                if ready.name_door {
                    link.streams.allow_name_door();
                }
                ready
            }
            (FromRunner::Ready(_), _) => return Err(LinkError::Protocol("it speaks another version")),
            (FromRunner::NoCertificates { bytes, message }, _) => {
                return Err(LinkError::NoCertificates { bytes, message: display_value(&message) });
            }
            (FromRunner::Fault { message }, _) => return Err(LinkError::Fault(display_value(&message))),
            _ => return Err(LinkError::Protocol("it did not answer hello")),
        };
        let (cell, messages) = mpsc::channel(QUEUE_LENGTH);
        let (pending, window, streams) = (&link.pending, &link.window, &link.streams);
        let shared = (Arc::clone(pending), Arc::clone(window), Arc::clone(streams));
        tokio::spawn(dispatch_messages(reader, cell, shared.0, shared.1, shared.2));
        Ok((link, CellMessages(messages), ready))
    }

    /// Queues a message, and waits for room if the queue is full. Fails if the link has ended or the message is too
    /// long.
    pub async fn send(&self, message: &ToRunner, payload: &[u8]) -> Result<(), LinkError> {
        self.outgoing.send(encode_frame(message, payload)?).await.map_err(|_| LinkError::Closed)
    }

    /// Waits for room in the queue and returns it. For callers that wait for other events at the same time. Fails if
    /// the link has ended.
    pub async fn reserve(&self) -> Result<SendPermit<'_>, LinkError> {
        self.outgoing.reserve().await.map_err(|_| LinkError::Closed)
    }

    /// Returns a stream that the runner has opened. None if it has ended meanwhile. Call it once for each stream.
    pub fn take_stream(&self, stream: StreamId) -> Option<GuestStream> {
        self.streams.take(stream)
    }

    /// What all streams of the session have moved.
    pub fn traffic(&self) -> &SessionTraffic {
        self.streams.traffic()
    }

    pub fn reply_sender(&self) -> ReplySender {
        ReplySender { outgoing: self.outgoing.clone(), window: Arc::clone(&self.window) }
    }

    /// Sends a request and returns the runner's answer. `question` gets the id that the answer will carry. Fails if the
    /// link ends or too many requests are open.
    pub async fn ask(
        &self,
        question: impl FnOnce(RequestId) -> ToRunner,
        payload: &[u8],
    ) -> Result<RunnerMessage, LinkError> {
        let (answer, answered) = oneshot::channel();
        let id = {
            let mut pending = lock(&self.pending);
            if pending.closed {
                return Err(LinkError::Closed);
            }
            if pending.waiting.len() >= MAX_REQUESTS {
                return Err(LinkError::Busy);
            }
            pending.next_id += 1;
            let id = RequestId(pending.next_id);
            pending.waiting.insert(id, answer);
            id
        };
        if let Err(error) = self.send(&question(id), payload).await {
            lock(&self.pending).waiting.remove(&id);
            return Err(error);
        }
        answered.await.map_err(|_| LinkError::Closed)
    }
}

impl ReplySender {
    /// Sends a reply as soon as there is room for it. If the future is dropped before it completes, nothing is sent.
    /// `sending` is called when the reply is certain to be queued, but before the runner can see it. Fails if the link
    /// has ended.
    pub async fn send(&self, call: CallId, object: &[u8], sending: impl FnOnce()) -> Result<(), LinkError> {
        let long = object.len() > FREE_REPLY;
        let room = match u32::try_from(object.len()) {
            Ok(length) if long => Some(self.window.permits.acquire_many(length).await.map_err(|_| LinkError::Closed)?),
            _ => None,
        };
        let bytes = encode_frame(&ToRunner::Reply { call }, object)?;
        let place = self.outgoing.reserve().await.map_err(|_| LinkError::Closed)?;
        if let Some(room) = room {
            // `release` adds the permits back when the runner sends `Taken`.
            room.forget();
            lock(&self.window.unacknowledged).insert(call, object.len());
        }
        sending();
        place.send(bytes);
        Ok(())
    }
}

impl ReplyWindow {
    /// Frees the room of a reply that the runner has taken. Fails if no such reply was sent.
    fn release(&self, call: CallId) -> Result<(), LinkError> {
        let length = lock(&self.unacknowledged).remove(&call);
        self.permits.add_permits(length.ok_or(LinkError::Protocol("it acknowledged a reply that was not sent"))?);
        Ok(())
    }
}

/// Fails unless every interpreter was offered and no language occurs twice. A path that the guest made up must not
/// become a command on the host.
fn check_interpreters(taken: &[InterpreterPath], offered: &[InterpreterPath]) -> Result<(), LinkError> {
    let mut languages = BTreeSet::new();
    if taken.iter().all(|one| offered.contains(one) && languages.insert(one.language)) {
        Ok(())
    } else {
        Err(LinkError::Protocol("it took interpreters that were not offered"))
    }
}

/// Returns the bytes of a message with its payload. Fails if it is too long.
pub fn encode_frame(message: &ToRunner, payload: &[u8]) -> Result<Vec<u8>, LinkError> {
    let mut bytes = Vec::new();
    encode(message, payload, &mut bytes)?;
    Ok(bytes)
}

impl CellMessages {
    /// Returns the next message, or the error that ended the link. Cancel-safe: dropping the future loses no message.
    pub async fn next(&mut self) -> Result<RunnerMessage, LinkError> {
        self.0.recv().await.unwrap_or(Err(LinkError::Closed))
    }
}

struct MessageReader {
    read: ReadHalf<Box<dyn ByteStream>>,
    decoder: FrameDecoder,
    buffer: Vec<u8>,
}

impl MessageReader {
    /// Returns the next message. Fails with `Closed` if the stream ends between two messages.
    async fn receive(&mut self) -> Result<RunnerMessage, LinkError> {
        loop {
            if let Some(message) = self.decoder.next()? {
                return Ok(message);
            }
            let count = self.read.read(&mut self.buffer).await?;
            if count == 0 {
                self.decoder.finish()?;
                return Err(LinkError::Closed);
            }
            self.decoder.push(&self.buffer[..count]);
        }
    }
}

/// Sends each message to its receiver until the link ends, then reports why: see the top of this file.
async fn dispatch_messages(
    mut reader: MessageReader,
    cell: mpsc::Sender<Result<RunnerMessage, LinkError>>,
    pending: Arc<Mutex<PendingRequests>>,
    window: Arc<ReplyWindow>,
    streams: Arc<StreamTable>,
) {
    let error = loop {
        let message = match reader.receive().await {
            Ok(message) => message,
            Err(error) => break error,
        };
        match &message.0 {
            FromRunner::Answer { request }
            | FromRunner::Stored { request, .. }
            | FromRunner::File { request }
            | FromRunner::Listing { request, .. }
            | FromRunner::Refused { request, .. } => {
                let Some(answer) = lock(&pending).waiting.remove(request) else {
                    break LinkError::Protocol("it answered a request that was not made");
                };
                // The caller may have stopped waiting.
                let _ = answer.send(message);
            }
            FromRunner::Taken { call } => {
                if let Err(error) = window.release(*call) {
                    break error;
                }
            }
            FromRunner::StreamData { .. }
            | FromRunner::StreamCredit { .. }
            | FromRunner::EndStream { .. }
            | FromRunner::ResetStream { .. } => {
                if let Err(breach) = streams.handle(&message.0, &message.1) {
                    break breach.into();
                }
            }
            FromRunner::OpenStream { stream, door, .. } => match streams.open(*stream, door) {
                Ok(true) if cell.send(Ok(message)).await.is_err() => return,
                Ok(_) => {}
                Err(breach) => break breach.into(),
            },
            FromRunner::Done { .. } => {
                streams.clear();
                if cell.send(Ok(message)).await.is_err() {
                    return;
                }
            }
            FromRunner::UnknownName { .. } | FromRunner::MoreUnknownNames { .. } if !streams.has_name_door() => {
                break LinkError::Protocol("it reported a name without a door for names");
            }
            FromRunner::NoCertificates { .. } => {
                break LinkError::Protocol("it reported missing certificates after its start");
            }
            FromRunner::Fault { message } => break LinkError::Fault(display_value(message)),
            FromRunner::Output { .. }
            | FromRunner::Image { .. }
            | FromRunner::NeedInput {}
            | FromRunner::MemoryKill { .. }
            | FromRunner::Call { .. }
            | FromRunner::Forget { .. }
            | FromRunner::UnknownName { .. }
            | FromRunner::MoreUnknownNames { .. }
            | FromRunner::Ready(_)
            | FromRunner::Pong { .. } => {
                if cell.send(Ok(message)).await.is_err() {
                    return;
                }
            }
        }
    };
    streams.clear();
    {
        let mut pending = lock(&pending);
        pending.closed = true;
        pending.waiting.clear();
    }
    let _ = cell.send(Err(error)).await;
}
