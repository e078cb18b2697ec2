//! `sandbox_read_file`: a file of a session as text, as an image, or as bytes.

use serde_json::json;

use super::super::Server;
use super::super::answer::{Answer, Block, noted};
use super::super::arguments::Arguments;
use super::super::caller::Caller;
use super::super::resources::{self, Content};
use super::{Definition, object};
use crate::error::{Error, Kind};
use crate::output::Bounded;
use crate::session::registry::Held;

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
    let held = server.hold(caller, which, None).await?;
    let read = held.get(&path).await.map_err(|error| Error::of(Kind::Usage, error));
    Ok(noted(read.map(|bytes| show(bytes, &path, &held, server.config.cell.max_output, caller)), &held))
}

fn show(bytes: Vec<u8>, path: &str, held: &Held, most: usize, caller: &Caller) -> Answer {
    let (size, uri) = (bytes.len() as u64, resources::file_uri(held.id(), path));
    match resources::content(bytes) {
        Content::Text { text, .. } => {
            let mut bounded = Bounded::new(most);
            bounded.push(&text);
            let kept = bounded.finish();
            if kept.left_out == 0 {
                return Answer::text(kept.text);
            }
            let note = Block::Note(format!("note: whole file at {uri} ({size} bytes)"));
            let answer = Answer::text(kept.text).with(note);
            match caller.knows_links {
                true => answer.with(Block::Link { uri, name: path.to_owned(), size }),
                false => answer,
            }
        }
        Content::Bytes { mime, bytes } if mime.starts_with("image/") => {
            Answer::text("").with(Block::Image { mime, bytes })
        }
        Content::Bytes { bytes, .. } => Answer::text("").with(Block::Blob { uri, bytes }),
    }
}
