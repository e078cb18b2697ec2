//! What code and agents can find out: which servers there are, what their tools look like, and which one does a job.
//! Nothing that is not granted is shown.

use std::sync::Arc;

use serde_json::{Value, json};

use super::ask::{Problem, Speech};
use super::call::failed;
use super::servers::{Need, Unsearched};
use super::{Broker, Run};
use crate::catalog::signature::{Language, signature, stub, summary};
use crate::catalog::{Listing, Server};
use crate::upstream::State;

/// Servers whose absence from a search is explained one by one.
const MAX_EXPLAINED: usize = 5;

impl From<Speech> for Language {
    fn from(speech: Speech) -> Self {
        match speech {
            Speech::Python => Self::Python,
            Speech::Node => Self::Node,
            Speech::Shell => Self::Shell,
        }
    }
}

/// What a search found.
pub struct FoundTools {
    pub tools: Vec<FoundTool>,
    pub total: usize,
    pub hint: String,
}

pub struct FoundTool {
    pub server: String,
    pub tool: String,
    pub signature: String,
    /// Its first sentence.
    pub description: String,
    /// Both, as code with a comment.
    pub stub: String,
}

impl FoundTools {
    pub fn to_json(&self) -> Value {
        let tool = |found: &FoundTool| {
            json!({
                "server": found.server,
                "tool": found.tool,
                "signature": found.signature,
                "description": found.description,
            })
        };
        let tools: Vec<Value> = self.tools.iter().map(tool).collect();
        json!({"tools": tools, "total": self.total, "hint": self.hint})
    }

    /// As code that can be pasted, with what else there is to say in comments.
    pub fn to_text(&self) -> String {
        let mut text: String = self.tools.iter().map(|found| format!("{}\n", found.stub)).collect();
        let hint = if self.hint.is_empty() { String::new() } else { format!("; {}", self.hint) };
        text += &format!("# {} of {} tools{hint}", self.tools.len(), self.total);
        text
    }
}

impl Broker {
    pub async fn find(&self, run: &Run, query: &str, limit: usize, language: Language) -> FoundTools {
        let view = self.servers.catalog().view();
        let seen = |name: &str| view.server(name).is_none_or(|server| self.may_see(run, server));
        let unsearched = self.servers.list_all(seen).await;
        let view = self.servers.catalog().view();
        let allowed = |server: &str, tool: &str| {
            let server = view.server(server);
            server.is_some_and(|server| self.judge(run, server, tool).is_ok())
                && !unsearched.iter().any(|left| server.is_some_and(|server| server.name == left.server))
        };
        let found = view.find_among(query, limit, allowed);
        let shown = found.hits.iter().filter_map(|hit| {
            let server = view.server(&hit.server)?;
            let listing = server.listing.as_ref()?;
            let (alias, document) = (listing.alias(hit.at), listing.document(hit.at)?);
            Some(FoundTool {
                server: server.name.clone(),
                tool: document.name.clone(),
                signature: signature(language, &server.alias, alias, &document),
                description: summary(&document.description),
                stub: stub(language, &server.alias, alias, &document),
            })
        });
        let tools: Vec<FoundTool> = shown.collect();
        let nothing = view.servers().next().is_none();
        let hint = hint(tools.len(), found.total, nothing, &unsearched);
        FoundTools { tools, total: found.total, hint }
    }

    /// Every server that a run may use, without starting any.
    pub(super) fn list_servers(&self, run: &Run) -> Value {
        let view = self.servers.catalog().view();
        let summaries = self.servers.upstreams().summaries();
        let seen = view.servers().filter(|server| self.may_see(run, server));
        let row = |server: &Arc<Server>| {
            let summary = summaries.iter().find(|summary| summary.name == server.name);
            json!({
                "name": server.name,
                "alias": server.alias,
                "description": server.description,
                "tools": server.listing.as_ref().map(|listing| listing.len()),
                "state": summary.map_or_else(|| State::Idle.to_string(), |summary| summary.state.to_string()),
            })
        };
        seen.map(row).collect()
    }

    pub(super) async fn list_tools(&self, run: &Run, server: &str) -> Result<Value, Problem> {
        let found = self.server(run, server, None)?;
        self.servers.list(&found.name, Need::Known).await.map_err(|error| failed(error, None))?;
        let view = self.servers.catalog().view();
        let Some((server, listing)) =
            view.server(&found.name).and_then(|server| Some((server, server.listing.as_ref()?)))
        else {
            return Ok(json!([]));
        };
        Ok(self.rows(run, server, listing))
    }

    fn rows(&self, run: &Run, server: &Server, listing: &Listing) -> Value {
        let row = |at: usize| {
            let document = listing.document(at)?;
            self.judge(run, server, &document.name).ok()?;
            let alias = listing.alias(at);
            let written = |language| signature(language, &server.alias, alias, &document);
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
        (0..listing.len()).filter_map(row).collect()
    }
}

fn hint(shown: usize, total: usize, nothing: bool, unsearched: &[Unsearched]) -> String {
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
        let told = unsearched.iter().take(MAX_EXPLAINED);
        let mut told: Vec<String> =
            told.map(|left| format!("{} ({})", left.server, first(&left.why))).collect();
        if unsearched.len() > MAX_EXPLAINED {
            told.push(format!("{} more", unsearched.len() - MAX_EXPLAINED));
        }
        words.push(format!("not searched: {}", told.join(", ")));
    }
    words.join("; ")
}
