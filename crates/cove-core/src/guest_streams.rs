//! Streams between code in a sandbox and the host: each is one connection that the runner's door has accepted.
//!
//! Three parties share `StreamTable`. The link's reading task passes it the runner's messages and never waits here, so a
//! stream that no task reads cannot delay the others: the runner may send only what it has credit for, and a runner that
//! sends more has broken the protocol. The link's writing task takes frames from `next_frame`, one of each stream in
//! turn, and only while no other message waits. The task that serves a stream holds its `GuestStream`, which reads
//! `incoming` and fills `outgoing`; each is at most one window long.
//!
//! An entry is in the table from `open` until both directions have ended, the runner or the host has reset the stream, or
//! `clear` ends all streams of a cell. From then on its `GuestStream` fails, and messages about it are dropped, because
//! they may have crossed its end on the wire. Dropping a `GuestStream` before both directions have ended resets the
//! stream, after the bytes that were written before `shutdown`.
//!
//! A stream counts against `MAX_STREAMS` until its entry and its `GuestStream` are both gone: its place is a permit that
//! the two share. So code that resets its streams cannot have more of them served at once than it may have open. The
//! entry also holds the sender of `end`, which never sends: the end of the entry drops it, and that wakes the task that
//! serves the stream, whatever it waits for.

mod session_network;
mod session_traffic;

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use bytes::{Buf, BytesMut};
use cove_protocol::limits::{CHUNK, MAX_STREAMS, STREAM_WINDOW};
use cove_protocol::{FromRunner, StreamDoor, StreamId, ToRunner};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};

use crate::sync::lock;

pub use session_network::{SessionNetwork, SessionNetworks};
pub use session_traffic::SessionTraffic;

/// The payload of one frame: short enough that a frame of another stream need not wait long.
const PIECE: usize = 32 * 1024;
const _: () = assert!(PIECE <= CHUNK);

/// How the runner broke the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamBreach(pub(crate) &'static str);

/// All streams of one link.
pub struct StreamTable {
    state: Mutex<StreamTableState>,
    /// A permit for each stream that may still begin.
    places: Arc<Semaphore>,
    has_frames: Notify,
    traffic: Arc<SessionTraffic>,
    network: Option<Arc<SessionNetwork>>,
}

#[derive(Default)]
struct StreamTableState {
    has_proxy_door: bool,
    has_name_door: bool,
    streams: BTreeMap<StreamId, StreamState>,
    /// Streams that have something to send, in the order of their turns.
    turns: VecDeque<StreamId>,
    /// Streams that were reset before they had an entry.
    refused: VecDeque<StreamId>,
    last_opened: StreamId,
}

struct StreamState {
    door: StreamDoor,
    place: Arc<OwnedSemaphorePermit>,
    /// Only dropped: see the top of this file. None until the stream is taken.
    end: Option<oneshot::Sender<Infallible>>,
    incoming: BytesMut,
    /// How many bytes the runner may send.
    receive_credit: usize,
    /// Bytes that were read here, for which the runner has no new credit yet.
    consumed: usize,
    runner_has_ended: bool,
    outgoing: BytesMut,
    /// How many bytes may be added to `outgoing`.
    send_credit: usize,
    host_end: HostEnd,
    /// The `GuestStream` is gone.
    is_abandoned: bool,
    has_turn: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// Whether the host has ended its direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HostEnd {
    Open,
    /// `EndStream` follows the bytes in `outgoing`.
    Wanted,
    Sent,
}

impl StreamState {
    fn new(door: StreamDoor, place: OwnedSemaphorePermit) -> Self {
        Self {
            door,
            place: Arc::new(place),
            end: None,
            incoming: BytesMut::new(),
            receive_credit: STREAM_WINDOW,
            consumed: 0,
            runner_has_ended: false,
            outgoing: BytesMut::new(),
            send_credit: STREAM_WINDOW,
            host_end: HostEnd::Open,
            is_abandoned: false,
            has_turn: false,
            reader: None,
            writer: None,
        }
    }

    fn owes_credit(&self) -> bool {
        self.consumed >= STREAM_WINDOW / 2 && !self.runner_has_ended
    }

    fn has_frames(&self) -> bool {
        let must_reset = self.is_abandoned && !self.is_over();
        self.owes_credit() || !self.outgoing.is_empty() || self.host_end == HostEnd::Wanted || must_reset
    }

    /// True if both directions have ended, so that the runner has forgotten the stream.
    fn is_over(&self) -> bool {
        self.runner_has_ended && self.host_end == HostEnd::Sent
    }

    fn wake(&mut self) {
        self.reader.take().into_iter().chain(self.writer.take()).for_each(Waker::wake);
    }
}

impl StreamTable {
    /// The table of a session with this network.
    pub(crate) fn new(network: Option<SessionNetwork>) -> Self {
        Self {
            state: Mutex::default(),
            places: Arc::new(Semaphore::new(MAX_STREAMS)),
            has_frames: Notify::new(),
            traffic: Arc::default(),
            network: network.map(Arc::new),
        }
    }

    /// The runner has opened the proxy door. No stream may come through it before.
    pub(crate) fn allow_proxy_door(&self) {
        lock(&self.state).has_proxy_door = true;
    }

    /// The runner has opened the name door.
    pub(crate) fn allow_name_door(&self) {
        lock(&self.state).has_name_door = true;
    }

    pub(crate) fn has_name_door(&self) -> bool {
        lock(&self.state).has_name_door
    }

    pub(crate) fn traffic(&self) -> &SessionTraffic {
        &self.traffic
    }

    /// The runner has opened a stream. Returns false if it is refused because too many are open. Fails if the runner may
    /// not open it.
    pub(crate) fn open(&self, id: StreamId, door: &StreamDoor) -> Result<bool, StreamBreach> {
        let mut state = lock(&self.state);
        let has_door = match door {
            StreamDoor::Proxy {} => state.has_proxy_door,
            StreamDoor::Name { .. } => state.has_name_door,
        };
        if !has_door || id <= state.last_opened {
            return Err(StreamBreach("it opened a stream out of turn"));
        }
        if !door.is_well_formed() {
            return Err(StreamBreach("it opened a stream to a name that is none"));
        }
        state.last_opened = id;
        if let Ok(place) = Arc::clone(&self.places).try_acquire_owned() {
            state.streams.insert(id, StreamState::new(door.clone(), place));
            return Ok(true);
        }
        if state.refused.len() >= MAX_STREAMS {
            return Err(StreamBreach("it opens more streams than it may"));
        }
        state.refused.push_back(id);
        self.has_frames.notify_one();
        Ok(false)
    }

    /// Returns the stream, for the task that serves it. None if it has ended meanwhile. Call it once for each stream.
    pub(crate) fn take(self: &Arc<Self>, id: StreamId) -> Option<GuestStream> {
        let mut state = lock(&self.state);
        let stream = state.streams.get_mut(&id)?;
        let (end, ended) = oneshot::channel();
        stream.end = Some(end);
        let (door, place) = (stream.door.clone(), Arc::clone(&stream.place));
        Some(GuestStream { id, door, table: Arc::clone(self), ended: Some(ended), _place: place })
    }

    /// Takes a message about a stream that was opened before. Fails if the runner may not send it.
    pub(crate) fn handle(&self, message: &FromRunner, payload: &[u8]) -> Result<(), StreamBreach> {
        match message {
            FromRunner::StreamData { stream } => self.receive(*stream, payload),
            FromRunner::StreamCredit { stream, bytes } => self.add_credit(*stream, *bytes),
            FromRunner::EndStream { stream } => self.end(*stream),
            FromRunner::ResetStream { stream } => self.reset(*stream),
            _ => Ok(()),
        }
    }

    /// The runner has sent bytes of a stream. Fails if it may not.
    fn receive(&self, id: StreamId, bytes: &[u8]) -> Result<(), StreamBreach> {
        self.with_entry(id, |stream| {
            if bytes.is_empty() || bytes.len() > stream.receive_credit || stream.runner_has_ended {
                return Err(StreamBreach("it sent more of a stream than it may"));
            }
            stream.receive_credit -= bytes.len();
            if !stream.is_abandoned {
                stream.incoming.extend_from_slice(bytes);
            }
            stream.reader.take().into_iter().for_each(Waker::wake);
            Ok(())
        })
    }

    /// The runner has passed on bytes of a stream. Fails if it was not sent so many.
    fn add_credit(&self, id: StreamId, bytes: u32) -> Result<(), StreamBreach> {
        self.with_entry(id, |stream| {
            let credit = stream.send_credit.saturating_add(bytes as usize);
            if bytes == 0 || credit.saturating_add(stream.outgoing.len()) > STREAM_WINDOW {
                return Err(StreamBreach("it passed on more of a stream than it was sent"));
            }
            stream.send_credit = credit;
            stream.writer.take().into_iter().for_each(Waker::wake);
            Ok(())
        })
    }

    /// The runner sends no more on a stream. Fails if it said so before.
    fn end(&self, id: StreamId) -> Result<(), StreamBreach> {
        self.with_entry(id, |stream| {
            if stream.runner_has_ended {
                return Err(StreamBreach("it ended a stream twice"));
            }
            stream.runner_has_ended = true;
            stream.reader.take().into_iter().for_each(Waker::wake);
            Ok(())
        })?;
        lock(&self.state).remove_if_over(id);
        Ok(())
    }

    /// The runner has reset a stream. Fails if there never was such a stream.
    fn reset(&self, id: StreamId) -> Result<(), StreamBreach> {
        self.with_entry(id, |_| Ok(()))?;
        let mut state = lock(&self.state);
        // It needs no reset from here any more. One that waited on would count as another stream that is open.
        state.refused.retain(|refused| *refused != id);
        state.streams.remove(&id).iter_mut().for_each(StreamState::wake);
        Ok(())
    }

    /// Ends all streams, because their cell or the link has ended.
    pub(crate) fn clear(&self) {
        let mut state = lock(&self.state);
        state.turns.clear();
        state.refused.clear();
        std::mem::take(&mut state.streams).into_values().for_each(|mut stream| stream.wake());
    }

    /// Returns the next message and its payload. Cancel-safe.
    pub(crate) async fn next_frame(&self) -> (ToRunner, BytesMut) {
        loop {
            if let Some(frame) = lock(&self.state).next_frame() {
                return frame;
            }
            self.has_frames.notified().await;
        }
    }

    /// Calls a function with the entry of a stream, unless that has ended. Fails if there never was such a stream.
    fn with_entry(
        &self,
        id: StreamId,
        act: impl FnOnce(&mut StreamState) -> Result<(), StreamBreach>,
    ) -> Result<(), StreamBreach> {
        let mut state = lock(&self.state);
        if id > state.last_opened {
            return Err(StreamBreach("it named a stream that it never opened"));
        }
        state.streams.get_mut(&id).map_or(Ok(()), act)
    }
}

impl StreamTableState {
    /// Gives a stream its turn if it has something to send. Returns whether the writing task must be woken.
    fn schedule(&mut self, id: StreamId) -> bool {
        let Some(stream) = self.streams.get_mut(&id) else { return false };
        if stream.has_turn || !stream.has_frames() {
            return false;
        }
        stream.has_turn = true;
        self.turns.push_back(id);
        true
    }

    fn next_frame(&mut self) -> Option<(ToRunner, BytesMut)> {
        if let Some(stream) = self.refused.pop_front() {
            return Some((ToRunner::ResetStream { stream }, BytesMut::new()));
        }
        loop {
            let id = self.turns.pop_front()?;
            let Some(stream) = self.streams.get_mut(&id) else { continue };
            stream.has_turn = false;
            let frame = stream.next_frame(id);
            if matches!(frame, Some((ToRunner::ResetStream { .. }, _))) {
                self.streams.remove(&id);
            } else {
                self.remove_if_over(id);
                self.schedule(id);
            }
            if frame.is_some() {
                return frame;
            }
        }
    }

    /// Removes a stream whose both directions have ended and which nothing reads any more.
    fn remove_if_over(&mut self, id: StreamId) {
        if self.streams.get(&id).is_some_and(|stream| stream.is_over() && stream.is_abandoned) {
            self.streams.remove(&id);
        }
    }
}

impl StreamState {
    fn next_frame(&mut self, id: StreamId) -> Option<(ToRunner, BytesMut)> {
        let stream = id;
        if self.owes_credit() {
            let bytes = std::mem::take(&mut self.consumed);
            self.receive_credit += bytes;
            return Some((ToRunner::StreamCredit { stream, bytes: bytes as u32 }, BytesMut::new()));
        }
        if !self.outgoing.is_empty() {
            let piece = self.outgoing.split_to(self.outgoing.len().min(PIECE));
            return Some((ToRunner::StreamData { stream }, piece));
        }
        if self.host_end == HostEnd::Wanted {
            self.host_end = HostEnd::Sent;
            return Some((ToRunner::EndStream { stream }, BytesMut::new()));
        }
        (self.is_abandoned && !self.is_over()).then(|| (ToRunner::ResetStream { stream }, BytesMut::new()))
    }
}

/// One stream, as a connection that its code has opened. Dropping it resets the stream unless both directions have
/// ended.
pub struct GuestStream {
    id: StreamId,
    door: StreamDoor,
    table: Arc<StreamTable>,
    ended: Option<oneshot::Receiver<Infallible>>,
    _place: Arc<OwnedSemaphorePermit>,
}

impl GuestStream {
    /// Returns a future that is ready once code or its runner has given the stream up, or the cell has ended. Call it once.
    pub fn take_end(&mut self) -> impl Future<Output = ()> + Send + use<> {
        let ended = self.ended.take();
        async move {
            match ended {
                Some(ended) => drop(ended.await),
                None => std::future::pending().await,
            }
        }
    }

    pub fn id(&self) -> StreamId {
        self.id
    }

    /// Through which door the code came. The name in it is well-formed, and the guest's own claim.
    pub fn door(&self) -> &StreamDoor {
        &self.door
    }

    /// What all streams of the session have moved.
    pub fn traffic(&self) -> &Arc<SessionTraffic> {
        &self.table.traffic
    }

    /// What was made for the session when its sandbox started.
    pub fn network(&self) -> Option<&Arc<SessionNetwork>> {
        self.table.network.as_ref()
    }

    /// Calls a function with the entry, and gives the stream its turn afterwards. Fails if the stream has ended.
    fn act<T>(&self, act: impl FnOnce(&mut StreamState) -> T) -> io::Result<T> {
        let mut state = lock(&self.table.state);
        let Some(stream) = state.streams.get_mut(&self.id) else { return Err(io::ErrorKind::ConnectionReset.into()) };
        let done = act(stream);
        if state.schedule(self.id) {
            self.table.has_frames.notify_one();
        }
        Ok(done)
    }
}

impl AsyncRead for GuestStream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = self.act(|stream| {
            let count = stream.incoming.len().min(buffer.remaining());
            if count == 0 && !stream.runner_has_ended && buffer.remaining() > 0 {
                stream.reader = Some(context.waker().clone());
                return Poll::Pending;
            }
            buffer.put_slice(&stream.incoming[..count]);
            stream.incoming.advance(count);
            stream.consumed += count;
            Poll::Ready(())
        });
        match read {
            Ok(polled) => polled.map(Ok),
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

impl AsyncWrite for GuestStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = self.act(|stream| {
            if stream.host_end != HostEnd::Open {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            let count = bytes.len().min(stream.send_credit);
            if count == 0 && !bytes.is_empty() {
                stream.writer = Some(context.waker().clone());
                return Poll::Pending;
            }
            stream.send_credit -= count;
            stream.outgoing.extend_from_slice(&bytes[..count]);
            Poll::Ready(Ok(count))
        });
        written.unwrap_or_else(|error| Poll::Ready(Err(error)))
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.act(|stream| {
            if stream.host_end == HostEnd::Open {
                stream.host_end = HostEnd::Wanted;
            }
        }))
    }
}

impl Drop for GuestStream {
    fn drop(&mut self) {
        let _ = self.act(|stream| {
            stream.is_abandoned = true;
            stream.incoming.clear();
            // Without an end, the code must not take what it got for the whole.
            if stream.host_end == HostEnd::Open {
                stream.outgoing.clear();
            }
        });
        lock(&self.table.state).remove_if_over(self.id);
    }
}

#[cfg(test)]
mod tests;
