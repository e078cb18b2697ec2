//! The pool of upstream servers against a server that can do everything wrong: `cove_testkit::fixture`.

mod calls;
mod ends;
mod eras;
mod hostile;
mod http;
mod http_hostile;
mod lists;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cove::config::Surroundings;
use cove::upstream::{CallOptions, Definitions, Outcome, Settings, UpstreamError, Upstreams};
use cove_testkit::fixture;
use serde_json::{Map, Value, json};

/// As `Cove` would have them in an ordinary shell, and impatient.
fn settings() -> Settings {
    let env = [
        ("PATH", "/usr/local/bin:/usr/bin:/bin"),
        ("HOME", "/nowhere"),
        ("COVE_SECRET", "cove-own-secret"),
        ("OTHER", "x"),
    ];
    let env: BTreeMap<String, _> = env.map(|(name, value)| (name.to_owned(), value.into())).into();
    let around = Surroundings { env, cwd: PathBuf::from("/"), stdin_is_terminal: false };
    Settings { grace: Duration::from_millis(500), ..Settings::of(&around) }
}

/// Servers as a JSON file would define them.
fn definitions(servers: &Value) -> Definitions {
    let text = json!({ "mcpServers": servers }).to_string();
    let definitions = Definitions::of_text(Path::new("/etc/servers.json"), &text);
    assert_eq!(definitions.problems, []);
    definitions
}

/// A pool with one server `fixture`.
fn pool(flags: &[&str]) -> Arc<Upstreams> {
    pool_with(flags, settings())
}

fn pool_with(flags: &[&str], settings: Settings) -> Arc<Upstreams> {
    Upstreams::new(definitions(&json!({"fixture": fixture::definition(flags)})), settings)
}

fn object(value: Value) -> Map<String, Value> {
    value.as_object().expect("an object").clone()
}

async fn call(pool: &Upstreams, tool: &str, arguments: Value) -> Result<Outcome, UpstreamError> {
    pool.call("fixture", tool, object(arguments), CallOptions::default()).await
}

fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(test)
}

fn text(outcome: &Outcome) -> &str {
    outcome.content[0]["text"].as_str().expect("text")
}

/// Waits until something holds, and says what did not.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..500 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("waited for too long: {what}");
}
