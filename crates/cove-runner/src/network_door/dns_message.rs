//! Reads questions of DNS (RFC 1035) and writes their answers: one question, one address at most, 512 bytes. Everything
//! unusual is refused, and nothing is passed on.

use std::net::Ipv4Addr;

/// A message over UDP, and here over TCP too.
pub(super) const MAX_MESSAGE: usize = 512;
const HEADER: usize = 12;
const MAX_LABEL: u8 = 63;
/// A name on the wire, with its lengths.
const MAX_WIRE_NAME: usize = 255;
const CLASS_INTERNET: u16 = 1;
const RECORD_A: u16 = 1;
const RECORD_PTR: u16 = 12;
const RECORD_SRV: u16 = 33;
const RECORD_OPT: u16 = 41;
/// An empty OPT record (RFC 6891), for clients that sent one.
const OPT_ANSWER: [u8; 11] = [0, 0, 41, 2, 0, 0, 0, 0, 0, 0, 0];

/// How a question is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DnsAnswer {
    Address(Ipv4Addr),
    /// The name exists and has no record of this type.
    Empty,
    /// The name does not exist.
    UnknownName,
    /// The name cannot be answered now.
    Failure,
}

/// One question.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DnsQuestion<'a> {
    /// The header and the question, as they came.
    bytes: &'a [u8],
    /// In lower case, with a `?` for each character that no host name has; `.` for the root.
    pub(super) name: String,
    record: u16,
    has_options: bool,
}

/// Why a message is no question.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BadQuestion {
    /// It is not answered: it is too short to have an id, or an answer itself.
    Dropped,
    /// The answer says what is wrong.
    Answered(Vec<u8>),
}

impl<'a> DnsQuestion<'a> {
    /// Fails unless the message is one ordinary question and nothing more.
    pub(super) fn parse(message: &'a [u8]) -> Result<Self, BadQuestion> {
        const MALFORMED: u8 = 1;
        const NOT_IMPLEMENTED: u8 = 4;
        const REFUSED: u8 = 5;
        if message.len() < HEADER || message[2] & 0x80 != 0 {
            return Err(BadQuestion::Dropped);
        }
        let fail = |code| BadQuestion::Answered(error_answer(message, code));
        if message[2] & 0x78 != 0 {
            return Err(fail(NOT_IMPLEMENTED));
        }
        let count = |at: usize| u16::from_be_bytes([message[at], message[at + 1]]);
        let is_one_question = (count(4), count(6), count(8)) == (1, 0, 0) && count(10) <= 1;
        if !is_one_question || message.len() > MAX_MESSAGE {
            return Err(fail(MALFORMED));
        }
        let (name, rest) = read_name(&message[HEADER..]).ok_or_else(|| fail(MALFORMED))?;
        let [record_high, record_low, class_high, class_low, rest @ ..] = rest else { return Err(fail(MALFORMED)) };
        let has_options = count(10) == 1;
        if has_options != is_options(rest) || !has_options && !rest.is_empty() {
            return Err(fail(MALFORMED));
        }
        if u16::from_be_bytes([*class_high, *class_low]) != CLASS_INTERNET {
            return Err(fail(REFUSED));
        }
        let record = u16::from_be_bytes([*record_high, *record_low]);
        Ok(Self { bytes: &message[..message.len() - rest.len()], name, record, has_options })
    }

    /// True for a question about addresses.
    pub(super) fn asks_for_address(&self) -> bool {
        self.record == RECORD_A
    }

    /// False for questions that programs ask beside the one for the address, about names that are no hosts.
    pub(super) fn is_about_host(&self) -> bool {
        !matches!(self.record, RECORD_PTR | RECORD_SRV)
    }

    /// Returns the whole answer.
    pub(super) fn answer(&self, answer: DnsAnswer) -> Vec<u8> {
        let code = match answer {
            DnsAnswer::Address(_) | DnsAnswer::Empty => 0,
            DnsAnswer::Failure => 2,
            DnsAnswer::UnknownName => 3,
        };
        let mut bytes = self.bytes.to_vec();
        bytes[2..4].copy_from_slice(&answer_flags(self.bytes[2], code));
        let records = u8::from(matches!(answer, DnsAnswer::Address(_)));
        bytes[4..HEADER].copy_from_slice(&[0, 1, 0, records, 0, 0, 0, u8::from(self.has_options)]);
        if let DnsAnswer::Address(address) = answer {
            // The name of the question, type A, class Internet, not to be kept, 4 bytes.
            bytes.extend([0xc0, HEADER as u8, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
            bytes.extend(address.octets());
        }
        if self.has_options {
            bytes.extend(OPT_ANSWER);
        }
        bytes
    }
}

/// An answer, recursion as it was asked for and available.
fn answer_flags(asked: u8, code: u8) -> [u8; 2] {
    [0x80 | asked & 0x01, 0x80 | code]
}

/// Returns an answer without a question.
fn error_answer(message: &[u8], code: u8) -> Vec<u8> {
    let mut bytes = message[..HEADER].to_vec();
    bytes[2..4].copy_from_slice(&answer_flags(message[2], code));
    bytes[4..].fill(0);
    bytes
}

/// Returns the name at the beginning and what follows it, or None unless it is made of plain labels.
fn read_name(bytes: &[u8]) -> Option<(String, &[u8])> {
    let (mut name, mut rest) = (String::new(), bytes);
    loop {
        let (&length, after) = rest.split_first()?;
        // Longer ones are references to other names, or reserved.
        if length > MAX_LABEL || bytes.len() - after.len() + usize::from(length) > MAX_WIRE_NAME {
            return None;
        }
        let (label, after) = after.split_at_checked(usize::from(length))?;
        rest = after;
        if label.is_empty() {
            return Some((if name.is_empty() { ".".to_owned() } else { name }, rest));
        }
        if !name.is_empty() {
            name.push('.');
        }
        let plain = |byte: &u8| match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' => char::from(*byte),
            b'A'..=b'Z' => char::from(byte.to_ascii_lowercase()),
            _ => '?',
        };
        name.extend(label.iter().map(plain));
    }
}

/// True for exactly one OPT record.
fn is_options(bytes: &[u8]) -> bool {
    let [0, record_high, record_low, _, _, _, _, _, _, length_high, length_low, data @ ..] = bytes else {
        return false;
    };
    u16::from_be_bytes([*record_high, *record_low]) == RECORD_OPT
        && usize::from(u16::from_be_bytes([*length_high, *length_low])) == data.len()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns a question about a name.
    pub(crate) fn question(name: &str, record: u16) -> Vec<u8> {
        let mut bytes = vec![0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.').filter(|label| !label.is_empty()) {
            bytes.push(label.len() as u8);
            bytes.extend(label.as_bytes());
        }
        bytes.extend([0, (record >> 8) as u8, record as u8, 0, 1]);
        bytes
    }

    fn failure(message: &[u8]) -> Option<u8> {
        match DnsQuestion::parse(message) {
            Err(BadQuestion::Answered(answer)) => {
                assert_eq!((answer.len(), &answer[..2], &answer[4..]), (12, &message[..2], &[0; 8][..]));
                Some(answer[3] & 0x0f)
            }
            Err(BadQuestion::Dropped) => None,
            Ok(question) => panic!("{question:?}"),
        }
    }

    #[test]
    fn answers_repeat_the_question() {
        let bytes = question("Api.Example.test", RECORD_A);
        let read = DnsQuestion::parse(&bytes).unwrap();
        assert_eq!((read.name.as_str(), read.asks_for_address()), ("api.example.test", true));
        let answer = read.answer(DnsAnswer::Address(Ipv4Addr::new(127, 64, 0, 1)));
        assert_eq!(answer[..HEADER], [0xab, 0xcd, 0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0]);
        assert_eq!(answer[HEADER..bytes.len()], bytes[HEADER..]);
        assert_eq!(answer[bytes.len()..], [0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, 127, 64, 0, 1]);
        let unknown = read.answer(DnsAnswer::UnknownName);
        assert_eq!((unknown.len(), unknown[3] & 0x0f), (bytes.len(), 3));
        assert_eq!(read.answer(DnsAnswer::Failure)[3] & 0x0f, 2);
        let other = question("a.test", 28);
        let read = DnsQuestion::parse(&other).unwrap();
        assert!(!read.asks_for_address() && read.is_about_host());
        assert_eq!(read.answer(DnsAnswer::Empty)[3..8], [0x80, 0, 1, 0, 0]);
        assert!(!DnsQuestion::parse(&question("_http._tcp.a.test", 33)).unwrap().is_about_host());
    }

    #[test]
    fn options_of_a_question_get_an_empty_answer() {
        let mut bytes = question("a.test", RECORD_A);
        bytes[11] = 1;
        bytes.extend([0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 4, 0, 10, 0, 0]);
        let answer = DnsQuestion::parse(&bytes).unwrap().answer(DnsAnswer::Empty);
        assert!(answer.ends_with(&OPT_ANSWER) && answer[11] == 1);
        bytes.push(0);
        assert_eq!(failure(&bytes), Some(1), "its length is wrong");
    }

    #[test]
    fn odd_characters_match_nothing_and_are_shown() {
        for (name, shown) in [("evil\0.allowed.test", "evil?.allowed.test"), ("b\u{fc}.test", "b??.test"), ("", ".")] {
            assert_eq!(DnsQuestion::parse(&question(name, 1)).unwrap().name, shown);
        }
        let mut inner = question("a-b.test", 1);
        inner[HEADER + 2] = b'.';
        assert_eq!(DnsQuestion::parse(&inner).unwrap().name, "a?b.test", "a dot within a label");
    }

    #[test]
    fn malformed_messages_get_an_error_or_nothing() {
        let good = question("a.test", RECORD_A);
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            bytes
        };
        for length in 0..good.len() {
            assert_eq!(failure(&good[..length]), (length >= HEADER).then_some(1), "{length} bytes");
        }
        assert_eq!(failure(&with(2, 0x81)), None, "an answer");
        assert_eq!(failure(&with(2, 0x10)), Some(4), "a status request");
        for (at, byte) in [(5, 0), (5, 2), (7, 1), (9, 1), (11, 1), (11, 2), (HEADER, 0xc0), (HEADER, 64)] {
            assert_eq!(failure(&with(at, byte)), Some(1), "byte {at} is {byte}");
        }
        assert_eq!(failure(&with(good.len() - 1, 3)), Some(5), "another class");
        assert_eq!(failure(&[good.as_slice(), b"x"].concat()), Some(1), "more behind it");
        assert_eq!(failure(&question(&vec!["a".repeat(49); 6].join("."), 1)), Some(1), "a name of 300 bytes");
        assert_eq!(failure(&question(&["a"; 128].join("."), 1)), Some(1), "one byte too many");
        assert!(DnsQuestion::parse(&question(&["a"; 127].join("."), 1)).is_ok());
        assert_eq!(failure(&[good.as_slice(), &[0; 600]].concat()), Some(1));
    }

    #[test]
    fn no_bytes_make_it_fail() {
        let mut state: u32 = 7;
        let good = question("abc.example.test", RECORD_A);
        for _ in 0..100_000 {
            let mut bytes = good.clone();
            for _ in 0..3 {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let at = (state >> 8) as usize % bytes.len();
                bytes[at] = (state >> 24) as u8;
            }
            bytes.truncate(1 + (state >> 4) as usize % good.len());
            if let Ok(question) = DnsQuestion::parse(&bytes) {
                let answer = question.answer(DnsAnswer::Address(Ipv4Addr::LOCALHOST));
                assert!(answer.len() <= MAX_MESSAGE);
            }
        }
    }
}
