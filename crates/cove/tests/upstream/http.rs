//! Servers over HTTP: the same calls, in both eras, answered in one piece and as events.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use cove::upstream::{CallOptions, Era, State, Upstreams};
use cove_testkit::fixture::front::{Form, Front};
use serde_json::{Value, json};

use crate::{call, definitions, object, run, settings, text, until};

fn pool(front: &Front) -> Arc<Upstreams> {
    Upstreams::new(definitions(&json!({"fixture": front.definition()})), settings())
}

const BOTH: [(&str, Era); 2] = [("modern", Era::Modern), ("legacy", Era::Legacy)];

#[test]
fn what_goes_in_comes_out() {
    run(async {
        for (flag, era) in BOTH {
            for form in [Form::Json, Form::Events] {
                let front = Front::start(&["--era", flag], form);
                let pool = pool(&front);
                assert_eq!(pool.summaries()[0].state, State::Idle);
                assert!(front.asked().is_empty(), "nothing is asked before it is needed");
                let sent = json!({"null": null, "from": "日本", "n": 9_007_199_254_740_993_u64, "a-b": [{}]});
                let echoed = call(&pool, "echo", sent.clone()).await.unwrap();
                assert_eq!(echoed.structured, Some(sent), "{flag} {form:?}");
                assert_eq!(
                    (pool.summaries()[0].state.clone(), pool.era("fixture")),
                    (State::Ready, Some(era))
                );

                let rich = call(&pool, "rich", json!({})).await.unwrap();
                assert_eq!(
                    (rich.content.len(), &rich.content[5]),
                    (6, &json!({"type": "hologram", "depth": null}))
                );
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

                assert_eq!(pool.resources("fixture").await.unwrap().resources.len(), 4);
                let contents = pool.read_resource("fixture", "fixture://a").await.unwrap();
                assert_eq!(contents[0]["text"], "contents of it");
                let prompt = pool.prompt("fixture", "greet", object(json!({"who": "Ada"}))).await.unwrap();
                assert_eq!(prompt.messages[0]["content"]["text"], "Greet Ada");
                assert_eq!(pool.instructions("fixture").as_deref(), Some("Call echo first."));
                pool.close().await;
            }
        }
    });
}

#[test]
fn every_page_of_a_list_is_read_and_hostile_tools_do_no_harm() {
    run(async {
        for (flag, _) in BOTH {
            let front =
                Front::start(&["--era", flag, "--tools", "1000", "--page", "100", "--hostile"], Form::Json);
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
fn calls_run_side_by_side_and_tell_how_far_they_are() {
    run(async {
        for (flag, _) in BOTH {
            let front = Front::start(&["--era", flag], Form::Events);
            let pool = pool(&front);
            call(&pool, "echo", json!({})).await.unwrap();
            let start = std::time::Instant::now();
            let mut calls = tokio::task::JoinSet::new();
            for _ in 0..50 {
                let pool = Arc::clone(&pool);
                calls.spawn(async move { call(&pool, "slow", json!({"ms": 500})).await.is_ok() });
            }
            assert!(calls.join_all().await.into_iter().all(|good| good));
            // One after the other it would be 25 s.
            assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());

            let told: Arc<Mutex<Vec<f64>>> = Arc::default();
            let sink = Arc::clone(&told);
            let progress: cove::upstream::ProgressSink = Arc::new(move |progress| {
                sink.lock().unwrap().push(progress.progress);
            });
            let options = CallOptions { progress: Some(progress), ..CallOptions::default() };
            pool.call("fixture", "progress", object(json!({"steps": 20})), options).await.unwrap();
            let expected: Vec<f64> = (1..=20).map(f64::from).collect();
            assert_eq!(*told.lock().unwrap(), expected, "{flag}");
            pool.close().await;
        }
    });
}

#[test]
fn a_call_that_is_given_up_is_cancelled_at_the_server() {
    run(async {
        for (flag, _) in BOTH {
            for form in [Form::Json, Form::Events] {
                let folder = tempfile::tempdir().unwrap();
                let log = folder.path().join("log");
                let front = Front::start(&["--era", flag, "--log", log.to_str().unwrap()], form);
                let pool = pool(&front);
                call(&pool, "echo", json!({})).await.unwrap();
                let options =
                    CallOptions { timeout: Some(Duration::from_millis(300)), ..CallOptions::default() };
                let late = pool.call("fixture", "never", object(json!({})), options).await.unwrap_err();
                assert!(late.to_string().contains("did not answer within 0.3 s"), "{late}");
                let cancelled = || std::fs::read_to_string(&log).unwrap().contains("notifications/cancelled");
                until(&format!("the server hears of it: {flag} {form:?}"), cancelled).await;
                call(&pool, "echo", json!({})).await.unwrap();
                pool.close().await;
            }
        }
    });
}

#[test]
fn changes_of_the_list_are_noticed() {
    run(async {
        for (flag, _) in BOTH {
            let front = Front::start(&["--era", flag], Form::Json);
            let pool = pool(&front);
            let mut changes = pool.changes();
            assert_eq!(pool.tools("fixture").await.unwrap().len(), 21);
            let listens = || {
                let asked = front.asked();
                asked
                    .iter()
                    .any(|asked| asked.method == "GET" || asked.body["method"] == "subscriptions/listen")
            };
            until("it is listened to", listens).await;
            tokio::time::sleep(Duration::from_millis(200)).await;
            call(&pool, "change", json!({})).await.unwrap();
            let noticed = tokio::time::timeout(Duration::from_secs(10), changes.changed()).await;
            assert!(noticed.is_ok(), "{flag}");
            assert_eq!(pool.tools("fixture").await.unwrap().len(), 22);
            pool.close().await;
        }
    });
}

#[test]
fn headers_go_with_every_request_and_a_session_is_ended() {
    run(async {
        let front = Front::start(&["--era", "legacy"], Form::Json);
        let mut definition = front.definition();
        definition["headers"] = json!({"Authorization": "Bearer ${OTHER}-1", "X-Team": "blue"});
        let pool = Upstreams::new(definitions(&json!({"fixture": definition})), settings());
        call(&pool, "echo", json!({})).await.unwrap();
        until("it is listened to", || front.asked().iter().any(|asked| asked.method == "GET")).await;
        pool.close().await;
        let asked = front.asked();
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
fn a_session_that_the_server_forgot_is_begun_anew() {
    run(async {
        let front = Front::start(&["--era", "legacy"], Form::Json);
        let pool = pool(&front);
        call(&pool, "echo", json!({})).await.unwrap();
        front.forget_session();
        let echoed = call(&pool, "echo", json!({"again": true})).await.unwrap();
        assert_eq!(echoed.structured, Some(json!({"again": true})));
        let greetings = front.asked().iter().filter(|asked| asked.body["method"] == "initialize").count();
        assert_eq!(greetings, 2);
        pool.close().await;
    });
}
