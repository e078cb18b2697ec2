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
    description: "Search MCP tools; returns Python signatures to call inside execute_code",
    toolset: Toolset::Code,
    effect: ToolEffect::ReadOnly,
    parameters: || {
        json!({
            "query": {"type": "string", "description": "what to do; empty lists servers"},
            "limit": {"type": "integer", "description": "default 5"},
        })
    },
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
    let text = || match hits.tools.first() {
        Some(best) => format!("{}\n{}", hits.to_text(), usage(&best.help)),
        None => hits.to_text(),
    };
    Ok(render::render_value(server.config.server.output, hits.to_json(), |_| ToolResult::text(text())))
}

/// Says where and how the tools are called: agents take them for tools of their own otherwise. `help` is the call that
/// shows everything about the best hit.
fn usage(help: &str) -> String {
    format!(
        "# call inside execute_code (async: mcp_SERVER.TOOL); node: await mcp.SERVER.TOOL({{key: value}}); \
         bash: mcp call SERVER.TOOL key=value; more: {help}"
    )
}
