//! A call of code in a sandbox to the host and back, beside its floor: bytes through a bare `cat` in the same sandbox.
//! Both are timed by the code itself, one after the other in every round. The host answers at once.
//!
//! `cargo xtask bench call [ROUNDS]`

use std::sync::Arc;

use cove::backend::Pending;
use cove::output::Collector;
use cove::session::{Calls, Session};
use cove_testkit::measure::{self, percentile, ratio};

struct AtOnce;

impl Calls for AtOnce {
    fn answer<'a>(&'a self, _cell: CellId, _request: Vec<u8>) -> Pending<'a, Vec<u8>> {
        Box::pin(std::future::ready(br#"{"ok":{"value":1}}"#.to_vec()))
    }
}

const OPEN: &str = r#"
import os, socket, struct, subprocess, time
s = socket.socket(socket.AF_UNIX); s.connect(os.environ["COVE_MCP"])
cat = subprocess.Popen(["cat"], stdin=-1, stdout=-1)
to, back = cat.stdin.fileno(), cat.stdout.fileno()
ask = b'{"id":1,"ask":"call","server":"s","tool":"t","arguments":{}}'
ask = struct.pack(">I", len(ask)) + ask
now = time.perf_counter_ns
"#;

const ROUND: &str = r#"
for _ in range(ROUNDS):
    a = now(); s.sendall(ask); r = s.recv(4096); b = now()
    os.write(to, ask); os.read(back, 4096); c = now()
    print(b - a, c - b)
"#;

/// A cell may make a thousand calls.
const A_CELL: usize = 500;

fn main() {
    let rounds: usize = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(4000);
    println!("load average before: {}", measure::load());
    println!("{:<44} {:>9} {:>9} {:>9} {:>9}", "", "min us", "p50 us", "p99 us", "x pipe");
    for (name, runtime) in [
        ("one thread", tokio::runtime::Builder::new_current_thread().enable_all().build()),
        ("many threads", tokio::runtime::Builder::new_multi_thread().enable_all().build()),
    ] {
        let runtime = runtime.expect("a runtime");
        let config = measure::config();
        let jail = measure::jail(env!("CARGO_BIN_EXE_cove"));
        let (calls, pipes) = runtime.block_on(async {
            let session = measure::session(&jail, &config).await;
            run(&session, OPEN).await;
            let round = ROUND.replace("ROUNDS", &A_CELL.to_string());
            run(&session, &round).await;
            let (mut calls, mut pipes) = (Vec::new(), Vec::new());
            for _ in 0..rounds.div_ceil(A_CELL) {
                for line in run(&session, &round).await.lines() {
                    let (call, pipe) = line.split_once(' ').expect("two numbers");
                    let micros = |text: &str| text.parse::<f64>().expect("a number") / 1000.0;
                    calls.push(micros(call));
                    pipes.push(micros(pipe));
                }
            }
            session.stop().await;
            (calls, pipes)
        });
        for (what, times) in [("pipe round trip through cat", &pipes), ("call to the host and back", &calls)]
        {
            println!(
                "{:<44} {:>9.1} {:>9.1} {:>9.1} {:>9.2}",
                format!("{what}, {name}"),
                percentile(times, 0.0),
                percentile(times, 0.5),
                percentile(times, 0.99),
                ratio(times, &pipes)
            );
        }
    }
    println!("load average after: {}", measure::load());
}

async fn run(session: &Session, code: &str) -> String {
    let mut collector = Collector::new(1 << 20, None);
    let cell = measure::cell(&measure::config(), code);
    let end =
        session.run_with(cell, |shown| collector.show(shown), std::future::pending(), Arc::new(AtOnce)).await;
    assert!(end.is_success(), "{end:?}");
    collector.finish().stdout.text
}
