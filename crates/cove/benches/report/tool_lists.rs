//! What the list of tools costs a model: that of Cove's toolsets, and of peers in front of the same ten tools.

use std::time::Duration;

use cove_core::text::estimate_tokens;
use cove_testkit::mcp::{ClientEra, TestStdioClient};
use serde_json::{Value, json};

use super::code_mode::{fixture_client, upstream};
use super::cove_rows::server;
use super::package_peers::StartablePeers;
use super::stdio_agent::UpstreamServers;

/// The names of the servers behind Cove in a tool list: those of well-known ones.
const SERVERS: [&str; 10] = [
    "filesystem",
    "github",
    "linear",
    "memory",
    "notion",
    "playwright",
    "postgres",
    "sequential_thinking",
    "slack",
    "time",
];
/// Ten tools with parameters like those of real ones.
const TEN_TOOLS: [&str; 3] = ["--only", "--tools", "10"];

/// Returns the size of each list of tools as JSON text, and an estimate of the tokens that a model reads.
pub(crate) fn rows(found: &StartablePeers) -> Vec<Value> {
    let server_that_fails = |name: &&str| ((*name).to_owned(), json!({"command": "/bin/true"}));
    let ten_servers = UpstreamServers::from_iter(SERVERS.iter().map(server_that_fails));
    let ten_tools = upstream("issues", &TEN_TOOLS);
    let none = UpstreamServers::new();
    let mut rows: Vec<Value> = [
        ("Cove, `code`", "code", &none),
        ("Cove, `python`", "python", &none),
        ("Cove, `code`, before ten servers", "code", &ten_servers),
        ("Cove, `code`, before ten tools", "code", &ten_tools),
        ("Cove, `all`", "all", &none),
    ]
    .into_iter()
    .map(|(name, toolset, servers)| {
        let home = tempfile::tempdir().expect("a folder");
        let command = server(home.path(), toolset, servers, &[]);
        row(name, &mut TestStdioClient::start(command, ClientEra::Legacy))
    })
    .collect();
    rows.push(row("the ten tools themselves", &mut fixture_client(&TEN_TOOLS)));
    // Those that this benchmark puts a server before have no list of their own.
    for peer in found.peers.iter().filter(|peer| peer.id == "fastmcp") {
        let mut agent = found.start(peer, &ten_tools).expect("it started before");
        // It asks its upstream server again for each list.
        std::thread::sleep(Duration::from_millis(500));
        rows.push(row(&format!("{}, before ten tools", peer.name), &mut agent.client));
    }
    rows
}

fn row(name: &str, client: &mut TestStdioClient) -> Value {
    let answer = client.request("tools/list", Value::Null).expect("tools are listed");
    let tools = answer["tools"].as_array().expect("a list");
    // What clients give to models. The rest, such as annotations, is for the client.
    let part = |tool: &Value| json!([tool["name"], tool["description"], tool["inputSchema"]]);
    let read = Value::from_iter(tools.iter().map(part)).to_string();
    let bytes = answer["tools"].to_string().len();
    json!({"name": name, "tools": tools.len(), "bytes": bytes, "tokens": estimate_tokens(&read)})
}
