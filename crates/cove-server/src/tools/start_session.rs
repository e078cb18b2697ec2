//! `start_session`: starts a session in an image that the agent chooses, with mounts within the operator's limits.

use std::sync::Arc;

use serde_json::json;

use super::{ToolCall, ToolDefinition, ToolEffect, object_schema};
use crate::result::ToolResult;
use crate::server_config::Toolset;
use cove_core::error::{Failure, display_value};
use cove_core::image::library::ServedImage;
use cove_core::policy::{MountAccess, requested_mount};
use cove_core::session::registry::{SessionBlueprint, SessionRef};

/// Most mounts of one session.
const MAX_MOUNTS: usize = 16;

pub(super) const TOOL: ToolDefinition = ToolDefinition {
    name: "start_session",
    description: "Start a session in an image. It lasts until stop_session or until it is idle for long.",
    toolset: Toolset::Sessions,
    effect: ToolEffect::Additive,
    parameters: || {
        let mount = json!({
            "source": {"type": "string", "description": "host directory that the operator allows"},
            "target": {"type": "string", "description": "path in the sandbox"},
            "readonly": {"type": "boolean", "description": "cannot be written", "default": true},
        });
        let mount = object_schema(mount, &["source", "target"]);
        json!({
            "image": {"type": "string", "description": "name from list_images"},
            "mounts": {"type": "array", "items": mount, "description": "host directories to mount"},
        })
    },
    required: &["image"],
    call: |call| Box::pin(start_session(call)),
};

async fn start_session(ToolCall { server, caller, mut arguments }: ToolCall<'_>) -> Result<ToolResult, Failure> {
    let name = arguments.text("image")?;
    let mounts = arguments.objects("mounts", &["source", "target", "readonly"])?;
    if mounts.len() > MAX_MOUNTS {
        return Err(Failure::usage(format!("could not mount {} directories", mounts.len()))
            .with_hint(format!("at most {MAX_MOUNTS} are allowed")));
    }
    let ServedImage { image, kind, mut policy, .. } = server.images.find(&name).await?;
    // A mount is the caller's own choice.
    let may_be_ready = mounts.is_empty();
    for mut mount in mounts {
        let (source, target) = (mount.text("source")?, mount.text("target")?);
        let access = match mount.optional_boolean("readonly")? {
            Some(false) => MountAccess::ReadWrite,
            _ => MountAccess::ReadOnly,
        };
        let allowed = &server.config.server.allowed_mounts;
        let mount = requested_mount(&source, &target, access, allowed, &policy.mounts, &server.env);
        let could_not = || Failure::usage(format!("could not mount `{}`", display_value(&source)));
        policy.mounts.push(mount.map_err(|refusal| could_not().because(refusal.cause).with_hint(refusal.hint))?);
    }
    let prepared = server.prepare_image(kind, &policy, caller).await?;
    let blueprint = SessionBlueprint {
        image: Some(image.recipe.name),
        image_id: prepared.image_id,
        policy: Arc::new(policy),
        may_be_ready,
        lifetime: image.lifetime,
        line_language: image.line_language,
    };
    let owner = &caller.principal;
    let id = tokio::select! {
        opened = server.sessions.open(owner, blueprint) => opened?,
        () = caller.cancellation.cancelled() => return Err(Failure::usage("could not start a session: the caller no longer waits")),
    };
    if caller.cancellation.is_cancelled() {
        // The caller is gone and will never learn the session's id.
        let _ = server.sessions.stop(owner, SessionRef::Handle(id.clone())).await;
    }
    server.metrics.session_started();
    let mut value = json!({"session_id": id.as_str()});
    if let Some(note) = prepared.note {
        value["note"] = note.into();
    }
    Ok(ToolResult::structured(value))
}

#[cfg(test)]
mod tests;
