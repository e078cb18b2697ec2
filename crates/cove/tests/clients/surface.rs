//! Everything agents see, through the official SDKs in Python and TypeScript, over both transports and in both eras of
//! the protocol. One test is one way to connect; within it every topic is tried, so that one failure hides no other.

use std::panic::{AssertUnwindSafe, catch_unwind};

use serde_json::json;

use crate::cove;
use crate::drive::{Client, Era, Sdk};
use crate::judges::Judges;
use crate::server::{Server, processes_with};

mod files;
mod long;
mod sessions;
mod tools;
mod wrong;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transport {
    Stdio,
    Http,
}

struct Run {
    client: Client,
    transport: Transport,
    era: Era,
}

impl Run {
    /// Nothing but an explicit handle connects one call with the next.
    fn is_stateless(&self) -> bool {
        self.transport == Transport::Http && self.era == Era::Modern
    }
}

type Topic = (&'static str, fn(&mut Run));

const TOPICS: &[Topic] = &[
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
    ("code that raises", wrong::raises),
    ("wrong arguments", wrong::arguments),
    ("unknown things", wrong::unknown),
    ("a timeout", wrong::timeout),
    ("large output", long::large_output),
    ("progress", long::progress),
    ("cancellation", long::cancellation),
];

fn judge(test: &str, sdk: Sdk, transport: Transport, era: Era) {
    let Some(judges) = Judges::find(test) else { return };
    let all = ["--tools", "all"];
    // Both ways to be let in are used, one by each SDK.
    let server = match (transport, sdk) {
        (Transport::Stdio, _) => None,
        (Transport::Http, Sdk::Python) => Some(Server::closed(&judges, &all)),
        (Transport::Http, Sdk::TypeScript) => Some(Server::open(&judges, &all)),
    };
    let state_dir = judges.state_dir();
    let client = match &server {
        Some(server) => Client::over_http(&judges, sdk, era, server),
        None => {
            let program = cove().path().to_string_lossy().into_owned();
            let command = [&program, "serve", "--tools", "all", "--state-dir", &state_dir];
            Client::over_stdio(&judges, sdk, era, &command)
        }
    };
    let mut run = Run { client, transport, era };
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
    assert_eq!(
        run.client.close(),
        Some(Some(0)),
        "the client ends, and over stdio its server with it: {said}"
    );
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
    judge("python_sdk_over_stdio_legacy", Sdk::Python, Transport::Stdio, Era::Legacy);
}

#[test]
fn python_sdk_over_stdio_modern() {
    judge("python_sdk_over_stdio_modern", Sdk::Python, Transport::Stdio, Era::Modern);
}

#[test]
fn python_sdk_over_http_legacy() {
    judge("python_sdk_over_http_legacy", Sdk::Python, Transport::Http, Era::Legacy);
}

#[test]
fn python_sdk_over_http_modern() {
    judge("python_sdk_over_http_modern", Sdk::Python, Transport::Http, Era::Modern);
}

#[test]
fn typescript_sdk_over_stdio_legacy() {
    judge("typescript_sdk_over_stdio_legacy", Sdk::TypeScript, Transport::Stdio, Era::Legacy);
}

#[test]
fn typescript_sdk_over_stdio_modern() {
    judge("typescript_sdk_over_stdio_modern", Sdk::TypeScript, Transport::Stdio, Era::Modern);
}

#[test]
fn typescript_sdk_over_http_legacy() {
    judge("typescript_sdk_over_http_legacy", Sdk::TypeScript, Transport::Http, Era::Legacy);
}

#[test]
fn typescript_sdk_over_http_modern() {
    judge("typescript_sdk_over_http_modern", Sdk::TypeScript, Transport::Http, Era::Modern);
}

#[test]
fn cove_without_a_command_serves_one_tool() {
    let test = "cove_without_a_command_serves_one_tool";
    let Some(judges) = Judges::find(test) else { return };
    let program = cove().path().to_string_lossy().into_owned();
    for sdk in [Sdk::Python, Sdk::TypeScript] {
        let mut client = Client::over_stdio(&judges, sdk, Era::Modern, &[&program]);
        let names: Vec<_> = client.list("tools").iter().map(|tool| tool["name"].clone()).collect();
        assert_eq!(names, ["execute_code"], "{sdk:?}");
    }
}

#[test]
fn connections_and_owners_are_apart() {
    let Some(judges) = Judges::find("connections_and_owners_are_apart") else { return };
    let mut server = Server::closed(&judges, &["--tools", "all"]);
    let [mut first, mut second] =
        [(); 2].map(|()| Client::over_http(&judges, Sdk::TypeScript, Era::Legacy, &server));
    first.call("execute_code", json!({ "code": "secret = 42" })).text();
    second.call("execute_code", json!({ "code": "secret" })).fails_with(&["NameError"]);
    let started = first.call("start_session", json!({ "image": "ubuntu" }));
    let handle = started.structured()["session_id"].clone();
    first.call("execute_code", json!({ "code": "secret = 42", "session": "shared" })).text();
    // One owner's connections share what is named; another's see none of it.
    second.call("execute_code", json!({ "code": "secret", "session": "shared" })).text();
    second.call("send_lines", json!({ "session_id": handle, "lines": ["true"] })).text();
    server.for_owner("bob");
    let mut other = Client::over_http(&judges, Sdk::Python, Era::Modern, &server);
    other.call("execute_code", json!({ "code": "secret", "session": "shared" })).fails_with(&["NameError"]);
    let word = handle.as_str().unwrap_or_default();
    for (tool, arguments) in [
        ("execute_code", json!({ "code": "1", "language": "sh", "session": handle })),
        ("send_lines", json!({ "session_id": handle, "lines": ["true"] })),
        ("stop_session", json!({ "session_id": handle })),
        ("sandbox_read_file", json!({ "path": "/workspace/x", "session": handle })),
    ] {
        other.call(tool, arguments).fails_with(&[word]);
    }
    first.call("send_lines", json!({ "session_id": handle, "lines": ["true"] })).text();
}
