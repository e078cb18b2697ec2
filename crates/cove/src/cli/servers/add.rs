//! `cove servers add` and `remove`: a file for each server, in a folder that is read before those of others.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use serde_json::{Map, Value, json};

use crate::error::{Error, shown_path};
use crate::upstream::State;
use crate::upstream::definition::Definitions;

use super::{Here, checked, remark, summaries, unknown};

/// A server as the command line describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct Added {
    pub name: String,
    /// With its arguments; empty for one with an address.
    pub command: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub cwd: Option<String>,
    pub url: Option<String>,
    pub headers: BTreeMap<String, String>,
    pub allow_http: bool,
    pub description: Option<String>,
    /// The one that was added before.
    pub replace: bool,
}

impl Added {
    fn entry(&self) -> Value {
        let mut entry = Map::new();
        if let Some(description) = &self.description {
            entry.insert("description".into(), json!(description));
        }
        if let Some((command, args)) = self.command.split_first() {
            entry.insert("command".into(), json!(command));
            entry.insert("args".into(), json!(args));
        }
        if let Some(url) = &self.url {
            entry.insert("type".into(), json!("http"));
            entry.insert("url".into(), json!(url));
        }
        for (key, table) in [("env", &self.env), ("headers", &self.headers)] {
            if !table.is_empty() {
                entry.insert(key.into(), json!(table));
            }
        }
        if let Some(cwd) = &self.cwd {
            entry.insert("cwd".into(), json!(cwd));
        }
        if self.allow_http {
            entry.insert("allow_http".into(), json!(true));
        }
        Value::Object(entry)
    }
}

impl Here {
    /// The file that `add` writes for a name.
    fn own_file(&self, name: &str) -> Result<PathBuf, Error> {
        let folder = self.places.own_directory().ok_or_else(|| {
            Error::operator("could not find a place for servers")
                .because("there is no home directory")
                .with_hint("set `HOME` or `XDG_CONFIG_HOME`")
        })?;
        Ok(folder.join(format!("{name}.json")))
    }
}

pub(super) fn add(here: &Here, added: &Added) -> Result<String, Error> {
    checked(&added.name)?;
    let name = &added.name;
    let file = here.own_file(name)?;
    let shown = shown_path(&file);
    let mut text = serde_json::to_string_pretty(&json!({"mcpServers": {(name): added.entry()}}))
        .map_err(|error| Error::internal("could not write the server as JSON").because(error))?;
    text.push('\n');
    // Read as it will be read, so that nothing is written which is then refused.
    if let Some(problem) = Definitions::of_text(&file, &text).problems.into_iter().next() {
        return Err(Error::usage(format!("could not add the server `{name}`"))
            .because(problem.what)
            .with_hint(problem.hint));
    }
    write(&file, &text, added.replace).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => Error::usage(format!("could not add the server `{name}`"))
            .because(format!("`{shown}` is there already"))
            .with_hint("choose another name, or replace it with `--force`"),
        _ => Error::operator(format!("could not write `{shown}`"))
            .because(error)
            .with_hint("make the folder writable for you"),
    })?;
    let all = here.definitions();
    for problem in all.problems.iter().filter(|problem| problem.path == file) {
        remark(&format!("warning: {problem}"));
    }
    let used = all.servers.iter().find(|server| server.name == *name);
    if let Some(used) = used.filter(|used| used.origin.path != file) {
        remark(&format!(
            "warning: `{name}` is defined earlier in {}, which is used instead; remove that one, or choose another name",
            used.origin
        ));
    }
    let state = summaries(all, &here.around).into_iter().find(|summary| summary.name == *name);
    if let Some(State::Needs(what)) = state.map(|summary| summary.state) {
        remark(&format!("warning: `{name}` needs {} before it can be used", what.join(", ")));
    }
    Ok(format!(
        "added `{name}` in {shown}; next: `cove servers refresh {name}` starts it and lists its tools\n"
    ))
}

/// Whole or not at all, and readable for its owner alone: variables and headers may hold secrets.
fn write(file: &std::path::Path, text: &str, replace: bool) -> io::Result<()> {
    let folder = file.parent().ok_or(io::ErrorKind::NotFound)?;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    // Its name begins with a dot, so that nobody reads it half written.
    let mut fresh = tempfile::Builder::new().prefix(".new-").tempfile_in(folder)?;
    fresh.write_all(text.as_bytes())?;
    fresh.as_file().sync_all()?;
    let kept = if replace { fresh.persist(file) } else { fresh.persist_noclobber(file) };
    kept.map(drop).map_err(|error| error.error)
}

pub(super) fn remove(here: &Here, name: &str) -> Result<String, Error> {
    checked(name)?;
    let file = here.own_file(name)?;
    let shown = shown_path(&file);
    let all = here.definitions();
    let fail = || Error::usage(format!("could not remove the server `{name}`"));
    let by_hand = |place: String| {
        fail()
            .because(format!("it is defined in {place}, which `cove servers add` did not write"))
            .with_hint("take it out of that file by hand")
    };
    let origins = |all: &Definitions| {
        let server = all.servers.iter().find(|server| server.name == name).cloned();
        server.map(|server| [vec![server.origin], server.shadowed].concat()).unwrap_or_default()
    };
    let text = match fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(match origins(&all).first() {
                Some(origin) => by_hand(origin.to_string()),
                None => match all.problems.iter().find(|problem| problem.what.contains(&format!("`{name}`")))
                {
                    Some(problem) => {
                        fail().because(problem.to_string()).with_hint("take it out of that file by hand")
                    }
                    None => unknown(name, all.servers.iter().map(|server| server.name.as_str())),
                },
            });
        }
        Err(error) => return Err(fail().because(format!("`{shown}` could not be read: {error}"))),
    };
    let inside = Definitions::of_text(&file, &text);
    if let Some(problem) = inside.problems.first() {
        return Err(fail()
            .because(problem.to_string())
            .with_hint(format!("correct `{shown}`, or delete it by hand")));
    }
    match inside.servers.as_slice() {
        [only] if only.name == name => {}
        others => {
            return Err(match others.iter().find(|server| server.name == name) {
                Some(server) => by_hand(server.origin.to_string()),
                None => fail()
                    .because(format!("`{shown}` defines other servers"))
                    .with_hint("edit that file by hand"),
            });
        }
    }
    fs::remove_file(&file)
        .map_err(|error| Error::operator(format!("could not remove `{shown}`")).because(error))?;
    let left = here.definitions();
    match origins(&left).first() {
        Some(origin) => Ok(format!("removed {shown}; from now on `{name}` is the one in {origin}\n")),
        None => {
            // What was listed of it is of no use to anybody now.
            if let Some(catalog) = here.catalog() {
                catalog.remove(name);
            }
            Ok(format!("removed `{name}` ({shown})\n"))
        }
    }
}
