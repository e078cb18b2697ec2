//! Why a session cannot be used, and what the caller can do about it.

use std::sync::Arc;

use cove_protocol::SessionId;

use super::{EndReason, MAX_NAME_LENGTH};
use crate::error::{Failure, Hint};

#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error("could not use `{name}` as the name of a session")]
    BadName { name: String },
    #[error("could not find the session `{id}`")]
    Unknown { id: SessionId },
    #[error("could not find a session named `{name}`")]
    UnknownName { name: String },
    #[error("could not use the session `{id}`: it {why}")]
    Ended { id: SessionId, why: EndReason },
    #[error("could not use the session `{id}` for that: its image `{image}` has a new sandbox for each call")]
    Oneshot { id: SessionId, image: String },
    #[error("could not remove the sandbox of the session `{id}`")]
    CleanupPending { id: SessionId },
    #[error("could not start another session: {most} are open")]
    TooMany { most: usize },
    #[error("could not start a session: the server is ending")]
    Closed,
    #[error(transparent)]
    Start(#[from] Arc<Failure>),
}

impl Hint for SessionError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::BadName { .. } => {
                format!(
                    "a name has 1 to {MAX_NAME_LENGTH} letters, digits, spaces or `-_.:`, and does not begin with `s_`"
                )
            }
            Self::Unknown { .. } => "it has ended or never was; leave `session` out, or name a new one".into(),
            Self::UnknownName { .. } => "names are made by using them with `session`".into(),
            Self::Ended { .. } => "its variables and files are lost; start a new session".into(),
            Self::Oneshot { .. } => {
                "send code to it with `send_lines`, or start a persistent image (`list_images` names them)".into()
            }
            Self::CleanupPending { .. } => {
                "the session is over; removing its sandbox is tried on until Docker or Podman does it, and the \
                 server's log has what they say"
                    .into()
            }
            Self::TooMany { .. } => "end one that is no longer needed; idle ones end by themselves".into(),
            Self::Closed => "connect again when it is back".into(),
            Self::Start(error) => return error.hint().map(str::to_owned),
        })
    }
}
