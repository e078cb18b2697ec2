//! The address and headers of an HTTP server, checked before Cove sends anything.

use std::collections::BTreeMap;
use std::fmt;

use http::{HeaderMap, HeaderName, HeaderValue};
use reqwest::Url;

use super::parameter_headers::HEADER_PREFIX;
use crate::definition::{HttpTransport, OAuthSettings, is_loopback_url, parse_url};
use crate::pool::resolve::HeadersCommand;

/// Headers that the protocol sets itself.
const PROTOCOL_HEADERS: &[&str] = &[
    "accept",
    "connection",
    "content-length",
    "content-type",
    "host",
    "last-event-id",
    "mcp-method",
    "mcp-name",
    "mcp-protocol-version",
    "mcp-session-id",
    "te",
    "transfer-encoding",
    "upgrade",
];

fn is_protocol_header(name: &str) -> bool {
    PROTOCOL_HEADERS.contains(&name) || name.starts_with(HEADER_PREFIX)
}

#[derive(Clone)]
pub(in crate::pool) struct HttpTarget {
    pub(in crate::pool) url: Url,
    pub(in crate::pool) headers: HeaderMap,
    pub(in crate::pool) transport: HttpTransport,
    /// How Cove signs in, with all values.
    pub(in crate::pool) oauth: Box<OAuthSettings>,
    /// Prints more headers, again after the server refused those that it printed.
    pub(in crate::pool) headers_command: Option<HeadersCommand>,
}

/// Leaves out values: both the address and the headers may hold secrets.
impl fmt::Debug for HttpTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target").field("headers", &self.headers.len()).finish_non_exhaustive()
    }
}

impl HttpTarget {
    /// Checks the address and the headers. Fails with a list of what the server needs.
    pub(in crate::pool) fn new(
        url: &str,
        headers: &BTreeMap<String, String>,
        allow_http: bool,
    ) -> Result<Self, Vec<String>> {
        let url = parse_url(url).map_err(|reason| format!("a valid `url`: {reason}"));
        let url = url.and_then(|url| match url.scheme() {
            "http" if !allow_http && !is_loopback_url(&url) => {
                Err("`https`: over plain `http` others on the network could read its headers and answers \
                     (`--allow-http`, or `allow_http` in its definition, accepts that)"
                    .to_owned())
            }
            _ => Ok(url),
        });
        let (headers, needs) = parse_headers(headers);
        match url {
            Ok(url) if needs.is_empty() => {
                let (transport, oauth) = (HttpTransport::default(), Box::default());
                Ok(Self { url, headers, transport, oauth, headers_command: None })
            }
            url => Err(url.err().into_iter().chain(needs).collect()),
        }
    }

    pub(super) fn is_loopback(&self) -> bool {
        is_loopback_url(&self.url)
    }

    /// Returns parts of the address and headers that are likely secrets: the password, query values, and the part of
    /// a header after its scheme.
    pub(in crate::pool) fn secrets(&self) -> Vec<String> {
        let query = self.url.query_pairs().map(|(_, value)| value.into_owned());
        let headers = self.headers.values().filter_map(|value| value.to_str().ok());
        // Servers may repeat the part after `Bearer` alone.
        let behind = headers.filter_map(|value| Some(value.split_once(' ')?.1.trim().to_owned()));
        query.chain(behind).chain(self.url.password().map(str::to_owned)).collect()
    }
}

/// Returns the headers that can be sent, and what is wrong with the others.
pub(super) fn parse_headers(headers: &BTreeMap<String, String>) -> (HeaderMap, Vec<String>) {
    let (mut ready, mut needs) = (HeaderMap::new(), Vec::new());
    for (name, value) in headers {
        let shown = cove_core::error::display_value(name);
        match (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(value)) {
            (Err(_), _) => needs.push(format!("another name than `{shown}` for that header")),
            (Ok(name), _) if is_protocol_header(name.as_str()) => {
                needs.push(format!("no header `{shown}`, which the protocol itself decides"));
            }
            (Ok(_), Err(_)) => needs.push(format!("a value of one plain line for the header `{shown}`")),
            (Ok(name), Ok(mut value)) => {
                value.set_sensitive(true);
                ready.insert(name, value);
            }
        }
    }
    (ready, needs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_target(url: &str, headers: &[(&str, &str)], allow_http: bool) -> Result<HttpTarget, Vec<String>> {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        HttpTarget::new(url, &headers.collect(), allow_http)
    }

    #[test]
    fn allows_plain_http_only_on_loopback() {
        for url in [
            "http://127.0.0.1:1/mcp",
            "http://127.9.9.9/",
            "http://[::1]:2/mcp",
            "http://localhost/mcp",
            "http://LOCALHOST:3",
            "http://a.localhost/",
            "https://example.com/mcp",
        ] {
            assert!(parse_target(url, &[], false).is_ok(), "{url}");
        }
        for url in [
            "http://example.com/mcp",
            "http://127.0.0.1.example.com/",
            "http://localhost.example.com/",
            "http://10.0.0.1/",
            "http://127.0.0.1@example.com/",
            "http://[::ffff:10.0.0.1]/",
        ] {
            let needs = parse_target(url, &[], false).unwrap_err();
            assert!(needs[0].starts_with("`https`: over plain `http`"), "{url}: {needs:?}");
            assert!(parse_target(url, &[], true).is_ok(), "{url}");
        }
        for url in ["", "mcp", "ftp://127.0.0.1/", "file:///etc/passwd", "http://", "/mcp"] {
            assert!(parse_target(url, &[], true).is_err(), "{url}");
        }
    }

    #[test]
    fn checks_headers_and_hides_their_values() {
        let url = "https://example.com/";
        let good = parse_target(url, &[("Authorization", "Bearer hunter2-hunter2"), ("X-Y", "z")], false).unwrap();
        assert!(!format!("{good:?} {:?}", good.headers).contains("hunter2"));
        assert_eq!(good.secrets(), ["hunter2-hunter2"]);
        for (name, value) in [
            ("a b", "x"),
            ("", "x"),
            ("X", "a\r\nEvil: 1"),
            ("X", "a\0b"),
            ("Host", "evil"),
            ("Content-Length", "0"),
            ("MCP-Session-Id", "x"),
            ("Mcp-Param-Region", "x"),
        ] {
            let needs = parse_target(url, &[(name, value)], false).unwrap_err();
            assert!(!needs[0].contains("Evil") && needs[0].contains("header"), "{name}: {needs:?}");
        }
    }

    #[test]
    fn treats_url_passwords_and_queries_as_secret() {
        let target = parse_target("https://me:pass-word@example.com/mcp?key=abcdef&x=1", &[], false).unwrap();
        assert_eq!(target.secrets(), ["abcdef", "1", "pass-word"]);
    }
}
