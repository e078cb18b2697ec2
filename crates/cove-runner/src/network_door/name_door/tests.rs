//! The book of names, asked as programs ask, with listeners on this machine's loopback.

use std::io::{Read, Write};
use std::net::UdpSocket;

use super::super::dns_message::tests::question;
use super::*;

const A: u16 = 1;
const AAAA: u16 = 28;

fn book(patterns: &[(&str, &[u16])]) -> NameBook {
    let name =
        |(pattern, ports): &(&str, &[u16])| ReachableName { pattern: (*pattern).to_owned(), ports: ports.to_vec() };
    let reports = NameReports { has_cell: true, ..NameReports::default() };
    NameBook { patterns: patterns.iter().map(name).collect(), reports, ..NameBook::default() }
}

fn ask(book: &mut NameBook, name: &str, record: u16) -> (DnsAnswer, Vec<NameReport>) {
    let (bytes, mut reports) = (question(name, record), Vec::new());
    let asked = DnsQuestion::parse(&bytes).unwrap();
    let answer = book.answer(&asked, &mut |report| {
        reports.push(report);
        Ok(())
    });
    (answer.unwrap(), reports)
}

/// A port that is free on this address.
fn free_port(host: Ipv4Addr) -> u16 {
    TcpListener::bind((host, 0)).unwrap().local_addr().unwrap().port()
}

#[test]
fn each_name_has_an_address_of_its_own_for_good() {
    let port = free_port(address(0));
    let mut book = book(&[("a.test", &[port]), ("*.b.test", &[port])]);
    let first = DnsAnswer::Address(Ipv4Addr::new(127, 64, 0, 1));
    assert_eq!(ask(&mut book, "a.test", A), (first, vec![]));
    assert_eq!(ask(&mut book, "x.b.test", A).0, DnsAnswer::Address(Ipv4Addr::new(127, 64, 0, 2)));
    assert_eq!(ask(&mut book, "A.TEST", A).0, first);
    assert_eq!(ask(&mut book, "a.test", AAAA), (DnsAnswer::Empty, vec![]), "IPv6 is not there, and the name is");
    assert_eq!(address(MAX_NAMES - 1), Ipv4Addr::new(127, 64, 16, 0));
}

#[test]
fn the_sandbox_s_own_name_is_there_unless_a_rule_has_it() {
    let own = || NameBook { own_name: "box".to_owned(), ..book(&[("a.test", &[443])]) };
    assert_eq!(ask(&mut own(), "BOX", A), (DnsAnswer::Address(Ipv4Addr::LOCALHOST), vec![]));
    assert_eq!(ask(&mut own(), "box", AAAA), (DnsAnswer::Empty, vec![]));
    assert_eq!(ask(&mut own(), "box.test", A).0, DnsAnswer::UnknownName);
    let port = free_port(address(0));
    let mut named = NameBook { own_name: "box.test".to_owned(), ..book(&[("box.test", &[port])]) };
    assert_eq!(ask(&mut named, "box.test", A).0, DnsAnswer::Address(address(0)));
}

#[test]
fn unknown_names_are_reported_once_and_then_counted() {
    let mut book = book(&[("a.test", &[443])]);
    let unknown = |name: &str| (DnsAnswer::UnknownName, vec![NameReport::One(name.to_owned())]);
    assert_eq!(ask(&mut book, "evil.test", A), unknown("evil.test"));
    assert_eq!(ask(&mut book, "evil.test", AAAA), (DnsAnswer::UnknownName, vec![]));
    assert_eq!(ask(&mut book, "evil\0.a.test", A), unknown("evil?.a.test"));
    assert_eq!(ask(&mut book, "sub.a.test", A), unknown("sub.a.test"));
    assert_eq!(ask(&mut book, "_http._tcp.evil.test", 33), (DnsAnswer::UnknownName, vec![]));
    let reports: usize = (0..1000).map(|number| ask(&mut book, &format!("x{number}.evil.test"), A).1.len()).sum();
    assert_eq!((reports + 3, book.reports.more), (MAX_UNKNOWN_NAMES, 1000 - reports as u64));
    book.reports = NameReports::default();
    assert_eq!(ask(&mut book, "evil.test", A), (DnsAnswer::UnknownName, vec![]), "no cell runs");
}

#[test]
fn names_and_listeners_are_bounded() {
    let port = free_port(address(0));
    let mut book = book(&[("**.many.test", &[port])]);
    for number in 0..MAX_NAMES {
        let DnsAnswer::Address(_) = ask(&mut book, &format!("n{number}.many.test"), A).0 else { panic!("{number}") };
        let open: usize = book.names.iter().map(|entry| entry.listeners.len()).sum();
        assert!(open <= MAX_LISTENERS, "{open} listeners");
    }
    let report = NameReport::One("one-more.many.test".to_owned());
    assert_eq!(ask(&mut book, "one-more.many.test", A), (DnsAnswer::Failure, vec![report]));
    assert!(book.names[0].listeners.is_empty() && !book.names[MAX_NAMES - 1].listeners.is_empty());
    ask(&mut book, "n0.many.test", A);
    assert!(!book.names[0].listeners.is_empty(), "asking again opens them");
    assert!(book.listening.len() <= MAX_LISTENERS);
}

#[test]
fn a_name_is_not_answered_while_a_program_has_its_port_on_every_address() {
    let own = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    let port = own.local_addr().unwrap().port();
    let mut book = book(&[("a.test", &[port])]);
    let report = NameReport::One("a.test".to_owned());
    assert_eq!(ask(&mut book, "a.test", A), (DnsAnswer::Failure, vec![report]));
    drop(own);
    assert_eq!(ask(&mut book, "a.test", A).0, DnsAnswer::Address(address(0)));
    let on_loopback = TcpListener::bind((Ipv4Addr::LOCALHOST, port));
    assert!(on_loopback.is_ok(), "the code's own server has the port on its own address");
}

/// Handles what has come, as the loop would.
fn settle(door: &mut NameDoor) {
    let sources: Vec<DnsSource> = door.sockets.sources().map(|(source, _)| source).collect();
    for source in sources {
        door.answer(source, &mut |_| Ok(())).unwrap();
    }
}

#[test]
fn answers_over_both_protocols_and_survives_what_is_no_question() {
    let sockets = DnsSockets::open_at(0).unwrap();
    let port = free_port(address(0));
    let names = vec![ReachableName { pattern: "a.test".to_owned(), ports: vec![port] }];
    let mut door = NameDoor::with_sockets(sockets, NetworkSetup { names, ..NetworkSetup::default() });
    let place = door.sockets.local_address();
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.connect(place).unwrap();
    for bad in [&b""[..], b"x", &[0; 12], &[0xff; 600]] {
        client.send(bad).unwrap();
    }
    client.send(&question("a.test", A)).unwrap();
    settle(&mut door);
    let mut answers = Vec::new();
    for _ in 0..2 {
        let mut answer = [0; 600];
        let length = client.recv(&mut answer).unwrap();
        answers.push(answer[..length].to_vec());
    }
    assert_eq!((answers[0].len(), answers[0][3] & 0x0f), (12, 1), "the empty header");
    assert!(answers[1].ends_with(&[127, 64, 0, 1]));

    let framed = |message: &[u8]| [&(message.len() as u16).to_be_bytes(), message].concat();
    let mut client = TcpStream::connect(place).unwrap();
    settle(&mut door);
    for byte in framed(&question("a.test", A)) {
        client.write_all(&[byte]).unwrap();
        settle(&mut door);
    }
    let mut answer = [0; 42];
    client.read_exact(&mut answer).unwrap();
    assert!(answer.ends_with(&[127, 64, 0, 1]));
    for bad in [framed(&[7; 600]), framed(b""), framed(b"x")] {
        let mut client = TcpStream::connect(place).unwrap();
        settle(&mut door);
        client.write_all(&bad).unwrap();
        settle(&mut door);
        settle(&mut door);
        assert!(matches!(client.read(&mut [0; 9]), Ok(0) | Err(_)), "{bad:?}");
    }
    let crowd: Vec<TcpStream> = (0..50).map(|_| TcpStream::connect(place).unwrap()).collect();
    crowd.iter().for_each(|_| settle(&mut door));
    assert!(door.sockets.sources().count() <= 2 + 8);
}
