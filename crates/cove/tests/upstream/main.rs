//! The pool of upstream servers against a server that can do everything wrong: `cove_testkit::fixture`.

mod calls;
mod hostile;
mod http;
mod http_hostile;
mod lists;
mod logs;
mod protocol_eras;
mod server_lifecycle;
mod sse;
mod subscriptions;
mod tasks;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cove_core::process_env::ProcessEnv;
use cove_testkit::fixture;
use cove_upstream::pool::{
    CallOptions, ServerDefinitions, UpstreamError, UpstreamPool, UpstreamResult, UpstreamSettings,
};
use serde_json::{Map, Value, json};

/// The settings that Cove has in an ordinary shell, with less time for an end and more for an answer.
fn settings() -> UpstreamSettings {
    let env = [
        ("PATH", "/usr/local/bin:/usr/bin:/bin"),
        ("HOME", "/nowhere"),
        ("COVE_SECRET", "cove-own-secret"),
        ("OTHER", "x"),
    ];
    let env: BTreeMap<String, _> = env.map(|(name, value)| (name.to_owned(), value.into())).into();
    let process_env = ProcessEnv { env, cwd: PathBuf::from("/"), stdin_is_terminal: false };
    UpstreamSettings {
        grace: Duration::from_millis(500),
        call_timeout: Duration::from_secs(600),
        ..UpstreamSettings::from_env(&process_env)
    }
}

/// Servers as a JSON file would define them.
fn definitions(servers: &Value) -> ServerDefinitions {
    let text = json!({ "mcpServers": servers }).to_string();
    let definitions = ServerDefinitions::from_text(Path::new("/etc/servers.json"), &text);
    assert_eq!(definitions.problems, []);
    definitions
}

/// A pool with one server `fixture`.
fn pool(flags: &[&str]) -> Arc<UpstreamPool> {
    pool_with(flags, settings())
}

fn pool_with(flags: &[&str], settings: UpstreamSettings) -> Arc<UpstreamPool> {
    UpstreamPool::new(definitions(&json!({"fixture": fixture::definition(flags)})), settings)
}

fn object(value: Value) -> Map<String, Value> {
    value.as_object().expect("an object").clone()
}

async fn call(pool: &UpstreamPool, tool: &str, arguments: Value) -> Result<UpstreamResult, UpstreamError> {
    pool.call("fixture", tool, object(arguments), CallOptions::default()).await
}

fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(test)
}

fn text(outcome: &UpstreamResult) -> &str {
    outcome.content[0]["text"].as_str().expect("text")
}

/// Waits until a condition holds. Panics with its description otherwise.
async fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited for too long: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
