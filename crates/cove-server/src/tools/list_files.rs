//! `sandbox_list_files`: lists a directory of a session.

use serde_json::{Value, json};

use super::{SESSION_DESCRIPTION, ToolCall, ToolDefinition, ToolEffect};
use crate::render;
use crate::result::{ToolResult, with_notices};
use crate::server_config::{OutputFormat, Toolset};
use cove_core::error::Failure;
use cove_core::session::files::DirectoryListing;

pub(super) const TOOL: ToolDefinition = ToolDefinition {
    name: "sandbox_list_files",
    description: "List a folder of the sandbox.",
    toolset: Toolset::Files,
    effect: ToolEffect::ReadOnly,
    parameters: || {
        json!({
            "path": {"type": "string", "description": "folder", "default": "/workspace"},
            "session": {"type": "string", "description": SESSION_DESCRIPTION},
        })
    },
    required: &[],
    call: |call| Box::pin(list_files(call)),
};

async fn list_files(mut call: ToolCall<'_>) -> Result<ToolResult, Failure> {
    let path = call.arguments.optional_text("path")?.unwrap_or_else(|| "/workspace".into());
    let lease = call.lease_session().await?;
    let listing = lease.list_directory(&path).await;
    Ok(with_notices(listing.map(|listing| render_listing(&listing, call.server.config.server.output)), &lease))
}

fn render_listing(listing: &DirectoryListing, format: OutputFormat) -> ToolResult {
    let entries: Vec<Value> = listing.entries.iter().map(|entry| json!(entry)).collect();
    let mut value = json!({"entries": entries});
    if listing.left_out > 0 {
        value["left_out"] = listing.left_out.into();
    }
    render::render_value(format, value, |_| {
        let lines = listing.entries.iter().map(|entry| {
            let kind = json!(entry.kind);
            format!("{} {} {}", kind.as_str().unwrap_or_default(), entry.size, entry.name)
        });
        let mut lines: Vec<String> = lines.collect();
        if listing.left_out > 0 {
            lines.push(format!("[... {} more left out ...]", listing.left_out));
        }
        ToolResult::text(if lines.is_empty() { "(empty)".to_owned() } else { lines.join("\n") })
    })
}
