//! `cove install` and `cove uninstall`: put Cove's entry into the configuration of an agent's client, and take it
//! out. The client's own command does it if there is one; otherwise Cove edits the file, and nothing in it but its
//! own entry.

mod adopt;
mod adoption_record;
mod adoption_report;
mod arguments;
mod client_command;
mod client_entries;
mod client_file;
mod client_servers;
mod clients;
mod container_server;
pub(in crate::cli) mod diff;
mod edit;
mod entry_notes;
#[cfg(any(test, fuzzing))]
#[path = "../../tests/exercise/client_files.rs"]
pub mod exercise;
mod list;
mod locations;
mod other_places;
mod own_entry;
mod program_path;
mod protected_files;
mod reports;
mod restore;
mod server_sources;
mod server_url;
mod undo;

use std::fs::File;
use std::process::ExitCode;

use super::packages::add_shared_folders;
use super::tables::print_remark;
use super::terminal_questions::ask_yes_or_no;
use cove_core::document::{ConfigDocument, DocumentNode};
use cove_core::error::{Failure, Refusal, display_path, display_value};
use cove_core::process_env::ProcessEnv;
use cove_core::text::format_count;
use cove_server::server_config::Toolset;

use client_command::ClientCommandLine;
use client_entries::EntryTarget;
use client_file::{ClientFile, FileProtection, ReplaceOutcome, lock_folder};
use clients::{AgentClient, CLIENTS};
use edit::ClientEntry;
use locations::ServersLocation;
use program_path::PackageRunner;
use reports::{ChangeReport, ReportNotes};
use restore::RestoredFile;
use server_url::UrlCredential;

pub use adopt::{AdoptionRule, AdoptionSelection};
pub(super) use adoption_record::AdoptionRecords;
pub use arguments::EntryFlags;
pub(super) use arguments::scope_values;
pub(super) use arguments::{InstallArgs, UninstallArgs, install_request, uninstall_request};
pub(super) use client_servers::{ClientServer, ServerConversion, free_name};
pub use container_server::ContainerServer;
pub(super) use container_server::{EntryArgs, entry_request};
pub(super) use list::present_clients;
pub use locations::InstallScope;
#[cfg(any(test, fuzzing))]
pub use server_sources::exercise::exercise as exercise_bundle;
pub(super) use server_sources::{ClientServersFile, ServerSources, read_server_sources};
pub use server_url::{SecretToken, ServerUrl};

const DEFAULT_NAME: &str = "cove";
/// How often Cove starts over because another program wrote the file in the meantime.
const ATTEMPTS: usize = 5;

/// The names of the known clients.
pub(super) fn client_names() -> impl Iterator<Item = &'static str> {
    CLIENTS.iter().map(AgentClient::id)
}

/// A checked command line of `install` or `uninstall`.
#[derive(Debug, Clone, PartialEq)]
pub enum InstallRequest {
    List { json: bool, env: ProcessEnv },
    Change(EntryRequest),
}

/// A request that concerns Cove's entry in the files of clients.
#[derive(Debug, Clone, PartialEq)]
pub struct EntryRequest {
    pub clients: ClientSelection,
    pub action: InstallAction,
    pub flags: EntryFlags,
    pub server: RequestedServer,
    /// Whether the client's other servers become Cove's. None if the user has not said.
    pub adoption: Option<AdoptionRule>,
    /// True if the result is to be printed as JSON.
    pub json: bool,
    pub env: ProcessEnv,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientSelection {
    /// By the names that Cove uses.
    Named(Vec<&'static str>),
    /// Every client that is found on this machine.
    Present,
}

/// The server that an entry shall lead to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestedServer {
    /// The one that the entry has, or else `cove serve`.
    Earlier,
    /// `cove serve` with these arguments.
    Command(Vec<String>),
    Url(ServerUrl),
    /// `cove serve` in a container of another machine.
    Container(ContainerServer),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstallAction {
    Install,
    /// Print the entry, ready to paste.
    Print,
    Uninstall,
}

/// Returns the text to print. Remarks go to standard error at once.
pub fn run(request: InstallRequest) -> Result<(String, ExitCode), Failure> {
    match request {
        InstallRequest::List { json, env } => Ok((list::text(&env, json)?, ExitCode::SUCCESS)),
        InstallRequest::Change(request) => {
            let run = |client| {
                let job = InstallJob::new(&request, client)?;
                if request.action == InstallAction::Print { job.print_entry() } else { job.change() }
            };
            reports::run_for_each(&request, run)
        }
    }
}

/// One request for one client, with everything it refers to.
struct InstallJob<'a> {
    request: &'a EntryRequest,
    client: &'static AgentClient,
    location: ServersLocation,
    /// The path of this program.
    program: String,
    /// Set if that path is in a cache.
    runner: Option<PackageRunner>,
}

/// A change of one entry, and the file that results from it.
struct EntryChange {
    kind: EntryChangeKind,
    path: Vec<String>,
    entry: ClientEntry,
    after: RestoredFile,
}

/// A change, if one is needed, and what the user should know about it.
struct ChangePlan {
    change: Option<EntryChange>,
    notes: Vec<String>,
    target: Option<EntryTarget>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EntryChangeKind {
    Add,
    /// Cove's entry exists and differs.
    Update,
    /// Another server has the name, or Cove's entry is of another kind, and goes.
    Replace,
    Remove,
}

impl<'a> InstallJob<'a> {
    fn new(request: &'a EntryRequest, client: &'static AgentClient) -> Result<Self, Failure> {
        let location = locations::locate(client, request.flags.scope, &request.env)?;
        if request.flags.scope == InstallScope::Project && request.action != InstallAction::Print {
            client_file::check_in_project(&location.file, &request.env.cwd)?;
        }
        let program = program_path::this_program()?;
        let runner = PackageRunner::of_program(&program);
        Ok(Self { request, client, location, program, runner })
    }

    fn print_entry(&self) -> Result<ChangeReport, Failure> {
        let EntryFlags { name, scope, .. } = &self.request.flags;
        let path = [&self.location.container[..], std::slice::from_ref(name)].concat();
        let (target, _) = self.target(None)?;
        let entry = self.client.entry(name, &target, *scope).map_err(|refusal| self.unusable(refusal))?;
        let text = edit::entry_alone(self.client.format, &path, &entry).map_err(|error| self.refused(error))?;
        match &self.request.server {
            // The client is on another machine.
            RequestedServer::Container(engine) => print_remark(engine.preparation(self.client.title)),
            _ => print_remark(format!("for `{}`", self.file_name())),
        }
        self.runner_note(&target).iter().for_each(print_remark);
        self.warnings(&target).iter().for_each(print_remark);
        Ok(ChangeReport::Text(text))
    }

    /// Changes the client's file, and on an install adopts its other servers if the user wants that.
    fn change(&self) -> Result<ChangeReport, Failure> {
        match (self.request.action, self.request.adoption) {
            (InstallAction::Uninstall, _) => {
                let mut notes = Vec::new();
                let undone = self.undo_adoption(&mut notes)?;
                let report = undone.map_or_else(|| self.change_entry(), Ok)?;
                notes.iter().for_each(print_remark);
                Ok(report)
            }
            (_, Some(rule)) => self.adopt(rule),
            (_, None) if self.can_ask() && !self.request.flags.dry_run && self.wants_adoption()? => {
                self.adopt(AdoptionRule { selection: AdoptionSelection::Started, allows_commands: false })
            }
            (_, None) => self.change_entry(),
        }
    }

    /// Asks whether the client's other servers shall be behind Cove. False if there are none.
    fn wants_adoption(&self) -> Result<bool, Failure> {
        // A file that cannot be adopted from, or read at all, gets its message where it matters.
        let text = client_file::read(&self.location.file)?.text.unwrap_or_default();
        let can_adopt = !matches!(self.request.server, RequestedServer::Url(_)) && self.check_adoptable().is_ok();
        let names = self.movable_servers(&text);
        if names.is_empty() || !can_adopt {
            return Ok(false);
        }
        let verb = if names.len() == 1 { "is" } else { "are" };
        let question = format!(
            "{} {verb} configured here: {}. Put {} behind Cove? [Y/n] ",
            format_count(names.len(), "server"),
            names.join(", "),
            if names.len() == 1 { "it" } else { "them" }
        );
        Ok(ask_yes_or_no(&question))
    }

    /// The names of the client's other servers that Cove could run. None if the file cannot be read.
    fn movable_servers(&self, text: &str) -> Vec<String> {
        let servers = self.client_servers(text).unwrap_or_default();
        let movable = servers.iter().filter(|server| matches!(server.conversion, ServerConversion::Carried(_)));
        movable.map(|server| display_value(&server.name)).collect()
    }

    /// Plans a change of Cove's own entry and carries it out, again from the start if another program wrote the file in
    /// between.
    fn change_entry(&self) -> Result<ChangeReport, Failure> {
        let mut uses_commands = !self.request.flags.no_client_command;
        for _ in 0..ATTEMPTS {
            let _lock = self.lock()?;
            let (file, document) = self.read()?;
            let ChangePlan { change, mut notes, target } = match self.request.action {
                InstallAction::Install | InstallAction::Print => self.plan_install(&document)?,
                InstallAction::Uninstall => self.plan_uninstall(&document, &file)?,
            };
            if self.request.action == InstallAction::Install {
                let is_open = target.is_some() && self.request.adoption.is_none();
                notes.extend(file.text.as_deref().filter(|_| is_open).and_then(|text| self.others_note(text)));
                notes.extend(self.other_places_notes(&document));
            }
            let is_exposed = self.protection() == FileProtection::Secret && file.is_open_to_others();
            let tightened = is_exposed.then(|| "only you may read the file now, because it holds a token".to_owned());
            let Some(change) = change else {
                if is_exposed && !self.request.flags.dry_run {
                    file.replace(file.text.as_deref(), self.protection())?;
                    notes.extend(tightened);
                }
                return Ok(self.unchanged(notes));
            };
            let after = change.after.text();
            if self.request.flags.dry_run {
                let hide = |text: String| self.hide_tokens(text, edit::find(&document, &change.path).ok().flatten());
                let (before, after) = (hide(document.file_text()), hide(after.unwrap_or_default()));
                return Ok(ChangeReport::Text(diff::unified(&self.file_name(), &before, &after)));
            }
            // A file that has nothing but Cove's entry needs no backup.
            let backup = if after.is_some() { file.back_up()? } else { None };
            // Nothing of Cove stays in the repository after an uninstall.
            let keeps_backup = self.protection() != FileProtection::Shared || change.kind != EntryChangeKind::Remove;
            let commands = if uses_commands { self.client_commands(change.kind, target.as_ref()) } else { Vec::new() };
            let command = match commands.last() {
                Some(command) if self.try_commands(&commands, &change)? => {
                    self.tidy_after_command(&change)?;
                    Some(command)
                }
                // The command may have written something else, so the file is read again.
                Some(_) => {
                    uses_commands = false;
                    continue;
                }
                None => {
                    if file.replace(after.as_deref(), self.protection())? == ReplaceOutcome::Outdated {
                        continue;
                    }
                    self.follow_own_change(&file, after.as_deref());
                    notes.extend(tightened);
                    None
                }
            };
            if !keeps_backup {
                file.remove_backups_in(&self.request.env.cwd);
            }
            let warnings = target.map_or(Vec::new(), |target| self.warnings(&target));
            let backup = backup.filter(|_| keeps_backup);
            return Ok(self.changed(change.kind, command, backup.as_deref(), ReportNotes { notes, warnings }));
        }
        Err(Failure::operator(format!("could not write `{}`", self.file_name()))
            .because("another program kept writing it")
            .with_hint(format!("close {}, and run this again", self.client.title)))
    }

    fn protection(&self) -> FileProtection {
        match &self.request.server {
            RequestedServer::Url(ServerUrl { credential: UrlCredential::Token(_), .. }) => FileProtection::Secret,
            _ if self.request.flags.scope == InstallScope::Project => FileProtection::Shared,
            _ => FileProtection::Private,
        }
    }

    /// A diff is for looking at, so it shows neither a new token nor that of the entry.
    fn hide_tokens(&self, text: String, entry: Option<&DocumentNode>) -> String {
        let text = match &self.request.server {
            RequestedServer::Url(ServerUrl { credential: UrlCredential::Token(token), .. }) => {
                text.replace(&token.0, "[token]")
            }
            _ => text,
        };
        match entry.and_then(own_entry::credential).and_then(|credential| credential.strip_prefix("Bearer ")) {
            Some(token) if !token.is_empty() => text.replace(token, "[earlier token]"),
            _ => text,
        }
    }

    fn lock(&self) -> Result<Option<File>, Failure> {
        // Taking a lock creates the folder, which an uninstall has no reason to do.
        let is_needed = self.request.action != InstallAction::Uninstall || self.location.file.exists();
        let is_needed = is_needed && !self.request.flags.dry_run;
        if !is_needed {
            return Ok(None);
        }
        // Again, because another program may have changed the folder since.
        if self.request.flags.scope == InstallScope::Project {
            client_file::check_in_project(&self.location.file, &self.request.env.cwd)?;
        }
        lock_folder(&self.location.file, self.protection())
    }

    fn read(&self) -> Result<(ClientFile, ConfigDocument), Failure> {
        let file = client_file::read(&self.location.file)?;
        let format = self.client.format;
        let document = ConfigDocument::parse(format, file.text.as_deref().unwrap_or_default())
            .map_err(|error| self.refused(edit::unreadable(format, &error)))?;
        Ok((file, document))
    }

    /// The server that the entry shall lead to, and a note if that is the one of an entry of Cove's that exists.
    fn target(&self, own: Option<&DocumentNode>) -> Result<(EntryTarget, Option<String>), Failure> {
        let command = |args: &[String]| {
            let is_shared = self.request.flags.scope == InstallScope::Project;
            let (program, before) = match self.runner.map(PackageRunner::command) {
                _ if is_shared => (DEFAULT_NAME.to_owned(), Vec::new()),
                Some((program, before)) => (program.to_owned(), before),
                None => (self.program.clone(), Vec::new()),
            };
            EntryTarget::Command { program, args: [&before[..], &["serve".to_owned()], args].concat() }
        };
        let args = match &self.request.server {
            RequestedServer::Url(server) => return Ok((EntryTarget::Url(server.clone()), None)),
            RequestedServer::Container(server) => return Ok((server.target(), None)),
            RequestedServer::Command(args) => return Ok((command(args), None)),
            RequestedServer::Earlier => own.and_then(own_entry::cove_args).unwrap_or_default(),
        };
        match args.split_first() {
            Some((first, args)) if first == "serve" && !args.is_empty() => {
                let shown = display_value(&args.join(" "));
                let args = arguments::check_server_args(args, &self.request.env).map_err(|failure| {
                    failure.with_hint("give other arguments after `--`, or drop the earlier ones with `--reset`")
                })?;
                Ok((command(&args), Some(format!("kept `{shown}` of the earlier entry; `--reset` drops it"))))
            }
            _ => Ok((command(&[]), None)),
        }
    }

    fn plan_install(&self, document: &ConfigDocument) -> Result<ChangePlan, Failure> {
        let refused = |error| self.refused(error);
        let EntryFlags { name, scope, .. } = &self.request.flags;
        let path = own_entry::path(document, self.client, &self.location, name);
        let existing = edit::find(document, &path).map_err(refused)?;
        let own = existing.filter(|node| own_entry::is_own(node, Some(&self.program)));
        if let (RequestedServer::Earlier, Some(url)) = (&self.request.server, own.and_then(own_entry::url)) {
            let note = format!("kept the URL `{}`; `--reset` registers the command instead", display_value(url));
            return Ok(ChangePlan { change: None, notes: vec![note], target: None });
        }
        let (target, kept) = self.target(own)?;
        let own_names = (name.as_str(), &target, *scope);
        let entry = own_entry::entry(document, self.client, &self.location, own_names)
            .map_err(|refusal| self.unusable(refusal))?;
        // A token must not stay in an entry that leads elsewhere now.
        let is_same_kind = |node: &DocumentNode| match &target {
            EntryTarget::Command { .. } => own_entry::program(node).is_some(),
            EntryTarget::Url(server) => {
                let drops_token = server.credential == UrlCredential::Absent && own_entry::credential(node).is_some();
                own_entry::program(node).is_none() && !drops_token
            }
        };
        let change = match existing {
            Some(node) if is_same_kind(node) && edit::contains(document, &path, &entry) => None,
            None => Some((EntryChangeKind::Add, edit::set(document, &path, &entry))),
            Some(node) if own.is_some() && is_same_kind(node) => {
                Some((EntryChangeKind::Update, edit::set(document, &path, &entry)))
            }
            Some(node) => {
                self.check_ownership(node)?;
                let without = edit::remove(document, &path).map_err(refused)?;
                let after = edit::set(without.as_ref().unwrap_or(document), &path, &entry);
                Some((EntryChangeKind::Replace, after))
            }
        };
        let mut notes: Vec<String> = kept.into_iter().chain(self.url_note(&target)).collect();
        let is_shared = change.is_some() && *scope == InstallScope::Project;
        let needs_program = is_shared && matches!(target, EntryTarget::Command { .. });
        notes.extend(self.runner_note(&target).filter(|_| change.is_some()));
        notes.extend(needs_program.then(|| format!("teammates need `{DEFAULT_NAME}` on their `PATH`")));
        let change = match change {
            Some((kind, after)) => {
                let after = RestoredFile::Text(after.map_err(refused)?);
                Some(EntryChange { kind, path, entry, after })
            }
            None => None,
        };
        Ok(ChangePlan { change, notes, target: Some(target) })
    }

    fn plan_uninstall(&self, document: &ConfigDocument, file: &ClientFile) -> Result<ChangePlan, Failure> {
        let refused = |error| self.refused(error);
        let path = own_entry::path(document, self.client, &self.location, &self.request.flags.name);
        if let Some(node) = edit::find(document, &path).map_err(refused)? {
            self.check_ownership(node)?;
        }
        let after = restore::without_entry(document, &path, file).map_err(refused)?;
        let (kind, entry) = (EntryChangeKind::Remove, ClientEntry::default());
        let change = after.map(|after| EntryChange { kind, path, entry, after });
        Ok(ChangePlan { change, notes: Vec::new(), target: None })
    }

    /// Keeps the record of an adoption true after Cove itself changed the file.
    fn follow_own_change(&self, file: &ClientFile, after: Option<&str>) {
        let (Some(before), Some(after)) = (&file.text, after) else { return };
        if self.request.action == InstallAction::Uninstall || !file.pinned_path().is_file() {
            return;
        }
        let Ok(store) = self.adoption_store() else { return };
        // While another Cove adopts, the record is its own.
        let Ok(_lock) = store.records.lock() else { return };
        let Ok(Some(mut record)) = store.records.load(&store.id) else { return };
        if record.left == Some(adoption_record::digest(before)) {
            record.left = Some(adoption_record::digest(after));
            // Without this an undo puts back entry by entry, which does as well.
            let _ = store.records.save(&store.id, &record);
        }
    }

    /// The bytes that a model reads of Cove as this entry starts it, and the name of the tool that runs code.
    fn own_introduction(&self, target: &EntryTarget) -> Option<(usize, &'static str)> {
        let EntryTarget::Command { args, .. } = target else { return None };
        let mut config = arguments::serve_config(args.get(1..)?, &self.request.env).ok()?;
        // Packages that cannot be read change nothing about the tools.
        let _ = add_shared_folders(&mut config);
        let runs_code = config.server.tools.contains(Toolset::Code);
        let tool = if runs_code { "execute_code" } else { "run_python" };
        Some((cove_server::introduction_size(&config.server_setup(), &self.request.env), tool))
    }

    /// Fails for an entry of another program, unless the user allows to replace it.
    fn check_ownership(&self, node: &DocumentNode) -> Result<(), Failure> {
        if self.request.flags.force || own_entry::is_own(node, Some(&self.program)) {
            return Ok(());
        }
        let cause = match (own_entry::program(node), own_entry::url(node)) {
            (Some(program), _) => format!("it starts `{}`, not `cove`", display_value(program)),
            (None, Some(url)) => format!("it leads to `{}`, which may be another server", display_value(url)),
            (None, None) => "it does not start `cove`".to_owned(),
        };
        Err(Failure::usage(format!("could not change `{}` in `{}`", self.request.flags.name, self.file_name()))
            .because(cause)
            .with_hint("choose another name with `--name`, or replace or remove it with `--force`"))
    }

    /// The client's commands that make a change, in order. None if the client has no command for it, or not on `PATH`.
    fn client_commands(&self, kind: EntryChangeKind, target: Option<&EntryTarget>) -> Vec<ClientCommandLine> {
        let Some(tool) = self.client.tool else { return Vec::new() };
        let EntryFlags { scope, name, .. } = &self.request.flags;
        let add = || match target? {
            EntryTarget::Command { program, args } => client_command::add(tool, *scope, name, program, args),
            // Other users could see a token among the arguments of a command.
            EntryTarget::Url(_) => None,
        };
        let remove = || client_command::remove(tool, *scope, name);
        let (first, last) = match kind {
            EntryChangeKind::Add => (None, add()),
            EntryChangeKind::Replace => (remove(), add()),
            EntryChangeKind::Remove => (None, remove()),
            // A command could only replace the entry, with everything that the user added to it.
            EntryChangeKind::Update => (None, None),
        };
        match last.filter(|last| last.is_on_path(&self.request.env)) {
            Some(last) => first.into_iter().chain([last]).collect(),
            None => Vec::new(),
        }
    }

    /// True if the commands made the change, which only the file can show.
    fn try_commands(&self, commands: &[ClientCommandLine], change: &EntryChange) -> Result<bool, Failure> {
        let run = |command| client_command::run(command, &self.request.env);
        let results: Vec<Result<(), String>> = commands.iter().map(run).collect();
        let (_, document) = self.read()?;
        let is_done = match change.kind {
            EntryChangeKind::Remove => matches!(edit::find(&document, &change.path), Ok(None)),
            _ => edit::contains(&document, &change.path, &change.entry),
        };
        if let (false, Some(command)) = (is_done, commands.last()) {
            let reason = match results.into_iter().next_back() {
                Some(Err(reason)) => reason,
                _ => format!("it left `{}` unchanged", self.file_name()),
            };
            print_remark(format!("`{}` failed ({reason}); editing the file instead", command.name()));
        }
        Ok(is_done)
    }

    /// Removes the empty container that a client's command leaves behind, if it was not there before Cove.
    fn tidy_after_command(&self, change: &EntryChange) -> Result<(), Failure> {
        if change.kind != EntryChangeKind::Remove {
            return Ok(());
        }
        let (file, document) = self.read()?;
        let tidied =
            restore::finish_removal(&document, &change.after, &change.path).map_err(|error| self.refused(error))?;
        if let Some(tidied) = tidied {
            // A client that writes the file at the same time keeps its container, which does no harm.
            file.replace(tidied.text().as_deref(), self.protection())?;
        }
        Ok(())
    }

    fn file_name(&self) -> String {
        display_path(&self.location.file)
    }

    fn refused(&self, refusal: Refusal) -> Failure {
        Failure::usage(format!("could not edit `{}`", self.file_name())).because(refusal.cause).with_hint(refusal.hint)
    }

    /// The client cannot use the server that the entry would lead to.
    fn unusable(&self, refusal: Refusal) -> Failure {
        Failure::usage(format!("could not register the URL with {}", self.client.title))
            .because(refusal.cause)
            .with_hint(refusal.hint)
    }
}
