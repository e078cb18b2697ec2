//! `cove servers list`: every server, and why those that are missing are missing. Starts none.

use serde_json::{Value, json};

use crate::error::{Error, escaped, shown_path};
use crate::upstream::{Origin, State, Summary};

use super::{Here, declare, summaries};

pub(super) fn text(here: &Here, as_json: bool) -> Result<String, Error> {
    let all = here.definitions();
    let (problems, untrusted) = (all.problems.clone(), all.untrusted.clone());
    let servers = summaries(all, &here.around);
    let catalog = here.catalog();
    let remarks = catalog.as_ref().map(|catalog| declare(catalog, &servers)).unwrap_or_default();
    let tools = |name: &str| catalog.as_ref()?.tools(name).map(|listing| listing.len());

    if as_json {
        let place = |origin: &Origin| json!({"path": shown_path(&origin.path), "line": origin.line});
        let server = |summary: &Summary| {
            let needs = match &summary.state {
                State::Needs(what) => what.clone(),
                _ => Vec::new(),
            };
            json!({
                "name": summary.name,
                "alias": summary.alias,
                "description": summary.description,
                "state": summary.state.to_string(),
                "needs": needs,
                "tools": tools(&summary.name),
                "origin": place(&summary.origin),
                "shadowed": summary.shadowed.iter().map(place).collect::<Vec<_>>(),
            })
        };
        let problem = |problem: &crate::upstream::Problem| {
            json!({
                "path": shown_path(&problem.path), "line": problem.line, "what": problem.what, "hint": problem.hint,
            })
        };
        let whole: Value = json!({
            "servers": servers.iter().map(server).collect::<Vec<_>>(),
            "problems": problems.iter().map(problem).collect::<Vec<_>>(),
            "untrusted": untrusted.iter().map(|path| shown_path(path)).collect::<Vec<_>>(),
        });
        return serde_json::to_string_pretty(&whole)
            .map(|text| text + "\n")
            .map_err(|error| Error::internal("could not write the servers as JSON").because(error));
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
            [summary.name.clone(), escaped(&summary.state.to_string()), tools, summary.origin.to_string()]
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
        text.extend(problems.iter().map(|problem| format!("  {}\n", escaped(&problem.to_string()))));
    }
    if !untrusted.is_empty() {
        text += "\nnot read, for this project is not trusted (`cove servers trust` changes that):\n";
        text.extend(untrusted.iter().map(|path| format!("  {}\n", shown_path(path))));
    }
    remarks.iter().for_each(|word| super::remark(&format!("warning: {}", escaped(word))));
    Ok(text)
}
