//! What is ours in a client's file: where our entry goes, and whether one that is there starts this program.

use std::path::Path;

use super::clients::{Client, Shape};
use super::edit::{Document, Entry};
use super::places::Spot;
use super::tree::{Node, Plain, Value};

/// The keys that lead to an entry. opencode has moved its servers one step down; a file that has them there keeps them
/// there.
pub(super) fn path(document: &Document, client: &Client, spot: &Spot, name: &str) -> Vec<String> {
    let mut path = spot.container.clone();
    if client.shape == Shape::Opencode && is_native(document, &path) {
        path.push("servers".to_owned());
    }
    path.push(name.to_owned());
    path
}

/// A map called `servers` that is not itself a server of that name.
fn is_native(document: &Document, container: &[String]) -> bool {
    let servers: Vec<String> = container.iter().cloned().chain(["servers".to_owned()]).collect();
    let found = document.find(&servers).ok().flatten();
    found.is_some_and(|node| {
        matches!(node.value, Value::Map(_)) && node.get("type").is_none() && node.get("command").is_none()
    })
}

/// The entry as this document wants it.
pub(super) fn entry(
    document: &Document,
    client: &Client,
    spot: &Spot,
    (name, command, args): (&str, &str, &[String]),
) -> Entry {
    let mut entry = client.entry(name, command, args);
    if client.shape == Shape::Opencode && is_native(document, &spot.container) {
        // What is on needs no word there.
        entry.initial.retain(|(key, plain)| key != "enabled" || *plain != Plain::Bool(true));
    }
    entry
}

/// The program that an entry starts, in every form that a client has.
pub(super) fn program(entry: &Node) -> Option<&str> {
    let command = entry.get("command").or_else(|| entry.get("cmd"))?;
    let node = match &command.value {
        Value::List(items) => items.first()?,
        Value::Map(_) => command.get("path")?,
        _ => command,
    };
    match &node.value {
        Value::Text(text) => Some(text),
        _ => None,
    }
}

/// Whether an entry starts a `cove`, or the very program that we are.
pub(super) fn starts_cove(entry: &Node, this: Option<&str>) -> bool {
    let Some(program) = program(entry) else { return false };
    let name = Path::new(program).file_name().and_then(|name| name.to_str());
    Some(program) == this || matches!(name, Some("cove" | "cove.exe"))
}
