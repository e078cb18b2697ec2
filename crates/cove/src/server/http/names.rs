//! Under which name a request came, and from which web page: what keeps a page in somebody's browser from reaching a
//! server on that machine, also when its own name was made to resolve there.

use std::net::{IpAddr, SocketAddr};

use http::header::{HOST, HeaderMap, HeaderName, ORIGIN};

use crate::config::{Authority, HostName, HttpConfig, WebOrigin};
use crate::error::shown;

/// Which values of `Host` and `Origin` are right here.
#[derive(Debug)]
pub(super) struct Names {
    hosts: Vec<Authority>,
    origins: Vec<WebOrigin>,
    /// Whether only this machine can connect, so that its own pages are the person's.
    local: bool,
}

/// Why a request is refused, and what would allow it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Foreign {
    pub(super) cause: String,
    pub(super) hint: String,
}

impl Names {
    pub(super) fn new(config: &HttpConfig, bound: SocketAddr) -> Self {
        Self {
            hosts: config.allowed_hosts.clone(),
            origins: config.allowed_origins.clone(),
            local: bound.ip().is_loopback(),
        }
    }

    /// `reached` is the address that the client connected to. An address is never a stranger's name: no page can make
    /// its own origin an address that is ours.
    pub(super) fn check_host(&self, headers: &HeaderMap, reached: IpAddr) -> Result<(), Foreign> {
        let text = match single(headers, &HOST) {
            Single::One(text) => text,
            Single::None => return Err(foreign_host("the request has no `Host`")),
            Single::Many => return Err(foreign_host("the request has more than one `Host`")),
            Single::NotText => return Err(foreign_host("its `Host` is not text")),
        };
        let Some(host) = Authority::parse(text) else {
            return Err(foreign_host(&format!("`Host: {}` is not a host", shown(text))));
        };
        let is_reached = match host.host {
            // A socket for both families has seen an address of the old one written as one of the new.
            HostName::Address(address) => address.to_canonical() == reached.to_canonical(),
            HostName::Name(_) => false,
        };
        let known = host.host.is_loopback()
            || is_reached
            || self.hosts.iter().any(|allowed| host.is_meant_by(allowed));
        if known {
            return Ok(());
        }
        Err(Foreign {
            cause: format!("`Host: {}` is not a name of this server", shown(text)),
            hint: format!("if it is, start with `--allow-host {}`", shown(text)),
        })
    }

    /// The origin, when there is one and it may ask.
    pub(super) fn check_origin<'a>(&self, headers: &'a HeaderMap) -> Result<Option<&'a str>, Foreign> {
        let text = match single(headers, &ORIGIN) {
            Single::None => return Ok(None),
            Single::One(text) => text,
            Single::Many => return Err(foreign_origin("the request has more than one `Origin`")),
            Single::NotText => return Err(foreign_origin("its `Origin` is not text")),
        };
        let Some(origin) = WebOrigin::parse(text) else {
            return Err(foreign_origin(&format!("`Origin: {}` is no page that can be allowed", shown(text))));
        };
        let own = self.local && !origin.secure && origin.host.is_loopback();
        if own || self.origins.contains(&origin) {
            return Ok(Some(text));
        }
        Err(Foreign {
            cause: format!("pages of `{}` may not ask here", shown(text)),
            hint: format!("to allow them, start with `--allow-origin {}`", shown(text)),
        })
    }
}

fn foreign_host(cause: &str) -> Foreign {
    let hint = "send one `Host`, such as `localhost:8765`, or a name that `--allow-host` allows";
    Foreign { cause: cause.to_owned(), hint: hint.to_owned() }
}

fn foreign_origin(cause: &str) -> Foreign {
    let hint = "send no `Origin`, or one that `--allow-origin` allows, such as `https://app.example.com`";
    Foreign { cause: cause.to_owned(), hint: hint.to_owned() }
}

enum Single<'a> {
    None,
    One(&'a str),
    Many,
    NotText,
}

/// Two values are never one: which of them counts, another program may decide otherwise.
fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Single<'a> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Single::None,
        (Some(value), None) => value.to_str().map_or(Single::NotText, Single::One),
        (Some(_), Some(_)) => Single::Many,
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::config::Auth;

    fn names(bound: &str, hosts: &[&str], origins: &[&str]) -> Names {
        let config = HttpConfig {
            address: None,
            auth: Auth::Token,
            token_file: None,
            allowed_hosts: hosts.iter().map(|text| Authority::parse(text).unwrap()).collect(),
            allowed_origins: origins.iter().map(|text| WebOrigin::parse(text).unwrap()).collect(),
            max_connections: 1,
            rate_limit: 1,
        };
        Names::new(&config, bound.parse().unwrap())
    }

    fn headers(name: HeaderName, values: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(&name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        headers
    }

    fn host(names: &Names, reached: &str, values: &[&str]) -> bool {
        names.check_host(&headers(HOST, values), reached.parse().unwrap()).is_ok()
    }

    fn origin(names: &Names, values: &[&str]) -> bool {
        names.check_origin(&headers(ORIGIN, values)).is_ok()
    }

    #[test]
    fn hosts() {
        let local = names("127.0.0.1:8765", &["mcp.example.com", "gate.example:8443"], &[]);
        let right = [
            "localhost",
            "LOCALHOST:8765",
            "localhost:9999",
            "127.0.0.1",
            "127.0.0.1:8765",
            "127.0.0.2",
            "[::1]:8765",
            "mcp.example.com",
            "MCP.example.com:1234",
            "gate.example:8443",
        ];
        for value in right {
            assert!(host(&local, "127.0.0.1", &[value]), "{value}");
        }
        let wrong = [
            "",
            " ",
            "evil.example",
            "localhost.evil.com",
            "127.0.0.1.evil",
            "evil.localhost",
            "localhost.",
            "localhost.:8765",
            "localhost@evil.com",
            "evil.com@localhost",
            "evil.com:8765",
            "localhost:",
            "localhost:0",
            "localhost:8765:80",
            "localhost:8765@evil",
            "127.1",
            "2130706433",
            "0x7f000001",
            "0177.0.0.1",
            "0.0.0.0",
            "[::]",
            "[::1%25lo]",
            "[::1",
            "::1",
            "[::ffff:10.0.0.1]",
            "gate.example",
            "gate.example:80",
            "sub.mcp.example.com",
            "mcp.example.com.",
            "xmcp.example.com",
            "localhost,evil.com",
            "http://localhost",
            "localhost/",
            "l\u{f6}calhost",
            "10.0.0.1",
        ];
        for value in wrong {
            assert!(!host(&local, "127.0.0.1", &[value]), "{value}");
        }
        assert!(!host(&local, "127.0.0.1", &[]));
        assert!(!host(&local, "127.0.0.1", &["localhost", "localhost"]));
        assert!(!host(&local, "127.0.0.1", &["localhost", "evil.com"]));
    }

    #[test]
    fn the_address_that_was_reached_is_a_right_host() {
        let open = names("0.0.0.0:8765", &[], &[]);
        assert!(host(&open, "10.0.0.5", &["10.0.0.5:8765"]));
        assert!(host(&open, "::ffff:10.0.0.5", &["10.0.0.5:8765"]));
        assert!(!host(&open, "10.0.0.5", &["10.0.0.6:8765"]));
        assert!(!host(&open, "10.0.0.5", &["0.0.0.0:8765"]));
        let six = names("[::]:8765", &[], &[]);
        assert!(host(&six, "fd00::1", &["[fd00:0::1]"]) && !host(&six, "fd00::1", &["fd00::1"]));
    }

    #[test]
    fn origins() {
        let local =
            names("127.0.0.1:8765", &["evil.example"], &["https://app.example.com", "http://lan:3000"]);
        let right = [
            "http://localhost",
            "http://localhost:3000",
            "http://127.0.0.1:8765",
            "http://[::1]:1",
            "https://app.example.com",
            "https://app.example.com:443",
            "http://lan:3000",
        ];
        for value in right {
            assert!(origin(&local, &[value]), "{value}");
        }
        let wrong = [
            "",
            "null",
            "*",
            "https://evil.example",
            "http://evil.example",
            "http://app.example.com",
            "https://app.example.com:8443",
            "https://app.example.com.evil",
            "https://evil.com/app.example.com",
            "http://localhost.evil.com",
            "http://localhost@evil.com",
            "http://user@localhost",
            "http://localhost.",
            "http://127.0.0.1.evil",
            "http://localhost:",
            "http://localhost:8765/",
            "http://lan",
            "http://lan:80",
            "localhost",
            "//localhost",
            "file://",
            "https://localhost",
            "chrome-extension://abcdef",
            "HTTP://localhost",
            "http://[::1%25lo]",
            "http://localhost http://evil.com",
            "http://127.1",
            "http://0x7f.1",
            "http://0.0.0.0",
        ];
        for value in wrong {
            assert!(!origin(&local, &[value]), "{value}");
        }
        assert!(origin(&local, &[]));
        assert!(!origin(&local, &["http://localhost", "http://localhost"]));
        // Where others can connect, a page of theirs on their own machine is not the person's.
        let open = names("0.0.0.0:8765", &[], &["https://app.example.com"]);
        assert!(origin(&open, &["https://app.example.com"]) && !origin(&open, &["http://localhost:3000"]));
    }

    #[test]
    fn refusals_name_the_setting() {
        let local = names("127.0.0.1:8765", &[], &[]);
        let refused =
            local.check_host(&headers(HOST, &["mcp.corp:80"]), "127.0.0.1".parse().unwrap()).unwrap_err();
        assert_eq!(refused.hint, "if it is, start with `--allow-host mcp.corp:80`");
        let refused = local.check_origin(&headers(ORIGIN, &["https://a.b"])).unwrap_err();
        assert_eq!(refused.hint, "to allow them, start with `--allow-origin https://a.b`");
    }
}
