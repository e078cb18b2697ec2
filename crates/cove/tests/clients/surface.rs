//! Everything that agents see, through the official SDKs in Python and TypeScript, over both transports and in both
//! eras of the protocol. Each test is one way to connect; it tries every topic, so that one failure hides no other.

use std::panic::{AssertUnwindSafe, catch_unwind};

use serde_json::json;

use crate::cove;
use crate::cove_server::{CoveServer, processes_with};
use crate::judges::OutsideJudges;
use crate::sdk_client::{ClientSdk, SdkClient, SdkEra};

mod errors;
mod files;
mod long_cells;
mod sessions;
mod tools;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClientTransport {
    Stdio,
    Http,
}

struct SurfaceRun {
    client: SdkClient,
    transport: ClientTransport,
    era: SdkEra,
}

impl SurfaceRun {
    /// True if only an explicit handle connects one call with the next.
    fn is_stateless(&self) -> bool {
        self.transport == ClientTransport::Http && self.era == SdkEra::Modern
    }
}

type SurfaceTopic = (&'static str, fn(&mut SurfaceRun));

const TOPICS: &[SurfaceTopic] = &[
    ("the greeting", tools::greeting),
    ("the list of tools", tools::list),
    ("the schemas of tools", tools::schemas),
    ("the annotations of tools", tools::annotations),
    ("resources", tools::resources),
    ("prompts", tools::prompts),
    ("the default session", sessions::default_session),
    ("named sessions", sessions::named),
    ("languages", sessions::languages),
    ("spellings of code", sessions::spellings),
    ("the python tool", sessions::python_tool),
    ("images and explicit sessions", sessions::images),
    ("state of an explicit session", sessions::persistent),
    ("the end of an explicit session", sessions::stopped),
    ("files", files::text),
    ("a file of bytes", files::binary),
    ("images", files::pictures),
    ("code that raises", errors::exceptions),
    ("wrong arguments", errors::arguments),
    ("unknown things", errors::unknown_names),
    ("a timeout", errors::timeout),
    ("large output", long_cells::large_output),
    ("progress", long_cells::progress),
    ("cancellation", long_cells::cancellation),
];

fn run_topics(test: &str, sdk: ClientSdk, transport: ClientTransport, era: SdkEra) {
    let Some(judges) = OutsideJudges::find(test) else { return };
    let all = ["--tools", "all"];
    // Both ways to authenticate are used, one by each SDK.
    let server = match (transport, sdk) {
        (ClientTransport::Stdio, _) => None,
        (ClientTransport::Http, ClientSdk::Python) => Some(CoveServer::with_tokens(&judges, &all)),
        (ClientTransport::Http, ClientSdk::TypeScript) => Some(CoveServer::open(&judges, &all)),
    };
    let state_dir = judges.state_dir();
    let client = match &server {
        Some(server) => SdkClient::over_http(&judges, sdk, era, server),
        None => {
            let program = cove().path().to_string_lossy().into_owned();
            let command = [&program, "serve", "--tools", "all", "--state-dir", &state_dir];
            SdkClient::over_stdio(&judges, sdk, era, &command)
        }
    };
    let mut run = SurfaceRun { client, transport, era };
    let failed: Vec<&str> = TOPICS
        .iter()
        .filter(|(name, topic)| {
            eprintln!("-- {name}");
            catch_unwind(AssertUnwindSafe(|| topic(&mut run))).is_err()
        })
        .map(|(name, _)| *name)
        .collect();
    let said = run.client.stderr();
    let said: Vec<&str> = said.lines().rev().take(10).collect();
    let said = said.into_iter().rev().collect::<Vec<_>>().join("\n");
    assert!(failed.is_empty(), "{} of {} failed: {}\n{said}", failed.len(), TOPICS.len(), failed.join(", "));
    assert_eq!(run.client.close(), Some(Some(0)), "the client ends, and over stdio its server with it: {said}");
    match server {
        Some(server) => {
            assert_eq!(server.stop(), (Some(Some(0)), vec![]), "the server ends when it is told to")
        }
        None => {
            assert_eq!(processes_with(&state_dir), Vec::<String>::new(), "the server outlives its client")
        }
    }
}

#[test]
fn python_sdk_over_stdio_legacy() {
    run_topics("python_sdk_over_stdio_legacy", ClientSdk::Python, ClientTransport::Stdio, SdkEra::Legacy);
}

#[test]
fn python_sdk_over_stdio_modern() {
    run_topics("python_sdk_over_stdio_modern", ClientSdk::Python, ClientTransport::Stdio, SdkEra::Modern);
}

#[test]
fn python_sdk_over_http_legacy() {
    run_topics("python_sdk_over_http_legacy", ClientSdk::Python, ClientTransport::Http, SdkEra::Legacy);
}

#[test]
fn python_sdk_over_http_modern() {
    run_topics("python_sdk_over_http_modern", ClientSdk::Python, ClientTransport::Http, SdkEra::Modern);
}

#[test]
fn typescript_sdk_over_stdio_legacy() {
    run_topics("typescript_sdk_over_stdio_legacy", ClientSdk::TypeScript, ClientTransport::Stdio, SdkEra::Legacy);
}

#[test]
fn typescript_sdk_over_stdio_modern() {
    run_topics("typescript_sdk_over_stdio_modern", ClientSdk::TypeScript, ClientTransport::Stdio, SdkEra::Modern);
}

#[test]
fn typescript_sdk_over_http_legacy() {
    run_topics("typescript_sdk_over_http_legacy", ClientSdk::TypeScript, ClientTransport::Http, SdkEra::Legacy);
}

#[test]
fn typescript_sdk_over_http_modern() {
    run_topics("typescript_sdk_over_http_modern", ClientSdk::TypeScript, ClientTransport::Http, SdkEra::Modern);
}

#[test]
fn cove_without_a_command_serves_one_tool() {
    let test = "cove_without_a_command_serves_one_tool";
    let Some(judges) = OutsideJudges::find(test) else { return };
    let program = cove().path().to_string_lossy().into_owned();
    for sdk in [ClientSdk::Python, ClientSdk::TypeScript] {
        let mut client = SdkClient::over_stdio(&judges, sdk, SdkEra::Modern, &[&program]);
        let names: Vec<_> = client.list("tools").iter().map(|tool| tool["name"].clone()).collect();
        assert_eq!(names, ["execute_code"], "{sdk:?}");
    }
}

#[test]
fn isolates_connections_and_owners() {
    let Some(judges) = OutsideJudges::find("isolates_connections_and_owners") else { return };
    let mut server = CoveServer::with_tokens(&judges, &["--tools", "all"]);
    let [mut first, mut second] =
        [(); 2].map(|()| SdkClient::over_http(&judges, ClientSdk::TypeScript, SdkEra::Legacy, &server));
    first.call("execute_code", json!({ "code": "secret = 42" })).text();
    second.call("execute_code", json!({ "code": "secret" })).expect_failure(&["NameError"]);
    let started = first.call("start_session", json!({ "image": "ubuntu" }));
    let handle = started.structured()["session_id"].clone();
    first.call("execute_code", json!({ "code": "secret = 42", "session": "shared" })).text();
    // Connections of one owner share named sessions; another owner's see none of them.
    second.call("execute_code", json!({ "code": "secret", "session": "shared" })).text();
    second.call("send_lines", json!({ "session_id": handle, "lines": ["true"] })).text();
    server.use_token_of("bob");
    let mut other = SdkClient::over_http(&judges, ClientSdk::Python, SdkEra::Modern, &server);
    other.call("execute_code", json!({ "code": "secret", "session": "shared" })).expect_failure(&["NameError"]);
    let word = handle.as_str().unwrap_or_default();
    for (tool, arguments) in [
        ("execute_code", json!({ "code": "1", "language": "sh", "session": handle })),
        ("send_lines", json!({ "session_id": handle, "lines": ["true"] })),
        ("stop_session", json!({ "session_id": handle })),
        ("sandbox_read_file", json!({ "path": "/workspace/x", "session": handle })),
    ] {
        other.call(tool, arguments).expect_failure(&[word]);
    }
    first.call("send_lines", json!({ "session_id": handle, "lines": ["true"] })).text();
}
