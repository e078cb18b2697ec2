//! Questions of upstream servers to a client with a handshake: Cove sends them as requests of its own, on the stream of
//! the tool call that they belong to, and waits for the answer while that call stays open.

use std::time::Duration;

use rmcp::RoleServer;
use rmcp::model::{ClientCapabilities, CustomRequest, RequestId, ServerRequest};
use rmcp::service::{OriginatingRequestId, Peer, PeerRequestOptions, ServiceError};
use serde_json::Value;

use cove_core::BoxFuture;
use cove_core::error::display_value;
use cove_upstream::pool::SentRequest;
use cove_upstream::pool::questions::{ClientQuestion, QuestionError, QuestionHandler, QuestionKind};

/// Returns true if a client takes questions of a kind.
pub(super) fn accepts_question(capabilities: &ClientCapabilities, kind: QuestionKind) -> bool {
    match (kind, &capabilities.elicitation) {
        (QuestionKind::Sampling, _) => capabilities.sampling.is_some(),
        (_, None) => false,
        (QuestionKind::Url, Some(modes)) => modes.url.is_some(),
        // A client that names no mode takes forms.
        (QuestionKind::Form, Some(modes)) => modes.form.is_some() || modes.url.is_none(),
    }
}

/// Asks the client of one tool call, which has made a handshake.
pub(super) struct ConnectedClient {
    pub(super) peer: Peer<RoleServer>,
    /// The tool call.
    pub(super) call: RequestId,
    pub(super) capabilities: ClientCapabilities,
    pub(super) timeout: Duration,
}

impl QuestionHandler for ConnectedClient {
    fn ask(&self, question: ClientQuestion) -> BoxFuture<'_, Result<Value, QuestionError>> {
        Box::pin(async move {
            if !accepts_question(&self.capabilities, question.kind) {
                return Err(QuestionError::Unsupported);
            }
            // Not one of rmcp's own types, which would lose fields that they do not know.
            let mut request = CustomRequest::new(question.kind.method(), Some(question.params.into()));
            // Sends it on the stream of the call: a client need not listen to any other.
            request.extensions.insert(OriginatingRequestId(self.call.clone()));
            let request = ServerRequest::CustomRequest(request);
            let answer = async {
                let sent = self.peer.send_request_with_option(request, PeerRequestOptions::no_options()).await?;
                SentRequest::new(sent).receive_answer().await
            };
            match tokio::time::timeout(self.timeout, answer).await {
                Err(_) => Err(QuestionError::Late(self.timeout)),
                Ok(Ok(answer)) => serde_json::to_value(answer)
                    .map_err(|_| QuestionError::Failed("the client's answer cannot be read".to_owned())),
                Ok(Err(ServiceError::McpError(error))) => {
                    let words = display_value(&error.message);
                    Err(QuestionError::Failed(format!("the client refused: {words} ({})", error.code.0)))
                }
                Ok(Err(_)) => Err(QuestionError::Failed("the client is gone".to_owned())),
            }
        })
    }
}
