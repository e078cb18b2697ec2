//! Checks `Host` and `Origin`. This keeps a web page in a browser from reaching a server on the same machine, even if
//! the page's own name resolves to that machine (DNS rebinding).

use std::net::{IpAddr, SocketAddr};

use http::header::HeaderMap;

use crate::http_config::{Authority, HostName, HttpConfig, WebOrigin};
use cove_core::error::{Refusal, display_value};

/// The accepted values of `Host` and `Origin`.
#[derive(Debug)]
pub(super) struct AllowedNames {
    hosts: Vec<Authority>,
    origins: Vec<WebOrigin>,
    /// True if only this machine can connect. Then pages of this machine belong to its user and are accepted.
    local: bool,
}

impl AllowedNames {
    pub(super) fn new(config: &HttpConfig, bound: SocketAddr) -> Self {
        Self {
            hosts: config.allowed_hosts.clone(),
            origins: config.allowed_origins.clone(),
            local: bound.ip().is_loopback(),
        }
    }

    /// Checks that `Host` names this server: loopback, an allowed name, or `reached`, the address that the client
    /// connected to. An address is safe, because no foreign page can have an address of this machine as its origin.
    pub(super) fn check_host(&self, headers: &HeaderMap, reached: IpAddr) -> Result<(), Refusal> {
        let hint = "send one `Host`, such as `localhost:8765`, or a name that `--allow-host` allows";
        let Some(text) = single_header(headers, "Host", hint)? else {
            return Err(Refusal::new("the request has no `Host`", hint));
        };
        let shown = display_value(text);
        let Some(host) = Authority::parse(text) else {
            return Err(Refusal::new(format!("`Host: {shown}` is not a host"), hint));
        };
        let is_reached = match host.host {
            // A dual-stack socket reports an IPv4 address in its IPv6 form.
            HostName::Address(address) => address.to_canonical() == reached.to_canonical(),
            HostName::Name(_) => false,
        };
        if host.host.is_loopback() || is_reached || self.hosts.iter().any(|allowed| host.is_accepted_by(allowed)) {
            return Ok(());
        }
        Err(Refusal::new(
            format!("`Host: {shown}` is not a name of this server"),
            format!("if it is, start with `--allow-host {shown}`"),
        ))
    }

    /// Returns the origin if the request has one. Fails if the origin is not allowed.
    pub(super) fn check_origin<'a>(&self, headers: &'a HeaderMap) -> Result<Option<&'a str>, Refusal> {
        let hint = "send no `Origin`, or one that `--allow-origin` allows, such as `https://app.example.com`";
        let Some(text) = single_header(headers, "Origin", hint)? else { return Ok(None) };
        let shown = display_value(text);
        let Some(origin) = WebOrigin::parse(text) else {
            return Err(Refusal::new(format!("`Origin: {shown}` is no page that can be allowed"), hint));
        };
        let own = self.local && !origin.secure && origin.host.is_loopback();
        if own || self.origins.contains(&origin) {
            return Ok(Some(text));
        }
        Err(Refusal::new(
            format!("pages of `{shown}` may not ask here"),
            format!("to allow them, start with `--allow-origin {shown}`"),
        ))
    }
}

/// Returns the value of a header that may occur once. Of two values, another program might use the other one.
fn single_header<'a>(headers: &'a HeaderMap, name: &str, hint: &str) -> Result<Option<&'a str>, Refusal> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => {
            value.to_str().map(Some).map_err(|_| Refusal::new(format!("its `{name}` is not text"), hint))
        }
        (Some(_), Some(_)) => Err(Refusal::new(format!("the request has more than one `{name}`"), hint)),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use http::header::{HOST, HeaderName, ORIGIN};

    use super::*;
    use crate::http_config::HttpAuth;

    fn allowed_names(bound: &str, hosts: &[&str], origins: &[&str]) -> AllowedNames {
        let config = HttpConfig {
            address: None,
            auth: HttpAuth::Token,
            token_file: None,
            allowed_hosts: hosts.iter().map(|text| Authority::parse(text).unwrap()).collect(),
            allowed_origins: origins.iter().map(|text| WebOrigin::parse(text).unwrap()).collect(),
            max_connections: 1,
            rate_limit: 1,
        };
        AllowedNames::new(&config, bound.parse().unwrap())
    }

    fn header_map(name: HeaderName, values: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(&name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        headers
    }

    fn accepts_host(names: &AllowedNames, reached: &str, values: &[&str]) -> bool {
        names.check_host(&header_map(HOST, values), reached.parse().unwrap()).is_ok()
    }

    fn accepts_origin(names: &AllowedNames, values: &[&str]) -> bool {
        names.check_origin(&header_map(ORIGIN, values)).is_ok()
    }

    #[test]
    fn accepts_only_allowed_hosts() {
        let local = allowed_names("127.0.0.1:8765", &["mcp.example.com", "gate.example:8443"], &[]);
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
            assert!(accepts_host(&local, "127.0.0.1", &[value]), "{value}");
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
            assert!(!accepts_host(&local, "127.0.0.1", &[value]), "{value}");
        }
        assert!(!accepts_host(&local, "127.0.0.1", &[]));
        assert!(!accepts_host(&local, "127.0.0.1", &["localhost", "localhost"]));
        assert!(!accepts_host(&local, "127.0.0.1", &["localhost", "evil.com"]));
    }

    #[test]
    fn accepts_the_reached_address_as_host() {
        let open = allowed_names("0.0.0.0:8765", &[], &[]);
        assert!(accepts_host(&open, "10.0.0.5", &["10.0.0.5:8765"]));
        assert!(accepts_host(&open, "::ffff:10.0.0.5", &["10.0.0.5:8765"]));
        assert!(!accepts_host(&open, "10.0.0.5", &["10.0.0.6:8765"]));
        assert!(!accepts_host(&open, "10.0.0.5", &["0.0.0.0:8765"]));
        let six = allowed_names("[::]:8765", &[], &[]);
        assert!(accepts_host(&six, "fd00::1", &["[fd00:0::1]"]) && !accepts_host(&six, "fd00::1", &["fd00::1"]));
    }

    #[test]
    fn accepts_only_allowed_origins() {
        let local = allowed_names("127.0.0.1:8765", &["evil.example"], &["https://app.example.com", "http://lan:3000"]);
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
            assert!(accepts_origin(&local, &[value]), "{value}");
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
            assert!(!accepts_origin(&local, &[value]), "{value}");
        }
        assert!(accepts_origin(&local, &[]));
        assert!(!accepts_origin(&local, &["http://localhost", "http://localhost"]));
        // If other machines can connect, a page on such a machine's localhost does not belong to the user.
        let open = allowed_names("0.0.0.0:8765", &[], &["https://app.example.com"]);
        assert!(
            accepts_origin(&open, &["https://app.example.com"]) && !accepts_origin(&open, &["http://localhost:3000"])
        );
    }

    #[test]
    fn name_refusals_name_the_setting() {
        let local = allowed_names("127.0.0.1:8765", &[], &[]);
        let refused = local.check_host(&header_map(HOST, &["mcp.corp:80"]), "127.0.0.1".parse().unwrap()).unwrap_err();
        assert_eq!(refused.hint, "if it is, start with `--allow-host mcp.corp:80`");
        let refused = local.check_origin(&header_map(ORIGIN, &["https://a.b"])).unwrap_err();
        assert_eq!(refused.hint, "to allow them, start with `--allow-origin https://a.b`");
    }
}
