//! The one canonical spelling of a host. Rules, requests, SNI, DNS and audit lines all compare this value and no other.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;

/// A name in lower case with A-labels only and without a dot at its end, or an address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TargetHost {
    Name(String),
    Address(IpAddr),
}

/// A host and a port, as a request or a refusal names them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostTarget {
    pub host: TargetHost,
    pub port: u16,
}

impl TargetHost {
    /// Reads the host of a request, which must be ASCII. An IPv6 address stands in brackets. Fails with the problem.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        if let Some(inner) = text.strip_prefix('[') {
            let address = inner.strip_suffix(']').and_then(|inner| inner.parse::<Ipv6Addr>().ok());
            return address.map(|address| Self::Address(address.into())).ok_or("it is not an IPv6 address in brackets");
        }
        let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        if name.is_empty() {
            return Err("it is empty");
        }
        if name.len() > MAX_NAME {
            return Err("it is longer than a name can be");
        }
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        if !name.bytes().all(is_plain) {
            return Err("it has a character that no host name has");
        }
        if name.split('.').any(|label| label.is_empty() || label.len() > MAX_LABEL) {
            return Err("it has an empty or too long part between dots");
        }
        // Resolvers read such a last label as a number, in any of several notations. Only the plain one is accepted.
        let last = name.rsplit('.').next().unwrap_or_default();
        let is_number = last.bytes().all(|byte| byte.is_ascii_digit())
            || last.strip_prefix("0x").is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        match name.parse::<IpAddr>() {
            // A dot after an address is no notation of an address.
            Ok(address) if !text.ends_with('.') => Ok(Self::Address(address)),
            _ if is_number => Err("it is an address in an unusual notation"),
            _ => Ok(Self::Name(name)),
        }
    }

    /// Reads the host of a rule, which a person wrote: it may have letters of any script, and an IPv6 address needs no
    /// brackets. Fails with the problem.
    pub fn parse_written(text: &str) -> Result<Self, &'static str> {
        if let Ok(address) = text.parse::<Ipv6Addr>() {
            return Ok(Self::Address(address.into()));
        }
        if text.is_ascii() {
            return Self::parse(text);
        }
        Self::parse(&idna::domain_to_ascii(text).map_err(|_| "it is not a valid international name")?)
    }

    /// True if a client that names this server in TLS asks for this host. For an address, clients send no name.
    pub(crate) fn is_server_name(&self, server_name: Option<&str>) -> bool {
        match (server_name, self) {
            (Some(name), host) => Self::parse(name).is_ok_and(|named| named == *host),
            (None, Self::Address(_)) => true,
            (None, Self::Name(_)) => false,
        }
    }

    /// Returns the name, or None for an address.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Name(name) => Some(name),
            Self::Address(_) => None,
        }
    }
}

impl fmt::Display for TargetHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(IpAddr::V4(address)) => address.fmt(f),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

impl HostTarget {
    /// Reads `HOST:PORT`, or `HOST` if there is a default port. Fails with the problem.
    pub fn parse(text: &str, default_port: Option<u16>) -> Result<Self, &'static str> {
        let (host, port) = split_port(text);
        let port = match port {
            Some(port) => parse_port(port).ok_or("its port is not a number from 1 to 65535")?,
            None => default_port.ok_or("it has no port")?,
        };
        Ok(Self { host: TargetHost::parse(host)?, port })
    }
}

impl HostTarget {
    /// Returns the host as addresses and `Host` fields of HTTPS have it: with its port only if that is unusual.
    pub(crate) fn shown(&self) -> String {
        if self.port == 443 { self.host.to_string() } else { self.to_string() }
    }
}

impl fmt::Display for HostTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// Splits the port off. The colons of a bare IPv6 address do not count.
pub(crate) fn split_port(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    }
}

/// Reads a port in plain decimal digits.
pub(crate) fn parse_port(text: &str) -> Option<u16> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    text.parse().ok().filter(|_| is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Result<&str, &str>) {
        let read = HostTarget::parse(text, Some(443)).map(|target| target.to_string());
        match (&read, expected) {
            (Ok(read), Ok(expected)) => assert_eq!(read, expected, "`{text}`"),
            (Err(problem), Err(part)) => assert!(problem.contains(part), "`{text}`: {problem}"),
            _ => panic!("`{text}`: {read:?} is not {expected:?}"),
        }
    }

    #[test]
    fn every_spelling_of_a_host_is_one_value() {
        check("example.com", Ok("example.com:443"));
        check("EXAMPLE.Com.:443", Ok("example.com:443"));
        check("xn--bcher-kva.example:8443", Ok("xn--bcher-kva.example:8443"));
        check("a_b.example.com", Ok("a_b.example.com:443"));
        check("192.0.2.7:80", Ok("192.0.2.7:80"));
        check("[2001:DB8::0001]:443", Ok("[2001:db8::1]:443"));
        check("localhost", Ok("localhost:443"));
    }

    #[test]
    fn refuses_what_two_programs_could_read_differently() {
        for text in
            ["127.1", "0x7f.1", "2130706433", "017700000001", "0177.0.0.1", "127.0.0.01", "a.0x7f", "127.0.0.1."]
        {
            check(text, Err("unusual notation"));
        }
        for text in
            ["user@example.com", "exam ple.com", "a%2e.com", "evil.test\0.allowed.test", "bücher.example", "a．b"]
        {
            check(text, Err("character"));
        }
        check("a..b", Err("empty or too long"));
        check(".example.com", Err("empty or too long"));
        check("example.com..", Err("empty or too long"));
        check(&format!("{}.com", "a".repeat(64)), Err("empty or too long"));
        check(&"a.".repeat(130), Err("longer"));
        check("", Err("empty"));
        check(".", Err("empty"));
        for text in
            ["example.com:", "example.com:0", "example.com:65536", "example.com:0443", "example.com:+443", "a:4 3"]
        {
            check(text, Err("port"));
        }
        for text in ["[::1", "[1.2.3.4]:443", "[::1%eth0]:443", "[]:1"] {
            check(text, Err("IPv6"));
        }
        check("::1", Err("character"));
        assert!(HostTarget::parse("example.com", None).is_err());
    }

    #[test]
    fn rules_may_be_written_in_any_script() {
        let written = |text| TargetHost::parse_written(text).map(|host| host.to_string());
        assert_eq!(written("Bücher.example").as_deref(), Ok("xn--bcher-kva.example"));
        assert_eq!(written("例え。テスト").as_deref(), Ok("xn--r8jz45g.xn--zckzah"));
        assert_eq!(written("::1").as_deref(), Ok("[::1]"));
        assert!(written("a b.example").is_err());
    }
}
