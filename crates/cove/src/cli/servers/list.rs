//! `cove servers list`: every server, and the reason for each one that is missing. Starts no server.

use std::time::UNIX_EPOCH;

use serde_json::{Value, json};
use unicode_width::UnicodeWidthStr;

use cove_core::error::{Failure, display_path, escape_control};
use cove_core::text::{cut, format_count};
use cove_upstream::catalog::pins::ServerHold;
use cove_upstream::pool::{DefinitionOrigin, DefinitionProblem, ServerFailure, UpstreamState, UpstreamSummary};

use crate::cli::tables::{PrintStyle, TableCell, Tone, print_remark, render_json, render_list};

use super::{KnownServers, NO_SERVERS, ServersContext};

/// A longer state has a line of its own.
const STATE_WIDTH: usize = 40;
/// Most bytes of a failure's reason in the text.
const MAX_SHOWN_REASON: usize = 100;

pub(super) fn render(here: &ServersContext, as_json: bool, style: PrintStyle) -> Result<String, Failure> {
    let known = KnownServers::load_from(here);
    if as_json {
        return render_json("the servers", &to_json(&known));
    }
    known.remarks.iter().for_each(|word| print_remark(format!("warning: {}", escape_control(word))));
    Ok(to_text(&known, style))
}

fn to_json(known: &KnownServers) -> Value {
    let place = |origin: &DefinitionOrigin| json!({"path": display_path(&origin.path), "line": origin.line});
    let server = |summary: &UpstreamSummary| {
        let needs = match &summary.state {
            UpstreamState::Needs(what) => what.clone(),
            UpstreamState::NeedsSignIn(need) => vec![need.to_string()],
            _ => Vec::new(),
        };
        let failure = match &summary.state {
            UpstreamState::Failed(ServerFailure { reason, at }) => {
                let at = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
                json!({"reason": reason, "at": at})
            }
            _ => Value::Null,
        };
        let pins = known.pins(&summary.name);
        json!({
            "name": summary.name,
            "alias": summary.alias,
            "description": summary.description,
            "state": summary.state.to_string(),
            "needs": needs,
            "remarks": summary.remarks,
            "failure": failure,
            "tools": known.tools(&summary.name).map(|listing| listing.len()),
            "held": pins.hold.as_ref().map(|hold| match hold {
                ServerHold::Quarantined { .. } => "quarantined",
                ServerHold::Damaged(_) => "damaged",
            }),
            "changes": &*pins.changes,
            "origin": place(&summary.origin),
            "shadowed": summary.shadowed.iter().map(place).collect::<Vec<_>>(),
        })
    };
    let problem = |problem: &DefinitionProblem| {
        json!({
            "path": display_path(&problem.path), "line": problem.line, "what": problem.what, "hint": problem.hint,
        })
    };
    json!({
        "servers": known.summaries.iter().map(server).collect::<Vec<_>>(),
        "problems": known.problems.iter().map(problem).collect::<Vec<_>>(),
        "untrusted": known.untrusted.iter().map(|path| display_path(path)).collect::<Vec<_>>(),
    })
}

fn to_text(known: &KnownServers, style: PrintStyle) -> String {
    let KnownServers { summaries, problems, untrusted, .. } = known;
    let mut text = if summaries.is_empty() { NO_SERVERS.to_owned() } else { String::new() };
    let (states, details): (Vec<TableCell>, Vec<Option<String>>) = summaries.iter().map(describe_state).unzip();
    let rows = summaries.iter().zip(states).map(|(summary, state)| {
        let tools = match known.tools(&summary.name) {
            Some(listing) => Tone::Plain.cell(format_count(listing.len(), "tool")),
            None => Tone::Faint.cell("not listed yet"),
        };
        [Tone::Name.cell(&summary.name), state, tools, Tone::Faint.cell(summary.origin.to_string())]
    });
    let table = render_list(style, ["NAME", "STATE", "TOOLS", "DEFINED IN"], rows);
    let mut lines = table.lines();
    if style.headings {
        text.extend(lines.next().map(|heading| format!("{heading}\n")));
    }
    let indent = summaries.iter().map(|summary| summary.name.width()).max().unwrap_or(0) + 2;
    for ((line, summary), detail) in lines.zip(summaries).zip(details) {
        text += &format!("{line}\n");
        let shadowed = summary.shadowed.iter().map(|origin| format!("not used: also in {origin}"));
        text.extend(
            detail
                .into_iter()
                .chain(shadowed)
                .chain(describe_pins(known, &summary.name))
                .map(|detail| format!("{:indent$}{detail}\n", "")),
        );
    }
    if !problems.is_empty() {
        text += "\nproblems:\n";
        text.extend(problems.iter().map(|problem| format!("  {}\n", escape_control(&problem.to_string()))));
    }
    if !untrusted.is_empty() {
        text += "\nignored because this project is not trusted (run `cove servers trust`):\n";
        text.extend(untrusted.iter().map(|path| format!("  {}\n", display_path(path))));
    }
    text
}

/// What waits for acceptance.
fn describe_pins(known: &KnownServers, server: &str) -> Option<String> {
    let pins = known.pins(server);
    match &pins.hold {
        Some(ServerHold::Quarantined { is_listed: true }) => {
            Some(format!("held: new; see `cove servers diff {server}`, then `cove servers accept {server}`"))
        }
        Some(ServerHold::Quarantined { is_listed: false }) => {
            Some(format!("held: new; run `cove servers refresh {server}`, then `cove servers accept {server}`"))
        }
        Some(ServerHold::Damaged(damage)) => {
            let damage = escape_control(damage);
            Some(format!("held: {damage}; `cove servers accept {server}` accepts its tools as they are now"))
        }
        None if pins.changes.is_empty() => None,
        None => Some(format!("{}: see `cove servers diff {server}`", pins.changes.summary())),
    }
}

/// The state for its column, and for a line of its own what is too long for the column. The whole reason of a failure
/// is in the JSON.
fn describe_state(summary: &UpstreamSummary) -> (TableCell, Option<String>) {
    let state = &summary.state;
    let (tone, state) = match state {
        UpstreamState::Ready => (Tone::Good, state.clone()),
        UpstreamState::Idle => (Tone::Plain, state.clone()),
        UpstreamState::Disabled => (Tone::Faint, state.clone()),
        UpstreamState::Starting | UpstreamState::Needs(_) | UpstreamState::NeedsSignIn(_) => {
            (Tone::Warning, state.clone())
        }
        UpstreamState::Failed(ServerFailure { reason, at }) => {
            (Tone::Bad, UpstreamState::Failed(ServerFailure { reason: cut(reason, MAX_SHOWN_REASON), at: *at }))
        }
    };
    let mut text = escape_control(&state.to_string());
    if let UpstreamState::NeedsSignIn(need) = &state {
        text += &format!(": run `{}`", need.command(&summary.name));
    }
    if text.width() <= STATE_WIDTH {
        return (tone.cell(text), None);
    }
    let word = text.split([' ', ':']).next().unwrap_or_default();
    (tone.cell(word), Some(text))
}
