//! Settings of the HTTP server: its address, its authentication, and the host names and web origins it accepts. Names and
//! origins are parsed here once, strictly, so that a request and a setting are compared as values and never as text.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use cove_core::error::Refusal;
use cove_core::keyword::keywords;

/// The default has no setting applied.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HttpConfig {
    /// None if the server uses standard input and output.
    pub address: Option<SocketAddr>,
    pub auth: HttpAuth,
    /// None means `tokens` in the state directory.
    pub token_file: Option<PathBuf>,
    /// Accepted values of `Host` besides loopback and the address itself.
    pub allowed_hosts: Vec<Authority>,
    pub allowed_origins: Vec<WebOrigin>,
    pub max_connections: usize,
    /// Requests per second for each principal.
    pub rate_limit: usize,
}

keywords!(
    /// What an HTTP client needs to be served.
    #[derive(Default)]
    pub HttpAuth, "KIND", "a kind of authentication": #[default] Token = "token", None = "none"
);

/// A host with an optional port, as in the `Host` header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authority {
    pub host: HostName,
    pub port: Option<u16>,
}

/// A host in the spelling that comparisons use: names in lower case, addresses as numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostName {
    Name(String),
    Address(IpAddr),
}

impl HostName {
    /// True for this machine, whichever resolver is asked.
    pub fn is_loopback(&self) -> bool {
        match self {
            Self::Name(name) => name == "localhost",
            Self::Address(address) => address.is_loopback(),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        if let Some(inner) = text.strip_prefix('[') {
            // `Ipv6Addr` refuses a zone. That is right here: a zone names a network interface of the client.
            let address: Ipv6Addr = inner.strip_suffix(']')?.parse().ok()?;
            return Some(Self::Address(IpAddr::V6(address)));
        }
        if let Ok(address) = text.parse::<Ipv4Addr>() {
            return Some(Self::Address(IpAddr::V4(address)));
        }
        let labels: Vec<&str> = text.split('.').collect();
        let is_plain = |label: &&str| {
            (1..=63).contains(&label.len())
                && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        // To a browser, a host that ends in a number is an address (`127.1`, `0x7f.1`, `2130706433`).
        let ends_in_number = labels.last().is_some_and(|last| {
            last.bytes().all(|b| b.is_ascii_digit()) || last.to_ascii_lowercase().starts_with("0x")
        });
        let is_name = text.len() <= 253 && labels.iter().all(is_plain) && !ends_in_number;
        is_name.then(|| Self::Name(text.to_ascii_lowercase()))
    }
}

impl Authority {
    /// Parses exactly a host with an optional port. Refuses a user, a path, a space and a trailing dot.
    pub fn parse(text: &str) -> Option<Self> {
        let end = if text.starts_with('[') { text.find(']')? + 1 } else { text.find(':').unwrap_or(text.len()) };
        let (host, rest) = text.split_at(end);
        let port = match rest.strip_prefix(':') {
            Some(digits) => Some(port(digits)?),
            None if rest.is_empty() => None,
            None => return None,
        };
        Some(Self { host: HostName::parse(host)?, port })
    }

    /// True if a setting of `allowed` accepts this `Host`. A setting without a port accepts any. Clients leave out the
    /// default port of their scheme, which behind a proxy may be either 80 or 443.
    pub fn is_accepted_by(&self, allowed: &Authority) -> bool {
        let port_fits = match (allowed.port, self.port) {
            (None, _) | (Some(80 | 443), None) => true,
            (allowed, sent) => allowed == sent,
        };
        self.host == allowed.host && port_fits
    }
}

/// Parses digits only, because `u16::from_str` would also accept `+80`.
fn port(digits: &str) -> Option<u16> {
    let plain = (1..=5).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
    if plain { digits.parse().ok().filter(|port| *port != 0) } else { None }
}

/// The origin of a web page, as browsers write it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebOrigin {
    pub secure: bool,
    pub host: HostName,
    /// Always present, because `https://a` and `https://a:443` are the same origin.
    pub port: u16,
}

impl WebOrigin {
    /// Parses exactly `http(s)://HOST[:PORT]`. Refuses `null`.
    pub fn parse(text: &str) -> Option<Self> {
        let (secure, rest) = match text.split_once("://")? {
            ("https", rest) => (true, rest),
            ("http", rest) => (false, rest),
            _ => return None,
        };
        let Authority { host, port } = Authority::parse(rest)?;
        Some(Self { secure, host, port: port.unwrap_or(if secure { 443 } else { 80 }) })
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(IpAddr::V4(address)) => write!(f, "{address}"),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

impl fmt::Display for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.host)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

impl fmt::Display for WebOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, usual) = if self.secure { ("https", 443) } else { ("http", 80) };
        write!(f, "{scheme}://{}", self.host)?;
        if self.port == usual { Ok(()) } else { write!(f, ":{}", self.port) }
    }
}

/// Parses an address to listen on. Refuses names, because a resolver decides what they mean, perhaps another machine.
pub fn address(text: &str) -> Result<SocketAddr, Refusal> {
    let local = text.strip_prefix(':').map(|port| format!("127.0.0.1:{port}"));
    if let Ok(address) = local.as_deref().unwrap_or(text).parse() {
        return Ok(address);
    }
    let right = "write an address and a port, such as `127.0.0.1:8765`, `[::1]:8765` or `:8765`";
    let is_port = |text: &str| text.parse::<u16>().is_ok();
    let (problem, hint) = match text.rsplit_once(':') {
        _ if text.parse::<IpAddr>().is_ok() => ("has no port", right.to_owned()),
        _ if is_port(text) => ("has no address", format!("write `:{text}` for this machine only")),
        Some(("localhost", port)) if is_port(port) => {
            ("names a host", format!("write its address: `127.0.0.1:{port}` or `[::1]:{port}`"))
        }
        Some((host, port)) if is_port(port) && matches!(HostName::parse(host), Some(HostName::Name(_))) => {
            let hint =
                format!("write an address of this machine, such as `127.0.0.1:{port}`, or `0.0.0.0:{port}` for all");
            ("names a host", hint)
        }
        _ => ("is not an address with a port", right.to_owned()),
    };
    Err(Refusal::of_value(text, problem, hint))
}

pub fn allowed_host(text: &str) -> Result<Authority, Refusal> {
    let right = "write it as clients send it in `Host`: `mcp.example.com`, or `mcp.example.com:8443` for one port";
    Authority::parse(text).ok_or_else(|| Refusal::of_value(text, "is not a host", right))
}

pub fn allowed_origin(text: &str) -> Result<WebOrigin, Refusal> {
    let right = "write scheme, host and an optional port, such as `https://app.example.com` or `http://10.0.0.5:3000`";
    WebOrigin::parse(text).ok_or_else(|| Refusal::of_value(text, "is not an origin", right))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let good = [
            ("127.0.0.1:8765", "127.0.0.1:8765"),
            (":8765", "127.0.0.1:8765"),
            (":0", "127.0.0.1:0"),
            ("[::1]:8765", "[::1]:8765"),
            ("0.0.0.0:80", "0.0.0.0:80"),
        ];
        for (text, expected) in good {
            assert_eq!(address(text).unwrap().to_string(), expected, "`{text}`");
        }
        let bad = [
            ("localhost:8765", "names a host", "`127.0.0.1:8765` or `[::1]:8765`"),
            ("example.com:80", "names a host", "`0.0.0.0:80`"),
            ("8765", "has no address", "`:8765`"),
            ("127.0.0.1", "has no port", "`127.0.0.1:8765`"),
            ("::1", "has no port", "`[::1]:8765`"),
            ("::1:8765", "has no port", "`[::1]:8765`"),
            ("127.0.0.1:65536", "is not an address", "`127.0.0.1:8765`"),
            ("http://127.0.0.1:80", "is not an address", "`127.0.0.1:8765`"),
            (":", "is not an address", "`:8765`"),
            ("127.1:80", "is not an address", "`:8765`"),
        ];
        for (text, cause, hint) in bad {
            let refusal = address(text).unwrap_err();
            assert!(refusal.cause.contains(cause) && refusal.hint.contains(hint), "`{text}`: {refusal:?}");
        }
    }

    #[test]
    fn authorities_are_read_strictly() {
        let good = [
            ("localhost", "localhost"),
            ("LocalHost:80", "localhost:80"),
            ("127.0.0.1:8765", "127.0.0.1:8765"),
            ("[::1]", "[::1]"),
            ("[0:0:0:0:0:0:0:1]:1", "[::1]:1"),
            ("a_b.Example.com:65535", "a_b.example.com:65535"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ];
        for (text, expected) in good {
            assert_eq!(Authority::parse(text).map(|found| found.to_string()).as_deref(), Some(expected));
        }
        let bad = [
            "",
            " ",
            ":80",
            "localhost:",
            "localhost:0",
            "localhost:+80",
            "localhost:80:80",
            "localhost:99999",
            "localhost:8765 ",
            " localhost",
            "localhost.",
            "localhost..com",
            ".localhost",
            "user@localhost",
            "user:pass@localhost:80",
            "localhost/",
            "localhost#",
            "localhost\\evil",
            "localhost,evil",
            "::1",
            "[::1",
            "[::1]x",
            "[::1]:",
            "[fe80::1%25eth0]",
            "[fe80::1%1]:80",
            "127.1",
            "127.0.0.01",
            "0x7f.0.0.1",
            "2130706433",
            "127.0.0.0x1",
            "-a",
            "a-",
            "b\u{fc}cher.example",
            "http://localhost",
            "*",
        ];
        for text in bad {
            assert_eq!(Authority::parse(text), None, "`{text}`");
        }
        assert_eq!(Authority::parse(&"a.".repeat(200)), None);
        assert_eq!(Authority::parse(&"a".repeat(64)), None);
    }

    #[test]
    fn a_setting_without_a_port_means_any() {
        let accepted =
            |host: &str, allowed: &str| Authority::parse(host).unwrap().is_accepted_by(&allowed_host(allowed).unwrap());
        assert!(accepted("a.example", "a.example") && accepted("A.example:1", "a.example"));
        assert!(accepted("a.example:8443", "a.example:8443") && accepted("a.example", "a.example:443"));
        assert!(!accepted("a.example", "a.example:8443") && !accepted("a.example:1", "a.example:2"));
        assert!(!accepted("b.a.example", "a.example") && !accepted("a.example.b", "a.example"));
    }

    #[test]
    fn origins_are_read_strictly() {
        let good = [
            ("https://app.example.com", "https://app.example.com"),
            ("https://App.example.com:443", "https://app.example.com"),
            ("http://a:80", "http://a"),
            ("http://a:443", "http://a:443"),
            ("http://[::1]:3000", "http://[::1]:3000"),
        ];
        for (text, expected) in good {
            assert_eq!(allowed_origin(text).unwrap().to_string(), expected);
        }
        for text in [
            "",
            "null",
            "*",
            "https://",
            "app.example.com",
            "https://a/",
            "https://a/b",
            "https://u@a",
            "ftp://a",
            "file://",
            "https://a?b",
            "HTTPS://a",
            "https:///a",
            "https://a https://b",
            "chrome-extension://abc",
        ] {
            assert!(allowed_origin(text).is_err(), "`{text}`");
        }
    }
}
