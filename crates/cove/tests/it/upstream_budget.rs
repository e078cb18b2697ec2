//! Servers that send without end or measure, through the real program: the memory of Cove stays bounded, the cell ends
//! in time, and the error names the limit.

use std::fs;
use std::time::Duration;

use cove_testkit::fixture::front::{FixtureFront, FrontForm};
use cove_testkit::mcp::TestStdioClient;
use serde_json::{Value, json};

use crate::broker::BrokerHome;
use crate::process;

/// How much a hostile server may add to Cove's memory, in kilobytes.
const MOST: u64 = 307_200;

/// What the servers were asked.
const LOG: &str = "requests";

/// The hostile server over every transport and in both eras. Each definition lives as long as its front.
fn servers(home: &BrokerHome, torrent: &str) -> Vec<(&'static str, Value, Option<FixtureFront>)> {
    let mut servers = Vec::new();
    let log = home.path(LOG).to_string_lossy().into_owned();
    for era in ["modern", "legacy"] {
        let flags = ["--torrent", torrent, "--era", era, "--log", &log];
        servers.push((era, home.fixture(&flags), None));
        for form in [FrontForm::Json, FrontForm::Events, FrontForm::LegacySse] {
            if form == FrontForm::LegacySse && era == "modern" {
                continue;
            }
            let front = FixtureFront::start(&flags, form);
            servers.push((era, front.definition(), Some(front)));
        }
    }
    servers
}

/// Runs a cell against each of the servers and checks the memory of Cove after it. Returns what the cells printed.
fn attack(torrent: &str, code: &str, timeout: f64) -> Vec<String> {
    let home = BrokerHome::new(json!({}));
    let mut printed = Vec::new();
    for (era, definition, front) in servers(&home, torrent) {
        let what = format!("{torrent}, {era}, {definition}");
        home.define("servers", json!({ "fixture": definition }));
        let _ = fs::remove_dir_all(home.path(".local/state/cove"));
        let mut client: TestStdioClient = home.serve(&[]);
        client.call("execute_code", json!({"code": "1"})).ok();
        let before = process::status_value(client.pid(), "VmHWM");
        let answer = client.call("execute_code", json!({"code": code, "timeout": timeout}));
        printed.push(answer.text());
        // What goes on after the cell must not add up either.
        std::thread::sleep(Duration::from_secs(1));
        if torrent == "pages" {
            // A page takes the server 0.4 s, so by now it has answered the last request of the cell.
            let requests = || fs::read_to_string(home.path(LOG)).unwrap().matches("\"tools/list\"").count();
            let asked = requests();
            assert!(asked > 1, "{what}: {asked} requests");
            std::thread::sleep(Duration::from_secs(2));
            assert_eq!(requests(), asked, "{what}: the list goes on without its cell");
        }
        let added = process::status_value(client.pid(), "VmHWM") - before;
        eprintln!("{what}: {added} kB: {}", answer.text());
        assert!(added < MOST, "{what}: {added} kB");
        // Cove still serves.
        assert_eq!(client.call("execute_code", json!({"code": "1 + 1"})).ok(), "2\n", "{what}");
        drop((client, front));
    }
    printed
}

#[test]
fn an_endless_list_is_cut_off() {
    for words in attack("list", "mcp.fixture.echo()", 100.0) {
        assert!(words.contains("more than 64 MiB"), "{words}");
    }
}

#[test]
fn a_slow_list_ends_with_its_cell() {
    for words in attack("pages", "mcp.fixture.add(a=1, b=2)", 2.0) {
        assert!(words.contains("cell stopped after 2 s"), "{words}");
    }
}

#[test]
fn results_are_bounded_by_memory_and_not_by_text() {
    for words in attack("objects", "mcp.fixture.echo()", 100.0) {
        assert!(words.contains("more than 256 MiB of memory"), "{words}");
    }
}

/// Calls a server that sends a torrent beside its answers: the call has its answer all the same.
fn check_calls_work(torrent: &str) {
    for words in attack(torrent, "print(mcp.fixture.add(a=1, b=2)); import time; time.sleep(3)", 60.0) {
        assert!(words.starts_with("{'sum': 3.0}\n"), "{words}");
    }
}

#[test]
fn torrents_of_log_messages_are_bounded() {
    check_calls_work("logs");
}

#[test]
fn torrents_of_answers_are_bounded() {
    check_calls_work("answers");
}

#[test]
fn torrents_of_questions_are_bounded() {
    check_calls_work("questions");
}

#[test]
fn a_huge_introduction_is_refused() {
    for words in attack("handshake", "mcp.fixture.echo()", 100.0) {
        // A server of one era refuses the other, and over HTTP that is the last word.
        let is_refused = words.contains("more than 1 MiB") || words.contains("Unsupported protocol version");
        assert!(is_refused && words.contains("mcp.ServerUnavailable"), "{words}");
    }
}
