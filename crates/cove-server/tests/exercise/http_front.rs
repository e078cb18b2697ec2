//! What holds for the HTTP front, whatever a client sends and however the network splits it: a request reaches the handler
//! only with a right token, a right host and an allowed origin, no answer has a token in it, and the connection ends.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, HOST, HeaderMap, HeaderName, ORIGIN};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::{Builder, Runtime};
use tokio_util::sync::CancellationToken;

use super::accept::HttpContext;
use super::connection::serve_connection;
use super::connection_table::ConnectionTable;
use super::request::{ConnectionAddresses, RequestOrigin};
use super::token::TokenSet;
use super::token::keeper::TokenKeeper;
use super::{HttpBounds, HttpFront, HttpResponse, McpHandler, response};
use crate::http_config::{Authority, HttpAuth, HttpConfig, WebOrigin};
use crate::telemetry::metrics::Metrics;
use cove_core::session::registry::{Principal, RegistryFigures};

const ALICE: &str = "alice-0123456789abcdef";
const BOB: &str = "bob-0123456789abcdef";
const MAX_BODY: usize = 1024;
const PAGE: &str = "https://app.example.com";

/// Sends the bytes behind the first one to a front, in pieces whose size the first byte says. Panics if a request passes
/// that must not, or if an answer is wrong.
pub fn exercise(bytes: &[u8]) {
    check_names(bytes);
    let Some((size, sent)) = bytes.split_first() else { return };
    let size = match size {
        0..128 => usize::from(*size) + 1,
        _ => sent.len().max(1),
    };
    let passed = Arc::new(PassedTokens { has_alice: contains(sent, ALICE), has_bob: contains(sent, BOB) });
    let answers = paused_runtime().block_on(converse(sent, size, passed));
    check_answers(sent, &answers);
}

/// A runtime whose clock jumps to the next timer, so that no input waits for one.
fn paused_runtime() -> Runtime {
    Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime can be built")
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

/// Which tokens the client has sent anywhere.
struct PassedTokens {
    has_alice: bool,
    has_bob: bool,
}

/// Checks what the front lets through.
#[derive(Clone)]
struct CheckingMcp(Arc<PassedTokens>);

impl McpHandler for CheckingMcp {
    async fn answer(&self, request: Request<Full<Bytes>>) -> HttpResponse {
        let (parts, body) = request.into_parts();
        assert!(!parts.headers.contains_key(AUTHORIZATION), "the token must not come this far");
        assert_eq!(parts.uri.path(), "/mcp");
        let principal = &parts.extensions.get::<Principal>().expect("a request has a principal").0;
        match principal.as_str() {
            "alice" => assert!(self.0.has_alice, "the token of `alice` was not sent"),
            "bob" => assert!(self.0.has_bob, "the token of `bob` was not sent"),
            other => panic!("there is no `{other}`"),
        }
        let host = single(&parts.headers, &HOST).expect("a request has a host");
        let host = host.rsplit_once(':').filter(|(_, port)| !port.contains(']')).map_or(host, |(host, _)| host);
        assert!(is_this_machine(host), "{host:?} is another machine");
        if let Some(origin) = single(&parts.headers, &ORIGIN) {
            let own = origin.strip_prefix("http://").map(|own| own.rsplit_once(':').map_or(own, |(host, _)| host));
            let is_page = [PAGE.to_owned(), format!("{PAGE}:443")].iter().any(|page| origin.eq_ignore_ascii_case(page));
            let is_own = own.is_some_and(|own| is_this_machine(own) || origin == "http://[::1]");
            assert!(is_page || is_own, "{origin:?} may not ask");
        }
        let bytes = body.collect().await.expect("a body is complete").to_bytes();
        assert!(bytes.len() <= MAX_BODY, "a body of {} bytes", bytes.len());
        response::new_response(StatusCode::OK, "text/plain", format!("passed {}", bytes.len()))
    }

    async fn end_principal(&self, _: &Principal) {}
}

/// Returns the only value of a header. Panics if there are two.
fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?;
    assert!(values.next().is_none(), "there are two of {name}");
    Some(value.to_str().expect("it is text"))
}

/// True for this machine, and for the address that the client reached.
fn is_this_machine(host: &str) -> bool {
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let is_loopback = |address: IpAddr| address.is_loopback() || address.to_canonical().is_loopback();
    host.eq_ignore_ascii_case("localhost") || address.parse().is_ok_and(is_loopback)
}

/// Returns all that the front answers until the connection ends.
async fn converse(sent: &[u8], size: usize, passed: Arc<PassedTokens>) -> Vec<u8> {
    let reached = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let config = HttpConfig {
        address: Some((reached, 8765).into()),
        auth: HttpAuth::Token,
        token_file: None,
        allowed_hosts: Vec::new(),
        allowed_origins: vec![WebOrigin::parse(PAGE).expect("it is an origin")],
        max_connections: 4,
        rate_limit: 10_000,
    };
    let tokens = TokenSet::parse(&format!("alice {ALICE}\nbob {BOB}\n")).expect("the tokens are right");
    let bounds = HttpBounds {
        head: Duration::from_secs(1),
        body: Duration::from_secs(1),
        token_grace: Duration::from_secs(1),
        body_bytes: MAX_BODY,
        free_body_bytes: 0,
        memory: 8 * MAX_BODY,
        drain: Duration::from_secs(1),
    };
    let tokens = TokenKeeper::new(tokens, None, config.rate_limit);
    let connections = Arc::new(ConnectionTable::new(config.max_connections, bounds.token_grace));
    let (place, _) = connections.enter(reached);
    let site = HttpContext {
        front: HttpFront::new(&config, Some(tokens), (reached, 8765).into(), bounds),
        connections,
        mcp: CheckingMcp(passed),
        metrics: Arc::new(Metrics::new()),
        sessions: Box::new(RegistryFigures::default),
        ready: Box::new(|| true),
        stop: CancellationToken::new(),
    };
    let ends = ConnectionAddresses { peer: (reached, 1).into(), reached };
    let origin = RequestOrigin { ends, place: &place };
    let (client, server) = tokio::io::duplex(256);
    let (mut reader, mut writer) = tokio::io::split(client);
    let write = async {
        for piece in sent.chunks(size) {
            // The front may close the connection while the client still sends.
            if writer.write_all(piece).await.is_err() {
                return;
            }
            tokio::task::yield_now().await;
        }
        // A client that keeps the connection open is closed by the timer.
        tokio::time::sleep(Duration::from_secs(30)).await;
        let _ = writer.shutdown().await;
    };
    let read = async {
        let mut answers = Vec::new();
        let _ = reader.read_to_end(&mut answers).await;
        answers
    };
    let (answers, (), ()) = tokio::join!(read, write, serve_connection(server, origin, &site));
    answers
}

fn check_answers(sent: &[u8], answers: &[u8]) {
    for token in [ALICE, BOB] {
        // A refusal quotes a wrong host or origin, and a client may write anything there.
        let is_credential = |line: &&[u8]| line.to_ascii_lowercase().starts_with(b"authorization:");
        let mut others = sent.split(|byte| *byte == b'\n').filter(|line| !is_credential(line));
        let is_quoted = others.any(|line| contains(line, token));
        assert!(is_quoted || !contains(answers, token), "an answer has a token in it");
    }
    // A request has at least a line, and an answer without a body repeats nothing of it.
    let most = 4_096 * (1 + sent.iter().filter(|byte| **byte == b'\n').count());
    assert!(answers.len() <= most, "{} bytes for {} bytes", answers.len(), sent.len());
    if answers.is_empty() {
        return;
    }
    let head = String::from_utf8_lossy(&answers[..answers.len().min(64)]).into_owned();
    let status = head.strip_prefix("HTTP/1.1 ").or_else(|| head.strip_prefix("HTTP/1.0 "));
    let status = status.and_then(|rest| rest.get(..3)).and_then(|digits| digits.parse::<u16>().ok());
    assert!(status.is_some_and(|status| (100..600).contains(&status)), "{head:?} is not an answer");
}

/// Checks the text of a host, an origin and a file of tokens on its own.
fn check_names(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Some(authority) = Authority::parse(text) {
        assert!(text.len() <= 253 + ":65535".len() && text.is_ascii(), "{text:?}");
        assert!(!text.contains(['/', '@', ' ', '\\', '?', '#', '%']), "{text:?} has more than a host");
        assert!(authority.is_accepted_by(&authority), "{text:?}");
        assert_eq!(Authority::parse(&text.to_ascii_uppercase()), Some(authority), "the case does not count");
    }
    if let Some(origin) = WebOrigin::parse(text) {
        let written = format!("{}://", if origin.secure { "https" } else { "http" });
        assert!(text.starts_with(&written), "{text:?}");
    }
    if let Ok(tokens) = TokenSet::parse(text) {
        assert!(tokens.principals().count() > 0);
        let shown = format!("{tokens:?}");
        let is_long = |word: &&str| word.len() >= 16;
        let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
        for token in lines.filter_map(|line| line.split_ascii_whitespace().last()).filter(is_long) {
            let is_name = tokens.principals().any(|principal| principal.0.contains(token));
            assert!(is_name || !shown.contains(token), "a token is shown");
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn replays_the_corpus_of_http_front() {
        crate::replay::replay("http_front", super::exercise);
    }
}
