//! Fills the pool of ready sessions in the background, and empties it when something needs the room or the memory more.
//! Callers come first: a start ahead of its use waits for theirs, and ready sessions end before one of theirs fails.

use std::sync::{Arc, Weak};
use std::time::Duration;

use cove_protocol::SessionId;
use tokio::sync::watch;
use tokio::time::sleep;

use super::session_pool::{MountedFiles, OrderedStart, ReadySession, ShelfKey, StartOrder};
use super::{Principal, SessionRegistry};
use crate::backend::SandboxOwner;
use crate::error::Failure;
use crate::memory_headroom::MemoryHeadroom;
use crate::policy::Policy;
use crate::random::random_bits;
use crate::session::{IMPORT_TIMEOUT, PreloadFault, ReadyStartError, Session, SessionOptions};

/// Stands for the owner of embedded sandboxes that wait for one.
const UNCLAIMED: &str = "unclaimed";
/// How often the registry looks at the sessions that are kept ready.
const TEND_INTERVAL: Duration = Duration::from_secs(5);
/// How long a start ahead of its use waits for callers that start sessions or run their first cell.
const CALLERS_FIRST: Duration = Duration::from_secs(2);
/// For how long the caller of a ready session counts as one that waits: a short first cell ends in that time, and the
/// start of the next session would take the processors from it.
const FIRST_CELL: Duration = Duration::from_millis(30);
/// How long a caller waits for other sandboxes to end. An engine that takes longer is told to start one all the same.
const PLACE_TIMEOUT: Duration = Duration::from_secs(10);

impl SessionRegistry {
    /// Keeps sessions of the default policy ready from now on, if the policy allows it. Containers are kept ready once
    /// a caller has asked for one, because each belongs to its caller from the start.
    pub fn keep_sessions_ready(self: &Arc<Self>) {
        let no_owner = Principal(UNCLAIMED.into());
        let default = &self.default_blueprint;
        if let Some(key) = ShelfKey::new(default, default.line_language, &no_owner) {
            self.end_unused(self.pool.expect(key));
            self.refill_pool();
        }
    }

    /// Takes a ready session out of the pool and has another started in its place.
    pub(super) fn take_ready(self: &Arc<Self>, key: ShelfKey) -> Option<ReadySession> {
        let (taken, unused) = self.pool.take(key);
        self.end_unused(unused);
        let sessions = Arc::clone(self);
        // In a task, because the caller holds the table and must not wait for this.
        tokio::spawn(async move {
            let _waiting = WaitingCaller::new(&sessions.waiting_callers);
            sessions.refill_pool();
            sleep(FIRST_CELL).await;
        });
        taken
    }

    /// Starts a session for a caller that waits for it. If that fails while memory is scarce, ends all ready sessions
    /// and tries once more: they are there to save time, not to cost a caller its session.
    pub(super) async fn start_for_caller(
        &self,
        policy: &Policy,
        options: impl Fn() -> Result<SessionOptions, Failure>,
    ) -> Result<Session, Failure> {
        let _waiting = WaitingCaller::new(&self.waiting_callers);
        // The sandbox that made room for this one may still be there.
        let _ = tokio::time::timeout(PLACE_TIMEOUT, self.places.are_enough()).await;
        let first = Session::start(&*self.backend, policy, options()?).await;
        if first.is_ok() || !self.headroom_is(MemoryHeadroom::is_scarce) {
            return first;
        }
        let unused = self.pool.shrink_to(0);
        if unused.is_empty() {
            return first;
        }
        for ready in unused {
            ready.end().await;
        }
        Session::start(&*self.backend, policy, options()?).await
    }

    /// Kills ready sessions that no caller will get, each in its own task: one that is slow to end must not delay the
    /// caller.
    pub(super) fn end_unused(&self, unused: impl IntoIterator<Item = ReadySession>) {
        for ready in unused {
            self.pool_tasks.spawn(ready.end());
        }
    }

    fn headroom_is(&self, what: impl Fn(MemoryHeadroom) -> bool) -> bool {
        (self.bounds.headroom)().is_some_and(what)
    }

    /// Starts ready sessions in the background while the pool lacks some and the limits allow them.
    fn refill_pool(self: &Arc<Self>) {
        // Each list of tools asks, and most find the pool full.
        if self.pool.is_full() || self.headroom_is(MemoryHeadroom::is_scarce) {
            return;
        }
        while let Some(order) = self.pool.begin_start(&self.places) {
            let sessions = Arc::clone(self);
            self.pool_tasks.spawn(async move {
                sessions.carry_out(order).await;
                sessions.refill_pool();
            });
        }
    }

    /// Starts a session ahead of its use and puts it into the pool.
    async fn carry_out(&self, StartOrder { key, modules, place }: StartOrder) {
        // A caller may need the place.
        let unwanted = || async {
            tokio::select! {
                () = self.pool.closing() => {}
                () = self.places.are_too_few() => {}
            }
        };
        let mut waiting = self.waiting_callers.subscribe();
        // Callers that need the processors now come first, but a server that always has some is refilled too.
        tokio::select! {
            biased;
            () = unwanted() => {
                self.end_unused(self.pool.finish_start(&key, OrderedStart::Stopped));
                return;
            }
            _ = tokio::time::timeout(CALLERS_FIRST, waiting.wait_for(|count| *count == 0)) => {}
        }
        let id = SessionId::from_random(random_bits());
        let principal = key.tenant.as_ref().map_or(UNCLAIMED, |tenant| &tenant.0).to_owned();
        let owner = SandboxOwner { session: id.to_string(), principal };
        let mounts = MountedFiles::of_policy(&key.policy).await;
        let policy = key.start_policy();
        let started = match self.create_network() {
            Ok(network) => {
                let options = SessionOptions { owner, network, ..SessionOptions::default() };
                Session::start_ready(&*self.backend, &policy, options, key.language, &modules, unwanted()).await
            }
            Err(failure) => Err(ReadyStartError::Start(failure)),
        };
        let ended = match started {
            // Only a backend that ignores the reference makes another image.
            Ok(session) if session.image_id() != key.image_id.as_deref() => {
                session.kill().await;
                OrderedStart::Failed
            }
            Ok(session) => OrderedStart::Ready(Box::new(ReadySession { id, session, mounts, place: Some(place) })),
            Err(ReadyStartError::Start(failure)) => {
                // A caller that needs a session starts one itself and gets the error.
                tracing::debug!(language = %key.language, error = %failure, "could not keep a session ready");
                OrderedStart::Failed
            }
            Err(ReadyStartError::Import(PreloadFault { module, problem })) => {
                if self.pool.remember_bad_module(&key, &module) {
                    tracing::warn!(
                        "`preload`: the module `{module}` {problem}; sessions are kept ready without it \
                         (an import may take at most {} s and may leave no process)",
                        IMPORT_TIMEOUT.as_secs()
                    );
                }
                OrderedStart::Stopped
            }
            Err(ReadyStartError::Stopped) => OrderedStart::Stopped,
        };
        self.end_unused(self.pool.finish_start(&key, ended));
        // Callers may have taken the room meanwhile.
        self.end_unused(self.pool.shrink_to(self.bounds.max_sessions.saturating_sub(self.count())));
    }

    /// Takes dead sessions and surplus ones out of the pool, and fills it again.
    async fn tend_pool(self: &Arc<Self>) {
        if self.headroom_is(MemoryHeadroom::is_exhausted) {
            self.end_unused(self.pool.shrink_to(0));
        }
        self.end_unused(self.pool.tend());
        let _under_way = self.pool_tasks.token();
        for (key, ready) in self.pool.take_doubtful() {
            match ready.session.is_alive().await {
                true => self.end_unused(self.pool.put_back(&key, ready)),
                false => self.end_unused([ready]),
            }
        }
        self.refill_pool();
    }
}

/// Looks at the ready sessions at intervals until the registry is dropped.
pub(super) async fn tend_pool(sessions: Weak<SessionRegistry>) {
    loop {
        sleep(TEND_INTERVAL).await;
        let Some(sessions) = sessions.upgrade() else { return };
        sessions.tend_pool().await;
    }
}

/// Counts as a caller that waits for its session or its first cell until it is dropped.
struct WaitingCaller<'a>(&'a watch::Sender<usize>);

impl<'a> WaitingCaller<'a> {
    fn new(count: &'a watch::Sender<usize>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(count)
    }
}

impl Drop for WaitingCaller<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}
