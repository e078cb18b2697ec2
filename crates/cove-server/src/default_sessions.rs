//! Sessions of calls that name no image. They are created on demand, from the current default environment. Building
//! its image may take minutes; the client gets progress meanwhile and may cancel.

use std::sync::Arc;

use cove_protocol::Language;

use super::Server;
use super::caller::ToolCaller;
use super::progress::LatestLine;
use cove_core::backend::ImagePreparation;
use cove_core::error::Failure;
use cove_core::image::library::SandboxKind;
use cove_core::policy::Policy;
use cove_core::session::registry::{SessionBlueprint, SessionLease, SessionRef};

impl Server {
    /// Returns a lease on the session of a call, and creates the session if it does not exist. Fails if the image
    /// cannot be prepared or no session can be opened.
    pub(super) async fn lease_session(
        &self,
        caller: &ToolCaller,
        session: SessionRef,
        warm: Option<Language>,
    ) -> Result<SessionLease, Failure> {
        let owner = &caller.principal;
        let lease = match self.sessions.lease_existing(owner, &session, warm).await? {
            Some(lease) => lease,
            None => {
                let standard = self.images.default_environment().await?;
                let prepared = self.prepare_image(standard.kind, &standard.policy, caller).await?;
                let blueprint = SessionBlueprint::default_for(Arc::new(standard.policy), prepared.image_id);
                let lease = self.sessions.lease(owner, session, blueprint, warm).await?;
                lease.with_note(prepared.note)
            }
        };
        if lease.is_new() {
            self.metrics.session_started();
        }
        Ok(lease)
    }

    /// Prepares the image before its first sandbox and reports progress. Fails if the caller cancels or the server shuts down.
    pub(super) async fn prepare_image(
        &self,
        kind: SandboxKind,
        policy: &Policy,
        caller: &ToolCaller,
    ) -> Result<ImagePreparation, Failure> {
        if kind == SandboxKind::Embedded {
            return Ok(ImagePreparation::default());
        }
        let latest = LatestLine::default();
        let progress = |line: &str| latest.set_message(line);
        let could_not = |why| Err(Failure::operator(format!("could not start a session: {why}")));
        tokio::select! {
            prepared = self.backend.prepare(policy, &progress) => prepared,
            () = caller.cancellation.cancelled() => could_not("the caller no longer waits"),
            () = self.shutdown.cancelled() => could_not("the server is ending"),
            never = caller.report_progress(&latest) => match never {},
        }
    }
}
