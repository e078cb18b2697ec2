//! `cove install` and `cove uninstall`: put Cove's entry into the configuration of an agent's client, and take it
//! out. The client's own command does it if there is one; otherwise Cove edits the file, and nothing in it but its
//! own entry.

mod arguments;
mod client_command;
mod client_file;
mod clients;
mod diff;
mod edit;
mod list;
mod locations;
mod own_entry;

use std::fs::File;
use std::path::{Path, PathBuf};

use super::tables::print_remark;
use cove_core::document::{ConfigDocument, DocumentNode};
use cove_core::error::{Failure, Refusal, display_path, display_value};
use cove_core::process_env::ProcessEnv;

use client_command::ClientCommandLine;
use client_file::{ClientFile, ReplaceOutcome, lock_folder};
use clients::{AgentClient, CLIENTS};
use edit::ClientEntry;
use locations::ServersLocation;

pub use arguments::EntryFlags;
pub(super) use arguments::{InstallArgs, UninstallArgs, install_request, uninstall_request};
pub use locations::InstallScope;

const DEFAULT_NAME: &str = "cove";
/// How often Cove starts over because another program wrote the file in the meantime.
const ATTEMPTS: usize = 5;

/// A checked command line of `install` or `uninstall`.
#[derive(Debug, Clone, PartialEq)]
pub enum InstallRequest {
    List { json: bool, env: ProcessEnv },
    Change(EntryRequest),
}

/// A request that concerns Cove's entry in the file of one client.
#[derive(Debug, Clone, PartialEq)]
pub struct EntryRequest {
    /// As the user wrote it.
    pub client: String,
    pub action: InstallAction,
    pub flags: EntryFlags,
    /// The arguments after `serve`.
    pub server_args: Vec<String>,
    pub env: ProcessEnv,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstallAction {
    Install,
    /// Print the entry, ready to paste.
    Print,
    Uninstall,
}

/// Returns the text to print. Remarks go to standard error at once.
pub fn run(request: InstallRequest) -> Result<String, Failure> {
    match request {
        InstallRequest::List { json, env } => list::text(&env, json),
        InstallRequest::Change(request) => {
            let job = InstallJob::new(&request)?;
            if request.action == InstallAction::Print { job.print_entry() } else { job.change() }
        }
    }
}

/// One request with everything it refers to.
struct InstallJob<'a> {
    request: &'a EntryRequest,
    client: &'static AgentClient,
    location: ServersLocation,
    /// The path of this program.
    program: String,
    args: Vec<String>,
}

/// A change of one entry, and the document that results from it.
struct EntryChange {
    kind: EntryChangeKind,
    path: Vec<String>,
    entry: ClientEntry,
    after: ConfigDocument,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EntryChangeKind {
    Add,
    /// Cove's entry exists and differs.
    Update,
    /// Another server has the name, and goes.
    Replace,
    Remove,
}

impl<'a> InstallJob<'a> {
    fn new(request: &'a EntryRequest) -> Result<Self, Failure> {
        let client = clients::find(&request.client).map_err(|near| unknown_client(&request.client, near))?;
        let location = locations::locate(client, request.flags.scope, &request.env)?;
        let args = [&["serve".to_owned()], &request.server_args[..]].concat();
        Ok(Self { request, client, location, program: this_program()?, args })
    }

    fn print_entry(&self) -> Result<String, Failure> {
        let name = &self.request.flags.name;
        let path = [&self.location.container[..], std::slice::from_ref(name)].concat();
        let entry = self.client.entry(name, &self.program, &self.args);
        let text = edit::entry_alone(self.client.format, &path, &entry).map_err(|error| self.refused(error))?;
        print_remark(format!("for `{}`", self.file_name()));
        Ok(text)
    }

    /// Plans a change and carries it out, again from the start if another program wrote the file in between.
    fn change(&self) -> Result<String, Failure> {
        let mut uses_commands = !self.request.flags.no_client_command;
        for _ in 0..ATTEMPTS {
            let _lock = self.lock()?;
            let (file, document) = self.read()?;
            let (plan, state) = match self.request.action {
                InstallAction::Install | InstallAction::Print => (self.plan_install(&document)?, "is already in"),
                InstallAction::Uninstall => (self.plan_uninstall(&document)?, "is not in"),
            };
            let Some(change) = plan else {
                let name = &self.request.flags.name;
                return Ok(format!("`{name}` {state} {}; nothing was changed\n", self.file_name()));
            };
            let after = change.after.file_text();
            if self.request.flags.dry_run {
                return Ok(diff::unified(&self.file_name(), &document.file_text(), &after));
            }
            let backup = file.back_up()?;
            let commands = if uses_commands { self.client_commands(change.kind) } else { Vec::new() };
            if let Some(command) = commands.last() {
                if self.try_commands(&commands, &change)? {
                    return Ok(self.report(change.kind, Some(command), backup.as_deref()));
                }
                // The command may have written something else, so the file is read again.
                uses_commands = false;
                continue;
            }
            if file.replace(&after)? == ReplaceOutcome::Replaced {
                return Ok(self.report(change.kind, None, backup.as_deref()));
            }
        }
        Err(Failure::operator(format!("could not write `{}`", self.file_name()))
            .because("another program kept writing it")
            .with_hint(format!("close {}, and run this again", self.client.title)))
    }

    fn lock(&self) -> Result<Option<File>, Failure> {
        // Taking a lock creates the folder, which an uninstall has no reason to do.
        let is_needed = self.request.action != InstallAction::Uninstall || self.location.file.exists();
        let is_needed = is_needed && !self.request.flags.dry_run;
        if is_needed { lock_folder(&self.location.file) } else { Ok(None) }
    }

    fn read(&self) -> Result<(ClientFile, ConfigDocument), Failure> {
        let file = client_file::read(&self.location.file)?;
        let format = self.client.format;
        let document = ConfigDocument::parse(format, file.text.as_deref().unwrap_or_default())
            .map_err(|error| self.refused(edit::unreadable(format, &error)))?;
        Ok((file, document))
    }

    /// None if the entry is there already.
    fn plan_install(&self, document: &ConfigDocument) -> Result<Option<EntryChange>, Failure> {
        let refused = |error| self.refused(error);
        let path = own_entry::path(document, self.client, &self.location, &self.request.flags.name);
        let own = (self.request.flags.name.as_str(), self.program.as_str(), self.args.as_slice());
        let entry = own_entry::entry(document, self.client, &self.location, own);
        let (kind, after) = match edit::find(document, &path).map_err(refused)? {
            Some(_) if edit::contains(document, &path, &entry) => return Ok(None),
            None => (EntryChangeKind::Add, edit::set(document, &path, &entry)),
            Some(node) if own_entry::starts_cove(node, Some(&self.program)) => {
                (EntryChangeKind::Update, edit::set(document, &path, &entry))
            }
            Some(node) => {
                self.check_ownership(node)?;
                let without = edit::remove(document, &path).map_err(refused)?;
                (EntryChangeKind::Replace, edit::set(without.as_ref().unwrap_or(document), &path, &entry))
            }
        };
        Ok(Some(EntryChange { kind, path, entry, after: after.map_err(refused)? }))
    }

    /// None if there is no entry.
    fn plan_uninstall(&self, document: &ConfigDocument) -> Result<Option<EntryChange>, Failure> {
        let refused = |error| self.refused(error);
        let path = own_entry::path(document, self.client, &self.location, &self.request.flags.name);
        if let Some(node) = edit::find(document, &path).map_err(refused)? {
            self.check_ownership(node)?;
        }
        let after = edit::remove(document, &path).map_err(refused)?;
        let (kind, entry) = (EntryChangeKind::Remove, ClientEntry::default());
        Ok(after.map(|after| EntryChange { kind, path, entry, after }))
    }

    /// Fails for an entry of another program, unless the user allows to replace it.
    fn check_ownership(&self, node: &DocumentNode) -> Result<(), Failure> {
        if self.request.flags.force || own_entry::starts_cove(node, Some(&self.program)) {
            return Ok(());
        }
        let cause = match own_entry::program(node) {
            Some(program) => format!("it starts `{}`, not `cove`", display_value(program)),
            None => "it does not start `cove`".to_owned(),
        };
        Err(Failure::usage(format!("could not change `{}` in `{}`", self.request.flags.name, self.file_name()))
            .because(cause)
            .with_hint("choose another name with `--name`, or replace or remove it with `--force`"))
    }

    /// The client's commands that make a change, in order. None if the client has no command for it, or not on `PATH`.
    fn client_commands(&self, kind: EntryChangeKind) -> Vec<ClientCommandLine> {
        let Some(tool) = self.client.tool else { return Vec::new() };
        let EntryFlags { scope, name, .. } = &self.request.flags;
        let add = || client_command::add(tool, *scope, name, &self.program, &self.args);
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

    fn report(&self, kind: EntryChangeKind, command: Option<&ClientCommandLine>, backup: Option<&Path>) -> String {
        let title = self.client.title;
        let change = match kind {
            EntryChangeKind::Add => ("added", "to"),
            EntryChangeKind::Update => ("updated", "in"),
            EntryChangeKind::Replace => ("replaced", "in"),
            EntryChangeKind::Remove => ("removed", "from"),
        };
        let next = match (kind, self.request.flags.scope) {
            (EntryChangeKind::Remove, _) => format!("restart {title} to unload it"),
            // Everyone who has the project gets this file, so clients ask first.
            (_, InstallScope::Project) => format!("{}; it starts after you approve it", self.client.next),
            _ => self.client.next.to_owned(),
        };
        format!(
            "{} `{}` {} {}{}{}\nNext: {next}\n",
            change.0,
            self.request.flags.name,
            change.1,
            self.file_name(),
            command.map_or(String::new(), |command| format!(" with `{}`", command.name())),
            backup.map_or(String::new(), |backup| format!(" (backup: {})", display_path(backup))),
        )
    }

    fn file_name(&self) -> String {
        display_path(&self.location.file)
    }

    fn refused(&self, refusal: Refusal) -> Failure {
        Failure::usage(format!("could not edit `{}`", self.file_name())).because(refusal.cause).with_hint(refusal.hint)
    }
}

/// A path at which a client can start this program at any later time.
fn this_program() -> Result<String, Failure> {
    let fail = || Failure::operator("could not find the path of this program");
    let path: PathBuf = std::env::current_exe()
        .and_then(|path| path.canonicalize())
        .map_err(|error| fail().because(error).with_hint("run it from where it is installed"))?;
    path.to_str()
        .map(str::to_owned)
        .ok_or_else(|| fail().because("it is not valid UTF-8").with_hint("move the program to a path of plain letters"))
}

fn unknown_client(word: &str, near: Option<&str>) -> Failure {
    let known: Vec<&str> = CLIENTS.iter().map(|client| client.id()).collect();
    let meant = near.map_or(String::new(), |near| format!("did you mean `{near}`? "));
    Failure::usage(format!("could not find the client `{}`", display_value(word)))
        .because("no client has that name")
        .with_hint(format!("{meant}known clients are {}", known.join(", ")))
}
