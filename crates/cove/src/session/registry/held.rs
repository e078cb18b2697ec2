//! A session in use, and what of its output can be read later.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use cove_protocol::SessionId;
use tokio::sync::{OnceCell, OwnedSemaphorePermit};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Blueprint, Gone, Principal, lock, random};
use crate::output::{Budget, Spool};
use crate::session::Session;

/// Outputs of one session that can be read later; each holds a file open. Older ones make room.
const MAX_OUTPUTS: usize = 8;

/// Output that was too long for its result: 128 random bits, so that it cannot be guessed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OutputId(String);

impl OutputId {
    const PREFIX: &str = "o_";

    fn new() -> Self {
        Self(format!("{}{:032x}", Self::PREFIX, random()))
    }

    /// Only what we could have made.
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

pub(super) struct Entry {
    pub(super) id: SessionId,
    pub(super) owner: Principal,
    pub(super) name: Option<String>,
    pub(super) blueprint: Arc<Blueprint>,
    /// Started by the first who asks; others who ask meanwhile wait for it.
    pub(super) session: OnceCell<Session>,
    /// What became of the one of that name before, until somebody has been told.
    pub(super) before: Mutex<Option<Gone>>,
    /// Its owner knows that it is gone.
    pub(super) told: AtomicBool,
    /// Nobody gave it a name: it may go when there is no room.
    pub(super) disposable: bool,
    /// Set when it is taken out of the registry, whatever still runs in it.
    pub(super) over: CancellationToken,
    pub(super) budget: Budget,
    pub(super) outputs: Mutex<VecDeque<(OutputId, Arc<Spool>)>>,
    pub(super) used: Mutex<Use>,
}

pub(super) struct Use {
    pub(super) holders: usize,
    pub(super) last: Instant,
}

impl Entry {
    pub(super) fn new(
        id: SessionId,
        owner: Principal,
        name: Option<String>,
        blueprint: Arc<Blueprint>,
        before: Option<Gone>,
        disposable: bool,
    ) -> Self {
        Self {
            id,
            owner,
            name,
            blueprint,
            session: OnceCell::new(),
            before: Mutex::new(before),
            told: AtomicBool::new(false),
            disposable,
            over: CancellationToken::new(),
            budget: Budget::default(),
            outputs: Mutex::default(),
            used: Mutex::new(Use { holders: 0, last: Instant::now() }),
        }
    }

    pub(super) fn output(&self, id: &OutputId) -> Option<Arc<Spool>> {
        lock(&self.outputs).iter().find(|(known, _)| known == id).map(|(_, spool)| Arc::clone(spool))
    }
}

/// A session in use: as long as this lives it does not end for being idle.
pub struct Held {
    hold: Hold,
    /// Of this call alone, where each call has its own sandbox.
    own: Option<(Session, OwnedSemaphorePermit)>,
    is_new: bool,
    /// What was done for it, in words.
    note: Option<String>,
}

impl Held {
    pub(super) fn shared(hold: Hold, is_new: bool) -> Self {
        Self { hold, own: None, is_new, note: None }
    }

    pub(super) fn own(hold: Hold, session: Session, permit: OwnedSemaphorePermit) -> Self {
        Self { hold, own: Some((session, permit)), is_new: true, note: None }
    }

    pub fn id(&self) -> &SessionId {
        &self.hold.entry.id
    }

    /// Set when the session was ended by its owner or by the registry, and not by itself.
    pub fn over(&self) -> &CancellationToken {
        &self.hold.entry.over
    }

    /// Whether its sandbox was started for this holder.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    pub fn name(&self) -> Option<&str> {
        self.hold.entry.name.as_deref()
    }

    pub fn blueprint(&self) -> &Blueprint {
        &self.hold.entry.blueprint
    }

    pub fn with_note(self, note: Option<String>) -> Self {
        Self { note, ..self }
    }

    /// What was done for it before it could be started.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// What became of the session of that name before, told to the first who asks.
    pub fn take_before(&self) -> Option<Gone> {
        lock(&self.hold.entry.before).take()
    }

    /// The answer to this call says that the session is gone; the next need not.
    pub fn end_is_told(&self) {
        self.hold.entry.told.store(true, Ordering::Release);
    }

    /// The room that its cells have for output beyond their results.
    pub fn budget(&self) -> &Budget {
        &self.hold.entry.budget
    }

    /// Keeps what did not fit into a result, to be read later.
    pub fn keep_output(&self, spool: Spool) -> OutputId {
        let id = OutputId::new();
        let mut outputs = lock(&self.hold.entry.outputs);
        if outputs.len() == MAX_OUTPUTS {
            outputs.pop_front();
        }
        outputs.push_back((id.clone(), Arc::new(spool)));
        id
    }
}

impl std::ops::Deref for Held {
    type Target = Session;

    fn deref(&self) -> &Session {
        match &self.own {
            Some((session, _)) => session,
            // Held is only made of entries that have started.
            None => {
                self.hold.entry.session.get().unwrap_or_else(|| unreachable!("a held session has started"))
            }
        }
    }
}

/// Counts as a use from the moment it is made, whatever becomes of the start.
pub(super) struct Hold {
    pub(super) entry: Arc<Entry>,
}

impl Hold {
    pub(super) fn new(entry: Arc<Entry>) -> Self {
        lock(&entry.used).holders += 1;
        Self { entry }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut used = lock(&self.entry.used);
        used.holders -= 1;
        used.last = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use cove_protocol::Stream;

    use super::*;
    use crate::policy::{Limits, Network, Policy, Root, User};
    use crate::session::registry::Lifetime;

    fn entry() -> Arc<Entry> {
        let policy = Policy {
            root: Root::Host,
            python: None,
            mounts: Vec::new(),
            network: Network::None,
            runtime: None,
            user: User { uid: 1, gid: 1 },
            limits: Limits { memory: 0, cpus: 0.0, pids: 0, workspace: 0, tmp: 0 },
        };
        let blueprint = Blueprint {
            image: None,
            policy,
            lifetime: Lifetime::Persistent,
            speaks: cove_protocol::Language::Python,
        };
        let owner = Principal("me".into());
        Arc::new(Entry::new(SessionId::from_random(1), owner, None, Arc::new(blueprint), None, true))
    }

    #[tokio::test]
    async fn only_the_newest_outputs_are_kept() {
        let entry = entry();
        let held = Held::shared(Hold::new(Arc::clone(&entry)), true);
        let keep = |text: &str| {
            let mut spool = Spool::new(held.budget());
            spool.push(Stream::Stdout, text.as_bytes());
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
