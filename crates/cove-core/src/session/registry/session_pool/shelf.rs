//! Ready sessions of one kind: all of them could be handed to the same callers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use cove_protocol::Language;
use tokio::time::Instant;

use super::ReadySession;
use crate::policy::readiness::WarmTarget;
use crate::policy::{ImageRecipe, ImageSource, Policy, SandboxRoot, SessionLifetime};
use crate::session::registry::{Principal, SessionBlueprint};

/// Most sessions that an adaptive shelf keeps.
const MAX_ADAPTED: usize = 8;
/// After this time without a caller, an adaptive shelf keeps one session less, and again after the same time.
const SHRINK_INTERVAL: Duration = Duration::from_secs(60);
/// After this time without a caller, an adaptive shelf that does not last is given up.
const GIVE_UP_AFTER: Duration = Duration::from_secs(600);
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(300);

/// What the sessions of a shelf have in common. A caller that asks for exactly this may get any of them.
#[derive(Debug, Clone)]
pub(in crate::session::registry) struct ShelfKey {
    pub(in crate::session::registry) policy: Arc<Policy>,
    /// The image that the containers of the shelf have. The name of an image can get another image at any time.
    pub(in crate::session::registry) image_id: Option<String>,
    pub(in crate::session::registry) language: Language,
    /// The owner of the containers of the shelf, whose labels name it. None for embedded sandboxes, which have none.
    pub(in crate::session::registry) tenant: Option<Principal>,
}

impl ShelfKey {
    /// Returns the shelf that has sessions for this caller, or None if such sessions are never kept ready.
    pub(in crate::session::registry) fn new(
        blueprint: &SessionBlueprint,
        language: Language,
        owner: &Principal,
    ) -> Option<Self> {
        let SessionBlueprint { policy, image_id, .. } = blueprint;
        let is_wanted = policy.readiness.warm != WarmTarget::Fixed(0);
        if !is_wanted || !blueprint.may_be_ready || blueprint.lifetime == SessionLifetime::Oneshot {
            return None;
        }
        let tenant = match policy.root {
            SandboxRoot::Host | SandboxRoot::Tree(_) => None,
            SandboxRoot::Image(_) if image_id.is_none() => return None,
            SandboxRoot::Image(_) => Some(owner.clone()),
        };
        Some(Self { policy: Arc::clone(policy), image_id: image_id.clone(), language, tenant })
    }

    /// Returns the policy to start a session with. A container gets the image that is there, so that its start builds
    /// and fetches nothing, whatever happens to the image's folder in the meantime.
    pub(in crate::session::registry) fn start_policy(&self) -> Arc<Policy> {
        match (&self.policy.root, &self.image_id) {
            (SandboxRoot::Image(recipe), Some(id)) => {
                let recipe = ImageRecipe { source: ImageSource::Reference(id.clone()), ..recipe.clone() };
                Arc::new(Policy { root: SandboxRoot::Image(recipe), ..(*self.policy).clone() })
            }
            _ => Arc::clone(&self.policy),
        }
    }

    /// True if the name of the image has got another image since, so that no caller will ask for this one.
    pub(super) fn is_replaced_by(&self, new: &Self) -> bool {
        self.image_id != new.image_id && *self == Self { image_id: self.image_id.clone(), ..new.clone() }
    }
}

impl PartialEq for ShelfKey {
    fn eq(&self, other: &Self) -> bool {
        let is_same_policy = Arc::ptr_eq(&self.policy, &other.policy) || self.policy == other.policy;
        self.language == other.language
            && self.tenant == other.tenant
            && self.image_id == other.image_id
            && is_same_policy
    }
}

/// Ready sessions of one kind, and how many there should be.
#[derive(Debug)]
pub(super) struct SessionShelf {
    pub(super) key: ShelfKey,
    /// True if the shelf stays whatever other sessions callers ask for.
    pub(super) is_lasting: bool,
    pub(super) ready: VecDeque<ReadySession>,
    /// Sessions that are being started for the shelf.
    pub(super) starting: usize,
    target: usize,
    /// Callers that came since the shelf was last full.
    taken: usize,
    pub(super) last_demand: Instant,
    last_shrink: Instant,
    /// No session is started before this time, because the last start failed.
    retry_at: Instant,
    retry_delay: Duration,
}

impl SessionShelf {
    pub(super) fn new(key: ShelfKey) -> Self {
        let now = Instant::now();
        let target = match key.policy.readiness.warm {
            WarmTarget::Adapted => 1,
            WarmTarget::Fixed(count) => count,
        };
        Self {
            key,
            is_lasting: false,
            ready: VecDeque::new(),
            starting: 0,
            target,
            taken: 0,
            last_demand: now,
            last_shrink: now,
            retry_at: now,
            retry_delay: FIRST_RETRY,
        }
    }

    fn is_adapted(&self) -> bool {
        self.key.policy.readiness.warm == WarmTarget::Adapted
    }

    /// Returns how many sessions should be started now.
    pub(super) fn lack(&self) -> usize {
        match Instant::now() < self.retry_at {
            true => 0,
            false => self.target.saturating_sub(self.ready.len() + self.starting),
        }
    }

    /// Returns the session that has waited for longest. Remembers that a caller came, even if there is none.
    pub(super) fn take(&mut self) -> Option<ReadySession> {
        self.last_demand = Instant::now();
        self.last_shrink = self.last_demand;
        self.taken += 1;
        if self.is_adapted() {
            self.target = self.target.max(self.taken.min(MAX_ADAPTED));
        }
        self.ready.pop_front()
    }

    pub(super) fn add(&mut self, session: ReadySession) {
        self.ready.push_back(session);
        if self.ready.len() >= self.target {
            self.taken = 0;
        }
    }

    pub(super) fn start_succeeded(&mut self) {
        self.retry_delay = FIRST_RETRY;
    }

    pub(super) fn start_failed(&mut self) {
        self.retry_at = Instant::now() + self.retry_delay;
        self.retry_delay = (self.retry_delay * 2).min(LAST_RETRY);
    }

    /// Returns a session that is no longer needed, because no caller came for a while.
    pub(super) fn shrink(&mut self) -> Option<ReadySession> {
        if !self.is_adapted() || self.target == 1 || self.last_shrink.elapsed() < SHRINK_INTERVAL {
            return None;
        }
        self.last_shrink = Instant::now();
        self.taken = 0;
        self.target -= 1;
        (self.ready.len() > self.target).then(|| self.ready.pop_front()).flatten()
    }

    pub(super) fn is_given_up(&self) -> bool {
        self.is_adapted() && !self.is_lasting && self.last_demand.elapsed() >= GIVE_UP_AFTER
    }
}
