//! `sandbox_list_files`: what is in a folder of a session.

use serde_json::{Value, json};

use super::super::Server;
use super::super::answer::{Answer, noted};
use super::super::arguments::Arguments;
use super::super::caller::Caller;
use super::super::render;
use super::{Definition, object};
use crate::config::OutputFormat;
use crate::error::{Error, Kind, escaped};
use crate::output::harmless;
use crate::session::files::Listing;

pub(super) fn definition() -> Definition {
    Definition {
        name: "sandbox_list_files",
        description: "List a folder of the sandbox.",
        schema: object(
            json!({
                "path": {"type": "string", "default": "/workspace"},
                "session": {"type": "string"},
            }),
            &[],
        ),
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
    let path = arguments.optional_text("path")?.unwrap_or_else(|| "/workspace".into());
    let which = caller.existing_session(arguments.optional_text("session")?.as_deref())?;
    let held = server.hold(caller, which, None).await?;
    let listing = held.list(&path).await.map_err(|error| Error::of(Kind::Usage, error));
    Ok(noted(listing.map(|listing| show(&listing, server.config.server.output)), &held))
}

fn show(listing: &Listing, format: OutputFormat) -> Answer {
    if format == OutputFormat::Compact {
        let lines = listing.entries.iter().map(|entry| {
            let kind = json!(entry.kind);
            format!(
                "{} {} {}",
                kind.as_str().unwrap_or_default(),
                entry.size,
                escaped(&harmless(&entry.name))
            )
        });
        let mut lines: Vec<String> = lines.collect();
        if listing.left_out > 0 {
            lines.push(format!("[... {} more left out ...]", listing.left_out));
        }
        return Answer::text(if lines.is_empty() { "(empty)".to_owned() } else { lines.join("\n") });
    }
    let entries: Vec<Value> = listing.entries.iter().map(|entry| json!(entry)).collect();
    let mut value = json!({"entries": entries});
    if listing.left_out > 0 {
        value["left_out"] = listing.left_out.into();
    }
    match format {
        OutputFormat::Toon => Answer::text(render::toon(&value)),
        _ => Answer::structured(value),
    }
}
