//! sock_diag(7): how much memory the kernel holds for the sockets of a sandbox.
//!
//! Data that was sent and not received counts for no process. The kernel reports it for each socket of a network
//! namespace, to any process that has a socket of the right kind in that namespace: the child opens one before it
//! executes the runner, and hands it to the jail process.
//!
//! On a Unix socket, data counts for the socket that sent it. When that is closed, no report names it any more, and the
//! data stays until the other side reads it. But the number of sockets in use still includes it, so the difference
//! between that number and the reports is the number of these. Each counts as full. The filter keeps code from changing
//! how much a socket may send.

use std::fs;
use std::os::fd::OwnedFd;

use rustix::net::{RecvFlags, SendFlags, recv, send};

/// What the kernel needs for a socket itself: its record, its file and its inode.
const SOCKET_BYTES: u64 = 3 << 10;
/// The kernel's default for what a Unix socket may send before the other side reads.
const DEFAULT_SEND_BUFFER: u64 = 212_992;

/// Constants of linux/netlink.h, linux/sock_diag.h, linux/unix_diag.h, linux/netlink_diag.h and linux/inet_diag.h.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const DUMP_REQUEST: u16 = 0x301;
const UNIX_SHOW_MEMORY: u32 = 0x20;
const UNIX_MEMORY: u16 = 5;
const NETLINK_SHOW_MEMORY: u32 = 1;
const NETLINK_MEMORY: u16 = 0;
const NETLINK_ALL_PROTOCOLS: u8 = 255;
const INET_SHOW_MEMORY: u8 = 1 << 6;
const INET_MEMORY: u16 = 7;
const ALL_STATES: u32 = u32::MAX;
/// Lengths of `nlmsghdr` and of the answers before their attributes.
const HEADER: usize = 16;
const UNIX_ANSWER: usize = 16;
const NETLINK_ANSWER: usize = 28;
const INET_ANSWER: usize = 72;

/// Measures the sockets of one network namespace.
pub(crate) struct SocketMeter {
    /// The socket in the sandbox's network namespace; `None` if the kernel has no such sockets.
    diagnosis: Option<OwnedFd>,
    /// What a socket that no report names may hold.
    unseen_bytes: u64,
}

/// The sockets that reports name.
#[derive(Debug, Default, PartialEq, Eq)]
struct SocketReports {
    sockets: u64,
    bytes: u64,
}

impl SocketMeter {
    pub(crate) fn new(diagnosis: Option<OwnedFd>) -> Self {
        let buffer = fs::read_to_string("/proc/sys/net/core/wmem_default").ok();
        let buffer = buffer.and_then(|text| text.trim().parse().ok()).unwrap_or(DEFAULT_SEND_BUFFER);
        // A socket that is not yet full may send one more message as large as its buffer.
        Self { diagnosis, unseen_bytes: 2 * buffer }
    }

    /// Returns the memory of all sockets in the network namespace of a process.
    pub(super) fn measure(&self, process: i32) -> u64 {
        let read = |file: &str| fs::read_to_string(format!("/proc/{process}/net/{file}")).unwrap_or_default();
        let (v4, v6) = (read("sockstat"), read("sockstat6"));
        let own = u64::from(self.diagnosis.is_some());
        let used = in_use(&v4, "sockets: used ");
        if used <= own {
            return 0;
        }
        let mut reports = self.dump(&unix_request(), UNIX_ANSWER, UNIX_MEMORY);
        // Only if there are any, because to find them the kernel searches the tables of the whole machine.
        let inet = [
            (libc::AF_INET, libc::IPPROTO_TCP, in_use(&v4, "TCP: inuse ")),
            (libc::AF_INET6, libc::IPPROTO_TCP, in_use(&v6, "TCP6: inuse ")),
            (libc::AF_INET, libc::IPPROTO_UDP, in_use(&v4, "UDP: inuse ")),
            (libc::AF_INET6, libc::IPPROTO_UDP, in_use(&v6, "UDP6: inuse ")),
        ];
        for (family, protocol, _) in inet.into_iter().filter(|(_, _, count)| *count > 0) {
            reports.add(self.dump(&inet_request(family as u8, protocol as u8), INET_ANSWER, INET_MEMORY));
        }
        // This process's own is a netlink socket.
        if reports.sockets + own < used {
            reports.add(self.dump(&netlink_request(), NETLINK_ANSWER, NETLINK_MEMORY));
        }
        let unseen = used.saturating_sub(reports.sockets.max(own));
        reports.bytes + unseen * self.unseen_bytes + used * SOCKET_BYTES
    }

    /// Asks the kernel for all sockets of one kind. It answers at once, so this never waits.
    fn dump(&self, request: &[u8], answer_length: usize, memory: u16) -> SocketReports {
        let mut reports = SocketReports::default();
        let Some(diagnosis) = &self.diagnosis else { return reports };
        let mut message = Vec::with_capacity(HEADER + request.len());
        message.extend(((HEADER + request.len()) as u32).to_ne_bytes());
        message.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        message.extend(DUMP_REQUEST.to_ne_bytes());
        message.extend([0; 8]);
        message.extend(request);
        if send(diagnosis, &message, SendFlags::DONTWAIT).is_err() {
            return reports;
        }
        let mut buffer = vec![0; 32 << 10];
        while let Ok((count @ 1.., _)) = recv(diagnosis, &mut buffer, RecvFlags::DONTWAIT) {
            if !reports.read(&buffer[..count.min(buffer.len())], answer_length, memory) {
                break;
            }
        }
        reports
    }
}

impl SocketReports {
    fn add(&mut self, more: Self) {
        self.sockets += more.sockets;
        self.bytes += more.bytes;
    }

    /// Reads the messages of one answer. Returns whether more answers follow.
    fn read(&mut self, mut messages: &[u8], answer_length: usize, memory: u16) -> bool {
        while let (Some(length), Some(kind)) = (number(messages, 0), number_16(messages, 4)) {
            let length = length as usize;
            // `NLMSG_ERROR` ends it too: the kernel has no report of this kind.
            if kind != SOCK_DIAG_BY_FAMILY || length < HEADER || length > messages.len() {
                return kind == SOCK_DIAG_BY_FAMILY;
            }
            // The kernel's own netlink sockets are no sockets of the sandbox: their port is 0.
            let is_kernels = memory == NETLINK_MEMORY && number(messages, HEADER + 4) == Some(0);
            let attributes = messages.get(HEADER + answer_length..length).unwrap_or_default();
            // Of a connection in `TIME_WAIT` only a small record is left, without memory, and `used` does not include it:
            // if it counted as a socket, it would hide one that no report names.
            if let Some(values) = find_attribute(attributes, memory).filter(|_| !is_kernels) {
                self.sockets += 1;
                self.bytes += socket_memory(values);
            }
            messages = messages.get(align(length)..).unwrap_or_default();
        }
        true
    }
}

/// Adds up `SK_MEMINFO_*`: received, sent, reserved, options and backlog. What is queued to be sent is often part of
/// what was sent.
fn socket_memory(values: &[u8]) -> u64 {
    let value = |index: usize| u64::from(number(values, index * 4).unwrap_or(0));
    value(0) + value(2).max(value(5)) + value(4) + value(6) + value(7)
}

fn find_attribute(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let (length, kind) = (number_16(attributes, 0)? as usize, number_16(attributes, 2)?);
        let value = attributes.get(4..length)?;
        if kind == wanted {
            return Some(value);
        }
        attributes = attributes.get(align(length)..)?;
    }
}

fn unix_request() -> Vec<u8> {
    let mut request = vec![libc::AF_UNIX as u8, 0, 0, 0];
    request.extend(ALL_STATES.to_ne_bytes());
    request.extend([0; 4]);
    request.extend(UNIX_SHOW_MEMORY.to_ne_bytes());
    request.extend([0; 8]);
    request
}

fn netlink_request() -> Vec<u8> {
    let mut request = vec![libc::AF_NETLINK as u8, NETLINK_ALL_PROTOCOLS, 0, 0, 0, 0, 0, 0];
    request.extend(NETLINK_SHOW_MEMORY.to_ne_bytes());
    request.extend([0; 8]);
    request
}

fn inet_request(family: u8, protocol: u8) -> Vec<u8> {
    let mut request = vec![family, protocol, INET_SHOW_MEMORY, 0];
    request.extend(ALL_STATES.to_ne_bytes());
    request.extend([0; 48]);
    request
}

/// Reads a line of `/proc/net/sockstat`.
fn in_use(sockstat: &str, start: &str) -> u64 {
    let line = sockstat.lines().find_map(|line| line.strip_prefix(start));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn number_16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Netlink aligns everything to four bytes.
fn align(length: usize) -> usize {
    (length + 3) & !3
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    fn diagnosis() -> OwnedFd {
        crate::steps::net::open_diagnosis().expect("this kernel has sock_diag")
    }

    #[test]
    fn sees_what_a_unix_socket_holds() {
        let meter = SocketMeter::new(Some(diagnosis()));
        let bytes = || meter.dump(&unix_request(), UNIX_ANSWER, UNIX_MEMORY).bytes;
        let (mut sender, _receiver) = UnixStream::pair().unwrap();
        sender.set_nonblocking(true).unwrap();
        let before = bytes();
        let mut sent = 0;
        while let Ok(count) = sender.write(&[0; 4096]) {
            sent += count as u64;
        }
        // Other tests have sockets too.
        assert!(sent > 50_000 && bytes() > before + sent / 2, "{before} {sent} {}", bytes());
    }

    #[test]
    fn a_closed_connection_is_no_socket() {
        let meter = SocketMeter::new(Some(diagnosis()));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let connect = || (std::net::TcpStream::connect(("127.0.0.1", port)).unwrap(), listener.accept().unwrap());
        let closed: Vec<_> = (0..100).map(|_| connect()).collect();
        // The connecting side closes first, and waits.
        let (connecting, accepted): (Vec<_>, Vec<_>) = closed.into_iter().unzip();
        drop(connecting);
        drop(accepted);
        let waiting = fs::read_to_string("/proc/net/tcp").unwrap();
        let port = format!(":{port:04X}");
        assert!(waiting.lines().filter(|line| line.contains(&port) && line.contains(" 06 ")).count() > 50);
        let request = inet_request(libc::AF_INET as u8, libc::IPPROTO_TCP as u8);
        // Other tests have a few connections too.
        assert!(meter.dump(&request, INET_ANSWER, INET_MEMORY).sockets < 50);
    }

    #[test]
    fn reads_garbage_without_panic() {
        for length in 0..64 {
            let mut reports = SocketReports::default();
            let mut message = vec![0xff; length];
            reports.read(&message, UNIX_ANSWER, UNIX_MEMORY);
            if length >= 6 {
                message[..4].copy_from_slice(&(length as u32).to_ne_bytes());
                message[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
                reports.read(&message, UNIX_ANSWER, UNIX_MEMORY);
            }
        }
        assert_eq!(in_use("sockets: used 13\nTCP: inuse 2 orphan 0\n", "TCP: inuse "), 2);
        assert_eq!(in_use("nonsense", "TCP: inuse "), 0);
    }
}
