//! The line of a request under way: written when the request ends, and before its first byte if it sends something.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use cove_core::random::random_bits;

use crate::audit_line::{BEGUN, EgressAuditLine, EgressRecorder, LINE_KIND, RelayCounts};
use crate::egress_meter::EgressMeter;
use crate::gateway_services::GatewayServices;
use crate::refusal_notes::RefusalNotes;

/// The line of a request under way. Dropping it writes the line, also when the request is cut short.
pub(crate) struct OpenEgressLine {
    recorder: Arc<dyn EgressRecorder>,
    meter: Arc<dyn EgressMeter>,
    pub(crate) line: EgressAuditLine,
    pub(crate) counts: Arc<RelayCounts>,
    notes: Arc<RefusalNotes>,
    start: Instant,
}

impl OpenEgressLine {
    /// Begins a line of a cell, whose refusals `notes` has. Fails if it could not be written later.
    pub(crate) fn begin(
        services: &GatewayServices,
        line: EgressAuditLine,
        notes: &Arc<RefusalNotes>,
    ) -> io::Result<Self> {
        let (recorder, meter) = (Arc::clone(&services.recorder), Arc::clone(&services.meter));
        recorder.prepare()?;
        let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        let line = EgressAuditLine { time, kind: LINE_KIND.to_owned(), ..line };
        let (notes, start) = (Arc::clone(notes), Instant::now());
        Ok(Self { recorder, meter, line, counts: Arc::default(), notes, start })
    }

    /// Writes a line before the first byte leaves, which stays if this process is killed. Fails if it cannot be written.
    pub(crate) fn announce(&mut self) -> io::Result<()> {
        self.recorder.prepare()?;
        self.line.id = Some(format!("{:032x}", random_bits()));
        self.recorder.write(&EgressAuditLine { decision: BEGUN.to_owned(), ..self.line.clone() });
        Ok(())
    }
}

impl Drop for OpenEgressLine {
    fn drop(&mut self) {
        self.line.bytes_up = self.counts.up.load(Ordering::Relaxed);
        self.line.bytes_down = self.counts.down.load(Ordering::Relaxed);
        let status = self.counts.status.load(Ordering::Relaxed);
        self.line.status = Some(status).filter(|status| *status > 0 && self.line.method != "CONNECT");
        self.line.ms = self.start.elapsed().as_millis() as u64;
        let EgressAuditLine { host, port, decision, reason, .. } = &self.line;
        tracing::debug!(host, port, decision, reason, "network request ended");
        self.meter.request_ended(&self.line);
        self.notes.lines.write(&self.recorder, &self.line);
    }
}
