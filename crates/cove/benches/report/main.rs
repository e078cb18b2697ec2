//! What `docs/benchmarks.md` reports: new sessions, cells in live sessions, imports, calls to upstream servers, output and
//! memory, beside other ways to do the same. All rows take turns in every round, the order rotates, and every output is checked. It must not know how the
//! page looks: it writes each measured time as JSON.
//!
//! `cargo xtask bench --report` runs this with the engines of the tests and makes the page. Alone:
//! `cargo xtask bench report [ROUNDS [REPEATS [FILE]]]`; without a file it prints the JSON.

use std::time::Duration;

use cove_testkit::containers::TestEngine;
use cove_testkit::measure::{PYTHON, WARM_UP, interleave, load};
use serde_json::{Value, json};

mod code_dialects;
mod code_mode;
mod cove_rows;
mod engine_rows;
mod http_rows;
mod machine;
mod memory;
mod output_rows;
mod package_peers;
mod processes;
mod round_trip_rows;
mod stdio_agent;
mod tool_lists;

use package_peers::StartablePeers;

/// What every new session and every cell runs.
const CODE: &str = "print(6*7)";
/// What it prints.
const ANSWER: &str = "42\n";
const IMAGE: &str = "ubuntu:24.04";
/// What the code of the table of imports does where pandas is installed.
const DATA_FRAME: &str = "import pandas; print(pandas.DataFrame({'a': [20, 22]}).sum()['a'])";
/// What it imports elsewhere.
const STANDARD_MODULES: [&str; 4] = ["asyncio", "decimal", "sqlite3", "xml.dom.minidom"];

#[derive(Debug, Clone, Copy)]
enum ReportTable {
    /// From nothing to the first byte of output.
    Start,
    /// In a session that is running.
    Cell,
    /// A new session whose first cell imports modules.
    Import,
    /// A call from code to a tool of an upstream server, one after another.
    UpstreamCall,
    /// Several calls at once from one cell.
    GatheredCalls,
    /// A cell that prints much.
    Output,
    /// A round trip through a pipe, and calls that are compared with it.
    RoundTrips,
}

impl ReportTable {
    /// Identifies the table in the JSON.
    fn id(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Cell => "cell",
            Self::Import => "import",
            Self::UpstreamCall => "call",
            Self::GatheredCalls => "gathered",
            Self::Output => "output",
            Self::RoundTrips => "round_trips",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RowOwner {
    Cove,
    Other,
}

/// One thing to measure. `time` does it once, checks its output, and returns how long it took.
struct ReportRow {
    table: ReportTable,
    owner: RowOwner,
    /// Identifies the row in the JSON.
    id: String,
    name: String,
    time: Box<dyn FnMut() -> Duration>,
}

impl ReportRow {
    fn new(
        owner: RowOwner,
        table: ReportTable,
        id: impl Into<String>,
        name: impl Into<String>,
        time: impl FnMut() -> Duration + 'static,
    ) -> Self {
        Self { table, owner, id: id.into(), name: name.into(), time: Box::new(time) }
    }

    fn of_cove(table: ReportTable, id: &str, name: &str, time: impl FnMut() -> Duration + 'static) -> Self {
        Self::new(RowOwner::Cove, table, id, name, time)
    }

    fn of_other(table: ReportTable, id: &str, name: &str, time: impl FnMut() -> Duration + 'static) -> Self {
        Self::new(RowOwner::Other, table, id, name, time)
    }
}

/// A peer that is not in the report, and the reason.
struct LeftOutPeer {
    peer: String,
    why: String,
}

fn main() {
    let mut numbers = std::env::args().skip(1).filter_map(|argument| argument.parse::<usize>().ok());
    let rounds = numbers.next().unwrap_or(40);
    let repeats = numbers.next().unwrap_or(3);
    let file = std::env::args().find(|argument| argument.ends_with(".json"));
    let load_before = load_averages();
    let (modules, import) = match processes::can_import("pandas") {
        true => (vec!["pandas"], DATA_FRAME.to_owned()),
        false => (STANDARD_MODULES.to_vec(), format!("import {}; {CODE}", STANDARD_MODULES.join(", "))),
    };

    let mut left_out = Vec::new();
    let found = StartablePeers::find(&mut left_out);
    let mut rows = processes::rows(&import, &mut left_out);
    rows.extend(cove_rows::rows(&import, &modules));
    rows.extend(http_rows::rows());
    rows.extend(round_trip_rows::rows());
    rows.extend(output_rows::rows());
    rows.extend(code_mode::rows(&found, &mut left_out));
    let mut versions = machine::versions();
    for engine in TestEngine::ALL {
        match engine.address("the benchmark `report`") {
            Some(address) => {
                versions.push((engine.name(), engine_rows::version(&address)));
                rows.extend(engine_rows::rows(engine, &address, &import));
                rows.extend(cove_rows::container_rows(engine, &address));
            }
            None => left_out.push(LeftOutPeer {
                peer: if engine == TestEngine::Docker { "Docker" } else { "Podman" }.to_owned(),
                why: "it did not run: only root can start the engines of the tests".to_owned(),
            }),
        }
    }
    let mut measured: Vec<Vec<Vec<f64>>> = vec![Vec::new(); rows.len()];
    for repeat in 0..repeats {
        eprintln!("repeat {} of {repeats}: {} rows, {rounds} rounds; load {}", repeat + 1, rows.len(), load());
        let times = interleave(rows.len(), rounds, |row| (rows[row].time)());
        for (all, times) in measured.iter_mut().zip(times) {
            // A round trip through a pipe takes a hundredth of a millisecond.
            all.push(times.iter().map(|time| (time * 10_000.0).round() / 10_000.0).collect());
        }
    }
    let load_after = load_averages();
    let rows_json: Vec<Value> = rows.iter().zip(&measured).map(|(row, repeats)| row_json(row, repeats)).collect();
    // The rows end here, with the containers and processes that they hold.
    drop(rows);
    let docker = TestEngine::Docker.address("the benchmark `report`");
    let report = json!({
        "date": chrono::Utc::now().format("%Y-%m-%d").to_string(),
        "cove": env!("CARGO_PKG_VERSION"),
        "commit": machine::commit(),
        "profile": machine::profile(),
        "machine": machine::facts(),
        "versions": versions.iter().map(|(name, version)| json!([name, version])).collect::<Vec<_>>(),
        "peers": found.facts(),
        "python": PYTHON,
        "modules": modules,
        "load_before": load_before,
        "load_after": load_after,
        "rounds": rounds,
        "warm_up": WARM_UP,
        "cells_per_turn": processes::CELLS,
        "calls_per_turn": code_dialects::CALLS,
        "round_trips_per_turn": round_trip_rows::ROUND_TRIPS,
        "long_calls_per_turn": round_trip_rows::CALLS,
        "rows": rows_json,
        "memory": memory::rows(&found, docker.as_deref(), repeats),
        "tool_lists": tool_lists::rows(&found),
        "left_out": left_out.iter().map(|one| json!([one.peer, one.why])).collect::<Vec<_>>(),
    });
    let text = one_row_per_line(&report);
    match file {
        Some(file) => std::fs::write(&file, text).expect("the measured times can be written"),
        None => print!("{text}"),
    }
}

/// Returns the averages over 1, 5 and 15 minutes, without the counts of processes that follow.
fn load_averages() -> String {
    load().split(' ').take(3).collect::<Vec<_>>().join(" ")
}

fn row_json(row: &ReportRow, repeats: &[Vec<f64>]) -> Value {
    let is_cove = row.owner == RowOwner::Cove;
    json!({"table": row.table.id(), "id": row.id, "name": row.name, "is_cove": is_cove, "repeats": repeats})
}

/// Returns the report with one line for each key, and for each row: a version control shows what changed.
fn one_row_per_line(report: &Value) -> String {
    let lines: Vec<String> = report
        .as_object()
        .expect("an object")
        .iter()
        .map(|(key, value)| match value.as_array() {
            Some(list) if list.iter().any(|one| !one.is_string()) => {
                let lines: Vec<String> = list.iter().map(|one| format!("\n    {one}")).collect();
                format!("  \"{key}\": [{}\n  ]", lines.join(","))
            }
            _ => format!("  \"{key}\": {value}"),
        })
        .collect();
    format!("{{\n{}\n}}\n", lines.join(",\n"))
}
