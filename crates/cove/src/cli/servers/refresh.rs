//! `cove servers refresh`: starts servers, asks each for its tools, and keeps what it says for later runs.

use std::collections::BTreeSet;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Arc;

use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use crate::catalog::Catalog;
use crate::error::{Error, Hint, escaped};
use crate::upstream::{Settings, State, Summary, UpstreamError, Upstreams};

use super::{Here, declare, remark, unknown};

/// Servers that start at the same time: many are slow, and all of them at once are slower.
const AT_ONCE: usize = 4;

/// What became of one server.
struct Listed {
    name: String,
    result: Result<usize, UpstreamError>,
    /// What an operator should know: tools that were left out, a file that could not be written.
    words: Vec<String>,
}

pub(super) fn run(here: &Here, names: &[String], as_json: bool) -> Result<(String, ExitCode), Error> {
    let state_dir = here.state_dir()?;
    let catalog = Catalog::open(state_dir.join("catalog"));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Error::internal("could not start the runtime").because(error))?;
    runtime.block_on(async {
        let all = here.definitions();
        for problem in &all.problems {
            remark(&format!("warning: {}", escaped(&problem.to_string())));
        }
        let pool = Upstreams::new(all, Settings::of(&here.around));
        let wanted = wanted(&pool.summaries(), names)?;
        declare(&catalog, &pool.summaries());
        for known in catalog.servers() {
            if let Some(era) = known.era {
                pool.remember_era(&known.name, era);
            }
        }
        let listed = tokio::select! {
            listed = list_all(&pool, &catalog, wanted) => Some(listed),
            () = asked_to_stop() => None,
        };
        // Also when a person gave up: nothing that was started stays.
        pool.close().await;
        let Some(listed) = listed else { return Ok((String::new(), ExitCode::from(130))) };
        let failed = listed.iter().any(|listed| listed.result.is_err());
        let text = if as_json { in_json(&listed)? } else { in_words(&listed) };
        Ok((text, if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }))
    })
}

fn wanted(known: &[Summary], names: &[String]) -> Result<Vec<Summary>, Error> {
    if names.is_empty() {
        // Whoever disabled a server does not want it started with the others.
        return Ok(known.iter().filter(|summary| summary.state != State::Disabled).cloned().collect());
    }
    let mut seen = BTreeSet::new();
    let mut wanted = Vec::new();
    for name in names {
        let found = known.iter().find(|summary| summary.name == *name || summary.alias == *name);
        let found = found.ok_or_else(|| unknown(name, known.iter().map(|summary| summary.name.as_str())))?;
        if seen.insert(&found.name) {
            wanted.push(found.clone());
        }
    }
    Ok(wanted)
}

async fn list_all(pool: &Arc<Upstreams>, catalog: &Catalog, wanted: Vec<Summary>) -> Vec<Listed> {
    let shows = std::io::stderr().is_terminal();
    let total = wanted.len();
    let mut waiting = wanted.into_iter();
    let (mut running, mut under_way, mut done) = (JoinSet::new(), BTreeSet::new(), Vec::new());
    loop {
        for summary in waiting.by_ref().take(AT_ONCE - running.len()) {
            under_way.insert(summary.name.clone());
            running.spawn(list(Arc::clone(pool), catalog.clone(), summary));
        }
        if shows && !under_way.is_empty() {
            let names: Vec<&str> = under_way.iter().map(String::as_str).collect();
            let line = format!("\r\x1b[K{} of {total} listed; waiting for {}", done.len(), names.join(", "));
            let _ = write!(std::io::stderr(), "{line}");
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
    if shows {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
    done.sort_by(|one, other| one.name.cmp(&other.name));
    done
}

async fn list(pool: Arc<Upstreams>, catalog: Catalog, summary: Summary) -> Listed {
    let Summary { name, alias, description, .. } = summary;
    let mut words = Vec::new();
    let result = pool.tools(&name).await.map(|tools| {
        words = catalog.set(&name, &alias, description.as_deref().unwrap_or_default(), tools);
        if let Some(era) = pool.era(&name) {
            catalog.set_era(&name, era);
        }
        catalog.tools(&name).map_or(0, |listing| listing.len())
    });
    Listed { name, result, words }
}

async fn asked_to_stop() {
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

fn in_words(all: &[Listed]) -> String {
    if all.is_empty() {
        return "no servers are configured; add one with `cove servers add NAME -- COMMAND`\n".to_owned();
    }
    let width = all.iter().map(|listed| listed.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for Listed { name, result, words } in all {
        match result {
            Ok(1) => text += &format!("{name:width$}  1 tool\n"),
            Ok(count) => text += &format!("{name:width$}  {count} tools\n"),
            Err(error) => {
                // Its own standard error may be part of it, line by line.
                let mut lines = error.to_string().lines().map(escaped).collect::<Vec<_>>().into_iter();
                text += &format!("{name:width$}  failed: {}\n", lines.next().unwrap_or_default());
                text.extend(lines.map(|line| format!("{:width$}    {line}\n", "")));
                if let Some(hint) = error.hint() {
                    text += &format!("{:width$}  hint: {hint}\n", "");
                }
            }
        }
        text.extend(words.iter().map(|word| format!("{:width$}  warning: {}\n", "", escaped(word))));
    }
    text
}

fn in_json(all: &[Listed]) -> Result<String, Error> {
    let rows: Vec<_> = all
        .iter()
        .map(|Listed { name, result, words }| {
            let (tools, error, hint) = match result {
                Ok(count) => (Some(*count), None, None),
                Err(error) => (None, Some(error.to_string()), error.hint()),
            };
            json!({"name": name, "tools": tools, "error": error, "hint": hint, "warnings": words})
        })
        .collect();
    serde_json::to_string_pretty(&rows)
        .map(|text| text + "\n")
        .map_err(|error| Error::internal("could not write the servers as JSON").because(error))
}
