//! The older transport, HTTP with SSE of 2024-11-05: recognised by itself or demanded, and what can go wrong with it.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cove_core::error::Hint;
use cove_testkit::fixture::front::{FixtureFront, FrontForm, listen, write};
use cove_upstream::pool::{CallOptions, ProtocolEra, UpstreamError, UpstreamPool};
use serde_json::{Value, json};

use crate::{call, definitions, object, run, settings, text, wait_until};

fn pool_of(url: &str, transport: Option<&str>) -> Arc<UpstreamPool> {
    let mut definition = json!({
        "url": url, "headers": {"Authorization": "Bearer canary-token", "X-Key": "canary-key"},
    });
    if let Some(transport) = transport {
        definition["type"] = transport.into();
    }
    UpstreamPool::new(definitions(&json!({"fixture": definition})), settings())
}

fn pool(front: &FixtureFront, transport: Option<&str>) -> Arc<UpstreamPool> {
    pool_of(&format!("http://{}/mcp", front.address), transport)
}

/// Whether requests with this method were sent, and how many.
fn count(front: &FixtureFront, method: &str, path: &str) -> usize {
    front.requests().iter().filter(|asked| asked.method == method && asked.path == path).count()
}

#[test]
fn speaks_the_older_transport() {
    run(async {
        for transport in [None, Some("auto"), Some("sse")] {
            let front = FixtureFront::start(&["--era", "legacy"], FrontForm::LegacySse);
            let pool = pool(&front, transport);
            let sent = json!({"null": null, "from": "日本", "n": 9_007_199_254_740_993_u64, "a-b": [{}]});
            let echoed = call(&pool, "echo", sent.clone()).await.unwrap();
            assert_eq!((echoed.structured, pool.era("fixture")), (Some(sent), Some(ProtocolEra::Legacy)));
            let big = call(&pool, "big", json!({"n": 10 << 20})).await.unwrap();
            assert_eq!(text(&big).len(), 10 << 20);
            let refused = call(&pool, "refuse", json!({})).await.unwrap_err().to_string();
            assert_eq!(refused, "server `fixture` refused: not today (-32050)");
            assert_eq!(pool.tools("fixture").await.unwrap().len(), 21);

            let reported: Arc<Mutex<Vec<f64>>> = Arc::default();
            let sink = Arc::clone(&reported);
            let progress: cove_upstream::pool::ProgressSink =
                Arc::new(move |progress| sink.lock().unwrap().push(progress.progress.unwrap()));
            let options = CallOptions { progress: Some(progress), ..CallOptions::default() };
            pool.call("fixture", "progress", object(json!({"steps": 5})), options).await.unwrap();
            assert_eq!(*reported.lock().unwrap(), [1.0, 2.0, 3.0, 4.0, 5.0]);

            let mut calls = tokio::task::JoinSet::new();
            for n in 0..20 {
                let pool = Arc::clone(&pool);
                calls.spawn(async move { call(&pool, "echo", json!({"n": n})).await.unwrap().structured.unwrap() });
            }
            let mut echoed: Vec<_> = calls.join_all().await.into_iter().map(|value| value["n"].as_u64()).collect();
            echoed.sort();
            assert_eq!(echoed, (0..20).map(Some).collect::<Vec<_>>());
            // Every message after the handshake goes to the address that the stream named, with the headers.
            let requests = front.requests();
            let posts = requests.iter().filter(|asked| asked.path == "/messages?session=7");
            assert!(posts.clone().count() > 20);
            assert!(posts.into_iter().all(|asked| asked.headers["x-key"] == "canary-key"));
            assert_eq!(count(&front, "POST", "/mcp") > 0, transport != Some("sse"));
            pool.close().await;
        }
    });
}

#[test]
fn detects_the_transport_once() {
    run(async {
        let front = FixtureFront::start(&["--era", "legacy"], FrontForm::LegacySse);
        let pool = pool(&front, None);
        call(&pool, "echo", json!({})).await.unwrap();
        let probes = count(&front, "POST", "/mcp");
        assert_eq!((probes, count(&front, "GET", "/mcp")), (2, 1), "one message of each era is refused");
        front.end_events();
        wait_until("the connection is known to be gone", || !pool.is_running("fixture")).await;
        call(&pool, "echo", json!({})).await.unwrap();
        assert_eq!((count(&front, "POST", "/mcp"), count(&front, "GET", "/mcp")), (probes, 2));
        pool.close().await;
    });
}

#[test]
fn broken_stream_fails_its_calls_as_gone() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let front =
            Arc::new(FixtureFront::start(&["--era", "legacy", "--log", log.to_str().unwrap()], FrontForm::LegacySse));
        let pool = pool(&front, Some("sse"));
        let arrived = || std::fs::read_to_string(&log).unwrap_or_default().contains("\"never\"");
        let (failed, ()) = tokio::join!(call(&pool, "never", json!({})), async {
            wait_until("the call arrives", arrived).await;
            front.end_events();
        });
        let error = failed.unwrap_err();
        assert!(matches!(error, UpstreamError::Gone { .. }), "{error:?}");
        assert!(error.to_string().contains("its connection ended"), "{error}");
        let calls = front.requests().iter().filter(|asked| asked.body["params"]["name"] == "never").count();
        assert_eq!(calls, 1, "it is not repeated");
        call(&pool, "echo", json!({})).await.unwrap();
        pool.close().await;

        let options = CallOptions { timeout: Some(Duration::from_secs(2)), ..CallOptions::default() };
        let pool = self::pool(&front, Some("sse"));
        let late = pool.call("fixture", "never", object(json!({})), options).await.unwrap_err();
        assert!(late.to_string().contains("did not answer within 2 s"), "{late}");
        let cancelled = || std::fs::read_to_string(&log).unwrap().contains("notifications/cancelled");
        wait_until("the server hears of it", cancelled).await;
        pool.close().await;
    });
}

/// The error of a call, which contains no secret and arrives in time.
async fn failure(address: SocketAddr, transport: Option<&str>) -> (UpstreamError, String) {
    let pool = pool_of(&format!("http://{address}/mcp?key=query-secret"), transport);
    let error = tokio::time::timeout(Duration::from_secs(60), call(&pool, "echo", json!({}))).await;
    let error = error.expect("nothing hangs").expect_err("it fails");
    let words = format!("{error} {error:?} {:?}", pool.summaries());
    assert!(!words.contains("canary") && !words.contains("query-secret"), "{words}");
    pool.close().await;
    let shown = error.to_string();
    (error, shown)
}

/// A server that refuses messages and writes `stream` as its event stream.
fn stream_server(stream: impl Fn(&mut TcpStream) + Send + Sync + 'static) -> SocketAddr {
    listen(move |asked, connection| match asked.method.as_str() {
        "GET" => {
            let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/event-stream\r\n\r\n";
            let _ = connection.write_all(head.as_bytes());
            stream(connection);
        }
        _ => write(connection, "405 Method Not Allowed", "", b""),
    })
}

#[test]
fn sends_nothing_to_an_endpoint_elsewhere() {
    run(async {
        let seen = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&seen);
        let elsewhere = listen(move |_, stream| {
            counted.fetch_add(1, Ordering::SeqCst);
            write(stream, "202 Accepted", "", b"");
        });
        let port = elsewhere.port();
        let cases = [
            (format!("http://{elsewhere}/messages"), "names another origin"),
            (format!("//127.0.0.1:{port}/messages"), "names another origin"),
            (format!("http://localhost:{port}/"), "names another origin"),
            (format!("https://{elsewhere}/canary-token"), "names another origin"),
            ("file:///etc/passwd".to_owned(), "names another origin"),
            ("http://[".to_owned(), "has no address"),
            ("x".repeat(10_000), "has no address"),
        ];
        for (endpoint, expected) in cases {
            let event = format!("event: endpoint\ndata: {endpoint}\n\n");
            let address = stream_server(move |stream| {
                let _ = stream.write_all(event.as_bytes());
                std::thread::sleep(Duration::from_secs(60));
            });
            for transport in [None, Some("sse")] {
                let (error, shown) = failure(address, transport).await;
                assert!(matches!(error, UpstreamError::NotStarted { .. }), "{error:?}");
                assert!(shown.contains(expected), "{endpoint}: {shown}");
            }
        }
        assert_eq!(seen.load(Ordering::SeqCst), 0);
    });
}

#[test]
fn gives_up_on_streams_that_never_name_an_endpoint() {
    run(async {
        // Comments and empty events without end.
        let endless = stream_server(|stream| {
            while stream.write_all(b": still there\n\nretry: 5\n\n").is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let silent = stream_server(|_| std::thread::sleep(Duration::from_secs(120)));
        for address in [endless, silent] {
            let start = Instant::now();
            let (_, shown) = failure(address, None).await;
            assert!(shown.contains("had no `endpoint` event within 10 s"), "{shown}");
            assert!(start.elapsed() >= Duration::from_secs(9), "{:?}", start.elapsed());
        }
        let messages = stream_server(|stream| drop(stream.write_all(b"data: {\"canary-token\":1}\n\n")));
        let (_, shown) = failure(messages, None).await;
        assert!(shown.contains("does not begin with an `endpoint` event"), "{shown}");
        let ended = stream_server(|_| {});
        let (_, shown) = failure(ended, Some("sse")).await;
        assert!(shown.contains("ended before an `endpoint` event"), "{shown}");
    });
}

#[test]
fn bounds_events_of_the_older_transport() {
    run(async {
        // One event of a gigabyte, before the endpoint and instead of an answer.
        fn flood(stream: &mut TcpStream) {
            let piece = vec![b'x'; 1 << 20];
            let _ = stream.write_all(b"data: ");
            for _ in 0..1024 {
                if stream.write_all(&piece).is_err() {
                    return;
                }
            }
        }
        let (_, shown) = failure(stream_server(flood), Some("sse")).await;
        assert!(shown.contains("more than 67108864 bytes"), "{shown}");

        for (reply, expected) in [
            (flood as fn(&mut TcpStream), "more than 67108864 bytes"),
            (nonsense, "it sends nonsense, and was cut off"),
            (|stream| drop(stream.write_all(b"data: {\"jsonrpc\"")), "its connection ended"),
        ] {
            let (error, shown) = failure(answering_server(reply), Some("sse")).await;
            assert!(matches!(error, UpstreamError::Gone { .. }), "{error:?}");
            assert!(shown.contains(expected), "{shown}");
        }
    });
}

fn nonsense(stream: &mut TcpStream) {
    while stream.write_all(b"data: canary-token\n\n").is_ok() {}
}

/// A server that greets properly, and answers the first call with `reply` on the stream.
fn answering_server(reply: fn(&mut TcpStream)) -> SocketAddr {
    let (send, receive) = std::sync::mpsc::channel::<Value>();
    let (send, receive) = (Mutex::new(send), Mutex::new(receive));
    listen(move |asked, stream| match asked.method.as_str() {
        "GET" => {
            let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/event-stream\r\n\r\n\
                        event: endpoint\ndata: messages\n\n";
            let _ = stream.write_all(head.as_bytes());
            let receive = receive.lock().unwrap();
            while let Ok(message) = receive.recv_timeout(Duration::from_secs(120)) {
                if message["method"] == "tools/call" {
                    return reply(stream);
                }
                let result = json!({
                    "protocolVersion": "2024-11-05", "capabilities": {"tools": {}},
                    "serverInfo": {"name": "x", "version": "1"},
                });
                if message.get("id").is_some() {
                    let answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
                    let _ = stream.write_all(format!("data: {answer}\n\n").as_bytes());
                }
            }
        }
        _ => {
            let _ = send.lock().unwrap().send(asked.body);
            write(stream, "202 Accepted", "", b"");
        }
    })
}

#[test]
fn falls_back_only_where_the_server_refuses_as_an_older_one() {
    run(async {
        let gets = Arc::new(AtomicUsize::new(0));
        let server = |status: &'static str, headers: &'static str, body: &'static str| {
            let counted = Arc::clone(&gets);
            listen(move |asked, stream| {
                if asked.method == "GET" {
                    counted.fetch_add(1, Ordering::SeqCst);
                }
                write(stream, status, headers, body.as_bytes());
            })
        };
        let error = "{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32601,\"message\":\"no\"}}";
        let json = "Content-Type: application/json\r\n";
        for (status, headers, body, tries) in [
            ("404 Not Found", "", "nothing here", 1),
            ("405 Method Not Allowed", "", "", 1),
            ("400 Bad Request", "", "", 1),
            // An error of the protocol is an answer of a Streamable HTTP server.
            ("404 Not Found", json, error, 0),
            ("500 Internal Server Error", "", "", 0),
            ("401 Unauthorized", "", "", 0),
        ] {
            gets.store(0, Ordering::SeqCst);
            let address = server(status, headers, body);
            let (_, shown) = failure(address, None).await;
            assert_eq!(gets.load(Ordering::SeqCst), tries, "{status}");
            assert!(body == error || shown.contains(&format!("HTTP {status}")), "{status}: {shown}");
            gets.store(0, Ordering::SeqCst);
            let (error, _) = failure(address, Some("http")).await;
            assert_eq!(gets.load(Ordering::SeqCst), 0, "{status}");
            let hint = error.hint().unwrap_or_default();
            assert_eq!(hint.contains("older SSE transport"), tries == 1, "{status}: {hint}");
        }
    });
}
