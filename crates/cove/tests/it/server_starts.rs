//! Servers that start slowly, through the real program: the cell that calls one does not pay for its start, hears of it,
//! and may go away without harm to the start.

use std::fs;

use cove_testkit::mcp::{ClientEra, TestStdioClient};
use serde_json::{Value, json};

use crate::broker::BrokerHome;
use crate::wait_until;

/// The time of a cell here: shorter than the start of its server, and long enough for the cell on a busy machine.
const CELL_SECONDS: u32 = 10;
/// The start of a server, in milliseconds.
const SLOW: &str = "12000";

/// A home whose only server starts slowly and keeps a list of its starts.
fn with_slow_fixture(slow: &str) -> BrokerHome {
    let home = BrokerHome::new(json!({}));
    let starts = home.path("starts").to_string_lossy().into_owned();
    home.define("servers", json!({"fixture": home.fixture(&["--slow", slow, "--starts", &starts])}));
    home
}

/// Starts Cove and the interpreter, so that a cell's time is its own.
fn serve_warm(home: &BrokerHome, args: &[&str]) -> TestStdioClient {
    let mut client = home.serve(args);
    client.call("execute_code", json!({"code": "1"})).ok();
    client
}

fn start_count(home: &BrokerHome) -> usize {
    fs::read_to_string(home.path("starts")).unwrap_or_default().lines().count()
}

#[test]
fn a_server_start_does_not_count_against_the_cell() {
    let home = with_slow_fixture(SLOW);
    let mut client = serve_warm(&home, &[]);
    let arguments = json!({"code": "mcp.fixture.add(a=1, b=2).sum", "timeout": CELL_SECONDS});
    let params = json!({"name": "execute_code", "arguments": arguments, "_meta": {"progressToken": "p"}});
    let answer = client.request("tools/call", params).unwrap();
    assert_eq!(answer["content"][0]["text"], "3.0\n", "{answer}");
    let reported = |note: &Value| {
        let message = note["params"]["message"].as_str().unwrap_or_default();
        message.starts_with("starting fixture: ") && message.ends_with(" s")
    };
    assert!(client.notifications.iter().any(reported), "{:?}", client.notifications);
    assert_eq!(start_count(&home), 1);

    // The server runs now, so the time of a cell that calls it counts.
    let endless = json!({"code": "import time\nwhile True: mcp.fixture.add(a=1, b=2); time.sleep(0.01)", "timeout": 1});
    let stopped = client.call("execute_code", endless).failed();
    assert!(stopped.contains("cell stopped after 1 s"), "{stopped}");
}

#[test]
fn a_search_waits_for_a_start_without_the_cells_clock() {
    let home = with_slow_fixture(SLOW);
    let mut client = serve_warm(&home, &[]);
    let code = json!({"code": "len(mcp.find('add two numbers')) > 0", "timeout": CELL_SECONDS});
    assert_eq!(client.call("execute_code", code).ok(), "True\n");
}

#[test]
fn a_start_goes_on_when_its_cell_is_cancelled() {
    let home = with_slow_fixture("2500");
    let mut client = home.serve(&[]);
    let id = client.begin_call("execute_code", json!({"code": "x = 1; mcp.fixture.add(a=1, b=2)"}));
    wait_until("the server is being started", || start_count(&home) == 1);
    client.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}));
    // The session is free at once, and a call in the next cell joins the start.
    let code = json!({"code": "print(x); mcp.fixture.add(a=1, b=2).sum", "timeout": CELL_SECONDS});
    assert_eq!(client.call("execute_code", code).ok(), "1\n3.0\n");
    assert_eq!(start_count(&home), 1);
}

#[test]
fn a_start_that_takes_too_long_fails_the_call() {
    let home = with_slow_fixture("60000");
    let mut client = serve_warm(&home, &["--start-timeout", &format!("{SLOW}ms")]);
    let code = json!({"code": "mcp.fixture.add(a=1, b=2)", "timeout": CELL_SECONDS});
    let failed = client.call("execute_code", code).failed();
    assert!(failed.contains("could not be started: it did not answer within 12 s"), "{failed}");
    assert!(failed.contains("`start_timeout`"), "{failed}");
    assert_eq!(start_count(&home), 1);
}

#[test]
fn proxy_settings_reach_servers_and_their_credentials_nothing_else() {
    let home = BrokerHome::new(json!({}));
    let script = "echo \"cannot reach $HTTPS_PROXY\" >&2; exit 1";
    let broken = json!({"command": "/bin/sh", "args": ["-c", script]});
    home.define("servers", json!({"fixture": home.fixture(&[]), "broken": broken}));
    let mut command = home.command(&["serve", "--log-level", "debug"]);
    let names = ["HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "https_proxy", "http_proxy", "all_proxy"];
    command.envs(names.map(|name| (name, "http://me:proxy%2Dcanary@proxy.example:3128")));
    command.env("NO_PROXY", "localhost").env("no_proxy", "localhost");
    let mut client = TestStdioClient::start(command, ClientEra::Modern);
    let mut shown = String::new();
    let mut python = |code: &str| {
        let answer = client.call("execute_code", json!({"code": code}));
        shown += &answer.0.to_string();
        answer
    };
    let received = python("print(sorted(n for n in mcp.fixture.variables().names if 'proxy' in n.lower()))").ok();
    let expected =
        "['ALL_PROXY', 'HTTPS_PROXY', 'HTTP_PROXY', 'NO_PROXY', 'all_proxy', 'http_proxy', 'https_proxy', 'no_proxy']";
    assert_eq!(received.trim(), expected);
    assert_eq!(python("mcp.fixture.variable(name='HTTPS_PROXY').value").ok(), "'http://[redacted]'\n");
    let failed = python("mcp.broken.x()").failed();
    assert!(failed.contains("cannot reach http://[redacted]"), "{failed}");
    assert_eq!(python("import os; [n for n in os.environ if 'proxy' in n.lower()]").ok(), "[]\n");
    shown += &client.errors();
    client.close_input();
    client.wait();
    let kept =
        std::process::Command::new("grep").args(["-rE", "canary@|proxy-canary|%2Dcanary"]).arg(home.path(".")).output();
    assert_eq!(String::from_utf8_lossy(&kept.unwrap().stdout), "");
    assert!(!shown.contains("proxy%2Dcanary") && !shown.contains("proxy-canary"), "{shown}");
}
