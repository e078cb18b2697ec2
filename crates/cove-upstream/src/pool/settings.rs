//! Settings of the pool besides the definitions: Cove's environment, and all limits.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::failure_records::FailureRecords;
use super::sign_in::SignInRecords;
use crate::definition::DEFAULT_START_TIMEOUT;
use crate::secrets::SecretStore;
use cove_core::process_env::ProcessEnv;

#[derive(Debug, Clone)]
pub struct UpstreamSettings {
    /// Cove's own environment, for `${VAR}` and for the few variables that every server inherits.
    pub env: BTreeMap<String, OsString>,
    /// True if a person at a terminal can answer a program that asks for a password.
    pub has_terminal: bool,
    /// The working directory of servers whose definition names none.
    pub cwd: PathBuf,
    /// The root reported to a server that asks for roots. `None` reports no roots: `server-filesystem` would replace
    /// the directories of its command line with the reported ones.
    pub root: Option<PathBuf>,
    /// Cove's own executable, to detect a definition that starts it.
    pub executable: Option<PathBuf>,
    /// Where `${secret:NAME}` finds its value.
    pub secrets: SecretStore,
    /// Where failures are recorded for other processes.
    pub failures: FailureRecords,
    /// Where sign-ins are kept.
    pub sign_ins: SignInRecords,
    /// For a call without a timeout of its own.
    pub call_timeout: Duration,
    /// From the start of a process to its first answer, for a server whose definition does not say.
    pub start_timeout: Duration,
    /// How long the first message of the modern era may stay unanswered before Cove tries the legacy era.
    pub discover_timeout: Duration,
    /// The pool stops a server that was idle for this long.
    pub idle_timeout: Duration,
    /// The wait after each step of a stop: end of input, SIGTERM, SIGKILL.
    pub grace: Duration,
    /// The same when Cove itself exits. Clients wait for that, most of them for two seconds.
    pub closing_grace: Duration,
    /// The delay before the second start in a row. Each further failure doubles it.
    pub back_off: Duration,
    pub max_back_off: Duration,
    /// After this many failures in a row, the pool does not start the server for `breaker_pause`.
    pub max_failures: u32,
    pub breaker_pause: Duration,
    /// True if every principal has a process or connection of its own to each server whose definition does not say.
    pub isolate: bool,
    /// True once a client announced that its model can be asked. Servers that start later learn of it.
    pub sampling: Arc<AtomicBool>,
}

impl UpstreamSettings {
    /// The environment for programs that Cove itself asks for values.
    pub(super) fn process_env(&self) -> ProcessEnv {
        ProcessEnv { env: self.env.clone(), cwd: self.cwd.clone(), stdin_is_terminal: self.has_terminal }
    }

    pub fn from_env(env: &ProcessEnv) -> Self {
        Self {
            env: env.env.clone(),
            has_terminal: env.stdin_is_terminal,
            cwd: env.cwd.clone(),
            root: None,
            executable: std::env::current_exe().ok(),
            secrets: SecretStore::default(),
            failures: FailureRecords::default(),
            sign_ins: SignInRecords::default(),
            call_timeout: Duration::from_secs(60),
            start_timeout: DEFAULT_START_TIMEOUT,
            // Python servers need up to 10 s here, some more. After this time Cove tries the legacy era as well.
            discover_timeout: Duration::from_secs(25),
            idle_timeout: Duration::from_secs(600),
            grace: Duration::from_secs(2),
            closing_grace: Duration::from_millis(500),
            back_off: Duration::from_millis(100),
            max_back_off: Duration::from_secs(30),
            max_failures: 5,
            breaker_pause: Duration::from_secs(30),
            isolate: false,
            sampling: Arc::default(),
        }
    }
}
