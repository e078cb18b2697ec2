//! Servers over HTTP: the same calls, in both eras, answered in one piece and as events.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cove_testkit::fixture::front::{self, FixtureFront, FrontForm};
use cove_upstream::pool::{CallOptions, ProtocolEra, ServerQuery, UpstreamPool, UpstreamState};
use serde_json::{Value, json};

use crate::{call, definitions, object, run, settings, text, wait_until};

fn pool(front: &FixtureFront) -> Arc<UpstreamPool> {
    UpstreamPool::new(definitions(&json!({"fixture": front.definition()})), settings())
}

const BOTH: [(&str, ProtocolEra); 2] = [("modern", ProtocolEra::Modern), ("legacy", ProtocolEra::Legacy)];

#[test]
fn http_calls_pass_values_unchanged() {
    run(async {
        for (flag, era) in BOTH {
            for form in [FrontForm::Json, FrontForm::Events] {
                let front = FixtureFront::start(&["--era", flag], form);
                let pool = pool(&front);
                assert_eq!(pool.summaries()[0].state, UpstreamState::Idle);
                assert!(front.requests().is_empty(), "nothing is asked before it is needed");
                let sent = json!({"null": null, "from": "日本", "n": 9_007_199_254_740_993_u64, "a-b": [{}]});
                let echoed = call(&pool, "echo", sent.clone()).await.unwrap();
                assert_eq!(echoed.structured, Some(sent), "{flag} {form:?}");
                assert_eq!((pool.summaries()[0].state.clone(), pool.era("fixture")), (UpstreamState::Ready, Some(era)));

                let rich = call(&pool, "rich", json!({})).await.unwrap();
                assert_eq!((rich.content.len(), &rich.content[5]), (6, &json!({"type": "hologram", "depth": null})));
                assert_eq!(rich.meta, Some(json!({"took": 1})));
                assert_eq!(call(&pool, "null", json!({})).await.unwrap().structured, Some(Value::Null));
                assert!(call(&pool, "fail", json!({})).await.unwrap().is_error);
                let refused = call(&pool, "refuse", json!({})).await.unwrap_err().to_string();
                assert_eq!(refused, "server `fixture` refused: not today (-32050)");

                let large = "y".repeat(1 << 20);
                let echoed = call(&pool, "echo", json!({"text": large})).await.unwrap();
                assert_eq!(echoed.structured.unwrap()["text"], large);
                let big = call(&pool, "big", json!({"n": 10 << 20})).await.unwrap();
                assert_eq!(text(&big).len(), 10 << 20);

                let query = async |query| pool.query("fixture", query, CallOptions::default()).await.unwrap();
                let resources = query(ServerQuery::Resources).await;
                assert_eq!(resources["resources"].as_array().unwrap().len(), 4);
                let read = query(ServerQuery::ReadResource { uri: "fixture://a".into() }).await;
                assert_eq!(read["contents"][0]["text"], "contents of it");
                let arguments = object(json!({"who": "Ada"}));
                let prompt = query(ServerQuery::Prompt { name: "greet".into(), arguments }).await;
                assert_eq!(prompt["messages"][0]["content"]["text"], "Greet Ada");
                assert_eq!(pool.instructions("fixture").as_deref(), Some("Call echo first."));
                pool.close().await;
            }
        }
    });
}

#[test]
fn http_lists_are_read_completely_and_safely() {
    run(async {
        for (flag, _) in BOTH {
            let front =
                FixtureFront::start(&["--era", flag, "--tools", "1000", "--page", "100", "--hostile"], FrontForm::Json);
            let pool = pool(&front);
            let tools = pool.tools("fixture").await.unwrap();
            assert_eq!(tools.len(), 1_026, "{flag}");
            let add = tools.iter().find(|tool| tool.name == "add").unwrap();
            assert!(add.read_only && add.output_schema.is_some());
            pool.close().await;
        }
    });
}

#[test]
fn http_calls_run_in_parallel_with_progress() {
    run(async {
        for (flag, _) in BOTH {
            let front = FixtureFront::start(&["--era", flag], FrontForm::Events);
            let pool = pool(&front);
            call(&pool, "echo", json!({})).await.unwrap();
            let start = std::time::Instant::now();
            let mut calls = tokio::task::JoinSet::new();
            for _ in 0..50 {
                let pool = Arc::clone(&pool);
                calls.spawn(async move { call(&pool, "slow", json!({"ms": 2000})).await.is_ok() });
            }
            assert!(calls.join_all().await.into_iter().all(|good| good));
            // One after another the calls would take 100 s.
            assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());

            let reported: Arc<Mutex<Vec<f64>>> = Arc::default();
            let sink = Arc::clone(&reported);
            let progress: cove_upstream::pool::ProgressSink = Arc::new(move |progress| {
                sink.lock().unwrap().push(progress.progress.unwrap());
            });
            let options = CallOptions { progress: Some(progress), ..CallOptions::default() };
            pool.call("fixture", "progress", object(json!({"steps": 20})), options).await.unwrap();
            let expected: Vec<f64> = (1..=20).map(f64::from).collect();
            assert_eq!(*reported.lock().unwrap(), expected, "{flag}");
            pool.close().await;
        }
    });
}

#[test]
fn abandoned_http_call_is_cancelled_at_the_server() {
    run(async {
        for (flag, _) in BOTH {
            for form in [FrontForm::Json, FrontForm::Events] {
                let folder = tempfile::tempdir().unwrap();
                let log = folder.path().join("log");
                let front = FixtureFront::start(&["--era", flag, "--log", log.to_str().unwrap()], form);
                let pool = pool(&front);
                call(&pool, "echo", json!({})).await.unwrap();
                let options = CallOptions { timeout: Some(Duration::from_secs(2)), ..CallOptions::default() };
                let late = pool.call("fixture", "never", object(json!({})), options).await.unwrap_err();
                assert!(late.to_string().contains("did not answer within 2 s"), "{late}");
                let cancelled = || std::fs::read_to_string(&log).unwrap().contains("notifications/cancelled");
                wait_until(&format!("the server hears of it: {flag} {form:?}"), cancelled).await;
                call(&pool, "echo", json!({})).await.unwrap();
                pool.close().await;
            }
        }
    });
}

#[test]
fn notices_tool_list_changes_over_http() {
    run(async {
        for (flag, _) in BOTH {
            let folder = tempfile::tempdir().unwrap();
            let log = folder.path().join("log");
            let front = FixtureFront::start(&["--era", flag, "--log", log.to_str().unwrap()], FrontForm::Json);
            let pool = pool(&front);
            let mut changes = pool.subscribe_changes();
            assert_eq!(pool.tools("fixture").await.unwrap().len(), 21);
            let subscribed = || std::fs::read_to_string(&log).unwrap().contains("subscriptions/listen");
            wait_until("it is listened to", || front.has_events() || subscribed()).await;
            call(&pool, "change", json!({})).await.unwrap();
            let noticed = tokio::time::timeout(Duration::from_secs(60), changes.changed()).await;
            assert!(noticed.is_ok(), "{flag}");
            assert_eq!(pool.tools("fixture").await.unwrap().len(), 22);
            pool.close().await;
        }
    });
}

#[test]
fn sends_headers_with_every_request_and_ends_the_session() {
    run(async {
        let front = FixtureFront::start(&["--era", "legacy"], FrontForm::Json);
        let mut definition = front.definition();
        definition["headers"] = json!({"Authorization": "Bearer ${OTHER}-1", "X-Team": "blue"});
        let pool = UpstreamPool::new(definitions(&json!({"fixture": definition})), settings());
        call(&pool, "echo", json!({})).await.unwrap();
        wait_until("it is listened to", || front.requests().iter().any(|asked| asked.method == "GET")).await;
        pool.close().await;
        let asked = front.requests();
        for one in &asked {
            assert_eq!(one.headers["authorization"], "Bearer x-1", "{one:?}");
            assert_eq!(one.headers["x-team"], "blue", "{one:?}");
        }
        let methods: Vec<&str> = asked.iter().map(|asked| asked.method.as_str()).collect();
        assert_eq!(methods.last(), Some(&"DELETE"), "{methods:?}");
        let session = asked.last().unwrap().headers.get("mcp-session-id").cloned();
        assert!(session.is_some_and(|session| session.starts_with("session-")));
    });
}

#[test]
fn restarts_a_session_the_server_forgot() {
    run(async {
        let front = FixtureFront::start(&["--era", "legacy"], FrontForm::Json);
        let pool = pool(&front);
        call(&pool, "echo", json!({})).await.unwrap();
        front.forget_session();
        let echoed = call(&pool, "echo", json!({"again": true})).await.unwrap();
        assert_eq!(echoed.structured, Some(json!({"again": true})));
        let greetings = front.requests().iter().filter(|asked| asked.body["method"] == "initialize").count();
        assert_eq!(greetings, 2);
        pool.close().await;
    });
}

/// A server that opens its stream late drops what it would have sent there before, as the official SDK does.
#[test]
fn calls_wait_for_the_stream_of_the_server() {
    run(async {
        let is_open = Arc::new(AtomicBool::new(false));
        let opened = Arc::clone(&is_open);
        let address = front::listen(move |request, stream| {
            let json = "Content-Type: application/json\r\nMcp-Session-Id: s1\r\n";
            let result = match (request.method.as_str(), request.body["method"].as_str()) {
                ("GET", _) => {
                    std::thread::sleep(Duration::from_millis(700));
                    opened.store(true, Ordering::SeqCst);
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n: hello\n\n");
                    std::thread::sleep(Duration::from_secs(60));
                    return;
                }
                (_, Some("initialize")) => json!({
                    "protocolVersion": "2025-11-25",
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "late", "version": "1"},
                }),
                (_, Some("tools/list")) => json!({"tools": [{"name": "look", "inputSchema": {"type": "object"}}]}),
                (_, Some("tools/call")) => json!({"content": [], "structuredContent": {
                    "open": opened.load(Ordering::SeqCst),
                }}),
                (_, Some("server/discover")) => return front::write(stream, "400 Bad Request", "", b""),
                _ => return front::write(stream, "202 Accepted", "", b""),
            };
            let answer = json!({"jsonrpc": "2.0", "id": request.body["id"], "result": result});
            front::write(stream, "200 OK", json, answer.to_string().as_bytes());
        });
        let definition = json!({"fixture": {"url": format!("http://{address}/mcp")}});
        let pool = UpstreamPool::new(definitions(&definition), settings());
        let seen = call(&pool, "look", json!({})).await.unwrap();
        assert_eq!(seen.structured, Some(json!({"open": true})));
        pool.close().await;
    });
}
