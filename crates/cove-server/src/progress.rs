//! Progress reports of a long call, for a client that asked for them. Many clients give up on a call that is silent
//! for a minute.
//!
//! Two parties share a [`LatestLine`]: the running cell or preparation writes its last line of output or a status
//! message, and [`ProgressReporter::report`] reads it every `REPORT_INTERVAL`. The call polls the reporter beside its
//! work in one `select!` and drops it when the work ends, so no report follows the answer. A reporter that waits for
//! a slow client does not delay the work.

use std::convert::Infallible;
use std::sync::Mutex;
use std::time::Duration;

use cove_protocol::OutputStream;
use rmcp::RoleServer;
use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::Peer;
use tokio::time::{Instant, interval_at};

use cove_core::output::{CellOutput, neutralise};
use cove_core::sync::lock;

const REPORT_INTERVAL: Duration = Duration::from_secs(2);
/// Most characters of a line in a report.
const MAX_LINE: usize = 120;

/// Sends progress reports for one call to its client. A call that takes several requests reports to the current one.
#[derive(Default)]
pub(super) struct ProgressReporter(Mutex<Option<(Peer<RoleServer>, ProgressToken)>>);

impl ProgressReporter {
    pub(super) fn new(peer: Peer<RoleServer>, token: ProgressToken) -> Self {
        Self(Mutex::new(Some((peer, token))))
    }

    /// Reports to the client of another reporter from now on, or to none.
    pub(super) fn follow(&self, other: Option<Self>) {
        let target = other.and_then(|other| lock(&other.0).take());
        *lock(&self.0) = target;
    }

    /// Sends reports until the caller drops it. The value is the elapsed seconds, which always increase, as the
    /// protocol requires.
    pub(super) async fn report(&self, latest: &LatestLine) -> Infallible {
        let start = Instant::now();
        let mut ticks = interval_at(start + REPORT_INTERVAL, REPORT_INTERVAL);
        loop {
            ticks.tick().await;
            let elapsed = start.elapsed().as_secs_f64();
            let message = latest.line().unwrap_or_else(|| format!("running for {elapsed:.0} s"));
            let Some((peer, token)) = lock(&self.0).clone() else { continue };
            let param = ProgressNotificationParam::new(token, elapsed).with_message(message);
            // Fails if the client is gone. Ending the call is up to its cancellation.
            let _ = peer.notify_progress(param).await;
        }
    }
}

/// The last line that a cell wrote, complete or not.
#[derive(Default)]
pub(super) struct LatestLine(Mutex<Vec<u8>>);

impl LatestLine {
    /// Keeps the last line of `shown`, if it is text.
    pub(super) fn push(&self, shown: &CellOutput<'_>) {
        let CellOutput::Text(OutputStream::Stdout | OutputStream::Stderr, bytes) = shown else { return };
        // Only the end of the bytes can be the last line.
        let mut line = lock(&self.0);
        let text = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let start = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        line.clear();
        line.extend_from_slice(&text[start..][..(text.len() - start).min(4 * MAX_LINE)]);
    }

    /// Sets a status message of Cove in place of an output line.
    pub(super) fn set_message(&self, words: &str) {
        self.push(&CellOutput::Text(OutputStream::Stdout, words.as_bytes()));
    }

    fn line(&self) -> Option<String> {
        let bytes = lock(&self.0).clone();
        let line: String = neutralise(bytes).trim().chars().take(MAX_LINE).collect();
        (!line.is_empty()).then_some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_line_is_short_and_neutralised() {
        let latest = LatestLine::default();
        assert_eq!(latest.line(), None);
        latest.push(&CellOutput::Text(OutputStream::Stdout, b"one\ntwo\n"));
        assert_eq!(latest.line().as_deref(), Some("two"));
        latest.push(&CellOutput::Text(OutputStream::Stdout, b"\x1b[2J50 %"));
        assert_eq!(latest.line().as_deref(), Some("50 %"));
        latest.push(&CellOutput::Text(OutputStream::Stderr, &[b'x'; 100_000]));
        assert_eq!(latest.line().map(|line| line.len()), Some(MAX_LINE));
        latest.push(&CellOutput::Text(OutputStream::Stdout, b"\n"));
        assert_eq!(latest.line(), None);
    }
}
