//! `cove install` without a client: which there are, which seem to be here, and where their files lie.

use serde::Serialize;

use crate::config::Surroundings;
use crate::error::{Error, shown_path};

use super::clients::{CLIENTS, Client};
use super::edit::Document;
use super::places::{Scope, Spot, scopes, seems_present, spot};
use super::{DEFAULT_NAME, ours, this_program, write};

#[derive(Serialize)]
struct Row {
    client: &'static str,
    title: &'static str,
    aliases: &'static [&'static str],
    /// Something of the client is here: a folder, a file, a program.
    present: bool,
    /// Our entry is in the user's file. Null if that cannot be read.
    installed: Option<bool>,
    /// The user's file, if `HOME` is known.
    file: Option<String>,
    project_file: Option<String>,
    scopes: Vec<&'static str>,
}

pub(super) fn text(around: &Surroundings, json: bool) -> Result<String, Error> {
    let rows: Vec<Row> = CLIENTS.iter().map(|client| row(client, around)).collect();
    if json {
        let text = serde_json::to_string_pretty(&rows)
            .map_err(|error| Error::internal("could not write the clients as JSON").because(error))?;
        return Ok(text + "\n");
    }
    let lines: Vec<[String; 3]> = rows
        .into_iter()
        .map(|row| {
            let state = match (row.installed, row.present) {
                (Some(true), _) => "installed",
                (None, _) => "unreadable",
                (_, true) => "found",
                (_, false) => "-",
            };
            [
                row.client.to_owned(),
                state.to_owned(),
                row.file.unwrap_or_else(|| "`HOME` is not set".to_owned()),
            ]
        })
        .collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let (ids, states) = (width(0), width(1));
    let mut text: String =
        lines.iter().map(|[id, state, file]| format!("{id:ids$}  {state:states$}  {file}\n")).collect();
    text.push_str("\nregister Cove with one of them: `cove install CLIENT`\n");
    Ok(text)
}

fn row(client: &'static Client, around: &Surroundings) -> Row {
    let file = |scope| spot(client, scope, around).ok();
    let user = file(Scope::User);
    Row {
        client: client.id,
        title: client.title,
        aliases: client.aliases,
        present: seems_present(client, around),
        installed: user.as_ref().map_or(Some(false), |user| is_installed(client, user)),
        file: user.map(|user| shown_path(&user.file)),
        project_file: file(Scope::Project).map(|project| shown_path(&project.file)),
        scopes: scopes(client).into_iter().map(Scope::name).collect(),
    }
}

fn is_installed(client: &Client, spot: &Spot) -> Option<bool> {
    let Some(text) = write::read(&spot.file).ok()?.text else { return Some(false) };
    let document = Document::read(client.format, &text).ok()?;
    let path = ours::path(&document, client, spot, DEFAULT_NAME);
    let found = document.find(&path).ok()?;
    Some(found.is_some_and(|node| ours::starts_cove(node, this_program().ok().as_deref())))
}
