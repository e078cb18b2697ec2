//! Addresses without a good server: no listener, another service, one that wants a token, one that breaks off or
//! never ends.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cove_testkit::fixture::front::{FrontRequest, listen, write};
use cove_upstream::pool::{UpstreamError, UpstreamPool, UpstreamSettings, UpstreamState};
use serde_json::json;

use crate::{call, definitions, run, settings};

fn pool_at(address: SocketAddr, settings: UpstreamSettings) -> Arc<UpstreamPool> {
    let definition = json!({
        "url": format!("http://{address}/mcp?key=query-secret"),
        "headers": {"Authorization": "Bearer canary-token", "X-Key": "canary-key"},
    });
    UpstreamPool::new(definitions(&json!({"fixture": definition})), settings)
}

/// A server of the newer era that answers tool calls with `answer`.
fn server(answer: impl Fn(&FrontRequest, &mut TcpStream) + Send + Sync + 'static) -> SocketAddr {
    listen(move |asked, stream| match asked.body["method"].as_str() {
        Some("tools/call") => answer(&asked, stream),
        Some("server/discover") => {
            let result = json!({
                "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "resultType": "complete",
                "serverInfo": {"name": "x", "version": "1"}, "ttlMs": 0, "cacheScope": "private",
            });
            let body = json!({"jsonrpc": "2.0", "id": asked.body["id"], "result": result}).to_string();
            write(stream, "200 OK", "Content-Type: application/json\r\n", body.as_bytes());
        }
        _ => write(stream, "405 Method Not Allowed", "", b""),
    })
}

/// The error of a call, in every form in which it could leave the pool. None contains a secret.
async fn call_failure(pool: &UpstreamPool) -> (UpstreamError, String) {
    let error = tokio::time::timeout(Duration::from_secs(60), call(pool, "echo", json!({}))).await;
    let error = error.expect("nothing hangs").expect_err("it fails");
    let words = format!("{error} {error:?} {:?}", pool.summaries());
    assert!(!words.contains("canary") && !words.contains("query-secret"), "{words}");
    let shown = error.to_string();
    (error, shown)
}

#[test]
fn reports_servers_that_need_a_token() {
    run(async {
        for (status, headers) in [
            ("401 Unauthorized", "WWW-Authenticate: Bearer realm=\"canary-token\"\r\n"),
            ("401 Unauthorized", "Content-Type: application/json\r\n"),
            ("403 Forbidden", ""),
        ] {
            let body = b"{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32000,\"message\":\"canary-key\"}}";
            let always = listen(move |_, stream| write(stream, status, headers, body));
            let later = server(move |_, stream| write(stream, status, headers, body));
            for address in [always, later] {
                let pool = pool_at(address, settings());
                let (error, shown) = call_failure(&pool).await;
                assert!(matches!(error, UpstreamError::Needs { .. }), "{error:?}");
                let expected = format!(
                    "server `fixture` needs another token or permission (it answered HTTP {status}): see the headers in \
                     its definition"
                );
                assert_eq!(shown, expected);
                assert!(matches!(pool.summaries()[0].state, UpstreamState::Failed(_)));
            }
        }
    });
}

#[test]
fn quotes_addresses_that_are_not_mcp_servers() {
    run(async {
        let cases: [(&str, &str, &str, &str); 5] = [
            (
                "500 Internal Server Error",
                "Content-Type: text/html\r\n",
                "<h1>canary-key</h1>",
                "it answered HTTP 500 Internal Server Error: `<h1>[redacted]</h1>`",
            ),
            ("404 Not Found", "", "nothing here", "it answered HTTP 404 Not Found: `nothing here`"),
            (
                "200 OK",
                "Content-Type: text/html\r\n",
                "<html>\x1b[2Jhello",
                "it answers with `text/html` instead of JSON, so it is no MCP server: `<html> [2Jhello`",
            ),
            (
                "200 OK",
                "Content-Type: application/json\r\n",
                "{\"ok\":true}",
                "its answer is no message: `{\"ok\":true}`",
            ),
            ("200 OK", "Content-Type: text/event-stream\r\n", "data: BLAH canary-token\n\n", "it wrote"),
        ];
        for (status, headers, body, expected) in cases {
            let address = listen(move |_, stream| write(stream, status, headers, body.as_bytes()));
            let (error, shown) = call_failure(&pool_at(address, settings())).await;
            assert!(matches!(error, UpstreamError::NotStarted { .. }), "{error:?}");
            assert!(shown.contains(expected), "{status}: {shown}");
            assert!(!shown.contains('\x1b'), "{shown:?}");
        }
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let (_, shown) = call_failure(&pool_at(nobody, settings())).await;
        assert!(shown.contains("could not be reached: no connection: Connection refused"), "{shown}");
        let silent = listen(|_, stream| {
            std::thread::sleep(Duration::from_secs(120));
            drop(stream.flush());
        });
        let hurried = UpstreamSettings { start_timeout: Duration::from_secs(1), ..settings() };
        let (_, shown) = call_failure(&pool_at(silent, hurried)).await;
        assert!(shown.contains("it did not answer within 1 s"), "{shown}");
    });
}

#[test]
fn broken_http_call_is_not_repeated() {
    run(async {
        let half = "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"content\":[";
        let cases: [(&str, &str); 4] = [
            ("", "the connection ended without an answer"),
            (
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9999\r\n\r\n",
                "in the middle of an answer",
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 9999\r\n\r\ndata: ",
                "in the middle of an answer",
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\ndata: ",
                "its connection ended",
            ),
        ];
        for (head, expected) in cases {
            let calls = Arc::new(AtomicUsize::new(0));
            let counted = Arc::clone(&calls);
            let address = server(move |_, stream| {
                counted.fetch_add(1, Ordering::SeqCst);
                if !head.is_empty() {
                    let _ = stream.write_all(format!("{head}{half}").as_bytes());
                }
            });
            let pool = pool_at(address, settings());
            let (error, shown) = call_failure(&pool).await;
            assert!(matches!(error, UpstreamError::Gone { .. }), "{error:?}");
            assert!(shown.contains(expected), "{head}: {shown}");
            tokio::time::sleep(Duration::from_millis(300)).await;
            assert_eq!(calls.load(Ordering::SeqCst), 1, "{head}");
            pool.close().await;
        }
    });
}

#[test]
fn cuts_off_an_endless_answer() {
    run(async {
        for kind in ["application/json", "text/event-stream"] {
            let address = server(move |_, stream| {
                let _ = stream.write_all(format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n\r\n").as_bytes());
                let piece = vec![b'x'; 1 << 20];
                while stream.write_all(&piece).is_ok() {}
            });
            let pool = pool_at(address, settings());
            let (_, shown) = call_failure(&pool).await;
            assert!(shown.contains("more than 67108864 bytes"), "{kind}: {shown}");
            pool.close().await;
        }
    });
}

#[test]
fn headers_are_not_sent_to_other_origins() {
    run(async {
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let kept = Arc::clone(&seen);
        let elsewhere = listen(move |asked, stream| {
            kept.lock().unwrap().push(format!("{asked:?}"));
            write(stream, "200 OK", "", b"");
        });
        for status in ["301 Moved Permanently", "302 Found", "307 Temporary Redirect", "308 Permanent Redirect"] {
            let to = format!("Location: http://{elsewhere}/mcp?key=query-secret\r\n");
            let address = listen(move |_, stream| write(stream, status, &to, b""));
            let (_, shown) = call_failure(&pool_at(address, settings())).await;
            assert!(shown.contains(status) && shown.contains("which is not followed"), "{shown}");
        }
        assert_eq!(seen.lock().unwrap().len(), 0, "{seen:?}");
    });
}

#[test]
fn repeated_http_failures_open_the_breaker() {
    run(async {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        let address = server(move |_, stream| {
            counted.fetch_add(1, Ordering::SeqCst);
            write(stream, "503 Service Unavailable", "Retry-After: 7\r\n", b"resting");
        });
        let quick = UpstreamSettings {
            back_off: Duration::from_millis(10),
            max_failures: 3,
            breaker_pause: Duration::from_secs(600),
            ..settings()
        };
        let pool = pool_at(address, quick);
        for _ in 0..3 {
            let (error, shown) = call_failure(&pool).await;
            assert!(matches!(error, UpstreamError::Gone { .. }), "{error:?}");
            assert!(shown.contains("HTTP 503 Service Unavailable (try again after 7): `resting`"), "{shown}");
        }
        let (error, _) = call_failure(&pool).await;
        assert!(matches!(error, UpstreamError::Circuit { .. }), "{error:?}");
        assert_eq!(calls.load(Ordering::SeqCst), 3);
        // A request that is only refused does not count as a failure of the server.
        let address = server(|_, stream| write(stream, "429 Too Many Requests", "", b"slowly"));
        let pool = pool_at(address, UpstreamSettings { max_failures: 1, ..settings() });
        for _ in 0..3 {
            let (error, shown) = call_failure(&pool).await;
            assert!(matches!(error, UpstreamError::Protocol { code: 429, .. }), "{error:?}");
            assert!(shown.contains("HTTP 429 Too Many Requests: `slowly`"), "{shown}");
        }
    });
}
