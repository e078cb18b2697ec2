//! `cove servers list`: every server, and the reason for each one that is missing. Starts no server.

use std::time::UNIX_EPOCH;

use serde_json::{Value, json};

use cove_core::error::{Failure, display_path, escape_control};
use cove_core::text::{counted, cut};
use cove_upstream::pool::{DefinitionOrigin, ServerFailure, UpstreamState, UpstreamSummary};

use unicode_width::UnicodeWidthStr;

use crate::cli::tables::{PrintStyle, TableCell, Tone, print_remark, render_json, render_list};

use super::{KnownServers, ServersContext};

/// A longer state has a line of its own.
const STATE_WIDTH: usize = 40;
/// Most bytes of a failure's reason in the text.
const MAX_SHOWN_REASON: usize = 100;

pub(super) fn render(here: &ServersContext, as_json: bool, style: PrintStyle) -> Result<String, Failure> {
    let known = KnownServers::load_from(here);
    let KnownServers { summaries: servers, problems, untrusted, remarks, .. } = &known;
    let tools = |name: &str| known.tools(name).map(|listing| listing.len());

    if as_json {
        let place = |origin: &DefinitionOrigin| json!({"path": display_path(&origin.path), "line": origin.line});
        let server = |summary: &UpstreamSummary| {
            let needs = match &summary.state {
                UpstreamState::Needs(what) => what.clone(),
                _ => Vec::new(),
            };
            let failure = match &summary.state {
                UpstreamState::Failed(ServerFailure { reason, at }) => {
                    let at = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
                    json!({"reason": reason, "at": at})
                }
                _ => Value::Null,
            };
            json!({
                "name": summary.name,
                "alias": summary.alias,
                "description": summary.description,
                "state": summary.state.to_string(),
                "needs": needs,
                "failure": failure,
                "tools": tools(&summary.name),
                "origin": place(&summary.origin),
                "shadowed": summary.shadowed.iter().map(place).collect::<Vec<_>>(),
            })
        };
        let problem = |problem: &cove_upstream::pool::DefinitionProblem| {
            json!({
                "path": display_path(&problem.path), "line": problem.line, "what": problem.what, "hint": problem.hint,
            })
        };
        let whole = json!({
            "servers": servers.iter().map(server).collect::<Vec<_>>(),
            "problems": problems.iter().map(problem).collect::<Vec<_>>(),
            "untrusted": untrusted.iter().map(|path| display_path(path)).collect::<Vec<_>>(),
        });
        return render_json("the servers", &whole);
    }

    let mut text = String::new();
    if servers.is_empty() {
        text += "no servers are configured; add one with `cove servers add NAME -- COMMAND`\n";
    }
    let rows = servers.iter().map(|summary| {
        let tools = match tools(&summary.name) {
            Some(count) => Tone::Plain.cell(counted(count, "tool")),
            None => Tone::Faint.cell("not listed yet"),
        };
        let (state, _) = describe_state(&summary.state);
        [Tone::Name.cell(&summary.name), state, tools, Tone::Faint.cell(summary.origin.to_string())]
    });
    let table = render_list(style, ["NAME", "STATE", "TOOLS", "DEFINED IN"], rows);
    let mut lines = table.lines();
    if style.headings {
        text.extend(lines.next().map(|heading| format!("{heading}\n")));
    }
    let indent = servers.iter().map(|summary| summary.name.width()).max().unwrap_or(0) + 2;
    for (line, summary) in lines.by_ref().zip(servers) {
        text += &format!("{line}\n");
        let (_, details) = describe_state(&summary.state);
        let shadowed = summary.shadowed.iter().map(|origin| format!("not used: also in {origin}"));
        text.extend(details.into_iter().chain(shadowed).map(|detail| format!("{:indent$}{detail}\n", "")));
    }
    if !problems.is_empty() {
        text += "\nproblems:\n";
        text.extend(problems.iter().map(|problem| format!("  {}\n", escape_control(&problem.to_string()))));
    }
    if !untrusted.is_empty() {
        text += "\nignored because this project is not trusted (run `cove servers trust`):\n";
        text.extend(untrusted.iter().map(|path| format!("  {}\n", display_path(path))));
    }
    remarks.iter().for_each(|word| print_remark(format!("warning: {}", escape_control(word))));
    Ok(text)
}

/// The state for its column, and for a line of its own what is too long for the column. The whole reason of a failure
/// is in the JSON.
fn describe_state(state: &UpstreamState) -> (TableCell, Option<String>) {
    let (tone, state) = match state {
        UpstreamState::Ready => (Tone::Good, state.clone()),
        UpstreamState::Idle => (Tone::Plain, state.clone()),
        UpstreamState::Disabled => (Tone::Faint, state.clone()),
        UpstreamState::Starting | UpstreamState::Needs(_) => (Tone::Warning, state.clone()),
        UpstreamState::Failed(ServerFailure { reason, at }) => {
            (Tone::Bad, UpstreamState::Failed(ServerFailure { reason: cut(reason, MAX_SHOWN_REASON), at: *at }))
        }
    };
    let text = escape_control(&state.to_string());
    if text.width() <= STATE_WIDTH {
        return (tone.cell(text), None);
    }
    let word = text.split([' ', ':']).next().unwrap_or_default();
    (tone.cell(word), Some(text))
}
