//! Servers that write too much, or harmful text.

use std::time::Duration;

use cove_upstream::pool::{UpstreamError, UpstreamSettings};
use serde_json::json;

use crate::{call, pool_with, run, settings};

#[test]
fn cuts_off_an_endless_line() {
    run(async {
        let pool = pool_with(&["--flood"], settings());
        pool.remember_era("fixture", cove_upstream::pool::ProtocolEra::Legacy);
        let error = call(&pool, "echo", json!({})).await.unwrap_err();
        assert!(matches!(error, UpstreamError::NotStarted { .. }), "{error}");
        assert!(error.to_string().contains("it wrote a line of more than 67108864 bytes"), "{error}");
        pool.close().await;
    });
}

#[test]
fn hostile_tool_list_does_no_harm() {
    run(async {
        for era in ["modern", "legacy"] {
            let pool = pool_with(&["--hostile", "--era", era], settings());
            let tools = pool.tools("fixture").await.unwrap();
            let names: Vec<&str> = tools[21..].iter().map(|tool| tool.name.as_str()).collect();
            assert_eq!(
                names,
                ["large_words", "large_schema", "../../etc/passwd", "no_schema", "wrong_schema"],
                "{era}"
            );
            for tool in &tools {
                let whole = serde_json::to_string(tool).unwrap();
                assert!(whole.len() < 300 * 1024, "{}: {}", tool.name, whole.len());
                assert!(!tool.description.chars().any(|c| c.is_control() && c != '\n'), "{}", tool.name);
                assert!(!tool.description.contains('\u{202e}'), "{}", tool.name);
            }
            // The other tools still work.
            call(&pool, "add", json!({"a": 1, "b": 2})).await.unwrap();
            pool.close().await;
        }
    });
}

#[test]
fn breaker_opens_for_a_server_that_dies_in_every_call() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let quick = UpstreamSettings {
            back_off: Duration::from_millis(10),
            max_failures: 3,
            breaker_pause: Duration::from_secs(600),
            ..settings()
        };
        let pool = pool_with(&["--log", log.to_str().unwrap()], quick);
        for _ in 0..3 {
            let error = call(&pool, "die", json!({})).await.unwrap_err();
            assert!(matches!(error, UpstreamError::Gone { .. }), "{error}");
        }
        let error = call(&pool, "echo", json!({})).await.unwrap_err();
        let UpstreamError::Circuit { reason, .. } = &error else { panic!("{error}") };
        assert_eq!(reason, "it ended with exit code 7");
        assert_eq!(std::fs::read_to_string(&log).unwrap().matches("\"die\"").count(), 3, "none is repeated");
        pool.close().await;
    });
}
