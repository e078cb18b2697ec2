//! What `install` and `uninstall` tell the user: sentences for one client, and a line for each of several. A client that
//! fails does not keep the others from being changed.

use std::path::Path;
use std::process::ExitCode;

use serde_json::json;

use cove_core::error::{Failure, display_path, one_line_chain};

use crate::cli::tables::{PrintStyle, print_remark, render_json, render_table};

use super::adoption_report::AdoptionReport;
use super::client_command::ClientCommandLine;
use super::clients::{AgentClient, CLIENTS};
use super::locations::{locate, scopes, seems_present};
use super::{ClientSelection, EntryChangeKind, EntryRequest, InstallAction, InstallJob, InstallScope};

/// How `AgentClient::next` ends for a client that asks nothing before it starts a server.
const STARTS_AT_ONCE: &str = ", which starts it at once";

/// The result for one client.
pub(super) enum ChangeReport {
    /// A diff, or an entry to paste.
    Text(String),
    Entry(EntryReport),
    Adoption(AdoptionReport),
}

pub(super) struct EntryReport {
    /// The change in one word, for a line among others.
    verb: &'static str,
    /// The file, the client's command and the backup.
    place: String,
    /// The change in a sentence.
    sentence: String,
    notes: ReportNotes,
    /// What the user does next.
    next: Option<String>,
}

/// What the user should know about a change.
pub(super) struct ReportNotes {
    /// Part of the answer.
    pub(super) notes: Vec<String>,
    /// For standard error.
    pub(super) warnings: Vec<String>,
}

impl ChangeReport {
    fn exit_code(&self) -> ExitCode {
        match self {
            Self::Adoption(report) => report.exit_code(),
            Self::Text(_) | Self::Entry(_) => ExitCode::SUCCESS,
        }
    }

    /// The remarks that are part of the answer.
    pub(super) fn notes(&self) -> &[String] {
        match self {
            Self::Entry(report) => &report.notes.notes,
            Self::Adoption(report) => &report.notes,
            Self::Text(_) => &[],
        }
    }

    /// The whole text for a command line with one client.
    pub(super) fn into_text(self) -> String {
        match self {
            Self::Text(text) => text,
            Self::Adoption(report) => report.into_text(),
            Self::Entry(EntryReport { sentence, notes: ReportNotes { notes, warnings }, next, .. }) => {
                warnings.iter().for_each(print_remark);
                let next = next.map(|next| format!("Next: {next}"));
                [sentence].into_iter().chain(notes).chain(next).map(|line| line + "\n").collect()
            }
        }
    }
}

impl InstallJob<'_> {
    pub(super) fn unchanged(&self, notes: Vec<String>) -> ChangeReport {
        let (name, place) = (&self.request.flags.name, self.file_name());
        let state = if self.request.action == InstallAction::Uninstall { "is not in" } else { "is already in" };
        let sentence = format!("`{name}` {state} {place}; nothing was changed");
        let notes = ReportNotes { notes, warnings: Vec::new() };
        ChangeReport::Entry(EntryReport { verb: "unchanged", place, sentence, notes, next: None })
    }

    /// An uninstall from a file that did not have Cove's entry.
    pub(super) fn without_own_entry(&self, is_changed: bool, notes: ReportNotes) -> ChangeReport {
        let (name, place) = (&self.request.flags.name, self.file_name());
        let (verb, sentence) = match is_changed {
            true => ("changed", format!("`{name}` was not in {place}")),
            false => ("unchanged", format!("`{name}` is not in {place}, which was not changed")),
        };
        ChangeReport::Entry(EntryReport { verb, place, sentence, notes, next: None })
    }

    pub(super) fn changed(
        &self,
        kind: EntryChangeKind,
        command: Option<&ClientCommandLine>,
        backup: Option<&Path>,
        notes: ReportNotes,
    ) -> ChangeReport {
        let title = self.client.title;
        let (verb, preposition) = match kind {
            EntryChangeKind::Add => ("added", "to"),
            EntryChangeKind::Update => ("updated", "in"),
            EntryChangeKind::Replace => ("replaced", "in"),
            EntryChangeKind::Remove => ("removed", "from"),
        };
        let next = match (kind, self.request.flags.scope) {
            (EntryChangeKind::Remove, _) => format!("restart {title} to unload it"),
            // Everyone who has the project gets this file, so clients ask first.
            (_, InstallScope::Project) => {
                let next = self.client.next;
                let next = next.strip_suffix(STARTS_AT_ONCE).unwrap_or(next);
                format!("{next}; it starts after you approve it")
            }
            _ => self.client.next.to_owned(),
        };
        let place = format!(
            "{}{}{}",
            self.file_name(),
            command.map_or(String::new(), |command| format!(" with `{}`", command.name())),
            backup.map_or(String::new(), |backup| format!(" (backup: {})", display_path(backup))),
        );
        let sentence = format!("{verb} `{}` {preposition} {place}", self.request.flags.name);
        ChangeReport::Entry(EntryReport { verb, place, sentence, notes, next: Some(next) })
    }
}

/// Runs a request for each of its clients. Fails if the only client does; if one of several does, the text says so and
/// the exit code is that of the first failure.
pub(super) fn run_for_each(
    request: &EntryRequest,
    run: impl Fn(&'static AgentClient) -> Result<ChangeReport, Failure>,
) -> Result<(String, ExitCode), Failure> {
    let (clients, absent) = selected_clients(request)?;
    if request.json {
        return adoptions_as_json(clients, run);
    }
    if let (ClientSelection::Named(_), [client]) = (&request.clients, clients.as_slice()) {
        let report = run(client)?;
        let code = report.exit_code();
        return Ok((report.into_text(), code));
    }
    let (mut texts, mut notes, mut nexts) = (String::new(), String::new(), String::new());
    let mut rows: Vec<[String; 3]> = Vec::new();
    let mut warned: Vec<String> = Vec::new();
    let mut code = None;
    for client in clients {
        let id = client.id();
        let (verb, place) = match run(client) {
            Ok(ChangeReport::Text(text)) => {
                texts += &text;
                continue;
            }
            Ok(ChangeReport::Adoption(report)) => {
                let failed = (report.exit_code() != ExitCode::SUCCESS).then(|| report.exit_code());
                code = code.or(failed);
                texts += &format!("{}\n{}\n", client.title, report.into_text());
                continue;
            }
            Ok(ChangeReport::Entry(report)) => {
                notes.extend(report.notes.notes.iter().map(|note| format!("{id}: {note}\n")));
                for warning in report.notes.warnings {
                    if !warned.contains(&warning) {
                        print_remark(&warning);
                        warned.push(warning);
                    }
                }
                nexts.extend(report.next.iter().map(|next| format!("Next: {next}\n")));
                (report.verb, report.place)
            }
            Err(failure) => {
                print_remark(PrintStyle::of_stderr().paint_report(&failure.report().to_string()));
                code.get_or_insert(failure.exit_code());
                ("failed", one_line_chain(&failure))
            }
        };
        rows.push([id.to_owned(), verb.to_owned(), place]);
    }
    let text = [texts, render_table(rows), absent, notes, nexts].concat();
    Ok((text, code.unwrap_or(ExitCode::SUCCESS)))
}

/// Runs an adoption for each client and prints an array. A client that fails has an object with its error.
fn adoptions_as_json(
    clients: Vec<&'static AgentClient>,
    run: impl Fn(&'static AgentClient) -> Result<ChangeReport, Failure>,
) -> Result<(String, ExitCode), Failure> {
    let mut code = ExitCode::SUCCESS;
    let mut objects = Vec::new();
    for client in clients {
        let (object, own) = match run(client) {
            Ok(ChangeReport::Adoption(report)) => (report.to_json(), report.exit_code()),
            Ok(other) => (json!({"client": client.id(), "text": other.into_text()}), ExitCode::SUCCESS),
            Err(failure) => {
                let error = one_line_chain(&failure);
                (json!({"client": client.id(), "error": error, "hint": failure.hint()}), failure.exit_code())
            }
        };
        if own != ExitCode::SUCCESS {
            code = own;
        }
        objects.push(object);
    }
    Ok((render_json("the adoption", &objects)?, code))
}

/// The clients of a request, and a text about those that `--all` leaves out.
fn selected_clients(request: &EntryRequest) -> Result<(Vec<&'static AgentClient>, String), Failure> {
    if let ClientSelection::Named(ids) = &request.clients {
        let by_id = |id: &&str| CLIENTS.iter().find(|client| client.id() == *id);
        return Ok((ids.iter().filter_map(by_id).collect(), String::new()));
    }
    let scope = request.flags.scope;
    let has_scope = |client: &&AgentClient| scopes(client).contains(&scope);
    let (usable, unscoped): (Vec<_>, Vec<_>) = CLIENTS.iter().partition(has_scope);
    let is_found = |client: &&AgentClient| match request.action {
        InstallAction::Uninstall => {
            locate(client, scope, &request.env).is_ok_and(|location| location.file.symlink_metadata().is_ok())
        }
        InstallAction::Install | InstallAction::Print => seems_present(client, &request.env),
    };
    let (found, missing): (Vec<_>, Vec<_>) = usable.into_iter().partition(is_found);
    if found.is_empty() {
        return Err(Failure::usage("could not find a client on this machine")
            .because("no known client has left a file, a folder or a program where Cove looks")
            .with_hint("see `cove install --list`, and name a client"));
    }
    let line = |label: String, clients: &[&AgentClient]| match clients {
        [] => String::new(),
        clients => {
            let ids: Vec<&str> = clients.iter().map(|client| client.id()).collect();
            format!("{label}: {}\n", ids.join(", "))
        }
    };
    let mut absent = line("not found".to_owned(), &missing);
    absent += &line(format!("without `--scope {}`", scope.as_str()), &unscoped);
    Ok((found, absent))
}
