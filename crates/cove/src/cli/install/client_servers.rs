//! The servers in a client's file, read as Cove's own definitions. Nothing here writes: a caller decides which
//! definitions it keeps, and stores the secrets that they refer to.

mod client_switches;
mod docker_catalog;
mod entry_reader;
mod references;
mod secret_values;

use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use cove_core::document::{ConfigDocument, DocumentFormat, DocumentMember, DocumentNode};
use cove_core::error::{Failure, Refusal, display_path};
use cove_core::process_env::ProcessEnv;
use cove_upstream::definition::{ServerDefinitions, check_name};

use super::clients::{AgentClient, BaseFolder, CLIENTS, ClientPath, ReferenceForm};
use super::locations::{InstallScope, ServersLocation, project_root};
use super::server_url::SecretToken;
use super::{edit, own_entry, program_path};

use client_switches::ClientSwitches;
use entry_reader::EntryReader;

/// A file with more servers is not one that a person keeps.
const MAX_SERVERS: usize = 1_000;
/// Most bytes of one definition.
const MAX_DEFINITION: usize = 256 << 10;
const MAX_NAME: usize = 64;

/// One server of a client's file.
#[derive(Debug, Clone)]
pub(in crate::cli) struct ClientServer {
    /// The name as the file has it.
    pub(in crate::cli) name: String,
    /// The same name, or the nearest one that a server of Cove can have.
    pub(in crate::cli) cove_name: String,
    pub(in crate::cli) line: usize,
    /// The keys that lead to the entry. For an entry in a list, the last one is its index.
    pub(in crate::cli) path: Vec<String>,
    pub(in crate::cli) conversion: ServerConversion,
    /// What the definition does not say although the entry does, and why.
    pub(in crate::cli) remarks: Vec<String>,
    /// The secrets that the definition refers to, whose values were in the file.
    pub(in crate::cli) secrets: Vec<(String, SecretToken)>,
    /// The secrets that the definition refers to, whose values the client has elsewhere.
    pub(in crate::cli) needed_secrets: Vec<String>,
    /// Commands that Cove would run for a value or for headers. A person has to agree to each.
    pub(in crate::cli) commands: Vec<String>,
}

/// What becomes of an entry.
#[derive(Clone, PartialEq)]
pub(in crate::cli) enum ServerConversion {
    /// The definition, as a file in `servers.d` has it below the server's name.
    Carried(Map<String, Value>),
    /// The reason why Cove has no definition for it.
    Left(String),
}

/// Leaves out the values of arguments, variables, headers and addresses, which may be secrets.
impl fmt::Debug for ServerConversion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Carried(definition) => f.debug_tuple("Carried").field(&definition.keys()).finish(),
            Self::Left(reason) => f.debug_tuple("Left").field(reason).finish(),
        }
    }
}

impl ClientServer {
    /// Gives the server another name, also in the names of its secrets.
    pub(in crate::cli) fn rename(&mut self, name: &str) {
        let (old, new) = (format!("{}.", self.cove_name), format!("{name}."));
        let secrets = self.secrets.iter_mut().map(|(secret, _)| secret);
        for secret in secrets.chain(&mut self.needed_secrets) {
            if let Some(own) = secret.strip_prefix(&old) {
                *secret = format!("{new}{own}");
            }
        }
        if let ServerConversion::Carried(definition) = &mut self.conversion {
            let (old, new) = (format!("${{secret:{old}"), format!("${{secret:{new}"));
            definition.values_mut().for_each(|value| replace_texts(value, &|text| text.replace(&old, &new)));
        }
        name.clone_into(&mut self.cove_name);
    }

    /// The definition with the values of its secrets in it, to compare it with others. None if there is none.
    pub(in crate::cli) fn definition_with_values(&self) -> Option<Map<String, Value>> {
        let ServerConversion::Carried(definition) = &self.conversion else { return None };
        let mut definition = definition.clone();
        let insert = |text: &str| {
            let put = |text: String, (name, SecretToken(value)): &(String, SecretToken)| {
                text.replace(&secret_reference(name), value)
            };
            self.secrets.iter().fold(text.to_owned(), put)
        };
        definition.values_mut().for_each(|value| replace_texts(value, &insert));
        Some(definition)
    }
}

/// The text that stands for a secret in a definition.
fn secret_reference(name: &str) -> String {
    format!("${{secret:{name}}}")
}

/// Changes every text inside a value.
fn replace_texts(value: &mut Value, change: &impl Fn(&str) -> String) {
    match value {
        Value::String(text) => *text = change(text),
        Value::Array(items) => items.iter_mut().for_each(|item| replace_texts(item, change)),
        Value::Object(fields) => fields.values_mut().for_each(|field| replace_texts(field, change)),
        _ => {}
    }
}

/// Where entries stand, and what their texts may refer to.
struct EntrySource<'a> {
    client: Option<&'static AgentClient>,
    file: &'a Path,
    /// The folder of the project that the entries belong to. None for the user's own entries.
    project: Option<PathBuf>,
    /// The folder of the plugin that brings the entries along.
    plugin: Option<PathBuf>,
    env: &'a ProcessEnv,
    /// The `inputs` of VS Code.
    inputs: Vec<DocumentNode>,
    switches: ClientSwitches,
}

impl EntrySource<'_> {
    fn references(&self) -> ReferenceForm {
        self.client.map_or(ReferenceForm::Braces, |client| client.references)
    }

    fn title(&self) -> &'static str {
        self.client.map_or("the client", |client| client.title)
    }
}

/// Every server of a client's file, in its order, without those that start Cove. An entry that is wrong does not affect
/// the others. Fails if the text is not valid, with line and column.
pub(in crate::cli) fn read_client_servers(
    client: &'static AgentClient,
    scope: InstallScope,
    location: &ServersLocation,
    text: &str,
    env: &ProcessEnv,
) -> Result<Vec<ClientServer>, Failure> {
    let document = parse(&location.file, client.format, text)?;
    let project = match scope {
        InstallScope::User => None,
        InstallScope::Project => Some(env.cwd.clone()),
        InstallScope::Local => Some(project_root(&env.cwd)),
    };
    let source = EntrySource {
        client: Some(client),
        file: &location.file,
        project,
        plugin: None,
        env,
        inputs: inputs(&document),
        switches: ClientSwitches::read(client, scope, &document, env),
    };
    let mut container = location.container.clone();
    if own_entry::has_nested_servers(&document, client, location) {
        container.push("servers".to_owned());
    }
    read_servers(&source, &document, container)
}

/// Every server of a file that a person names. Its place or its keys tell which client wrote it.
pub(in crate::cli) fn read_servers_file(
    file: &Path,
    text: &str,
    env: &ProcessEnv,
) -> Result<Vec<ClientServer>, Failure> {
    let guess = CLIENTS.iter().find(|client| is_file_of(client, file));
    let document = parse(file, guess.map_or(DocumentFormat::Json, |client| client.format), text)?;
    let container = find_container(&document).ok_or_else(|| {
        Failure::usage(format!("could not read `{}`", display_path(file)))
            .because("it has no servers in a form that Cove knows")
            .with_hint(
                "name a file with `mcpServers`, `servers`, `context_servers`, `mcp_servers`, `mcp` or `extensions`",
            )
    })?;
    let client = guess.or_else(|| {
        let by_key = |client: &&AgentClient| client.container == container && container != ["mcpServers"];
        CLIENTS.iter().find(by_key).filter(|_| !container.is_empty())
    });
    let switches = ClientSwitches::default();
    let (project, plugin, inputs) = (None, None, inputs(&document));
    read_servers(&EntrySource { client, file, project, plugin, env, inputs, switches }, &document, container)
}

/// Every server of a file in a plugin of Claude Code, which is in `plugin`.
pub(in crate::cli) fn read_plugin_servers(
    client: &'static AgentClient,
    plugin: &Path,
    file: &Path,
    text: &str,
    env: &ProcessEnv,
) -> Result<Vec<ClientServer>, Failure> {
    let document = parse(file, client.format, text)?;
    let Some(container) = find_container(&document) else { return Ok(Vec::new()) };
    let switches = ClientSwitches::default();
    let (project, plugin, inputs) = (None, Some(plugin.to_owned()), Vec::new());
    read_servers(
        &EntrySource { client: Some(client), file, project, plugin, env, inputs, switches },
        &document,
        container,
    )
}

/// True if a file stands where a client has one, below any folder.
fn is_file_of(client: &AgentClient, file: &Path) -> bool {
    let is_user_file = |ClientPath(base, below): &ClientPath| match base {
        BaseFolder::Var(_, fallback) => file.ends_with(Path::new(fallback).join(below)),
        _ => file.ends_with(below),
    };
    client.user.iter().any(is_user_file) || client.project.iter().any(|below| file.ends_with(below))
}

/// The keys that lead to the servers of a document. An empty path means that the servers are at the top.
fn find_container(document: &ConfigDocument) -> Option<Vec<String>> {
    let root = document.root()?;
    let keys: [&[&str]; 9] = [
        &["mcpServers"],
        &["mcp", "servers"],
        &["servers"],
        &["context_servers"],
        &["mcp_servers"],
        &["amp.mcpServers"],
        &["extensions"],
        &["mcp"],
        &[docker_catalog::REGISTRY],
    ];
    let descend = |keys: &[&str]| keys.iter().try_fold(root, |node, key| node.get(key));
    let has_servers = |keys: &&[&str]| {
        descend(keys).is_some_and(|node| node.items().is_some() || node.members().is_some()) && !is_entry(descend(keys))
    };
    if let Some(keys) = keys.into_iter().find(has_servers) {
        return Some(keys.iter().map(|key| (*key).to_owned()).collect());
    }
    let members = root.members().filter(|members| !members.is_empty())?;
    members.iter().all(|member| is_entry(Some(&member.node))).then(Vec::new)
}

/// True for a value that describes one server.
fn is_entry(node: Option<&DocumentNode>) -> bool {
    node.is_some_and(|node| own_entry::program(node).is_some() || own_entry::url(node).is_some())
}

/// Parses a client's file. The ending of its name tells the format, which not every file of a client shares.
fn parse(file: &Path, format: DocumentFormat, text: &str) -> Result<ConfigDocument, Failure> {
    let format = match file.extension().and_then(|ending| ending.to_str()) {
        Some("yaml" | "yml") => DocumentFormat::Yaml,
        Some("toml") => DocumentFormat::Toml,
        Some("json" | "jsonc") => DocumentFormat::Json,
        _ => format,
    };
    ConfigDocument::parse(format, text).map_err(|error| unreadable(file, edit::unreadable(format, &error)))
}

fn unreadable(file: &Path, refusal: Refusal) -> Failure {
    Failure::usage(format!("could not read the servers of `{}`", display_path(file)))
        .because(refusal.cause)
        .with_hint("nothing was changed; correct the file, and run this again")
}

fn inputs(document: &ConfigDocument) -> Vec<DocumentNode> {
    let inputs = document.root().and_then(|root| root.get("inputs"));
    inputs.and_then(DocumentNode::items).unwrap_or_default().to_vec()
}

fn read_servers(
    source: &EntrySource<'_>,
    document: &ConfigDocument,
    container: Vec<String>,
) -> Result<Vec<ClientServer>, Failure> {
    let refused = |refusal| unreadable(source.file, refusal);
    let Some(node) = edit::find(document, &container).map_err(refused)? else { return Ok(Vec::new()) };
    let count = node.members().map(<[_]>::len).or_else(|| Some(node.items()?.len())).unwrap_or(0);
    if count > MAX_SERVERS {
        let cause = format!("it has {count} servers, more than the {MAX_SERVERS} that Cove reads");
        return Err(refused(Refusal::new(cause, "")));
    }
    let entries: Vec<(String, String, usize, &DocumentNode)> = match (node.members(), node.items()) {
        (Some(members), _) => {
            if let Some(second) = repeated_key(members) {
                let path = [&container[..], std::slice::from_ref(&second.key)].concat();
                return Err(refused(edit::refuse_duplicate_key(document, second, &path)));
            }
            members.iter().map(|member| (member.key.clone(), member.key.clone(), member.line, &member.node)).collect()
        }
        (None, Some(items)) => {
            let name =
                |item: &DocumentNode| item.get("name").and_then(DocumentNode::text).unwrap_or_default().to_owned();
            items.iter().enumerate().map(|(index, item)| (index.to_string(), name(item), item.line, item)).collect()
        }
        (None, None) if node.is_null() => Vec::new(),
        (None, None) => return Err(refused(edit::refuse_other_kind(document, node, &container))),
    };
    let this_program = program_path::this_program().ok();
    let mut servers: Vec<ClientServer> = Vec::new();
    for (key, name, line, node) in entries {
        if own_entry::leads_to_cove(&name, node, this_program.as_deref()) {
            continue;
        }
        let taken = |name: &str| servers.iter().any(|server| server.cove_name == name);
        let cove_name = free_name(&valid_name(&name), &taken);
        let path = [&container[..], &[key]].concat();
        let keys = ServerKeys { name, cove_name, line, path };
        servers.push(match source.client.is_none() && container == [docker_catalog::REGISTRY] {
            true => match docker_catalog::to_entry(node) {
                Ok(entry) => read_server(source, keys, &entry),
                Err(reason) => keys.left(reason),
            },
            false => read_server(source, keys, node),
        });
    }
    Ok(servers)
}

fn repeated_key(members: &[DocumentMember]) -> Option<&DocumentMember> {
    let is_repeated =
        |(index, member): &(usize, &DocumentMember)| members[..*index].iter().any(|before| before.key == member.key);
    members.iter().enumerate().find(is_repeated).map(|(_, member)| member)
}

/// What an entry is called and where it stands.
struct ServerKeys {
    name: String,
    cove_name: String,
    line: usize,
    path: Vec<String>,
}

impl ServerKeys {
    /// The server of an entry that has no definition.
    fn left(self, reason: String) -> ClientServer {
        let Self { name, cove_name, line, path } = self;
        ClientServer {
            name,
            cove_name,
            line,
            path,
            conversion: ServerConversion::Left(reason),
            remarks: Vec::new(),
            secrets: Vec::new(),
            needed_secrets: Vec::new(),
            commands: Vec::new(),
        }
    }
}

fn read_server(source: &EntrySource<'_>, keys: ServerKeys, node: &DocumentNode) -> ClientServer {
    let mut reader = EntryReader::new(source, &keys.name, &keys.cove_name, node);
    let definition = reader.definition();
    let EntryReader { remarks, secrets, needed_secrets, commands, .. } = reader;
    let conversion = match definition {
        Ok(definition) => ServerConversion::Carried(definition),
        Err(reason) => return keys.left(reason),
    };
    let ServerKeys { name, cove_name, line, path } = keys;
    let server = ClientServer { name, cove_name, line, path, conversion, remarks, secrets, needed_secrets, commands };
    let check = |definition: &Map<String, Value>| check_definition(source.file, &server.cove_name, definition);
    let plain = if let ServerConversion::Carried(definition) = &server.conversion { check(definition) } else { Ok(()) };
    // A reference to a secret may hide that its value cannot be used.
    let whole = server.definition_with_values().map_or(Ok(()), |whole| check(&whole));
    match plain.and(whole) {
        Ok(()) => server,
        Err(reason) => {
            let ClientServer { name, cove_name, line, path, .. } = server;
            ServerKeys { name, cove_name, line, path }.left(reason)
        }
    }
}

/// Parses a definition as Cove will, so that no file gets one that Cove refuses later.
fn check_definition(file: &Path, name: &str, definition: &Map<String, Value>) -> Result<(), String> {
    let text = json!({"mcpServers": {(name): definition}}).to_string();
    if text.len() > MAX_DEFINITION {
        return Err(format!("it has more than {} KiB", MAX_DEFINITION >> 10));
    }
    // The text is JSON, whatever the file is.
    let problem = ServerDefinitions::from_text(&file.with_extension("json"), &text).problems.into_iter().next();
    problem.map_or(Ok(()), |problem| {
        let what = problem.what.strip_suffix(&format!(", so `{name}` is not used")).unwrap_or(&problem.what);
        Err(what.to_owned())
    })
}

/// The nearest name that a server of Cove can have: `Sequential Thinking` becomes `sequential-thinking`.
fn valid_name(name: &str) -> String {
    if check_name(name).is_ok() {
        return name.to_owned();
    }
    let mut valid = String::new();
    for c in name.to_lowercase().chars() {
        match c {
            'a'..='z' | '0'..='9' | '_' | '.' => valid.push(c),
            _ if valid.ends_with('-') => {}
            _ => valid.push('-'),
        }
        if valid.len() == MAX_NAME {
            break;
        }
    }
    let valid = valid.trim_matches(['-', '_', '.']);
    if valid.is_empty() { "server".to_owned() } else { valid.to_owned() }
}

/// The name, or else the name with the first number that makes it free.
pub(in crate::cli) fn free_name(name: &str, is_taken: &impl Fn(&str) -> bool) -> String {
    let numbered = |number: usize| {
        let ending = format!("-{number}");
        format!("{}{ending}", &name[..name.len().min(MAX_NAME - ending.len())])
    };
    let candidates = std::iter::once(name.to_owned()).chain((2..).map(numbered));
    candidates.into_iter().find(|candidate| !is_taken(candidate)).unwrap_or_default()
}

#[cfg(test)]
mod tests;
