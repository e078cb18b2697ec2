//! What holds for the first bytes of a connection, whatever they are and however they are cut: the reader takes the same
//! head, a server gets one request for one host with one length, and a refusal is one plain answer.

use httparse::{EMPTY_HEADER, Request, Status};
use tokio::io::{AsyncReadExt, BufReader};
use tokio::runtime::Builder;

use super::{BodyLength, DROPPED_FIELDS, MAX_FIELDS, ProxyRequest, RequestForm, read_head};
use crate::client_hello::read_client_hello;
use crate::host_pattern::HostPattern;
use crate::refusal::EgressRefusal;
use crate::rules::EgressRule;
use crate::target_host::{HostTarget, TargetHost};

/// Reads the bytes as a head, as the first message of TLS, as a host and as a rule. Panics if a promise is broken.
pub fn exercise(bytes: &[u8]) {
    let runtime = Builder::new_current_thread().build().expect("a runtime can be built");
    runtime.block_on(async {
        check_head(bytes).await;
        check_first_message(bytes).await;
    });
    if let Ok(text) = std::str::from_utf8(bytes) {
        check_host(text);
        check_rule(text);
    }
}

async fn check_head(bytes: &[u8]) {
    let (head, rest) = read_in_pieces(bytes, bytes.len().max(1)).await;
    for size in [1, 3] {
        let (other, other_rest) = read_in_pieces(bytes, size).await;
        // The limit on heads is checked after each piece, so a cut may change which of two refusals it is.
        assert_eq!(head.is_ok(), other.is_ok(), "in pieces of {size}");
        if head.is_ok() {
            assert_eq!((&head, &rest), (&other, &other_rest), "in pieces of {size}");
        }
    }
    match head {
        Ok(Some(head)) => match ProxyRequest::parse(&head) {
            Ok(request) => check_request(&request),
            Err(refusal) => check_refusal(&refusal),
        },
        Ok(None) => {}
        Err(refusal) => check_refusal(&refusal),
    }
}

/// Returns the head, and what follows it.
async fn read_in_pieces(bytes: &[u8], size: usize) -> (Result<Option<Vec<u8>>, EgressRefusal>, Vec<u8>) {
    let mut client = BufReader::with_capacity(size, bytes);
    let head = read_head(&mut client).await;
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).await.expect("a slice can be read");
    (head, rest)
}

fn check_request(request: &ProxyRequest) {
    let ProxyRequest { target, method, form, .. } = request;
    assert_eq!(HostTarget::parse(&target.to_string(), None).as_ref(), Ok(target), "a target has one spelling");
    let RequestForm::Plain { head, body } = form else {
        assert_eq!(method, "CONNECT");
        return;
    };
    let mut fields = [EMPTY_HEADER; MAX_FIELDS + 3];
    let mut read = Request::new(&mut fields);
    assert_eq!(read.parse(head.as_bytes()), Ok(Status::Complete(head.len())), "{head:?}");
    assert_eq!(read.method, Some(method.as_str()));
    assert!(read.path.is_some_and(|path| path.starts_with('/') && !path.contains('#')), "{head:?}");
    let values = |name: &str| -> Vec<String> {
        let found = read.headers.iter().filter(|field| field.name.eq_ignore_ascii_case(name));
        found.map(|field| String::from_utf8_lossy(field.value).into_owned()).collect()
    };
    let [host] = &values("host")[..] else { panic!("not one host: {head:?}") };
    assert_eq!(HostTarget::parse(host, Some(80)).as_ref(), Ok(target), "{head:?}");
    assert_eq!(values("connection"), ["close"]);
    let (lengths, encodings) = (values("content-length"), values("transfer-encoding"));
    match body {
        BodyLength::Chunked => assert!(lengths.is_empty() && encodings == ["chunked"], "{head:?}"),
        BodyLength::Known(0) if lengths.is_empty() => assert!(encodings.is_empty(), "{head:?}"),
        BodyLength::Known(length) => {
            assert!(lengths == [length.to_string()] && encodings.is_empty(), "{head:?}");
        }
    }
    let own = ["connection", "content-length", "host", "transfer-encoding"];
    for dropped in DROPPED_FIELDS.iter().chain(&["upgrade"]).filter(|name| !own.contains(name)) {
        assert!(values(dropped).is_empty(), "{dropped}: {head:?}");
    }
}

/// A refusal stands in an answer, in a result and in an audit line.
fn check_refusal(refusal: &EgressRefusal) {
    for text in [&refusal.target, &refusal.cause, &refusal.hint] {
        assert!(text.len() < 400 && text.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{refusal:?}");
    }
    let answer = refusal.http_answer();
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head has an end");
    assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{answer:?}");
    assert_eq!((body.lines().count(), refusal.to_string().lines().count()), (3, 1), "{answer:?}");
}

async fn check_first_message(bytes: &[u8]) {
    let mut seen = Vec::new();
    for before in [0, bytes.len() / 2, bytes.len()] {
        let (first, mut after) = bytes.split_at(before);
        let mut kept = first.to_vec();
        let message = read_client_hello(&mut after, &mut kept).await.expect("a slice can be read");
        assert!(bytes.starts_with(&kept), "the server gets what the client sent");
        seen.push(message);
    }
    assert!(seen.windows(2).all(|pair| pair[0] == pair[1]), "{seen:?}");
}

fn check_host(text: &str) {
    for host in [TargetHost::parse(text), TargetHost::parse_written(text)].into_iter().flatten() {
        let shown = host.to_string();
        assert!(shown.len() <= 253 + 2 && shown.bytes().all(|byte| byte.is_ascii_graphic()), "{shown:?}");
        assert_eq!(TargetHost::parse(&shown).as_ref(), Ok(&host), "a host has one spelling");
        assert_eq!(TargetHost::parse_written(&shown).as_ref(), Ok(&host), "in rules too");
    }
}

fn check_rule(text: &str) {
    if let Ok(pattern) = HostPattern::parse(text) {
        assert_eq!(HostPattern::parse(&pattern.to_string()).as_ref(), Ok(&pattern));
    }
    if let Ok(rule) = EgressRule::parse(text) {
        assert!(!rule.ports.is_empty() && !rule.ports.contains(&0), "{rule:?}");
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn replays_the_corpus_of_proxy_request() {
        crate::replay::replay("proxy_request", super::exercise);
    }
}
