//! `cove servers import`: reads the servers in the files of other clients, and defines them for Cove too. It never
//! writes a client's file.

use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;

use cove_core::error::{Failure, display_path, display_value, escape_control, one_line_chain};
use cove_core::process_env::ProcessEnv;
use cove_core::text::format_count;
use cove_upstream::definition::check_name;

use super::ServersContext;
use super::server_importer::{ImportMode, ImportOutcome, ServerImporter, describe_acts};
use crate::cli::install::{
    AdoptionRecords, ClientServer, ClientServersFile, InstallScope, ServerConversion, ServerSources,
    read_server_sources, scope_values,
};
use crate::cli::secrets::{ask_for_needed_secrets, store_settings};
use crate::cli::tables::{PrintStyle, print_remark, render_json};
use crate::cli::terminal_questions::{ask_yes_or_no, can_ask};
use crate::cli::{json_flag, runtime};

/// Define the servers that other clients have, in files of their own in `~/.config/cove/servers.d`
#[derive(Debug, Clone, PartialEq, clap::Args)]
#[command(arg = json_flag("Print one object"), args = store_settings())]
#[command(
    after_help = "Clients' files are not changed. A server that Cove has already is not defined again; another one of the \
                  same name gets the name of its client too. Values that look secret are kept with `cove secrets`."
)]
pub struct ServerImport {
    /// Clients as `cove install --list` shows them, files with servers, or bundles (`.mcpb`)
    #[arg(value_name = "CLIENT|FILE", required_unless_present = "all")]
    sources: Vec<String>,
    /// Read every client that has a file on this machine
    #[arg(long, conflicts_with = "sources")]
    all: bool,
    /// Whose servers of a client [default: yours, everywhere and in this project]
    #[arg(long, value_parser = scope_values())]
    scope: Vec<InstallScope>,
    /// Show what would be defined, and write nothing
    #[arg(long)]
    dry_run: bool,
    /// Carry over commands that compute a value, such as `headersHelper`, without asking
    #[arg(long)]
    yes: bool,
}

/// What became of every server, as `--json` prints it.
#[derive(Default, Serialize)]
struct ImportReport {
    dry_run: bool,
    imported: Vec<ImportedServer>,
    known: Vec<KnownServer>,
    left: Vec<LeftServer>,
    failed: Vec<FailedFile>,
}

/// Where an entry stands.
#[derive(Clone, Serialize)]
struct EntryPlace {
    /// The name as the client has it.
    entry: String,
    client: Option<&'static str>,
    file: String,
    line: usize,
    /// The keys that lead to it.
    keys: Vec<String>,
}

#[derive(Serialize)]
struct ImportedServer {
    name: String,
    #[serde(flatten)]
    place: EntryPlace,
    definition: String,
    /// Secrets that were in the client's file.
    secrets: Vec<String>,
    /// Secrets that a person has to give.
    needs: Vec<String>,
    remarks: Vec<String>,
}

#[derive(Serialize)]
struct KnownServer {
    name: String,
    #[serde(flatten)]
    place: EntryPlace,
    remarks: Vec<String>,
}

#[derive(Serialize)]
struct LeftServer {
    #[serde(flatten)]
    place: EntryPlace,
    reason: String,
}

#[derive(Serialize)]
struct FailedFile {
    client: Option<&'static str>,
    file: String,
    error: String,
}

/// Returns the text to print. Fails if the only file does; if one of several does, the exit code says so.
pub(super) fn run(here: &ServersContext, args: &ServerImport, json: bool) -> Result<(String, ExitCode), Failure> {
    let sources = if args.all { ServerSources::Present } else { ServerSources::Named(&args.sources) };
    let mut files = read_server_sources(sources, &args.scope, here.places.state_dir.as_deref(), &here.env)?;
    if let [ClientServersFile { servers: Err(_), .. }] = files.as_slice() {
        return Err(files.remove(0).servers.err().unwrap_or_else(|| Failure::internal("could not read a file")));
    }
    let mode = if args.dry_run { ImportMode::DryRun } else { ImportMode::Write };
    let mut report = ImportReport { dry_run: args.dry_run, ..ImportReport::default() };
    let mut texts = Vec::new();
    let mut code = ExitCode::SUCCESS;
    runtime::single_threaded()?.block_on(async {
        let mut importer = ServerImporter::new(here, mode);
        for ClientServersFile { client, file, servers, bundle } in files {
            let before = (report.imported.len(), report.known.len(), report.left.len());
            let shown = display_path(&file);
            let servers = match servers {
                Ok(servers) => servers,
                Err(failure) => {
                    print_remark(PrintStyle::of_stderr().paint_report(&failure.report().to_string()));
                    code = failure.exit_code();
                    report.failed.push(FailedFile { client, file: shown, error: one_line_chain(&failure) });
                    continue;
                }
            };
            let is_carried = |server: &ClientServer| matches!(server.conversion, ServerConversion::Carried(_));
            let needs_files = mode == ImportMode::Write && servers.iter().any(is_carried);
            if let Some(bundle) = bundle.filter(|_| needs_files) {
                bundle.unpack()?;
            }
            for mut server in servers {
                let entry = if server.name.is_empty() { server.cove_name.clone() } else { server.name.clone() };
                let place =
                    EntryPlace { entry, client, file: shown.clone(), line: server.line, keys: server.path.clone() };
                let outcome = match refuse_commands(&server, args, &here.env) {
                    Some(reason) => ImportOutcome::Left(reason),
                    None => importer.import(&mut server, client).await?,
                };
                // What a person imports is theirs, also if an adoption wrote it first.
                if let (ImportOutcome::Known(name), ImportMode::Write, Some(state)) =
                    (&outcome, mode, &here.places.state_dir)
                    && let Some(known) = here.definitions().servers.iter().find(|known| known.name == *name)
                {
                    AdoptionRecords::new(state).keep_definition(&known.origin.path)?;
                }
                report.add(place, server, outcome);
            }
            if mode == ImportMode::Write && !json {
                report.ask_for_secrets(before.0, here).await?;
            }
            texts.push(report.describe_file(&file, before));
        }
        Ok::<(), Failure>(())
    })?;
    let text = if json { render_json("the import", &report)? } else { texts.concat() + &report.describe_next() };
    Ok((text, code))
}

/// The reason to leave a server whose definition would run commands, or send files, to which no person has agreed.
fn refuse_commands(server: &ClientServer, args: &ServerImport, env: &ProcessEnv) -> Option<String> {
    let acts = describe_acts(server).filter(|_| !args.yes && !args.dry_run)?;
    if !can_ask(env) {
        return Some(format!("it {acts}; `--yes` agrees to that"));
    }
    let name = display_value(&server.name);
    let agrees = ask_yes_or_no(&format!("`{name}` {acts} whenever it is started. Import it? [y/N] "));
    (!agrees).then(|| format!("you did not agree that it {acts}"))
}

impl ImportReport {
    fn add(&mut self, place: EntryPlace, server: ClientServer, outcome: ImportOutcome) {
        let ClientServer { cove_name, mut remarks, secrets, needed_secrets, commands, .. } = server;
        match outcome {
            ImportOutcome::Written(file) => {
                remarks.extend(commands.iter().map(|command| format!("it runs `{}`", escape_control(command))));
                self.imported.push(ImportedServer {
                    name: cove_name,
                    place,
                    definition: display_path(&file),
                    secrets: secrets.into_iter().map(|(name, _)| name).collect(),
                    needs: needed_secrets,
                    remarks,
                });
            }
            ImportOutcome::Known(name) => self.known.push(KnownServer { name, place, remarks }),
            ImportOutcome::Left(reason) => self.left.push(LeftServer { place, reason }),
        }
    }

    /// Asks a person at a terminal for the secrets that the servers after the first `before` need.
    async fn ask_for_secrets(&mut self, before: usize, here: &ServersContext) -> Result<(), Failure> {
        let mut is_asking = can_ask(&here.env);
        for server in &mut self.imported[before..] {
            let needs = std::mem::take(&mut server.needs);
            server.needs = ask_for_needed_secrets(here.secrets(), &server.name, needs, &mut is_asking).await?;
        }
        Ok(())
    }

    /// What the last file brought. `before` counts what the report had before it.
    fn describe_file(&self, file: &Path, before: (usize, usize, usize)) -> String {
        let (imported, known, left) = (&self.imported[before.0..], &self.known[before.1..], &self.left[before.2..]);
        let shown = display_path(file);
        let mut lines = Vec::new();
        if imported.is_empty() && known.is_empty() && left.is_empty() {
            lines.push(format!("no other servers are in {shown}"));
        }
        if !imported.is_empty() {
            let names: Vec<&str> = imported.iter().map(|server| server.name.as_str()).collect();
            let verb = if self.dry_run { "would import" } else { "imported" };
            let count = format_count(names.len(), "server");
            lines.push(format!("{verb} {count} of {shown}: {}", names.join(", ")));
        }
        for KnownServer { name, place, remarks } in known {
            let entry = display_value(&place.entry);
            lines.push(match *name == entry {
                true => format!("not again: `{entry}` is the one that you have already"),
                false => format!("not again: `{entry}` is `{name}`, which you have already"),
            });
            lines.extend(remarks.iter().map(|remark| format!("`{entry}`: {remark}")));
        }
        for LeftServer { place, reason } in left {
            lines.push(format!("left `{}` (line {}): {reason}", display_value(&place.entry), place.line));
        }
        for server in imported {
            let name = &server.name;
            if *name != server.place.entry {
                let reason = match check_name(&server.place.entry).is_err() {
                    true => "servers of Cove have letters, digits, `_`, `.` and `-` in their names",
                    false => "you have another server of that name",
                };
                lines.push(format!("`{}` is now `{name}`: {reason}", display_value(&server.place.entry)));
            }
            if !server.secrets.is_empty() {
                let count = format_count(server.secrets.len(), "secret");
                let verb = if self.dry_run { "would be kept" } else { "kept" };
                lines
                    .push(format!("`{name}`: {count} {verb} outside of its definition: {}", server.secrets.join(", ")));
            }
            // A value that is given before the import would be that of another server.
            let needs = |secret: &String| match self.dry_run {
                true => format!("`{name}` would need secret {secret}, to be given after the import"),
                false => format!("`{name}` needs secret {secret}: run `cove secrets set {secret}`"),
            };
            lines.extend(server.needs.iter().map(needs));
            lines.extend(server.remarks.iter().map(|remark| format!("`{name}`: {remark}")));
        }
        lines.into_iter().map(|line| line + "\n").collect()
    }

    fn describe_next(&self) -> String {
        match self.imported.is_empty() || self.dry_run {
            true => String::new(),
            false => "next: `cove servers refresh` starts them and lists their tools\n".to_owned(),
        }
    }
}
