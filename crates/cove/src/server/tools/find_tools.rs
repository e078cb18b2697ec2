//! `find_tools`: search over the tools of all upstream servers, for agents that look before they write code.

use serde_json::json;

use super::super::Server;
use super::super::answer::Answer;
use super::super::arguments::Arguments;
use super::super::caller::Caller;
use super::super::render;
use super::{Definition, object};
use crate::broker::{FEW, MAX_FOUND, Run};
use crate::catalog::signature::Language;
use crate::config::OutputFormat;
use crate::error::Error;

pub(super) fn definition() -> Definition {
    Definition {
        name: "find_tools",
        description: "Search MCP tools; returns signatures",
        schema: object(json!({"query": {"type": "string"}, "limit": {"type": "integer"}}), &["query"]),
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
    let query = arguments.text("query")?;
    let limit = arguments.optional_count("limit", MAX_FOUND)?.unwrap_or(FEW);
    let run = Run {
        principal: caller.principal.0.clone(),
        session: String::new(),
        narrowed: None,
        tell: None,
        outputs: None,
        metrics: None,
    };
    server.broker.servers().look_again().await;
    let found = tokio::select! {
        found = server.broker.find(&run, &query, limit, Language::Python) => found,
        () = server.ending.cancelled() => return Err(Error::usage("could not search: the server is ending")),
    };
    Ok(match server.config.server.output {
        OutputFormat::Compact => Answer::text(found.to_text()),
        OutputFormat::Toon => Answer::text(render::toon(&found.to_json())),
        OutputFormat::Json => Answer::structured(found.to_json()),
    })
}
