//! Turns servers of other clients into definitions of Cove's own: one file each in `servers.d`, every launch once, and
//! no secret in a file.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::json;

use cove_core::error::{Failure, display_path, escape_control, write_hint};
use cove_core::private_file::{ExistingFile, write_private_file};
use cove_upstream::definition::{ServerDefinition, ServerDefinitions, ServerLaunch};
use cove_upstream::discovery::definition_text;

use super::ServersContext;
use crate::cli::install::{ClientServer, SecretToken, ServerConversion, free_name};

/// What became of one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) enum ImportOutcome {
    /// It has a definition in this file, under the name that the server has now.
    Written(PathBuf),
    /// The server of this name is started the same way.
    Known(String),
    /// It stays with the client, for this reason.
    Left(String),
}

/// Whether definitions and secrets are written, or only decided on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) enum ImportMode {
    Write,
    DryRun,
}

/// Imports servers one after the other. It knows the servers that Cove has, and those that it imported itself.
pub(in crate::cli) struct ServerImporter<'a> {
    here: &'a ServersContext,
    mode: ImportMode,
    known: Vec<KnownLaunch>,
}

/// How a server is started.
struct KnownLaunch {
    name: String,
    /// Every text of the launch by its place, with references to secrets as the definition has them.
    texts: BTreeMap<String, String>,
    allowed_tools: Vec<String>,
    denied_tools: Vec<String>,
}

impl<'a> ServerImporter<'a> {
    pub(in crate::cli) fn new(here: &'a ServersContext, mode: ImportMode) -> Self {
        Self { here, mode, known: here.definitions().servers.iter().map(KnownLaunch::new).collect() }
    }

    /// Writes the definition and the secrets of a server, unless Cove has that server already. If another server has
    /// its name, it gets a free one, which begins with its own and `client`. Fails if it could not be written.
    pub(in crate::cli) async fn import(
        &mut self,
        server: &mut ClientServer,
        client: Option<&str>,
    ) -> Result<ImportOutcome, Failure> {
        if let ServerConversion::Left(reason) = &server.conversion {
            return Ok(ImportOutcome::Left(reason.clone()));
        }
        let launch = KnownLaunch::of_client_server(server)?;
        if let Some(known) = self.find_same(&launch).await? {
            server.remarks = describe_lost_filters(known, &launch).into_iter().collect();
            return Ok(ImportOutcome::Known(known.name.clone()));
        }
        let is_taken = |name: &str| {
            let has_file = || self.here.definition_file(name).is_ok_and(|file| file.symlink_metadata().is_ok());
            self.known.iter().any(|known| known.name == name) || has_file()
        };
        if is_taken(&server.cove_name) {
            let longer = client.map(|client| format!("{}-{client}", server.cove_name)).filter(|name| name.len() <= 64);
            let name = free_name(&longer.unwrap_or_else(|| server.cove_name.clone()), &is_taken);
            server.rename(&name);
        }
        if let Some(reason) = self.here.find_secret_of_another(server).await? {
            return Ok(ImportOutcome::Left(reason));
        }
        let file = self.here.definition_file(&server.cove_name)?;
        if self.mode == ImportMode::Write {
            self.here.write_definition(server, &file).await?;
        }
        self.known.push(KnownLaunch { name: server.cove_name.clone(), ..launch });
        Ok(ImportOutcome::Written(file))
    }

    async fn find_same(&self, launch: &KnownLaunch) -> Result<Option<&KnownLaunch>, Failure> {
        for known in &self.known {
            if known.texts.keys().eq(launch.texts.keys()) && self.starts_like(known, launch).await? {
                return Ok(Some(known));
            }
        }
        Ok(None)
    }

    /// Compares the values of secrets too: the same server with another account is another server.
    async fn starts_like(&self, known: &KnownLaunch, launch: &KnownLaunch) -> Result<bool, Failure> {
        let own_secret = |text: &str, name: &str| text.replace(&format!("${{secret:{name}."), "${secret:.");
        for (text, other) in known.texts.values().zip(launch.texts.values()) {
            let is_same = text == other || own_secret(text, &known.name) == own_secret(other, &launch.name);
            if !is_same && self.with_secrets(text).await? != *other {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// A text with the values of the secrets that it refers to.
    async fn with_secrets(&self, text: &str) -> Result<String, Failure> {
        let mut whole = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("${secret:") {
            let Some((name, behind)) = after.split_once('}') else { break };
            whole.push_str(before);
            whole.push_str(&self.here.settings.secrets.get(name).await?.unwrap_or_default());
            rest = behind;
        }
        Ok(whole + rest)
    }
}

impl ServersContext {
    /// Returns why a server cannot be imported: Cove keeps a secret of a name that it would use, which is not the value
    /// of this entry. The definition would replace it, or send it to another address than it was meant for.
    async fn find_secret_of_another(&self, server: &ClientServer) -> Result<Option<String>, Failure> {
        let text = imported_definition_text(server).unwrap_or_default();
        for reference in text.split("${secret:").skip(1) {
            let name = reference.split('}').next().unwrap_or_default();
            let given = server.secrets.iter().find(|(own, _)| *own == name).map(|(_, SecretToken(value))| value);
            let kept = self.settings.secrets.get(name).await?;
            let what = match (kept, given) {
                (Some(kept), Some(given)) if kept != *given => "has another value in Cove",
                (Some(_), None) => "is in Cove already, and this server would get it",
                _ => continue,
            };
            return Ok(Some(format!("secret {name} {what}; run `cove secrets remove {name}`, then this again")));
        }
        Ok(None)
    }

    /// Writes the secrets and the definition of a client's server. A secret without a definition does no harm, so it is
    /// kept first. Fails if there is a file already.
    pub(in crate::cli) async fn write_definition(&self, server: &ClientServer, file: &Path) -> Result<(), Failure> {
        let Some(text) = imported_definition_text(server) else { return Ok(()) };
        for (name, SecretToken(value)) in &server.secrets {
            self.settings.secrets.set(name, value).await?;
        }
        write_private_file(file, &text, ExistingFile::Keep).map_err(|error: io::Error| {
            let hint = write_hint(&error, "make the folder writable for you");
            Failure::operator(format!("could not write `{}`", display_path(file))).because(error).with_hint(hint)
        })?;
        self.settings.failures.clear(&server.cove_name);
        Ok(())
    }
}

/// The text of the file that defines a client's server. None if there is no definition for it.
pub(in crate::cli) fn imported_definition_text(server: &ClientServer) -> Option<String> {
    let ServerConversion::Carried(definition) = &server.conversion else { return None };
    Some(definition_text(&server.cove_name, definition))
}

/// Says to what a person must agree before a server is defined: commands that Cove runs for its values, and files whose
/// content goes to its address. A program of this machine can read files anyway.
pub(in crate::cli) fn describe_acts(server: &ClientServer) -> Option<String> {
    let ServerConversion::Carried(definition) = &server.conversion else { return None };
    let text = definition_text(&server.cove_name, definition);
    let references = text.split("${file:").skip(1).filter_map(|rest| Some(rest.split_once('}')?.0));
    let files: Vec<&str> = references.filter(|_| definition.contains_key("url")).collect();
    let commands = server.commands.iter().map(String::as_str).collect();
    let acts = [("runs", commands), ("sends the content of", files)].into_iter().filter(|(_, what)| !what.is_empty());
    let acts: Vec<String> = acts
        .map(|(verb, what)| {
            let shown: Vec<String> = what.into_iter().map(|one| format!("`{}`", escape_control(one))).collect();
            format!("{verb} {}", shown.join(" and "))
        })
        .collect();
    (!acts.is_empty()).then(|| acts.join(", and "))
}

impl KnownLaunch {
    fn new(server: &ServerDefinition) -> Self {
        let mut texts = BTreeMap::new();
        let mut add = |place: String, text: &str| drop(texts.insert(place, text.to_owned()));
        match &server.launch {
            ServerLaunch::Stdio { command, args, env, env_file, cwd } => {
                add("command".to_owned(), command);
                args.iter().enumerate().for_each(|(index, arg)| add(format!("args {index}"), arg));
                env.iter().for_each(|(name, value)| add(format!("env {name}"), value));
                env_file.iter().for_each(|file| add("env_file".to_owned(), file));
                cwd.iter().for_each(|cwd| add("cwd".to_owned(), cwd));
            }
            ServerLaunch::Http { url, headers, headers_cmd, .. } => {
                add("url".to_owned(), url);
                headers.iter().for_each(|(name, value)| add(format!("header {}", name.to_lowercase()), value));
                headers_cmd.iter().for_each(|command| add("headers_cmd".to_owned(), command));
            }
        }
        let (allowed_tools, denied_tools) = (server.allowed_tools.clone(), server.denied_tools.clone());
        Self { name: server.name.clone(), texts, allowed_tools, denied_tools }
    }

    /// The launch of a server that has no definition yet, with the values of its secrets.
    fn of_client_server(server: &ClientServer) -> Result<Self, Failure> {
        let text = json!({"mcpServers": {(&server.cove_name): server.definition_with_values()}}).to_string();
        let all = ServerDefinitions::from_text("import.json".as_ref(), &text);
        all.servers
            .first()
            .map(Self::new)
            .ok_or_else(|| Failure::internal(format!("could not read the definition of `{}` again", server.cove_name)))
    }
}

/// Says which tools the client keeps from its model and the definition that Cove has does not.
fn describe_lost_filters(known: &KnownLaunch, launch: &KnownLaunch) -> Option<String> {
    let denied = launch.denied_tools.iter().filter(|tool| !known.denied_tools.contains(tool));
    let denied: Vec<String> = denied.map(|tool| format!("`{tool}`")).collect();
    let allows_more = !launch.allowed_tools.is_empty() && launch.allowed_tools != known.allowed_tools;
    match (denied.as_slice(), allows_more) {
        ([], false) => None,
        ([], true) => {
            Some("the client allows some of its tools only, and the server that you have allows others".to_owned())
        }
        (denied, _) => Some(format!("the client denies {}, and the server that you have does not", denied.join(", "))),
    }
}
