//! Progress of a long cell, told every few seconds to a client that asked for it: many clients give up on a call that
//! is silent for a minute.

use std::convert::Infallible;
use std::sync::Mutex;
use std::time::Duration;

use cove_protocol::Stream;
use rmcp::RoleServer;
use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::Peer;
use tokio::time::{Instant, interval_at};

use crate::output::harmless;
use crate::session::Shown;

const EVERY: Duration = Duration::from_secs(2);
/// Characters of the last line that are told.
const MAX_LINE: usize = 120;

pub(super) struct Progress {
    peer: Peer<RoleServer>,
    token: ProgressToken,
}

impl Progress {
    pub(super) fn new(peer: Peer<RoleServer>, token: ProgressToken) -> Self {
        Self { peer, token }
    }

    /// Tells until it is dropped. Seconds count up, so each is more than the one before.
    pub(super) async fn tell(&self, latest: &Latest) -> Infallible {
        let start = Instant::now();
        let mut ticks = interval_at(start + EVERY, EVERY);
        loop {
            ticks.tick().await;
            let elapsed = start.elapsed().as_secs_f64();
            let message = latest.line().unwrap_or_else(|| format!("running for {elapsed:.0} s"));
            let param = ProgressNotificationParam::new(self.token.clone(), elapsed).with_message(message);
            if self.peer.notify_progress(param).await.is_err() {
                // Nobody listens any more; the call's own end is another's matter.
                return std::future::pending().await;
            }
        }
    }
}

/// The last whole or begun line that a cell wrote.
#[derive(Default)]
pub(super) struct Latest(Mutex<Vec<u8>>);

impl Latest {
    pub(super) fn show(&self, shown: &Shown<'_>) {
        let Shown::Text(Stream::Stdout | Stream::Stderr, bytes) = shown else { return };
        // Only the end of a piece can be its last line.
        let mut line = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let text = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let start = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        line.clear();
        line.extend_from_slice(&text[start..][..(text.len() - start).min(4 * MAX_LINE)]);
    }

    /// Words of ours, in place of a line.
    pub(super) fn say(&self, words: &str) {
        self.show(&Shown::Text(Stream::Stdout, words.as_bytes()));
    }

    fn line(&self) -> Option<String> {
        let bytes = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        let line: String = harmless(bytes).trim().chars().take(MAX_LINE).collect();
        (!line.is_empty()).then_some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_short_and_harmless() {
        let latest = Latest::default();
        assert_eq!(latest.line(), None);
        latest.show(&Shown::Text(Stream::Stdout, b"one\ntwo\n"));
        assert_eq!(latest.line().as_deref(), Some("two"));
        latest.show(&Shown::Text(Stream::Stdout, b"\x1b[2J50 %"));
        assert_eq!(latest.line().as_deref(), Some("50 %"));
        latest.show(&Shown::Text(Stream::Stderr, &[b'x'; 100_000]));
        assert_eq!(latest.line().map(|line| line.len()), Some(MAX_LINE));
        latest.show(&Shown::Text(Stream::Stdout, b"\n"));
        assert_eq!(latest.line(), None);
    }
}
