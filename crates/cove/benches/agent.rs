//! What a client of the server waits for, over stdio and over HTTP: the list of tools, a cell in a live session, a cell
//! that calls an upstream server, and the first cell of a new session. All take turns in every round; the list of tools
//! on the same transport is the floor. The client over HTTP opens a connection for each request.
//!
//! `cargo xtask bench agent [ROUNDS]`

use std::process::Command;
use std::time::{Duration, Instant};

use cove_testkit::fixture;
use cove_testkit::mcp::{ClientEra, HttpServerProcess, TestHttpClient, TestStdioClient, ToolAnswer};
use cove_testkit::measure::{interleave, load, percentile, ratio};
use serde_json::{Value, json};

/// What the client asks for, on each transport.
const REQUESTS: [&str; 4] = ["tools/list", "live cell", "cell with an upstream call", "first cell of a session"];

enum AgentClient {
    Stdio(TestStdioClient),
    Http(TestHttpClient),
}

fn main() {
    let rounds = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(100);
    println!("load average before: {}", load());
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("cove.toml");
    let text = format!("[servers.fixture]\ncommand = \"{}\"\n", fixture::program().display());
    std::fs::write(&config, text).expect("it can be written");
    let server = |transport: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cove"));
        command.args(["serve", "--tools", "all"]).args(transport).env_clear().env("PATH", "/usr/bin:/bin");
        command.env("HOME", folder.path()).env("COVE_CONFIG", &config);
        command
    };
    let http = HttpServerProcess::start(server(&["--http", "127.0.0.1:0", "--auth", "none", "--rate-limit", "10000"]));
    let mut clients = [
        ("stdio", AgentClient::Stdio(TestStdioClient::start(server(&[]), ClientEra::Legacy))),
        ("HTTP", AgentClient::Http(TestHttpClient::new(http.address, None, ClientEra::Legacy))),
    ];
    let mut sessions = 0;
    let times = interleave(clients.len() * REQUESTS.len(), rounds, |peer| {
        sessions += 1;
        clients[peer / REQUESTS.len()].1.time(peer % REQUESTS.len(), &format!("new-{sessions}"))
    });
    println!("\n{rounds} rounds");
    println!("{:<36} {:>8} {:>8} {:>8} {:>8}", "", "min ms", "p50 ms", "p99 ms", "x list");
    for (peer, taken) in times.iter().enumerate() {
        let transport = peer / REQUESTS.len();
        let name = format!("{}: {}", clients[transport].0, REQUESTS[peer % REQUESTS.len()]);
        let [least, half, most] = [0.0, 0.5, 0.99].map(|part| percentile(taken, part));
        let over = ratio(taken, &times[transport * REQUESTS.len()]);
        println!("{name:<36} {least:>8.2} {half:>8.2} {most:>8.2} {over:>8.1}");
    }
    println!("load average after: {}", load());
}

impl AgentClient {
    /// Times one request. `session` is a name that no session has.
    fn time(&mut self, request: usize, session: &str) -> Duration {
        let start = Instant::now();
        match request {
            0 => self.list(),
            1 => assert_eq!(self.call("execute_code", json!({"code": "1 + 1"})).ok(), "2\n"),
            2 => {
                let answer = self.call("execute_code", json!({"code": "mcp.fixture.echo(a=7)[\"a\"]"})).ok();
                assert_eq!(answer, "7\n");
            }
            _ => {
                let answer = self.call("execute_code", json!({"code": "1 + 1", "session": session}));
                let taken = start.elapsed();
                assert_eq!(answer.ok(), "2\n");
                self.call("stop_session", json!({"session_id": session})).ok();
                return taken;
            }
        }
        start.elapsed()
    }

    fn list(&mut self) {
        let answer = match self {
            Self::Stdio(client) => client.request("tools/list", Value::Null),
            Self::Http(client) => client.request("tools/list", Value::Null),
        };
        assert_eq!(answer.expect("tools are listed")["tools"][0]["name"], "execute_code");
    }

    fn call(&mut self, tool: &str, arguments: Value) -> ToolAnswer {
        match self {
            Self::Stdio(client) => client.call(tool, arguments),
            Self::Http(client) => client.call(tool, arguments),
        }
    }
}
