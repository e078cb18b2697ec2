//! The sessions of a registry by handle and by name, the choice of the session to evict, and the sessions that have
//! ended.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cove_protocol::SessionId;

use super::ended_sessions::{EndReason, EndedSessions};
use super::lease::{SessionEntry, UseGuard};
use super::{Principal, SessionError, SessionRef};
use crate::sync::lock;

/// Locked as a whole by `SessionRegistry`, and never across an await.
#[derive(Default)]
pub(super) struct SessionTable {
    pub(super) entries: HashMap<SessionId, Arc<SessionEntry>>,
    pub(super) names: HashMap<(Principal, String), SessionId>,
    pub(super) ended: EndedSessions,
    /// Set by `SessionRegistry::close`: lookups fail, and a start that completes later kills its sandbox.
    pub(super) closed: bool,
}

impl SessionTable {
    /// Returns a guard for an existing session, or None if a name has no session or a new one is wanted. Fails if a
    /// handle is unknown or the registry is closed.
    pub(super) fn use_existing(&self, owner: &Principal, which: &SessionRef) -> Result<Option<UseGuard>, SessionError> {
        if self.closed {
            return Err(SessionError::Closed);
        }
        let entry = match which {
            SessionRef::Handle(id) => Some(self.find(owner, id)?),
            SessionRef::Name(_) | SessionRef::Client(_) | SessionRef::New => self.get(owner, which),
        };
        Ok(entry.map(UseGuard::new))
    }

    /// Returns the entry that a reference means, if there is one. Does not check the owner of a handle.
    pub(super) fn get(&self, owner: &Principal, which: &SessionRef) -> Option<Arc<SessionEntry>> {
        let id = match which {
            SessionRef::Handle(id) => id,
            SessionRef::Name(_) | SessionRef::Client(_) | SessionRef::New => {
                self.names.get(&(owner.clone(), which.key()?))?
            }
        };
        self.entries.get(id).cloned()
    }

    /// Returns the session of a handle. Access is by owner, not by knowledge of the handle: any other principal gets
    /// the same error as for a handle that never existed.
    pub(super) fn find(&self, owner: &Principal, id: &SessionId) -> Result<Arc<SessionEntry>, SessionError> {
        match self.entries.get(id) {
            Some(entry) if entry.owner == *owner => Ok(Arc::clone(entry)),
            _ => Err(match self.ended.reason_for_id(id, owner) {
                Some(why) => SessionError::Ended { id: id.clone(), why },
                None => SessionError::Unknown { id: id.clone() },
            }),
        }
    }

    /// Removes an entry and its name, and returns it. Does not cancel its `removed` token.
    pub(super) fn remove(&mut self, id: &SessionId) -> Option<Arc<SessionEntry>> {
        let entry = self.entries.remove(id)?;
        if let Some(name) = &entry.name {
            let key = (entry.owner.clone(), name.clone());
            if self.names.get(&key) == Some(id) {
                self.names.remove(&key);
            }
        }
        Some(entry)
    }

    /// Removes an entry, cancels its `removed` token and records why it ended. The caller ends its sandbox afterwards.
    pub(super) fn remove_and_record(&mut self, id: &SessionId, why: EndReason) {
        if let Some(entry) = self.remove(id) {
            entry.removed.cancel();
            let name = entry.name.clone().filter(|_| !entry.end_reported.load(Ordering::Acquire));
            self.ended.record(entry.id.clone(), entry.owner.clone(), name, why);
        }
    }

    /// Evicts one disposable session that is not in use, and returns false if there is none. Prefers sessions of
    /// `owner`, then those of the principal with the most sessions, then the one unused for longest.
    pub(super) fn evict_one(&mut self, owner: &Principal) -> bool {
        let mut counts: HashMap<&Principal, usize> = HashMap::new();
        self.entries.values().for_each(|entry| *counts.entry(&entry.owner).or_default() += 1);
        let chosen = self
            .entries
            .values()
            .filter(|entry| entry.disposable && lock(&entry.usage).holders == 0)
            .min_by_key(|entry| {
                let many = usize::MAX - counts.get(&entry.owner).copied().unwrap_or_default();
                (entry.owner != *owner, many, lock(&entry.usage).last)
            })
            .cloned();
        let Some(entry) = chosen else { return false };
        self.remove_and_record(&entry.id, EndReason::Evicted);
        tokio::spawn(async move { entry.kill().await });
        true
    }

    /// Removes the sessions whose end has been noticed, so that they do not count against the limit.
    pub(super) fn remove_ended(&mut self) {
        let ended = |entry: &Arc<SessionEntry>| {
            let ending = entry.session.get()?.sandbox_end()?.clone();
            Some((entry.id.clone(), ending))
        };
        let all: Vec<_> = self.entries.values().filter_map(ended).collect();
        for (id, ending) in all {
            self.remove_and_record(&id, EndReason::Ended(ending));
        }
    }
}
