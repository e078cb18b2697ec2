//! The name door, for programs that know no proxy: each name that the host has named gets a loopback address of its own,
//! where the runner listens on the ports of the name. The runner decides nothing: it says which name a connection came
//! for, and the host judges that anew.
//!
//! The runner listens on these addresses only, and only once a name was asked for, so that the code's own servers can
//! have the same ports on 127.0.0.1. A program that listens on every address cannot have them from then on.
//!
//! Bounds: `MAX_NAMES` names, which keep their addresses for the life of the sandbox, and `MAX_LISTENERS` listeners. When
//! a name needs more, those of the names that were asked for longest ago are closed; asking again opens them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use cove_protocol::limits::{MAX_NAMES, MAX_UNKNOWN_NAMES};
use cove_protocol::{NetworkSetup, ReachableName, StreamDoor, is_host_name};

use super::dns_message::{BadQuestion, DnsAnswer, DnsQuestion};
use super::dns_sockets::{DnsSockets, DnsSource};

/// A process may have 512 descriptors in some sandboxes, of which connections take 128.
const MAX_LISTENERS: usize = 192;
/// More than the rules of one name have.
const MAX_PORTS: usize = 32;
/// Every name has these if they are free, so that the host can say why a connection is refused.
const USUAL_PORTS: [u16; 2] = [80, 443];

/// What the runner does with a report.
pub(super) type ReportName<'a> = &'a mut dyn FnMut(NameReport) -> io::Result<()>;

/// A name that is not answered: the first ones of a cell are named, and further ones are counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NameReport {
    One(String),
    More(u64),
}

pub(super) struct NameDoor {
    sockets: DnsSockets,
    book: NameBook,
}

/// The names and their listeners.
#[derive(Default)]
struct NameBook {
    patterns: Vec<ReachableName>,
    /// What the sandbox calls itself. Programs such as git ask for it, and in some containers no file answers.
    own_name: String,
    /// By number: the position of a name is the end of its address.
    names: Vec<NameEntry>,
    numbers: BTreeMap<String, usize>,
    /// The names that have listeners; the last one was asked for most recently.
    listening: VecDeque<usize>,
    reports: NameReports,
}

struct NameEntry {
    name: String,
    ports: Vec<u16>,
    listeners: Vec<(u16, TcpListener)>,
}

/// What was reported of the running cell.
#[derive(Default)]
struct NameReports {
    has_cell: bool,
    reported: BTreeSet<String>,
    more: u64,
}

/// A socket of the door that the loop polls.
#[derive(Debug, Clone, Copy)]
pub(crate) enum NameDoorSource {
    Dns(DnsSource),
    Listener { number: usize, port: u16 },
}

impl NameDoor {
    /// Fails if another program has the port of DNS, or if the kernel keeps it for root.
    pub(super) fn open(setup: NetworkSetup) -> io::Result<Self> {
        Ok(Self::with_sockets(DnsSockets::open()?, setup))
    }

    fn with_sockets(sockets: DnsSockets, setup: NetworkSetup) -> Self {
        let own_name = rustix::system::uname().nodename().to_string_lossy().to_ascii_lowercase();
        Self { sockets, book: NameBook { patterns: setup.names, own_name, ..NameBook::default() } }
    }

    pub(super) fn begin(&mut self) {
        self.book.reports = NameReports { has_cell: true, ..NameReports::default() };
    }

    /// The cell ends. Returns what is left to report.
    pub(super) fn end(&mut self) -> Option<NameReport> {
        let NameReports { more, .. } = std::mem::take(&mut self.book.reports);
        (more > 0).then_some(NameReport::More(more))
    }

    /// Returns the sockets that answer names.
    pub(super) fn dns_sources(&self) -> impl Iterator<Item = (NameDoorSource, BorrowedFd<'_>)> {
        self.sockets.sources().map(|(source, fd)| (NameDoorSource::Dns(source), fd))
    }

    /// Returns the sockets that accept connections.
    pub(super) fn listeners(&self) -> impl Iterator<Item = (NameDoorSource, BorrowedFd<'_>)> {
        self.book.listening.iter().flat_map(|&number| {
            let listeners = self.book.names[number].listeners.iter();
            listeners.map(move |(port, listener)| (NameDoorSource::Listener { number, port: *port }, listener.as_fd()))
        })
    }

    /// Answers questions that have come.
    pub(super) fn answer(&mut self, source: DnsSource, report: ReportName<'_>) -> io::Result<()> {
        let book = &mut self.book;
        self.sockets.handle(source, &mut |message| match DnsQuestion::parse(message) {
            Ok(question) => Ok(Some(question.answer(book.answer(&question, report)?))),
            Err(BadQuestion::Answered(answer)) => Ok(Some(answer)),
            Err(BadQuestion::Dropped) => Ok(None),
        })
    }

    /// Accepts one connection, and returns what the host is told of it. None if it has gone.
    pub(super) fn accept(&self, number: usize, port: u16) -> Option<(TcpStream, StreamDoor)> {
        let entry = self.book.names.get(number)?;
        let (_, listener) = entry.listeners.iter().find(|(own, _)| *own == port)?;
        let (stream, _) = listener.accept().ok()?;
        stream.set_nonblocking(true).ok()?;
        Some((stream, StreamDoor::Name { host: entry.name.clone(), port }))
    }
}

impl NameBook {
    /// Decides what a question gets, and opens the listeners of a name that is known. Fails if the host cannot be written
    /// to.
    fn answer(&mut self, question: &DnsQuestion<'_>, report: ReportName<'_>) -> io::Result<DnsAnswer> {
        let answer = match self.find(&question.name) {
            Ok(number) if question.asks_for_address() => self.listen(number),
            Err(_) if question.name == self.own_name && question.asks_for_address() => {
                DnsAnswer::Address(Ipv4Addr::LOCALHOST)
            }
            Ok(_) => DnsAnswer::Empty,
            Err(_) if question.name == self.own_name => DnsAnswer::Empty,
            Err(answer) => answer,
        };
        if question.is_about_host() && matches!(answer, DnsAnswer::UnknownName | DnsAnswer::Failure) {
            self.reports.add(&question.name, report)?;
        }
        Ok(answer)
    }

    /// Returns the number of a name, which gets one if it is new. Fails with the answer if no pattern stands for the
    /// name, or if there are too many.
    fn find(&mut self, name: &str) -> Result<usize, DnsAnswer> {
        if let Some(&number) = self.numbers.get(name) {
            return Ok(number);
        }
        let matching: Vec<&ReachableName> = self.patterns.iter().filter(|pattern| pattern.matches(name)).collect();
        if matching.is_empty() || !is_host_name(name) {
            return Err(DnsAnswer::UnknownName);
        }
        if self.names.len() >= MAX_NAMES {
            return Err(DnsAnswer::Failure);
        }
        let mut ports: Vec<u16> = Vec::new();
        for port in matching.iter().flat_map(|pattern| &pattern.ports) {
            if !ports.contains(port) && ports.len() < MAX_PORTS {
                ports.push(*port);
            }
        }
        let number = self.names.len();
        self.names.push(NameEntry { name: name.to_owned(), ports, listeners: Vec::new() });
        self.numbers.insert(name.to_owned(), number);
        Ok(number)
    }

    /// Listens for connections to a name, and returns its address. If one of its ports is not free, because a program
    /// listens on every address, the name is not answered: the connection would reach that program.
    fn listen(&mut self, number: usize) -> DnsAnswer {
        self.listening.retain(|&other| other != number);
        if self.names[number].listeners.is_empty() {
            let wanted = self.names[number].ports.len() + USUAL_PORTS.len();
            while self.listening.iter().map(|&other| self.names[other].listeners.len()).sum::<usize>() + wanted
                > MAX_LISTENERS
            {
                let Some(oldest) = self.listening.pop_front() else { break };
                self.names[oldest].listeners.clear();
            }
            let entry = &mut self.names[number];
            let open = |port| Some((port, listen_at(SocketAddrV4::new(address(number), port)).ok()?));
            let Some(mut listeners) = entry.ports.iter().map(|&port| open(port)).collect::<Option<Vec<_>>>() else {
                return DnsAnswer::Failure;
            };
            listeners.extend(USUAL_PORTS.into_iter().filter(|port| !entry.ports.contains(port)).filter_map(open));
            entry.listeners = listeners;
        }
        self.listening.push_back(number);
        DnsAnswer::Address(address(number))
    }
}

impl NameReports {
    fn add(&mut self, name: &str, report: ReportName<'_>) -> io::Result<()> {
        if !self.has_cell || self.reported.contains(name) {
            return Ok(());
        }
        if self.reported.len() >= MAX_UNKNOWN_NAMES {
            self.more += 1;
            return Ok(());
        }
        self.reported.insert(name.to_owned());
        report(NameReport::One(name.to_owned()))
    }
}

/// Returns the address of a name: 127.64.0.1 for the first one.
fn address(number: usize) -> Ipv4Addr {
    let [.., high, low] = (number + 1).to_be_bytes();
    Ipv4Addr::new(127, 64, high, low)
}

fn listen_at(address: SocketAddrV4) -> io::Result<TcpListener> {
    // The standard library sets SO_REUSEADDR, without which old connections would keep the port for a minute.
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

#[cfg(test)]
mod tests;
