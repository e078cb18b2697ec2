//! Writes the audit lines of network requests to the file that has those of calls.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use cove_egress::{EgressAuditLine, EgressGateway, EgressRecorder, EgressRules, SystemResolver};
use cove_upstream::broker::audit::AuditTrail;

/// More than a line can have: its names, its path and its rule are bounded.
const LINE_ROOM: u64 = 4096;

struct NetworkAudit(AuditTrail<EgressAuditLine>);

impl EgressRecorder for NetworkAudit {
    fn prepare(&self) -> io::Result<()> {
        self.0.prepare(LINE_ROOM)
    }

    fn write(&self, line: &EgressAuditLine) {
        self.0.write(line.clone(), LINE_ROOM);
    }
}

/// Returns the gateway for sessions with these rules, or None if they allow nothing. Without a state directory, nothing
/// is recorded, as for calls.
pub fn open_gateway(rules: &EgressRules, state_dir: Option<PathBuf>) -> Option<Arc<EgressGateway>> {
    let audit = || Arc::new(NetworkAudit(AuditTrail::new(state_dir)));
    rules.allow_anything().then(|| EgressGateway::new(rules.clone(), audit(), Box::new(SystemResolver)))
}
