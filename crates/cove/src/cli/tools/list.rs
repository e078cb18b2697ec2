//! `cove tools list`: the tools of all servers, as they listed them before. Starts no server.

use serde::Serialize;

use super::ListArgs;
use crate::cli::CommandContext;
use crate::cli::servers::{KnownServers, NO_SERVERS, unknown_server_error};
use crate::cli::tables::{PrintStyle, Tone, print_remark, render_json, render_list};
use cove_core::error::{Failure, escape_control};
use cove_core::policy::grants::GrantVerdict;
use cove_core::text::cut;
use cove_upstream::catalog::ToolDocument;

/// Most bytes of a description in the table.
const MAX_SHOWN_DESCRIPTION: usize = 100;

#[derive(Serialize)]
struct ToolRow {
    server: String,
    tool: String,
    description: String,
    /// Code cannot use it until a person accepts it.
    held: bool,
}

pub(super) fn render(args: &ListArgs, context: &CommandContext, style: PrintStyle) -> Result<String, Failure> {
    let known = KnownServers::load(&context.config, &context.env);
    for name in &args.servers {
        if known.summaries.iter().all(|summary| summary.name != *name && summary.alias != *name) {
            return Err(unknown_server_error(name, known.summaries.iter().map(|summary| summary.name.as_str())));
        }
    }
    let is_wanted = |name: &String| args.servers.is_empty() || args.servers.contains(name);
    let wanted = known.summaries.iter().filter(|known| is_wanted(&known.name) || is_wanted(&known.alias));
    let (mut rows, mut unlisted) = (Vec::new(), Vec::new());
    for summary in wanted {
        let Some(listing) = known.tools(&summary.name) else {
            unlisted.push(summary.name.as_str());
            continue;
        };
        let pins = known.pins(&summary.name);
        let is_allowed = |document: &ToolDocument| {
            summary.filter.evaluate(&summary.name, &summary.alias, &document.name, None) == GrantVerdict::Granted
        };
        rows.extend(listing.documents().filter(is_allowed).map(|document| ToolRow {
            held: pins.hold.is_some() || pins.tool_hold(&document.name).is_some(),
            server: summary.name.clone(),
            tool: document.name,
            description: document.description,
        }));
    }
    if !unlisted.is_empty() {
        let names = unlisted.join(", ");
        print_remark(format!(
            "not listed yet: {names}\nhint: `cove servers refresh` starts servers and lists their tools"
        ));
    }
    if context.json {
        return render_json("the tools", &rows);
    }
    if rows.is_empty() && unlisted.is_empty() {
        return Ok(NO_SERVERS.to_owned());
    }
    let cells = |row: &ToolRow| {
        let line = row.description.trim().lines().next().unwrap_or_default();
        let tool = escape_control(&format!("{}.{}", row.server, row.tool));
        let line = cut(line, MAX_SHOWN_DESCRIPTION);
        let line = if row.held { format!("(held) {line}") } else { line };
        [Tone::Name.cell(tool), Tone::Plain.cell(escape_control(&line))]
    };
    Ok(render_list(style, ["TOOL", "DESCRIPTION"], rows.iter().map(cells)))
}
