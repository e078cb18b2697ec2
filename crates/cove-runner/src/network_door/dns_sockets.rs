//! The sockets on which code asks for names: UDP, and TCP for the few programs that use it. What the questions mean is
//! not decided here.
//!
//! Bounds: a few datagrams in each turn of the loop, a few TCP clients of which the oldest goes when a new one comes, and
//! one message in the memory of each.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use super::dns_message::MAX_MESSAGE;

const DNS_PORT: u16 = 53;
const MAX_CLIENTS: usize = 8;
/// Datagrams in one turn: code that asks without end must not block the loop.
const DATAGRAMS_OF_TURN: usize = 16;
/// The length before each message over TCP.
const PREFIX: usize = 2;

/// Returns the answer to a message, or None if it gets none. Fails if the host cannot be written to.
pub(super) type AnswerMessage<'a> = &'a mut dyn FnMut(&[u8]) -> io::Result<Option<Vec<u8>>>;

pub(super) struct DnsSockets {
    datagrams: UdpSocket,
    listener: TcpListener,
    clients: BTreeMap<u64, DnsClient>,
    last_client: u64,
}

struct DnsClient {
    stream: TcpStream,
    /// The part of a message that has come.
    input: Vec<u8>,
}

/// A socket that the loop polls.
#[derive(Debug, Clone, Copy)]
pub(crate) enum DnsSource {
    Datagrams,
    Listener,
    Client(u64),
}

impl DnsSockets {
    /// Fails if another program has the port, or if the kernel keeps it for root.
    pub(super) fn open() -> io::Result<Self> {
        Self::open_at(DNS_PORT)
    }

    pub(super) fn open_at(port: u16) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        let datagrams = UdpSocket::bind((Ipv4Addr::LOCALHOST, listener.local_addr()?.port()))?;
        listener.set_nonblocking(true)?;
        datagrams.set_nonblocking(true)?;
        Ok(Self { datagrams, listener, clients: BTreeMap::new(), last_client: 0 })
    }

    #[cfg(test)]
    pub(super) fn local_address(&self) -> std::net::SocketAddr {
        self.datagrams.local_addr().unwrap()
    }

    /// Returns the sockets to wait for until they can be read.
    pub(super) fn sources(&self) -> impl Iterator<Item = (DnsSource, BorrowedFd<'_>)> {
        let own = [(DnsSource::Datagrams, self.datagrams.as_fd()), (DnsSource::Listener, self.listener.as_fd())];
        own.into_iter().chain(self.clients.iter().map(|(&id, client)| (DnsSource::Client(id), client.stream.as_fd())))
    }

    pub(super) fn handle(&mut self, source: DnsSource, answer: AnswerMessage<'_>) -> io::Result<()> {
        match source {
            DnsSource::Datagrams => self.answer_datagrams(answer),
            DnsSource::Listener => {
                self.accept();
                Ok(())
            }
            DnsSource::Client(id) => {
                let Some(client) = self.clients.get_mut(&id) else { return Ok(()) };
                if client.read(answer)? == ClientState::Over {
                    self.clients.remove(&id);
                }
                Ok(())
            }
        }
    }

    fn answer_datagrams(&self, answer: AnswerMessage<'_>) -> io::Result<()> {
        // One more than a message has, so that a longer one is not taken for a whole.
        let mut buffer = [0; MAX_MESSAGE + 1];
        for _ in 0..DATAGRAMS_OF_TURN {
            // An error is that of one client, or says that no more have come.
            let Ok((length, client)) = self.datagrams.recv_from(&mut buffer) else { break };
            if let Some(answer) = answer(&buffer[..length])? {
                // A client that has gone needs no answer.
                let _ = self.datagrams.send_to(&answer, client);
            }
        }
        Ok(())
    }

    fn accept(&mut self) {
        let Ok((stream, _)) = self.listener.accept() else { return };
        if stream.set_nonblocking(true).is_err() {
            return;
        }
        if self.clients.len() >= MAX_CLIENTS {
            self.clients.pop_first();
        }
        self.last_client += 1;
        self.clients.insert(self.last_client, DnsClient { stream, input: Vec::new() });
    }
}

#[derive(PartialEq, Eq)]
enum ClientState {
    Open,
    Over,
}

impl DnsClient {
    /// Reads once, and answers if a message is whole.
    fn read(&mut self, answer: AnswerMessage<'_>) -> io::Result<ClientState> {
        let mut buffer = [0; MAX_MESSAGE];
        let missing = self.length() - self.input.len();
        match self.stream.read(&mut buffer[..missing]) {
            Ok(0) => return Ok(ClientState::Over),
            Ok(count) => self.input.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(ClientState::Open),
            Err(_) => return Ok(ClientState::Over),
        }
        let length = self.length();
        if !(PREFIX + 1..=PREFIX + MAX_MESSAGE).contains(&length) && self.input.len() >= PREFIX {
            return Ok(ClientState::Over);
        }
        if self.input.len() < length || length == PREFIX {
            return Ok(ClientState::Open);
        }
        let message = std::mem::take(&mut self.input);
        let Some(answer) = answer(&message[PREFIX..])? else { return Ok(ClientState::Over) };
        let framed = [&(answer.len() as u16).to_be_bytes(), answer.as_slice()].concat();
        // A client that lets its answers pile up is not served further.
        let is_sent = self.stream.write(&framed).is_ok_and(|count| count == framed.len());
        Ok(if is_sent { ClientState::Open } else { ClientState::Over })
    }

    /// Returns how many bytes the message has with its prefix, or the length of the prefix if that is not whole.
    fn length(&self) -> usize {
        match self.input.as_slice() {
            [high, low, ..] => PREFIX + usize::from(u16::from_be_bytes([*high, *low])),
            _ => PREFIX,
        }
    }
}
