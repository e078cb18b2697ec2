//! Sessions for which nobody names an image: made when a call needs one, of what is the standard at that moment. Building
//! its image may take minutes; whoever waits hears of it, and may stop waiting.

use cove_protocol::Language;

use super::Server;
use super::answer::refused;
use super::caller::Caller;
use super::progress::Latest;
use crate::backend::StartError;
use crate::error::{Error, Kind};
use crate::image::shelf::By;
use crate::policy::Policy;
use crate::session::registry::{Held, Which};

impl Server {
    /// A session for a call, found or made.
    pub(super) async fn hold(
        &self,
        caller: &Caller,
        which: Which,
        warm: Option<Language>,
    ) -> Result<Held, Error> {
        let owner = &caller.principal;
        let held = match self.sessions.find(owner, &which, warm).await.map_err(refused)? {
            Some(held) => held,
            None => {
                let standard = self.shelf.standard().await?;
                let note = self.prepare(standard.by, &standard.policy, caller).await?;
                let held = self.sessions.hold(owner, which, &standard.policy, warm).await.map_err(refused)?;
                held.with_note(note)
            }
        };
        if held.is_new() {
            self.metrics.session_started();
        }
        Ok(held)
    }

    /// What must be done once before the first sandbox, told while it is done; if there was anything, what.
    pub(super) async fn prepare(
        &self,
        by: By,
        policy: &Policy,
        caller: &Caller,
    ) -> Result<Option<String>, Error> {
        if by == By::Sandbox {
            return Ok(None);
        }
        let latest = Latest::default();
        let tell = |line: &str| latest.say(line);
        let could_not = |why| Err(StartError::new(format!("could not start a session: {why}")));
        let prepared = tokio::select! {
            prepared = self.backend.prepare(policy, &tell) => prepared,
            () = caller.cancelled.cancelled() => could_not("nobody waits any more"),
            () = self.ending.cancelled() => could_not("the server is ending"),
            never = caller.tell(&latest) => match never {},
        };
        prepared.map_err(|error| Error::of(Kind::Operator, error))
    }
}
