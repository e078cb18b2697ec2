//! All sessions of a server. A caller finds its sessions by handle or by name and never sees those of another
//! principal. Their number is limited, and a session ends when it has been idle for too long.
//!
//! `SessionEntry` in `lease.rs` describes which task sets and reads each field of a session, and in which order.

mod ended_sessions;
mod errors;
mod lease;
mod pool_refill;
mod sandbox_places;
mod session_pool;
mod table;

use std::io::Cursor;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use cove_protocol::{Language, SessionId};
use tokio::sync::{Semaphore, watch};
use tokio::time::sleep;
use tokio_util::task::TaskTracker;

use crate::backend::{Backend, SandboxOwner};
use crate::error::{Failure, display_value};
use crate::guest_streams::{SessionNetwork, SessionNetworks};
use crate::memory_headroom::MemoryHeadroom;
use crate::output::Spool;
use crate::policy::{Policy, SessionLifetime};
use crate::random::random_bits;
use crate::session::SessionOptions;
use crate::sync::lock;

pub use ended_sessions::EndReason;
pub use errors::SessionError;
pub use lease::{OutputId, SessionLease};
pub use session_pool::PoolFigures;

use lease::{SessionEntry, UseGuard};
use pool_refill::tend_pool;
use sandbox_places::SandboxPlaces;
use session_pool::{MountedFiles, SessionPool, ShelfKey};
use table::SessionTable;

/// Longest name that a caller may choose.
const MAX_NAME_LENGTH: usize = 64;

/// The owner of sessions. A handle or a name works for its owner alone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Principal(pub String);

/// How to make a session.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionBlueprint {
    /// The image of the session; None for the environment with all languages.
    pub image: Option<String>,
    /// The id that `Backend::prepare` returned.
    pub image_id: Option<String>,
    pub policy: Arc<Policy>,
    /// False if the caller chose a part of the policy, so that no other caller will ask for the same.
    pub may_be_ready: bool,
    pub lifetime: SessionLifetime,
    /// The language of lines that are sent to the session without one.
    pub line_language: Language,
}

impl SessionBlueprint {
    /// Returns the blueprint of a session for which the caller chose nothing.
    pub fn default_for(policy: Arc<Policy>, image_id: Option<String>) -> Self {
        Self {
            image: None,
            image_id,
            policy,
            may_be_ready: true,
            lifetime: SessionLifetime::Persistent,
            line_language: Language::Python,
        }
    }
}

/// How a session came to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SessionOrigin {
    /// Made because a caller ran code and named no existing session.
    Implicit,
    /// Made on its own, as `start_session` does.
    Explicit,
}

/// The session that a caller refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionRef {
    /// A handle that the registry gave out. The session must exist.
    Handle(SessionId),
    /// A name that the caller chose. The session is made if it does not exist.
    Name(String),
    /// The default session of a client, by the client's name. It is made if it does not exist, and may be evicted:
    /// the names are the client's to invent, and must not fill the registry.
    Client(String),
    /// A new session.
    New,
}

/// Longest name of a client that tells default sessions apart, in characters.
const MAX_CLIENT_NAME_LENGTH: usize = 200;

impl SessionRef {
    /// Returns the default session of a client. Only the first 200 characters of its name count.
    pub fn of_client(name: &str) -> Self {
        Self::Client(name.chars().take(MAX_CLIENT_NAME_LENGTH).collect())
    }

    /// Returns the key under which the registry knows a session besides its handle. No name that `parse` accepts has
    /// the key of a client, because none has a `/`.
    fn key(&self) -> Option<String> {
        match self {
            Self::Name(name) => Some(name.clone()),
            Self::Client(name) => Some(format!("client/{name}")),
            Self::Handle(_) | Self::New => None,
        }
    }

    /// Parses `s_…` as a handle and everything else as a name. Fails if the name is too long or has other characters
    /// than letters, digits, spaces and `-_.:`.
    pub fn parse(text: &str) -> Result<Self, SessionError> {
        if let Some(id) = SessionId::parse(text) {
            return Ok(Self::Handle(id));
        }
        let fits = (1..=MAX_NAME_LENGTH).contains(&text.chars().count());
        let plain = text.chars().all(|c| c.is_alphanumeric() || "-_.: ".contains(c));
        if text.starts_with(SessionId::PREFIX) || !fits || !plain {
            return Err(SessionError::BadName { name: display_value(text) });
        }
        Ok(Self::Name(text.to_owned()))
    }
}

/// The limits of a registry.
#[derive(Debug, Clone, Copy)]
pub struct RegistryLimits {
    pub max_sessions: usize,
    pub idle_timeout: Duration,
    /// Returns the memory that is left, if it is known.
    pub headroom: fn() -> Option<MemoryHeadroom>,
}

/// The state of a registry, for people.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RegistryFigures {
    /// Sessions of callers, including those that are starting.
    pub open: usize,
    pub pool: PoolFigures,
}

pub struct SessionRegistry {
    backend: Arc<dyn Backend>,
    /// The blueprint of most sessions, which share it.
    default_blueprint: Arc<SessionBlueprint>,
    bounds: RegistryLimits,
    /// Makes the network of each session, if the host keeps something for it.
    networks: Option<Arc<dyn SessionNetworks>>,
    table: Mutex<SessionTable>,
    /// One permit for each one-shot sandbox that may exist at the same time. Its `SessionLease` holds the permit.
    oneshot_permits: Arc<Semaphore>,
    pool: SessionPool,
    /// One for each entry of the table, until its sandbox has ended, and for each sandbox of the pool.
    places: SandboxPlaces,
    /// Starts of ready sessions, and ends of unused ones. `close` waits for them: a container whose server
    /// has ended would stay until the next one sweeps.
    pool_tasks: TaskTracker,
    /// How many callers wait for a session of their own to start.
    waiting_callers: watch::Sender<usize>,
}

impl SessionRegistry {
    /// `policy` is the policy of sessions for which a caller chooses nothing. Starts the tasks that end idle sessions
    /// and tend the ready ones; they run until the registry is dropped.
    pub fn new(backend: Arc<dyn Backend>, policy: Policy, bounds: RegistryLimits) -> Arc<Self> {
        Self::with_networks(backend, policy, bounds, None)
    }

    /// Does the same as `new`, and gives each session a network of `networks`.
    pub fn with_networks(
        backend: Arc<dyn Backend>,
        policy: Policy,
        bounds: RegistryLimits,
        networks: Option<Arc<dyn SessionNetworks>>,
    ) -> Arc<Self> {
        let default_blueprint = Arc::new(SessionBlueprint::default_for(Arc::new(policy), None));
        let sessions = Arc::new(Self {
            backend,
            default_blueprint,
            bounds,
            networks,
            table: Mutex::default(),
            oneshot_permits: Arc::new(Semaphore::new(bounds.max_sessions)),
            pool: SessionPool::default(),
            places: SandboxPlaces::new(bounds.max_sessions),
            pool_tasks: TaskTracker::new(),
            waiting_callers: watch::Sender::new(0),
        });
        tokio::spawn(end_idle(Arc::downgrade(&sessions), bounds.idle_timeout));
        tokio::spawn(tend_pool(Arc::downgrade(&sessions)));
        sessions
    }

    fn create_network(&self) -> Result<Option<SessionNetwork>, Failure> {
        self.networks.as_ref().map(|networks| networks.create()).transpose()
    }

    /// Leases an existing session. Returns None if no session has that name. Fails if the handle is unknown or the
    /// session has ended, cannot be started or is one-shot.
    pub async fn lease_existing(
        self: &Arc<Self>,
        owner: &Principal,
        which: &SessionRef,
        warm: Option<Language>,
    ) -> Result<Option<SessionLease>, SessionError> {
        self.remove_dead(owner, which).await;
        let Some(hold) = lock(&self.table).use_existing(owner, which)? else { return Ok(None) };
        self.start_lease(hold, warm).await.map(Some)
    }

    /// Leases an existing session or makes one from the blueprint. Fails if the handle is unknown, the registry is full, or
    /// the session cannot be started or is one-shot.
    pub async fn lease(
        self: &Arc<Self>,
        owner: &Principal,
        which: SessionRef,
        blueprint: SessionBlueprint,
        warm: Option<Language>,
    ) -> Result<SessionLease, SessionError> {
        self.remove_dead(owner, &which).await;
        let blueprint = match blueprint == *self.default_blueprint {
            true => Arc::clone(&self.default_blueprint),
            false => Arc::new(blueprint),
        };
        let hold = self.reserve(owner, which, &blueprint, warm, SessionOrigin::Implicit)?;
        self.start_lease(hold, warm).await
    }

    /// Makes a session from a blueprint and returns its handle. A persistent session is started at once, so that a
    /// failure is reported here. If the caller drops the future, `StartGuard` removes the session.
    pub async fn open(
        self: &Arc<Self>,
        owner: &Principal,
        blueprint: SessionBlueprint,
    ) -> Result<SessionId, SessionError> {
        let (lifetime, speaks) = (blueprint.lifetime, blueprint.line_language);
        let hold = self.reserve(owner, SessionRef::New, &Arc::new(blueprint), Some(speaks), SessionOrigin::Explicit)?;
        let id = hold.entry.id.clone();
        if lifetime == SessionLifetime::Persistent {
            let unwanted = StartGuard { sessions: self, entry: Some(Arc::clone(&hold.entry)) };
            self.start_lease(hold, Some(speaks)).await?;
            unwanted.keep();
        }
        Ok(id)
    }

    /// Returns the blueprint of an existing session. Fails if the handle is unknown or the session has ended.
    pub fn blueprint(&self, owner: &Principal, id: &SessionId) -> Result<Arc<SessionBlueprint>, SessionError> {
        Ok(Arc::clone(&lock(&self.table).find(owner, id)?.blueprint))
    }

    /// Starts a sandbox for one call of a one-shot session, with `input` on its standard input. Fails if too many such
    /// sandboxes exist, the sandbox does not start, or the session was removed in the meantime.
    pub async fn lease_oneshot(
        self: &Arc<Self>,
        owner: &Principal,
        id: &SessionId,
        input: Vec<u8>,
    ) -> Result<SessionLease, SessionError> {
        let hold = UseGuard::new(lock(&self.table).find(owner, id)?);
        let Ok(permit) = Arc::clone(&self.oneshot_permits).try_acquire_owned() else {
            return Err(SessionError::TooMany { most: self.bounds.max_sessions });
        };
        let sessions = Arc::clone(self);
        run_detached(async move {
            let entry = &hold.entry;
            let options = || {
                Ok(SessionOptions {
                    input: Some(Box::new(Cursor::new(input.clone()))),
                    warm_language: None,
                    owner: sandbox_owner(entry),
                    network: sessions.create_network()?,
                })
            };
            let session = sessions.start_for_caller(&entry.blueprint.policy, options).await;
            let session = session.map_err(|error| SessionError::Start(Arc::new(error)))?;
            if entry.removed.is_cancelled() {
                session.kill().await;
                return Err(SessionError::Ended { id: entry.id.clone(), why: EndReason::Stopped });
            }
            Ok(SessionLease::for_oneshot(hold, session, permit))
        })
        .await
    }

    /// Returns stored output, or None if no session of `owner` has output with this id.
    pub fn find_output(&self, owner: &Principal, id: &OutputId) -> Option<Arc<Spool>> {
        let table = lock(&self.table);
        table.entries.values().filter(|entry| entry.owner == *owner).find_map(|entry| entry.output(id))
    }

    /// Starts the session of an entry if it has not started yet. Fails for one-shot sessions, which have no shared
    /// sandbox.
    async fn start_lease(
        self: &Arc<Self>,
        hold: UseGuard,
        warm: Option<Language>,
    ) -> Result<SessionLease, SessionError> {
        if hold.entry.blueprint.lifetime == SessionLifetime::Oneshot {
            let image = hold.entry.blueprint.image.clone().unwrap_or_default();
            return Err(SessionError::Oneshot { id: hold.entry.id.clone(), image });
        }
        if hold.entry.session.initialized() {
            return self.start_entry(hold, warm).await;
        }
        let sessions = Arc::clone(self);
        run_detached(async move { sessions.start_entry(hold, warm).await }).await
    }

    /// Sets `entry.session`, or waits for the task that is setting it. Looks at `closed` and `removed` after that: see
    /// `SessionEntry` for the order. On failure removes the entry.
    async fn start_entry(&self, hold: UseGuard, warm: Option<Language>) -> Result<SessionLease, SessionError> {
        let policy = &hold.entry.blueprint.policy;
        let mut is_new = false;
        let started = hold.entry.session.get_or_try_init(|| async {
            is_new = true;
            // Another caller began the start and failed, or the session was stopped while this caller waited.
            if hold.entry.removed.is_cancelled() {
                return Err(Failure::operator("could not start the session: it was ended while it started"));
            }
            let ready = lock(&hold.entry.ready_session).take();
            if let Some(ready) = ready {
                // While it waited, its sandbox may have ended, and a mounted path may have got another file.
                if ready.session.is_alive().await && ready.mounts == MountedFiles::of_policy(policy).await {
                    return Ok(ready.session);
                }
                ready.end().await;
            }
            let owner = sandbox_owner(&hold.entry);
            let options = || {
                Ok(SessionOptions {
                    input: None,
                    warm_language: warm,
                    owner: owner.clone(),
                    network: self.create_network()?,
                })
            };
            self.start_for_caller(policy, options).await
        });
        match started.await {
            // `close` has emptied the table and may have missed this session.
            Ok(session) if lock(&self.table).closed => {
                session.kill().await;
                Err(SessionError::Closed)
            }
            Ok(session) if hold.entry.removed.is_cancelled() => {
                session.kill().await;
                self.remove(&hold.entry.id);
                Err(SessionError::Ended { id: hold.entry.id.clone(), why: EndReason::Stopped })
            }
            Ok(_) => Ok(SessionLease::for_shared(hold, is_new)),
            Err(error) => {
                hold.entry.removed.cancel();
                self.remove(&hold.entry.id);
                Err(SessionError::Start(Arc::new(error)))
            }
        }
    }

    /// Removes the session that `which` refers to if its sandbox has ended by itself, so that its name becomes free. No
    /// task watches for such ends, so each lookup asks the sandbox.
    async fn remove_dead(&self, owner: &Principal, which: &SessionRef) {
        let Some(entry) = lock(&self.table).get(owner, which) else { return };
        let Some(session) = entry.session.get() else { return };
        if !session.is_alive().await {
            let ending = session.kill().await;
            lock(&self.table).remove_and_record(&entry.id, EndReason::Ended(ending));
        }
    }

    /// Returns an existing session, or adds an entry for a new one, with a ready session if there is one. Evicts another
    /// session if the registry is full, and fails if none can be evicted.
    fn reserve(
        self: &Arc<Self>,
        owner: &Principal,
        which: SessionRef,
        blueprint: &Arc<SessionBlueprint>,
        warm: Option<Language>,
        origin: SessionOrigin,
    ) -> Result<UseGuard, SessionError> {
        let mut table = lock(&self.table);
        // The guard is made while the table is locked, so that the session cannot end as idle in between.
        if let Some(hold) = table.use_existing(owner, &which)? {
            return Ok(hold);
        }
        let name = which.key();
        table.remove_ended();
        if table.entries.len() >= self.bounds.max_sessions && !table.evict_one(owner) {
            return Err(SessionError::TooMany { most: self.bounds.max_sessions });
        }
        let language = warm.unwrap_or(blueprint.line_language);
        let mut ready = ShelfKey::new(blueprint, language, owner).and_then(|key| self.take_ready(key));
        // A session that was ready brings its id along, because its sandbox may be labelled with it, and its place.
        let id = ready.as_ref().map_or_else(|| SessionId::from_random(random_bits()), |ready| ready.id.clone());
        let place = ready.as_mut().and_then(|ready| ready.place.take()).unwrap_or_else(|| self.places.take());
        let before = name.as_deref().and_then(|name| table.ended.take_reason_for_name(name, owner));
        let disposable = origin == SessionOrigin::Implicit && !matches!(which, SessionRef::Name(_));
        let mut entry =
            SessionEntry::new(id.clone(), owner.clone(), name.clone(), Arc::clone(blueprint), before, disposable);
        entry.place = Some(place);
        entry.ready_session = Mutex::new(ready);
        let entry = Arc::new(entry);
        if let Some(name) = name {
            table.names.insert((owner.clone(), name), id.clone());
        }
        table.entries.insert(id, Arc::clone(&entry));
        self.end_unused(self.pool.shrink_to(self.bounds.max_sessions.saturating_sub(table.entries.len())));
        Ok(UseGuard::new(entry))
    }

    /// Kills a session of `owner` together with its running cells. Fails if there is no such session, or if its sandbox
    /// could not be removed yet.
    pub async fn stop(&self, owner: &Principal, which: SessionRef) -> Result<SessionId, SessionError> {
        let entry = {
            let mut table = lock(&self.table);
            let id = match which {
                SessionRef::Handle(id) => id,
                which => {
                    let name = which.key().unwrap_or_default();
                    let unknown = || SessionError::UnknownName { name: display_value(&name) };
                    table.names.get(&(owner.clone(), name.clone())).cloned().ok_or_else(unknown)?
                }
            };
            let entry = table.find(owner, &id)?;
            table.remove_and_record(&id, EndReason::Stopped);
            entry
        };
        if let Some(session) = entry.session.get() {
            session.kill().await;
            if session.has_leftovers().await {
                return Err(SessionError::CleanupPending { id: entry.id.clone() });
            }
        }
        Ok(entry.id.clone())
    }

    /// Kills every session of `owner` together with its running cells.
    pub async fn stop_all_of(&self, owner: &Principal) {
        let entries: Vec<Arc<SessionEntry>> = {
            let mut table = lock(&self.table);
            let own: Vec<_> = table.entries.values().filter(|entry| entry.owner == *owner).map(Arc::clone).collect();
            own.iter().for_each(|entry| table.remove_and_record(&entry.id, EndReason::Stopped));
            own
        };
        let unused = self.pool.remove_tenant(owner);
        let mut ends = tokio::task::JoinSet::new();
        for entry in entries {
            ends.spawn(async move { entry.kill().await });
        }
        for ready in unused {
            ends.spawn(ready.end());
        }
        while ends.join_next().await.is_some() {}
    }

    /// Kills all sessions and refuses new ones. A start that is under way sees `closed` when it is done and kills its
    /// own sandbox. Returns when nothing of the ready sessions is left.
    pub async fn close(&self) {
        let entries: Vec<Arc<SessionEntry>> = {
            let mut table = lock(&self.table);
            table.closed = true;
            table.names.clear();
            table.entries.drain().map(|(_, entry)| entry).collect()
        };
        self.end_unused(self.pool.close());
        let mut ends = tokio::task::JoinSet::new();
        for entry in entries {
            ends.spawn(async move { entry.kill().await });
        }
        while ends.join_next().await.is_some() {}
        self.pool_tasks.close();
        self.pool_tasks.wait().await;
    }

    /// Returns the state of the registry, for people.
    pub fn figures(&self) -> RegistryFigures {
        RegistryFigures { open: self.count(), pool: self.pool.figures() }
    }

    /// Returns the number of sessions, including those that are starting.
    pub fn count(&self) -> usize {
        lock(&self.table).entries.len()
    }

    fn remove(&self, id: &SessionId) {
        drop(lock(&self.table).remove(id));
    }

    /// Removes and returns the entries that have been idle for too long.
    fn remove_idle(&self) -> Vec<Arc<SessionEntry>> {
        let mut table = lock(&self.table);
        let idle: Vec<Arc<SessionEntry>> = table
            .entries
            .values()
            .filter(|entry| {
                let used = lock(&entry.usage);
                used.holders == 0 && used.last.elapsed() >= self.bounds.idle_timeout
            })
            .cloned()
            .collect();
        idle.iter().for_each(|entry| table.remove_and_record(&entry.id, EndReason::Idle(self.bounds.idle_timeout)));
        idle
    }
}

/// Removes a session whose `open` was dropped before it returned, because no caller knows its handle.
///
/// `open` makes the guard before the start and calls `keep` after it. The start itself runs in a detached task and goes
/// on if `open` is dropped. The guard then sets `removed` first and looks at `session` second, and the start does the
/// reverse, so at least one of them sees the other. If the session has not started, the detached task kills its sandbox
/// and removes the entry when the start is done; the entry counts against the limit until then. If it has started, the
/// guard does both in a new task.
struct StartGuard<'a> {
    sessions: &'a Arc<SessionRegistry>,
    entry: Option<Arc<SessionEntry>>,
}

impl StartGuard<'_> {
    fn keep(mut self) {
        self.entry = None;
    }
}

impl Drop for StartGuard<'_> {
    fn drop(&mut self) {
        let Some(entry) = self.entry.take() else { return };
        entry.removed.cancel();
        // The task that starts the session sees `removed`, kills the sandbox and removes the entry.
        if !entry.session.initialized() {
            return;
        }
        let sessions = Arc::clone(self.sessions);
        // Without a runtime this process is ending, and its sandboxes end with it.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                entry.kill().await;
                sessions.remove(&entry.id);
            });
        }
    }
}

/// Runs a start in its own task, so that it completes even if the caller is dropped. The task holds the `UseGuard`, so
/// the session counts as used, and takes its place in the table, until its sandbox is there or gone.
async fn run_detached(
    start: impl Future<Output = Result<SessionLease, SessionError>> + Send + 'static,
) -> Result<SessionLease, SessionError> {
    tokio::spawn(start).await.unwrap_or_else(|error| {
        Err(SessionError::Start(Arc::new(Failure::operator("could not start the session").because(error))))
    })
}

/// Stops idle sessions at intervals until the registry is dropped.
async fn end_idle(sessions: Weak<SessionRegistry>, idle: Duration) {
    let pause = (idle / 4).clamp(Duration::from_millis(10), Duration::from_secs(30));
    loop {
        sleep(pause).await;
        let Some(sessions) = sessions.upgrade() else { return };
        for entry in sessions.remove_idle() {
            // Each in its own task: one that is slow to end must not delay the others.
            tokio::spawn(async move {
                if let Some(session) = entry.session.get() {
                    session.stop().await;
                }
            });
        }
    }
}

fn sandbox_owner(entry: &SessionEntry) -> SandboxOwner {
    SandboxOwner { session: entry.id.to_string(), principal: entry.owner.0.clone() }
}
