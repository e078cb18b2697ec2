//! Sessions kept ready for whoever comes next: started with an interpreter that has run nothing yet, and nobody's so far.
//! Each becomes one person's session, and ends as that.

use std::sync::{Arc, Mutex};

use cove_protocol::Language;

use super::lock;
use crate::backend::{Backend, Whose};
use crate::policy::{Policy, Root};
use crate::session::{Options, Session};

/// The language whose interpreter they have started.
const LANGUAGE: Language = Language::Python;

pub(super) struct Parking {
    backend: Arc<dyn Backend>,
    policy: Arc<Policy>,
    most: usize,
    lot: Arc<Mutex<Lot>>,
}

#[derive(Default)]
struct Lot {
    ready: Vec<Session>,
    starting: usize,
    closed: bool,
}

impl Parking {
    pub(super) fn new(backend: Arc<dyn Backend>, policy: Policy, most: usize) -> Self {
        // A container is made for somebody, and counted as theirs.
        let most = if matches!(policy.root, Root::Image(_)) { 0 } else { most };
        Self { backend, policy: Arc::new(policy), most, lot: Arc::default() }
    }

    /// One that is ready and alive, and another in its place; unless another language is wanted at once than the one they
    /// have started.
    pub(super) async fn take(&self, warm: Option<Language>) -> Option<Session> {
        let taken = match warm {
            Some(language) if language != LANGUAGE => None,
            _ => self.alive().await,
        };
        self.fill();
        taken
    }

    async fn alive(&self) -> Option<Session> {
        loop {
            let session = lock(&self.lot).ready.pop()?;
            // It may have died while it waited, as any process may.
            if session.is_alive().await {
                return Some(session);
            }
        }
    }

    /// Makes up for one that was taken, beside whatever else goes on. A failure shows when a session is asked for.
    pub(super) fn fill(&self) {
        {
            let mut lot = lock(&self.lot);
            if lot.closed || lot.ready.len() + lot.starting >= self.most {
                return;
            }
            lot.starting += 1;
        }
        let (backend, policy, lot) =
            (Arc::clone(&self.backend), Arc::clone(&self.policy), Arc::clone(&self.lot));
        tokio::spawn(async move {
            let whose = Whose { session: "parked".into(), principal: "nobody".into() };
            let options = Options { input: None, warm: Some(LANGUAGE), whose };
            let started = Session::start(&*backend, &policy, options).await;
            let mut lot = lock(&lot);
            lot.starting -= 1;
            // One that is ready too late ends here.
            if let Ok(session) = started
                && !lot.closed
            {
                lot.ready.push(session);
            }
        });
    }

    /// Gives out those that are left, for good.
    pub(super) fn close(&self) -> Vec<Session> {
        let mut lot = lock(&self.lot);
        lot.closed = true;
        std::mem::take(&mut lot.ready)
    }
}
