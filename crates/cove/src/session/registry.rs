//! All sessions of a server: found by handle or by name, private to whoever made them, bounded in number, ended when
//! nobody has used them for a while.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use cove_protocol::{Language, SessionId};
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep};

use crate::backend::{Backend, StartError};
use crate::error::shown;
use crate::output::Budget;
use crate::policy::Policy;
use crate::session::{Options, Session};

/// Longest name that a caller may choose.
const MAX_NAME: usize = 64;

/// The language whose interpreter parked sessions have started.
const PARKED: Language = Language::Python;

/// Who asks. Handles and names are of no use to anyone else.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Principal(pub String);

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

#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error("could not use `{name}` as the name of a session")]
    BadName { name: String },
    #[error("could not find the session `{id}`")]
    Unknown { id: SessionId },
    #[error("could not start another session: {most} are open")]
    TooMany { most: usize },
    #[error(transparent)]
    Start(#[from] Arc<StartError>),
}

impl crate::error::Hint for SessionError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::BadName { .. } => {
                format!(
                    "a name has 1 to {MAX_NAME} letters, digits, spaces or `-_.:`, and does not begin with `s_`"
                )
            }
            Self::Unknown { .. } => {
                "it has ended or never was; leave `session` out, or name a new one".into()
            }
            Self::TooMany { .. } => "end one that is no longer needed; idle ones end by themselves".into(),
            Self::Start(error) => return error.hint.clone(),
        })
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
    policy: Policy,
    bounds: Bounds,
    table: Mutex<Table>,
    /// Started with an interpreter that has run nothing yet, and nobody's so far. Each becomes one person's session, and
    /// ends as that.
    parked: Arc<Mutex<Vec<Session>>>,
}

#[derive(Default)]
struct Table {
    entries: HashMap<SessionId, Arc<Entry>>,
    names: HashMap<(Principal, String), SessionId>,
}

struct Entry {
    id: SessionId,
    owner: Principal,
    name: Option<String>,
    /// Started by the first who asks; others who ask meanwhile wait for it.
    session: OnceCell<Session>,
    budget: Budget,
    used: Mutex<Use>,
}

struct Use {
    holders: usize,
    last: Instant,
}

/// A session in use: as long as this lives it does not end for being idle.
pub struct Held {
    entry: Arc<Entry>,
}

impl Held {
    pub fn id(&self) -> &SessionId {
        &self.entry.id
    }

    pub fn name(&self) -> Option<&str> {
        self.entry.name.as_deref()
    }

    /// The room that its cells have for output beyond their results.
    pub fn budget(&self) -> &Budget {
        &self.entry.budget
    }
}

impl std::ops::Deref for Held {
    type Target = Session;

    fn deref(&self) -> &Session {
        // Held is only made of entries that have started.
        self.entry.session.get().unwrap_or_else(|| unreachable!("a held session has started"))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut used = lock(&self.entry.used);
        used.holders -= 1;
        used.last = Instant::now();
    }
}

impl Sessions {
    pub fn new(backend: Arc<dyn Backend>, policy: Policy, bounds: Bounds) -> Arc<Self> {
        let sessions =
            Arc::new(Self { backend, policy, bounds, table: Mutex::default(), parked: Arc::default() });
        sessions.park_another();
        tokio::spawn(end_idle(Arc::downgrade(&sessions), bounds.idle));
        sessions
    }

    /// Finds or makes a session, and holds it.
    pub async fn hold(
        &self,
        owner: &Principal,
        which: Which,
        warm: Option<Language>,
    ) -> Result<Held, SessionError> {
        let entry = self.reserve(owner, which)?;
        // From here on it counts as used, so that it does not end while it starts.
        lock(&entry.used).holders += 1;
        let held = PreHeld { entry };
        let started = held.entry.session.get_or_try_init(|| async {
            let parked = self.take_parked(warm).await;
            self.park_another();
            match parked {
                Some(session) => Ok(session),
                None => Session::start(&*self.backend, &self.policy, Options { input: None, warm }).await,
            }
        });
        match started.await {
            Ok(_) => Ok(held.into_held()),
            Err(error) => {
                self.remove(&held.entry.id);
                Err(SessionError::Start(Arc::new(error)))
            }
        }
    }

    /// One that is ready and alive, unless another language than the one they have started is wanted at once.
    async fn take_parked(&self, warm: Option<Language>) -> Option<Session> {
        if warm.is_some_and(|language| language != PARKED) {
            return None;
        }
        loop {
            let session = lock(&self.parked).pop()?;
            // It may have died while it waited, as any process may.
            if session.is_alive().await {
                return Some(session);
            }
        }
    }

    /// Makes up for one that was taken, beside whatever else goes on. A failure shows when a session is asked for.
    fn park_another(&self) {
        let (backend, policy) = (Arc::clone(&self.backend), self.policy.clone());
        let (parked, most) = (Arc::clone(&self.parked), self.bounds.parked);
        tokio::spawn(async move {
            if lock(&parked).len() >= most {
                return;
            }
            let options = Options { input: None, warm: Some(PARKED) };
            if let Ok(session) = Session::start(&*backend, &policy, options).await {
                let mut parked = lock(&parked);
                // Another may have been faster; what is too many ends here.
                if parked.len() < most {
                    parked.push(session);
                }
            }
        });
    }

    fn reserve(&self, owner: &Principal, which: Which) -> Result<Arc<Entry>, SessionError> {
        let mut table = lock(&self.table);
        // A sandbox that has died is of no use under its handle, and in the way under its name.
        let dead = |entry: &Entry| entry.session.get().is_some_and(|session| session.ended().is_some());
        let name = match which {
            Which::Handle(id) => {
                return match table.entries.get(&id) {
                    // Whose it is decides, not who knows it; and a stranger learns nothing from the answer.
                    Some(entry) if entry.owner == *owner && !dead(entry) => Ok(Arc::clone(entry)),
                    _ => Err(SessionError::Unknown { id }),
                };
            }
            Which::Name(name) => {
                let known =
                    table.names.get(&(owner.clone(), name.clone())).and_then(|id| table.entries.get(id));
                match known {
                    Some(entry) if !dead(entry) => return Ok(Arc::clone(entry)),
                    Some(entry) => {
                        let id = entry.id.clone();
                        table.remove(&id);
                    }
                    None => {}
                }
                Some(name)
            }
            Which::New => None,
        };
        table.entries.retain(|_, entry| !dead(entry));
        if table.entries.len() >= self.bounds.most {
            return Err(SessionError::TooMany { most: self.bounds.most });
        }
        let id = SessionId::from_random(random());
        let entry = Arc::new(Entry {
            id: id.clone(),
            owner: owner.clone(),
            name: name.clone(),
            session: OnceCell::new(),
            budget: Budget::default(),
            used: Mutex::new(Use { holders: 0, last: Instant::now() }),
        });
        if let Some(name) = name {
            table.names.insert((owner.clone(), name), id.clone());
        }
        table.entries.insert(id, Arc::clone(&entry));
        Ok(entry)
    }

    /// Ends a session of the owner's at once; cells that run in it end with it.
    pub async fn stop(&self, owner: &Principal, which: Which) -> Result<SessionId, SessionError> {
        let entry = {
            let mut table = lock(&self.table);
            let id = match &which {
                Which::Handle(id) => Some(id.clone()),
                Which::Name(name) => table.names.get(&(owner.clone(), name.clone())).cloned(),
                Which::New => None,
            };
            let found =
                id.as_ref().and_then(|id| table.entries.get(id)).filter(|entry| entry.owner == *owner);
            match (found.cloned(), id) {
                (Some(entry), _) => {
                    table.remove(&entry.id);
                    entry
                }
                (None, Some(id)) => return Err(SessionError::Unknown { id }),
                (None, None) => {
                    let name = match which {
                        Which::Name(name) => shown(&name),
                        _ => String::new(),
                    };
                    return Err(SessionError::BadName { name });
                }
            }
        };
        if let Some(session) = entry.session.get() {
            session.end().await;
        }
        Ok(entry.id.clone())
    }

    /// How many there are, those that start included.
    pub fn count(&self) -> usize {
        lock(&self.table).entries.len()
    }

    fn remove(&self, id: &SessionId) {
        lock(&self.table).remove(id);
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
        idle.iter().for_each(|entry| table.remove(&entry.id));
        idle
    }
}

impl Table {
    fn remove(&mut self, id: &SessionId) {
        if let Some(entry) = self.entries.remove(id)
            && let Some(name) = &entry.name
        {
            let key = (entry.owner.clone(), name.clone());
            if self.names.get(&key) == Some(id) {
                self.names.remove(&key);
            }
        }
    }
}

/// Counts as a holder from the moment it is made, whatever becomes of the start.
struct PreHeld {
    entry: Arc<Entry>,
}

impl PreHeld {
    fn into_held(self) -> Held {
        let held = Held { entry: Arc::clone(&self.entry) };
        // The count goes over to `held`.
        lock(&self.entry.used).holders += 1;
        held
    }
}

impl Drop for PreHeld {
    fn drop(&mut self) {
        lock(&self.entry.used).holders -= 1;
    }
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

fn random() -> u128 {
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
