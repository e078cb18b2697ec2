//! One cell does a whole job with several servers: it searches, reads from one, processes, and stores in others.

use serde_json::{Value, json};

use super::UpstreamHome;
use crate::judges::OutsideJudges;

/// The totals of the tables that [`UpstreamHome::write_files`] writes.
const TOTALS: [(&str, u64); 3] = [("Ada", 17), ("Björn", 5), ("日本", 100)];

/// Runs a cell that reads the tables and stores the sums in `memory` and in `sqlite`; then checks both.
#[track_caller]
fn run_job(test: &str, file: &str) {
    let Some(judges) = OutsideJudges::find(test) else { return };
    let house = UpstreamHome::new(&judges);
    house.write_files();
    let mut agent = house.serve(&[]);
    let said = agent.run_cell_file(file).ok();
    assert_eq!(said.trim(), "stored 3", "{file}");

    // Checked in the other servers' own files.
    let graph = house.text("memory.jsonl");
    for (name, total) in TOTALS {
        let entity = json!({
            "type": "entity", "name": name, "entityType": "customer", "observations": [format!("total {total}")],
        });
        let is_there = graph.lines().any(|line| serde_json::from_str::<Value>(line).is_ok_and(|found| found == entity));
        assert!(is_there, "{name}: {graph}");
    }
    let rows = sqlite(&judges, &house, "select name, amount from totals order by name");
    assert_eq!(rows, json!(TOTALS), "{file}");
    // The table exists for the next cell too.
    let again = agent.run_code("python", "print(mcp.sqlite.read_query(query='select count(*) as n from totals'))");
    assert_eq!(again.ok().trim(), "[{'n': 3}]");
}

/// Queries the file directly, without any server.
fn sqlite(judges: &OutsideJudges, house: &UpstreamHome, query: &str) -> Value {
    let script = "import json, sqlite3, sys\n\
                  print(json.dumps(sqlite3.connect(sys.argv[1]).execute(sys.argv[2]).fetchall()))";
    let mut command = judges.command("venv/bin/python");
    command.args(["-c", script]).arg(house.path("store.db")).arg(query);
    let output = command.output().expect("python can be started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("it prints JSON")
}

#[test]
fn one_cell_of_python_searches_reads_and_stores() {
    run_job("one_cell_of_python_searches_reads_and_stores", "job.py");
}

#[test]
fn one_cell_of_node_searches_reads_and_stores() {
    run_job("one_cell_of_node_searches_reads_and_stores", "job.mjs");
}

#[test]
fn one_cell_of_shell_searches_reads_and_stores() {
    run_job("one_cell_of_shell_searches_reads_and_stores", "job.sh");
}

#[test]
fn seven_real_servers_work_in_one_cell() {
    let Some(judges) = OutsideJudges::find("seven_real_servers_work_in_one_cell") else { return };
    let house = UpstreamHome::new(&judges);
    house.write_files();
    house.create_repository(&["the first", "zweite Änderung"]);
    let mut agent = house.serve(&[]);
    let answer = agent.run_cell_file("seven.py").ok();
    let found: Value = serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {answer}"));

    assert_eq!(found["git"], json!(["zweite Änderung", "the first"]));
    assert_eq!(found["time"], "08:30");
    assert_eq!(found["sqlite"], "[{'name': 'ü', 'n': None}]");
    assert_eq!(found["thoughts"], 2);
    assert_eq!(found["echo"], "Echo: grüße 🎉");
    assert_eq!(found["graph"], json!(["Ada"]));
    assert_eq!(found["files"], json!(["notes.txt", "spring.csv", "summer.csv"]));
    // Each server starts once, whichever way it is called.
    let expected = ["everything", "filesystem", "git", "memory", "sequential-thinking", "sqlite", "time"];
    assert_eq!(house.recorded_starts(), expected);
    // The servers end with Cove, as a client expects.
    agent.close();
    let left = || crate::cove_server::processes_with(&house.folder.to_string_lossy());
    let start = std::time::Instant::now();
    while !left().is_empty() {
        assert!(start.elapsed() < super::PATIENCE, "{:?}", left());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn agents_find_tools_without_running_code() {
    let Some(judges) = OutsideJudges::find("agents_find_tools_without_running_code") else { return };
    let house = UpstreamHome::new(&judges);
    let mut agent = house.serve(&[]);
    for (query, server, tool) in [
        ("convert time between time zones", "time", "convert_time"),
        ("commit history", "git", "git_log"),
        ("SELECT query on the database", "sqlite", "read_query"),
        ("add entities to the knowledge graph", "memory", "create_entities"),
        ("search for files by pattern", "filesystem", "search_files"),
    ] {
        let found = agent.call("find_tools", json!({ "query": query, "limit": 3 })).ok();
        let signature = format!("mcp.{server}.{tool}(");
        assert!(found.contains(&signature), "{query}: {found}");
        // Never whole schemas.
        assert!(!found.contains("$schema") && !found.contains("\"properties\""), "{found}");
    }
    let nothing = agent.call("find_tools", json!({ "query": "xyzzyplugh" })).ok();
    assert!(nothing.contains("nothing matches"), "{nothing}");
    agent.call("find_tools", json!({ "query": "files", "limit": 0 })).failed();
}
