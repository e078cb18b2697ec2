//! What the pool goes by, beside the definitions: the process around Cove and the bounds of everything.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::config::Surroundings;

#[derive(Debug, Clone)]
pub struct Settings {
    /// Cove's own environment: for `${VAR}`, and the few variables that every server gets.
    pub env: BTreeMap<String, OsString>,
    /// Where servers start when they do not say.
    pub cwd: PathBuf,
    /// What a server that asks for roots is told. Without one it is told of none: `server-filesystem` would give up the
    /// directories of its own command line for it.
    pub root: Option<PathBuf>,
    /// Our own program, so that a definition which starts it is noticed.
    pub executable: Option<PathBuf>,
    /// For a call that says nothing else.
    pub call_timeout: Duration,
    /// From the start of a process to its first answer.
    pub start_timeout: Duration,
    /// How long the first message of the newer era may stay unanswered before the older one is tried.
    pub discover_timeout: Duration,
    /// A server that nobody calls is stopped after this.
    pub idle: Duration,
    /// Between each of: end of input, SIGTERM, SIGKILL.
    pub grace: Duration,
    /// The same when Cove itself ends: whoever started it waits, most for two seconds.
    pub closing: Duration,
    /// Before the second start in a row; doubles.
    pub back_off: Duration,
    pub back_off_most: Duration,
    /// So many failures in a row, and nothing is started for `breaker`.
    pub failures_most: u32,
    pub breaker: Duration,
}

impl Settings {
    pub fn of(around: &Surroundings) -> Self {
        Self {
            env: around.env.clone(),
            cwd: around.cwd.clone(),
            root: None,
            executable: std::env::current_exe().ok(),
            call_timeout: Duration::from_secs(60),
            start_timeout: Duration::from_secs(60),
            // Python servers take up to 10 s here, some more; whoever is silent for longer is asked in the older way.
            discover_timeout: Duration::from_secs(25),
            idle: Duration::from_secs(600),
            grace: Duration::from_secs(2),
            closing: Duration::from_millis(500),
            back_off: Duration::from_millis(100),
            back_off_most: Duration::from_secs(30),
            failures_most: 5,
            breaker: Duration::from_secs(30),
        }
    }
}
