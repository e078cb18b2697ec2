//! `sandbox_read_file`: reads a file of a session as text, as an image, or as bytes.

use serde_json::json;

use super::{SESSION_DESCRIPTION, ToolCall, ToolDefinition, ToolEffect};
use crate::caller::ToolCaller;
use crate::resources::{self, ResourceContent};
use crate::result::{ResultBlock, ToolResult, with_notices};
use crate::server_config::Toolset;
use cove_core::error::Failure;
use cove_core::output::{BoundedText, OutputLimit};
use cove_core::session::registry::SessionLease;

pub(super) const TOOL: ToolDefinition = ToolDefinition {
    name: "sandbox_read_file",
    description: "Read a file of the sandbox.",
    toolset: Toolset::Files,
    effect: ToolEffect::ReadOnly,
    parameters: || {
        json!({
            "path": {"type": "string", "description": "file, such as /workspace/a.txt"},
            "session": {"type": "string", "description": SESSION_DESCRIPTION},
        })
    },
    required: &["path"],
    call: |call| Box::pin(read_file(call)),
};

async fn read_file(mut call: ToolCall<'_>) -> Result<ToolResult, Failure> {
    let path = call.arguments.text("path")?;
    let lease = call.lease_session().await?;
    let most = call.server.config.cell.max_output;
    let content = lease.read_file(&path).await;
    Ok(with_notices(content.map(|bytes| render_file(bytes, &path, &lease, most, call.caller)), &lease))
}

fn render_file(bytes: Vec<u8>, path: &str, lease: &SessionLease, most: OutputLimit, caller: &ToolCaller) -> ToolResult {
    let (size, uri) = (bytes.len() as u64, resources::file_uri(lease.id(), path));
    match resources::classify_content(bytes) {
        ResourceContent::Text { text, .. } => {
            let mut bounded = BoundedText::new(most);
            bounded.push(&text);
            let kept = bounded.finish();
            if kept.left_out == 0 {
                return ToolResult::text(kept.text);
            }
            let note = ResultBlock::Note(format!("note: whole file at {uri} ({size} bytes)"));
            let answer = ToolResult::text(kept.text).with_block(note);
            match caller.knows_links {
                true => answer.with_block(ResultBlock::Link { uri, name: path.to_owned(), size }),
                false => answer,
            }
        }
        ResourceContent::Bytes { mime, bytes } if mime.starts_with("image/") => {
            ToolResult::text("").with_block(ResultBlock::Image { mime, bytes })
        }
        ResourceContent::Bytes { bytes, .. } => ToolResult::text("").with_block(ResultBlock::Blob { uri, bytes }),
    }
}
