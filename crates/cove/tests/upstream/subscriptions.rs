//! Subscriptions to resources: over pipes and HTTP, shared, ended, and after the server died.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cove_core::session::registry::Principal;
use cove_testkit::fixture::front::{FixtureFront, FrontForm};
use cove_upstream::pool::{CallLogs, CallOptions, ResourceSubscription, UpstreamError, UpstreamPool};
use serde_json::{Value, json};

use crate::{call, definitions, pool, run, settings};

const ERAS: [&str; 2] = ["modern", "legacy"];

async fn subscribe(pool: &UpstreamPool, uri: &str) -> Result<Arc<ResourceSubscription>, UpstreamError> {
    let options = CallOptions { logs: Some(CallLogs::new(&Principal("me".into()))), ..CallOptions::default() };
    pool.subscribe("fixture", uri.to_owned(), &options).await
}

async fn touch(pool: &UpstreamPool, uri: &str) {
    call(pool, "touch", json!({ "uri": uri })).await.unwrap();
}

async fn wait_for(subscription: &ResourceSubscription, seen: u64) -> Result<u64, UpstreamError> {
    let waiting = subscription.wait_for_change(seen);
    tokio::time::timeout(Duration::from_secs(60), waiting).await.expect("a change or an end")
}

/// Waits until the server reports changes of these resources alone.
async fn wait_until_listening(pool: &UpstreamPool, uris: Value) {
    let start = Instant::now();
    while call(pool, "listening", json!({})).await.unwrap().structured.unwrap()["uris"] != uris {
        assert!(start.elapsed() < Duration::from_secs(60), "it does not listen to {uris}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn subscribers_of_a_resource_share_one_subscription() {
    run(async {
        for era in ERAS {
            let pool = pool(&["--extended", "--era", era]);
            let (first, second) = tokio::join!(subscribe(&pool, "fixture://a"), subscribe(&pool, "fixture://a"));
            let (first, second) = (first.unwrap(), second.unwrap());
            touch(&pool, "fixture://a").await;
            assert_eq!((wait_for(&first, 0).await, wait_for(&second, 0).await), (Ok(1), Ok(1)), "{era}");
            drop(first);
            touch(&pool, "fixture://a/part").await;
            touch(&pool, "fixture://another").await;
            assert_eq!(wait_for(&second, 1).await, Ok(2), "{era}");
            wait_until_listening(&pool, json!(["fixture://a"])).await;
            drop(second);
            // The end of the old one does not end the new one.
            let third = subscribe(&pool, "fixture://a").await.unwrap();
            touch(&pool, "fixture://a").await;
            assert_eq!(wait_for(&third, 0).await, Ok(1), "{era}");
            drop(third);
            wait_until_listening(&pool, json!([])).await;
            pool.close().await;
        }
    });
}

#[test]
fn subscriptions_work_over_http() {
    run(async {
        for era in ERAS {
            let front = FixtureFront::start(&["--extended", "--era", era], FrontForm::Events);
            let pool = UpstreamPool::new(definitions(&json!({ "fixture": front.definition() })), settings());
            let subscription = subscribe(&pool, "fixture://a").await.unwrap();
            touch(&pool, "fixture://a").await;
            assert_eq!(wait_for(&subscription, 0).await, Ok(1), "{era}");
            drop(subscription);
            wait_until_listening(&pool, json!([])).await;
            pool.close().await;
        }
    });
}

#[test]
fn subscriptions_are_refused_with_a_reason() {
    run(async {
        for era in ERAS {
            let plain = pool(&["--era", era]);
            let error = subscribe(&plain, "fixture://a").await.err().unwrap().to_string();
            assert!(error.contains("it does not report changes of resources"), "{era}: {error}");
            plain.close().await;
            let pool = pool(&["--extended", "--era", era]);
            assert!(subscribe(&pool, "fixture://refused").await.is_err(), "{era}");
            let mut open = Vec::new();
            let full = loop {
                match subscribe(&pool, &format!("fixture://{}", open.len())).await {
                    Ok(one) => open.push(one),
                    Err(error) => break error.to_string(),
                }
            };
            assert_eq!(open.len(), 32, "{era}");
            assert!(full.contains("32 subscriptions"), "{era}: {full}");
            open.clear();
            assert!(subscribe(&pool, "fixture://a").await.is_ok(), "{era}: there is room again");
            pool.close().await;
        }
    });
}

#[test]
fn subscription_fails_when_its_server_dies() {
    run(async {
        for era in ERAS {
            let pool = pool(&["--extended", "--era", era]);
            let subscription = subscribe(&pool, "fixture://a").await.unwrap();
            assert!(call(&pool, "die", json!({})).await.is_err());
            let error = wait_for(&subscription, 0).await.unwrap_err();
            assert!(matches!(error, UpstreamError::Gone { .. }), "{era}: {error}");
            let again = subscribe(&pool, "fixture://a").await.unwrap();
            touch(&pool, "fixture://a").await;
            assert_eq!(wait_for(&again, 0).await, Ok(1), "{era}: the next server");
            pool.close().await;
        }
    });
}

#[test]
fn one_principal_cannot_take_every_subscription() {
    run(async {
        for era in ERAS {
            let pool = pool(&["--extended", "--era", era]);
            let subscribe = async |who: &str, number: usize| {
                let options = CallOptions { principal: Some(Principal(who.into())), ..CallOptions::default() };
                pool.subscribe("fixture", format!("fixture://{who}/{number}"), &options).await
            };
            let mut open = Vec::new();
            for number in 0..32 {
                open.push(subscribe("greedy", number).await.unwrap());
            }
            assert!(subscribe("greedy", 32).await.is_err(), "{era}");
            let other = subscribe("other", 0).await.unwrap();
            touch(&pool, "fixture://other/0").await;
            assert_eq!(wait_for(&other, 0).await, Ok(1), "{era}");
            // The latest of the greedy one is gone, and says why. The others stay.
            let lost = wait_for(&open[31], 0).await.unwrap_err().to_string();
            assert!(lost.contains("another client needed the place"), "{era}: {lost}");
            touch(&pool, "fixture://greedy/0").await;
            assert_eq!(wait_for(&open[0], 0).await, Ok(1), "{era}");
            pool.close().await;
        }
    });
}
