//! What is in a registry: who is found by which handle and name, who makes room, and who is remembered.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cove_protocol::SessionId;

use super::gone::{Gone, Graveyard};
use super::held::{Entry, Hold};
use super::{Principal, SessionError, Which, lock};

#[derive(Default)]
pub(super) struct Table {
    pub(super) entries: HashMap<SessionId, Arc<Entry>>,
    pub(super) names: HashMap<(Principal, String), SessionId>,
    pub(super) gone: Graveyard,
    /// No more sessions: the server ends.
    pub(super) closed: bool,
}

impl Table {
    /// What is there of what is meant; a handle must be.
    pub(super) fn known(&self, owner: &Principal, which: &Which) -> Result<Option<Hold>, SessionError> {
        if self.closed {
            return Err(SessionError::Closed);
        }
        let entry = match which {
            Which::Handle(id) => Some(self.find(owner, id)?),
            Which::Name(name) => {
                let id = self.names.get(&(owner.clone(), name.clone()));
                id.and_then(|id| self.entries.get(id)).cloned()
            }
            Which::New => None,
        };
        Ok(entry.map(Hold::new))
    }

    /// Whose it is decides, not who knows it; and a stranger learns nothing from the answer.
    pub(super) fn find(&self, owner: &Principal, id: &SessionId) -> Result<Arc<Entry>, SessionError> {
        match self.entries.get(id) {
            Some(entry) if entry.owner == *owner => Ok(Arc::clone(entry)),
            _ => Err(match self.gone.of_handle(id, owner) {
                Some(why) => SessionError::Gone { id: id.clone(), why },
                None => SessionError::Unknown { id: id.clone() },
            }),
        }
    }

    pub(super) fn remove(&mut self, id: &SessionId) -> Option<Arc<Entry>> {
        let entry = self.entries.remove(id)?;
        if let Some(name) = &entry.name {
            let key = (entry.owner.clone(), name.clone());
            if self.names.get(&key) == Some(id) {
                self.names.remove(&key);
            }
        }
        Some(entry)
    }

    pub(super) fn bury(&mut self, id: &SessionId, why: Gone) {
        if let Some(entry) = self.remove(id) {
            entry.over.cancel();
            let name = entry.name.clone().filter(|_| !entry.told.load(Ordering::Acquire));
            self.gone.bury(entry.id.clone(), entry.owner.clone(), name, why);
        }
    }

    /// Ends the one that will be missed least: nobody gave it a name, nobody uses it now, and nobody has for longest; of
    /// the owner's own if there is one, else of whoever has most.
    pub(super) fn make_room(&mut self, owner: &Principal) -> bool {
        let mut counts: HashMap<&Principal, usize> = HashMap::new();
        self.entries.values().for_each(|entry| *counts.entry(&entry.owner).or_default() += 1);
        let chosen = self
            .entries
            .values()
            .filter(|entry| entry.disposable && lock(&entry.used).holders == 0)
            .min_by_key(|entry| {
                let many = usize::MAX - counts.get(&entry.owner).copied().unwrap_or_default();
                (entry.owner != *owner, many, lock(&entry.used).last)
            })
            .cloned();
        let Some(entry) = chosen else { return false };
        self.bury(&entry.id, Gone::MadeRoom);
        tokio::spawn(async move {
            if let Some(session) = entry.session.get() {
                session.end().await;
            }
        });
        true
    }

    /// Those whose end has been noticed take no room.
    pub(super) fn bury_ended(&mut self) {
        let ended = |entry: &Arc<Entry>| {
            let ending = entry.session.get()?.ended()?.clone();
            Some((entry.id.clone(), ending))
        };
        let all: Vec<_> = self.entries.values().filter_map(ended).collect();
        for (id, ending) in all {
            self.bury(&id, Gone::Ended(ending));
        }
    }
}
