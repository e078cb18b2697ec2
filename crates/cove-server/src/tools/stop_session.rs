//! `stop_session`: ends a session, whichever tool started it.

use serde_json::json;

use super::{ToolCall, ToolDefinition, ToolEffect};
use crate::result::ToolResult;
use crate::server_config::Toolset;
use cove_core::error::Failure;
use cove_core::session::registry::SessionRef;

pub(super) const TOOL: ToolDefinition = ToolDefinition {
    name: "stop_session",
    description: "Stop a session; its files and state are lost.",
    toolset: Toolset::Sessions,
    effect: ToolEffect::Overwriting,
    parameters: || json!({"session_id": {"type": "string", "description": "from start_session"}}),
    required: &["session_id"],
    call: |call| Box::pin(stop_session(call)),
};

async fn stop_session(ToolCall { server, caller, mut arguments }: ToolCall<'_>) -> Result<ToolResult, Failure> {
    let session = SessionRef::parse(&arguments.text("session_id")?)?;
    let id = server.sessions.stop(&caller.principal, session).await?;
    Ok(ToolResult::text(format!("stopped {id}")))
}
