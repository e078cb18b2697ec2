//! A server that a test has started: its process, which ends with it, and what it writes to standard error.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::TIMEOUT;

/// A process that is killed when this is dropped.
pub(super) struct TestServerProcess {
    pub(super) child: Child,
    errors: Arc<Mutex<String>>,
}

impl TestServerProcess {
    /// Starts a server, whose standard error a thread reads all the time, so that the test never blocks it.
    pub(super) fn start(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().expect("the server can be started");
        let mut diagnostics = child.stderr.take().expect("standard error is a pipe");
        let errors = Arc::new(Mutex::new(String::new()));
        let kept = Arc::clone(&errors);
        thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(count @ 1..) = diagnostics.read(&mut piece) {
                let text = String::from_utf8_lossy(&piece[..count]);
                kept.lock().unwrap_or_else(PoisonError::into_inner).push_str(&text);
            }
        });
        Self { child, errors }
    }

    /// Returns what the server has written to standard error so far.
    pub(super) fn errors(&self) -> String {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the exit status of a server that has ended.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("the server can be waited for")
    }

    /// Waits until the server has ended by itself.
    pub(super) fn wait(&mut self) -> ExitStatus {
        self.poll("end", Self::ended)
    }

    /// Tries something until it succeeds. Panics with "the server does not …" after a long time.
    pub(super) fn poll<T>(&mut self, what: &str, mut attempt: impl FnMut(&mut Self) -> Option<T>) -> T {
        let until = Instant::now() + TIMEOUT;
        loop {
            if let Some(result) = attempt(self) {
                return result;
            }
            assert!(Instant::now() < until, "the server does not {what}: {}", self.errors());
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for TestServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
