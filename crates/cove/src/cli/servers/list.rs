//! `cove servers list`: every server, and the reason for each one that is missing. Starts no server.

use std::time::UNIX_EPOCH;

use serde_json::{Value, json};

use cove_core::error::{Failure, display_path, escape_control};
use cove_core::text::cut;
use cove_upstream::pool::{DefinitionOrigin, ServerFailure, UpstreamState, UpstreamSummary};

use crate::cli::tables::{print_remark, render_json};

use super::{ServersContext, declare_servers};

/// Most bytes of a failure's reason in the table.
const MAX_SHOWN_REASON: usize = 100;

pub(super) fn render(here: &ServersContext, as_json: bool) -> Result<String, Failure> {
    let all = here.definitions();
    let (problems, untrusted) = (all.problems.clone(), all.untrusted.clone());
    let servers = here.summaries(all);
    let catalog = here.catalog();
    let remarks = catalog.as_ref().map(|catalog| declare_servers(catalog, &servers)).unwrap_or_default();
    let tools = |name: &str| catalog.as_ref()?.tools(name).map(|listing| listing.len());

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
    let rows: Vec<[String; 4]> = servers
        .iter()
        .map(|summary| {
            let tools = match tools(&summary.name) {
                Some(1) => "1 tool".to_owned(),
                Some(count) => format!("{count} tools"),
                None => "not listed yet".to_owned(),
            };
            let state = match &summary.state {
                // The whole reason is in the JSON.
                UpstreamState::Failed(ServerFailure { reason, at }) => {
                    UpstreamState::Failed(ServerFailure { reason: cut(reason, MAX_SHOWN_REASON), at: *at })
                }
                state => state.clone(),
            };
            [summary.name.clone(), escape_control(&state.to_string()), tools, summary.origin.to_string()]
        })
        .collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let (names, states, counts) = (width(0), width(1).min(40), width(2));
    for ([name, state, tools, origin], summary) in rows.iter().zip(&servers) {
        text += &format!("{name:names$}  {state:states$}  {tools:counts$}  {origin}\n");
        for shadowed in &summary.shadowed {
            text += &format!("{:names$}  not used: also in {shadowed}\n", "");
        }
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
