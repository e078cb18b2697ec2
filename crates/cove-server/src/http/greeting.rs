//! The greeting for the operator when the server has started: its URL, how a client authenticates, and what is
//! unsafe.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use cove_core::error::display_path;

/// Where the tokens come from.
pub(super) enum TokenSource<'a> {
    /// Created at this start. The server shows the token only then.
    Created {
        token: &'a str,
        file: &'a Path,
    },
    File {
        file: &'a Path,
        names: Vec<&'a str>,
    },
    Environment,
    /// No authentication.
    NoAuthentication,
}

/// Returns the URL for a client on this machine.
pub(super) fn url(address: SocketAddr) -> String {
    let reachable = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    format!("http://{}/mcp", SocketAddr::new(reachable, address.port()))
}

/// Returns the text for standard error. It ends with a line end.
pub(super) fn greeting_text(address: SocketAddr, source: &TokenSource<'_>) -> String {
    let url = url(address);
    let mut text = format!("serving MCP at {url}\n");
    let mut line = |words: String| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{words}");
    };
    match source {
        TokenSource::Created { token, file } => {
            line(format!("made a token, kept in `{}`; `cove token` shows it again", display_path(file)));
            line(format!("\nfor clients that Cove knows:\n\ncove install claude-code --url {url}"));
            line(format!("\nfor other clients with a file of servers:\n\n{}\n", client_entry(&url, token)));
        }
        TokenSource::File { file, names } => match names.as_slice() {
            [_] => line(format!("the token is in `{}`; `cove token` shows it", display_path(file))),
            names => line(format!("the tokens of {} are in `{}`", names.join(", "), display_path(file))),
        },
        TokenSource::Environment => line("the token is the one in `COVE_TOKEN`".into()),
        TokenSource::NoAuthentication => {
            line("warning: everyone on this machine can run code here, because `auth` is `none`".into())
        }
    }
    if !address.ip().is_loopback() {
        line(format!(
            "warning: other machines can reach {address}, and what they send is not encrypted: put a proxy with TLS before it"
        ));
    }
    text
}

/// Written by hand to keep the usual order of keys. Neither a URL nor a token has characters that JSON escapes.
fn client_entry(url: &str, token: &str) -> String {
    format!(
        "{{\n  \"mcpServers\": {{\n    \"cove\": {{\n      \"type\": \"http\",\n      \"url\": \"{url}\",\n      \
         \"headers\": {{ \"Authorization\": \"Bearer {token}\" }}\n    }}\n  }}\n}}"
    )
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;

    #[test]
    fn greeting_text_for_each_token_source() {
        let local: SocketAddr = "127.0.0.1:8765".parse().unwrap();
        let file = Path::new("/home/me/.local/state/cove/tokens");
        let json = client_entry("http://127.0.0.1:8765/mcp", "cove_00");
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["mcpServers"]["cove"]["headers"]["Authorization"], "Bearer cove_00");
        assert_snapshot!(greeting_text(local, &TokenSource::Created { token: "cove_00", file }), @r#"
        serving MCP at http://127.0.0.1:8765/mcp
        made a token, kept in `/home/me/.local/state/cove/tokens`; `cove token` shows it again

        for clients that Cove knows:

        cove install claude-code --url http://127.0.0.1:8765/mcp

        for other clients with a file of servers:

        {
          "mcpServers": {
            "cove": {
              "type": "http",
              "url": "http://127.0.0.1:8765/mcp",
              "headers": { "Authorization": "Bearer cove_00" }
            }
          }
        }
        "#);
        assert_snapshot!(greeting_text(local, &TokenSource::File { file, names: vec!["owner"] }), @r"
        serving MCP at http://127.0.0.1:8765/mcp
        the token is in `/home/me/.local/state/cove/tokens`; `cove token` shows it
        ");
        assert_snapshot!(greeting_text(local, &TokenSource::File { file, names: vec!["a", "b"] }), @r"
        serving MCP at http://127.0.0.1:8765/mcp
        the tokens of a, b are in `/home/me/.local/state/cove/tokens`
        ");
        assert_snapshot!(greeting_text(local, &TokenSource::NoAuthentication), @r"
        serving MCP at http://127.0.0.1:8765/mcp
        warning: everyone on this machine can run code here, because `auth` is `none`
        ");
        assert_snapshot!(greeting_text("[::]:80".parse().unwrap(), &TokenSource::Environment), @r"
        serving MCP at http://[::1]:80/mcp
        the token is the one in `COVE_TOKEN`
        warning: other machines can reach [::]:80, and what they send is not encrypted: put a proxy with TLS before it
        ");
    }
}
