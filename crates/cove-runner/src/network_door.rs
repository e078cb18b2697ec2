//! The doors to the network, on the sandbox's loopback: a socket that programs take for an HTTP proxy, and for programs
//! that know no proxy an address for each name (`name_door`). The runner reads nothing of what they send: each connection
//! becomes a stream of bytes to the host, which decides what it may reach.
//!
//! Bounds: at most `MAX_STREAMS` connections are accepted, and further ones wait in the listen queue. The runner reads a
//! connection only while it has credit from the host, and gives the host credit only for bytes that it has written, so
//! each connection holds at most one window.
//!
//! Streams belong to the cell that runs. A connection that comes between cells is closed, and `end` closes all that the
//! cell has left; the host does the same at `Done`, so no messages are needed. Messages of the host about a connection
//! that is gone may have crossed its end, and are dropped.

mod dns_message;
mod dns_sockets;
mod name_door;

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use cove_protocol::limits::{CHUNK, MAX_STREAMS, PROXY_PORT, STREAM_WINDOW};
use cove_protocol::{CellId, FromRunner, NetworkSetup, StreamDoor, StreamId};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, sockopt};

use self::name_door::{NameDoor, NameDoorSource, NameReport};
use crate::calls::SendToHost;
use crate::protocol_error;

/// Names of the variables that make programs use a proxy. curl reads only the lower-case name for plain HTTP.
const PROXY_VARIABLES: [&str; 6] = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"];
/// Hosts that programs reach without a proxy: servers that the code itself has started.
const DIRECT_HOSTS: &str = "localhost,127.0.0.1,::1";

/// The doors and their connections.
#[derive(Default)]
pub(crate) struct NetworkDoor {
    listener: Option<OwnedFd>,
    port: u16,
    names: Option<NameDoor>,
    connections: BTreeMap<StreamId, DoorConnection>,
    last_stream: u64,
    cell: Option<CellId>,
    buffer: Vec<u8>,
}

/// A descriptor of the doors that the loop polls.
#[derive(Debug, Clone, Copy)]
pub(crate) enum DoorSource {
    Listener,
    Names(NameDoorSource),
    Connection(StreamId),
}

struct DoorConnection {
    socket: OwnedFd,
    /// How many bytes the host takes.
    credit: usize,
    code_has_ended: bool,
    /// Bytes of the host that the code has not read.
    output: VecDeque<u8>,
    /// Bytes that were written to the code, and for which the host has no new credit yet.
    written: usize,
    host_has_ended: bool,
    /// The host has forgotten the stream after its last byte. What the code still sends is read and dropped, because
    /// closing a socket with unread bytes would take back what the code has not read yet.
    is_forgotten: bool,
    is_shut: bool,
}

/// The connection is broken.
struct BrokenConnection;

/// Returns the variables that lead programs to a door on this port.
pub(crate) fn proxy_variables(port: u16, answers_names: bool) -> Vec<(&'static str, String)> {
    let address = format!("http://127.0.0.1:{port}");
    let proxies = PROXY_VARIABLES.map(|name| (name, address.clone()));
    let direct = ["NO_PROXY", "no_proxy"].map(|name| (name, DIRECT_HOSTS.to_owned()));
    // Node ignores the others without it. It makes each start slower, and the name door serves node as well.
    let node = (!answers_names).then(|| ("NODE_USE_ENV_PROXY", "1".to_owned()));
    proxies.into_iter().chain(direct).chain(node).collect()
}

impl NetworkDoor {
    /// Opens the doors as far as the kernel allows them.
    pub(crate) fn open(&mut self, setup: NetworkSetup) {
        if self.open_proxy_door().is_some() && !setup.names.is_empty() {
            self.names = NameDoor::open(setup).ok();
        }
    }

    fn open_proxy_door(&mut self) -> Option<()> {
        // Another program may have the usual port, in a container that shares its network with others.
        let (listener, port) = listen(PROXY_PORT).or_else(|_| listen(0)).ok()?;
        (self.listener, self.port, self.buffer) = (Some(listener), port, vec![0; CHUNK]);
        Some(())
    }

    /// Returns the port of the proxy door, or None if it is not open.
    pub(crate) fn proxy_port(&self) -> Option<u16> {
        self.listener.as_ref().map(|_| self.port)
    }

    pub(crate) fn answers_names(&self) -> bool {
        self.names.is_some()
    }

    /// Returns the variables that lead programs to the door; none if there is no door.
    pub(crate) fn variables(&self) -> Vec<(&'static str, String)> {
        if self.listener.is_none() {
            return Vec::new();
        }
        proxy_variables(self.port, self.answers_names())
    }

    /// Returns the descriptors to poll, and for what.
    pub(crate) fn sources(&self) -> impl Iterator<Item = (DoorSource, BorrowedFd<'_>, PollFlags)> {
        let has_room = self.connections.len() < MAX_STREAMS;
        let listener = self.listener.as_ref().map(|it| (DoorSource::Listener, it.as_fd()));
        let named =
            self.names.iter().flat_map(|door| door.listeners().map(|(source, fd)| (DoorSource::Names(source), fd)));
        let listeners = listener.into_iter().chain(named).filter(move |_| has_room);
        let asked =
            self.names.iter().flat_map(NameDoor::dns_sources).map(|(source, fd)| (DoorSource::Names(source), fd));
        let readable = listeners.chain(asked).map(|(source, fd)| (source, fd, PollFlags::IN));
        // A connection that wants nothing is not polled: its end would wake every turn.
        let connections =
            self.connections.iter().map(|(&id, it)| (DoorSource::Connection(id), it.socket.as_fd(), it.wanted()));
        readable.chain(connections.filter(|(_, _, wanted)| !wanted.is_empty()))
    }

    pub(crate) fn begin(&mut self, cell: CellId) {
        self.cell = Some(cell);
        if let Some(names) = &mut self.names {
            names.begin();
        }
    }

    /// The cell ends: closes all its connections. Fails if the host cannot be written to.
    pub(crate) fn end(&mut self, send: SendToHost<'_>) -> io::Result<()> {
        std::mem::take(&mut self.connections).into_values().for_each(DoorConnection::close);
        let report = self.names.as_mut().and_then(NameDoor::end);
        match (self.cell.take(), report) {
            (Some(cell), Some(report)) => send(&report_message(cell, report), &[]),
            _ => Ok(()),
        }
    }

    /// Acts on what `poll` has found at a descriptor. Fails if the host cannot be written to.
    pub(crate) fn handle(&mut self, source: DoorSource, found: PollFlags, send: SendToHost<'_>) -> io::Result<()> {
        match source {
            DoorSource::Listener => self.accept(send),
            DoorSource::Names(NameDoorSource::Listener { number, port }) => {
                match self.names.as_ref().and_then(|names| names.accept(number, port)) {
                    Some((socket, door)) => self.admit(socket.into(), door, send),
                    None => Ok(()),
                }
            }
            DoorSource::Names(NameDoorSource::Dns(source)) => match (&mut self.names, self.cell) {
                (Some(names), Some(cell)) => {
                    names.answer(source, &mut |report| send(&report_message(cell, report), &[]))
                }
                (Some(names), None) => names.answer(source, &mut |_| Ok(())),
                (None, _) => Ok(()),
            },
            DoorSource::Connection(id) => {
                if found.intersects(PollFlags::OUT | PollFlags::HUP | PollFlags::ERR) {
                    self.write(id, send)?;
                }
                // An error shows itself when the socket is read or written.
                match found.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
                    true => self.read(id, send),
                    false => Ok(()),
                }
            }
        }
    }

    fn accept(&mut self, send: SendToHost<'_>) -> io::Result<()> {
        let Some(listener) = &self.listener else { return Ok(()) };
        // One in each turn of the loop: code that connects without end must not block it.
        match rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => self.admit(socket, StreamDoor::Proxy {}, send),
            Err(_) => Ok(()),
        }
    }

    /// Makes a stream of a connection, unless no cell runs.
    fn admit(&mut self, socket: OwnedFd, door: StreamDoor, send: SendToHost<'_>) -> io::Result<()> {
        let Some(cell) = self.cell else { return Ok(()) };
        let _ = sockopt::set_tcp_nodelay(&socket, true);
        self.last_stream += 1;
        let stream = StreamId(self.last_stream);
        self.connections.insert(stream, DoorConnection::new(socket));
        send(&FromRunner::OpenStream { cell, stream, door }, &[])
    }

    /// Reads once: code that never stops writing must not block the runner.
    fn read(&mut self, id: StreamId, send: SendToHost<'_>) -> io::Result<()> {
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        let room = if connection.is_forgotten { CHUNK } else { connection.credit.min(CHUNK) };
        if room == 0 || connection.code_has_ended {
            return Ok(());
        }
        let buffer = &mut self.buffer[..room];
        let read =
            rustix::io::retry_on_intr(|| rustix::net::recv(&connection.socket, &mut *buffer, RecvFlags::empty()));
        match read {
            Ok((0, _)) => {
                connection.code_has_ended = true;
                if !connection.is_forgotten {
                    send(&FromRunner::EndStream { stream: id }, &[])?;
                }
                self.remove_if_over(id);
                Ok(())
            }
            Ok(_) if connection.is_forgotten => Ok(()),
            Ok((count, _)) => {
                connection.credit -= count;
                send(&FromRunner::StreamData { stream: id }, &self.buffer[..count])
            }
            Err(Errno::AGAIN) => Ok(()),
            Err(_) => self.break_off(id, send),
        }
    }

    /// Writes as much as there is room for.
    fn write(&mut self, id: StreamId, send: SendToHost<'_>) -> io::Result<()> {
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        let flushed = connection.flush();
        if connection.written >= STREAM_WINDOW / 2 && !connection.host_has_ended {
            let bytes = std::mem::take(&mut connection.written) as u32;
            send(&FromRunner::StreamCredit { stream: id, bytes }, &[])?;
        }
        match flushed {
            Ok(()) => {
                self.remove_if_over(id);
                Ok(())
            }
            Err(BrokenConnection) => self.break_off(id, send),
        }
    }

    /// Drops a connection that broke, and tells the host unless it has forgotten the stream.
    fn break_off(&mut self, id: StreamId, send: SendToHost<'_>) -> io::Result<()> {
        let Some(connection) = self.connections.remove(&id) else { return Ok(()) };
        // If both directions have ended, the host has forgotten the stream already.
        let is_known = !(connection.is_forgotten || connection.code_has_ended && connection.host_has_ended);
        if is_known { send(&FromRunner::ResetStream { stream: id }, &[]) } else { Ok(()) }
    }

    /// Closes a connection whose both directions have ended.
    fn remove_if_over(&mut self, id: StreamId) {
        if self.connections.get(&id).is_some_and(|it| it.is_shut && it.code_has_ended) {
            self.connections.remove(&id);
        }
    }

    /// Returns the connection of a stream, or None if it is gone. Fails if there never was such a stream.
    fn find(&mut self, stream: StreamId) -> io::Result<Option<&mut DoorConnection>> {
        if stream.0 == 0 || stream.0 > self.last_stream {
            return Err(protocol_error(format!("the host named stream {}, which was never opened", stream.0)));
        }
        Ok(self.connections.get_mut(&stream))
    }

    /// The host sends bytes to the code. Fails if it sends more than it may, or cannot be written to.
    pub(crate) fn receive(&mut self, stream: StreamId, bytes: &[u8], send: SendToHost<'_>) -> io::Result<()> {
        let Some(connection) = self.find(stream)? else { return Ok(()) };
        if connection.host_has_ended || connection.output.len() + connection.written + bytes.len() > STREAM_WINDOW {
            return Err(protocol_error(format!("the host sent more of stream {} than it may", stream.0)));
        }
        connection.output.extend(bytes);
        self.write(stream, send)
    }

    /// The host takes more bytes of a stream. Fails if it takes more than it was sent.
    pub(crate) fn add_credit(&mut self, stream: StreamId, bytes: u32) -> io::Result<()> {
        let Some(connection) = self.find(stream)? else { return Ok(()) };
        connection.credit = connection.credit.saturating_add(bytes as usize);
        if connection.credit > STREAM_WINDOW {
            return Err(protocol_error(format!("the host gave more credit to stream {} than it may", stream.0)));
        }
        Ok(())
    }

    /// The host sends no more on a stream. Fails if it cannot be written to.
    pub(crate) fn end_stream(&mut self, stream: StreamId, send: SendToHost<'_>) -> io::Result<()> {
        let Some(connection) = self.find(stream)? else { return Ok(()) };
        connection.host_has_ended = true;
        self.write(stream, send)
    }

    /// The host has ended a stream. What it sent before an end still reaches the code.
    pub(crate) fn reset(&mut self, stream: StreamId) -> io::Result<()> {
        let Some(connection) = self.find(stream)? else { return Ok(()) };
        connection.is_forgotten = true;
        if !connection.host_has_ended
            && let Some(connection) = self.connections.remove(&stream)
        {
            connection.close();
        }
        Ok(())
    }
}

impl DoorConnection {
    fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            credit: STREAM_WINDOW,
            code_has_ended: false,
            output: VecDeque::new(),
            written: 0,
            host_has_ended: false,
            is_forgotten: false,
            is_shut: false,
        }
    }

    fn wanted(&self) -> PollFlags {
        let may_read = !self.code_has_ended && (self.credit > 0 || self.is_forgotten);
        let read = if may_read { PollFlags::IN } else { PollFlags::empty() };
        let write = if self.output.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
        read | write
    }

    /// Writes as much as there is room for, and then the end if the host has ended the stream. Fails if the connection is
    /// broken.
    fn flush(&mut self) -> Result<(), BrokenConnection> {
        while !self.output.is_empty() {
            // NOSIGNAL, because a closed connection must not end the runner.
            match rustix::net::send(&self.socket, self.output.as_slices().0, SendFlags::NOSIGNAL) {
                Ok(count) => {
                    self.output.drain(..count);
                    self.written += count;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(_) => return Err(BrokenConnection),
            }
        }
        if self.host_has_ended && !self.is_shut {
            self.is_shut = true;
            rustix::net::shutdown(&self.socket, Shutdown::Write).map_err(|_| BrokenConnection)?;
        }
        Ok(())
    }

    /// Closes the connection. Unless the host has sent everything, the code gets an error, so that it does not take what
    /// it got for the whole.
    fn close(self) {
        if !self.is_shut {
            let _ = sockopt::set_socket_linger(&self.socket, Some(Duration::ZERO));
        }
    }
}

fn report_message(cell: CellId, report: NameReport) -> FromRunner {
    match report {
        NameReport::One(name) => FromRunner::UnknownName { cell, name },
        NameReport::More(count) => FromRunner::MoreUnknownNames { cell, count },
    }
}

/// Listens on a port of the loopback, or on any if it is 0. Returns the port.
fn listen(port: u16) -> rustix::io::Result<(OwnedFd, u16)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    rustix::net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))?;
    rustix::net::listen(&socket, MAX_STREAMS as i32)?;
    let address = SocketAddrV4::try_from(rustix::net::getsockname(&socket)?)?;
    Ok((socket, address.port()))
}

#[cfg(test)]
mod tests;
