//! Where a server over HTTP is, and what it is sent with every request: checked before anything is sent.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue};
use reqwest::Url;

/// Headers that the protocol itself decides.
const OURS: &[&str] = &[
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

#[derive(Clone)]
pub(in crate::upstream) struct Target {
    pub(in crate::upstream) url: Url,
    pub(in crate::upstream) headers: HeaderMap,
}

/// Both may hold secrets.
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target").field("headers", &self.headers.len()).finish_non_exhaustive()
    }
}

impl Target {
    /// What stands in the way is named as something that the server needs.
    pub(in crate::upstream) fn new(
        url: &str,
        headers: &BTreeMap<String, String>,
        allow_http: bool,
    ) -> Result<Self, Vec<String>> {
        let mut needs = Vec::new();
        let url = Url::parse(url.trim()).map_err(|error| format!("a `url` that is one ({error})"));
        let url = url.and_then(|url| match url.scheme() {
            "https" => Ok(url),
            "http" if allow_http || is_loopback(&url) => Ok(url),
            "http" => Err("an `https` address, for on the way others could read its headers and answers \
                           (`allow_http = true` in its definition lets plain `http` pass)"
                .to_owned()),
            _ => Err("a `url` that begins with `https://`".to_owned()),
        });
        let mut ready = HeaderMap::new();
        for (name, value) in headers {
            let shown = crate::error::shown(name);
            match (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(value)) {
                (Err(_), _) => needs.push(format!("another name than `{shown}` for that header")),
                (Ok(name), _) if OURS.contains(&name.as_str()) => {
                    needs.push(format!("no header `{shown}`, which the protocol itself decides"));
                }
                (Ok(_), Err(_)) => needs.push(format!("a value of one plain line for the header `{shown}`")),
                (Ok(name), Ok(mut value)) => {
                    value.set_sensitive(true);
                    ready.insert(name, value);
                }
            }
        }
        match url {
            Ok(url) if needs.is_empty() => Ok(Self { url, headers: ready }),
            Ok(_) => Err(needs),
            Err(need) => Err([vec![need], needs].concat()),
        }
    }

    pub(super) fn is_loopback(&self) -> bool {
        is_loopback(&self.url)
    }

    /// Parts of an address that are likely to be secret: the password and the values of its query.
    pub(in crate::upstream) fn secrets(&self) -> Vec<String> {
        let query = self.url.query_pairs().map(|(_, value)| value.into_owned());
        let headers = self.headers.values().filter_map(|value| value.to_str().ok());
        // Behind `Bearer` is what others may repeat alone.
        let behind = headers.filter_map(|value| Some(value.split_once(' ')?.1.trim().to_owned()));
        query.chain(behind).chain(self.url.password().map(str::to_owned)).collect()
    }
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let by_name = host == "localhost" || host.ends_with(".localhost");
    by_name || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(url: &str, headers: &[(&str, &str)], allow_http: bool) -> Result<Target, Vec<String>> {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Target::new(url, &headers.collect(), allow_http)
    }

    #[test]
    fn plain_http_stays_on_this_machine() {
        for url in [
            "http://127.0.0.1:1/mcp",
            "http://127.9.9.9/",
            "http://[::1]:2/mcp",
            "http://localhost/mcp",
            "http://LOCALHOST:3",
            "http://a.localhost/",
            "https://example.com/mcp",
        ] {
            assert!(target(url, &[], false).is_ok(), "{url}");
        }
        for url in [
            "http://example.com/mcp",
            "http://127.0.0.1.example.com/",
            "http://localhost.example.com/",
            "http://10.0.0.1/",
            "http://127.0.0.1@example.com/",
            "http://[::ffff:10.0.0.1]/",
        ] {
            let needs = target(url, &[], false).unwrap_err();
            assert!(needs[0].starts_with("an `https` address"), "{url}: {needs:?}");
            assert!(target(url, &[], true).is_ok(), "{url}");
        }
        for url in ["", "mcp", "ftp://127.0.0.1/", "file:///etc/passwd", "http://", "/mcp"] {
            assert!(target(url, &[], true).is_err(), "{url}");
        }
    }

    #[test]
    fn headers_are_checked_and_never_shown() {
        let url = "https://example.com/";
        let good = target(url, &[("Authorization", "Bearer hunter2-hunter2"), ("X-Y", "z")], false).unwrap();
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
        ] {
            let needs = target(url, &[(name, value)], false).unwrap_err();
            assert!(!needs[0].contains("Evil") && needs[0].contains("header"), "{name}: {needs:?}");
        }
    }

    #[test]
    fn what_an_address_hides_is_kept_hidden() {
        let target = target("https://me:pass-word@example.com/mcp?key=abcdef&x=1", &[], false).unwrap();
        assert_eq!(target.secrets(), ["abcdef", "1", "pass-word"]);
    }
}
