//! Greeting servers of both eras, also those that do not take it well.

use std::time::Duration;

use cove::upstream::{Era, Settings, UpstreamError};
use serde_json::json;

use crate::{call, pool, pool_with, run, settings};

#[test]
fn each_server_is_spoken_to_in_its_own_era() {
    run(async {
        let cases = [
            ("both", Era::Modern),
            ("modern", Era::Modern),
            ("legacy", Era::Legacy),
            ("fragile", Era::Legacy),
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
fn a_server_that_never_answers_the_newer_question_is_asked_the_older() {
    run(async {
        let impatient = Settings { discover_timeout: Duration::from_millis(500), ..settings() };
        let pool = pool_with(&["--era", "silent"], impatient);
        call(&pool, "echo", json!({})).await.unwrap();
        assert_eq!(pool.summaries()[0].era, Some(Era::Legacy));
        pool.close().await;
    });
}

/// The trap: a slow server finds both questions when it wakes up, and the first binds it.
#[test]
fn a_slow_server_of_the_newer_era_is_not_taken_for_an_older_one() {
    run(async {
        let impatient = Settings { discover_timeout: Duration::from_millis(300), ..settings() };
        for era in ["modern", "both"] {
            let pool = pool_with(&["--era", era, "--slow", "1000"], impatient.clone());
            call(&pool, "echo", json!({})).await.unwrap();
            pool.close().await;
        }
    });
}

#[test]
fn what_is_remembered_saves_the_question_and_may_be_wrong() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        for (server, remembered) in [
            ("legacy", Era::Legacy),
            ("modern", Era::Modern),
            ("legacy", Era::Modern),
            ("modern", Era::Legacy),
        ] {
            let log = folder.path().join(format!("{server}-{remembered:?}"));
            let pool = pool(&["--era", server, "--log", log.to_str().unwrap()]);
            pool.remember_era("fixture", remembered);
            call(&pool, "echo", json!({})).await.unwrap();
            pool.close().await;
            let log = std::fs::read_to_string(&log).unwrap();
            let asked = (log.matches("server/discover").count(), log.matches("\"initialize\"").count());
            let expected = match (server, remembered) {
                ("legacy", Era::Legacy) => (0, 1),
                ("modern", Era::Modern) => (1, 0),
                _ => (1, 1),
            };
            assert_eq!(asked, expected, "{server} {remembered:?}");
        }
    });
}

#[test]
fn a_server_that_is_none_is_not_waited_for_longer_than_allowed() {
    run(async {
        let impatient = Settings { start_timeout: Duration::from_millis(700), ..settings() };
        let pool = pool_with(&["--slow", "60000"], impatient);
        let error = call(&pool, "echo", json!({})).await.unwrap_err();
        let UpstreamError::NotStarted { reason, .. } = &error else { panic!("{error}") };
        assert_eq!(reason, "it did not answer within 0.7 s");
        pool.close().await;
    });
}
