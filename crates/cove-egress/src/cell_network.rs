//! The network of one cell: serves its streams, and keeps a note of each refusal for the cell's result, because many
//! clients hide why a proxy refused them.

use std::sync::{Arc, Mutex};

use cove_core::BoxFuture;
use cove_core::guest_streams::GuestStream;
use cove_core::session::{CallHandler, CallingCell};
use cove_core::sync::lock;
use cove_protocol::CellId;

use crate::gateway::EgressGateway;
use crate::refusal::EgressRefusal;

/// Notes in one result.
const MAX_NOTES: usize = 5;

/// Who makes the requests of a cell, for the audit file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkCaller {
    pub principal: String,
    pub session: String,
}

/// Answers the calls of one cell through another handler, and serves its connections to the network.
pub struct CellNetwork {
    gateway: Arc<EgressGateway>,
    caller: NetworkCaller,
    calls: Arc<dyn CallHandler>,
    notes: RefusalNotes,
}

/// The refusals of one cell.
#[derive(Default)]
pub(crate) struct RefusalNotes(Mutex<(Vec<String>, usize)>);

impl RefusalNotes {
    /// Adds a refusal, unless the same one is there.
    pub(crate) fn add(&self, refusal: &EgressRefusal) {
        let mut notes = lock(&self.0);
        let (texts, more) = &mut *notes;
        let text = refusal.to_string();
        if texts.contains(&text) {
        } else if texts.len() < MAX_NOTES {
            texts.push(text);
        } else {
            *more += 1;
        }
    }

    /// Returns the notes and forgets them.
    pub(crate) fn take(&self) -> Vec<String> {
        let (mut texts, more) = std::mem::take(&mut *lock(&self.0));
        if more > 0 {
            texts.push(format!("network: {more} further requests were refused"));
        }
        texts
    }
}

impl CellNetwork {
    pub fn new(gateway: Arc<EgressGateway>, caller: NetworkCaller, calls: Arc<dyn CallHandler>) -> Arc<Self> {
        Arc::new(Self { gateway, caller, calls, notes: RefusalNotes::default() })
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
            let (id, traffic) = (stream.id(), Arc::clone(stream.traffic()));
            self.gateway.serve(stream, (cell, id), &traffic, &self.caller, &self.notes).await;
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refusal::RefusalReason;

    #[test]
    fn notes_are_few_and_each_is_there_once() {
        let notes = RefusalNotes::default();
        for number in [1, 1, 2, 3, 4, 5, 6, 7] {
            notes.add(&EgressRefusal {
                reason: RefusalReason::HostNotAllowed,
                target: format!("h{number}.test:443"),
                cause: "no rule".into(),
                hint: "add one".into(),
            });
        }
        let taken = notes.take();
        assert_eq!((taken.len(), taken[5].as_str()), (6, "network: 2 further requests were refused"));
        assert_eq!(taken[1], "network: refused h2.test:443 (no rule; add one)");
        assert!(notes.take().is_empty());
    }
}
