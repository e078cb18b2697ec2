//! `sandbox_read_file`: a file of a session as text, as an image, or as bytes.

use serde_json::json;

use super::super::Server;
use super::super::answer::{Answer, Block};
use super::super::arguments::Arguments;
use super::super::caller::Caller;
use super::super::resources::{self, Content};
use super::{Definition, object};
use crate::error::{Error, Kind};

pub(super) fn definition() -> Definition {
    Definition {
        name: "sandbox_read_file",
        description: "Read a file of the sandbox.",
        schema: object(json!({"path": {"type": "string"}, "session": {"type": "string"}}), &["path"]),
        read_only: true,
        destructive: false,
        idempotent: true,
    }
}

pub(super) async fn call(
    server: &Server,
    mut arguments: Arguments,
    caller: &Caller,
) -> Result<Answer, Error> {
    let path = arguments.text("path")?;
    let which = caller.existing_session(arguments.optional_text("session")?.as_deref())?;
    let held = server.hold(&caller.principal, which, None).await?;
    let bytes = held.get(&path).await.map_err(|error| Error::of(Kind::Usage, error))?;
    Ok(match resources::content(bytes) {
        Content::Text { text, .. } => Answer::text(text),
        Content::Bytes { mime, bytes } if mime.starts_with("image/") => {
            Answer::text("").with(Block::Image { mime, bytes })
        }
        Content::Bytes { bytes, .. } => {
            let uri = resources::file_uri(held.id(), &path);
            Answer::text("").with(Block::Blob { uri, bytes })
        }
    })
}
