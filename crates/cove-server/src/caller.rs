//! The caller of one tool call: its principal, its default session, its progress reports, its cancellation, and
//! how it is asked for input.

use std::convert::Infallible;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::progress::{LatestLine, ProgressReporter};
use cove_core::error::Failure;
use cove_core::session::registry::{Principal, SessionRef};
use cove_upstream::pool::questions::QuestionHandler;

/// The caller of one tool call.
pub(super) struct ToolCaller {
    pub(super) principal: Principal,
    /// The session for a call that names none.
    pub(super) default_session: SessionRef,
    pub(super) progress: Option<Arc<ProgressReporter>>,
    /// Cancelled when the client no longer waits for the answer.
    pub(super) cancellation: CancellationToken,
    /// True if the client supports links to resources, which 2025-06-18 added.
    pub(super) knows_links: bool,
    /// The client is one that the person runs on this machine.
    pub(super) is_local: bool,
    /// Asks the client for input. None if it takes no questions.
    pub(super) questions: Option<Arc<dyn QuestionHandler>>,
}

impl ToolCaller {
    /// Returns the session that a call names, or the caller's default session. Fails if the name is not valid.
    pub(super) fn resolve_session(&self, named: Option<&str>) -> Result<SessionRef, Failure> {
        Ok(match named {
            Some(text) => SessionRef::parse(text)?,
            None => self.default_session.clone(),
        })
    }

    /// Reports progress to a client that asked for it. Never returns; the caller drops it when the call ends.
    pub(super) async fn report_progress(&self, latest: &LatestLine) -> Infallible {
        match &self.progress {
            Some(progress) => progress.report(latest).await,
            None => std::future::pending().await,
        }
    }
}
