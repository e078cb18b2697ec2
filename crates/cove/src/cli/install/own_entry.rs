//! Cove's own entry in a client's file: where it goes, what it holds, and whether an existing one starts this program.

use std::path::Path;

use super::clients::{AgentClient, EntryShape};
use super::edit::{self, ClientEntry};
use super::locations::ServersLocation;
use cove_core::document::{ConfigDocument, DocumentNode, DocumentValue};

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
    (name, program, args): (&str, &str, &[String]),
) -> ClientEntry {
    let mut entry = client.entry(name, program, args);
    if has_nested_servers(document, client, location) {
        // Servers are enabled by default there.
        entry.initial.retain(|field| field.key != "enabled");
    }
    entry
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

/// True if an entry starts a `cove`, or exactly this program.
pub(super) fn starts_cove(entry: &DocumentNode, this_program: Option<&str>) -> bool {
    let Some(program) = program(entry) else { return false };
    let name = Path::new(program).file_name().and_then(|name| name.to_str());
    Some(program) == this_program || matches!(name, Some("cove" | "cove.exe"))
}
