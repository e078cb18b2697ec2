//! `run_python`: for clients and prompts that expect a single Python tool.

use serde_json::json;

use super::execute_code::run_code;
use super::{SESSION_DESCRIPTION, ToolCall, ToolDefinition, ToolEffect};
use crate::result::ToolResult;
use crate::server_config::Toolset;
use cove_core::error::{Failure, display_value};

pub(super) const TOOL: ToolDefinition = ToolDefinition {
    name: "run_python",
    description: "Run Python in a sandbox that does not see your files. \
                  Variables and /workspace files persist between calls. Returns printed output, the last expression's value and images.",
    toolset: Toolset::Python,
    effect: ToolEffect::RunningCode,
    parameters: || {
        json!({
            "code": {"type": "string", "description": "code to run"},
            "servers": {
                "type": "array",
                "items": {"type": "string"},
                "description": "MCP servers this run may call (default: all)",
            },
            "timeout": {"type": "number", "description": "seconds"},
            "session": {"type": "string", "description": SESSION_DESCRIPTION},
        })
    },
    required: &["code"],
    call: |call| Box::pin(run_python(call)),
};

async fn run_python(mut call: ToolCall<'_>) -> Result<ToolResult, Failure> {
    let code = call.arguments.text("code")?;
    // Naming servers narrows what a run may call.
    let named = call.arguments.optional_texts("servers")?;
    let servers = call.server.broker.servers();
    servers.reload_definitions().await;
    let view = servers.catalog().view();
    // Uses the configured names, whatever spelling the caller used.
    let configured = |name: String| match view.find_server(&name) {
        Some(server) => Ok(server.name.clone()),
        None => {
            let names: Vec<&str> = view.servers().map(|server| server.name.as_str()).take(50).collect();
            let (cause, hint) = match names.is_empty() {
                true => ("no MCP servers are configured here", "leave `servers` out".to_owned()),
                false => ("there is no such server", format!("there are {}", names.join(", "))),
            };
            let failure = Failure::usage(format!("could not grant the server `{}`", display_value(&name)));
            Err(failure.because(cause).with_hint(hint))
        }
    };
    let granted = named.map(|names| names.into_iter().map(configured).collect::<Result<_, _>>()).transpose()?;
    run_code(call, code, Some("python".into()), granted).await
}
