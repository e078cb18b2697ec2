//! A test that cannot run here says why and is counted; what can be set up, as root on Debian and in CI, must not be
//! skipped.

use std::fs::OpenOptions;
use std::io::Write;

/// `reason` begins with `not on this machine:` where no set-up could change it.
pub fn skip(test: &str, reason: &str) {
    let line = format!("SKIPPED: {test} because {reason}\n");
    eprint!("{line}");
    if let Some(log) = std::env::var_os("COVE_SKIP_LOG") {
        let log = OpenOptions::new().append(true).create(true).open(log);
        // One write, so that lines of tests that run side by side do not mix.
        log.and_then(|mut log| log.write_all(line.as_bytes())).expect("the skip log can be written");
    }
}
