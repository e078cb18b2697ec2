//! Ids that name things across the trust edge. Each kind of id is its own type.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A cell within its session. The host counts cells from 1, so a guest cannot choose an id, and cannot name a cell of
/// another session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CellId(pub u64);

impl fmt::Display for CellId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "c_{}", self.0)
    }
}

/// A request to the runner that is not a cell. The runner's answer carries the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RequestId(pub u64);

/// A call that code in the sandbox makes to the host. The runner counts calls from 1 and never reuses an id within a
/// session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CallId(pub u64);

/// A connection of code to the network. The runner counts streams from 1 and never reuses an id within a session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StreamId(pub u64);

/// A session: 128 random bits, so it cannot be guessed. It never enters a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionId(String);

impl SessionId {
    /// What every session id starts with.
    pub const PREFIX: &str = "s_";

    /// Returns the id made of these random bits.
    pub fn from_random(bits: u128) -> Self {
        Self(format!("{}{bits:032x}", Self::PREFIX))
    }

    /// Returns the id that `text` spells, or `None` unless `from_random` could have made it.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix(Self::PREFIX)?;
        let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        (digits.len() == 32 && digits.bytes().all(is_hex)).then(|| Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
