//! Starts that fail, crashes, restarts, and ends that leave nothing behind.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cove_testkit::fixture;
use cove_upstream::pool::{UpstreamError, UpstreamPool, UpstreamSettings, UpstreamState};
use serde_json::json;

use crate::{call, definitions, pool, pool_with, run, settings, text, wait_until};

/// The process ids that the fixture wrote: its own and its child's.
pub(crate) fn read_pids(path: &Path) -> Vec<u32> {
    let text = std::fs::read_to_string(path).unwrap();
    text.split(' ').map(|id| id.parse().unwrap()).collect()
}

pub(crate) fn is_alive(id: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat"));
    stat.is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or_default().starts_with(" Z"))
}

#[test]
fn failed_start_quotes_the_servers_stderr() {
    run(async {
        let mut definition = fixture::definition(&["--refuse", "--noise", "100"]);
        definition.insert("env".into(), json!({"DATABASE": "postgres://me:hunter2@db"}));
        let pool = UpstreamPool::new(definitions(&json!({"fixture": definition})), settings());
        let error = call(&pool, "echo", json!({})).await.unwrap_err();
        let UpstreamError::NotStarted { reason, stderr_tail, .. } = &error else { panic!("{error}") };
        assert_eq!(reason, "it ended with exit code 3 before it answered");
        assert_eq!(stderr_tail.lines().count(), 20);
        assert!(stderr_tail.ends_with("noise 99\nfixture: no database at [redacted]"), "{stderr_tail}");
        assert!(!format!("{error:?} {error}").contains("hunter2"));
        let UpstreamState::Failed(failure) = &pool.summaries()[0].state else { panic!("{:?}", pool.summaries()) };
        assert!(failure.reason.contains("exit code 3"));
    });
}

#[test]
fn server_death_fails_open_calls_and_next_call_restarts_it() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let pool = pool(&["--log", log.to_str().unwrap()]);
        call(&pool, "echo", json!({})).await.unwrap();
        let slow = {
            let pool = Arc::clone(&pool);
            tokio::spawn(async move { call(&pool, "slow", json!({"ms": 60_000})).await })
        };
        let arrived = || std::fs::read_to_string(&log).unwrap().contains("\"slow\"");
        wait_until("the slow call arrives", arrived).await;
        let died = call(&pool, "die", json!({"code": 5})).await.unwrap_err();
        let UpstreamError::Gone { reason, stderr_tail, .. } = &died else { panic!("{died}") };
        assert_eq!((reason.as_str(), stderr_tail.as_str()), ("it ended with exit code 5", "fixture: asked to die"));
        assert!(matches!(slow.await.unwrap(), Err(UpstreamError::Gone { .. })));
        assert_eq!(text(&call(&pool, "add", json!({"a": 1, "b": 1})).await.unwrap()), "2");
        let log = std::fs::read_to_string(&log).unwrap();
        assert_eq!(log.matches("\"die\"").count(), 1, "a call is not repeated");
        pool.close().await;
    });
}

#[test]
fn repeated_failures_back_off_and_open_the_breaker() {
    run(async {
        let quick = UpstreamSettings { breaker_pause: Duration::from_secs(10), ..settings() };
        let pool = pool_with(&["--refuse"], quick);
        pool.remember_era("fixture", cove_upstream::pool::ProtocolEra::Modern);
        let start = Instant::now();
        for _ in 0..5 {
            let error = call(&pool, "echo", json!({})).await.unwrap_err();
            assert!(matches!(error, UpstreamError::NotStarted { .. }), "{error}");
        }
        // Pauses of 100 + 200 + 400 + 800 ms.
        assert!(start.elapsed() >= Duration::from_millis(1500), "{:?}", start.elapsed());
        let error = call(&pool, "echo", json!({})).await.unwrap_err();
        let UpstreamError::Circuit { reason, retry_in, .. } = &error else { panic!("{error}") };
        assert!(reason.contains("exit code 3") && *retry_in <= Duration::from_secs(10));
        tokio::time::sleep(Duration::from_millis(10_100)).await;
        let error = call(&pool, "echo", json!({})).await.unwrap_err();
        assert!(matches!(error, UpstreamError::NotStarted { .. }), "tried once more: {error}");
        let error = call(&pool, "echo", json!({})).await.unwrap_err();
        assert!(matches!(error, UpstreamError::Circuit { .. }), "and closed again: {error}");
    });
}

#[test]
fn concurrent_callers_share_one_failed_start() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let pool = pool(&["--era", "modern", "--slow", "3000", "--log", log.to_str().unwrap()]);
        let mut calls = tokio::task::JoinSet::new();
        for _ in 0..20 {
            let pool = Arc::clone(&pool);
            calls.spawn(async move { call(&pool, "echo", json!({})).await.is_ok() });
        }
        // The first caller may give up without harm to the others.
        assert!(tokio::time::timeout(Duration::from_millis(50), call(&pool, "echo", json!({}))).await.is_err());
        assert!(calls.join_all().await.into_iter().all(|good| good));
        assert_eq!(std::fs::read_to_string(&log).unwrap().matches("server/discover").count(), 1);
        pool.close().await;
    });
}

#[test]
fn tolerates_junk_output_and_quotes_it_on_failure() {
    run(async {
        let pool = pool(&["--junk", "50"]);
        assert_eq!(text(&call(&pool, "junk", json!({"lines": 30})).await.unwrap()), "after junk");
        let died = call(&pool, "die", json!({})).await.unwrap_err();
        assert!(died.to_string().contains("80 lines on standard output that are no messages: `junk 0`"), "{died}");
        pool.close().await;

        let nonsense = pool_with(&["--nonsense"], settings());
        let error = call(&nonsense, "echo", json!({})).await.unwrap_err();
        assert!(error.to_string().contains("nonsense on standard output, and was cut off: `BLAH"), "{error}");
        nonsense.close().await;
    });
}

#[test]
fn closing_the_pool_leaves_no_process() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        for (name, flags) in [("polite", vec![]), ("stubborn", vec!["--stubborn"])] {
            let (pids, log) = (folder.path().join(name), folder.path().join(format!("{name}-log")));
            let mut flags = flags;
            flags.extend(["--pids", pids.to_str().unwrap(), "--log", log.to_str().unwrap()]);
            let pool = pool(&flags);
            call(&pool, "echo", json!({})).await.unwrap();
            let ids = read_pids(&pids);
            assert!(ids.iter().all(|id| is_alive(*id)), "{name}");
            let waiting = {
                let pool = Arc::clone(&pool);
                tokio::spawn(async move { call(&pool, "never", json!({})).await })
            };
            let arrived = || std::fs::read_to_string(&log).unwrap().contains("\"never\"");
            wait_until("the call arrives", arrived).await;
            pool.close().await;
            // Processes that the server itself started were killed, and take a moment to disappear.
            wait_until(&format!("{name}: the end of {ids:?}"), || ids.iter().all(|id| !is_alive(*id))).await;
            let gone = waiting.await.unwrap().unwrap_err();
            assert!(matches!(gone, UpstreamError::Gone { .. }), "{gone}");
            assert!(matches!(call(&pool, "echo", json!({})).await, Err(UpstreamError::Unknown { .. })));
        }
    });
}

#[test]
fn dropping_the_pool_leaves_no_process() {
    let folder = tempfile::tempdir().unwrap();
    let pids = folder.path().join("pids");
    let ids = run(async {
        let pool = pool(&["--stubborn", "--pids", pids.to_str().unwrap()]);
        call(&pool, "echo", json!({})).await.unwrap();
        read_pids(&pids)
    });
    // The runtime is gone too.
    let start = Instant::now();
    while ids.iter().any(|id| is_alive(*id)) {
        assert!(start.elapsed() < Duration::from_secs(60), "still there: {ids:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn stops_an_idle_server_and_restarts_it() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let pids = folder.path().join("pids");
        let pool = pool_with(
            &["--pids", pids.to_str().unwrap()],
            UpstreamSettings { idle_timeout: Duration::from_millis(400), ..settings() },
        );
        // A call that takes longer than the idle time keeps the server running.
        call(&pool, "slow", json!({"ms": 1000})).await.unwrap();
        let first = read_pids(&pids);
        wait_until("it is stopped", || !is_alive(first[0]) && !is_alive(first[1])).await;
        assert_eq!(pool.summaries()[0].state, UpstreamState::Idle);
        call(&pool, "echo", json!({})).await.unwrap();
        assert_ne!(read_pids(&pids), first);
        pool.close().await;
    });
}
