//! Size, time, memory and number: what a client can take, and that it cannot take more.

use super::*;

const SHORT: Duration = Duration::from_millis(200);

fn chunked(token: &str) -> String {
    format!(
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
}

#[tokio::test]
async fn a_body_of_50_megabytes_is_refused_while_it_is_sent() {
    let mut server = Server::start().await;
    for declared in [true, false] {
        let stream = TcpStream::connect(server.address).await.unwrap();
        let (mut reading, mut writing) = stream.into_split();
        let sending = tokio::spawn(async move {
            let head = if declared {
                post("", "").replace("Content-Length: 0", "Content-Length: 52428800")
            } else {
                chunked(ALICE)
            };
            // Failures are what is wanted here: the server hangs up.
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
async fn a_body_may_be_as_large_as_the_bound_and_no_larger() {
    let server = Server::with(config(), Bounds { body_bytes: 1000, ..Bounds::default() }).await;
    assert_eq!(server.ask(&post("", &"x".repeat(1000))).await.body, "alice sent 1000");
    assert_eq!(server.ask(&post("", &"x".repeat(1001))).await.status, 413);
    let head = chunked(ALICE);
    let part = format!("1f4\r\n{}\r\n", "x".repeat(500));
    assert_eq!(server.ask(&format!("{head}{part}{part}0\r\n\r\n")).await.body, "alice sent 1000");
    // Refused at the byte that is too many: the end never comes.
    assert_eq!(server.ask(&format!("{head}{part}{part}1\r\nx\r\n")).await.status, 413);
    assert_eq!(server.ask(&format!("{head}zz\r\n")).await.status, 400);
    server.stop().await;
}

#[tokio::test]
async fn a_head_that_does_not_end_is_cut() {
    let server = Server::with(config(), Bounds { head: SHORT, ..Bounds::default() }).await;
    // Without a byte; with half a head; and with a byte now and then, which must not help.
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
    assert_eq!(silent.rest().await, "");
    assert_eq!(half.rest().await, "");
    let mut bytes = Vec::new();
    let _ = timeout(PATIENCE, reading.read_to_end(&mut bytes)).await.expect("it was not cut");
    assert!(!text(&bytes).starts_with("HTTP/1.1 200"));
    timeout(PATIENCE, dripping).await.expect("still dripping").unwrap();
    server.stop().await;
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused() {
    let server = Server::start().await;
    let long = get("/healthz", &format!("a: {}\r\n", "x".repeat(100 * 1024)));
    let many = get("/healthz", &"a: b\r\n".repeat(200));
    for request in [long, many] {
        let mut client = server.connect().await;
        // The server may hang up before all of it is sent.
        let _ = client.0.write_all(request.as_bytes()).await;
        let answer = client.rest().await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
    }
    let mut client = server.connect().await;
    client.send("\x16\x03\x01\x02\x00\x01\x00 what a client of TLS would send\r\n\r\n").await;
    assert!(client.rest().await.starts_with("HTTP/1.1 400 "));
    assert_eq!(server.ask(&post("", "")).await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn a_body_that_does_not_end_is_cut() {
    let mut server = Server::with(config(), Bounds { body: SHORT, ..Bounds::default() }).await;
    for head in [post("", "").replace("Content-Length: 0", "Content-Length: 10"), chunked(ALICE)] {
        let reply = server.ask(&head).await;
        assert_eq!((reply.status, reply.header("connection")), (408, Some("close")));
    }
    assert!(server.events.try_recv().is_err());
    server.stop().await;
}

#[tokio::test]
async fn bodies_share_a_bounded_memory_until_their_answers_begin() {
    let bounds = Bounds { body: 5 * SHORT, body_bytes: 4096, memory: 4096, ..Bounds::default() };
    let mut server = Server::with(config(), bounds).await;
    let mut first = server.connect().await;
    first.send(&post("do: wait\r\n", &"x".repeat(4096))).await;
    assert_eq!(server.event().await, Event::Came("alice".into(), 4096));
    let reply = server.ask(&post("", "x")).await;
    assert_eq!((reply.status, reply.header("retry-after")), (503, Some("1")));
    // What has no body needs no memory.
    assert_eq!(server.ask(&post("", "")).await.status, 200);
    server.release.notify_one();
    assert_eq!(first.reply().await.body, "alice sent 4096");
    assert_eq!(server.ask(&post("", "x")).await.status, 200);
    // A body whose size was not declared keeps what it needs and no more.
    let mut second = server.connect().await;
    second
        .send(&format!("{}1\r\nx\r\n0\r\n\r\n", chunked(ALICE).replace("\r\n\r\n", "\r\ndo: wait\r\n\r\n")))
        .await;
    loop {
        if server.event().await == Event::Came("alice".into(), 1) && server.events.is_empty() {
            break;
        }
    }
    assert_eq!(server.ask(&post("", &"x".repeat(3072))).await.status, 200);
    server.release.notify_one();
    assert_eq!(second.reply().await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn connections_are_bounded_and_those_too_many_are_told() {
    let server = Server::with(HttpConfig { max_connections: 2, ..config() }, Bounds::default()).await;
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut client = server.connect().await;
        client.send(&post("", "")).await;
        assert_eq!(client.reply().await.status, 200);
        held.push(client);
    }
    for _ in 0..3 {
        let reply = server.ask(&post("", "")).await;
        assert_eq!((reply.status, reply.header("connection")), (503, Some("close")));
        assert!(reply.body.contains("`max-connections`"), "{}", reply.body);
        serde_json::from_str::<serde_json::Value>(&reply.body).unwrap();
    }
    assert_eq!(server.count("cove_http_refused_total{reason=\"connections\"}"), 3);
    assert_eq!(server.count("cove_http_connections"), 2);
    // Those that have a place keep it.
    held[0].send(&post("", "")).await;
    assert_eq!(held[0].reply().await.status, 200);
    held.clear();
    let freed = async {
        while server.count("cove_http_connections") > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, freed).await.expect("closed connections still count");
    assert_eq!(server.ask(&post("", "")).await.status, 200);
    server.stop().await;
}

/// Who has no token cannot keep a place among those who have.
#[tokio::test]
async fn what_is_answered_to_anyone_ends_the_connection() {
    let server = Server::start().await;
    for path in ["/healthz", "/readyz", "/", "/metrics", "/mcp"] {
        let mut client = server.connect().await;
        client.send(&get(path, "")).await;
        assert_eq!(client.reply().await.header("connection"), Some("close"), "{path}");
        assert_eq!(client.rest().await, "");
    }
    server.stop().await;
}
