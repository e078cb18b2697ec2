//! Calls of code to the host: a socket that any process in the sandbox may connect to, and the routing of requests and
//! replies between its connections and the host.
//!
//! Both directions of a connection carry frames of `length:u32be` and a JSON object. A request is `{"id":N,…}`, its
//! reply `{"id":N,"ok":…}` or `{"id":N,"error":{…}}`, in any order. The runner reads only the id of a request, and
//! sends the rest to the host as the code wrote it.
//!
//! The code is hostile, so every buffer here has a bound, and code that exceeds one only stops its own connection:
//!
//! - A request of at most `SHORT` bytes may arrive at any time. For a longer one the router first reserves its bytes:
//!   `take_one` sets `CallConnection::reserved` if `reserved_bytes` of all connections stays within `MAX_ARRIVING`.
//!   Until then `wanted_events` does not ask for input, and the request waits in its socket. The reservation ends when
//!   the request has gone to the host, or with the connection.
//! - A whole request waits in its connection while the host has `MAX_CALLS` calls or `MAX_CALLS_BYTES` of requests
//!   without a reply, or while the code has left more than `MAX_UNREAD` bytes of replies unread. `take_one` then sets
//!   `is_held`, which stops input too. Whenever a call closes, `advance` looks at all connections again, in turn.
//! - The host sends a reply of at most `FREE_REPLY` bytes at once. Longer replies share a window that the host keeps
//!   (`REPLY_WINDOW`): it subtracts their bytes before it sends them, and adds them again when the runner reports
//!   `Taken`. The runner reports that for every long reply exactly once: when its last byte has left the connection's
//!   queue, when the connection is dropped, or at once if the call is already closed. So at most one window of replies
//!   is in this process, however slowly code reads.
//!
//! A call closes in one of four ways: by its reply; by the end of its cell, when `end` answers all open calls with an
//! error and the host forgets them by itself; by the end of its connection, when the runner sends `Forget`; or with the
//! runner. A reply may arrive after any of these, because both sides act at once, and is dropped.

mod connection;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use cove_protocol::limits::{CHUNK, FREE_REPLY, MAX_CALL, MAX_CALLS, MAX_CALLS_BYTES};
use cove_protocol::{CallId, CellId, FromRunner};
use rustix::event::PollFlags;
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::Deserialize;

use crate::protocol_error;
use connection::{CallConnection, ConnectionLost, NextRequest};

/// The socket of a runner that is pid 1 of its sandbox.
pub const CALL_SOCKET: &str = "/tmp/.cove/mcp";
/// The environment variable that tells code the path of the socket.
pub const CALL_VARIABLE: &str = "COVE_MCP";
/// Connections at the same time. Further ones wait to be accepted.
const MAX_CONNECTIONS: usize = 64;
/// Bytes of long requests that all connections together may have reserved.
const MAX_ARRIVING: usize = 4 * MAX_CALL;

/// Returns the path of this runner's socket. A runner that is not pid 1 may have others beside it, so its path has its
/// process id.
pub(crate) fn socket_path(is_first: bool) -> PathBuf {
    match is_first {
        true => CALL_SOCKET.into(),
        false => format!("{CALL_SOCKET}-{}", std::process::id()).into(),
    }
}

/// Sends a message with its payload to the host.
pub(crate) type SendToHost<'a> = &'a mut dyn FnMut(&FromRunner, &[u8]) -> io::Result<()>;

/// Routes requests of code to the host, and replies back.
pub(crate) struct CallRouter {
    path: PathBuf,
    listener: Option<CallListener>,
    connections: BTreeMap<u64, CallConnection>,
    next_connection: u64,
    next_call: u64,
    /// Calls that the host has not answered.
    open: BTreeMap<CallId, PendingCall>,
    /// The bytes of their requests.
    open_bytes: usize,
    /// What all connections together have reserved for long requests.
    reserved_bytes: usize,
    /// The cell that runs. Without one no call is possible.
    cell: Option<CellId>,
    /// The connection whose request went to the host last. The others come first when there is room again.
    last_served: u64,
    /// For reading. Making one for every call would take longer than the read.
    buffer: Vec<u8>,
}

/// The socket that code connects to.
struct CallListener {
    socket: OwnedFd,
    /// Device and inode of the socket's file, because code may remove the file or replace it.
    file: (u64, u64),
}

/// A call that the host has not answered.
struct PendingCall {
    connection: u64,
    /// The id that the code gave its request.
    id: u64,
    /// The length of its request.
    bytes: usize,
}

/// A descriptor of the router that the loop polls.
#[derive(Clone, Copy)]
pub(crate) enum CallSource {
    Listener,
    Connection(u64),
}

/// The only part of a request that the runner reads.
#[derive(Deserialize)]
struct RequestHead {
    id: u64,
}

impl CallRouter {
    pub(crate) fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            listener: None,
            connections: BTreeMap::new(),
            next_connection: 1,
            next_call: 1,
            open: BTreeMap::new(),
            open_bytes: 0,
            reserved_bytes: 0,
            cell: None,
            last_served: 0,
            buffer: vec![0; CHUNK],
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the socket's file, so that it does not outlive this runner.
    pub(crate) fn remove_socket(&mut self) {
        if let Some(listener) = self.listener.take()
            && Some(listener.file) == file_at(&self.path)
        {
            let _ = rustix::fs::unlink(&self.path);
            // Other runners may use the folder too; then it is not empty, and stays.
            let _ = self.path.parent().map(rustix::fs::rmdir);
        }
    }

    /// Makes the socket unless it is there. Code can prevent this by what it puts at that path. Then code cannot make
    /// calls, and gets an error that says so; everything else goes on.
    pub(crate) fn listen(&mut self) {
        let file = self.listener.as_ref().map(|listener| listener.file);
        if file.is_none() || file != file_at(&self.path) {
            self.listener = CallListener::open(&self.path).ok();
        }
    }

    /// Returns the descriptors to poll, and for what.
    pub(crate) fn sources(&self) -> impl Iterator<Item = (CallSource, BorrowedFd<'_>, PollFlags)> {
        // Not polled while there is no room: a ready listener that is not accepted would wake every turn.
        let room = self.connections.len() < MAX_CONNECTIONS;
        let listener = self.listener.as_ref().filter(|_| room);
        let listener = listener.map(|it| (CallSource::Listener, it.socket.as_fd(), PollFlags::IN));
        let connections = self.connections.iter();
        listener
            .into_iter()
            .chain(connections.map(|(&number, it)| (CallSource::Connection(number), it.fd(), it.wanted_events())))
    }

    /// A cell begins: its code may make calls.
    pub(crate) fn begin(&mut self, cell: CellId) {
        self.cell = Some(cell);
        self.listen();
    }

    /// The cell ends: answers all its open calls with an error. The host drops them by itself at `Done`. Fails if the
    /// host cannot be written to.
    pub(crate) fn end(&mut self, send: SendToHost<'_>) -> io::Result<()> {
        self.cell = None;
        self.open_bytes = 0;
        let error = error_reply("cancelled", "the cell ended before this call was answered", CALL_INSIDE_A_CELL);
        for call in std::mem::take(&mut self.open).into_values() {
            if let Some(connection) = self.connections.get_mut(&call.connection) {
                connection.open_calls -= 1;
                connection.reply(&call.id.to_string(), error.clone(), None);
            }
        }
        for number in self.connection_numbers() {
            self.flush(number, send)?;
        }
        self.advance(send)
    }

    /// Acts on what `poll` has found at a descriptor. Fails if the host cannot be written to.
    pub(crate) fn handle(&mut self, source: CallSource, found: PollFlags, send: SendToHost<'_>) -> io::Result<()> {
        match source {
            CallSource::Listener => self.accept(),
            CallSource::Connection(number) => {
                let Some(connection) = self.connections.get_mut(&number) else { return Ok(()) };
                let read = if found.contains(PollFlags::IN) { connection.receive(&mut self.buffer) } else { Ok(()) };
                // The other side is gone, and everything that it wrote before has been read.
                let is_gone = found.intersects(PollFlags::HUP | PollFlags::ERR)
                    && (!found.contains(PollFlags::IN) || connection.has_ended());
                if read.is_err() || is_gone {
                    return self.drop_connection(number, send);
                }
                self.flush(number, send)?;
                self.advance(send)?;
            }
        }
        Ok(())
    }

    /// Passes the host's reply on to the code that made the call. Fails if the host broke the protocol, or cannot be
    /// written to.
    pub(crate) fn reply(&mut self, call: CallId, object: Vec<u8>, send: SendToHost<'_>) -> io::Result<()> {
        let broken =
            |problem: &str| Err(protocol_error(format!("the host sent a `reply` for call {}{problem}", call.0)));
        if call.0 >= self.next_call {
            return broken(", which was never made");
        }
        if object.first() != Some(&b'{') {
            return broken(" that is not a JSON object");
        }
        let is_long = object.len() > FREE_REPLY;
        // Without a pending call, its cell or its connection has ended while the reply was on its way.
        let pending = self.close(call);
        match pending.and_then(|pending| Some((self.connections.get_mut(&pending.connection)?, pending))) {
            Some((connection, pending)) => {
                connection.open_calls -= 1;
                connection.reply(&pending.id.to_string(), object, Some(call));
                self.flush(pending.connection, send)?;
            }
            None if is_long => send(&FromRunner::Taken { call }, &[])?,
            None => {}
        }
        self.advance(send)
    }

    fn connection_numbers(&self) -> Vec<u64> {
        self.connections.keys().copied().collect()
    }

    /// Removes an open call and returns it, or `None` if it is not open.
    fn close(&mut self, call: CallId) -> Option<PendingCall> {
        let pending = self.open.remove(&call)?;
        self.open_bytes -= pending.bytes;
        Some(pending)
    }

    fn accept(&mut self) {
        let Some(listener) = &self.listener else { return };
        // One connection in each turn of the loop, like one read: code that connects without end must not block it.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // The process that connected may have gone again.
        if let Ok(socket) = rustix::net::accept_with(&listener.socket, flags) {
            self.connections.insert(self.next_connection, CallConnection::new(socket));
            self.next_connection += 1;
        }
    }

    /// Writes the replies that a connection has room for, and reports those that have left it.
    fn flush(&mut self, number: u64, send: SendToHost<'_>) -> io::Result<()> {
        let Some(connection) = self.connections.get_mut(&number) else { return Ok(()) };
        let mut taken = Vec::new();
        let flushed = connection.flush(&mut taken);
        for call in taken {
            send(&FromRunner::Taken { call }, &[])?;
        }
        match flushed {
            Ok(()) => Ok(()),
            Err(ConnectionLost) => self.drop_connection(number, send),
        }
    }

    /// Sends requests that have become whole, or for which there is room now, to the host: one of each connection in
    /// turn, until no connection has another.
    fn advance(&mut self, send: SendToHost<'_>) -> io::Result<()> {
        loop {
            // Connections after the one that was served last come first, so that a busy one cannot starve the others.
            let (before, after): (Vec<u64>, Vec<u64>) =
                self.connection_numbers().into_iter().partition(|&number| number <= self.last_served);
            let mut moved = false;
            for number in after.into_iter().chain(before) {
                moved |= self.take_one(number, send)?;
            }
            if !moved {
                return Ok(());
            }
        }
    }

    /// Sends the next request of a connection to the host, if it is whole and there is room for it. Returns whether the
    /// connection may have another.
    fn take_one(&mut self, number: u64, send: SendToHost<'_>) -> io::Result<bool> {
        let Some(connection) = self.connections.get_mut(&number) else { return Ok(false) };
        let length = match connection.next() {
            NextRequest::Whole(length) => length,
            NextRequest::Long(length) => {
                if connection.reserved == 0 && self.reserved_bytes + length <= MAX_ARRIVING {
                    connection.reserved = length;
                    self.reserved_bytes += length;
                }
                return self.drop_if_finished(number, send);
            }
            NextRequest::Partial => return self.drop_if_finished(number, send),
            NextRequest::BadLength(length) => {
                let message = format!("a request has {length} bytes, and must have 1 to {MAX_CALL}");
                return self.refuse_connection(number, "limit", &message, send);
            }
        };
        // Without a cell the request is refused below, and needs no room at the host.
        let full = self.open.len() >= MAX_CALLS || self.open_bytes + length > MAX_CALLS_BYTES;
        connection.is_held = connection.is_behind() || (full && self.cell.is_some());
        if connection.is_held {
            return Ok(false);
        }
        let id = match parse_head(connection.request(length)) {
            Ok(head) => head.id,
            Err(error) => {
                let message = format!("a request is not a JSON object with a whole number as its `id`: {error}");
                return self.refuse_connection(number, "protocol", &message, send);
            }
        };
        let request = connection.take(length);
        self.reserved_bytes -= std::mem::take(&mut connection.reserved);
        let Some(cell) = self.cell else {
            let refused = error_reply("refused", "no cell is running, so no call is possible", CALL_INSIDE_A_CELL);
            connection.reply(&id.to_string(), refused, None);
            self.flush(number, send)?;
            return Ok(true);
        };
        connection.open_calls += 1;
        self.last_served = number;
        let call = CallId(self.next_call);
        self.next_call += 1;
        self.open.insert(call, PendingCall { connection: number, id, bytes: length });
        self.open_bytes += length;
        send(&FromRunner::Call { cell, call }, &request)?;
        Ok(true)
    }

    /// Drops a connection that can neither send another request nor get another reply.
    fn drop_if_finished(&mut self, number: u64, send: SendToHost<'_>) -> io::Result<bool> {
        if self.connections.get(&number).is_some_and(CallConnection::is_finished) {
            self.drop_connection(number, send)?;
        }
        Ok(false)
    }

    /// Answers a bad request with an error and drops its connection, because the start of the next request is unknown.
    fn refuse_connection(&mut self, number: u64, kind: &str, message: &str, send: SendToHost<'_>) -> io::Result<bool> {
        if let Some(connection) = self.connections.get_mut(&number) {
            let hint = "this connection is closed; open another";
            connection.reply("null", error_reply(kind, message, hint), None);
        }
        self.flush(number, send)?;
        self.drop_connection(number, send)?;
        Ok(false)
    }

    /// Drops a connection, and reports its unread replies as taken and its open calls as forgotten.
    fn drop_connection(&mut self, number: u64, send: SendToHost<'_>) -> io::Result<()> {
        let Some(connection) = self.connections.remove(&number) else { return Ok(()) };
        self.reserved_bytes -= connection.reserved;
        for call in connection.unread_replies() {
            send(&FromRunner::Taken { call }, &[])?;
        }
        let own = |(&call, pending): (&CallId, &PendingCall)| (pending.connection == number).then_some(call);
        for call in self.open.iter().filter_map(own).collect::<Vec<_>>() {
            self.close(call);
            send(&FromRunner::Forget { call }, &[])?;
        }
        Ok(())
    }
}

/// The hint for calls outside of a cell, and for those that a cell does not wait for.
const CALL_INSIDE_A_CELL: &str = "make calls in the code of a cell, and wait for the answer before the cell ends";

/// Returns the object of a reply to a call that failed.
fn error_reply(kind: &str, message: &str, hint: &str) -> Vec<u8> {
    let error = serde_json::json!({"error": {"kind": kind, "message": message, "hint": hint}});
    error.to_string().into_bytes()
}

fn parse_head(request: &[u8]) -> Result<RequestHead, serde_json::Error> {
    // serde would also read a struct from an array of its fields.
    match request.iter().find(|byte| !byte.is_ascii_whitespace()) {
        Some(b'{') => serde_json::from_slice(request),
        _ => Err(serde::de::Error::custom("expected an object")),
    }
}

impl CallListener {
    /// Makes the socket, and removes what code has put in its way. Fails if that is not possible.
    fn open(path: &Path) -> rustix::io::Result<Self> {
        if let Some(folder) = path.parent() {
            // Without following links, because code may have put one there that leads elsewhere.
            if std::fs::symlink_metadata(folder).is_ok_and(|found| !found.is_dir()) {
                rustix::fs::unlink(folder)?;
            }
            unless(Errno::EXIST, rustix::fs::mkdir(folder, Mode::RWXU))?;
        }
        unless(Errno::NOENT, rustix::fs::unlink(path))?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
        rustix::net::listen(&socket, MAX_CONNECTIONS as i32)?;
        Ok(Self { socket, file: file_at(path).ok_or(Errno::NOENT)? })
    }
}

/// Returns the result of a call whose failure with `harmless` does not matter.
fn unless(harmless: Errno, result: rustix::io::Result<()>) -> rustix::io::Result<()> {
    if result == Err(harmless) { Ok(()) } else { result }
}

/// Returns device and inode of the file at a path, if there is one.
fn file_at(path: &Path) -> Option<(u64, u64)> {
    let found = rustix::fs::lstat(path).ok()?;
    Some((found.st_dev, found.st_ino))
}

#[cfg(test)]
mod tests;
