//! What holds for the files of clients, whatever is in them: an edit adds Cove's entry and changes nothing else, taking it
//! out gives the file back, and the definitions that Cove makes of other entries can be used and show no secret.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use super::client_servers::{ClientServer, ServerConversion, read_client_servers, read_servers_file};
use super::clients::CLIENTS;
use super::edit::{ClientEntry, TakenEntry, find, remove, set};
use super::locations::{InstallScope, locate};
use super::server_url::SecretToken;
use cove_core::document::{ConfigDocument, DocumentFormat, DocumentMember, DocumentNode, DocumentValue};
use cove_core::error::{Failure, Refusal};
use cove_core::process_env::ProcessEnv;
use cove_upstream::definition::{ServerDefinitions, check_name};

/// Shorter values are not secrets that can be told from other text.
const MIN_SECRET: usize = 8;
const MIN_DIGITS: usize = 3;

/// Takes the first byte as the choice of a client, and the rest as a file of it. Panics where reading it or editing it
/// breaks a promise.
pub fn exercise(bytes: &[u8]) {
    let Some((choice, text)) = bytes.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let client = &CLIENTS[usize::from(*choice) % CLIENTS.len()];
    let env = process_env();
    for scope in [InstallScope::User, InstallScope::Project, InstallScope::Local] {
        if let Ok(location) = locate(client, scope, &env) {
            check_servers(read_client_servers(client, scope, &location, text, &env), text);
        }
    }
    let name = match client.format {
        DocumentFormat::Json => "x.json",
        DocumentFormat::Toml => "x.toml",
        DocumentFormat::Yaml => "x.yaml",
    };
    check_servers(read_servers_file(Path::new(name), text, &env), text);
    if let Ok(document) = ConfigDocument::parse(client.format, text) {
        assert_eq!(document.file_text(), text, "a parsed text is kept as it is");
        let keys = client.container.iter().chain(&["cove"]);
        let path: Vec<String> = keys.map(|key| (*key).to_owned()).collect();
        check_edits(&document, &path);
        check_taken_entries(&document, &path[..path.len() - 1]);
    }
}

fn process_env() -> ProcessEnv {
    let env = BTreeMap::from([("HOME".into(), "/nonexistent/h".into())]);
    ProcessEnv { env, cwd: "/nonexistent/p".into(), stdin_is_terminal: false }
}

fn check_shown(text: &str) {
    assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?} has control characters");
    assert!(text.len() <= 16 * 1024, "a message has {} bytes: {text}", text.len());
}

fn check_refusal(refusal: &Refusal) {
    check_shown(&refusal.cause);
    check_shown(&refusal.hint);
}

fn check_servers(servers: Result<Vec<ClientServer>, Failure>, file: &str) {
    let servers = match servers {
        Ok(servers) => servers,
        Err(failure) => return check_shown(&failure.report().to_string()),
    };
    for (index, server) in servers.iter().enumerate() {
        let name = &server.cove_name;
        assert_eq!(check_name(name), Ok(()));
        assert!(servers[..index].iter().all(|other| other.cove_name != *name), "`{name}` is there twice");
        server.remarks.iter().for_each(|remark| check_shown(remark));
        match &server.conversion {
            ServerConversion::Left(reason) => check_shown(reason),
            ServerConversion::Carried(definition) => check_definition(server, definition, file),
        }
    }
}

/// The definition is one that Cove reads without a problem, and no value of a secret is in it or beside it.
fn check_definition(server: &ClientServer, definition: &serde_json::Map<String, Value>, file: &str) {
    let text = json!({ "mcpServers": { (&server.cove_name): definition } }).to_string();
    let read = ServerDefinitions::from_text(Path::new("x.json"), &text);
    assert!(read.problems.is_empty() && read.servers.len() == 1, "{:?} of {text}", read.problems);
    let known: Vec<&str> =
        server.secrets.iter().map(|(name, _)| name).chain(&server.needed_secrets).map(String::as_str).collect();
    for name in read.servers[0].secret_names() {
        assert!(known.contains(&name), "the secret {name:?} is not among {known:?} of {text}");
    }
    for (_, SecretToken(value)) in server.secrets.iter().filter(|(_, secret)| is_telling(&secret.0, file)) {
        for remark in &server.remarks {
            assert!(!remark.contains(value.as_str()), "a secret is in the remark {remark:?}");
        }
        assert!(!format!("{server:?}").contains(&format!("{value:?}")), "a secret is shown");
    }
}

/// True if text that has the value can only have it from the secret: not from Cove's own words, which have few digits,
/// and not from another place in the file.
fn is_telling(secret: &str, file: &str) -> bool {
    let digits = secret.bytes().filter(u8::is_ascii_digit).count();
    secret.len() >= MIN_SECRET && digits >= MIN_DIGITS && file.matches(secret).count() == 1
}

/// The entry that Cove writes.
fn entry() -> ClientEntry {
    let args = DocumentNode::list(["serve".to_owned()]);
    let fixed = vec![DocumentMember::new("command", "/b/cove"), DocumentMember::new("args", args)];
    ClientEntry { fixed, initial: Vec::new() }
}

fn check_edits(document: &ConfigDocument, path: &[String]) {
    let had_entry = matches!(find(document, path), Ok(Some(_)));
    let edited = match set(document, path, &entry()) {
        Ok(edited) => edited,
        Err(refusal) => return check_refusal(&refusal),
    };
    let text = edited.file_text();
    check_outside(document, &edited);
    let again = ConfigDocument::parse(edited.format(), &text).expect("an edited file parses");
    assert_eq!(again.root(), edited.root());
    match set(&again, path, &entry()) {
        Ok(same) => assert_eq!(same.file_text(), text, "a second install changes nothing"),
        Err(refusal) => panic!("a second install is refused: {refusal:?} of {text:?}"),
    }
    if had_entry {
        return;
    }
    assert!(
        is_subsequence(&without_empty_container(document, path), &text),
        "bytes of {document:?} are gone from {text:?}"
    );
    match remove(&again, path) {
        Ok(Some(removed)) => {
            let (before, after) = (without_empty_maps(document, path), without_empty_maps(&removed, path));
            assert_eq!(before, after, "out again from {text:?}");
        }
        Ok(None) => panic!("the entry is gone from {text:?}"),
        Err(refusal) => panic!("the entry cannot be taken out: {refusal:?} of {text:?}"),
    }
}

/// Another parser that accepts the file accepts it with the entry too, and finds all that it had found.
fn check_outside(before: &ConfigDocument, after: &ConfigDocument) {
    match before.format() {
        DocumentFormat::Json => {
            let Ok(Value::Object(old)) = serde_json::from_str::<Value>(before.text()) else { return };
            let new: Value = serde_json::from_str(after.text()).expect("strict JSON stays strict");
            assert!(old.keys().all(|key| new.get(key).is_some()), "a key is gone from {new}");
        }
        DocumentFormat::Toml => {
            // Cove keeps numbers as text; this parser refuses those beyond 64 bits.
            let Ok(old) = before.text().parse::<toml::Table>() else { return };
            let new: toml::Table = after.text().parse().expect("TOML stays TOML");
            assert!(old.keys().all(|key| new.contains_key(key)), "a key is gone from {new}");
        }
        DocumentFormat::Yaml => {}
    }
}

/// The text of a document without the `{}`, `null` or `~` that an entry on this path replaces.
fn without_empty_container(document: &ConfigDocument, path: &[String]) -> String {
    let node = (0..path.len()).rev().find_map(|length| find(document, &path[..length]).ok().flatten());
    let mut text = document.text().to_owned();
    if let Some(node) = node
        && node.members().is_none_or(<[DocumentMember]>::is_empty)
    {
        text.replace_range(node.range.clone(), "");
    }
    text
}

fn is_subsequence(short: &str, long: &str) -> bool {
    let mut bytes = long.bytes();
    short.bytes().all(|byte| bytes.by_ref().any(|other| other == byte))
}

/// The value of a document, without the maps on a path that have nothing in them.
fn without_empty_maps(document: &ConfigDocument, path: &[String]) -> DocumentValue {
    let root = document.root().map_or(DocumentValue::Null, |root| root.value.clone());
    prune(root, path)
}

fn prune(value: DocumentValue, path: &[String]) -> DocumentValue {
    let (DocumentValue::Map(members), Some((key, below))) = (&value, path.split_first()) else { return value };
    let pruned = members.iter().filter_map(|member| {
        let mut member = member.clone();
        if member.key == *key {
            member.node.value = prune(member.node.value, below);
        }
        (member.key != *key || member.node.value != DocumentValue::Null).then_some(member)
    });
    match pruned.collect::<Vec<_>>() {
        members if members.is_empty() => DocumentValue::Null,
        members => DocumentValue::Map(members),
    }
}

/// Every entry can be taken out and put back, or is refused.
fn check_taken_entries(document: &ConfigDocument, container: &[String]) {
    let Ok(Some(node)) = find(document, container) else { return };
    for member in node.members().unwrap_or_default().iter().take(4) {
        let path = [container, std::slice::from_ref(&member.key)].concat();
        let taken = match TakenEntry::find(document, &path) {
            Ok(taken) => taken.expect("the entry is there"),
            Err(refusal) => {
                check_refusal(&refusal);
                continue;
            }
        };
        assert_eq!(taken.node(document.format()).as_ref(), Some(&member.node), "an entry keeps its value");
        let Ok(removed) = remove(document, &path) else { continue };
        let removed = removed.expect("the entry is there");
        match taken.put_back(&removed) {
            Ok(whole) => {
                let found = find(&whole, &path).expect("the path is there");
                assert_eq!(found, Some(&member.node), "an entry comes back as it was");
                let (before, after) = (without_empty_maps(document, container), without_empty_maps(&whole, container));
                assert_eq!(sorted(before), sorted(after), "the rest stays");
            }
            Err(refusal) => check_refusal(&refusal),
        }
    }
}

/// The members of a map in the order of their keys: an entry may come back at another place.
fn sorted(value: DocumentValue) -> DocumentValue {
    let DocumentValue::Map(mut members) = value else { return value };
    members.sort_by(|a, b| a.key.cmp(&b.key));
    for member in &mut members {
        let value = std::mem::replace(&mut member.node.value, DocumentValue::Null);
        member.node.value = sorted(value);
    }
    DocumentValue::Map(members)
}

#[cfg(test)]
mod tests {
    #[test]
    fn replays_the_corpus_of_client_files() {
        crate::replay::replay("client_files", super::exercise);
    }
}
