//! The result of a tool, in Cove's own types.

use serde_json::Value;

use cove_core::error::Failure;
use cove_core::session::registry::SessionLease;

/// The result of one tool call.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ToolResult {
    pub(super) text: String,
    pub(super) structured: Option<Value>,
    /// True if the model must see a failure.
    pub(super) failed: bool,
    pub(super) blocks: Vec<ResultBlock>,
}

/// Content besides the text.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ResultBlock {
    Image {
        mime: &'static str,
        bytes: Vec<u8>,
    },
    /// A note beside text that must stay unchanged.
    Note(String),
    /// Bytes that are neither text nor an image.
    Blob {
        uri: String,
        bytes: Vec<u8>,
    },
    /// Content that does not fit here, to be read by its URI.
    Link {
        uri: String,
        name: String,
        size: u64,
    },
}

impl ToolResult {
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), structured: None, failed: false, blocks: Vec::new() }
    }

    /// Returns a result with the same value as text and as structured content, because clients show one or the other.
    pub(super) fn structured(value: Value) -> Self {
        Self { text: value.to_string(), structured: Some(value), failed: false, blocks: Vec::new() }
    }

    pub(super) fn with_block(mut self, block: ResultBlock) -> Self {
        self.blocks.push(block);
        self
    }
}

/// Turns a result or a failure into a result, and adds the notices of its session.
pub(super) fn with_notices(answer: Result<ToolResult, impl Into<Failure>>, lease: &SessionLease) -> ToolResult {
    let answer = answer.unwrap_or_else(|error| ToolResult::from(error.into()));
    session_notices(lease)
        .into_iter()
        .fold(answer, |answer, note| answer.with_block(ResultBlock::Note(format!("note: {note}"))))
}

/// Returns notices about the session: how its predecessor ended, what was prepared for it, and what its network lacks.
pub(super) fn session_notices(lease: &SessionLease) -> Vec<String> {
    let replaced =
        lease.take_predecessor_end().map(|before| format!("the session before this one {before}; this is a new one"));
    let others = [lease.note(), lease.network_notice()].into_iter().flatten().map(str::to_owned);
    replaced.into_iter().chain(others).collect()
}

impl From<Failure> for ToolResult {
    fn from(error: Failure) -> Self {
        Self { failed: true, ..Self::text(error.report().to_string()) }
    }
}
