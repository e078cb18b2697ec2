//! Log messages of upstream servers for code, by principal, session and server. They outlive a cell, so that the next
//! cell can read why the last one failed. Only those that were used last are kept, and no principal pushes out those of
//! another.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use cove_core::fair_room::least_recent_of_largest;
use cove_core::session::registry::Principal;
use cove_core::sync::lock;

use super::CallScope;
use crate::pool::CallLogs;

/// Logs that are kept, over all sessions and servers. Each has at most 64 KiB.
const MAX_LOGS: usize = 256;

#[derive(Default)]
pub(super) struct SessionLogs(Mutex<KnownLogs>);

/// The principal, the session and the server.
type LogKey = (Principal, String, String);

#[derive(Default)]
struct KnownLogs {
    /// With the number of the last use.
    logs: HashMap<LogKey, (Arc<CallLogs>, u64)>,
    uses: u64,
}

impl KnownLogs {
    /// Forgets the oldest logs of the principal that has most, so that no principal can push out those of another.
    fn make_room(&mut self) {
        let entries = self.logs.iter().map(|(key, (_, used))| (key, &key.0, *used));
        let oldest = least_recent_of_largest(entries).map(|(key, _)| key.clone());
        oldest.map(|key| self.logs.remove(&key));
    }
}

impl SessionLogs {
    /// Returns the logs of a server for a session.
    pub(super) fn open(&self, run: &CallScope, server: &str) -> Arc<CallLogs> {
        let mut known = lock(&self.0);
        known.uses += 1;
        let uses = known.uses;
        let key = (run.principal.clone(), run.session.clone(), server.to_owned());
        if known.logs.len() >= MAX_LOGS && !known.logs.contains_key(&key) {
            known.make_room();
        }
        let entry = known.logs.entry(key).or_insert_with(|| (CallLogs::new(&run.principal), uses));
        entry.1 = uses;
        Arc::clone(&entry.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_belong_to_one_session_and_server_and_are_bounded() {
        let logs = SessionLogs::default();
        let run = |principal: &str, session: &str| CallScope::new(Principal(principal.into()), session.into());
        let first = logs.open(&run("a", "s"), "x");
        assert!(Arc::ptr_eq(&first, &logs.open(&run("a", "s"), "x")));
        for (principal, session, server) in [("b", "s", "x"), ("a", "t", "x"), ("a", "s", "y")] {
            assert!(!Arc::ptr_eq(&first, &logs.open(&run(principal, session), server)));
        }
        for number in 0..10_000 {
            logs.open(&run("c", &number.to_string()), "x");
        }
        assert_eq!(lock(&logs.0).logs.len(), MAX_LOGS);
        assert!(Arc::ptr_eq(&first, &logs.open(&run("a", "s"), "x")), "the principal with most loses its own");
        let early = logs.open(&run("c", "9999"), "x");
        for number in 0..MAX_LOGS {
            logs.open(&run("c", &number.to_string()), "x");
        }
        assert!(!Arc::ptr_eq(&early, &logs.open(&run("c", "9999"), "x")), "the oldest were forgotten");
    }
}
