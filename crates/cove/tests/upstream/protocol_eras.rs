//! The handshake with servers of both eras, also with servers that handle it badly.

use std::time::Duration;

use cove_testkit::fixture;
use cove_upstream::pool::{ProtocolEra, UpstreamError, UpstreamPool, UpstreamSettings};
use serde_json::json;

use crate::{call, definitions, pool, pool_with, run, settings, text};

#[test]
fn speaks_to_each_server_in_its_own_era() {
    run(async {
        let cases = [
            ("both", ProtocolEra::Modern),
            ("modern", ProtocolEra::Modern),
            ("legacy", ProtocolEra::Legacy),
            ("fragile", ProtocolEra::Legacy),
            ("vague", ProtocolEra::Legacy),
        ];
        for (flag, era) in cases {
            let pool = pool(&["--era", flag]);
            assert_eq!(pool.summaries()[0].era, None);
            call(&pool, "echo", json!({})).await.unwrap();
            assert_eq!(pool.summaries()[0].era, Some(era), "{flag}");
            pool.close().await;
        }
    });
}

/// A slow server finds both requests when it wakes up, and the first one may decide its era. A second process would
/// start over.
#[test]
fn slow_and_silent_servers_are_reached_by_one_process() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let impatient = UpstreamSettings { discover_timeout: Duration::from_millis(300), ..settings() };
        for (era, slow, expected) in [
            ("silent", "0", ProtocolEra::Legacy),
            ("silent", "1500", ProtocolEra::Legacy),
            ("legacy", "1500", ProtocolEra::Legacy),
            ("modern", "1500", ProtocolEra::Modern),
            ("both", "1500", ProtocolEra::Modern),
        ] {
            let starts = folder.path().join(format!("{era}-{slow}"));
            let flags = ["--era", era, "--slow", slow, "--starts", starts.to_str().unwrap()];
            let pool = pool_with(&flags, impatient.clone());
            assert_eq!(text(&call(&pool, "add", json!({"a": 1, "b": 1})).await.unwrap()), "2", "{era}");
            assert_eq!(pool.summaries()[0].era, Some(expected), "{era} {slow}");
            pool.close().await;
            assert_eq!(std::fs::read_to_string(&starts).unwrap().lines().count(), 1, "{era} {slow}");
        }
    });
}

#[test]
fn only_a_server_that_ended_is_started_again() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let starts = folder.path().join("starts");
        let impatient = UpstreamSettings { discover_timeout: Duration::from_millis(300), ..settings() };
        let flags = ["--era", "fragile", "--slow", "1000", "--starts", starts.to_str().unwrap()];
        let pool = pool_with(&flags, impatient);
        call(&pool, "echo", json!({})).await.unwrap();
        assert_eq!(pool.summaries()[0].era, Some(ProtocolEra::Legacy));
        pool.close().await;
        assert_eq!(std::fs::read_to_string(&starts).unwrap().lines().count(), 2);
    });
}

#[test]
fn remembered_era_skips_the_probe_and_may_be_wrong() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        for (server, remembered) in [
            ("legacy", ProtocolEra::Legacy),
            ("modern", ProtocolEra::Modern),
            ("legacy", ProtocolEra::Modern),
            ("modern", ProtocolEra::Legacy),
        ] {
            let log = folder.path().join(format!("{server}-{remembered:?}"));
            let pool = pool(&["--era", server, "--log", log.to_str().unwrap()]);
            pool.remember_era("fixture", remembered);
            call(&pool, "echo", json!({})).await.unwrap();
            pool.close().await;
            let log = std::fs::read_to_string(&log).unwrap();
            let asked = (log.matches("server/discover").count(), log.matches("\"initialize\"").count());
            let expected = match (server, remembered) {
                ("legacy", ProtocolEra::Legacy) => (0, 1),
                ("modern", ProtocolEra::Modern) => (1, 0),
                _ => (1, 1),
            };
            assert_eq!(asked, expected, "{server} {remembered:?}");
        }
    });
}

#[test]
fn slow_server_fails_at_the_start_timeout() {
    run(async {
        let impatient = UpstreamSettings { start_timeout: Duration::from_millis(700), ..settings() };
        let pool = pool_with(&["--slow", "60000"], impatient);
        let error = call(&pool, "echo", json!({})).await.unwrap_err();
        let UpstreamError::NotStarted { reason, .. } = &error else { panic!("{error}") };
        assert_eq!(reason, "it did not answer within 0.7 s");
        pool.close().await;

        // A definition may allow another time than the setting.
        let mut definition = fixture::definition(&["--slow", "60000"]);
        definition.insert("start_timeout".into(), json!("200ms"));
        let pool = UpstreamPool::new(definitions(&json!({"fixture": definition})), settings());
        let error = call(&pool, "echo", json!({})).await.unwrap_err();
        assert!(error.to_string().contains("it did not answer within 0.2 s"), "{error}");
        pool.close().await;
    });
}
