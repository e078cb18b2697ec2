//! Tools that run as tasks, in both eras: Cove polls, and the caller sees one call.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cove_testkit::fixture::front::{FixtureFront, FrontForm};
use cove_upstream::pool::{CallOptions, UpstreamError, UpstreamPool, UpstreamResult};
use serde_json::{Value, json};

use crate::{definitions, object, pool, run, settings, text, wait_until};

const ERAS: [&str; 2] = ["modern", "legacy"];

async fn call_task(
    pool: &UpstreamPool,
    arguments: Value,
    timeout: Option<f64>,
) -> Result<UpstreamResult, UpstreamError> {
    let timeout = timeout.map(Duration::from_secs_f64);
    let options = CallOptions { timeout, requires_task: true, ..CallOptions::default() };
    pool.call("fixture", "task", object(arguments), options).await
}

#[test]
fn tasks_give_their_result_as_a_call_does() {
    run(async {
        for era in ERAS {
            let pool = pool(&["--extended", "--era", era]);
            let reported = Arc::new(Mutex::new(Vec::new()));
            let sink = Arc::clone(&reported);
            let options = CallOptions {
                requires_task: true,
                progress: Some(Arc::new(move |progress| sink.lock().unwrap().push(progress.message.unwrap()))),
                ..CallOptions::default()
            };
            let arguments = object(json!({"answer": [1, null], "ms": 500}));
            let result = pool.call("fixture", "task", arguments, options).await.unwrap();
            assert_eq!(result.structured, Some(json!({"answer": [1, null]})), "{era}");
            assert_eq!((text(&result), result.is_error), ("done by a task", false), "{era}");
            assert_eq!(*reported.lock().unwrap(), ["working on task-0", "it is over"], "{era}: each message once");
            // Two at the same time, and one that reports a failure.
            let (first, second) = tokio::join!(
                call_task(&pool, json!({"answer": 1}), None),
                call_task(&pool, json!({"answer": 2, "end": "error"}), None),
            );
            assert_eq!(first.unwrap().structured, Some(json!({"answer": 1})), "{era}");
            assert!(second.unwrap().is_error, "{era}");
            pool.close().await;
        }
    });
}

#[test]
fn tasks_work_over_http() {
    run(async {
        for era in ERAS {
            for form in [FrontForm::Events, FrontForm::Json] {
                let front = FixtureFront::start(&["--extended", "--era", era], form);
                let pool = UpstreamPool::new(definitions(&json!({ "fixture": front.definition() })), settings());
                let result = call_task(&pool, json!({"answer": "over http"}), None).await.unwrap();
                assert_eq!(result.structured, Some(json!({"answer": "over http"})), "{era} {form:?}");
                pool.close().await;
            }
        }
    });
}

#[test]
fn failed_and_cancelled_tasks_are_errors() {
    run(async {
        for era in ERAS {
            let pool = pool(&["--extended", "--era", era]);
            let end = async |end: &str| call_task(&pool, json!({"end": end, "ms": 0}), None).await.unwrap_err();
            let failed = end("failed").await;
            assert!(
                matches!(&failed, UpstreamError::Protocol { code: -32050, message, .. } if message == "the task broke"),
                "{era}: {failed}"
            );
            for (how, words) in [
                ("cancelled", "it cancelled the task of this call: it is over"),
                ("odd", "a state that Cove does not know"),
                ("nameless", "without an id"),
            ] {
                let error = end(how).await.to_string();
                assert!(error.contains(words), "{era}: {error}");
            }
            assert!(call_task(&pool, json!({"answer": 1}), None).await.is_ok(), "{era}: the server still works");
            pool.close().await;
        }
        let pool = pool(&["--extended", "--era", "modern"]);
        let input = call_task(&pool, json!({"end": "input_required", "ms": 0}), None).await.unwrap_err();
        assert!(input.to_string().contains("it asks for input, which this call cannot give"), "{input}");
        pool.close().await;
    });
}

/// Runs a task that outlasts its call, and returns what the server received.
async fn give_up(era: &str, arguments: Value) -> String {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let pool = pool(&["--extended", "--era", era, "--log", log.to_str().unwrap()]);
    assert!(call_task(&pool, json!({"ms": 0}), None).await.is_ok(), "{era}");
    let start = Instant::now();
    let error = call_task(&pool, arguments, Some(4.0)).await.unwrap_err();
    assert!(matches!(error, UpstreamError::Timeout { .. }), "{era}: {error}");
    assert!(start.elapsed() < Duration::from_secs(60), "{era}: {:?}", start.elapsed());
    let read = || std::fs::read_to_string(&log).unwrap();
    wait_until("the task is cancelled", || read().contains("tasks/cancel")).await;
    assert!(read().lines().any(|line| line.contains("tasks/cancel") && line.contains("task-1")), "{era}");
    pool.close().await;
    read()
}

#[test]
fn endless_tasks_time_out_and_are_cancelled() {
    run(async {
        for era in ERAS {
            let received = give_up(era, json!({"end": "never", "interval": 0})).await;
            let polls = received.lines().filter(|line| line.contains("tasks/get")).count();
            assert!(polls <= 40, "{era}: an interval of 0 gave {polls} polls in 4 s");
            let received = give_up(era, json!({"end": "never", "interval": 315_360_000_000_u64})).await;
            let polls = received.lines().filter(|line| line.contains("tasks/get")).count();
            assert!(polls <= 2, "{era}: {polls}");
        }
    });
}

#[test]
fn dropping_a_call_cancels_its_task() {
    run(async {
        for era in ERAS {
            let folder = tempfile::tempdir().unwrap();
            let log = folder.path().join("log");
            let pool = pool(&["--extended", "--era", era, "--log", log.to_str().unwrap()]);
            let read = || std::fs::read_to_string(&log).unwrap_or_default();
            let call = tokio::spawn({
                let pool = Arc::clone(&pool);
                async move { call_task(&pool, json!({"end": "never", "interval": 0}), None).await }
            });
            wait_until("Cove polls", || read().matches("tasks/get").count() >= 3).await;
            call.abort();
            wait_until("the task is cancelled", || read().contains("tasks/cancel")).await;
            pool.close().await;
        }
    });
}

#[test]
fn server_that_dies_while_it_is_polled_is_gone() {
    run(async {
        for era in ERAS {
            let pool = pool(&["--extended", "--era", era]);
            let error = call_task(&pool, json!({"end": "die"}), None).await.unwrap_err();
            let UpstreamError::Gone { stderr_tail, .. } = &error else { panic!("{era}: {error}") };
            assert!(stderr_tail.contains("died while it ran a task"), "{era}: {stderr_tail}");
            assert!(call_task(&pool, json!({"ms": 0}), None).await.is_ok(), "{era}: it starts again");
            pool.close().await;
        }
    });
}
