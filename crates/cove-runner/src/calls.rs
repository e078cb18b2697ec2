//! Calls of code to the host: a socket that any process in the sandbox may connect to, and which request is whose.
//!
//! Both ways of a connection are frames of `length:u32be` and a JSON object. A request is `{"id":N,…}`, its reply
//! `{"id":N,"ok":…}` or `{"id":N,"error":{…}}`, in any order. Of a request only the id is read here; the host gets it as
//! it was written.
//!
//! Who writes is hostile. Requests wait in their socket when too many are under way, and replies wait in the host when
//! they are long and not read; so nothing here grows with what code does or leaves undone.

mod connection;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use cove_protocol::limits::{CHUNK, FREE_REPLY, MAX_CALL, MAX_CALLS, MAX_CALLS_BYTES};
use cove_protocol::{CallId, CellId, FromRunner};
use rustix::event::PollFlags;
use rustix::fs::{FileType, Mode};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::Deserialize;

use connection::{Connection, Gone, Next};

/// Where code finds the socket of a runner that has the sandbox to itself.
pub(crate) const SOCKET: &str = "/tmp/.cove/mcp";
/// Its name in the environment.
pub(crate) const VARIABLE: &str = "COVE_MCP";
/// Connections at once; more wait to be accepted.
const MAX_CONNECTIONS: usize = 64;
/// Bytes of long requests that may be on their way here from all connections together.
const MAX_ARRIVING: usize = 4 * MAX_CALL;

/// Where this runner has its socket: there may be others beside one that is not the first process of its sandbox.
pub(crate) fn socket(is_first: bool) -> PathBuf {
    match is_first {
        true => SOCKET.into(),
        false => format!("{SOCKET}-{}", std::process::id()).into(),
    }
}

/// How to say something to the host.
pub(crate) type Say<'a> = &'a mut dyn FnMut(&FromRunner, &[u8]) -> io::Result<()>;

pub(crate) struct Calls {
    path: PathBuf,
    listener: Option<Listener>,
    connections: BTreeMap<u64, Connection>,
    next_connection: u64,
    next_call: u64,
    /// What the host has and has not answered.
    open: BTreeMap<CallId, Caller>,
    open_bytes: usize,
    /// How much leave connections have for long requests.
    arriving: usize,
    cell: Option<CellId>,
    /// Whose requests were looked at last, so that the others come first when there is room.
    last: u64,
    /// For reading: to make one for every call would take longer than to read.
    buffer: Vec<u8>,
}

struct Listener {
    socket: OwnedFd,
    /// What file it is, since code may remove it or put another in its place.
    file: (u64, u64),
}

struct Caller {
    connection: u64,
    id: u64,
    bytes: usize,
}

#[derive(Clone, Copy)]
pub(crate) enum Source {
    Listener,
    Connection(u64),
}

/// All that is read of a request.
#[derive(Deserialize)]
struct Head {
    id: u64,
}

impl Calls {
    pub(crate) fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            listener: None,
            connections: BTreeMap::new(),
            next_connection: 1,
            next_call: 1,
            open: BTreeMap::new(),
            open_bytes: 0,
            arriving: 0,
            cell: None,
            last: 0,
            buffer: vec![0; CHUNK],
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Takes the socket away again, for who comes after this runner.
    pub(crate) fn clear(&mut self) {
        if let Some(listener) = self.listener.take()
            && Some(listener.file) == file_at(&self.path)
        {
            let _ = rustix::fs::unlink(&self.path);
            // It may be others' too; then it is not empty.
            let _ = self.path.parent().map(rustix::fs::rmdir);
        }
    }

    /// Makes the socket if it is not there. What code has put in its way may prevent it: then code cannot call, which it
    /// sees for itself, and all else goes on.
    pub(crate) fn listen(&mut self) {
        let file = self.listener.as_ref().map(|listener| listener.file);
        if file.is_none() || file != file_at(&self.path) {
            self.listener = Listener::open(&self.path).ok();
        }
    }

    /// What to wait for.
    pub(crate) fn sources(&self) -> impl Iterator<Item = (Source, BorrowedFd<'_>, PollFlags)> {
        let room = self.connections.len() < MAX_CONNECTIONS;
        let listener = self.listener.as_ref().filter(|_| room);
        let listener = listener.map(|it| (Source::Listener, it.socket.as_fd(), PollFlags::IN));
        let connections = self.connections.iter();
        listener
            .into_iter()
            .chain(connections.map(|(&number, it)| (Source::Connection(number), it.fd(), it.wanted())))
    }

    /// A cell begins: its code may call.
    pub(crate) fn begin(&mut self, cell: CellId) {
        self.cell = Some(cell);
        self.listen();
    }

    /// The cell ends, and with it what it has asked for: the host drops that when it hears of the end.
    pub(crate) fn end(&mut self, say: Say<'_>) -> io::Result<()> {
        self.cell = None;
        self.open_bytes = 0;
        let error = error("cancelled", "the cell ended before the answer to this call came", AFTER_THE_CELL);
        for caller in std::mem::take(&mut self.open).into_values() {
            if let Some(connection) = self.connections.get_mut(&caller.connection) {
                connection.open -= 1;
                connection.reply(&caller.id.to_string(), error.clone(), None);
            }
        }
        for number in self.numbers() {
            self.flush(number, say)?;
        }
        self.advance(say)
    }

    pub(crate) fn ready(&mut self, source: Source, found: PollFlags, say: Say<'_>) -> io::Result<()> {
        match source {
            Source::Listener => self.accept(),
            Source::Connection(number) => {
                let Some(connection) = self.connections.get_mut(&number) else { return Ok(()) };
                let read =
                    if found.contains(PollFlags::IN) { connection.receive(&mut self.buffer) } else { Ok(()) };
                let deaf = found.intersects(PollFlags::HUP | PollFlags::ERR)
                    && (!found.contains(PollFlags::IN) || connection.has_ended());
                if read.is_err() || deaf {
                    return self.drop_connection(number, say);
                }
                self.flush(number, say)?;
                self.advance(say)?;
            }
        }
        Ok(())
    }

    /// The host's answer to a call.
    pub(crate) fn reply(&mut self, call: CallId, object: Vec<u8>, say: Say<'_>) -> io::Result<()> {
        if call.0 >= self.next_call || object.first() != Some(&b'{') {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the host sent a reply that makes no sense",
            ));
        }
        let long = object.len() > FREE_REPLY;
        // Its cell may have ended or its connection gone while it was on its way.
        let caller = self.close(call);
        match caller.and_then(|caller| Some((self.connections.get_mut(&caller.connection)?, caller))) {
            Some((connection, caller)) => {
                connection.open -= 1;
                connection.reply(&caller.id.to_string(), object, Some(call));
                self.flush(caller.connection, say)?;
            }
            None if long => say(&FromRunner::Taken { call }, &[])?,
            None => {}
        }
        self.advance(say)
    }

    fn numbers(&self) -> Vec<u64> {
        self.connections.keys().copied().collect()
    }

    fn close(&mut self, call: CallId) -> Option<Caller> {
        let caller = self.open.remove(&call)?;
        self.open_bytes -= caller.bytes;
        Some(caller)
    }

    fn accept(&mut self) {
        let Some(listener) = &self.listener else { return };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Whoever connected may have gone again.
        if let Ok(socket) = rustix::net::accept_with(&listener.socket, flags) {
            self.connections.insert(self.next_connection, Connection::new(socket));
            self.next_connection += 1;
        }
    }

    fn flush(&mut self, number: u64, say: Say<'_>) -> io::Result<()> {
        let Some(connection) = self.connections.get_mut(&number) else { return Ok(()) };
        let mut taken = Vec::new();
        let flushed = connection.flush(&mut taken);
        for call in taken {
            say(&FromRunner::Taken { call }, &[])?;
        }
        match flushed {
            Ok(()) => Ok(()),
            Err(Gone) => self.drop_connection(number, say),
        }
    }

    /// Looks for requests that have become whole or for which there is room now, one of each connection in turn, until
    /// there are none.
    fn advance(&mut self, say: Say<'_>) -> io::Result<()> {
        loop {
            let (before, after): (Vec<u64>, Vec<u64>) =
                self.numbers().into_iter().partition(|&number| number <= self.last);
            let mut moved = false;
            for number in after.into_iter().chain(before) {
                moved |= self.take_one(number, say)?;
            }
            if !moved {
                return Ok(());
            }
        }
    }

    /// Deals with the next request of a connection, if there is one and it can be dealt with.
    fn take_one(&mut self, number: u64, say: Say<'_>) -> io::Result<bool> {
        let Some(connection) = self.connections.get_mut(&number) else { return Ok(false) };
        let length = match connection.next() {
            Next::Whole(length) => length,
            Next::Long(length) => {
                if connection.leave == 0 && self.arriving + length <= MAX_ARRIVING {
                    connection.leave = length;
                    self.arriving += length;
                }
                return self.drop_if_over(number, say);
            }
            Next::Part => return self.drop_if_over(number, say),
            Next::Bad(length) => {
                let why = format!("a request had {length} bytes, and it must have 1 to {MAX_CALL}");
                return self.give_up_on(number, "limit", &why, say);
            }
        };
        let full = self.open.len() >= MAX_CALLS || self.open_bytes + length > MAX_CALLS_BYTES;
        connection.held = !connection.is_listened_to() || (full && self.cell.is_some());
        if connection.held {
            return Ok(false);
        }
        let id = match head(connection.request(length)) {
            Ok(head) => head.id,
            Err(error) => {
                let why = format!("a request was not a JSON object with a whole number as its `id`: {error}");
                return self.give_up_on(number, "protocol", &why, say);
            }
        };
        let Some(cell) = self.cell else {
            connection.take(length);
            self.arriving -= std::mem::take(&mut connection.leave);
            let refused = error("refused", "no cell is running, so nothing can be called", AFTER_THE_CELL);
            connection.reply(&id.to_string(), refused, None);
            self.flush(number, say)?;
            return Ok(true);
        };
        let request = connection.take(length);
        connection.open += 1;
        self.arriving -= std::mem::take(&mut connection.leave);
        self.last = number;
        let call = CallId(self.next_call);
        self.next_call += 1;
        self.open.insert(call, Caller { connection: number, id, bytes: length });
        self.open_bytes += length;
        say(&FromRunner::Call { cell, call }, &request)?;
        Ok(true)
    }

    fn drop_if_over(&mut self, number: u64, say: Say<'_>) -> io::Result<bool> {
        if self.connections.get(&number).is_some_and(Connection::is_over) {
            self.drop_connection(number, say)?;
        }
        Ok(false)
    }

    /// After this nobody knows where its next request begins.
    fn give_up_on(&mut self, number: u64, kind: &str, why: &str, say: Say<'_>) -> io::Result<bool> {
        if let Some(connection) = self.connections.get_mut(&number) {
            let hint = "this connection is closed; open another";
            connection.reply("null", error(kind, why, hint), None);
        }
        self.flush(number, say)?;
        self.drop_connection(number, say)?;
        Ok(false)
    }

    fn drop_connection(&mut self, number: u64, say: Say<'_>) -> io::Result<()> {
        let Some(connection) = self.connections.remove(&number) else { return Ok(()) };
        self.arriving -= connection.leave;
        for call in connection.unread_replies() {
            say(&FromRunner::Taken { call }, &[])?;
        }
        let is_its = |(&call, caller): (&CallId, &Caller)| (caller.connection == number).then_some(call);
        for call in self.open.iter().filter_map(is_its).collect::<Vec<_>>() {
            self.close(call);
            say(&FromRunner::Forget { call }, &[])?;
        }
        Ok(())
    }
}

const AFTER_THE_CELL: &str = "call from the code of a cell, and wait for the answer before the cell ends";

/// The object of a reply that says that it did not work.
fn error(kind: &str, message: &str, hint: &str) -> Vec<u8> {
    let error = serde_json::json!({"error": {"kind": kind, "message": message, "hint": hint}});
    error.to_string().into_bytes()
}

fn head(request: &[u8]) -> Result<Head, serde_json::Error> {
    // serde would also read a struct from an array of its fields.
    match request.iter().find(|byte| !byte.is_ascii_whitespace()) {
        Some(b'{') => serde_json::from_slice(request),
        _ => Err(serde::de::Error::custom("expected an object")),
    }
}

impl Listener {
    fn open(path: &Path) -> rustix::io::Result<Self> {
        if let Some(folder) = path.parent() {
            if rustix::fs::lstat(folder)
                .is_ok_and(|found| FileType::from_raw_mode(found.st_mode) != FileType::Directory)
            {
                rustix::fs::unlink(folder)?;
            }
            match rustix::fs::mkdir(folder, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error),
            }
        }
        match rustix::fs::unlink(path) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
        rustix::net::listen(&socket, MAX_CONNECTIONS as i32)?;
        Ok(Self { socket, file: file_at(path).ok_or(Errno::NOENT)? })
    }
}

fn file_at(path: &Path) -> Option<(u64, u64)> {
    let found = rustix::fs::lstat(path).ok()?;
    Some((found.st_dev, found.st_ino))
}

#[cfg(test)]
mod tests;
