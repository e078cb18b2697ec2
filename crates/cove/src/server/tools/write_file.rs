//! `sandbox_write_file`: a file of a session, written whole or not at all.

use serde_json::json;

use super::super::Server;
use super::super::answer::{Answer, noted};
use super::super::arguments::Arguments;
use super::super::caller::Caller;
use super::{Definition, object};
use crate::error::{Error, Kind, shown};

pub(super) fn definition() -> Definition {
    Definition {
        name: "sandbox_write_file",
        description: "Write a file of the sandbox.",
        schema: object(
            json!({
                "path": {"type": "string"},
                "content": {"type": "string"},
                "session": {"type": "string"},
            }),
            &["path", "content"],
        ),
        read_only: false,
        destructive: true,
        idempotent: true,
    }
}

pub(super) async fn call(
    server: &Server,
    mut arguments: Arguments,
    caller: &Caller,
) -> Result<Answer, Error> {
    let (path, content) = (arguments.text("path")?, arguments.text("content")?);
    let which = caller.existing_session(arguments.optional_text("session")?.as_deref())?;
    let held = server.hold(caller, which, None).await?;
    let written = held.put(&path, content.as_bytes()).await.map_err(|error| Error::of(Kind::Usage, error));
    let answer = written.map(|bytes| Answer::text(format!("wrote {bytes} bytes to {}", shown(&path))));
    Ok(noted(answer, &held))
}
