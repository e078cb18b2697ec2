//! A server that clients reach over HTTP: its URL, and the token that it wants.

use std::fmt;

use cove_core::error::{Failure, Refusal};
use cove_server::http_config::WebOrigin;

/// The path at which Cove serves MCP.
const MCP_PATH: &str = "/mcp";
const MAX_URL: usize = 2048;

/// A checked URL, and how a client authenticates there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerUrl {
    pub url: String,
    pub credential: UrlCredential,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UrlCredential {
    Absent,
    /// Written into the entry.
    Token(SecretToken),
    /// The entry refers to the variable `COVE_TOKEN` of the client's environment.
    Variable,
}

/// A token that debug output does not show.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretToken(pub String);

impl fmt::Debug for SecretToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[token]")
    }
}

/// Who can read what is sent to a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UrlReach {
    /// This machine.
    Loopback,
    Encrypted,
    /// Everyone on the way.
    PlainText,
}

/// Parses the URL of a Cove server. Fails if clients could not use it.
pub(super) fn parse(text: &str) -> Result<UrlReach, Failure> {
    let refuse =
        |refusal: Refusal| Failure::usage("could not use the `--url`").because(refusal.cause).with_hint(refusal.hint);
    let right = "write it as `cove serve --http` prints it, such as `http://127.0.0.1:8765/mcp`";
    let wrong = |problem: &str| refuse(Refusal::of_value(text, problem, right));
    let Some((origin, path)) = split(text) else {
        return Err(wrong("is not the URL of a server"));
    };
    if text.len() > MAX_URL || !text.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"\\<>^`{|}#$".contains(&byte)) {
        return Err(wrong("has characters that a URL cannot have, or is too long"));
    }
    if path.is_empty() || path == "/" {
        let hint = format!("write `{}{MCP_PATH}`", text.trim_end_matches('/'));
        return Err(refuse(Refusal::of_value(text, "has no path", hint)));
    }
    Ok(match origin {
        origin if origin.host.is_loopback() => UrlReach::Loopback,
        WebOrigin { secure: true, .. } => UrlReach::Encrypted,
        _ => UrlReach::PlainText,
    })
}

impl ServerUrl {
    /// True for the URL that a Cove on this machine has.
    pub(super) fn is_local_cove(url: &str) -> bool {
        split(url).is_some_and(|(origin, path)| origin.host.is_loopback() && path == MCP_PATH)
    }
}

fn split(url: &str) -> Option<(WebOrigin, &str)> {
    let (scheme, rest) = url.split_once("://")?;
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let origin = WebOrigin::parse(&url[..scheme.len() + "://".len() + end])?;
    Some((origin, &rest[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_urls_of_servers() {
        let check = |text: &str, expected: UrlReach| assert_eq!(parse(text).unwrap(), expected, "{text}");
        check("http://127.0.0.1:8765/mcp", UrlReach::Loopback);
        check("http://localhost:8765/mcp", UrlReach::Loopback);
        check("https://[::1]/mcp", UrlReach::Loopback);
        check("https://cove.example.com/team/mcp?x=1", UrlReach::Encrypted);
        check("http://10.0.0.5:8765/mcp", UrlReach::PlainText);
        // The host is what follows the user's name, and a client must not be led there.
        let refused = |text: &str, part: &str| {
            let report = parse(text).unwrap_err().report().to_string();
            assert!(report.contains(part) && report.contains("\nhint: "), "{text}: {report}");
            assert!(!report.contains('\u{1b}'));
        };
        refused("http://127.0.0.1@evil.example/mcp", "is not the URL of a server");
        refused("http://127.0.0.1.evil.example:0/mcp", "is not the URL of a server");
        refused("127.0.0.1:8765/mcp", "is not the URL of a server");
        refused("ftp://127.0.0.1/mcp", "is not the URL of a server");
        refused("http://127.0.0.1:8765", "hint: write `http://127.0.0.1:8765/mcp`");
        refused("http://127.0.0.1:8765/", "hint: write `http://127.0.0.1:8765/mcp`");
        refused("http://127.0.0.1:8765/m cp", "characters that a URL cannot have");
        // Some clients would expand it.
        refused("http://127.0.0.1:8765/${HOME}", "characters that a URL cannot have");
        refused("http://127.0.0.1:8765/\u{1b}[2J", "characters that a URL cannot have");
        refused(&format!("http://127.0.0.1:8765/{}", "x".repeat(3000)), "too long");
    }

    #[test]
    fn knows_the_url_of_a_local_cove() {
        assert!(ServerUrl::is_local_cove("http://127.0.0.1:8765/mcp"));
        for url in ["http://127.0.0.1:8765/sse", "https://mcp.example.com/mcp", "http://127.0.0.1:8765", "x"] {
            assert!(!ServerUrl::is_local_cove(url), "{url}");
        }
    }

    #[test]
    fn tokens_are_not_shown() {
        let server = ServerUrl { url: "u".into(), credential: UrlCredential::Token(SecretToken("cove_00".into())) };
        assert!(!format!("{server:?}").contains("cove_00"));
    }
}
