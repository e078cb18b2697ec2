//! `cove install` without a client: lists the known clients, which of them seem to be installed, and their files.

use serde::Serialize;

use cove_core::document::ConfigDocument;
use cove_core::error::{Failure, display_path};
use cove_core::process_env::ProcessEnv;

use crate::cli::tables::{PrintStyle, Tone, render_json, render_list};

use super::clients::{AgentClient, CLIENTS};
use super::locations::{InstallScope, ServersLocation, locate, scopes, seems_present};
use super::program_path::this_program;
use super::{DEFAULT_NAME, client_file, edit, own_entry};

#[derive(Serialize)]
struct ClientRow {
    client: &'static str,
    title: &'static str,
    aliases: &'static [&'static str],
    /// A folder, a file or a program of the client exists.
    present: bool,
    /// Cove's entry is in the user's file. Null if Cove cannot read the file.
    installed: Option<bool>,
    /// The user's file, if `HOME` is known.
    file: Option<String>,
    project_file: Option<String>,
    scopes: Vec<&'static str>,
}

pub(super) fn text(env: &ProcessEnv, json: bool) -> Result<String, Failure> {
    let rows: Vec<ClientRow> = CLIENTS.iter().map(|client| row(client, env)).collect();
    if json {
        return render_json("the list of clients", &rows);
    }
    let lines = rows.into_iter().map(|row| {
        let state = match (row.installed, row.present) {
            (Some(true), _) => "installed",
            (None, _) => "unreadable",
            (_, true) => "found",
            (_, false) => "-",
        };
        let tone = match state {
            "installed" => Tone::Good,
            "unreadable" => Tone::Bad,
            "found" => Tone::Plain,
            _ => Tone::Faint,
        };
        let file = row.file.unwrap_or_else(|| "`HOME` is not set".to_owned());
        [Tone::Name.cell(row.client), tone.cell(state), Tone::Faint.cell(file)]
    });
    Ok(render_list(PrintStyle::of_stdout(), ["CLIENT", "STATE", "FILE"], lines)
        + "\nregister Cove with some of them: `cove install CLIENT …`, or with all that are found: `cove install --all`\n")
}

fn row(client: &'static AgentClient, env: &ProcessEnv) -> ClientRow {
    let file = |scope| locate(client, scope, env).ok();
    let user = file(InstallScope::User);
    ClientRow {
        client: client.id(),
        title: client.title,
        aliases: &client.names[1..],
        present: seems_present(client, env),
        installed: user.as_ref().map_or(Some(false), |user| is_installed(client, user)),
        file: user.map(|user| display_path(&user.file)),
        project_file: file(InstallScope::Project).map(|project| display_path(&project.file)),
        scopes: scopes(client).into_iter().map(InstallScope::as_str).collect(),
    }
}

/// The clients that seem to be installed, each with whether Cove's entry is in the user's file.
pub(in crate::cli) fn present_clients(env: &ProcessEnv) -> Vec<(&'static str, bool)> {
    let rows = CLIENTS.iter().map(|client| row(client, env));
    let present = rows.filter(|row| row.present || row.installed == Some(true));
    present.map(|row| (row.client, row.installed == Some(true))).collect()
}

/// None if Cove cannot read the file.
fn is_installed(client: &AgentClient, location: &ServersLocation) -> Option<bool> {
    let Some(text) = client_file::read(&location.file).ok()?.text else { return Some(false) };
    let document = ConfigDocument::parse(client.format, &text).ok()?;
    let path = own_entry::path(&document, client, location, DEFAULT_NAME);
    let entry = edit::find(&document, &path).ok()?;
    Some(entry.is_some_and(|node| own_entry::is_own(node, this_program().ok().as_deref())))
}
