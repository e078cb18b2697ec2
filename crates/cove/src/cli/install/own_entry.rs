//! Cove's own entry in a client's file: where it goes, what it holds, and whether an existing one leads to Cove.

use std::path::Path;

use super::client_entries::EntryTarget;
use super::clients::{AgentClient, EntryShape};
use super::edit::{self, ClientEntry};
use super::locations::{InstallScope, ServersLocation};
use super::server_url::ServerUrl;
use cove_core::document::{ConfigDocument, DocumentNode, DocumentValue};
use cove_core::error::Refusal;
use cove_server::http::TOKEN_VARIABLE;

/// The keys that lead to an entry. opencode has moved its servers one level down; a file that has them there keeps them
/// there.
pub(super) fn path(
    document: &ConfigDocument,
    client: &AgentClient,
    location: &ServersLocation,
    name: &str,
) -> Vec<String> {
    let mut path = location.container.clone();
    if has_nested_servers(document, client, location) {
        path.push("servers".to_owned());
    }
    path.push(name.to_owned());
    path
}

/// True if there is a map `servers` that is not itself a server with that name.
fn has_nested_servers(document: &ConfigDocument, client: &AgentClient, location: &ServersLocation) -> bool {
    let servers = [&location.container[..], &["servers".to_owned()]].concat();
    client.shape == EntryShape::Opencode
        && edit::find(document, &servers)
            .ok()
            .flatten()
            .is_some_and(|node| node.members().is_some() && node.get("type").is_none() && node.get("command").is_none())
}

/// The entry as this document wants it.
pub(super) fn entry(
    document: &ConfigDocument,
    client: &AgentClient,
    location: &ServersLocation,
    (name, target, scope): (&str, &EntryTarget, InstallScope),
) -> Result<ClientEntry, Refusal> {
    let mut entry = client.entry(name, target, scope)?;
    if has_nested_servers(document, client, location) {
        // Servers are enabled by default there.
        entry.initial.retain(|field| field.key != "enabled");
    }
    Ok(entry)
}

/// The program that an entry starts, in every form that a client has.
pub(super) fn program(entry: &DocumentNode) -> Option<&str> {
    let command = entry.get("command").or_else(|| entry.get("cmd"))?;
    match &command.value {
        DocumentValue::List(items) => items.first()?.text(),
        DocumentValue::Map(_) => command.get("path")?.text(),
        _ => command.text(),
    }
}

/// The arguments of that program.
pub(super) fn program_args(entry: &DocumentNode) -> Option<Vec<String>> {
    let command = entry.get("command").or_else(|| entry.get("cmd"))?;
    let items = match &command.value {
        DocumentValue::List(items) => items.get(1..)?,
        DocumentValue::Map(_) => command.get("args")?.items()?,
        _ => entry.get("args")?.items()?,
    };
    items.iter().map(|item| item.text().map(str::to_owned)).collect()
}

/// The URL of an entry, in every form that a client has.
pub(super) fn url(entry: &DocumentNode) -> Option<&str> {
    ["url", "serverUrl", "httpUrl", "uri"].into_iter().find_map(|key| entry.get(key)?.text())
}

/// True if an entry starts Cove, or leads to a running one.
pub(super) fn is_own(entry: &DocumentNode, this_program: Option<&str>) -> bool {
    match program(entry) {
        Some(_) => starts_cove(entry, this_program),
        None => url(entry).is_some_and(|url| uses_cove_token(entry) || ServerUrl::is_local_cove(url)),
    }
}

/// The credential of an entry with a URL: a header, or the name of a variable.
pub(super) fn credential(entry: &DocumentNode) -> Option<&str> {
    let header = |key| entry.get(key)?.get("Authorization")?.text();
    let header = ["headers", "http_headers"].into_iter().find_map(header);
    header.or_else(|| entry.get("bearer_token_env_var")?.text())
}

/// True if an entry holds a token that Cove made, or refers to Cove's variable.
fn uses_cove_token(entry: &DocumentNode) -> bool {
    credential(entry).is_some_and(|value| value.starts_with("Bearer cove_") || value.contains(TOKEN_VARIABLE))
}

/// True if an entry starts a `cove`, or exactly this program.
fn starts_cove(entry: &DocumentNode, this_program: Option<&str>) -> bool {
    let Some(program) = program(entry) else { return false };
    let name = Path::new(program).file_name().and_then(|name| name.to_str());
    Some(program) == this_program || matches!(name, Some("cove" | "cove.exe"))
}
