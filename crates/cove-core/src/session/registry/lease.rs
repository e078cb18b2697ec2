//! The entry of a session in the registry, the lease of a session in use, and the outputs that can be read later.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use cove_protocol::SessionId;
use tokio::sync::{OnceCell, OwnedSemaphorePermit};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::sandbox_places::SandboxPlace;
use super::session_pool::ReadySession;
use super::{EndReason, Principal, SessionBlueprint, random_bits};
use crate::output::{Spool, SpoolBudget};
use crate::session::Session;
use crate::sync::lock;

/// Stored outputs of one session. Each may hold a file open. A new one replaces the oldest.
const MAX_OUTPUTS: usize = 8;

/// The id of an output that was too long for its result: 128 random bits, so that it cannot be guessed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OutputId(String);

impl OutputId {
    const PREFIX: &str = "o_";

    fn new() -> Self {
        Self(format!("{}{:032x}", Self::PREFIX, random_bits()))
    }

    /// Parses an id. Returns None for text that `new` could not have made.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix(Self::PREFIX)?;
        let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        (digits.len() == 32 && digits.bytes().all(is_hex)).then(|| Self(text.to_owned()))
    }
}

impl fmt::Display for OutputId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One session of the registry. Four parties use it: the callers that lease it, the task that starts its sandbox, the
/// tasks that remove it (`stop`, eviction, the idle task, `remove_dead`, `StartGuard`), and `close`.
///
/// `id`, `owner`, `name`, `blueprint` and `disposable` are set by `reserve` and never change.
///
/// Start and removal: the start sets `session`, then looks at `removed` and at the table's `closed`. A removal sets
/// `removed`, and `close` sets `closed`; each then looks at `session`. Whatever the interleaving, at least one side
/// sees the other and kills the sandbox. Both may do so, because a second kill only returns the first end. The sandbox
/// of a one-shot call is not in `session`: `lease_oneshot` looks at `removed` after the start, and from then on the
/// holder of the lease watches it.
///
/// Use and idleness: `UseGuard::new` counts a holder while the table is locked. The idle task and eviction read `usage`
/// with the table locked too, so a session that they find unused stays unused until it is out of the table. Dropping a
/// guard needs no table lock. Locks are taken in this order: the table, then a field of an entry.
///
/// Reports of the end: when a cell's result says that the whole session is lost, the server calls `mark_end_reported`
/// while it still holds its lease. `SessionTable::remove_and_record` reads `end_reported` later and then records the
/// end for the handle only, not for the name. Otherwise the next session of that name gets the reason as its
/// `predecessor_end`, and its first result takes and reports it.
pub(super) struct SessionEntry {
    pub(super) id: SessionId,
    pub(super) owner: Principal,
    pub(super) name: Option<String>,
    pub(super) blueprint: Arc<SessionBlueprint>,
    /// Set by the first caller that leases the session, in `start_entry`. Callers that come meanwhile wait for it.
    /// Stays empty in one-shot sessions.
    pub(super) session: OnceCell<Session>,
    /// The session that waited for this caller. Set by `reserve`, taken by `start_entry`, or by `kill` if the entry is
    /// removed before it starts.
    pub(super) ready_session: Mutex<Option<ReadySession>>,
    /// Freed with the entry: whoever ends its sandbox holds the entry until that is done. Set by `reserve`.
    pub(super) place: Option<SandboxPlace>,
    /// Why the previous session of that name ended. Set by `reserve`, taken by the first result that reports it.
    pub(super) predecessor_end: Mutex<Option<EndReason>>,
    /// True once a result has said that the session is lost. Set by `mark_end_reported`, read by `remove_and_record`.
    pub(super) end_reported: AtomicBool,
    /// True if the caller neither named the session nor asked for it explicitly: it may be evicted to make room.
    pub(super) disposable: bool,
    /// Cancelled when the session is removed, or when its start fails or is abandoned. Running cells stop at this; a
    /// start that completes later kills its sandbox. `close` does not cancel it.
    pub(super) removed: CancellationToken,
    /// Shared by the spools of all cells of the session.
    pub(super) budget: SpoolBudget,
    /// Oldest first. `keep_output` adds to it, `SessionRegistry::find_output` reads it.
    pub(super) outputs: Mutex<VecDeque<(OutputId, Arc<Spool>)>>,
    pub(super) usage: Mutex<SessionUse>,
}

/// How a session is used. Only `UseGuard` changes it.
pub(super) struct SessionUse {
    pub(super) holders: usize,
    /// When the last guard was dropped; the time of creation before that.
    pub(super) last: Instant,
}

impl SessionEntry {
    pub(super) fn new(
        id: SessionId,
        owner: Principal,
        name: Option<String>,
        blueprint: Arc<SessionBlueprint>,
        before: Option<EndReason>,
        disposable: bool,
    ) -> Self {
        Self {
            id,
            owner,
            name,
            blueprint,
            session: OnceCell::new(),
            ready_session: Mutex::default(),
            place: None,
            predecessor_end: Mutex::new(before),
            end_reported: AtomicBool::new(false),
            disposable,
            removed: CancellationToken::new(),
            budget: SpoolBudget::default(),
            outputs: Mutex::default(),
            usage: Mutex::new(SessionUse { holders: 0, last: Instant::now() }),
        }
    }

    /// Kills the sandbox if it has started.
    pub(super) async fn kill(&self) {
        let waiting = lock(&self.ready_session).take();
        for session in waiting.iter().map(|ready| &ready.session).chain(self.session.get()) {
            session.kill().await;
        }
    }

    pub(super) fn output(&self, id: &OutputId) -> Option<Arc<Spool>> {
        lock(&self.outputs).iter().find(|(known, _)| known == id).map(|(_, spool)| Arc::clone(spool))
    }
}

/// A session in use. While a lease exists, the session neither ends as idle nor is evicted. Its owner can still stop
/// it; `removed` tells the holder.
///
/// A shared lease refers to the sandbox in `SessionEntry::session`, which other leases may use at the same time. A
/// one-shot lease owns its sandbox and one of the registry's `oneshot_permits`; dropping the lease kills the sandbox
/// and returns the permit.
pub struct SessionLease {
    use_guard: UseGuard,
    /// The sandbox of this call alone, if each call has its own.
    oneshot: Option<(Session, OwnedSemaphorePermit)>,
    is_new: bool,
    /// A sentence about the work that was done before the session could start.
    note: Option<String>,
}

impl SessionLease {
    pub(super) fn for_shared(use_guard: UseGuard, is_new: bool) -> Self {
        Self { use_guard, oneshot: None, is_new, note: None }
    }

    pub(super) fn for_oneshot(use_guard: UseGuard, session: Session, permit: OwnedSemaphorePermit) -> Self {
        Self { use_guard, oneshot: Some((session, permit)), is_new: true, note: None }
    }

    pub fn id(&self) -> &SessionId {
        &self.use_guard.entry.id
    }

    /// Returns the token that is cancelled when the session's owner or the registry removes the session.
    pub fn removed(&self) -> &CancellationToken {
        &self.use_guard.entry.removed
    }

    /// True if the sandbox was started for this lease.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    pub fn name(&self) -> Option<&str> {
        self.use_guard.entry.name.as_deref()
    }

    pub fn blueprint(&self) -> &SessionBlueprint {
        &self.use_guard.entry.blueprint
    }

    pub fn with_note(self, note: Option<String>) -> Self {
        Self { note, ..self }
    }

    /// Returns a sentence about the work that was done before the session could start, if there was any.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// Returns what code must know of the network of this sandbox, to the first caller only.
    pub fn network_notice(&self) -> Option<&'static str> {
        let oneshot = self.oneshot.as_ref().map(|(session, _)| session);
        oneshot.or_else(|| self.use_guard.entry.session.get()).filter(|_| self.is_new)?.network_notice()
    }

    /// Returns why the previous session of that name ended, to the first caller only.
    pub fn take_predecessor_end(&self) -> Option<EndReason> {
        lock(&self.use_guard.entry.predecessor_end).take()
    }

    /// Records that the result of this call says that the session is lost, so that later results need not say it.
    pub fn mark_end_reported(&self) {
        self.use_guard.entry.end_reported.store(true, Ordering::Release);
    }

    /// Returns the budget that the cells of the session share for stored output.
    pub fn budget(&self) -> &SpoolBudget {
        &self.use_guard.entry.budget
    }

    /// Stores the output that did not fit into a result, and returns the id by which it can be read.
    pub fn keep_output(&self, spool: Spool) -> OutputId {
        let id = OutputId::new();
        let mut outputs = lock(&self.use_guard.entry.outputs);
        if outputs.len() == MAX_OUTPUTS {
            outputs.pop_front();
        }
        outputs.push_back((id.clone(), Arc::new(spool)));
        id
    }
}

impl std::ops::Deref for SessionLease {
    type Target = Session;

    fn deref(&self) -> &Session {
        match &self.oneshot {
            Some((session, _)) => session,
            // A shared lease is made only after its session has started.
            None => self.use_guard.entry.session.get().unwrap_or_else(|| unreachable!("a held session has started")),
        }
    }
}

/// Counts as one holder of a session until it is dropped, including the time in which the session starts. Make it while
/// the table is locked: see `SessionEntry`.
pub(super) struct UseGuard {
    pub(super) entry: Arc<SessionEntry>,
}

impl UseGuard {
    pub(super) fn new(entry: Arc<SessionEntry>) -> Self {
        lock(&entry.usage).holders += 1;
        Self { entry }
    }
}

impl Drop for UseGuard {
    fn drop(&mut self) {
        let mut used = lock(&self.entry.usage);
        used.holders -= 1;
        used.last = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;

    fn test_entry() -> Arc<SessionEntry> {
        let blueprint = SessionBlueprint::default_for(Arc::new(Policy::default()), None);
        let owner = Principal("me".into());
        Arc::new(SessionEntry::new(SessionId::from_random(1), owner, None, Arc::new(blueprint), None, true))
    }

    #[tokio::test]
    async fn keeps_only_the_newest_outputs() {
        let entry = test_entry();
        let held = SessionLease::for_shared(UseGuard::new(Arc::clone(&entry)), true);
        let keep = |text: &str| {
            let mut spool = Spool::new(held.budget());
            spool.push(text.as_bytes());
            held.keep_output(spool)
        };
        let ids: Vec<OutputId> = (0..MAX_OUTPUTS + 1).map(|n| keep(&n.to_string())).collect();
        assert!(entry.output(&ids[0]).is_none());
        let last = entry.output(&ids[MAX_OUTPUTS]).unwrap();
        assert_eq!(last.read(0, 10).unwrap(), MAX_OUTPUTS.to_string().as_bytes());
        assert_eq!(OutputId::parse(&ids[1].to_string()).as_ref(), Some(&ids[1]));
        assert_eq!(OutputId::parse("o_../../etc/passwd"), None);
    }
}
