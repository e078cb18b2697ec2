//! Discovery for code and agents: lists servers and tools, and searches tools. Shows only what is granted.

use std::sync::Arc;

use cove_protocol::Language;
use serde::Serialize;
use serde_json::{Value, json};

use super::call::to_call_error;
use super::request::CallError;
use super::server_registry::{ListFreshness, UnsearchedServer};
use super::{Broker, CallScope};
use crate::catalog::CatalogServer;
use crate::catalog::signature::{first_sentence, render_signature, render_stub};
use crate::pool::UpstreamState;

/// Most servers for which a search explains why it skipped them.
const MAX_EXPLAINED: usize = 5;

/// The result of a search.
#[derive(Serialize)]
pub struct FoundTools {
    pub tools: Vec<FoundTool>,
    pub total: usize,
    pub hint: String,
}

#[derive(Serialize)]
pub struct FoundTool {
    pub server: String,
    pub tool: String,
    pub signature: String,
    /// The first sentence of the description.
    pub description: String,
    /// Signature and description, as code with a comment.
    #[serde(skip)]
    pub stub: String,
}

impl FoundTools {
    pub fn to_json(&self) -> Value {
        json!(self)
    }

    /// Renders the results as code to paste, with the counts and the hint in a comment.
    pub fn to_text(&self) -> String {
        let mut text: String = self.tools.iter().map(|found| format!("{}\n", found.stub)).collect();
        let hint = if self.hint.is_empty() { String::new() } else { format!("; {}", self.hint) };
        text += &format!("# {} of {} tools{hint}", self.tools.len(), self.total);
        text
    }
}

impl Broker {
    /// Searches the granted tools. Lists servers that were never listed first, and explains in `hint` which were
    /// skipped.
    pub async fn find(&self, run: &CallScope, query: &str, limit: usize, language: Language) -> FoundTools {
        let view = self.servers.catalog().view();
        let seen = |name: &str| view.find_server(name).is_none_or(|server| self.can_see(run, server));
        let unsearched = self.servers.ensure_all_listed(seen).await;
        let view = self.servers.catalog().view();
        let allowed = |server: &str, tool: &str| {
            let server = view.find_server(server);
            server.is_some_and(|server| self.check_grant(run, server, tool).is_ok())
                && !unsearched.iter().any(|left| server.is_some_and(|server| server.name == left.server))
        };
        let found = view.search_allowed(query, limit, allowed);
        let shown = found.hits.iter().filter_map(|hit| {
            let server = view.find_server(&hit.server)?;
            let listing = server.listing.as_ref()?;
            let (alias, document) = (listing.alias(hit.at), listing.document(hit.at)?);
            Some(FoundTool {
                server: server.name.clone(),
                tool: document.name.clone(),
                signature: render_signature(language, &server.alias, alias, &document),
                description: first_sentence(&document.description),
                stub: render_stub(language, &server.alias, alias, &document),
            })
        });
        let tools: Vec<FoundTool> = shown.collect();
        let nothing = view.servers().next().is_none();
        let hint = search_hint(tools.len(), found.total, nothing, &unsearched);
        FoundTools { tools, total: found.total, hint }
    }

    /// Lists every server that a run may use. Starts nothing.
    pub(super) fn list_servers(&self, run: &CallScope) -> Value {
        let view = self.servers.catalog().view();
        let summaries = self.servers.upstreams().summaries();
        let seen = view.servers().filter(|server| self.can_see(run, server));
        let row = |server: &Arc<CatalogServer>| {
            let summary = summaries.iter().find(|summary| summary.name == server.name);
            json!({
                "name": server.name,
                "alias": server.alias,
                "description": server.description,
                "tools": server.listing.as_ref().map(|listing| listing.len()),
                "state": summary.map_or_else(|| UpstreamState::Idle.to_string(), |summary| summary.state.to_string()),
            })
        };
        seen.map(row).collect()
    }

    /// Lists the granted tools of a server. Fails if the server is unknown, not granted or cannot be listed.
    pub(super) async fn list_tools(&self, run: &CallScope, server: &str) -> Result<Value, CallError> {
        let server = self.find_server(run, server, None)?;
        let listed = self.servers.ensure_listed(&server.name, ListFreshness::Known).await;
        listed.map_err(|error| to_call_error(error, None))?;
        let view = self.servers.catalog().view();
        let listed = view.find_server(&server.name).and_then(|server| Some((server, server.listing.as_ref()?)));
        let Some((server, listing)) = listed else { return Ok(json!([])) };
        let row = |at: usize| {
            let document = listing.document(at)?;
            self.check_grant(run, server, &document.name).ok()?;
            let alias = listing.alias(at);
            let written = |language| render_signature(language, &server.alias, alias, &document);
            let (python, node) = (written(Language::Python), written(Language::Node));
            Some(json!({
                "name": document.name,
                "alias": alias,
                "description": document.description,
                "input_schema": document.input_schema,
                "output_schema": document.output_schema,
                "python": python,
                "node": node,
            }))
        };
        Ok((0..listing.len()).filter_map(row).collect())
    }
}

fn search_hint(shown: usize, total: usize, nothing: bool, unsearched: &[UnsearchedServer]) -> String {
    let mut words = Vec::new();
    if nothing {
        words.push("no servers are configured".to_owned());
    } else if total == 0 {
        words.push("nothing matches; try other words, or list the tools of a server".to_owned());
    } else if shown < total {
        words.push("say more precisely what you need, or pass a larger limit".to_owned());
    }
    if !unsearched.is_empty() {
        let first = |text: &str| text.lines().next().unwrap_or_default().to_owned();
        let explained = unsearched.iter().take(MAX_EXPLAINED);
        let mut reasons: Vec<String> =
            explained.map(|left| format!("{} ({})", left.server, first(&left.reason))).collect();
        if unsearched.len() > MAX_EXPLAINED {
            reasons.push(format!("{} more", unsearched.len() - MAX_EXPLAINED));
        }
        words.push(format!("not searched: {}", reasons.join(", ")));
    }
    words.join("; ")
}
