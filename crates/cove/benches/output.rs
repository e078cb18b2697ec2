//! One gigabyte of output from a cell into a result, beside a bare `cat` of the same, and the most memory the host had
//! resident meanwhile. Interleaved in one process.
//!
//! `cargo xtask bench output [MEGABYTES]`

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Instant;

use cove_core::output::{OutputCollector, Spool, SpoolBudget};
use cove_testkit::measure::{self, peak_kilobytes, percentile, ratio, reset_peak};

const ROUNDS: usize = 5;

fn main() {
    let megabytes: u64 = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(1024);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    println!("load average before: {}", measure::load());
    let config = measure::config();
    let jail = measure::jail(env!("CARGO_BIN_EXE_cove"));
    let session = runtime.block_on(measure::session(&jail, &config));
    let code = format!(
        "import sys\nline = b'x' * 1023 + b'\\n'\nblock = line * 64\n\
         for n in range({}): sys.stdout.buffer.write(block)\nsys.stdout.buffer.flush()",
        megabytes * 16
    );
    let (mut cells, mut cats, mut peaks) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        cats.push(cat(megabytes));
        reset_peak();
        let before = peak_kilobytes();
        let start = Instant::now();
        let spool = Spool::new(&SpoolBudget::default());
        let mut collector = OutputCollector::new(config.cell.max_output, Some(spool));
        let cell = measure::cell(&config, &code);
        let end = runtime.block_on(session.run(cell, |shown| collector.push(shown), std::future::pending()));
        let seconds = start.elapsed().as_secs_f64();
        assert!(end.is_success(), "{end:?}");
        let collected = collector.finish();
        let kept = collected.stdout.text.lines().filter(|line| line.starts_with('x')).count() as u64;
        assert_eq!(collected.stdout.left_out, megabytes * 1024 * 1024 - kept * 1024, "all of it was counted");
        assert!(
            collected.spool.is_some_and(|spool| spool.kept_bytes() + spool.dropped_bytes() == megabytes * 1024 * 1024)
        );
        cells.push(seconds);
        // The kernel counts pages of threads late, so the peak can be a little below the start.
        peaks.push(peak_kilobytes().saturating_sub(before) as f64);
    }
    runtime.block_on(session.stop());
    let speed = |times: &[f64]| megabytes as f64 / 1024.0 / percentile(times, 0.5);
    println!("{megabytes} MB, {ROUNDS} rounds{:>22} {:>13} {:>20}", "GB/s", "x cat", "host memory added");
    println!("{:<30} {:>10.2} {:>13.2}", "bare cat", speed(&cats), 1.0);
    println!(
        "{:<30} {:>10.2} {:>13.2} {:>17.0} kB",
        "cell into a result",
        speed(&cells),
        ratio(&cells, &cats),
        percentile(&peaks, 1.0)
    );
    println!("load average after: {}", measure::load());
}

/// Returns the seconds that it takes to read as many zeros from `cat`.
fn cat(megabytes: u64) -> f64 {
    let start = Instant::now();
    let mut source = Command::new("head")
        .args(["-c", &format!("{megabytes}M"), "/dev/zero"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("head starts");
    let mut cat = Command::new("cat")
        .stdin(source.stdout.take().expect("a pipe"))
        .stdout(Stdio::piped())
        .spawn()
        .expect("cat starts");
    let mut out = cat.stdout.take().expect("a pipe");
    let mut buffer = vec![0; 128 * 1024];
    let mut total = 0;
    loop {
        match out.read(&mut buffer).expect("cat writes") {
            0 => break,
            count => total += count as u64,
        }
    }
    assert_eq!(total, megabytes * 1024 * 1024);
    source.wait().expect("head ends");
    cat.wait().expect("cat ends");
    start.elapsed().as_secs_f64()
}
