//! Sessions that are no more, remembered for a while so that whoever asks for one learns what became of it.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use cove_protocol::SessionId;

use crate::backend::Ending;
use crate::config::value::show_duration;
use crate::session::cell::describe_ending;
use crate::session::registry::Principal;

/// Of sessions beyond this many only the newest are remembered.
const MOST: usize = 1024;

/// What became of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Gone {
    /// Nobody used it for this long.
    Idle(Duration),
    /// Its sandbox ended by itself, or was ended from outside.
    Ended(Ending),
    /// Its owner ended it.
    Stopped,
    /// It had no name, nobody used it, and there was no room for another.
    MadeRoom,
}

impl fmt::Display for Gone {
    /// As in "the session …".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Idle(after) => write!(f, "ended because nobody used it for {}", show_duration(*after)),
            Self::Ended(ending) => write!(f, "is gone: its sandbox {}", describe_ending(ending)),
            Self::Stopped => f.write_str("was stopped"),
            Self::MadeRoom => f.write_str("ended to make room: it had no name and nobody used it"),
        }
    }
}

struct Tomb {
    id: SessionId,
    owner: Principal,
    name: Option<String>,
    why: Gone,
}

#[derive(Default)]
pub(super) struct Graveyard(VecDeque<Tomb>);

impl Graveyard {
    pub(super) fn bury(&mut self, id: SessionId, owner: Principal, name: Option<String>, why: Gone) {
        if self.0.len() == MOST {
            self.0.pop_front();
        }
        self.0.push_back(Tomb { id, owner, name, why });
    }

    /// What became of a handle, for its owner alone.
    pub(super) fn of_handle(&self, id: &SessionId, owner: &Principal) -> Option<Gone> {
        self.0.iter().find(|tomb| tomb.id == *id && tomb.owner == *owner).map(|tomb| tomb.why.clone())
    }

    /// What became of the last session of that name, told once. One that its owner ended is no news to the owner.
    pub(super) fn take_name(&mut self, name: &str, owner: &Principal) -> Option<Gone> {
        let at =
            self.0.iter().rposition(|tomb| tomb.name.as_deref() == Some(name) && tomb.owner == *owner)?;
        // Its handle goes on being remembered.
        self.0[at].name = None;
        Some(self.0[at].why.clone()).filter(|why| *why != Gone::Stopped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_bounded_and_private() {
        let (me, other) = (Principal("me".into()), Principal("other".into()));
        let id = |n: usize| SessionId::from_random(n as u128);
        let mut graveyard = Graveyard::default();
        for n in 0..MOST + 10 {
            graveyard.bury(id(n), me.clone(), Some("n".into()), Gone::Idle(Duration::from_secs(1)));
        }
        assert_eq!(graveyard.0.len(), MOST);
        assert_eq!(graveyard.of_handle(&id(3), &me), None);
        assert!(graveyard.of_handle(&id(MOST), &me).is_some());
        assert_eq!(graveyard.of_handle(&id(MOST), &other), None);
        assert_eq!(graveyard.take_name("n", &other), None);
        assert!(graveyard.take_name("n", &me).is_some());
    }

    #[test]
    fn an_owner_s_own_stop_is_no_news() {
        let me = Principal("me".into());
        let mut graveyard = Graveyard::default();
        graveyard.bury(SessionId::from_random(1), me.clone(), Some("n".into()), Gone::Stopped);
        assert_eq!(graveyard.take_name("n", &me), None);
        assert_eq!(graveyard.of_handle(&SessionId::from_random(1), &me), Some(Gone::Stopped));
    }
}
