//! Lists: pages, changes, resources, prompts, and definitions that change while servers run.

use cove_upstream::pool::{CallOptions, ServerQuery};
use serde_json::json;

use crate::{call, definitions, object, pool, pool_with, run, settings, wait_until};

#[test]
fn reads_every_page() {
    run(async {
        for era in ["modern", "legacy"] {
            let pool = pool(&["--era", era, "--tools", "10000", "--page", "100"]);
            let tools = pool.tools("fixture").await.unwrap();
            assert_eq!(tools.len(), 10_021, "{era}");
            let add = tools.iter().find(|tool| tool.name == "add").unwrap();
            assert!(add.read_only && add.output_schema.is_some());
            assert_eq!(add.input_schema["required"], json!(["a", "b"]));
            pool.close().await;
        }
    });
}

#[test]
fn limits_list_length() {
    run(async {
        let pool = pool(&["--tools", "30000", "--page", "10"]);
        assert_eq!(pool.tools("fixture").await.unwrap().len(), 2_000);
        pool.close().await;
        let pool = pool_with(&["--tools", "30000"], settings());
        assert_eq!(pool.tools("fixture").await.unwrap().len(), 20_000);
        pool.close().await;
    });
}

#[test]
fn notices_tool_list_changes_over_stdio() {
    run(async {
        for era in ["modern", "legacy"] {
            let folder = tempfile::tempdir().unwrap();
            let log = folder.path().join("log");
            let pool = pool(&["--era", era, "--log", log.to_str().unwrap()]);
            let mut changes = pool.subscribe_changes();
            assert_eq!(pool.tools("fixture").await.unwrap().len(), 21);
            // In the newer era the server must have received the subscription first.
            let subscribed = || std::fs::read_to_string(&log).unwrap().contains("subscriptions/listen");
            wait_until("it is listened to", || era == "legacy" || subscribed()).await;
            call(&pool, "change", json!({})).await.unwrap();
            let noticed = tokio::time::timeout(std::time::Duration::from_secs(60), changes.changed()).await;
            assert!(noticed.is_ok(), "{era}");
            assert_eq!(pool.summaries()[0].changes, 1, "{era}");
            assert_eq!(pool.tools("fixture").await.unwrap().len(), 22);
            pool.close().await;
        }
    });
}

#[test]
fn lists_resources_and_prompts() {
    run(async {
        for era in ["modern", "legacy"] {
            let pool = pool(&["--era", era]);
            let query = async |query| pool.query("fixture", query, CallOptions::default()).await.unwrap();
            let resources = query(ServerQuery::Resources).await;
            assert_eq!(resources["resources"].as_array().unwrap().len(), 4);
            assert_eq!(resources["templates"], json!([]));
            let read = query(ServerQuery::ReadResource { uri: "fixture://a".into() }).await;
            assert_eq!(read["contents"][0]["text"], "contents of it");
            assert_eq!(query(ServerQuery::Prompts).await["prompts"][0]["name"], "greet");
            let arguments = object(json!({"who": "Ada"}));
            let prompt = query(ServerQuery::Prompt { name: "greet".into(), arguments }).await;
            assert_eq!(prompt["description"], "A greeting");
            assert_eq!(prompt["messages"][0]["content"]["text"], "Greet Ada");
            assert_eq!(pool.instructions("fixture").as_deref(), Some("Call echo first."));
            pool.close().await;
        }
    });
}

#[test]
fn unchanged_server_keeps_running_after_a_reload() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let pids = |name: &str| folder.path().join(name);
        let server = |name: &str| cove_testkit::fixture::definition(&["--pids", pids(name).to_str().unwrap()]);
        let two = json!({"kept": server("kept"), "dropped": server("dropped")});
        let pool = cove_upstream::pool::UpstreamPool::new(definitions(&two), settings());
        pool.tools("kept").await.unwrap();
        pool.tools("dropped").await.unwrap();
        let before = std::fs::read_to_string(pids("kept")).unwrap();
        let gone: Vec<u32> = crate::server_lifecycle::read_pids(&pids("dropped"));

        let mut kept = server("kept");
        kept.insert("description".into(), json!("other words"));
        pool.replace(definitions(&json!({"kept": kept, "new": server("new")})));
        let names: Vec<_> = pool.summaries().into_iter().map(|summary| summary.name).collect();
        assert_eq!(names, ["kept", "new"]);
        assert_eq!(pool.summaries()[0].description.as_deref(), Some("other words"));
        pool.tools("kept").await.unwrap();
        assert_eq!(std::fs::read_to_string(pids("kept")).unwrap(), before, "not started again");
        wait_until("the dropped one is gone", || gone.iter().all(|id| !crate::server_lifecycle::is_alive(*id))).await;
        pool.close().await;
    });
}
