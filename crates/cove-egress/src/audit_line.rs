//! What is recorded of each request: one line, refused or not. A request that cannot be recorded is not made.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use cove_core::random::random_bits;
use serde::{Deserialize, Serialize};

use crate::egress_meter::EgressMeter;
use crate::gateway_services::GatewayServices;

/// Who makes the requests of a cell, for the rules and the audit file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetworkCaller {
    pub principal: String,
    pub session: String,
    /// The image of the session.
    pub image: Option<String>,
}

/// The kind of these lines; others stand in the same file.
pub(crate) const LINE_KIND: &str = "net";
/// The decision of a line from before the first byte.
const BEGUN: &str = "begun";

/// How Cove handles a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EgressMode {
    /// It could not be read.
    #[default]
    Unread,
    /// A name that code asked for.
    Lookup,
    /// Plain HTTP.
    Http,
    /// TLS that passes.
    Tunnel,
    /// Any bytes.
    Tcp,
    /// TLS ends here.
    Inspect,
}

impl EgressMode {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unread => "unread",
            Self::Lookup => "lookup",
            Self::Http => "http",
            Self::Tunnel => "tunnel",
            Self::Tcp => "tcp",
            Self::Inspect => "inspect",
        }
    }
}

/// One request of code to the network.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressAuditLine {
    /// Milliseconds since 1970.
    pub time: u64,
    /// Always `net`.
    pub kind: String,
    pub principal: String,
    pub session: String,
    pub cell: u64,
    pub stream: u64,
    /// Through which door of the sandbox it came: `proxy` or `name`.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub door: String,
    #[serde(default)]
    pub mode: EgressMode,
    /// Stands in both lines of a request that sends something: the one from before its first byte, and the one of its end.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub id: Option<String>,
    pub host: String,
    pub port: u16,
    /// The address that was connected to.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub address: Option<String>,
    /// `CONNECT` for a connection that Cove passes on, `LOOKUP` for a name, or the method of a request that Cove could read.
    pub method: String,
    /// Of a request that Cove could read, without its query.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub path: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub rule: Option<String>,
    /// Names of the credentials that Cove added.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub credential: Option<String>,
    /// `allowed` or `refused`, or `begun` in a line from before the first byte.
    pub decision: String,
    /// Why it was refused, or why it ended early.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<String>,
    /// The status of the answer to a request that Cove could read.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub status: Option<u16>,
    /// True if the answer was a download that another session had made.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub cached: bool,
    pub bytes_up: u64,
    pub bytes_down: u64,
    pub ms: u64,
}

impl EgressAuditLine {
    /// True for the line from before the first byte.
    pub fn is_beginning(&self) -> bool {
        self.decision == BEGUN
    }
}

/// Writes audit lines.
pub trait EgressRecorder: Send + Sync {
    /// Makes sure that a line can be written. Fails if it cannot; then the request is not made. Each success is followed
    /// by one `write`.
    fn prepare(&self) -> io::Result<()>;

    /// Writes the line of a request that has ended, or that begins to send.
    fn write(&self, line: &EgressAuditLine);
}

/// What a connection has moved so far. The relay adds to it, and the line takes it when the request ends or is cut short.
#[derive(Debug, Default)]
pub(crate) struct RelayCounts {
    pub(crate) up: AtomicU64,
    pub(crate) down: AtomicU64,
    /// The status of the answer; 0 before there is one.
    pub(crate) status: AtomicU16,
}

/// The line of a request under way. Dropping it writes the line, also when the request is cut short.
pub(crate) struct OpenEgressLine {
    recorder: Arc<dyn EgressRecorder>,
    meter: Arc<dyn EgressMeter>,
    pub(crate) line: EgressAuditLine,
    pub(crate) counts: Arc<RelayCounts>,
    start: Instant,
}

impl OpenEgressLine {
    /// Begins a line. Fails if it could not be written later.
    pub(crate) fn begin(services: &GatewayServices, line: EgressAuditLine) -> io::Result<Self> {
        let (recorder, meter) = (Arc::clone(&services.recorder), Arc::clone(&services.meter));
        recorder.prepare()?;
        let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        let line = EgressAuditLine { time, kind: LINE_KIND.to_owned(), ..line };
        Ok(Self { recorder, meter, line, counts: Arc::default(), start: Instant::now() })
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
        self.recorder.write(&self.line);
    }
}
