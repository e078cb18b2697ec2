//! Reports skipped tests. A test that cannot run here reports why, and is counted; in CI, and as root on Debian,
//! everything that can be set up must run.

use std::fs::OpenOptions;
use std::io::Write;

/// The beginning of the reason if a test needs what only that command sets up: the tests' engines and the outside
/// judges. Without `--all` such a test is left out, which is neither a skip nor a failure.
pub const NEEDS_ALL: &str = "it needs `cargo xtask test --all`";

/// Skips a test that needs an engine or an outside judge; `missing` says which.
pub fn skip_without_all(test: &str, missing: &str) {
    skip(test, &format!("{NEEDS_ALL}: {missing}"));
}

/// Reports that a test was skipped. Begin `reason` with `not on this machine:` if no set-up could change it.
pub fn skip(test: &str, reason: &str) {
    let line = format!("SKIPPED: {test} because {reason}\n");
    eprint!("{line}");
    if let Some(log) = std::env::var_os("COVE_SKIP_LOG") {
        let log = OpenOptions::new().append(true).create(true).open(log);
        // One write, so that lines of parallel tests do not mix.
        log.and_then(|mut log| log.write_all(line.as_bytes())).expect("the skip log can be written");
    }
}
