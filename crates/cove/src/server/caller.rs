//! Who calls, and what goes with one call: which session is meant when none is named, where progress goes, and how to
//! know that nobody waits any more.

use std::convert::Infallible;

use tokio_util::sync::CancellationToken;

use super::answer::refused;
use super::progress::{Latest, Progress};
use crate::error::Error;
use crate::session::registry::{Principal, Which};

pub(super) struct Caller {
    pub(super) principal: Principal,
    /// The session of whoever names none.
    pub(super) unnamed: Unnamed,
    pub(super) progress: Option<Progress>,
    /// Nobody waits for the answer any more.
    pub(super) cancelled: CancellationToken,
    /// Whether the client knows links to resources; those of 2025-06-18 and later do.
    pub(super) knows_links: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Unnamed {
    /// The connection has a session of its own, under this name.
    Own(String),
    /// There is no connection to have one: each call makes a new session, and names it.
    New,
}

/// A session as a call means it.
pub(super) struct Meant {
    pub(super) which: Which,
    /// Made for a caller who cannot know its handle unless the answer names it.
    pub(super) must_be_named: bool,
}

impl Caller {
    pub(super) fn session(&self, named: Option<&str>) -> Result<Meant, Error> {
        let (which, must_be_named) = match (named, &self.unnamed) {
            (Some(text), _) => (Which::parse(text).map_err(refused)?, false),
            (None, Unnamed::Own(name)) => (Which::Name(name.clone()), false),
            (None, Unnamed::New) => (Which::New, true),
        };
        Ok(Meant { which, must_be_named })
    }

    /// Tells whoever wants to hear it how far the call is, until it is dropped: it never ends by itself.
    pub(super) async fn tell(&self, latest: &Latest) -> Infallible {
        match &self.progress {
            Some(progress) => progress.tell(latest).await,
            None => std::future::pending().await,
        }
    }

    /// For what makes no sense in a session that is new.
    pub(super) fn existing_session(&self, named: Option<&str>) -> Result<Which, Error> {
        let meant = self.session(named)?;
        if meant.which == Which::New {
            return Err(Error::usage("could not choose a session")
                .because("this connection has none of its own")
                .with_hint("pass `session`: the handle that `execute_code` gave, or a name of your choice"));
        }
        Ok(meant.which)
    }
}
