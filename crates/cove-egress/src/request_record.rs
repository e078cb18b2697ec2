//! The record of one inspected request.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use cove_core::sync::lock;
use http::StatusCode;

use crate::audit_line::EgressAuditLine;
use crate::open_line::OpenEgressLine;
use crate::refusal::{EgressRefusal, RefusalReason};
use crate::refusal_notes::RefusalNotes;
use crate::relay::RelayMeter;

/// What one request has done, for its audit line and the cell. Its last owner, usually the body of the answer, ends it.
pub(crate) struct RequestRecord {
    pub(crate) meter: RelayMeter,
    line: Mutex<OpenEgressLine>,
    notes: Arc<RefusalNotes>,
    shown: String,
}

impl RequestRecord {
    /// `shown` is the request as refusals name it.
    pub(crate) fn new(meter: RelayMeter, line: OpenEgressLine, notes: Arc<RefusalNotes>, shown: String) -> Arc<Self> {
        Arc::new(Self { meter, line: Mutex::new(line), notes, shown })
    }

    pub(crate) fn update(&self, change: impl FnOnce(&mut EgressAuditLine)) {
        change(&mut lock(&self.line).line);
    }

    /// Writes a line before the first byte leaves. Fails with the refusal if that cannot be.
    pub(crate) fn announce(&self) -> Result<(), EgressRefusal> {
        lock(&self.line).announce().map_err(|error| EgressRefusal::not_recorded(self.shown.clone(), &error))
    }

    pub(crate) fn set_status(&self, status: StatusCode) {
        lock(&self.line).counts.status.store(status.as_u16(), Ordering::Relaxed);
    }

    pub(crate) fn refuse(&self, refusal: &EgressRefusal) {
        self.update(|line| line.end_with(refusal.reason));
        self.notes.add(refusal);
    }

    /// A limit ended the request after its answer began.
    pub(crate) fn break_off(&self, name: &str, hint: &str) {
        self.refuse(&EgressRefusal {
            reason: RefusalReason::Limit,
            target: self.shown.clone(),
            cause: format!("the request was ended (limit: {name})"),
            hint: hint.to_owned(),
        });
    }
}
