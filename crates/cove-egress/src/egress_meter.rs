//! What the operator's metrics learn of the network: counts without hosts, which code chooses.

use crate::audit_line::EgressAuditLine;

/// Where bytes go, seen from the code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RelayDirection {
    Up,
    Down,
}

/// Counts what happens. Any task may call it.
pub trait EgressMeter: Send + Sync {
    /// Counts a connection of code that is open until `stream_closed`.
    fn stream_opened(&self);
    fn stream_closed(&self);
    /// A server was connected to, after so many seconds.
    fn server_connected(&self, seconds: f64);
    fn bytes_moved(&self, direction: RelayDirection, count: u64);
    /// A request has ended. Its line names a host, which is no label.
    fn request_ended(&self, line: &EgressAuditLine);
}

/// For programs without metrics.
pub(crate) struct NoMeter;

impl EgressMeter for NoMeter {
    fn stream_opened(&self) {}
    fn stream_closed(&self) {}
    fn server_connected(&self, _: f64) {}
    fn bytes_moved(&self, _: RelayDirection, _: u64) {}
    fn request_ended(&self, _: &EgressAuditLine) {}
}

/// A connection of code that is open.
pub(crate) struct OpenStreamGuard<'a>(&'a dyn EgressMeter);

impl<'a> OpenStreamGuard<'a> {
    pub(crate) fn new(meter: &'a dyn EgressMeter) -> Self {
        meter.stream_opened();
        Self(meter)
    }
}

impl Drop for OpenStreamGuard<'_> {
    fn drop(&mut self) {
        self.0.stream_closed();
    }
}
