//! How long a client waits for its tools, from the start of the server to the answer, and how much memory the server
//! uses at rest; beside a bare interpreter that does nothing, in the same interleaved run.
//!
//! `cargo xtask bench serve [ROUNDS]`

use std::path::Path;
use std::process::{Command, Stdio as Pipe};
use std::time::{Duration, Instant};

use cove_testkit::mcp::{ClientEra, TestStdioClient};
use cove_testkit::measure::{PYTHON, interleave, load, percentile, ratio};
use serde_json::Value;

fn main() {
    let rounds = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(60);
    if !Path::new(PYTHON).exists() {
        eprintln!("could not find `{PYTHON}`\nhint: install python3");
        std::process::exit(1);
    }
    println!("load average before: {}", load());
    let names = ["bare python, `-c pass`", "cove, handshake and tools", "cove, tools without handshake"];
    let times = interleave(names.len(), rounds, |peer| match peer {
        0 => time_bare_process(),
        1 => time_tool_list(ClientEra::Legacy),
        _ => time_tool_list(ClientEra::Modern),
    });
    println!("\n{rounds} rounds, from start to answer (python: from start to end)");
    println!("{:<32} {:>8} {:>8} {:>8} {:>8}", "", "min ms", "p50 ms", "p99 ms", "x bare");
    for (name, taken) in names.iter().zip(&times) {
        println!(
            "{name:<32} {:>8.2} {:>8.2} {:>8.2} {:>8.2}",
            percentile(taken, 0.0),
            percentile(taken, 0.5),
            percentile(taken, 0.99),
            ratio(taken, &times[0]),
        );
    }
    println!("\nresident at rest: {} kB after the tools were listed", memory_at_rest());
    println!("load average after: {}", load());
}

fn time_bare_process() -> Duration {
    let start = Instant::now();
    let mut command = Command::new(PYTHON);
    let status = command.args(["-c", "pass"]).env_clear().stdin(Pipe::null()).status();
    let taken = start.elapsed();
    assert!(status.is_ok_and(|status| status.success()), "python runs");
    taken
}

fn server(era: ClientEra) -> TestStdioClient {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cove"));
    command.arg("serve").env_clear().env("PATH", "/usr/bin:/bin").env("HOME", "/nonexistent");
    TestStdioClient::start(command, era)
}

fn list(client: &mut TestStdioClient) {
    let tools = client.request("tools/list", Value::Null).expect("tools are listed");
    assert_eq!(tools["tools"][0]["name"], "execute_code");
}

fn time_tool_list(era: ClientEra) -> Duration {
    let start = Instant::now();
    let mut client = server(era);
    list(&mut client);
    let taken = start.elapsed();
    client.close_input();
    client.wait();
    taken
}

fn memory_at_rest() -> u64 {
    let mut client = server(ClientEra::Legacy);
    list(&mut client);
    // Waits until the session that the server keeps ready has started.
    std::thread::sleep(Duration::from_secs(2));
    let status = std::fs::read_to_string(format!("/proc/{}/status", client.pid())).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches("kB").trim().parse().unwrap_or(0)
}
