//! Calls arrive unchanged: arguments, every kind of content, errors, parallel calls, progress, cancelling.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cove_core::error::Hint;
use cove_testkit::fixture;
use cove_upstream::pool::{CallOptions, UpstreamError, UpstreamPool, UpstreamSettings, UpstreamState};
use serde_json::{Value, json};

use crate::{call, definitions, object, pool, pool_with, run, settings, text, wait_until};

#[test]
fn passes_tool_results_through_unchanged() {
    run(async {
        for era in ["modern", "legacy"] {
            let pool = pool(&["--era", era]);
            assert_eq!(pool.summaries()[0].state, UpstreamState::Idle);
            let sent = json!({"null": null, "from": "日本", "n": 9_007_199_254_740_993_u64, "f": 1.5, "nested": [{"a-b": []}]});
            let echoed = call(&pool, "echo", sent.clone()).await.unwrap();
            assert_eq!(echoed.structured, Some(sent), "{era}");
            assert_eq!(pool.summaries()[0].state, UpstreamState::Ready);

            let rich = call(&pool, "rich", json!({})).await.unwrap();
            let kinds: Vec<&str> = rich.content.iter().map(|block| block["type"].as_str().unwrap()).collect();
            assert_eq!(kinds, ["text", "image", "audio", "resource_link", "resource", "hologram"]);
            assert_eq!(rich.content[0]["annotations"]["priority"], 0.5);
            assert_eq!(rich.content[0]["text"], "naïve 日本 🎉");
            assert!(rich.content[5].as_object().unwrap().contains_key("depth"));
            assert_eq!((rich.structured, rich.meta), (None, Some(json!({"took": 1}))));
            assert_eq!(call(&pool, "null", json!({})).await.unwrap().structured, Some(Value::Null));
            let structured = call(&pool, "structured", json!({})).await.unwrap().structured.unwrap();
            assert_eq!(structured, json!({"list": [1, 2.5, null, {"a": "ü"}], "large": 9_007_199_254_740_993_u64}));
            pool.close().await;
        }
    });
}

#[test]
fn passes_large_arguments_and_results() {
    run(async {
        let pool = pool(&[]);
        let large = "y".repeat(1 << 20);
        let echoed = call(&pool, "echo", json!({"text": large})).await.unwrap();
        assert_eq!(echoed.structured.unwrap()["text"], large);
        let big = call(&pool, "big", json!({"n": 10 << 20})).await.unwrap();
        assert_eq!(text(&big).len(), 10 << 20);
        pool.close().await;
    });
}

#[test]
fn distinguishes_tool_failures_from_protocol_errors() {
    run(async {
        let pool = pool(&[]);
        let failed = call(&pool, "fail", json!({})).await.unwrap();
        assert!(failed.is_error);
        assert_eq!(text(&failed), "no such issue: 7");
        let refused = call(&pool, "refuse", json!({})).await.unwrap_err();
        let UpstreamError::Protocol { code, message, .. } = refused else { panic!("{refused}") };
        assert_eq!((code, message.as_str()), (-32050, "not today"));
        let unknown = call(&pool, "nope", json!({})).await.unwrap_err();
        assert!(matches!(unknown, UpstreamError::Protocol { code: -32602, .. }), "{unknown}");
        let nan = call(&pool, "nan", json!({})).await.unwrap_err();
        assert!(nan.to_string().contains("its answer is not JSON"), "{nan}");
        assert_eq!(text(&call(&pool, "add", json!({"a": 1, "b": 2})).await.unwrap()), "3");
        pool.close().await;
    });
}

#[test]
fn stdio_calls_run_in_parallel() {
    run(async {
        let pool = pool(&[]);
        call(&pool, "echo", json!({})).await.unwrap();
        let start = Instant::now();
        let mut calls = tokio::task::JoinSet::new();
        for number in 0..100 {
            let pool = Arc::clone(&pool);
            calls.spawn(async move {
                call(&pool, "slow", json!({"ms": 1000})).await.unwrap();
                call(&pool, "echo", json!({"n": number})).await.unwrap().structured.unwrap()["n"] == number
            });
        }
        assert!(calls.join_all().await.into_iter().all(|right| right));
        // One after another the calls would take 100 s.
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
        pool.close().await;
    });
}

#[test]
fn delivers_progress_in_order() {
    run(async {
        for era in ["modern", "legacy"] {
            let pool = pool(&["--era", era]);
            let reported: Arc<Mutex<Vec<String>>> = Arc::default();
            let sink = Arc::clone(&reported);
            let options = CallOptions {
                progress: Some(Arc::new(move |progress| {
                    let words = progress.message.unwrap_or_default();
                    sink.lock().unwrap().push(format!("{}/{:?} {words}", progress.progress.unwrap(), progress.total));
                })),
                ..CallOptions::default()
            };
            pool.call("fixture", "progress", object(json!({"steps": 20})), options).await.unwrap();
            let reported = reported.lock().unwrap().clone();
            let expected: Vec<String> = (1..=20).map(|step| format!("{step}/Some(20.0) step {step}")).collect();
            assert_eq!(reported, expected);
            pool.close().await;
        }
    });
}

#[test]
fn timeout_of_a_definition_bounds_every_call() {
    run(async {
        let mut definition = fixture::definition(&[]);
        definition.insert("timeout".to_owned(), json!("400ms"));
        let pool = UpstreamPool::new(definitions(&json!({ "fixture": definition })), settings());
        for (asked, after, is_defined) in [(None, 400, true), (Some(60_000), 400, true), (Some(200), 200, false)] {
            let timeout = asked.map(Duration::from_millis);
            let options = CallOptions { timeout, ..CallOptions::default() };
            let late = pool.call("fixture", "never", object(json!({})), options).await.unwrap_err();
            let after = Duration::from_millis(after);
            assert_eq!(late, UpstreamError::Timeout { server: "fixture".into(), after, is_defined });
            let words = "within 0.4 s, the `timeout` of its definition";
            assert_eq!(late.to_string().contains(words), is_defined, "{late}");
            assert!(late.hint().is_some_and(|hint| hint.contains("larger `timeout`")), "{late:?}");
        }
        pool.close().await;

        // It may also be longer than the time that calls have otherwise.
        definition.insert("timeout".to_owned(), json!("60s"));
        let quick = UpstreamSettings { call_timeout: Duration::from_millis(100), ..settings() };
        let pool = UpstreamPool::new(definitions(&json!({ "fixture": definition })), quick);
        call(&pool, "slow", json!({"ms": 500})).await.unwrap();
        pool.close().await;
    });
}

#[test]
fn abandoned_stdio_call_is_cancelled_at_the_server() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let pool = pool(&["--log", log.to_str().unwrap()]);
        call(&pool, "echo", json!({})).await.unwrap();
        let arrived = || std::fs::read_to_string(&log).unwrap().contains("\"never\"");
        tokio::select! {
            answer = call(&pool, "never", json!({})) => panic!("{answer:?}"),
            () = wait_until("the call arrives", arrived) => {}
        }
        let cancelled = || std::fs::read_to_string(&log).unwrap().matches("notifications/cancelled").count();
        wait_until("the server hears of it", || cancelled() == 1).await;

        let options = CallOptions { timeout: Some(Duration::from_millis(200)), ..CallOptions::default() };
        let late = pool.call("fixture", "never", object(json!({})), options).await.unwrap_err();
        assert_eq!(
            late,
            UpstreamError::Timeout { server: "fixture".into(), after: Duration::from_millis(200), is_defined: false }
        );
        wait_until("and of the next", || cancelled() == 2).await;
        // The server still works.
        call(&pool, "echo", json!({})).await.unwrap();
        pool.close().await;
    });
}

#[test]
fn answers_requests_from_the_server() {
    run(async {
        let root = std::path::PathBuf::from("/home/me/a b");
        let with_root =
            pool_with(&["--era", "legacy"], cove_upstream::pool::UpstreamSettings { root: Some(root), ..settings() });
        let asked = call(&with_root, "ask", json!({"method": "roots/list"})).await.unwrap().structured.unwrap();
        assert_eq!(asked["result"]["roots"], json!([{"uri": "file:///home/me/a%20b"}]), "{asked}");
        with_root.close().await;
        let pool = pool(&["--era", "legacy"]);
        let asked = call(&pool, "ask", json!({"method": "roots/list"})).await.unwrap().structured.unwrap();
        assert_eq!(asked["result"]["roots"], json!([]), "{asked}");
        let asked = call(&pool, "ask", json!({"method": "ping"})).await.unwrap().structured.unwrap();
        assert_eq!(asked["result"], json!({}), "{asked}");
        let asked = call(&pool, "ask", json!({"method": "sampling/createMessage"})).await.unwrap();
        assert!(asked.structured.unwrap()["error"].is_object());
        pool.close().await;
    });
}

#[test]
fn server_gets_only_its_own_environment() {
    run(async {
        let mut definition = cove_testkit::fixture::definition(&[]);
        definition.insert("env".into(), json!({"TOKEN": "${OTHER}-${MISSING:-else}", "LITERAL": "$HOME ${}"}));
        definition.insert("cwd".into(), json!("/usr"));
        let pool = cove_upstream::pool::UpstreamPool::new(definitions(&json!({"fixture": definition})), settings());
        let names = call(&pool, "variables", json!({})).await.unwrap().structured.unwrap();
        let mut names: Vec<String> = serde_json::from_value(names["names"].clone()).unwrap();
        names.sort();
        assert_eq!(names, ["HOME", "LITERAL", "PATH", "TOKEN"]);
        let value = |name: &'static str| {
            let pool = Arc::clone(&pool);
            async move { call(&pool, "variable", json!({"name": name})).await.unwrap().structured.unwrap()["value"].clone() }
        };
        assert_eq!((value("TOKEN").await, value("LITERAL").await), (json!("x-else"), json!("$HOME ${}")));
        assert_eq!(text(&call(&pool, "where", json!({})).await.unwrap()), "/usr");
        pool.close().await;
    });
}

#[test]
fn uncallable_servers_name_the_reason() {
    run(async {
        let servers = json!({
            "no-variable": {"command": "/bin/true", "env": {"TOKEN": "${TOKEN}", "B": "${ANOTHER}"}},
            "no-command": {"command": "no-such-command-anywhere"},
            "off": {"command": "/bin/true", "disabled": true},
        });
        let pool = cove_upstream::pool::UpstreamPool::new(definitions(&servers), settings());
        let why = |server: &'static str| {
            let pool = Arc::clone(&pool);
            async move { pool.call(server, "x", object(json!({})), CallOptions::default()).await.unwrap_err().to_string() }
        };
        assert_eq!(why("no-variable").await, "server `no-variable` needs ANOTHER, TOKEN");
        assert_eq!(why("no-command").await, "server `no-command` needs command no-such-command-anywhere");
        assert_eq!(why("off").await, "server `off` is disabled (/etc/servers.json line 1)");
        // The spelling that code uses works too, and for a wrong name the error suggests the nearest one.
        assert_eq!(why("no_command").await, "server `no-command` needs command no-such-command-anywhere");
        let unknown = pool.tools("no-comand").await.unwrap_err();
        assert_eq!(unknown, UpstreamError::Unknown { server: "no-comand".into(), nearest: Some("no-command".into()) });
        let states: Vec<String> = pool.summaries().iter().map(|summary| summary.state.to_string()).collect();
        assert_eq!(states, ["needs command no-such-command-anywhere", "needs ANOTHER, TOKEN", "disabled"]);
    });
}
