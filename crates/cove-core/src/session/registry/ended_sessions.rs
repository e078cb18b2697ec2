//! Sessions that have ended, remembered so that a later call for one of them can say why it ended.
//!
//! `SessionTable::remove_and_record` adds a session, and all access happens under the table's lock.
//! `SessionTable::find` reads the reason by handle, as often as the owner asks. `SessionRegistry::reserve` takes it by
//! name, once, when the owner makes a new session of that name; it becomes the new entry's `predecessor_end`.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use cove_protocol::SessionId;

use crate::backend::SandboxEnd;
use crate::session::cell::describe_end;
use crate::session::registry::Principal;
use crate::units::show_duration;

/// How many ended sessions are remembered. Older ones are forgotten.
const MAX_ENDED_SESSIONS: usize = 1024;

/// Why a session ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndReason {
    /// No caller used it for this long.
    Idle(Duration),
    /// Its sandbox ended by itself, or was ended from outside.
    Ended(SandboxEnd),
    /// Its owner stopped it.
    Stopped,
    /// It was disposable and not in use, and another session needed its place.
    Evicted,
}

impl fmt::Display for EndReason {
    /// Completes "the session …".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Idle(after) => write!(f, "ended because it was not used for {}", show_duration(*after)),
            Self::Ended(ending) => write!(f, "is gone: its sandbox {}", describe_end(ending)),
            Self::Stopped => f.write_str("was stopped"),
            Self::Evicted => f.write_str("ended to make room: no name was chosen for it, and it was not in use"),
        }
    }
}

struct EndedSession {
    id: SessionId,
    owner: Principal,
    /// None if the session had no name, or if its owner already knows that it ended.
    name: Option<String>,
    reason: EndReason,
}

#[derive(Default)]
pub(super) struct EndedSessions(VecDeque<EndedSession>);

impl EndedSessions {
    pub(super) fn record(&mut self, id: SessionId, owner: Principal, name: Option<String>, reason: EndReason) {
        if self.0.len() == MAX_ENDED_SESSIONS {
            self.0.pop_front();
        }
        self.0.push_back(EndedSession { id, owner, name, reason });
    }

    /// Returns why the session of a handle ended, if `owner` owned it.
    pub(super) fn reason_for_id(&self, id: &SessionId, owner: &Principal) -> Option<EndReason> {
        self.0.iter().find(|ended| ended.id == *id && ended.owner == *owner).map(|ended| ended.reason.clone())
    }

    /// Returns why the latest session of that name ended, once. Returns None if the owner stopped it, because the owner
    /// knows.
    pub(super) fn take_reason_for_name(&mut self, name: &str, owner: &Principal) -> Option<EndReason> {
        let at = self.0.iter().rposition(|ended| ended.name.as_deref() == Some(name) && ended.owner == *owner)?;
        // The handle is still remembered.
        self.0[at].name = None;
        Some(self.0[at].reason.clone()).filter(|why| *why != EndReason::Stopped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ended_sessions_are_bounded_and_private() {
        let (me, other) = (Principal("me".into()), Principal("other".into()));
        let id = |n: usize| SessionId::from_random(n as u128);
        let mut graveyard = EndedSessions::default();
        for n in 0..MAX_ENDED_SESSIONS + 10 {
            graveyard.record(id(n), me.clone(), Some("n".into()), EndReason::Idle(Duration::from_secs(1)));
        }
        assert_eq!(graveyard.0.len(), MAX_ENDED_SESSIONS);
        assert_eq!(graveyard.reason_for_id(&id(3), &me), None);
        assert!(graveyard.reason_for_id(&id(MAX_ENDED_SESSIONS), &me).is_some());
        assert_eq!(graveyard.reason_for_id(&id(MAX_ENDED_SESSIONS), &other), None);
        assert_eq!(graveyard.take_reason_for_name("n", &other), None);
        assert!(graveyard.take_reason_for_name("n", &me).is_some());
    }

    #[test]
    fn stop_by_the_owner_is_not_reported_again() {
        let me = Principal("me".into());
        let mut graveyard = EndedSessions::default();
        graveyard.record(SessionId::from_random(1), me.clone(), Some("n".into()), EndReason::Stopped);
        assert_eq!(graveyard.take_reason_for_name("n", &me), None);
        assert_eq!(graveyard.reason_for_id(&SessionId::from_random(1), &me), Some(EndReason::Stopped));
    }
}
