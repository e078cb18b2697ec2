//! Tests of all checks, and that they run before any body is read.

use super::*;

#[tokio::test]
async fn passes_a_valid_request_with_its_principal() {
    let mut server = TestFront::start().await;
    let reply = server.request(&post("", "hello")).await;
    assert_eq!((reply.status, reply.body.as_str()), (200, "alice sent 5"));
    assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(reply.header("cache-control"), Some("no-store"));
    assert_eq!(reply.header("access-control-allow-origin"), None);
    assert_eq!(server.event().await, FakeMcpEvent::Came("alice".into(), 5));
    let of_bob = post("", "").replace(ALICE, BOB);
    assert_eq!(server.request(&of_bob).await.body, "bob sent 0");
    // One connection serves several requests in turn.
    let mut client = server.connect().await;
    for _ in 0..3 {
        client.send(&post("", "abc")).await;
        assert_eq!(client.reply().await.status, 200);
    }
    for method in ["GET", "DELETE"] {
        assert_eq!(server.request(&post("", "").replace("POST", method)).await.status, 200, "{method}");
    }
    assert!(server.count("cove_http_requests_total{path=\"/mcp\",code=\"200\"}") >= 7);
    server.stop().await;
}

/// Each request also fails all later checks, declares a body that is too large, and never sends it.
#[tokio::test]
async fn runs_checks_in_order_before_the_body() {
    let mut server = TestFront::start_with(HttpConfig { rate_limit: 1, ..config() }, HttpBounds::default()).await;
    let request = |host: &str, origin: &str, token: &str| {
        format!(
            "POST /mcp HTTP/1.1\r\nHost: {host}\r\n{origin}Authorization: Bearer {token}\r\nContent-Length: 99999999999\r\n\r\n"
        )
    };
    let evil = "Origin: https://evil.example\r\n";
    let reply = server.request(&request("evil.example", evil, "wrong")).await;
    assert_eq!(reply.status, 403);
    assert!(reply.body.contains("--allow-host evil.example"), "{}", reply.body);
    let reply = server.request(&request("localhost", evil, "wrong")).await;
    assert_eq!(reply.status, 403);
    assert!(reply.body.contains("--allow-origin https://evil.example"), "{}", reply.body);
    assert_eq!(reply.header("access-control-allow-origin"), None);
    let reply = server.request(&request("localhost", "", "wrong")).await;
    assert_eq!((reply.status, reply.header("www-authenticate")), (401, Some("Bearer")));
    assert!(reply.body.contains("Authorization: Bearer TOKEN") && !reply.body.contains("wrong\""), "{}", reply.body);
    let reply = server.request(&request("localhost", "", ALICE)).await;
    assert_eq!((reply.status, reply.header("connection")), (413, Some("close")));
    // The bucket refills during the test, so it may take more than its burst.
    let mut limited = reply;
    while limited.status == 413 {
        limited = server.request(&request("localhost", "", ALICE)).await;
    }
    assert_eq!((limited.status, limited.header("retry-after")), (429, Some("1")));
    // Each principal has its own rate.
    assert_eq!(server.request(&request("localhost", "", BOB)).await.status, 413);
    for reason in ["host", "origin", "wrong_credentials", "rate"] {
        assert_eq!(server.count(&format!("cove_http_refused_total{{reason=\"{reason}\"}}")), 1, "{reason}");
    }
    assert!(server.events.try_recv().is_err(), "none of them came through");
    server.stop().await;
}

#[tokio::test]
async fn sends_continue_only_after_the_checks_pass() {
    let server = TestFront::start().await;
    let request = |token: &str, length: &str| {
        format!(
            "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nExpect: 100-continue\r\n\
             Content-Length: {length}\r\n\r\n"
        )
    };
    for (token, length, status) in [("wrong", "5", 401), (ALICE, "99999999", 413)] {
        let mut client = server.connect().await;
        client.send(&request(token, length)).await;
        assert_eq!(client.reply().await.status, status);
        assert_eq!(client.read_to_end().await, "");
    }
    let mut client = server.connect().await;
    client.send(&request(ALICE, "5")).await;
    assert_eq!(client.reply().await.status, 100);
    client.send("hello").await;
    assert_eq!(client.reply().await.body, "alice sent 5");
    server.stop().await;
}

#[tokio::test]
async fn accepts_only_valid_bearer_tokens() {
    let server = TestFront::start().await;
    let with = |headers: &str| get("/mcp", headers);
    for (headers, status) in [
        (String::new(), 401),
        (format!("Authorization: Basic {ALICE}\r\n"), 401),
        (format!("Authorization: Bearer {ALICE}x\r\n"), 401),
        (format!("Authorization: Bearer {ALICE}\r\nAuthorization: Bearer {BOB}\r\n"), 401),
        (format!("authorization: bearer {ALICE}\r\n"), 200),
    ] {
        assert_eq!(server.request(&with(&headers)).await.status, status, "{headers}");
    }
    // A token in the URL is not accepted, because URLs end up in logs and histories.
    assert_eq!(server.request(&get(&format!("/mcp?token={ALICE}&access_token={ALICE}"), "")).await.status, 401);
    server.stop().await;
}

#[tokio::test]
async fn limits_wrong_tokens_without_locking_out_valid_ones() {
    let server = TestFront::start().await;
    let wrong = get("/mcp", "Authorization: Bearer wrong-wrong-wrong-wrong\r\n");
    let mut limited = None;
    // As above, it may take more than the burst.
    for _ in 0..10_000 {
        let reply = server.request(&wrong).await;
        if reply.status == 429 {
            limited = Some(reply);
            break;
        }
        assert_eq!(reply.status, 401);
    }
    assert_eq!(limited.expect("never limited").header("retry-after"), Some("1"));
    assert_eq!(server.request(&post("", "")).await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn checks_host_and_origin_of_requests() {
    let server = TestFront::start().await;
    let health = |head: &str| format!("GET /healthz HTTP/1.1\r\n{head}\r\n");
    let port = server.address.port();
    for (head, status) in [
        ("Host: localhost\r\n".to_owned(), 200),
        (format!("Host: 127.0.0.1:{port}\r\n"), 200),
        ("Host: evil.example\r\n".to_owned(), 403),
        ("Host: \r\n".to_owned(), 403),
        (String::new(), 403),
        ("Host: localhost\r\nHost: localhost\r\n".to_owned(), 403),
        ("Host: localhost\r\nHost: evil.example\r\n".to_owned(), 403),
        ("Host: localhost\r\nOrigin: null\r\n".to_owned(), 403),
    ] {
        assert_eq!(server.request(&health(&head)).await.status, status, "{head}");
    }
    let whole = "GET http://evil.example/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    assert_eq!(server.request(whole).await.status, 400);
    assert_eq!(server.request("GET /healthz HTTP/1.0\r\n\r\n").await.status, 403);
    assert_eq!(server.request("CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n").await.status, 400);
    server.stop().await;
}

#[tokio::test]
async fn serves_only_known_paths_and_methods() {
    let server = TestFront::start().await;
    let token = format!("Authorization: Bearer {ALICE}\r\n");
    for (path, headers, status, body) in [
        ("/healthz", "", 200, "{\"status\":\"ok\"}"),
        ("/readyz", "", 200, "{\"status\":\"ready\"}"),
        ("/", "", 200, "/metrics"),
        ("/metrics", "", 401, "no token"),
        ("/metrics", &token, 200, "cove_sessions 7"),
        ("/nowhere", "", 404, "could not find this path"),
        ("/mcp/", &token, 404, "could not find this path"),
        ("//mcp", &token, 404, "could not find this path"),
        ("/.well-known/oauth-protected-resource", "", 404, "could not find this path"),
    ] {
        let reply = server.request(&get(path, headers)).await;
        assert_eq!(reply.status, status, "{path}");
        assert!(reply.body.contains(body), "{path}: {}", reply.body);
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"), "{path}");
        assert_eq!(reply.header("cache-control"), Some("no-store"), "{path}");
    }
    for (method, path, status) in [
        ("PUT", "/mcp", 405),
        ("HEAD", "/mcp", 405),
        ("BREW", "/mcp", 405),
        ("OPTIONS", "/mcp", 405),
        ("POST", "/healthz", 405),
        ("DELETE", "/metrics", 405),
        ("OPTIONS", "*", 404),
    ] {
        let request = get(path, "").replacen("GET", method, 1);
        let mut client = server.connect().await;
        client.send(&request).await;
        let answer = client.read_to_end().await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{method} {path}: {answer}");
    }
    let mut client = server.connect().await;
    client.send(&get("/healthz", "").replacen("GET", "HEAD", 1)).await;
    let head = client.read_to_end().await;
    assert!(head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"), "{head}");
    server.stop().await;
}

#[tokio::test]
async fn readyz_reports_a_server_that_is_not_ready() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let front = HttpFront::new(&config(), None, address, HttpBounds::default());
    let bound = BoundListener { listener, address, greeting: String::new(), front };
    let (events, _kept) = mpsc::unbounded_channel();
    let fake = FakeMcp { events, release: Arc::default() };
    let stop = CancellationToken::new();
    let task = tokio::spawn(serve(bound, fake, Arc::default(), RegistryFigures::default, || false, stop.clone()));
    for (path, status) in [("/readyz", 503), ("/healthz", 200), ("/metrics", 200)] {
        let mut client = RawClient(TcpStream::connect(address).await.unwrap());
        client.send(&get(path, "")).await;
        assert_eq!(client.reply().await.status, status, "{path}");
    }
    stop.cancel();
    task.await.unwrap();
}

#[tokio::test]
async fn allows_cross_origin_requests_of_allowed_origins() {
    let server = TestFront::start().await;
    let ask = "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: mcp-session-id\r\n";
    let preflight = |origin: &str| get("/mcp", &format!("Origin: {origin}\r\n{ask}")).replacen("GET", "OPTIONS", 1);
    for origin in ["https://app.example.com", "http://localhost:3000"] {
        let reply = server.request(&preflight(origin)).await;
        assert_eq!((reply.status, reply.header("access-control-allow-origin")), (204, Some(origin)));
        let headers = reply.header("access-control-allow-headers").unwrap();
        for name in
            ["authorization", "content-type", "mcp-session-id", "mcp-protocol-version", "mcp-method", "mcp-name"]
        {
            assert!(headers.split(", ").any(|found| found == name), "{name} is not in {headers}");
        }
        assert!(reply.header("access-control-allow-methods").unwrap().contains("DELETE"));
        let reply = server.request(&post(&format!("Origin: {origin}\r\n"), "")).await;
        assert_eq!((reply.status, reply.header("access-control-allow-origin")), (200, Some(origin)));
        assert_eq!(reply.header("vary"), Some("Origin"));
        assert!(reply.header("access-control-expose-headers").unwrap().contains("mcp-session-id"));
        // A page can read a refusal too, otherwise it could not report the reason.
        let reply = server.request(&get("/mcp", &format!("Origin: {origin}\r\n"))).await;
        assert_eq!((reply.status, reply.header("access-control-allow-origin")), (401, Some(origin)));
    }
    let reply = server.request(&preflight("https://evil.example")).await;
    assert_eq!((reply.status, reply.header("access-control-allow-origin")), (403, None));
    server.stop().await;
}

#[tokio::test]
async fn everyone_is_the_owner_without_authentication() {
    let mut server =
        TestFront::start_with(HttpConfig { auth: HttpAuth::None, ..config() }, HttpBounds::default()).await;
    assert_eq!(server.request(&get("/mcp", "")).await.status, 200);
    assert_eq!(server.event().await, FakeMcpEvent::Came("owner".into(), 0));
    assert_eq!(server.request(&get("/metrics", "")).await.status, 200);
    assert_eq!(server.request(&get("/mcp", "Origin: https://evil.example\r\n")).await.status, 403);
    server.stop().await;
}
