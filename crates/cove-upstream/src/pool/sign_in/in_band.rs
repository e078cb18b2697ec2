//! Sign-in while a call waits: the agent's client shows the authorization server's address to the person, who signs in
//! at this machine. Only for a client that the person runs here, and a server that the person defined.

use serde_json::{Map, json};

use super::{PendingSignIn, RedirectAnswer, SignInError, SignInOptions};
use crate::definition::DefinitionOwner;
use crate::pool::questions::CallQuestions;
use crate::pool::{UpstreamPool, UpstreamState};

impl UpstreamPool {
    /// Asks the person behind a call to sign in to a server that refused it, and waits until they have. Returns false if
    /// they did not; each run asks once for each server. The cell's clock stands still meanwhile.
    pub async fn ask_to_sign_in(&self, server: &str, questions: &CallQuestions) -> bool {
        let Ok(upstream) = self.find(server) else { return false };
        // A project could name any server, and so send the person to any page.
        if upstream.definition().owner != DefinitionOwner::Person {
            return false;
        }
        let _pause = questions.clock.pause();
        // Calls at the same time need one sign-in.
        let _turn = upstream.sign_in_turn.lock().await;
        // Before anything is resolved: that may run programs of the person, and code may call in a loop.
        let needs_sign_in = matches!(upstream.state().0, UpstreamState::NeedsSignIn(_));
        if needs_sign_in && questions.run.has_asked_to_sign_in(server) {
            return false;
        }
        let Ok(sign_in) = upstream.sign_in().await else { return false };
        if sign_in.is_by_credentials() {
            return false;
        }
        if !sign_in.has_challenge() {
            return true;
        }
        if !questions.run.may_ask_to_sign_in(server) {
            return false;
        }
        let signed_in = async {
            let pending = sign_in.begin(&SignInOptions::default()).await?;
            match wait_for_person(server, &pending, questions).await {
                Some(answer) => pending.finish(answer?).await.map(|_| true),
                None => Ok(false),
            }
        };
        let signed_in: Result<bool, SignInError> = signed_in.await;
        signed_in.unwrap_or_else(|error| {
            tracing::info!(server, "could not sign in: {error}");
            false
        })
    }
}

/// Returns the browser's answer, which may come before the client's. `None` if the person declines. Fails if there is no
/// answer in time.
async fn wait_for_person(
    server: &str,
    pending: &PendingSignIn,
    questions: &CallQuestions,
) -> Option<Result<RedirectAnswer, SignInError>> {
    let params = Map::from_iter([
        ("mode".to_owned(), json!("url")),
        ("message".to_owned(), format!("sign in at {}, so that the call can go on", pending.host()).into()),
        ("url".to_owned(), pending.address().into()),
    ]);
    let asked = async {
        match questions.ask(server, "elicitation/create", params).await {
            Ok(answer) if answer["action"] == "accept" => std::future::pending().await,
            _ => {}
        }
    };
    let report_foreign = || {
        tracing::warn!(server, "an answer that does not belong to this sign-in was ignored; the sign-in still waits");
    };
    tokio::select! {
        answer = pending.wait_for_redirect(report_foreign) => Some(answer),
        () = asked => None,
    }
}
