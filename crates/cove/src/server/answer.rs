//! What a tool gives back, in our own terms.

use serde_json::Value;

use super::render;
use crate::error::{Error, Hint, Kind};
use crate::session::registry::Held;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Answer {
    pub(super) text: String,
    pub(super) structured: Option<Value>,
    /// The model is to see that this failed.
    pub(super) failed: bool,
    pub(super) blocks: Vec<Block>,
}

/// What comes with the text.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Block {
    Image {
        mime: &'static str,
        bytes: Vec<u8>,
    },
    /// Something to say beside a text that must stay as it is.
    Note(String),
    /// Bytes that are neither text nor an image.
    Blob {
        uri: String,
        bytes: Vec<u8>,
    },
    /// More than fits here, to be read by its address.
    Link {
        uri: String,
        name: String,
        size: u64,
    },
}

impl Answer {
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), structured: None, failed: false, blocks: Vec::new() }
    }

    /// The same to programs and to models, whichever of the two their client shows.
    pub(super) fn structured(value: Value) -> Self {
        Self { text: value.to_string(), structured: Some(value), failed: false, blocks: Vec::new() }
    }

    pub(super) fn with(mut self, block: Block) -> Self {
        self.blocks.push(block);
        self
    }
}

/// An answer, or a refusal, with what is news of its session.
pub(super) fn noted(answer: Result<Answer, Error>, held: &Held) -> Answer {
    let answer = answer.unwrap_or_else(Answer::from);
    render::news(held)
        .into_iter()
        .fold(answer, |answer, note| answer.with(Block::Note(format!("note: {note}"))))
}

impl From<Error> for Answer {
    fn from(error: Error) -> Self {
        Self { failed: true, ..Self::text(error.report().to_string()) }
    }
}

/// A module's own error as what the agent is told.
pub(super) fn refused(error: impl std::error::Error + Hint + Send + Sync + 'static) -> Error {
    Error::of(Kind::Usage, error)
}
