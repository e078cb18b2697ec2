//! The handshake with servers of both eras, also with servers that handle it badly.

use std::time::Duration;

use cove_upstream::pool::{ProtocolEra, UpstreamError, UpstreamSettings};
use serde_json::json;

use crate::{call, pool, pool_with, run, settings};

#[test]
fn speaks_to_each_server_in_its_own_era() {
    run(async {
        let cases = [
            ("both", ProtocolEra::Modern),
            ("modern", ProtocolEra::Modern),
            ("legacy", ProtocolEra::Legacy),
            ("fragile", ProtocolEra::Legacy),
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

#[test]
fn falls_back_if_the_modern_handshake_is_not_answered() {
    run(async {
        let impatient = UpstreamSettings { discover_timeout: Duration::from_millis(500), ..settings() };
        let pool = pool_with(&["--era", "silent"], impatient);
        call(&pool, "echo", json!({})).await.unwrap();
        assert_eq!(pool.summaries()[0].era, Some(ProtocolEra::Legacy));
        pool.close().await;
    });
}

/// A slow server finds both requests when it wakes up, and the first one decides its era.
#[test]
fn slow_modern_server_is_not_taken_for_legacy() {
    run(async {
        let impatient = UpstreamSettings { discover_timeout: Duration::from_millis(300), ..settings() };
        for era in ["modern", "both"] {
            let pool = pool_with(&["--era", era, "--slow", "1000"], impatient.clone());
            call(&pool, "echo", json!({})).await.unwrap();
            pool.close().await;
        }
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
    });
}
