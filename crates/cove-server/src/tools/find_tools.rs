//! `find_tools`: searches the tools of all upstream servers, for agents that look before they write code.

use cove_protocol::Language;
use serde_json::json;

use super::{ToolCall, ToolDefinition, ToolEffect};
use crate::render;
use crate::result::ToolResult;
use crate::server_config::Toolset;
use cove_core::error::Failure;
use cove_upstream::broker::{CallScope, DEFAULT_SEARCH_LIMIT, MAX_SEARCH_LIMIT};

pub(super) const TOOL: ToolDefinition = ToolDefinition {
    name: "find_tools",
    description: "Search MCP tools; returns signatures",
    toolset: Toolset::Code,
    effect: ToolEffect::ReadOnly,
    parameters: || json!({"query": {"type": "string"}, "limit": {"type": "integer"}}),
    required: &["query"],
    call: |call| Box::pin(find_tools(call)),
};

async fn find_tools(ToolCall { server, caller, mut arguments }: ToolCall<'_>) -> Result<ToolResult, Failure> {
    let query = arguments.text("query")?;
    let limit = arguments.optional_count("limit", MAX_SEARCH_LIMIT)?.unwrap_or(DEFAULT_SEARCH_LIMIT);
    let scope = CallScope::new(caller.principal.clone(), String::new());
    server.broker.servers().reload_definitions().await;
    let hits = tokio::select! {
        hits = server.broker.find(&scope, &query, limit, Language::Python) => hits,
        () = server.shutdown.cancelled() => return Err(Failure::usage("could not search: the server is ending")),
    };
    Ok(render::render_value(server.config.server.output, hits.to_json(), |_| ToolResult::text(hits.to_text())))
}
