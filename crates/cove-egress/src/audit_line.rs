//! What is recorded of each request: one line, refused or not. A request that cannot be recorded is not made.

use std::io;
use std::sync::atomic::{AtomicU16, AtomicU64};

use serde::{Deserialize, Serialize};

use crate::refusal::RefusalReason;

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
pub(crate) const BEGUN: &str = "begun";
/// What the rules say.
pub(crate) const ALLOWED: &str = "allowed";
pub(crate) const REFUSED: &str = "refused";

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
    /// What the rules say: `allowed` or `refused`. Or `begun`, in a line from before the first byte.
    pub decision: String,
    /// Why the rules refused it; or why it failed, or ended early, although they allow it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<String>,
    /// How many further requests of the cell were refused and have no line of their own.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub further: Option<u64>,
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
    pub(crate) fn allow(&mut self) {
        ALLOWED.clone_into(&mut self.decision);
    }

    /// Notes why the request was not carried out, or not to its end.
    pub(crate) fn end_with(&mut self, reason: RefusalReason) {
        self.reason = Some(reason.as_str().to_owned());
        if reason.is_decision() {
            REFUSED.clone_into(&mut self.decision);
        }
    }

    /// True if the rules refused the request.
    pub fn is_refused(&self) -> bool {
        self.decision == REFUSED
    }

    /// True for the line from before the first byte.
    pub fn is_beginning(&self) -> bool {
        self.decision == BEGUN
    }
}

/// Writes audit lines.
pub trait EgressRecorder: Send + Sync {
    /// Makes sure that a line can be written. Fails if it cannot; then the request is not made. Each success is followed
    /// by one `write` or `release`.
    fn prepare(&self) -> io::Result<()>;

    /// Gives back the room of a line that is not written. Does nothing unless room is reserved.
    fn release(&self) {}

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
