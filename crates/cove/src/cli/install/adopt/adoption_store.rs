//! What an adoption writes for Cove: definitions, secrets, and the record of both. It must not know the client's file.

use std::fs;
use std::path::Path;

use cove_core::document::ConfigDocument;
use cove_core::error::{Failure, Hint, escape_control};
use cove_core::text::cut;
use cove_upstream::pool::UpstreamError;

use super::{AdoptionRule, AdoptionSelection, AdoptionStore, DefinitionPlace, MovableServer, ServerFate, is_off};
use crate::cli::install::adoption_record::{AdoptionRecord, WrittenDefinition, digest};
use crate::cli::install::client_servers::{ClientServer, ServerConversion};
use crate::cli::install::edit;
use crate::cli::secrets::ask_for_needed_secrets;
use crate::cli::servers::{ImportOutcome, RefreshResult, ServerImporter, imported_definition_text, refresh_servers};

/// Characters of a text of a server's in the reason why it is left.
const MAX_SERVER_TEXT: usize = 200;

impl AdoptionStore {
    /// Chooses the definition of a server: one that Cove has, or a new one under a free name. The inner error is the
    /// reason to leave it.
    pub(super) fn place(
        &self,
        importer: &mut ServerImporter<'_>,
        server: &mut ClientServer,
        client: &'static str,
    ) -> Result<Result<DefinitionPlace, String>, Failure> {
        Ok(match self.runtime.block_on(importer.import(server, Some(client)))? {
            ImportOutcome::Written(file) => {
                Ok(DefinitionPlace { name: server.cove_name.clone(), file, text: imported_definition_text(server) })
            }
            ImportOutcome::Known(name) => match server.remarks.pop() {
                // Code would get tools that the client keeps from its model.
                Some(remark) => Err(format!("`{name}` of Cove starts the same: {remark}")),
                None => {
                    let known = self.here.definitions().servers.into_iter().find(|known| known.name == name);
                    server.rename(&name);
                    Ok(DefinitionPlace {
                        name,
                        file: known.map(|known| known.origin.path).unwrap_or_default(),
                        text: None,
                    })
                }
            },
            ImportOutcome::Left(reason) => Err(reason),
        })
    }

    /// The secrets of a server that Cove does not have yet. The inner error is the reason to leave the server: a secret of
    /// that name has another value, which is not replaced.
    pub(super) fn find_new_secrets(&self, server: &ClientServer) -> Result<Result<Vec<String>, String>, Failure> {
        let mut missing = Vec::new();
        for (name, value) in &server.secrets {
            match self.runtime.block_on(self.here.secrets().get(name))? {
                None => missing.push(name.clone()),
                Some(kept) if kept == value.0 => {}
                Some(_) => {
                    return Ok(Err(format!(
                        "secret {name} has another value in Cove; run `cove secrets remove {name}`, then this again"
                    )));
                }
            }
        }
        Ok(Ok(missing))
    }

    /// Writes secrets and definitions, after the record that names them. Returns that record.
    pub(super) fn write_definitions(
        &self,
        candidates: &mut [MovableServer],
        before: AdoptionRecord,
    ) -> Result<AdoptionRecord, Failure> {
        let mut record = before.clone();
        let others = self.records.definitions_of_others(&self.id);
        for candidate in candidates.iter().filter(|candidate| candidate.is_open()) {
            let Some(place) = &candidate.place else { continue };
            match &place.text {
                Some(text) => {
                    record.add_definition(WrittenDefinition {
                        name: place.name.clone(),
                        file: place.file.clone(),
                        entry: candidate.server.path.clone(),
                        digest: digest(text),
                        waits: false,
                    });
                    candidate.new_secrets.iter().for_each(|name| record.add_secret(name));
                }
                // Two clients may share a definition; the last one that is uninstalled removes it.
                None => others
                    .iter()
                    .filter(|known| known.file == place.file && known.is_unchanged())
                    .for_each(|known| record.add_definition(WrittenDefinition { waits: false, ..known.clone() })),
            }
        }
        self.records.save(&self.id, &record)?;
        let written = candidates.iter().filter(|candidate| candidate.is_open()).try_for_each(|candidate| {
            match &candidate.place {
                Some(DefinitionPlace { file, text: Some(_), .. }) => {
                    self.runtime.block_on(self.here.write_definition(&candidate.server, file))
                }
                _ => Ok(()),
            }
        });
        if let Err(failure) = written {
            candidates.iter_mut().for_each(|candidate| candidate.leave(""));
            self.drop_left_definitions(candidates, before)?;
            return Err(failure);
        }
        Ok(record)
    }

    /// Asks a person at a terminal for the secrets that the clients have elsewhere and Cove does not have yet.
    pub(super) fn ask_for_secrets(&self, candidates: &[MovableServer]) -> Result<(), Failure> {
        let mut is_asking = true;
        for candidate in candidates.iter().filter(|candidate| candidate.is_open()) {
            let mut missing = Vec::new();
            for name in &candidate.server.needed_secrets {
                if self.runtime.block_on(self.here.secrets().get(name))?.is_none() {
                    missing.push(name.clone());
                }
            }
            let asked = ask_for_needed_secrets(self.here.secrets(), &candidate.server.name, missing, &mut is_asking);
            self.runtime.block_on(asked)?;
        }
        Ok(())
    }

    /// Starts every server that has a definition, and leaves those that do not start.
    pub(super) fn start(&self, candidates: &mut [MovableServer], rule: AdoptionRule) -> Result<(), Failure> {
        let is_off = |candidate: &MovableServer| match &candidate.server.conversion {
            ServerConversion::Carried(fields) => is_off(fields),
            ServerConversion::Left(_) => true,
        };
        let named = candidates.iter().filter(|candidate| candidate.is_open() && !is_off(candidate));
        let names: Vec<String> = named.filter_map(|candidate| Some(candidate.place.as_ref()?.name.clone())).collect();
        let results = if names.is_empty() { Some(Vec::new()) } else { refresh_servers(&self.here, &names)? };
        let results = results.ok_or_else(|| {
            Failure::operator("could not adopt the servers")
                .because("it was interrupted")
                .with_hint("nothing was changed; run this again")
        })?;
        for candidate in candidates.iter_mut().filter(|candidate| candidate.is_open() && !is_off(candidate)) {
            let Some(place) = &candidate.place else { continue };
            let listed = results.iter().find(|result| result.name == place.name);
            // Such as that the server is held in quarantine, where code cannot use it yet.
            candidate.server.remarks.extend(listed.iter().flat_map(|listed| listed.warnings.iter().cloned()));
            match listed.map(|RefreshResult { result, .. }| result) {
                Some(Ok(tools)) => candidate.fate = ServerFate::Adopted(Some(*tools)),
                Some(Err(error)) if rule.selection == AdoptionSelection::Started => {
                    candidate.fate = ServerFate::Failed(describe_failure(&place.name, error));
                }
                None if rule.selection == AdoptionSelection::Started => {
                    candidate.fate = ServerFate::Failed("it does not start".into())
                }
                Some(Err(_)) | None => {}
            }
        }
        Ok(())
    }

    /// Removes the definitions and secrets that were written for servers that stay in the client, also by a run that was
    /// killed, and saves the record without them. A server that needs a sign-in, or secrets from a person, keeps its
    /// definition: it says for which server they are given.
    pub(super) fn drop_left_definitions(
        &self,
        candidates: &[MovableServer],
        mut record: AdoptionRecord,
    ) -> Result<(), Failure> {
        let others = self.records.definitions_of_others(&self.id);
        for candidate in candidates {
            let Some(DefinitionPlace { name, file, text }) = &candidate.place else { continue };
            if candidate.is_open() {
                record.definitions.iter_mut().filter(|known| known.file == *file).for_each(|known| known.waits = false);
                continue;
            }
            let entry = &candidate.server.path;
            let written = match text {
                Some(text) => {
                    let (name, file, entry) = (name.clone(), file.clone(), entry.clone());
                    Some(WrittenDefinition { name, file, entry, digest: digest(text), waits: false })
                }
                None => record.definitions.iter().find(|known| known.file == *file && known.entry == *entry).cloned(),
            };
            let Some(written) = written else { continue };
            let is_unchanged = written.is_unchanged();
            if is_unchanged && candidate.waits_for_person() {
                candidate.new_secrets.iter().for_each(|name| record.add_secret(name));
                record.add_definition(WrittenDefinition { waits: true, ..written });
                continue;
            }
            if is_unchanged && !others.iter().any(|other| other.file == *file) {
                self.remove_definition(name, file);
            }
            record.definitions.retain(|known| known.file != *file);
            for (name, _) in &candidate.server.secrets {
                if record.secrets.contains(name) || candidate.new_secrets.contains(name) {
                    let _ = self.runtime.block_on(self.here.secrets().remove(name));
                    record.secrets.retain(|known| known != name);
                }
            }
        }
        self.save_or_remove(&record)
    }

    /// Removes the definitions that wait for a person although their entry has changed since: what the person gives is
    /// for the entry as it was. `servers` are those of the client's file.
    pub(super) fn drop_outdated_definitions(
        &self,
        record: &mut AdoptionRecord,
        document: &ConfigDocument,
        servers: &[ClientServer],
    ) -> Result<(), Failure> {
        let others = self.records.definitions_of_others(&self.id);
        let is_same = |server: &ClientServer, written: &WrittenDefinition| {
            let mut server = server.clone();
            server.rename(&written.name);
            imported_definition_text(&server).is_some_and(|text| digest(text) == written.digest)
        };
        let is_outdated = |written: &WrittenDefinition| {
            // An entry of another project is in the file, and not among the servers.
            let is_gone = matches!(edit::find(document, &written.entry), Ok(None));
            let now = servers.iter().find(|server| server.path == written.entry);
            let is_own = written.is_unchanged() && !others.iter().any(|other| other.file == written.file);
            written.waits && is_own && (is_gone || now.is_some_and(|server| !is_same(server, written)))
        };
        let (outdated, kept): (Vec<_>, Vec<_>) = record.definitions.drain(..).partition(is_outdated);
        record.definitions = kept;
        if outdated.is_empty() {
            return Ok(());
        }
        outdated.iter().for_each(|written| self.remove_definition(&written.name, &written.file));
        self.save_or_remove(record)
    }

    fn remove_definition(&self, name: &str, file: &Path) {
        let before = self.here.definitions();
        let _ = fs::remove_file(file);
        self.here.forget(name, &before);
    }

    /// A record of nothing is no record.
    fn save_or_remove(&self, record: &AdoptionRecord) -> Result<(), Failure> {
        if record.entries.is_empty() && record.definitions.is_empty() {
            let _ = self.records.remove(&self.id);
            return Ok(());
        }
        self.records.save(&self.id, record)
    }
}

impl MovableServer {
    /// True for a server that stays in the client until a person has signed in, or has given its secrets.
    fn waits_for_person(&self) -> bool {
        let needs_sign_in = matches!(&self.fate, ServerFate::Failed(reason) if reason.starts_with(NEEDS_SIGN_IN));
        needs_sign_in || !self.server.needed_secrets.is_empty()
    }
}

/// How the reason begins that a server needs a sign-in.
const NEEDS_SIGN_IN: &str = "it needs sign-in";

/// Why a server does not start, and what to do about it, on one line.
fn describe_failure(name: &str, error: &UpstreamError) -> String {
    match error {
        UpstreamError::SignInNeeded { need, .. } => {
            format!("{NEEDS_SIGN_IN}; run `{}`, then this again", need.command(name))
        }
        UpstreamError::Needs { what, .. } => {
            // A missing secret names the command that gives it.
            let (secrets, others): (Vec<&String>, Vec<&String>) =
                what.iter().partition(|what| what.starts_with("secret "));
            let describe =
                |needs: Vec<&String>| needs.into_iter().map(|what| describe_need(what)).collect::<Vec<_>>().join(", ");
            match (secrets.is_empty(), others.is_empty()) {
                (true, _) => format!("it does not start ({})", describe(others)),
                (false, true) => format!("{}, then this again", describe(secrets)),
                (false, false) => format!("{}; {}, then this again", describe(others), describe(secrets)),
            }
        }
        UpstreamError::NotStarted { reason, .. } => {
            let reason = reason.lines().next().unwrap_or_default();
            cut(&format!("it does not start ({})", escape_control(reason)), MAX_SERVER_TEXT)
        }
        other => {
            let text = other.to_string();
            let hint = other.hint().map_or(String::new(), |hint| format!("; {hint}"));
            cut(&format!("{}{hint}", escape_control(text.lines().next().unwrap_or_default())), MAX_SERVER_TEXT)
        }
    }
}

fn describe_need(what: &str) -> String {
    let what = escape_control(what);
    match what.split_once(' ') {
        Some(("command", program)) => format!("command `{program}` is missing"),
        Some(("directory", path)) => format!("directory `{path}` is missing"),
        _ => format!("it needs {what}"),
    }
}
