//! Tests of the limits on size, time, memory and connections.

use super::*;

const SHORT: Duration = Duration::from_millis(200);

fn chunked_head(token: &str) -> String {
    format!(
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
}

#[tokio::test]
async fn refuses_a_50_megabyte_body_while_it_is_sent() {
    let mut server = TestFront::start().await;
    for declared in [true, false] {
        let stream = TcpStream::connect(server.address).await.unwrap();
        let (mut reading, mut writing) = stream.into_split();
        let sending = tokio::spawn(async move {
            let head = if declared {
                post("", "").replace("Content-Length: 0", "Content-Length: 52428800")
            } else {
                chunked_head(ALICE)
            };
            // Write errors are expected: the server closes the connection.
            let _ = writing.write_all(head.as_bytes()).await;
            let part = vec![b'x'; 1024 * 1024];
            for _ in 0..50 {
                if !declared {
                    let _ = writing.write_all(b"100000\r\n").await;
                }
                if writing.write_all(&part).await.is_err() {
                    return;
                }
                if !declared {
                    let _ = writing.write_all(b"\r\n").await;
                }
            }
        });
        let mut answer = vec![0; 12];
        timeout(PATIENCE, reading.read_exact(&mut answer)).await.expect("no answer").unwrap();
        assert_eq!(text(&answer), "HTTP/1.1 413", "declared: {declared}");
        timeout(PATIENCE, sending).await.expect("still sending").unwrap();
    }
    assert!(server.events.try_recv().is_err());
    assert_eq!(server.count("cove_http_refused_total{reason=\"size\"}"), 2);
    server.stop().await;
}

#[tokio::test]
async fn accepts_a_body_up_to_the_exact_limit() {
    let server = TestFront::start_with(config(), HttpBounds { body_bytes: 1000, ..HttpBounds::default() }).await;
    assert_eq!(server.request(&post("", &"x".repeat(1000))).await.body, "alice sent 1000");
    assert_eq!(server.request(&post("", &"x".repeat(1001))).await.status, 413);
    let head = chunked_head(ALICE);
    let part = format!("1f4\r\n{}\r\n", "x".repeat(500));
    assert_eq!(server.request(&format!("{head}{part}{part}0\r\n\r\n")).await.body, "alice sent 1000");
    // Refused at the first byte over the limit, before the body ends.
    assert_eq!(server.request(&format!("{head}{part}{part}1\r\nx\r\n")).await.status, 413);
    assert_eq!(server.request(&format!("{head}zz\r\n")).await.status, 400);
    server.stop().await;
}

#[tokio::test]
async fn closes_a_request_head_that_does_not_end() {
    let server = TestFront::start_with(config(), HttpBounds { head: SHORT, ..HttpBounds::default() }).await;
    // No byte, half a head, and single bytes with pauses, which must not extend the limit.
    let mut silent = server.connect().await;
    let mut half = server.connect().await;
    half.send("GET /healthz HTTP/1.1\r\nHost: local").await;
    let mut slow = server.connect().await;
    slow.send("GET /healthz HTTP/1.1\r\n").await;
    let (mut reading, mut writing) = slow.0.into_split();
    let dripping = tokio::spawn(async move {
        while writing.write_all(b"a: b\r\n").await.is_ok() {
            tokio::time::sleep(SHORT / 10).await;
        }
    });
    assert_eq!(silent.read_to_end().await, "");
    assert_eq!(half.read_to_end().await, "");
    let mut bytes = Vec::new();
    let _ = timeout(PATIENCE, reading.read_to_end(&mut bytes)).await.expect("it was not cut");
    assert!(!text(&bytes).starts_with("HTTP/1.1 200"));
    timeout(PATIENCE, dripping).await.expect("still dripping").unwrap();
    server.stop().await;
}

#[tokio::test]
async fn refuses_a_request_head_that_is_too_large() {
    let server = TestFront::start().await;
    let long = get("/healthz", &format!("a: {}\r\n", "x".repeat(100 * 1024)));
    let many = get("/healthz", &"a: b\r\n".repeat(200));
    for request in [long, many] {
        let mut client = server.connect().await;
        // The server may close the connection before all of it is sent.
        let _ = client.0.write_all(request.as_bytes()).await;
        let answer = client.read_to_end().await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
    }
    let mut client = server.connect().await;
    client.send("\x16\x03\x01\x02\x00\x01\x00 what a client of TLS would send\r\n\r\n").await;
    assert!(client.read_to_end().await.starts_with("HTTP/1.1 400 "));
    assert_eq!(server.request(&post("", "")).await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn closes_a_request_body_that_does_not_end() {
    let mut server = TestFront::start_with(config(), HttpBounds { body: SHORT, ..HttpBounds::default() }).await;
    for head in [post("", "").replace("Content-Length: 0", "Content-Length: 10"), chunked_head(ALICE)] {
        let reply = server.request(&head).await;
        assert_eq!((reply.status, reply.header("connection")), (408, Some("close")));
    }
    assert!(server.events.try_recv().is_err());
    server.stop().await;
}

#[tokio::test]
async fn request_bodies_share_a_memory_limit() {
    let bounds =
        HttpBounds { body: 20 * SHORT, body_bytes: 4096, free_body_bytes: 0, memory: 4096, ..HttpBounds::default() };
    let mut server = TestFront::start_with(config(), bounds).await;
    let mut first = server.connect().await;
    first.send(&post("do: wait\r\n", &"x".repeat(4096))).await;
    assert_eq!(server.event().await, FakeMcpEvent::Came("alice".into(), 4096));
    let reply = server.request(&post("", "x")).await;
    assert_eq!((reply.status, reply.header("retry-after")), (503, Some("1")));
    // A request without a body needs no memory.
    assert_eq!(server.request(&post("", "")).await.status, 200);
    server.release.notify_one();
    assert_eq!(first.reply().await.body, "alice sent 4096");
    assert_eq!(server.request(&post("", "x")).await.status, 200);
    // A body of undeclared size keeps only the memory that it needs.
    let mut second = server.connect().await;
    second
        .send(&format!("{}1\r\nx\r\n0\r\n\r\n", chunked_head(ALICE).replace("\r\n\r\n", "\r\ndo: wait\r\n\r\n")))
        .await;
    loop {
        if server.event().await == FakeMcpEvent::Came("alice".into(), 1) && server.events.is_empty() {
            break;
        }
    }
    assert_eq!(server.request(&post("", &"x".repeat(3072))).await.status, 200);
    server.release.notify_one();
    assert_eq!(second.reply().await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn refuses_connections_beyond_the_limit() {
    let server = TestFront::start_with(HttpConfig { max_connections: 2, ..config() }, HttpBounds::default()).await;
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut client = server.connect().await;
        client.send(&post("", "")).await;
        assert_eq!(client.reply().await.status, 200);
        held.push(client);
    }
    for _ in 0..3 {
        let reply = server.request(&post("", "")).await;
        assert_eq!((reply.status, reply.header("connection")), (503, Some("close")));
        assert!(reply.body.contains("`max-connections`"), "{}", reply.body);
        serde_json::from_str::<serde_json::Value>(&reply.body).unwrap();
    }
    assert_eq!(server.count("cove_http_refused_total{reason=\"connections\"}"), 3);
    // Connections that have a place keep it.
    held[0].send(&post("", "")).await;
    assert_eq!(held[0].reply().await.status, 200);
    held.clear();
    let freed = async {
        while server.count("cove_http_connections") > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, freed).await.expect("closed connections still count");
    assert_eq!(server.request(&post("", "")).await.status, 200);
    server.stop().await;
}

/// A client without a token cannot keep a place.
#[tokio::test]
async fn public_responses_close_the_connection() {
    let server = TestFront::start().await;
    for path in ["/healthz", "/readyz", "/", "/metrics", "/mcp"] {
        let mut client = server.connect().await;
        client.send(&get(path, "")).await;
        assert_eq!(client.reply().await.header("connection"), Some("close"), "{path}");
        assert_eq!(client.read_to_end().await, "");
    }
    server.stop().await;
}

/// Connects again and again without a token: silent, with half a head, or with a head that grows by single bytes.
async fn flood(address: SocketAddr, number: usize) {
    let part = ["", "POST /mcp HTTP/1.1\r\nHost: loc", "POST /mcp HTTP/1.1\r\na: b"][number % 3];
    loop {
        let Ok(mut stream) = TcpStream::connect(address).await else { continue };
        let _ = stream.write_all(part.as_bytes()).await;
        // Until the server closes it.
        while number % 3 == 2 && stream.write_all(b"c").await.is_ok() {
            tokio::time::sleep(SHORT / 20).await;
        }
        let _ = stream.read(&mut [0]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_clients_without_a_token_keep_no_client_with_one_out() {
    let bounds = HttpBounds { token_grace: Duration::from_millis(100), ..HttpBounds::default() };
    let server = TestFront::start_with(HttpConfig { max_connections: 64, ..config() }, bounds).await;
    let floods: Vec<_> = (0..400).map(|number| tokio::spawn(flood(server.address, number))).collect();
    let full = async {
        while server.count("cove_http_refused_total{reason=\"no_token_in_time\"}") < 300 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, full).await.expect("the flood closed nothing");
    // On a busy machine a token may need longer than its grace. A client that comes again gets in, and stays.
    let mut kept = server.connect_until_answered(&post("", "x")).await;
    for _ in 0..10 {
        server.connect_until_answered(&post("", "x")).await;
        kept.send(&post("", "y")).await;
        assert_eq!(kept.reply().await.status, 200);
    }
    server.connect_until_answered(&get("/healthz", "")).await;
    floods.iter().for_each(JoinHandle::abort);
    server.stop().await;
}

/// An answer in flight has its time. Half a head has none, with and without a token.
#[tokio::test]
async fn a_stop_waits_for_answers_and_not_for_heads() {
    let forever = Duration::from_secs(24 * 3600);
    let bounds = HttpBounds { head: forever, drain: forever, ..HttpBounds::default() };
    let mut server = TestFront::start_with(config(), bounds).await;
    let [mut unknown, mut known, mut answered] =
        [server.connect().await, server.connect().await, server.connect().await];
    known.send(&post("", "x")).await;
    assert_eq!(known.reply().await.status, 200);
    known.send("POST /mcp HTTP/1.1\r\nHost: loc").await;
    unknown.send("POST /mcp HTTP/1.1\r\nHost: loc").await;
    answered.send(&post("Do: wait\r\n", "xy")).await;
    while server.event().await != FakeMcpEvent::Came("alice".into(), 2) {}
    server.stop.cancel();
    assert_eq!((known.read_to_end().await, unknown.read_to_end().await), (String::new(), String::new()));
    assert!(!server.task.is_finished());
    server.release.notify_one();
    assert_eq!(answered.reply().await.body, "alice sent 2");
    server.stop().await;
}

#[tokio::test]
async fn slow_bodies_of_one_principal_leave_room_for_others() {
    let bounds = HttpBounds { body_bytes: 1 << 20, memory: 4 << 20, ..HttpBounds::default() };
    let server = TestFront::start_with(HttpConfig { max_connections: 32, ..config() }, bounds).await;
    let mut slow = Vec::new();
    for number in 0..64 {
        let mut client = server.connect().await;
        let declared = post("", "").replace("Content-Length: 0", "Content-Length: 1048576");
        let head = if number % 2 == 0 { declared } else { chunked_head(ALICE) };
        client.send(&head).await;
        slow.push(client);
    }
    let held = async {
        while server.count("cove_http_refused_total{reason=\"connections\"}") < 32 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, held).await.expect("one principal has more than all places");
    // Another principal has places and memory, for small and for large bodies.
    for size in [1, 1 << 20] {
        let reply = server.request(&post("", &"x".repeat(size)).replace(ALICE, BOB)).await;
        assert_eq!((reply.status, reply.body), (200, format!("bob sent {size}")));
    }
    server.stop().await;
}

#[tokio::test]
async fn small_bodies_need_no_shared_memory() {
    let bounds = HttpBounds { body_bytes: 1 << 20, memory: 1 << 20, ..HttpBounds::default() };
    let server = TestFront::start_with(config(), bounds).await;
    let mut slow = server.connect().await;
    slow.send(&post("", "").replace("Content-Length: 0", "Content-Length: 1048576")).await;
    slow.send(&"x".repeat(100_000)).await;
    for body in ["x".to_owned(), "x".repeat(60_000)] {
        assert_eq!(server.request(&post("", &body)).await.status, 200);
        let chunk = format!("{}{:x}\r\n{body}\r\n0\r\n\r\n", chunked_head(ALICE), body.len());
        assert_eq!(server.request(&chunk).await.status, 200);
    }
    server.stop().await;
}
