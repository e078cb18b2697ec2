//! `cove servers refresh`: starts servers, asks each for its tools, and stores the answers for later runs.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Arc;

use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use crate::cli::INTERRUPTED;
use crate::cli::progress_line::ProgressLine;
use crate::cli::runtime;
use crate::cli::tables::{print_remark, render_json};
use cove_core::error::{Failure, Hint, escape_control};
use cove_core::text::format_count;
use cove_upstream::catalog::{Catalog, ToolDocument};
use cove_upstream::pool::{DefinitionProblem, UpstreamError, UpstreamPool, UpstreamState, UpstreamSummary};

use super::{NO_SERVERS, ServersContext, declare_servers, unknown_server_error};

/// How many servers start at the same time: many are slow to start, and starting all at once is slower still.
const MAX_PARALLEL: usize = 4;

/// The result of refreshing one server.
pub(in crate::cli) struct RefreshResult {
    pub(in crate::cli) name: String,
    pub(in crate::cli) result: Result<ListedTools, UpstreamError>,
    /// Warnings for the operator: tools that were left out, a file that could not be written.
    pub(in crate::cli) warnings: Vec<String>,
}

/// The tools that a server listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) struct ListedTools {
    pub(in crate::cli) count: usize,
    /// The bytes of their definitions, as a client would give them to a model.
    pub(in crate::cli) size: usize,
}

pub(super) fn run(here: &ServersContext, names: &[String], as_json: bool) -> Result<(String, ExitCode), Failure> {
    let Some(listed) = refresh_servers(here, names)? else {
        return Ok((String::new(), ExitCode::from(INTERRUPTED)));
    };
    let failed = listed.iter().any(|listed| listed.result.is_err());
    let text = if as_json { to_json(&listed)? } else { to_text(&listed) };
    Ok((text, if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }))
}

/// Starts the named servers, or all of them, and stores the lists of their tools. None after a signal to stop.
pub(in crate::cli) fn refresh_servers(
    here: &ServersContext,
    names: &[String],
) -> Result<Option<Vec<RefreshResult>>, Failure> {
    let state_dir = here.state_dir()?;
    let catalog = here.catalog_in(state_dir);
    let runtime = runtime::multi_threaded(2)?;
    runtime.block_on(async {
        let all = here.definitions();
        let concerns = |problem: &DefinitionProblem| {
            names.is_empty() || names.iter().any(|name| problem.what.contains(&format!("`{name}`")))
        };
        for problem in all.problems.iter().filter(|problem| concerns(problem)) {
            print_remark(format!("warning: {}", escape_control(&problem.to_string())));
        }
        let pool = UpstreamPool::new(all, here.settings.clone());
        let wanted = select_servers(&pool.summaries(), names)?;
        declare_servers(&catalog, &pool.summaries());
        for known in catalog.servers() {
            if let Some(era) = known.era {
                pool.remember_era(&known.name, era);
            }
        }
        let listed = tokio::select! {
            listed = list_all(&pool, &catalog, wanted) => Some(listed),
            () = wait_for_stop_signal() => None,
        };
        // Stops every server that was started, after an interrupt too.
        pool.close().await;
        Ok(listed)
    })
}

fn select_servers(known: &[UpstreamSummary], names: &[String]) -> Result<Vec<UpstreamSummary>, Failure> {
    if names.is_empty() {
        // A disabled server starts only if it is named.
        return Ok(known.iter().filter(|summary| summary.state != UpstreamState::Disabled).cloned().collect());
    }
    let mut seen = BTreeSet::new();
    let mut wanted = Vec::new();
    for name in names {
        let summary = known.iter().find(|summary| summary.name == *name || summary.alias == *name);
        let summary =
            summary.ok_or_else(|| unknown_server_error(name, known.iter().map(|summary| summary.name.as_str())))?;
        if seen.insert(&summary.name) {
            wanted.push(summary.clone());
        }
    }
    Ok(wanted)
}

async fn list_all(pool: &Arc<UpstreamPool>, catalog: &Catalog, wanted: Vec<UpstreamSummary>) -> Vec<RefreshResult> {
    let progress = ProgressLine::new();
    let total = wanted.len();
    let mut waiting = wanted.into_iter();
    let (mut running, mut under_way, mut done) = (JoinSet::new(), BTreeSet::new(), Vec::new());
    loop {
        for summary in waiting.by_ref().take(MAX_PARALLEL - running.len()) {
            under_way.insert(summary.name.clone());
            running.spawn(list_server(Arc::clone(pool), catalog.clone(), summary));
        }
        if !under_way.is_empty() {
            let names = Vec::from_iter(under_way.iter().map(String::as_str)).join(", ");
            progress.update(&format!("{} of {total} listed; waiting for {names}", done.len()));
        }
        match running.join_next().await {
            Some(Ok(listed)) => {
                under_way.remove(&listed.name);
                done.push(listed);
            }
            Some(Err(_)) => {}
            None => break,
        }
    }
    progress.clear();
    done.sort_by(|one, other| one.name.cmp(&other.name));
    done
}

pub(super) async fn list_server(pool: Arc<UpstreamPool>, catalog: Catalog, summary: UpstreamSummary) -> RefreshResult {
    let UpstreamSummary { name, alias, description, .. } = summary;
    let mut warnings = Vec::new();
    let result = pool.tools(&name).await.map(|tools| {
        let size = tools.iter().map(ToolDocument::size).sum();
        warnings = catalog.set_tools(&name, &alias, description.as_deref().unwrap_or_default(), tools);
        warnings.extend(catalog.set_greeting(&name, pool.era(&name), pool.instructions(&name).as_deref()));
        ListedTools { count: catalog.tools(&name).map_or(0, |listing| listing.len()), size }
    });
    RefreshResult { name, result, warnings }
}

async fn wait_for_stop_signal() {
    let stop = |kind| async move {
        match signal(kind) {
            Ok(mut signal) => {
                signal.recv().await;
            }
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        () = stop(SignalKind::interrupt()) => {}
        () = stop(SignalKind::terminate()) => {}
        () = stop(SignalKind::hangup()) => {}
    }
}

fn to_text(all: &[RefreshResult]) -> String {
    if all.is_empty() {
        return NO_SERVERS.to_owned();
    }
    let width = all.iter().map(|listed| listed.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for RefreshResult { name, result, warnings } in all {
        match result {
            Ok(tools) => text += &format!("{name:width$}  {}\n", format_count(tools.count, "tool")),
            Err(UpstreamError::SignInNeeded { need, .. }) => {
                text += &format!("{name:width$}  needs {need}: run `{}`\n", need.command(name));
            }
            Err(error) => {
                // The error may contain lines of the server's own standard error.
                let mut lines = error.to_string().lines().map(escape_control).collect::<Vec<_>>().into_iter();
                text += &format!("{name:width$}  failed: {}\n", lines.next().unwrap_or_default());
                text.extend(lines.map(|line| format!("{:width$}    {line}\n", "")));
                if let Some(hint) = error.hint() {
                    text += &format!("{:width$}  hint: {hint}\n", "");
                }
            }
        }
        text.extend(warnings.iter().map(|word| format!("{:width$}  warning: {}\n", "", escape_control(word))));
    }
    text
}

fn to_json(all: &[RefreshResult]) -> Result<String, Failure> {
    let rows: Vec<_> = all
        .iter()
        .map(|RefreshResult { name, result, warnings }| {
            let (tools, error, hint) = match result {
                Ok(tools) => (Some(tools.count), None, None),
                Err(error) => (None, Some(error.to_string()), error.hint()),
            };
            json!({"name": name, "tools": tools, "error": error, "hint": hint, "warnings": warnings})
        })
        .collect();
    render_json("the servers", &rows)
}
