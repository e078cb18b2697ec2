//! Cove's own entry in a client's file: where it goes, what it holds, and whether an existing one leads to Cove.

use std::path::Path;

use super::DEFAULT_NAME;
use super::client_entries::EntryTarget;
use super::clients::{AgentClient, EntryShape};
use super::edit::{self, ClientEntry};
use super::locations::{InstallScope, ServersLocation};
use super::server_url::ServerUrl;
use cove_core::document::{ConfigDocument, DocumentNode, DocumentValue};
use cove_core::error::Refusal;
use cove_core::own_package::args_of_package;
use cove_server::http::TOKEN_VARIABLE;

/// What package runners such as `uvx` and `npx` call Cove.
const PACKAGE_NAME: &str = "cove-mcp";
/// The names that clients have for the address of a server.
pub(super) const URL_KEYS: [&str; 8] =
    ["url", "serverUrl", "httpUrl", "uri", "baseUrl", "base_url", "server_url", "endpoint"];

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
pub(super) fn has_nested_servers(document: &ConfigDocument, client: &AgentClient, location: &ServersLocation) -> bool {
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

/// The arguments of Cove in an entry that starts it.
pub(super) fn cove_args(entry: &DocumentNode) -> Option<Vec<String>> {
    let args = program_args(entry)?;
    let own = program(entry).and_then(|program| args_of_package(program, &args)).map(<[String]>::to_vec);
    Some(own.unwrap_or(args))
}

/// The arguments of the program that an entry starts.
fn program_args(entry: &DocumentNode) -> Option<Vec<String>> {
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
    URL_KEYS.into_iter().find_map(|key| entry.get(key)?.text())
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

/// True if an entry starts a `cove`, Cove's package, or exactly this program.
fn starts_cove(entry: &DocumentNode, this_program: Option<&str>) -> bool {
    let Some(program) = program(entry) else { return false };
    let is_package = || program_args(entry).is_some_and(|args| args_of_package(program, &args).is_some());
    is_cove_program(program, this_program) || is_package()
}

fn is_cove_program(program: &str, this_program: Option<&str>) -> bool {
    let name = Path::new(program).file_name().and_then(|name| name.to_str());
    Some(program) == this_program || matches!(name, Some("cove" | "cove.exe"))
}

/// True if an entry leads to Cove in any way: also through a gateway, another machine's shell or a package runner. A
/// server on this machine with the path that Cove has may be another one, so its name counts too.
pub(super) fn leads_to_cove(name: &str, entry: &DocumentNode, this_program: Option<&str>) -> bool {
    if program(entry).is_none() {
        let is_local = |url: &str| name == DEFAULT_NAME && ServerUrl::is_local_cove(url);
        return url(entry).is_some_and(|url| uses_cove_token(entry) || is_local(url));
    }
    let args = program_args(entry).unwrap_or_default();
    let words: Vec<&str> = args.iter().flat_map(|arg| arg.split_whitespace()).collect();
    let is_cove = |word: &&str| is_cove_program(word, this_program);
    let runs_cove = words.iter().position(is_cove).is_some_and(|at| words[at..].contains(&"serve"));
    let is_package = |word: &&str| word.split(['@', '=']).next() == Some(PACKAGE_NAME);
    starts_cove(entry, this_program) || runs_cove || words.iter().any(is_package)
}
