//! Finds the call to which a question of a server belongs, and answers it as part of that call.
//!
//! Three tasks take part. The task of a call creates a [`QuestionInbox`], whose [`CallAddress`] travels inside the request
//! like a progress sink. The transport calls `register` before it writes the request, so that the router knows the call
//! by its request id. When the server asks, rmcp's task for that request finds the address in `ask`, sends the question
//! to the inbox and waits for the reply. The inbox belongs to the future of the call, so a question ends with its call:
//! when the call is answered, cancelled or dropped, the inbox withdraws the question from the client.

use std::sync::{Arc, Mutex};

use rmcp::ErrorData;
use rmcp::model::{ClientRequest, Extensions, GetExtensions, RequestId};
use rmcp::service::InboundStreamOrigin;
use serde_json::{Map, Value};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::error::UpstreamError;
use super::questions::{CallQuestions, MAX_QUESTIONS};
use cove_core::session::CellClock;
use cove_core::sync::lock;

/// A question on its way from rmcp's task to the call.
struct OpenQuestion {
    method: String,
    params: Map<String, Value>,
    /// Closed if the server withdraws the question.
    reply: oneshot::Sender<Result<Value, String>>,
}

/// Where the questions of one call go. It travels through rmcp as an extension of the request.
#[derive(Clone)]
struct CallAddress {
    questions: CallQuestions,
    inbox: mpsc::Sender<OpenQuestion>,
    /// The clock of the call's own timeout.
    clock: CellClock,
}

/// The questions to one call, owned by the future of the call.
pub(super) struct QuestionInbox {
    server: String,
    address: CallAddress,
    questions: mpsc::Receiver<OpenQuestion>,
}

impl QuestionInbox {
    /// Creates the inbox of a call and puts its address into the request.
    pub(super) fn attach(
        request: &mut ClientRequest,
        server: &str,
        questions: CallQuestions,
        clock: CellClock,
    ) -> Self {
        let (inbox, receiver) = mpsc::channel(MAX_QUESTIONS);
        let address = CallAddress { questions, inbox, clock };
        request.extensions_mut().insert(address.clone());
        Self { server: server.to_owned(), address, questions: receiver }
    }

    /// Answers the server's questions. Returns only if one has no answer that the call could go on with.
    pub(super) async fn answer_all(&mut self) -> UpstreamError {
        let mut open = JoinSet::new();
        loop {
            tokio::select! {
                // `self.address` keeps the channel open.
                Some(question) = self.questions.recv() => {
                    let (server, address) = (self.server.clone(), self.address.clone());
                    open.spawn(async move { answer(&server, &address, question).await });
                }
                answered = open.join_next(), if !open.is_empty() => {
                    if let Some(Ok(Some(failure))) = answered {
                        return failure;
                    }
                }
            }
        }
    }
}

/// Answers one question, unless the server withdraws it. Returns the failure with which the call must end, if any: the
/// code, not the server, must learn that a person's input is missing.
async fn answer(server: &str, address: &CallAddress, question: OpenQuestion) -> Option<UpstreamError> {
    let OpenQuestion { method, params, mut reply } = question;
    let _pause = address.clock.pause();
    let answer = tokio::select! {
        answer = address.questions.ask(server, &method, params) => answer,
        () = reply.closed() => return None,
    };
    // If the server has withdrawn the question by now, there is nothing to send.
    match answer {
        Ok(answer) => {
            let _ = reply.send(Ok(answer));
            None
        }
        Err(failure) => {
            let _ = reply.send(Err(failure.to_string()));
            matches!(failure, UpstreamError::InputRequired { .. }).then_some(failure)
        }
    }
}

/// The calls in flight on one server, in the order in which they were sent.
#[derive(Default)]
pub(super) struct QuestionRouter {
    calls: Mutex<Vec<(RequestId, CallAddress)>>,
}

impl QuestionRouter {
    /// Registers a call that is about to be sent, and forgets those that have ended.
    pub(super) fn register(&self, id: &RequestId, request: &ClientRequest) {
        if let Some(address) = request.extensions().get::<CallAddress>() {
            let mut calls = lock(&self.calls);
            calls.retain(|(_, call)| !call.inbox.is_closed());
            calls.push((id.clone(), address.clone()));
        }
    }

    /// Answers a request of the server, or fails with the error for the server. `withdrawn` returns if the server no
    /// longer waits.
    pub(super) async fn ask(
        &self,
        method: &str,
        params: Map<String, Value>,
        extensions: &Extensions,
        withdrawn: impl Future<Output = ()>,
    ) -> Result<Value, ErrorData> {
        let calls = self.candidates(extensions);
        let refused = |reason: &str| ErrorData::invalid_request(format!("could not ask: {reason}"), None);
        let Some(first) = calls.first() else { return Err(refused("no call is in flight to which this belongs")) };
        // A person must not answer for a call of another.
        if calls.iter().any(|call| !Arc::ptr_eq(&call.questions.run, &first.questions.run)) {
            return Err(refused(
                "several runs call this server at once, and nothing says whose question this is; try again later",
            ));
        }
        // Any of them may be the one that waits.
        let _pauses: Vec<_> = calls.iter().map(|call| call.clock.pause()).collect();
        let (reply, answer) = oneshot::channel();
        let question = OpenQuestion { method: method.to_owned(), params, reply };
        let asked = async {
            first.inbox.send(question).await.map_err(|_| refused("the call has ended"))?;
            answer.await.map_err(|_| refused("the call has ended"))?.map_err(|reason| refused(&reason))
        };
        tokio::select! {
            answer = asked => answer,
            () = withdrawn => Err(refused("it was withdrawn")),
        }
    }

    /// Returns the calls to which a request of the server may belong: the one on whose stream it arrived, else all.
    fn candidates(&self, extensions: &Extensions) -> Vec<CallAddress> {
        let calls = lock(&self.calls);
        let open = calls.iter().filter(|(_, call)| !call.inbox.is_closed());
        match extensions.get::<InboundStreamOrigin>() {
            Some(InboundStreamOrigin::OutboundRequest(id)) => {
                open.filter(|(call, _)| call == id).map(|(_, call)| call.clone()).collect()
            }
            Some(InboundStreamOrigin::Unassociated) | None => open.map(|(_, call)| call.clone()).collect(),
        }
    }
}
