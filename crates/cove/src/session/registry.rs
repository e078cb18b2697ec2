//! All sessions of a server: found by handle or by name, private to whoever made them, bounded in number, ended when
//! nobody has used them for a while.

mod errors;
mod gone;
mod held;
mod parking;
mod table;

use std::io::Cursor;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use cove_protocol::{Language, SessionId};
use tokio::sync::Semaphore;
use tokio::time::sleep;

use crate::backend::{Backend, StartError, Whose};
use crate::error::shown;
use crate::output::Spool;
use crate::policy::Policy;
use crate::session::{Options, Session};

pub use errors::SessionError;
pub use gone::Gone;
pub use held::{Held, OutputId};

use held::{Entry, Hold};
use parking::Parking;
use table::Table;

/// Longest name that a caller may choose.
const MAX_NAME: usize = 64;

/// Who asks. Handles and names are of no use to anyone else.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Principal(pub String);

/// What a session is made of.
#[derive(Debug, Clone, PartialEq)]
pub struct Blueprint {
    /// The image it was made of; none for the environment with all languages.
    pub image: Option<String>,
    pub policy: Policy,
    pub lifetime: Lifetime,
    /// What it takes plain lines for.
    pub speaks: Language,
}

impl Blueprint {
    /// Of a session that nobody asked anything special of.
    fn standard(policy: Policy) -> Self {
        Self { image: None, policy, lifetime: Lifetime::Persistent, speaks: Language::Python }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifetime {
    /// One sandbox from the first call to the end.
    Persistent,
    /// A new sandbox for each call.
    Oneshot,
}

/// How a session came to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// By somebody who wanted one, whichever.
    Asked,
    /// By itself, as `start_session` does.
    Started,
}

/// Which session a caller means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    /// A handle that we gave out; it must exist.
    Handle(SessionId),
    /// A name of the caller's own choice; made if it is not there.
    Name(String),
    /// A new one.
    New,
}

impl Which {
    /// `s_…` is a handle, everything else a name.
    pub fn parse(text: &str) -> Result<Self, SessionError> {
        if let Some(id) = SessionId::parse(text) {
            return Ok(Self::Handle(id));
        }
        let fits = (1..=MAX_NAME).contains(&text.chars().count());
        let plain = text.chars().all(|c| c.is_alphanumeric() || "-_.: ".contains(c));
        if text.starts_with(SessionId::PREFIX) || !fits || !plain {
            return Err(SessionError::BadName { name: shown(text) });
        }
        Ok(Self::Name(text.to_owned()))
    }
}

/// The bounds of a registry.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub most: usize,
    pub idle: Duration,
    /// Sessions kept ready for whoever comes next.
    pub parked: usize,
}

pub struct Sessions {
    backend: Arc<dyn Backend>,
    /// What those kept ready are made of.
    standard: Arc<Blueprint>,
    bounds: Bounds,
    table: Mutex<Table>,
    /// Sandboxes for one call each that may live at once.
    oneshot: Arc<Semaphore>,
    parking: Parking,
}

impl Sessions {
    /// `policy` is that of the sessions that are kept ready.
    pub fn new(backend: Arc<dyn Backend>, policy: Policy, bounds: Bounds) -> Arc<Self> {
        let parking = Parking::new(Arc::clone(&backend), policy.clone(), bounds.parked);
        let standard = Arc::new(Blueprint::standard(policy));
        let sessions = Arc::new(Self {
            backend,
            standard,
            bounds,
            table: Mutex::default(),
            oneshot: Arc::new(Semaphore::new(bounds.most)),
            parking,
        });
        tokio::spawn(end_idle(Arc::downgrade(&sessions), bounds.idle));
        sessions
    }

    /// Gets one ready for whoever comes next, beside whatever else goes on.
    pub fn park(&self) {
        self.parking.fill();
    }

    /// Holds a session that is there. Nothing if there is none of that name.
    pub async fn find(
        self: &Arc<Self>,
        owner: &Principal,
        which: &Which,
        warm: Option<Language>,
    ) -> Result<Option<Held>, SessionError> {
        self.bury_dead(owner, which).await;
        let Some(hold) = lock(&self.table).known(owner, which)? else { return Ok(None) };
        self.start(hold, warm).await.map(Some)
    }

    /// Finds a session, or makes one that is confined by `policy`, and holds it.
    pub async fn hold(
        self: &Arc<Self>,
        owner: &Principal,
        which: Which,
        policy: &Policy,
        warm: Option<Language>,
    ) -> Result<Held, SessionError> {
        self.bury_dead(owner, &which).await;
        let blueprint = match *policy == self.standard.policy {
            true => Arc::clone(&self.standard),
            false => Arc::new(Blueprint::standard(policy.clone())),
        };
        let hold = self.reserve(owner, which, &blueprint, Origin::Asked)?;
        self.start(hold, warm).await
    }

    /// Makes a session of its own kind; one that lasts is started at once, so that a failure shows here. Should nobody
    /// wait for it any more, it is not there.
    pub async fn open(
        self: &Arc<Self>,
        owner: &Principal,
        blueprint: Blueprint,
    ) -> Result<SessionId, SessionError> {
        let (lifetime, speaks) = (blueprint.lifetime, blueprint.speaks);
        let hold = self.reserve(owner, Which::New, &Arc::new(blueprint), Origin::Started)?;
        let id = hold.entry.id.clone();
        if lifetime == Lifetime::Persistent {
            let unwanted = Unwanted { sessions: self, entry: Some(Arc::clone(&hold.entry)) };
            self.start(hold, Some(speaks)).await?;
            unwanted.keep();
        }
        Ok(id)
    }

    /// What a session that is there is made of.
    pub fn blueprint(&self, owner: &Principal, id: &SessionId) -> Result<Arc<Blueprint>, SessionError> {
        Ok(Arc::clone(&lock(&self.table).find(owner, id)?.blueprint))
    }

    /// A new sandbox for one call of a session that has one for each, with `input` on its standard input.
    pub async fn once(
        self: &Arc<Self>,
        owner: &Principal,
        id: &SessionId,
        input: Vec<u8>,
    ) -> Result<Held, SessionError> {
        let hold = Hold::new(lock(&self.table).find(owner, id)?);
        let Ok(permit) = Arc::clone(&self.oneshot).try_acquire_owned() else {
            return Err(SessionError::TooMany { most: self.bounds.most });
        };
        let sessions = Arc::clone(self);
        to_its_end(async move {
            let entry = &hold.entry;
            let options =
                Options { input: Some(Box::new(Cursor::new(input))), warm: None, whose: whose(entry) };
            let session = Session::start(&*sessions.backend, &entry.blueprint.policy, options).await;
            let session = session.map_err(|error| SessionError::Start(Arc::new(error)))?;
            if entry.over.is_cancelled() {
                session.end().await;
                return Err(SessionError::Gone { id: entry.id.clone(), why: Gone::Stopped });
            }
            Ok(Held::own(hold, session, permit))
        })
        .await
    }

    /// Output that was kept aside, for the owner of its session.
    pub fn output(&self, owner: &Principal, id: &OutputId) -> Option<Arc<Spool>> {
        let table = lock(&self.table);
        table.entries.values().filter(|entry| entry.owner == *owner).find_map(|entry| entry.output(id))
    }

    async fn start(self: &Arc<Self>, hold: Hold, warm: Option<Language>) -> Result<Held, SessionError> {
        if hold.entry.blueprint.lifetime == Lifetime::Oneshot {
            let image = hold.entry.blueprint.image.clone().unwrap_or_default();
            return Err(SessionError::Oneshot { id: hold.entry.id.clone(), image });
        }
        if hold.entry.session.initialized() {
            return self.started(hold, warm).await;
        }
        let sessions = Arc::clone(self);
        to_its_end(async move { sessions.started(hold, warm).await }).await
    }

    async fn started(&self, hold: Hold, warm: Option<Language>) -> Result<Held, SessionError> {
        let policy = &hold.entry.blueprint.policy;
        let mut is_new = false;
        let started = hold.entry.session.get_or_try_init(|| async {
            is_new = true;
            // Whoever began it failed, and took it out.
            if hold.entry.over.is_cancelled() {
                return Err(StartError::new("could not start the session: it was ended while it started"));
            }
            if *policy == self.standard.policy
                && let Some(session) = self.parking.take(warm).await
            {
                return Ok(session);
            }
            let whose = whose(&hold.entry);
            Session::start(&*self.backend, policy, Options { input: None, warm, whose }).await
        });
        match started.await {
            // The server may have begun to end meanwhile, and counts on having seen all.
            Ok(session) if lock(&self.table).closed => {
                session.end().await;
                Err(SessionError::Closed)
            }
            Ok(session) if hold.entry.over.is_cancelled() => {
                session.end().await;
                self.remove(&hold.entry.id);
                Err(SessionError::Gone { id: hold.entry.id.clone(), why: Gone::Stopped })
            }
            Ok(_) => Ok(Held::shared(hold, is_new)),
            Err(error) => {
                hold.entry.over.cancel();
                self.remove(&hold.entry.id);
                Err(SessionError::Start(Arc::new(error)))
            }
        }
    }

    /// A sandbox that has ended by itself is of no use under its handle and in the way under its name. That it has ended
    /// shows only when somebody looks.
    async fn bury_dead(&self, owner: &Principal, which: &Which) {
        let entry = {
            let table = lock(&self.table);
            let id = match which {
                Which::Handle(id) => Some(id),
                Which::Name(name) => table.names.get(&(owner.clone(), name.clone())),
                Which::New => None,
            };
            id.and_then(|id| table.entries.get(id)).cloned()
        };
        let Some(entry) = entry else { return };
        let Some(session) = entry.session.get() else { return };
        if !session.is_alive().await {
            let ending = session.end().await;
            lock(&self.table).bury(&entry.id, Gone::Ended(ending));
        }
    }

    fn reserve(
        &self,
        owner: &Principal,
        which: Which,
        blueprint: &Arc<Blueprint>,
        origin: Origin,
    ) -> Result<Hold, SessionError> {
        let mut table = lock(&self.table);
        // Held before the table is let go, so that it cannot end in between for being idle.
        if let Some(hold) = table.known(owner, &which)? {
            return Ok(hold);
        }
        let name = match which {
            Which::Name(name) => Some(name),
            Which::New | Which::Handle(_) => None,
        };
        table.bury_ended();
        if table.entries.len() >= self.bounds.most && !table.make_room(owner) {
            return Err(SessionError::TooMany { most: self.bounds.most });
        }
        let id = SessionId::from_random(random());
        let before = name.as_deref().and_then(|name| table.gone.take_name(name, owner));
        let disposable = origin == Origin::Asked && name.is_none();
        let entry =
            Entry::new(id.clone(), owner.clone(), name.clone(), Arc::clone(blueprint), before, disposable);
        let entry = Arc::new(entry);
        if let Some(name) = name {
            table.names.insert((owner.clone(), name), id.clone());
        }
        table.entries.insert(id, Arc::clone(&entry));
        Ok(Hold::new(entry))
    }

    /// Ends a session of the owner's at once; cells that run in it end with it.
    pub async fn stop(&self, owner: &Principal, which: Which) -> Result<SessionId, SessionError> {
        let entry = {
            let mut table = lock(&self.table);
            let id = match which {
                Which::Handle(id) => id,
                Which::Name(name) => match table.names.get(&(owner.clone(), name.clone())) {
                    Some(id) => id.clone(),
                    None => return Err(SessionError::UnknownName { name: shown(&name) }),
                },
                Which::New => return Err(SessionError::UnknownName { name: String::new() }),
            };
            let entry = table.find(owner, &id)?;
            table.bury(&id, Gone::Stopped);
            entry
        };
        if let Some(session) = entry.session.get() {
            session.end().await;
            if session.is_left().await {
                return Err(SessionError::StillThere { id: entry.id.clone() });
            }
        }
        Ok(entry.id.clone())
    }

    /// Ends all of them, and lets no more begin.
    pub async fn close(&self) {
        let entries: Vec<Arc<Entry>> = {
            let mut table = lock(&self.table);
            table.closed = true;
            table.names.clear();
            table.entries.drain().map(|(_, entry)| entry).collect()
        };
        let parked = self.parking.close();
        let mut ends = tokio::task::JoinSet::new();
        for entry in entries {
            ends.spawn(async move {
                if let Some(session) = entry.session.get() {
                    session.end().await;
                }
            });
        }
        for session in parked {
            ends.spawn(async move { drop(session.end().await) });
        }
        while ends.join_next().await.is_some() {}
    }

    /// How many there are, those that start included.
    pub fn count(&self) -> usize {
        lock(&self.table).entries.len()
    }

    fn remove(&self, id: &SessionId) {
        drop(lock(&self.table).remove(id));
    }

    /// Takes out what nobody has used for too long.
    fn take_idle(&self) -> Vec<Arc<Entry>> {
        let mut table = lock(&self.table);
        let idle: Vec<Arc<Entry>> = table
            .entries
            .values()
            .filter(|entry| {
                let used = lock(&entry.used);
                used.holders == 0 && used.last.elapsed() >= self.bounds.idle
            })
            .cloned()
            .collect();
        idle.iter().for_each(|entry| table.bury(&entry.id, Gone::Idle(self.bounds.idle)));
        idle
    }
}

/// Takes a session out that was started for somebody who went away meanwhile.
struct Unwanted<'a> {
    sessions: &'a Arc<Sessions>,
    entry: Option<Arc<Entry>>,
}

impl Unwanted<'_> {
    fn keep(mut self) {
        self.entry = None;
    }
}

impl Drop for Unwanted<'_> {
    fn drop(&mut self) {
        let Some(entry) = self.entry.take() else { return };
        entry.over.cancel();
        // Whoever starts it sees that, and takes it out when it is gone: until then it takes room.
        if !entry.session.initialized() {
            return;
        }
        let sessions = Arc::clone(self.sessions);
        // Without a runtime this process is ending, and all with it.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                if let Some(session) = entry.session.get() {
                    session.end().await;
                }
                sessions.remove(&entry.id);
            });
        }
    }
}

/// Also when nobody waits for it any more: what is being made counts until it is there, or gone.
async fn to_its_end(
    start: impl Future<Output = Result<Held, SessionError>> + Send + 'static,
) -> Result<Held, SessionError> {
    tokio::spawn(start).await.unwrap_or_else(|error| {
        Err(SessionError::Start(Arc::new(StartError::new("could not start the session").because(error))))
    })
}

async fn end_idle(sessions: Weak<Sessions>, idle: Duration) {
    let pause = (idle / 4).clamp(Duration::from_millis(10), Duration::from_secs(30));
    loop {
        sleep(pause).await;
        let Some(sessions) = sessions.upgrade() else { return };
        for entry in sessions.take_idle() {
            // Each on its own: one that takes long to end must not hold up the others.
            tokio::spawn(async move {
                if let Some(session) = entry.session.get() {
                    session.stop().await;
                }
            });
        }
    }
}

fn whose(entry: &Entry) -> Whose {
    Whose { session: entry.id.to_string(), principal: entry.owner.0.clone() }
}

/// What nobody can guess.
pub(crate) fn random() -> u128 {
    let mut bytes = [0u8; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        // Fails only where there is no such call, on kernels far older than any we run on.
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())
            .unwrap_or_else(|error| panic!("could not get random bytes: {error}"));
    }
    u128::from_ne_bytes(bytes)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
