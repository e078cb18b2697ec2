//! Log messages of servers: they reach the calls that caused them, and no other principal.

use std::sync::Arc;

use cove_core::session::registry::Principal;
use cove_testkit::fixture::front::{FixtureFront, FrontForm};
use cove_upstream::pool::{CallLogs, CallOptions, UpstreamPool};
use serde_json::{Value, json};

use crate::{definitions, object, pool, run, settings};

fn logs_of(owner: &str) -> Arc<CallLogs> {
    CallLogs::new(&Principal(owner.to_owned()))
}

async fn log(pool: &UpstreamPool, logs: &Arc<CallLogs>, arguments: Value) {
    let options = CallOptions { logs: Some(Arc::clone(logs)), ..CallOptions::default() };
    pool.call("fixture", "log", object(arguments), options).await.unwrap();
}

fn texts(logs: &CallLogs) -> Vec<String> {
    let messages = logs.to_json()["logs"].as_array().unwrap().clone();
    messages.iter().map(|message| message["data"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn log_messages_over_pipes_stay_with_a_single_principal() {
    run(async {
        for era in ["modern", "legacy"] {
            let pool = pool(&["--extended", "--era", era]);
            let (mine, theirs) = (logs_of("me"), logs_of("them"));
            log(&pool, &mine, json!({"text": "mine"})).await;
            assert_eq!(texts(&mine), ["mine"], "{era}");
            // Nothing says whose message it is, so from now on there are none.
            log(&pool, &theirs, json!({"text": "theirs"})).await;
            log(&pool, &mine, json!({"text": "mine again"})).await;
            assert_eq!((texts(&mine).len(), texts(&theirs).len()), (1, 0), "{era}");
            pool.close().await;
        }
    });
}

#[test]
fn log_messages_over_http_belong_to_their_call() {
    run(async {
        for era in ["modern", "legacy"] {
            let front = FixtureFront::start(&["--extended", "--era", era], FrontForm::Events);
            let pool = UpstreamPool::new(definitions(&json!({ "fixture": front.definition() })), settings());
            let (mine, theirs) = (logs_of("me"), logs_of("them"));
            let my_calls = async {
                for number in 0..20 {
                    log(&pool, &mine, json!({"text": format!("mine {number}")})).await;
                }
            };
            let their_calls = async {
                for number in 0..20 {
                    log(&pool, &theirs, json!({"text": format!("theirs {number}")})).await;
                }
            };
            tokio::join!(my_calls, their_calls);
            let expected = |who: &str| (0..20).map(|number| format!("{who} {number}")).collect::<Vec<_>>();
            assert_eq!(texts(&mine), expected("mine"), "{era}");
            assert_eq!(texts(&theirs), expected("theirs"), "{era}");
            pool.close().await;
        }
    });
}

#[test]
fn log_messages_contain_no_secrets() {
    run(async {
        let mut definition = cove_testkit::fixture::definition(&["--extended"]);
        definition.insert("env".to_owned(), json!({"API_TOKEN": "hunter2-hunter2"}));
        let pool = UpstreamPool::new(definitions(&json!({ "fixture": definition })), settings());
        let logs = logs_of("me");
        log(&pool, &logs, json!({"text": "using hunter2-hunter2 now"})).await;
        assert_eq!(texts(&logs), ["using [redacted] now"]);
        pool.close().await;
    });
}
