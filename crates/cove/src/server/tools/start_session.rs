//! `start_session`: a session in an image of the agent's choice, with mounts within what the operator allowed.

use serde_json::json;

use super::super::Server;
use super::super::answer::{Answer, refused};
use super::super::arguments::Arguments;
use super::super::caller::Caller;
use super::{Definition, object};
use crate::config::requested_mount;
use crate::error::{Error, shown};
use crate::image::shelf::Served;
use crate::policy::Access;
use crate::session::registry::{Blueprint, Which};

/// Mounts of one session.
const MAX_MOUNTS: usize = 16;

pub(super) fn definition() -> Definition {
    Definition {
        name: "start_session",
        description: "Start a session in an image. It lasts until stop_session or until it is idle for long.",
        schema: object(
            json!({
                "image": {"type": "string"},
                "mounts": {
                    "type": "array",
                    "items": object(
                        json!({
                            "source": {"type": "string"},
                            "target": {"type": "string"},
                            "readonly": {"type": "boolean", "default": true},
                        }),
                        &["source", "target"],
                    ),
                },
            }),
            &["image"],
        ),
        read_only: false,
        destructive: false,
        idempotent: false,
    }
}

pub(super) async fn call(
    server: &Server,
    mut arguments: Arguments,
    caller: &Caller,
) -> Result<Answer, Error> {
    let name = arguments.text("image")?;
    let mounts = arguments.objects("mounts", &["source", "target", "readonly"])?;
    if mounts.len() > MAX_MOUNTS {
        return Err(Error::usage(format!("could not mount {} directories", mounts.len()))
            .with_hint(format!("at most {MAX_MOUNTS} are allowed")));
    }
    let Served { image, by, mut policy, .. } = server.shelf.find(&name).await?;
    for mut mount in mounts {
        let (source, target) = (mount.text("source")?, mount.text("target")?);
        let access = match mount.optional_boolean("readonly")? {
            Some(false) => Access::ReadWrite,
            _ => Access::ReadOnly,
        };
        let allowed = &server.config.server.allowed_mounts;
        let mount = requested_mount(&source, &target, access, allowed, &policy.mounts, &server.around);
        policy.mounts.push(mount.map_err(|wrong| {
            Error::usage(format!("could not mount `{}`", shown(&source)))
                .because(wrong.cause)
                .with_hint(wrong.hint)
        })?);
    }
    let note = server.prepare(by, &policy, caller).await?;
    let blueprint =
        Blueprint { image: Some(image.recipe.name), policy, lifetime: image.lifetime, speaks: image.speaks };
    let owner = &caller.principal;
    let id = tokio::select! {
        opened = server.sessions.open(owner, blueprint) => opened.map_err(refused)?,
        () = caller.cancelled.cancelled() => return Err(Error::usage("could not start a session: nobody waits any more")),
    };
    if caller.cancelled.is_cancelled() {
        // Nobody will ever learn its handle.
        let _ = server.sessions.stop(owner, Which::Handle(id.clone())).await;
    }
    server.metrics.session_started();
    let mut value = json!({"session_id": id.as_str()});
    if let Some(note) = note {
        value["note"] = note.into();
    }
    Ok(Answer::structured(value))
}

#[cfg(test)]
mod tests;
