//! Discovery for code and agents: lists servers and tools, searches tools and describes them. Shows only what is granted.

use std::sync::Arc;

use cove_core::session::CallingCell;
use cove_core::text::format_count;
use cove_protocol::Language;
use serde::Serialize;
use serde_json::{Value, json};

use super::call::to_call_error;
use super::holds::{describe_server_hold, held_remark};
use super::request::CallError;
use super::server_registry::{ListFreshness, UnsearchedServer};
use super::{Broker, CallScope};
use crate::catalog::CatalogServer;
use crate::catalog::pins::ServerHold;
use crate::catalog::signature::{CommentDetail, comment_mark, first_sentence, help_call, to_comment_line};
use crate::pool::UpstreamState;

/// Most servers for which a search explains why it skipped them.
const MAX_EXPLAINED: usize = 5;
/// Tools after the shown ones that a search only names.
const MAX_NAMED: usize = 5;
/// Most servers that a search without words lists.
const MAX_SERVER_LINES: usize = 100;
/// Most tools of a server that are described.
const MAX_DESCRIBED: usize = 50;

/// The result of a search.
#[derive(Serialize)]
pub struct FoundTools {
    pub tools: Vec<FoundTool>,
    /// The next tools, as `server.tool`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<String>,
    /// One line for each server, if the query has no words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<String>,
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
    /// What to know about the tool and its parameters, to put below the signature.
    pub comment: String,
    /// The tool cannot be called until a person accepts a change.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub held: bool,
    /// The call that shows everything about the tool.
    #[serde(skip)]
    pub help: String,
}

impl FoundTools {
    pub fn to_json(&self) -> Value {
        json!(self)
    }

    /// Renders the results as code to paste, with the counts and the hint in a comment.
    pub fn to_text(&self) -> String {
        if !self.servers.is_empty() {
            return format!("{}\n# {}", self.servers.join("\n"), self.hint);
        }
        let mut text = String::new();
        for FoundTool { signature, comment, .. } in &self.tools {
            text += &[signature.as_str(), comment].join("\n");
            text += if comment.is_empty() { "" } else { "\n" };
        }
        if !self.also.is_empty() {
            text += &format!("# also: {}\n", self.also.join(", "));
        }
        let hint = if self.hint.is_empty() { String::new() } else { format!("; {}", self.hint) };
        let noun = if self.total == 1 { "match" } else { "matches" };
        text += &format!("# {} of {} {noun}{hint}", self.tools.len(), self.total);
        text
    }
}

impl Broker {
    /// Searches the granted tools. Lists servers that were never listed first, and explains in `hint` which were
    /// skipped. A query without words finds the servers themselves and starts nothing.
    pub async fn find(&self, run: &CallScope, query: &str, limit: usize, language: Language) -> FoundTools {
        if query.trim().is_empty() {
            return self.find_servers(run);
        }
        let view = self.servers.catalog().view();
        let is_held = |name: &str| view.find_server(name).is_some_and(|server| server.pins.hold.is_some());
        let seen = |name: &str| !is_held(name) && view.find_server(name).is_none_or(|server| self.can_see(run, server));
        let mut unsearched = tokio::select! {
            unsearched = self.servers.ensure_all_listed(seen) => unsearched,
            never = self.report_starts(run, seen) => match never {},
        };
        let view = self.servers.catalog().view();
        unsearched.extend(view.servers().filter(|server| self.can_see(run, server)).filter_map(|server| {
            let hold = server.pins.hold.as_ref()?;
            Some(UnsearchedServer { server: server.name.clone(), reason: held_state(&server.name, hold) })
        }));
        let allowed = |server: &str, tool: &str| {
            let server = view.find_server(server);
            server.is_some_and(|server| server.pins.hold.is_none() && self.check_grant(run, server, tool).is_ok())
                && !unsearched.iter().any(|left| server.is_some_and(|server| server.name == left.server))
        };
        let mut found = view.search_allowed(query, limit + MAX_NAMED, allowed);
        let rest = found.hits.split_off(limit.min(found.hits.len()));
        let also = rest.iter().filter_map(|hit| {
            let server = view.find_server(&hit.server)?;
            Some(format!("{}.{}", server.alias, server.listing.as_ref()?.alias(hit.at)))
        });
        let shown = found.hits.iter().enumerate().filter_map(|(rank, hit)| {
            let server = view.find_server(&hit.server)?;
            let listing = server.listing.as_ref()?;
            let (alias, document) = (listing.alias(hit.at), listing.document(hit.at)?);
            let reference = server.reference(language, alias, &document);
            // The best hit is most likely the one that is called next.
            let detail = if rank == 0 { CommentDetail::Whole } else { CommentDetail::Brief };
            let held = server.pins.tool_hold(&document.name).map(|_| held_remark(&server.name));
            Some(FoundTool {
                server: server.name.clone(),
                tool: document.name.clone(),
                signature: reference.call(detail),
                description: held.clone().unwrap_or_else(|| first_sentence(&document.description)),
                comment: match &held {
                    Some(remark) => format!("    {} {remark}", comment_mark(language)),
                    None => reference.comment(detail),
                },
                held: held.is_some(),
                help: help_call(language, &server.alias, alias),
            })
        });
        let tools: Vec<FoundTool> = shown.collect();
        let nothing = view.servers().next().is_none();
        let hint = search_hint(tools.len(), found.total, nothing, &unsearched);
        FoundTools { tools, also: also.collect(), servers: Vec::new(), total: found.total, hint }
    }

    /// Returns one line for each server that a run may use.
    fn find_servers(&self, run: &CallScope) -> FoundTools {
        let view = self.servers.catalog().view();
        let summaries = self.servers.upstreams().summaries();
        let seen: Vec<&Arc<CatalogServer>> = view.servers().filter(|server| self.can_see(run, server)).collect();
        let line = |server: &&Arc<CatalogServer>| {
            let state = summaries.iter().find(|summary| summary.name == server.name).map(|summary| &summary.state);
            let is_granted = |name: &&str| self.check_grant(run, server, name).is_ok();
            let tools = server.listing.as_ref().map(|listing| listing.names().filter(is_granted).count());
            if let Some(hold) = &server.pins.hold {
                return format!("{} ({})", server.alias, held_state(&server.name, hold));
            }
            server_line(server, tools, state.unwrap_or(&UpstreamState::Idle))
        };
        let servers: Vec<String> = seen.iter().take(MAX_SERVER_LINES).map(line).collect();
        let hint = match (seen.len(), seen.len() - servers.len()) {
            (0, _) => "no servers are configured".to_owned(),
            (_, 0) => "search for what you want to do".to_owned(),
            (_, more) => format!("and {more} more servers; search for what you want to do"),
        };
        FoundTools { tools: Vec::new(), also: Vec::new(), servers, total: 0, hint }
    }

    /// Lists every server that a run may use. Starts nothing.
    pub(super) fn list_servers(&self, run: &CallScope) -> Value {
        let view = self.servers.catalog().view();
        let summaries = self.servers.upstreams().summaries();
        let seen = view.servers().filter(|server| self.can_see(run, server));
        let row = |server: &Arc<CatalogServer>| {
            let summary = summaries.iter().find(|summary| summary.name == server.name);
            let state = || summary.map_or_else(|| UpstreamState::Idle.to_string(), |summary| summary.state.to_string());
            let is_granted = |name: &&str| self.check_grant(run, server, name).is_ok();
            let hold = server.pins.hold.as_ref();
            let listing = server.listing.as_ref().filter(|_| hold.is_none());
            json!({
                "name": server.name,
                "alias": server.alias,
                "description": server.description,
                "tools": listing.map(|listing| listing.names().filter(is_granted).count()),
                "state": hold.map_or_else(state, |hold| held_state(&server.name, hold)),
            })
        };
        seen.map(row).collect()
    }

    /// Returns a server with its tools. Fails if it is unknown, not granted or cannot be listed.
    async fn listed_server(
        &self,
        run: &CallScope,
        cell: &CallingCell,
        server: &str,
    ) -> Result<Arc<CatalogServer>, CallError> {
        let server = self.find_server(run, server, None)?;
        let listed = self.ensure_listed(run, cell, &server.name, ListFreshness::Known).await;
        listed.map_err(|error| to_call_error(error, None))?;
        Ok(self.servers.catalog().view().find_server(&server.name).cloned().unwrap_or(server))
    }

    /// Describes a server with its tools, or everything about one tool: `topic` is `server` or `server.tool`, in any
    /// spelling. `tool_help` returns how the reader sees everything about a tool of a server. Fails if there is no such
    /// server or tool, or if it is not granted.
    pub async fn describe(
        &self,
        run: &CallScope,
        cell: &CallingCell,
        topic: &str,
        language: Language,
        tool_help: impl Fn(&str) -> String,
    ) -> Result<String, CallError> {
        let view = self.servers.catalog().view();
        // The names of servers and tools may have dots themselves.
        let mut splits = topic.match_indices('.').map(|(at, _)| (&topic[..at], &topic[at + 1..]));
        let named = splits.find(|(server, tool)| view.find_server(server).is_some() && !tool.is_empty());
        match named.filter(|_| view.find_server(topic).is_none()) {
            Some((server, tool)) => {
                let known = self.find_tool(run, cell, server, tool).await?;
                self.check_grant(run, &known.server, &known.document.name)?;
                if known.server.pins.tool_hold(&known.document.name).is_some() {
                    let remark = held_remark(&known.server.name);
                    return Ok(format!("{} {}.{}: {remark}", comment_mark(language), known.server.alias, known.alias));
                }
                Ok(known.server.reference(language, &known.alias, &known.document).stub(CommentDetail::Everything))
            }
            None => {
                let server = self.listed_server(run, cell, topic).await?;
                let text = self.describe_server(run, &server, language);
                let mark = comment_mark(language);
                Ok(format!("{text}\n{mark} all about one tool: {}", tool_help(&server.alias)))
            }
        }
    }

    /// Returns the instructions of a server and its granted tools, each with its first sentence.
    fn describe_server(&self, run: &CallScope, server: &CatalogServer, language: Language) -> String {
        let mark = comment_mark(language);
        let listing = server.listing.as_ref();
        let granted = |at: &usize| listing.is_some_and(|all| self.check_grant(run, server, all.name(*at)).is_ok());
        let tools: Vec<usize> = (0..listing.map_or(0, |listing| listing.len())).filter(granted).collect();
        let count = format_count(tools.len(), "tool");
        let mut lines = vec![format!("{mark} {}: {count}", server.alias)];
        let about = [Some(&server.description), server.instructions.as_ref()];
        let about = about.into_iter().flatten().flat_map(|words| words.lines()).filter(|line| !line.trim().is_empty());
        lines.extend(about.map(|line| format!("{mark} {}", to_comment_line(line))));
        for at in tools.iter().take(MAX_DESCRIBED) {
            let Some((listing, document)) = listing.and_then(|listing| Some((listing, listing.document(*at)?))) else {
                continue;
            };
            let reference = server.reference(language, listing.alias(*at), &document);
            lines.push(reference.call(CommentDetail::Brief));
            let about = match server.pins.tool_hold(&document.name) {
                Some(_) => held_remark(&server.name),
                None => first_sentence(&document.description),
            };
            lines.extend((!about.is_empty()).then(|| format!("    {mark} {about}")));
        }
        if tools.len() > MAX_DESCRIBED {
            lines.push(format!("{mark} … and {} more", tools.len() - MAX_DESCRIBED));
        }
        lines.join("\n")
    }

    /// Lists the granted tools of a server. Fails if the server is unknown, not granted or cannot be listed.
    pub(super) async fn list_tools(
        &self,
        run: &CallScope,
        cell: &CallingCell,
        server: &str,
    ) -> Result<Value, CallError> {
        let server = &*self.listed_server(run, cell, server).await?;
        let Some(listing) = &server.listing else { return Ok(json!([])) };
        let row = |at: usize| {
            let document = listing.document(at)?;
            self.check_grant(run, server, &document.name).ok()?;
            let alias = listing.alias(at);
            let written = |language| server.reference(language, alias, &document).signature();
            let (python, node) = (written(Language::Python), written(Language::Node));
            let mut row = json!({
                "name": document.name,
                "alias": alias,
                "description": document.description,
                "input_schema": document.input_schema,
                "output_schema": document.output_schema,
                "python": python,
                "node": node,
            });
            if server.pins.tool_hold(&document.name).is_some() {
                row["held"] = true.into();
            }
            Some(row)
        };
        Ok((0..listing.len()).filter_map(row).collect())
    }
}

/// Returns the state of a server that a person has to accept.
fn held_state(server: &str, hold: &ServerHold) -> String {
    match hold {
        ServerHold::Quarantined { .. } => format!("held until a person runs `cove servers accept {server}`"),
        ServerHold::Damaged(_) => format!("held: {}", describe_server_hold(hold)),
    }
}

/// Returns `name (number of tools, state): description`. The state is left out if the server can be called.
fn server_line(server: &CatalogServer, tools: Option<usize>, state: &UpstreamState) -> String {
    let tools = match tools {
        Some(count) => format_count(count, "tool"),
        None => "not listed yet".to_owned(),
    };
    let state = match state {
        UpstreamState::Ready | UpstreamState::Idle => String::new(),
        other => format!(", {}", first_line(&other.to_string())),
    };
    let about = first_sentence(&server.description);
    let about = if about.is_empty() { about } else { format!(": {about}") };
    format!("{} ({tools}{state}){about}", server.alias)
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

fn search_hint(shown: usize, total: usize, nothing: bool, unsearched: &[UnsearchedServer]) -> String {
    let mut words = Vec::new();
    if nothing {
        words.push("no servers are configured".to_owned());
    } else if total == 0 {
        words.push("nothing matches; try other words, or search without words to list the servers".to_owned());
    } else if shown < total {
        words.push("be more precise or raise limit".to_owned());
    }
    if !unsearched.is_empty() {
        let explained = unsearched.iter().take(MAX_EXPLAINED);
        let mut reasons: Vec<String> =
            explained.map(|left| format!("{} ({})", left.server, first_line(&left.reason))).collect();
        if unsearched.len() > MAX_EXPLAINED {
            reasons.push(format!("{} more", unsearched.len() - MAX_EXPLAINED));
        }
        words.push(format!("not searched: {}", reasons.join(", ")));
    }
    words.join("; ")
}
