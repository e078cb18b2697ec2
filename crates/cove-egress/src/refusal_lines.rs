//! The audit lines of one cell's refusals. Code can be refused as fast as it asks, and must not push older lines out of the
//! audit file: a cell has so many lines of refusals, and the last one counts the rest.

use std::sync::{Arc, Mutex};

use cove_core::sync::lock;

use crate::audit_line::{EgressAuditLine, EgressRecorder, REFUSED};

/// Refusals of one cell that have lines of their own.
const MAX_LINES: usize = 200;

/// Writes the lines of one cell. The line that counts further refusals waits in `last`, with the room that was reserved for
/// it, until `end` or the drop writes it.
#[derive(Default)]
pub(crate) struct RefusalLines(Mutex<WrittenRefusals>);

#[derive(Default)]
struct WrittenRefusals {
    count: usize,
    last: Option<(Arc<dyn EgressRecorder>, EgressAuditLine)>,
}

impl RefusalLines {
    /// Writes a line for which room was reserved, or counts it in the last one if it is one refusal too many.
    pub(crate) fn write(&self, recorder: &Arc<dyn EgressRecorder>, line: &EgressAuditLine) {
        // What a line from before the first byte has announced needs its own end.
        if line.decision != REFUSED || line.id.is_some() {
            return recorder.write(line);
        }
        let mut written = lock(&self.0);
        let WrittenRefusals { count, last } = &mut *written;
        *count = count.saturating_add(1);
        match last {
            _ if *count <= MAX_LINES => recorder.write(line),
            Some((recorder, last)) => {
                last.further = Some(last.further.unwrap_or(0).saturating_add(1));
                recorder.release();
            }
            None => *last = Some((Arc::clone(recorder), line.clone())),
        }
    }

    /// Writes the last line. The next refusal is a first one.
    pub(crate) fn end(&self) {
        let WrittenRefusals { last, .. } = std::mem::take(&mut *lock(&self.0));
        if let Some((recorder, line)) = last {
            recorder.write(&line);
        }
    }
}

impl Drop for RefusalLines {
    fn drop(&mut self) {
        self.end();
    }
}
