//! A DNS server for the names of attacks, and a way to make it the resolver of one program. It answers each lookup of a name
//! with the next addresses of its script, and keeps what it was asked. Only root can give a program another resolver.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;

use cove_testkit::program::wrap;
use serde::Deserialize;

const DNS_PORT: u16 = 53;
const HEADER_LENGTH: usize = 12;
/// The types of records that lead to addresses.
const A: u16 = 1;
const AAAA: u16 = 28;
/// Gives the program that follows its own files for the resolver, in a mount namespace of its own.
const WITH_RESOLVER: &str = "mount --bind \"$1/resolv.conf\" /etc/resolv.conf && \
                             mount --bind \"$1/nsswitch.conf\" /etc/nsswitch.conf && shift && exec \"$@\"";

/// A name that leads somewhere.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScriptedName {
    pub(crate) host: String,
    /// The addresses of each lookup; the last ones stay.
    answers: Vec<Vec<IpAddr>>,
    /// How often all attacks together look it up. A resolver asks again for a name without an address, so that has none.
    pub(crate) lookups: Option<usize>,
}

/// The server. It ends with the process.
pub(crate) struct ScriptedDns {
    address: Ipv4Addr,
    /// The name of each question of type A, in small letters.
    lookups: Arc<Mutex<Vec<String>>>,
}

impl ScriptedDns {
    /// Starts a server at a loopback address of its own, because the resolver knows no port.
    pub(crate) fn start(names: Vec<ScriptedName>) -> Self {
        let addresses = (0..=u16::MAX).map(|number| {
            let [third, fourth] = (std::process::id() as u16).wrapping_add(number).to_be_bytes();
            Ipv4Addr::new(127, 53, third, fourth)
        });
        let bound = addresses.filter_map(|address| Some((address, UdpSocket::bind((address, DNS_PORT)).ok()?))).next();
        let (address, socket) = bound.expect("root can bind the port of DNS");
        let lookups = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&lookups);
        thread::spawn(move || {
            let mut query = [0; 512];
            while let Ok((length, from)) = socket.recv_from(&mut query) {
                if let Some(answer) = answer(&query[..length], &names, &kept) {
                    let _ = socket.send_to(&answer, from);
                }
            }
        });
        Self { address, lookups }
    }

    /// Returns the command with this server as its resolver. Writes the files for that into `folder`.
    pub(crate) fn as_resolver_of(&self, command: &Command, folder: &Path) -> Command {
        let resolver = format!("nameserver {}\nsearch .\noptions timeout:5 attempts:1\n", self.address);
        fs::write(folder.join("resolv.conf"), resolver).unwrap();
        fs::write(folder.join("nsswitch.conf"), "passwd: files\ngroup: files\nhosts: files dns\n").unwrap();
        let folder = folder.to_str().unwrap();
        let unshare = ["unshare", "--mount", "--propagation", "private", "sh", "-c", WITH_RESOLVER, "sh", folder];
        wrap(&unshare, command)
    }

    /// Returns how often a name was looked up, each time for both kinds of addresses.
    pub(crate) fn count(&self, name: &str) -> usize {
        self.lookups.lock().unwrap().iter().filter(|asked| *asked == name).count()
    }

    pub(crate) fn lookups(&self) -> Vec<String> {
        self.lookups.lock().unwrap().clone()
    }
}

/// Answers a query with one question. Returns None if it has none.
fn answer(query: &[u8], names: &[ScriptedName], lookups: &Mutex<Vec<String>>) -> Option<Vec<u8>> {
    let (mut labels, mut at) = (Vec::new(), HEADER_LENGTH);
    while let length @ 1.. = usize::from(*query.get(at)?) {
        labels.push(String::from_utf8_lossy(query.get(at + 1..at + 1 + length)?).to_ascii_lowercase());
        at += 1 + length;
    }
    let question = query.get(HEADER_LENGTH..at + 5)?;
    let kind = u16::from_be_bytes([query[at + 1], query[at + 2]]);
    let name = labels.join(".");
    let scripted = names.iter().find(|scripted| scripted.host == name);
    let addresses = {
        let mut lookups = lookups.lock().unwrap();
        // The question for the other kind of address comes second, and belongs to the same lookup.
        if kind != AAAA {
            lookups.push(name.clone());
        }
        let lookup = lookups.iter().filter(|asked| **asked == name).count().saturating_sub(1);
        let answers = scripted.map_or(&[][..], |scripted| &scripted.answers);
        answers.get(lookup).or(answers.last()).cloned().unwrap_or_default()
    };
    let records: Vec<Vec<u8>> = addresses.iter().filter_map(|address| record(*address, kind)).collect();
    let flags: [u8; 2] = if scripted.is_some() { [0x81, 0x80] } else { [0x81, 0x83] };
    let counts = [0, 1, 0, records.len() as u8, 0, 0, 0, 0];
    Some([&query[..2], &flags, &counts, question, &records.concat()].concat())
}

/// Returns an address as a record of this type for the name of the question.
fn record(address: IpAddr, kind: u16) -> Option<Vec<u8>> {
    let octets = match (address, kind) {
        (IpAddr::V4(v4), A) => v4.octets().to_vec(),
        (IpAddr::V6(v6), AAAA) => v6.octets().to_vec(),
        _ => return None,
    };
    // The name of the question, this type, class IN, no time to live, the length.
    let [high, low] = kind.to_be_bytes();
    let head = [0xc0, HEADER_LENGTH as u8, high, low, 0, 1, 0, 0, 0, 0, 0, octets.len() as u8];
    Some([&head[..], &octets].concat())
}
