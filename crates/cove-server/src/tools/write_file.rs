//! `sandbox_write_file`: writes a file of a session, completely or not at all.

use serde_json::json;

use super::{SESSION_DESCRIPTION, ToolCall, ToolDefinition, ToolEffect};
use crate::result::{ToolResult, with_notices};
use crate::server_config::Toolset;
use cove_core::error::{Failure, display_value};
use cove_core::text::format_count;

pub(super) const TOOL: ToolDefinition = ToolDefinition {
    name: "sandbox_write_file",
    description: "Write a file of the sandbox.",
    toolset: Toolset::Files,
    effect: ToolEffect::Overwriting,
    parameters: || {
        json!({
            "path": {"type": "string", "description": "file, such as /workspace/a.txt"},
            "content": {"type": "string", "description": "its whole text"},
            "session": {"type": "string", "description": SESSION_DESCRIPTION},
        })
    },
    required: &["path", "content"],
    call: |call| Box::pin(write_file(call)),
};

async fn write_file(mut call: ToolCall<'_>) -> Result<ToolResult, Failure> {
    let (path, content) = (call.arguments.text("path")?, call.arguments.text("content")?);
    let lease = call.lease_session().await?;
    let written = lease.write_file(&path, content.as_bytes()).await;
    let answer = written
        .map(|bytes| ToolResult::text(format!("wrote {} to {}", format_count(bytes, "byte"), display_value(&path))));
    Ok(with_notices(answer, &lease))
}
