//! Heads that clients send, and heads that only attackers send.

use tokio::io::BufReader;

use super::*;

fn parse(text: &str) -> Result<ProxyRequest, EgressRefusal> {
    ProxyRequest::parse(text.as_bytes())
}

#[track_caller]
fn check_refused(head: &str, reason: RefusalReason, cause: &str) {
    let refusal = parse(head).unwrap_err();
    assert!(refusal.reason == reason && refusal.cause.contains(cause), "{head:?}: {refusal:?}");
    assert!(refusal.http_answer().is_ascii() && refusal.http_answer().matches("\r\n\r\n").count() == 1, "{refusal:?}");
}

#[test]
fn reads_what_clients_send() {
    let curl = parse(
        "CONNECT Api.Example.com:443 HTTP/1.1\r\nHost: api.example.com:443\r\nProxy-Connection: Keep-Alive\r\n\r\n",
    );
    let curl = curl.unwrap();
    assert_eq!(
        (curl.target.to_string().as_str(), curl.form, curl.path.as_str()),
        ("api.example.com:443", RequestForm::Tunnel, "")
    );
    assert!(parse("CONNECT a.example:443 HTTP/1.0\r\n\r\n").is_ok(), "Python before 3.12");
    assert!(parse("CONNECT a.example:8443 HTTP/1.1\r\nHost: a.example\r\n\r\n").is_ok());
    assert!(parse("CONNECT [2001:db8::1]:443 HTTP/1.1\r\nHost: [2001:db8::1]:443\r\n\r\n").is_ok());
}

#[test]
fn a_plain_request_is_written_anew() {
    let request = parse(
        "POST http://A.example:8080/x/y?q=secret HTTP/1.1\r\nHost: a.example:8080\r\nAccept: */*\r\nX-Own: 1\r\n\
         Connection: close, X-Own\r\nProxy-Authorization: Basic x\r\nContent-Length: 3\r\nUpgrade: h2c\r\n\r\n",
    )
    .unwrap();
    assert_eq!((request.method.as_str(), request.path.as_str()), ("POST", "/x/y"));
    let head = "POST /x/y?q=secret HTTP/1.1\r\nHost: a.example:8080\r\nAccept: */*\r\nContent-Length: 3\r\nConnection: close\r\n\r\n";
    assert_eq!(request.form, RequestForm::Plain { head: head.to_owned(), body: BodyLength::Known(3) });
    let request = parse("GET http://a.example HTTP/1.1\r\nHost: a.example\r\n\r\n").unwrap();
    let head = "GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n";
    assert_eq!(request.form, RequestForm::Plain { head: head.to_owned(), body: BodyLength::Known(0) });
    assert_eq!(request.target.port, 80);
    let request = parse("GET http://a.example?x HTTP/1.1\r\nHost: a.example\r\n\r\n").unwrap();
    assert_eq!(request.path, "/");
}

#[test]
fn refuses_hosts_that_two_programs_could_read_differently() {
    let authorities = [
        "user@a.example:443",
        "a.example",
        "a.example:0",
        "127.1:443",
        "0x7f.1:443",
        "a%2eexample:443",
        "a.example:443/",
        "evil.test,a.example:443",
        "[::1]x:443",
        "::1:443",
    ];
    for authority in authorities {
        check_refused(&format!("CONNECT {authority} HTTP/1.1\r\n\r\n"), RefusalReason::MalformedHost, "cannot be read");
    }
    for uri in ["http://user:x@a.example/", "http:///x", "http://a.example\\@evil.test/", "http://:80/"] {
        check_refused(
            &format!("GET {uri} HTTP/1.1\r\nHost: a.example\r\n\r\n"),
            RefusalReason::MalformedHost,
            "cannot be read",
        );
    }
    let nul = b"CONNECT evil.test\0.a.example:443 HTTP/1.1\r\n\r\n";
    assert_eq!(ProxyRequest::parse(nul).unwrap_err().reason, RefusalReason::MalformedRequest);
}

#[test]
fn refuses_smuggled_requests() {
    let refused = |fields: &str, cause| {
        let head = format!("POST http://a.example/ HTTP/1.1\r\n{fields}\r\n\r\n");
        check_refused(&head, RefusalReason::MalformedRequest, cause);
    };
    refused("Host: a.example\r\nContent-Length: 3\r\nTransfer-Encoding: chunked", "twice how long");
    refused("Host: a.example\r\nContent-Length: 3\r\nContent-Length: 4", "twice how long");
    refused("Host: a.example\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity", "twice how long");
    refused("Host: a.example\r\nTransfer-Encoding: gzip, chunked", "not `chunked`");
    refused("Host: a.example\r\nContent-Length: +3", "not a number");
    refused("Host: a.example\r\nContent-Length: 99999999999999999999", "not a number");
    refused("Host: a.example\r\nHost: a.example", "two Host fields");
    refused("Host: evil.test", "names another host");
    refused("Host: a.example:81", "names another host");
    refused("Accept: */*", "no Host field");
    refused("Host: a.example\r\nX: 1\r\n folded", "header");
    refused("Host : a.example", "header");
    refused("Host: a.example\nX: 1", "line ends without");
    refused("Host: a.example\r\nX: 1\rY: 2", "line ends without");
    let many: String = (0..101).map(|number| format!("\r\nX-{number}: 1")).collect();
    refused(&format!("Host: a.example{many}"), "too many headers");
    let connect = "CONNECT a.example:443 HTTP/1.1\r\nHost: evil.test:443\r\n\r\n";
    check_refused(connect, RefusalReason::MalformedRequest, "names another host");
    let connect = "CONNECT a.example:443 HTTP/1.1\r\nContent-Length: 5\r\n\r\n";
    check_refused(connect, RefusalReason::MalformedRequest, "has no body");
    check_refused("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n", RefusalReason::MalformedRequest, "a proxy takes");
    check_refused(
        "GET https://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
        RefusalReason::MalformedRequest,
        "a proxy takes",
    );
    check_refused(
        "GET http://a.example/#x HTTP/1.1\r\nHost: a.example\r\n\r\n",
        RefusalReason::MalformedRequest,
        "fragment",
    );
    check_refused(
        "GET http://a.example/ HTTP/1.0\r\nHost: a.example\r\n\r\n",
        RefusalReason::MalformedRequest,
        "too old",
    );
    check_refused("\x16\x03\x01\r\n\r\n", RefusalReason::MalformedRequest, "");
}

#[tokio::test]
async fn a_head_ends_at_its_empty_line_and_is_bounded() {
    for capacity in [1, 3, 4, 4096] {
        let mut client = BufReader::with_capacity(capacity, &b"GET x\r\nA: b\r\n\r\nrest"[..]);
        assert_eq!(read_head(&mut client).await.unwrap().unwrap(), b"GET x\r\nA: b\r\n\r\n");
        assert_eq!(client.fill_buf().await.unwrap()[0], b'r', "capacity {capacity}");
    }
    assert_eq!(read_head(&mut &b""[..]).await, Ok(None));
    assert!(read_head(&mut &b"GET"[..]).await.is_err());
    let endless = vec![b'a'; MAX_HEAD + 1];
    assert_eq!(read_head(&mut &endless[..]).await.unwrap_err().reason, RefusalReason::Limit);
}

#[test]
fn what_may_carry_something_out_is_known_before_it_is_sent() {
    let sends = |line: &str, fields: &str| {
        parse(&format!("{line} HTTP/1.1\r\nHost: a.example\r\n{fields}\r\n")).unwrap().sends()
    };
    assert!(!sends("GET http://a.example/x", "") && !sends("HEAD http://a.example/x", "Accept: */*\r\n"));
    assert!(sends("GET http://a.example/x?q=1", "") && sends("GET http://a.example?", ""));
    assert!(sends("GET http://a.example/x", &format!("X-Much: {}\r\n", "x".repeat(3000))));
    assert!(sends(&format!("GET http://a.example/{}", "x".repeat(3000)), ""));
    assert!(sends("DELETE http://a.example/x", "") && sends("GET http://a.example/x", "Content-Length: 1\r\n"));
    // A `?` in a field is no query.
    assert!(!sends("GET http://a.example/x", "X-Own: what?\r\n"));
}
