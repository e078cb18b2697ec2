//! The network of one cell: serves its streams.

use std::sync::Arc;

use cove_core::BoxFuture;
use cove_core::guest_streams::{GuestStream, SessionTraffic};
use cove_core::session::{CallHandler, CallingCell, UnknownName};
use cove_protocol::CellId;

use crate::audit_line::NetworkCaller;
use crate::gateway::{EgressGateway, EgressOrigin, SessionContext};
use crate::refusal_notes::RefusalNotes;

/// Answers the calls of one cell through another handler, and serves its connections to the network.
pub struct CellNetwork {
    gateway: Arc<EgressGateway>,
    caller: NetworkCaller,
    calls: Arc<dyn CallHandler>,
    notes: Arc<RefusalNotes>,
}

impl CellNetwork {
    pub fn new(gateway: Arc<EgressGateway>, caller: NetworkCaller, calls: Arc<dyn CallHandler>) -> Arc<Self> {
        Arc::new(Self { gateway, caller, calls, notes: Arc::default() })
    }

    /// Returns a line for each refusal since the last call, at most five and a count.
    pub fn take_notes(&self) -> Vec<String> {
        self.notes.take()
    }
}

impl CallHandler for CellNetwork {
    fn answer<'a>(&'a self, cell: CallingCell, request: Vec<u8>) -> BoxFuture<'a, Vec<u8>> {
        self.calls.answer(cell, request)
    }

    fn serve_stream<'a>(&'a self, cell: CellId, stream: GuestStream) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let (id, door) = (stream.id(), stream.door().clone());
            let session = SessionContext {
                traffic: Arc::clone(stream.traffic()),
                identity: self.gateway.identity(stream.network()),
            };
            let origin = EgressOrigin { cell, stream: id, door, caller: &self.caller, notes: &self.notes };
            self.gateway.serve(stream, &origin, session).await;
        })
    }

    fn report_name(&self, cell: CellId, name: UnknownName, traffic: &SessionTraffic) {
        match name {
            UnknownName::One(name) => self.gateway.refuse_name(&name, cell, traffic, &self.caller, &self.notes),
            UnknownName::More(count) => self.notes.add_further(count),
        }
    }
}
