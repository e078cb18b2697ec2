//! A cell in a running session, beside its floor: a line through a bare `cat` and back. Interleaved in one process.
//!
//! `cargo xtask bench cell [ROUNDS]`

use std::time::Instant;

use cove_testkit::measure::{self, percentile, ratio};
use cove_testkit::pipes::EchoPipe;

const WARM_UP: usize = 50;

fn main() {
    let rounds = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(2000);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    println!("load average before: {}", measure::load());
    let config = measure::config();
    let jail = measure::jail(env!("CARGO_BIN_EXE_cove"));
    let session = runtime.block_on(measure::session(&jail, &config));
    let mut cat = EchoPipe::start();
    let run = |code: &str| {
        let start = Instant::now();
        let end = runtime.block_on(session.run(measure::cell(&config, code), |_| {}, std::future::pending()));
        assert!(end.is_success(), "{end:?}");
        start.elapsed().as_secs_f64() * 1e6
    };
    run("x = 0");
    let (mut cells, mut pipes) = (Vec::new(), Vec::new());
    for round in 0..rounds + WARM_UP {
        let cell = run("x += 1");
        let pipe = cat.round_trip().as_secs_f64() * 1e6;
        if round >= WARM_UP {
            cells.push(cell);
            pipes.push(pipe);
        }
    }
    run(&format!("assert x == {}", rounds + WARM_UP));
    runtime.block_on(session.stop());
    println!("{:<28} {:>9} {:>9} {:>9} {:>13}", "", "min us", "p50 us", "p99 us", "x pipe");
    for (name, times) in [("pipe round trip through cat", &pipes), ("cell in a live session", &cells)] {
        println!(
            "{name:<28} {:>9.1} {:>9.1} {:>9.1} {:>13.2}",
            percentile(times, 0.0),
            percentile(times, 0.5),
            percentile(times, 0.99),
            ratio(times, &pipes)
        );
    }
    println!("load average after: {}", measure::load());
}
