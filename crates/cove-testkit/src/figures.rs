//! Figures that tests measure, and how much they measure. The test harness shows only what a failed test prints, so
//! figures go to a file too, which `cargo xtask test --full` prints at its end.

use std::fs::OpenOptions;
use std::io::Write;

/// Returns how much a long test does: `full` in `cargo xtask test --full`, otherwise a sample.
pub fn sample_size(sample: usize, full: usize) -> usize {
    if std::env::var_os("COVE_TEST_FULL").is_some() { full } else { sample }
}

/// Prints a line of figures.
pub fn print_figures(line: &str) {
    eprintln!("{line}");
    if let Some(log) = std::env::var_os("COVE_FIGURES_LOG") {
        let log = OpenOptions::new().append(true).create(true).open(log);
        // One write, so that lines of parallel tests do not mix.
        log.and_then(|mut log| log.write_all(format!("{line}\n").as_bytes())).expect("the figures can be written");
    }
}
