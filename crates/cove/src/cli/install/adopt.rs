//! `cove install --adopt`: makes the servers of a client Cove's own, and takes them out of the client's file.
//!
//! The order keeps every server usable if Cove is killed between any two steps. The record is written first, then
//! secrets and definitions; each server is started once under Cove; the record gets the entries; the client's file is
//! replaced, with Cove's entry in it and without the entries of servers that started; last, the definitions of the other
//! servers go. At worst a server is in both places, and the next run goes on from there.

mod adoption_store;

use std::path::PathBuf;

use serde_json::{Map, Value};
use tokio::runtime::Runtime;

use cove_core::document::{ConfigDocument, DocumentNode};
use cove_core::error::{Failure, display_path, display_value, escape_control, one_line_chain};
use cove_core::text::cut;

use crate::cli::runtime;
use crate::cli::servers::{ImportMode, ListedTools, ServerImporter, ServersContext, describe_acts};
use crate::cli::tables::print_remark;
use crate::cli::terminal_questions::{ask_yes_or_no, can_ask};
use crate::config::{Config, SettingFlags};

use super::adoption_record::{AdoptionLock, AdoptionRecord, AdoptionRecords, RecordId, digest};
use super::adoption_report::{AdoptionReport, AdoptionRow, ServerFate};
use super::client_file::{ClientFile, ReplaceOutcome};
use super::client_servers::{ClientServer, ServerConversion, read_client_servers};
use super::edit::{self, TakenEntry};
use super::locations::{InstallScope, locate, scopes};
use super::reports::ChangeReport;
use super::restore::{self, RestoredFile};
use super::{ATTEMPTS, ChangePlan, InstallJob, own_entry};

/// Characters of the reason why a server is left.
const MAX_REASON: usize = 200;

/// How an adoption decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdoptionRule {
    pub selection: AdoptionSelection,
    /// Cove may run commands that compute values, without a question.
    pub allows_commands: bool,
}

/// Which servers an adoption takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdoptionSelection {
    /// Those that start under Cove.
    Started,
    /// The others too.
    All,
}

/// Where Cove keeps its servers, and the record of one client's file.
pub(super) struct AdoptionStore {
    pub(super) here: ServersContext,
    pub(super) records: AdoptionRecords,
    pub(super) id: RecordId,
    pub(super) runtime: Runtime,
}

/// The definition of a client's server.
struct DefinitionPlace {
    name: String,
    file: PathBuf,
    /// The text to write. None if Cove has this server already, or an earlier one of the same file is the same.
    text: Option<String>,
}

/// One server on its way.
struct MovableServer {
    server: ClientServer,
    /// The entry as it was read. None if it could not be taken out.
    node: Option<DocumentNode>,
    place: Option<DefinitionPlace>,
    /// The names of its secrets that Cove does not have yet.
    new_secrets: Vec<String>,
    fate: ServerFate,
}

impl MovableServer {
    fn is_open(&self) -> bool {
        matches!(self.fate, ServerFate::Adopted(_))
    }

    fn leave(&mut self, reason: impl Into<String>) {
        self.fate = ServerFate::Left(cut(&reason.into(), MAX_REASON));
    }

    fn into_row(self) -> AdoptionRow {
        let secrets = self.server.secrets.iter().map(|(name, _)| name.clone()).collect();
        AdoptionRow {
            name: self.server.name,
            cove_name: self.server.cove_name,
            is_known: self.place.is_some_and(|place| place.text.is_none()),
            fate: self.fate,
            secrets,
            remarks: self.server.remarks,
        }
    }
}

impl InstallJob<'_> {
    /// Fails without a state directory, or if the configuration is wrong.
    pub(super) fn adoption_store(&self) -> Result<AdoptionStore, Failure> {
        let env = &self.request.env;
        let config = Config::load(&SettingFlags::default(), env)?;
        config.warnings.iter().for_each(|warning| print_remark(format!("warning: {warning}")));
        let here = ServersContext::new(&config, env);
        let records = AdoptionRecords::new(here.state_dir()?);
        let scope = self.request.flags.scope.as_str();
        let place = (self.location.file.as_path(), &self.location.container[..]);
        let id = RecordId::new(self.client.id(), scope, place, &self.request.flags.name);
        Ok(AdoptionStore { here, records, id, runtime: runtime::single_threaded()? })
    }

    /// The servers of the client's file that are the user's to move: those of the scope and, for Claude Code, those that
    /// the user has in this project alone.
    pub(super) fn client_servers(&self, text: &str) -> Result<Vec<ClientServer>, Failure> {
        let (scope, env) = (self.request.flags.scope, &self.request.env);
        let mut servers = read_client_servers(self.client, scope, &self.location, text, env)?;
        if scope == InstallScope::User && scopes(self.client).contains(&InstallScope::Local) {
            let local = locate(self.client, InstallScope::Local, env)?;
            servers.extend(read_client_servers(self.client, InstallScope::Local, &local, text, env)?);
        }
        Ok(servers)
    }

    /// Adopts the servers of the client and installs Cove.
    pub(super) fn adopt(&self, rule: AdoptionRule) -> Result<ChangeReport, Failure> {
        self.check_adoptable()?;
        let store = self.adoption_store()?;
        let is_dry = self.request.flags.dry_run;
        let lock = if is_dry { None } else { Some(store.records.lock()?) };
        let (file, document) = self.read()?;
        let preflight = self.plan_install(&document)?;
        let Some(target) = preflight.target else {
            return Err(Failure::usage(format!("could not adopt the servers of {}", self.client.title))
                .because("the entry leads to a Cove that runs elsewhere, which would not have them")
                .with_hint("register the command instead, with `--reset`"));
        };
        let mut record = store.records.load(&store.id).map_err(|reason| {
            let path = display_path(&store.records.path(&store.id));
            Failure::operator(format!("could not read `{path}`"))
                .because(reason)
                .with_hint("nothing was changed; it says what an earlier adoption did: move it away to begin again")
        })?;
        let has_earlier = record.as_ref().is_some_and(|record| !record.entries.is_empty());
        let text = file.text.as_deref().unwrap_or_default();
        if let Some(record) = record.as_mut().filter(|_| !is_dry) {
            store.drop_outdated_definitions(record, &document, &self.client_servers(text)?)?;
        }
        let mut candidates = self.find_candidates(&store, &document, text, rule)?;
        let report = |candidates: Vec<MovableServer>| AdoptionReport {
            rows: candidates.into_iter().map(MovableServer::into_row).collect(),
            has_earlier,
            ..AdoptionReport::new(self.client, self.file_name(), self.request.flags.scope)
        };
        if is_dry {
            let notes = self.other_places_notes(&document);
            return Ok(ChangeReport::Adoption(AdoptionReport { is_dry, notes, ..report(candidates) }));
        }
        let install_alone = |candidates: Vec<MovableServer>, lock: Option<AdoptionLock>| {
            // A change of Cove's own entry takes the lock itself.
            drop(lock);
            let entry = Some(Box::new(self.change_entry()?));
            Ok(ChangeReport::Adoption(AdoptionReport { entry, ..report(candidates) }))
        };
        if !candidates.iter().any(MovableServer::is_open) {
            return install_alone(candidates, lock);
        }
        // Whatever would fail later fails now, before anything is written.
        file.check_writable()?;
        let record = record.unwrap_or_else(|| AdoptionRecord::new(&self.request.flags.name, &self.location.file));
        let written = store.write_definitions(&mut candidates, record.clone())?;
        let asked = if self.can_ask() { store.ask_for_secrets(&candidates) } else { Ok(()) };
        let started = asked.and_then(|()| store.start(&mut candidates, rule));
        if started.is_ok() && !candidates.iter().any(MovableServer::is_open) {
            store.drop_left_definitions(&candidates, written)?;
            return install_alone(candidates, lock);
        }
        let taken = started.and_then(|()| self.take_out(&store, &mut candidates, written));
        let (record, notes) = match taken {
            Ok(taken) => taken,
            Err(failure) => {
                candidates.iter_mut().for_each(|candidate| candidate.leave(""));
                if record.entries.is_empty() {
                    file.remove_pinned();
                }
                store.drop_left_definitions(&candidates, record)?;
                return Err(failure);
            }
        };
        if let Err(failure) = store.drop_left_definitions(&candidates, record) {
            print_remark(format!("warning: {}", one_line_chain(&failure)));
        }
        self.warnings(&target).iter().for_each(print_remark);
        let tokens_now = self.own_introduction(&target);
        let copy = Some(display_path(&file.pinned_path()));
        let notes = notes.into_iter().chain(self.other_places_notes(&document)).collect();
        Ok(ChangeReport::Adoption(AdoptionReport { tokens_now, notes, copy, ..report(candidates) }))
    }

    /// Every server of the file, with its definition or the reason why it stays.
    fn find_candidates(
        &self,
        store: &AdoptionStore,
        document: &ConfigDocument,
        text: &str,
        rule: AdoptionRule,
    ) -> Result<Vec<MovableServer>, Failure> {
        let mut importer = ServerImporter::new(&store.here, ImportMode::DryRun);
        let mut candidates = Vec::new();
        for mut server in self.client_servers(text)? {
            let (node, refusal) = match TakenEntry::find(document, &server.path) {
                Ok(entry) => (entry.and_then(|entry| entry.node(document.format())), None),
                Err(refusal) => (None, Some(refusal.cause)),
            };
            let reason = match &server.conversion {
                ServerConversion::Left(reason) => Some(reason.clone()),
                ServerConversion::Carried(fields) if is_off(fields) && rule.selection == AdoptionSelection::Started => {
                    Some(format!("it is off in {}", self.client.title))
                }
                ServerConversion::Carried(_) => match refusal {
                    None if rule.allows_commands => None,
                    None => self.refuse_acts(&server),
                    refusal => refusal,
                },
            };
            let placed = match reason {
                Some(reason) => Err(reason),
                None => store.place(&mut importer, &mut server, self.client.id())?,
            };
            let new_secrets = match &placed {
                Ok(DefinitionPlace { text: Some(_), .. }) => store.find_new_secrets(&server)?,
                _ => Ok(Vec::new()),
            };
            let fate = ServerFate::Adopted(None);
            let mut candidate = MovableServer { server, node, place: None, new_secrets: Vec::new(), fate };
            match (placed, new_secrets) {
                (Ok(place), Ok(new_secrets)) => (candidate.place, candidate.new_secrets) = (Some(place), new_secrets),
                (Err(reason), _) | (_, Err(reason)) => candidate.leave(escape_control(&reason)),
            }
            candidates.push(candidate);
        }
        Ok(candidates)
    }

    /// The reason to leave a server that would run commands, or send files, to which the person does not agree.
    fn refuse_acts(&self, server: &ClientServer) -> Option<String> {
        let acts = describe_acts(server).filter(|_| !self.request.flags.dry_run)?;
        let question = format!("`{}` {acts} whenever it is started. Adopt it? [y/N] ", display_value(&server.name));
        let agrees = self.can_ask() && ask_yes_or_no(&question);
        (!agrees).then(|| format!("it {acts}; agree to that on a terminal, or with `--yes`"))
    }

    /// True if a person can answer.
    pub(super) fn can_ask(&self) -> bool {
        can_ask(&self.request.env) && !self.request.json
    }

    /// Takes the entries of the servers that started out of the client's file and puts Cove's entry in, in one step.
    /// Returns the record and notes about Cove's entry.
    fn take_out(
        &self,
        store: &AdoptionStore,
        candidates: &mut [MovableServer],
        record: AdoptionRecord,
    ) -> Result<(AdoptionRecord, Vec<String>), Failure> {
        for _ in 0..ATTEMPTS {
            let _lock = self.lock()?;
            let (file, document) = self.read()?;
            let mut rest = document.clone();
            let mut record = record.clone();
            let pinned = self.without_cove(&document, &file, &record);
            for candidate in candidates.iter_mut().filter(|candidate| candidate.is_open()) {
                match take_entry(&document, &rest, candidate) {
                    Ok((entry, without)) => {
                        record.add_entry(entry);
                        rest = without;
                    }
                    Err(reason) => candidate.leave(reason),
                }
            }
            let ChangePlan { change, notes, .. } = self.plan_install(&rest)?;
            let after = change.and_then(|change| change.after.text()).unwrap_or_else(|| rest.file_text());
            if candidates.iter().any(MovableServer::is_open) {
                // If the file is as Cove left it, the copy of the first time is still what was there before Cove.
                let is_as_left = file.text.as_ref().is_some_and(|text| record.left == Some(digest(text)));
                let keeps_copy = is_as_left && file.pinned().is_some_and(|copy| record.pinned == Some(digest(copy)));
                if !keeps_copy {
                    record.pinned = pinned.as_ref().map(digest);
                    pinned.as_ref().map_or(Ok(()), |text| file.pin(text))?;
                }
                record.left = Some(digest(&after));
                store.records.save(&store.id, &record)?;
            }
            if file.replace(Some(&after), self.protection())? == ReplaceOutcome::Replaced {
                return Ok((record, notes));
            }
        }
        Err(Failure::operator(format!("could not write `{}`", self.file_name()))
            .because("another program kept writing it")
            .with_hint(format!("end {}, and run this again", self.client.title)))
    }

    /// What the file would be without Cove: without its entry, and with the entries of earlier adoptions. None if that
    /// cannot be computed; then an undo puts back entry by entry.
    fn without_cove(&self, document: &ConfigDocument, file: &ClientFile, record: &AdoptionRecord) -> Option<String> {
        let mut whole = document.clone();
        for entry in &record.entries {
            if edit::find(&whole, &entry.path).ok()?.is_none() {
                whole = entry.put_back(&whole).ok()?;
            }
        }
        let path = own_entry::path(&whole, self.client, &self.location, &self.request.flags.name);
        let is_own = |node: &DocumentNode| own_entry::is_own(node, Some(&self.program));
        if !edit::find(&whole, &path).ok()?.is_some_and(is_own) {
            return Some(whole.file_text());
        }
        match restore::without_entry(&whole, &path, file).ok()?? {
            RestoredFile::Text(text) => Some(text.file_text()),
            RestoredFile::Absent => None,
        }
    }
}

/// The entry of a server, and the document without it. Fails with the reason if the entry is not what was read before.
fn take_entry(
    document: &ConfigDocument,
    rest: &ConfigDocument,
    candidate: &MovableServer,
) -> Result<(TakenEntry, ConfigDocument), String> {
    let path = &candidate.server.path;
    let entry = TakenEntry::find(document, path).map_err(|refusal| refusal.cause)?;
    let entry = entry.filter(|entry| entry.node(document.format()) == candidate.node);
    let entry = entry.ok_or("it changed in the file while Cove started it; run this again")?;
    let without = edit::remove(rest, path).map_err(|refusal| refusal.cause)?;
    Ok((entry, without.ok_or("it is gone from the file")?))
}

/// True for the definition of a server that is not to be started.
fn is_off(fields: &Map<String, Value>) -> bool {
    fields.get("disabled") == Some(&Value::Bool(true))
}

/// The tools of the servers that were started.
pub(super) fn sum_tools<'a>(fates: impl Iterator<Item = &'a ServerFate>) -> ListedTools {
    let tools = fates.filter_map(|fate| match fate {
        ServerFate::Adopted(tools) => *tools,
        ServerFate::Left(_) | ServerFate::Failed(_) => None,
    });
    tools.fold(ListedTools { count: 0, size: 0 }, |sum, tools| ListedTools {
        count: sum.count + tools.count,
        size: sum.size + tools.size,
    })
}
