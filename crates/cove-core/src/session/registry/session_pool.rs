//! Sessions that are started ahead of the callers that will use them. A ready session has run Cove's own warm-up and
//! nothing else. It has no user until a caller takes it; from then on it is that caller's session and never returns.
//!
//! `begin_start` counts a start in `SessionShelf::starting` under the lock before the registry spawns its task, and
//! `finish_start` counts it down under the same lock when it adds the session. `close` sets `closed` and takes all
//! sessions in one step; a start that finishes later gets its session back and kills it. Each function returns the
//! sessions that are to end, because ending one takes time and the lock is never held across an await.

mod shelf;

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Mutex;

use cove_protocol::{Language, SessionId};
use tokio_util::sync::CancellationToken;

use super::Principal;
use super::sandbox_places::{SandboxPlace, SandboxPlaces};
use crate::policy::Policy;
use crate::session::Session;
use crate::sync::lock;

pub(super) use shelf::ShelfKey;

use shelf::SessionShelf;

/// Most kinds of sessions that are kept ready at once.
const MAX_SHELVES: usize = 16;
/// Most sessions that are started ahead at the same time: more would take the processors from the callers.
const MAX_STARTS: usize = 2;
/// Most modules that are remembered as not to be imported.
const MAX_BAD_MODULES: usize = 1000;

/// A session that waits for its caller. Its sandbox is labelled with `id`, which becomes the handle of the session.
pub(super) struct ReadySession {
    pub(super) id: SessionId,
    pub(super) session: Session,
    /// What the mounts of its policy were before it started.
    pub(super) mounts: MountedFiles,
    /// None if the entry of its caller has it.
    pub(super) place: Option<SandboxPlace>,
}

impl ReadySession {
    /// Ends a session that no caller will get. Its place is free afterwards.
    pub(super) async fn end(self) {
        self.session.kill().await;
    }
}

/// Which files and folders the mounts of a policy are on the host, as device and inode. A path can get another file at
/// any time, as editors do when they save; a sandbox that was made before keeps the old one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MountedFiles(Vec<Option<(u64, u64)>>);

impl MountedFiles {
    pub(super) async fn of_policy(policy: &Policy) -> Self {
        let sources: Vec<PathBuf> = policy.mounts.iter().map(|mount| mount.source.clone()).collect();
        let identity = |path: PathBuf| path.metadata().ok().map(|file| (file.dev(), file.ino()));
        let identities = move || sources.into_iter().map(identity).collect();
        // A file system may be slow to answer. The closure does not panic.
        let found = match policy.mounts.is_empty() {
            true => Vec::new(),
            false => tokio::task::spawn_blocking(identities).await.unwrap_or_default(),
        };
        Self(found)
    }
}

impl std::fmt::Debug for ReadySession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ReadySession").field(&self.id).finish()
    }
}

/// A start that `begin_start` has counted. `finish_start` must be called with it, unless the pool is closed.
#[derive(Debug)]
pub(super) struct StartOrder {
    pub(super) key: ShelfKey,
    /// The modules to import: those of the policy without those that failed before.
    pub(super) modules: Vec<String>,
    pub(super) place: SandboxPlace,
}

/// How a start that was ordered ended.
pub(super) enum OrderedStart {
    Ready(Box<ReadySession>),
    Failed,
    /// The next start may succeed: this one was stopped, or leaves out a module from now on.
    Stopped,
}

/// The state of the pool, for people.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PoolFigures {
    /// The number of ready sessions for each language of a shelf.
    pub ready: Vec<(Language, usize)>,
    /// Callers that got a ready session.
    pub hits: u64,
    /// Callers that could have got one and had to start a session of their own.
    pub misses: u64,
}

#[derive(Default)]
pub(super) struct SessionPool {
    state: Mutex<PoolState>,
    /// Cancelled by `close` while `state` is locked.
    closed: CancellationToken,
}

#[derive(Default)]
struct PoolState {
    shelves: Vec<SessionShelf>,
    /// Pairs of an image and a module that cannot be imported in it.
    bad_modules: BTreeSet<(Option<String>, String)>,
    hits: u64,
    misses: u64,
}

impl PoolState {
    fn shelf_mut(&mut self, key: &ShelfKey) -> Option<&mut SessionShelf> {
        self.shelves.iter_mut().find(|shelf| shelf.key == *key)
    }

    /// Returns the shelf of a key, and the sessions of the shelves that it replaces. Returns no shelf if all shelves
    /// last.
    fn shelf_or_new(&mut self, key: ShelfKey, is_lasting: bool) -> (Option<&mut SessionShelf>, Vec<ReadySession>) {
        let mut unused = Vec::new();
        let at = match self.shelves.iter().position(|shelf| shelf.key == key) {
            Some(at) => at,
            None => {
                unused = self.remove_shelves(|shelf| shelf.key.is_replaced_by(&key));
                if self.shelves.len() >= MAX_SHELVES {
                    let replaceable = self.shelves.iter().enumerate().filter(|(_, shelf)| !shelf.is_lasting);
                    let Some((at, _)) = replaceable.min_by_key(|(_, shelf)| shelf.last_demand) else {
                        return (None, unused);
                    };
                    unused.extend(self.shelves.remove(at).ready);
                }
                self.shelves.push(SessionShelf::new(key));
                self.shelves.len() - 1
            }
        };
        let shelf = &mut self.shelves[at];
        shelf.is_lasting |= is_lasting;
        (Some(shelf), unused)
    }

    fn remove_shelves(&mut self, is_unwanted: impl Fn(&SessionShelf) -> bool) -> Vec<ReadySession> {
        let (unwanted, kept) = std::mem::take(&mut self.shelves).into_iter().partition(is_unwanted);
        self.shelves = kept;
        unwanted.into_iter().flat_map(|shelf: SessionShelf| shelf.ready).collect()
    }

    fn ready_count(&self) -> usize {
        self.shelves.iter().map(|shelf| shelf.ready.len()).sum()
    }
}

impl SessionPool {
    /// Makes a lasting shelf, so that `begin_start` fills it.
    #[must_use]
    pub(super) fn expect(&self, key: ShelfKey) -> Vec<ReadySession> {
        lock(&self.state).shelf_or_new(key, true).1
    }

    /// Returns a ready session for a caller that needs one, and the sessions that had to make room for the new shelf.
    /// The session may have ended while it waited.
    #[must_use]
    pub(super) fn take(&self, key: ShelfKey) -> (Option<ReadySession>, Vec<ReadySession>) {
        let mut state = lock(&self.state);
        if self.closed.is_cancelled() {
            return (None, Vec::new());
        }
        let (shelf, unused) = state.shelf_or_new(key, false);
        let taken = shelf.and_then(SessionShelf::take);
        match taken {
            Some(_) => state.hits += 1,
            None => state.misses += 1,
        }
        (taken, unused)
    }

    /// True if no shelf lacks a session that could be started now.
    pub(super) fn is_full(&self) -> bool {
        lock(&self.state).shelves.iter().all(|shelf| shelf.lack() == 0)
    }

    /// Counts a start on the shelf that lacks most and returns what to start. Returns None if nothing is to be started
    /// now, or no place is free.
    pub(super) fn begin_start(&self, places: &SandboxPlaces) -> Option<StartOrder> {
        let mut state = lock(&self.state);
        let starting: usize = state.shelves.iter().map(|shelf| shelf.starting).sum();
        if self.closed.is_cancelled() || starting >= MAX_STARTS {
            return None;
        }
        let shelf = state.shelves.iter_mut().filter(|shelf| shelf.lack() > 0).max_by_key(|shelf| shelf.lack())?;
        let place = places.take_free()?;
        shelf.starting += 1;
        let key = shelf.key.clone();
        let modules = match key.language {
            Language::Python => {
                let is_bad = |module: &String| state.bad_modules.contains(&(key.image_id.clone(), module.clone()));
                key.policy.readiness.preload.iter().filter(|module| !is_bad(module)).cloned().collect()
            }
            Language::Node | Language::Bash | Language::Sh => Vec::new(),
        };
        Some(StartOrder { key, modules, place })
    }

    /// Remembers that a module cannot be imported, so that later starts leave it out. Returns false if that was known.
    pub(super) fn remember_bad_module(&self, key: &ShelfKey, module: &str) -> bool {
        let bad_modules = &mut lock(&self.state).bad_modules;
        if bad_modules.len() >= MAX_BAD_MODULES {
            // Most of them are of images that are gone. The others are found again.
            bad_modules.clear();
        }
        bad_modules.insert((key.image_id.clone(), module.to_owned()))
    }

    /// Adds the session of an ordered start to its shelf. Returns it if the shelf is gone or the pool is closed.
    #[must_use]
    pub(super) fn finish_start(&self, key: &ShelfKey, ended: OrderedStart) -> Option<ReadySession> {
        let mut state = lock(&self.state);
        let closed = self.closed.is_cancelled();
        let shelf = state.shelf_mut(key).filter(|_| !closed);
        match (ended, shelf) {
            (OrderedStart::Ready(session), None) => return Some(*session),
            (OrderedStart::Ready(session), Some(shelf)) => {
                shelf.starting = shelf.starting.saturating_sub(1);
                shelf.start_succeeded();
                shelf.add(*session);
            }
            (OrderedStart::Failed, Some(shelf)) => {
                shelf.starting = shelf.starting.saturating_sub(1);
                shelf.start_failed();
            }
            (OrderedStart::Stopped, Some(shelf)) => shelf.starting = shelf.starting.saturating_sub(1),
            (OrderedStart::Failed | OrderedStart::Stopped, None) => {}
        }
        None
    }

    /// Removes ready sessions until there are at most `most`, those of the shelves that wait longest for a caller first.
    #[must_use]
    pub(super) fn shrink_to(&self, most: usize) -> Vec<ReadySession> {
        let mut state = lock(&self.state);
        let mut unused = Vec::new();
        let mut surplus = state.ready_count().saturating_sub(most);
        if surplus > 0 {
            let mut shelves: Vec<&mut SessionShelf> = state.shelves.iter_mut().collect();
            shelves.sort_by_key(|shelf| shelf.last_demand);
            for shelf in shelves {
                let count = surplus.min(shelf.ready.len());
                unused.extend(shelf.ready.drain(..count));
                surplus -= count;
            }
        }
        unused
    }

    /// Removes the sessions that no caller has needed for a while, and the shelves of `GIVE_UP_AFTER`.
    #[must_use]
    pub(super) fn tend(&self) -> Vec<ReadySession> {
        let mut state = lock(&self.state);
        let mut unused: Vec<ReadySession> = state.shelves.iter_mut().filter_map(SessionShelf::shrink).collect();
        unused.extend(state.remove_shelves(SessionShelf::is_given_up));
        unused
    }

    /// Removes the shelves of a principal whose sessions are all to end.
    #[must_use]
    pub(super) fn remove_tenant(&self, tenant: &Principal) -> Vec<ReadySession> {
        lock(&self.state).remove_shelves(|shelf| shelf.key.tenant.as_ref() == Some(tenant))
    }

    /// Takes the sessions out whose sandbox may have ended while they waited. Give those that live to `put_back`.
    pub(super) fn take_doubtful(&self) -> Vec<(ShelfKey, ReadySession)> {
        let mut state = lock(&self.state);
        let mut doubtful = Vec::new();
        for shelf in &mut state.shelves {
            let (dead, alive) = shelf.ready.drain(..).partition(|ready| ready.session.may_have_ended());
            shelf.ready = alive;
            doubtful.extend(dead.into_iter().map(|ready: ReadySession| (shelf.key.clone(), ready)));
        }
        doubtful
    }

    /// Puts a session back that `take_doubtful` took out. Returns it if its shelf is gone or the pool is closed.
    #[must_use]
    pub(super) fn put_back(&self, key: &ShelfKey, session: ReadySession) -> Option<ReadySession> {
        let mut state = lock(&self.state);
        let closed = self.closed.is_cancelled();
        match state.shelf_mut(key).filter(|_| !closed) {
            Some(shelf) => shelf.ready.push_front(session),
            None => return Some(session),
        }
        None
    }

    /// Returns the remaining sessions and starts no more.
    #[must_use]
    pub(super) fn close(&self) -> Vec<ReadySession> {
        let mut state = lock(&self.state);
        self.closed.cancel();
        state.remove_shelves(|_| true)
    }

    /// Returns when the pool is closed.
    pub(super) async fn closing(&self) {
        self.closed.cancelled().await;
    }

    pub(super) fn figures(&self) -> PoolFigures {
        let state = lock(&self.state);
        let mut ready: Vec<(Language, usize)> = Vec::new();
        for shelf in &state.shelves {
            match ready.iter_mut().find(|(language, _)| *language == shelf.key.language) {
                Some((_, count)) => *count += shelf.ready.len(),
                None => ready.push((shelf.key.language, shelf.ready.len())),
            }
        }
        PoolFigures { ready, hits: state.hits, misses: state.misses }
    }
}
