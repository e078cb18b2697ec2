//! `list_images`: lists the environments in which a session can be started.

use serde_json::{Value, json};

use super::{ToolCall, ToolDefinition, ToolEffect};
use crate::render;
use crate::result::ToolResult;
use crate::server_config::Toolset;
use cove_core::error::Failure;
use cove_core::image::library::{ImageListing, ServedImage};
use cove_core::image::{Image, ImageProblem};

pub(super) const TOOL: ToolDefinition = ToolDefinition {
    name: "list_images",
    description: "List the environments for start_session.",
    toolset: Toolset::Sessions,
    effect: ToolEffect::ReadOnly,
    parameters: || json!({}),
    required: &[],
    call: |call| Box::pin(list_images(call)),
};

async fn list_images(call: ToolCall<'_>) -> Result<ToolResult, Failure> {
    let ImageListing { images, problems } = call.server.images.list().await;
    let names = |image: &Image| -> Vec<&str> { image.languages().iter().map(|known| known.as_str()).collect() };
    let row = |ServedImage { image, kind, reason, .. }: &ServedImage| {
        let mut row = json!({
            "name": image.name(),
            "kind": image.lifetime.as_str(),
            "languages": names(image),
            "description": image.description,
            "backend": kind.as_str(),
            "why": reason,
        });
        if !image.limits.is_empty() {
            row["limits"] = json!(image.limits);
        }
        row
    };
    let mut value = json!({"images": images.iter().map(row).collect::<Vec<Value>>()});
    if !problems.is_empty() {
        value["problems"] = json!(problems);
    }
    Ok(render::render_value(call.server.config.server.output, value, |value| {
        let mut text = String::new();
        for ServedImage { image, kind, reason, .. } in &images {
            let mut about = vec![image.lifetime.as_str().to_owned()];
            about.extend(Some(names(image).join(", ")).filter(|names| !names.is_empty()));
            about.push(format!("{}, since {reason}", kind.as_str()));
            about.extend(image.limits.describe());
            text += &format!("{} ({}): {}\n", image.name(), about.join("; "), image.description);
        }
        if images.is_empty() {
            text += "no image can be used\n";
        }
        if !problems.is_empty() {
            text += "problems, for the operator:\n";
        }
        for ImageProblem { name, problem, hint } in &problems {
            text += &format!("- {name}: {problem} ({hint})\n");
        }
        ToolResult { structured: Some(value), ..ToolResult::text(text.trim_end()) }
    }))
}
