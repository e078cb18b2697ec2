//! `cove install` and `cove uninstall`: our entry in the configuration of an agent's client, and out of it again. The
//! client's own command does it where there is one; else the file is edited in place, and nothing in it but our entry.

mod client_command;
mod clients;
mod definition;
mod diff;
mod edit;
mod jsonc;
mod list;
mod ours;
mod places;
mod toml;
mod tree;
mod write;
mod yaml;

use std::io::Write;
use std::path::{Path, PathBuf};

use crate::config::Surroundings;
use crate::error::{Error, shown, shown_path};

use client_command::Line;
use clients::{CLIENTS, Client};
use edit::{Document, Entry, Unreadable, Unwritable};
use places::Spot;
use tree::Blocked;
use write::{Found, Lock, NotReplaced};

pub use definition::{asked_to_install, asked_to_uninstall, install_command, uninstall_command};
pub use places::Scope;

const DEFAULT_NAME: &str = "cove";
/// How often a file that others write at the same time is read anew.
const ATTEMPTS: usize = 5;

/// What the command line asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum Asked {
    List { json: bool, around: Surroundings },
    Install(Request),
    Uninstall(Request),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// As a person wrote it.
    pub client: String,
    pub name: String,
    pub scope: Scope,
    pub outcome: Outcome,
    pub others: Others,
    pub way: Way,
    /// After `serve`.
    pub server_args: Vec<String>,
    pub around: Surroundings,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Write,
    /// The entry, ready to paste.
    Print,
    /// The change as a diff.
    DryRun,
}

/// An entry of our name that is not ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Others {
    Keep,
    Replace,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// The client's own command where it has one.
    Command,
    File,
}

/// What to print. Remarks go to standard error at once.
pub fn run(asked: Asked) -> Result<String, Error> {
    match asked {
        Asked::List { json, around } => list::text(&around, json),
        Asked::Install(request) => Job::new(&request)?.install(),
        Asked::Uninstall(request) => Job::new(&request)?.uninstall(),
    }
}

fn remark(text: &str) {
    // Standard error may be closed; a remark is not worth failing for.
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// One request, with the client that it means.
struct Job<'a> {
    request: &'a Request,
    client: &'static Client,
    spot: Spot,
    /// This program, and what it is started with.
    command: String,
    args: Vec<String>,
}

/// Our entry and how a document must change for it.
struct Plan {
    path: Vec<String>,
    entry: Entry,
    change: Change,
}

enum Change {
    None,
    Add(Document),
    /// Ours is there, and differs.
    Update(Document),
    /// Somebody else's is there, and goes.
    Replace(Document),
}

impl<'a> Job<'a> {
    fn new(request: &'a Request) -> Result<Self, Error> {
        let client = clients::find(&request.client).map_err(|near| unknown(&request.client, near))?;
        let spot = places::spot(client, request.scope, &request.around)?;
        let args = ["serve".to_owned()].into_iter().chain(request.server_args.iter().cloned()).collect();
        Ok(Self { request, client, spot, command: this_program()?, args })
    }

    fn install(&self) -> Result<String, Error> {
        let Request { name, outcome, .. } = self.request;
        let file = shown_path(&self.spot.file);
        if *outcome == Outcome::Print {
            let path: Vec<String> = self.spot.container.iter().cloned().chain([name.clone()]).collect();
            let entry = self.client.entry(name, &self.command, &self.args);
            let text = self.client.format.alone(&path, &entry).map_err(|wrong| self.refused(None, wrong))?;
            remark(&format!("for `{file}`"));
            return Ok(text);
        }
        if *outcome == Outcome::DryRun {
            let (found, document) = self.read()?;
            return Ok(match self.plan(&document)?.change {
                Change::None => format!("`{name}` is already in {file}; nothing would change\n"),
                Change::Add(after) | Change::Update(after) | Change::Replace(after) => {
                    diff::text(&file, &found.text.unwrap_or_default(), &after.whole_text())
                }
            });
        }
        let mut way = self.request.way;
        for _ in 0..ATTEMPTS {
            let _lock = Lock::take(&self.spot.file)?;
            let (found, document) = self.read()?;
            let plan = self.plan(&document)?;
            let (verb, after) = match &plan.change {
                Change::None => return Ok(format!("`{name}` is already in {file}; nothing was changed\n")),
                Change::Add(after) => ("added", after),
                Change::Update(after) => ("updated", after),
                Change::Replace(after) => ("replaced", after),
            };
            let backup = found.back_up()?;
            if let Some(line) = self.adding(way, &plan.change) {
                way = Way::File;
                let is_there = || Ok(self.read()?.1.has(&plan.path, &plan.entry));
                let first = matches!(plan.change, Change::Replace(_)).then(|| self.removing(Way::Command));
                match self.try_command(first.flatten(), &line, is_there)? {
                    true => return Ok(self.done(verb, "to", Some(&line), backup.as_deref())),
                    // It may have written something else.
                    false => continue,
                }
            }
            match found.replace(&after.whole_text()) {
                Ok(()) => return Ok(self.done(verb, "to", None, backup.as_deref())),
                Err(NotReplaced::Changed) => {}
                Err(NotReplaced::Failed(error)) => return Err(error),
            }
        }
        Err(self.contended())
    }

    fn uninstall(&self) -> Result<String, Error> {
        let Request { name, outcome, .. } = self.request;
        let file = shown_path(&self.spot.file);
        let mut way = self.request.way;
        for _ in 0..ATTEMPTS {
            // Nothing is made for what may not be there.
            let _lock = match write::read(&self.spot.file)?.text {
                Some(_) if *outcome == Outcome::Write => Some(Lock::take(&self.spot.file)?),
                _ => None,
            };
            let (found, document) = self.read()?;
            let path = ours::path(&document, self.client, &self.spot, name);
            let refused = |wrong| self.refused(Some(&document), wrong);
            if let Some(entry) = document.find(&path).map_err(|wrong| refused(wrong.into()))? {
                self.must_be_ours(entry)?;
            }
            let Some(after) = document.removed(&path).map_err(refused)? else {
                return Ok(format!("`{name}` is not in {file}; nothing was changed\n"));
            };
            if *outcome == Outcome::DryRun {
                return Ok(diff::text(&file, &document.whole_text(), &after.whole_text()));
            }
            let backup = found.back_up()?;
            if let Some(line) = self.removing(way) {
                way = Way::File;
                let is_gone = || Ok(matches!(self.read()?.1.find(&path), Ok(None)));
                match self.try_command(None, &line, is_gone)? {
                    true => return Ok(self.done("removed", "from", Some(&line), backup.as_deref())),
                    false => continue,
                }
            }
            match found.replace(&after.whole_text()) {
                Ok(()) => return Ok(self.done("removed", "from", None, backup.as_deref())),
                Err(NotReplaced::Changed) => {}
                Err(NotReplaced::Failed(error)) => return Err(error),
            }
        }
        Err(self.contended())
    }

    fn read(&self) -> Result<(Found, Document), Error> {
        let found = write::read(&self.spot.file)?;
        let text = found.text.as_deref().unwrap_or_default();
        let document =
            Document::read(self.client.format, text).map_err(|wrong| self.refused(None, wrong.into()))?;
        Ok((found, document))
    }

    fn plan(&self, document: &Document) -> Result<Plan, Error> {
        let refused = |wrong| self.refused(Some(document), wrong);
        let path = ours::path(document, self.client, &self.spot, &self.request.name);
        let own = (self.request.name.as_str(), self.command.as_str(), self.args.as_slice());
        let entry = ours::entry(document, self.client, &self.spot, own);
        let change = match document.find(&path).map_err(|wrong| refused(wrong.into()))? {
            None => Change::Add(document.set(&path, &entry).map_err(refused)?),
            Some(node) if ours::starts_cove(node, Some(&self.command)) => {
                if document.has(&path, &entry) {
                    Change::None
                } else {
                    Change::Update(document.set(&path, &entry).map_err(refused)?)
                }
            }
            Some(node) => {
                self.must_be_ours(node)?;
                let without = document.removed(&path).map_err(refused)?;
                Change::Replace(without.as_ref().unwrap_or(document).set(&path, &entry).map_err(refused)?)
            }
        };
        Ok(Plan { path, entry, change })
    }

    fn must_be_ours(&self, node: &tree::Node) -> Result<(), Error> {
        if self.request.others == Others::Replace || ours::starts_cove(node, Some(&self.command)) {
            return Ok(());
        }
        let Request { name, .. } = self.request;
        let starts = match ours::program(node) {
            Some(program) => format!("it starts `{}`, not `cove`", shown(program)),
            None => "it does not start `cove`".to_owned(),
        };
        Err(Error::usage(format!("could not touch `{name}` in `{}`", shown_path(&self.spot.file)))
            .because(starts)
            .with_hint("choose another name with `--name`, or have it replaced or removed with `--force`"))
    }

    /// An entry that is ours already is edited, because a command could only replace it, with all that a person added.
    fn adding(&self, way: Way, change: &Change) -> Option<Line> {
        if way == Way::File || matches!(change, Change::None | Change::Update(_)) {
            return None;
        }
        let Request { scope, name, around, .. } = self.request;
        let line = client_command::add(self.client.own?, *scope, name, &self.command, &self.args)?;
        line.is_on_path(around).then_some(line)
    }

    fn removing(&self, way: Way) -> Option<Line> {
        if way == Way::File {
            return None;
        }
        let line = client_command::remove(self.client.own?, self.request.scope, &self.request.name)?;
        line.is_on_path(&self.request.around).then_some(line)
    }

    /// Whether the client's command did it, which is seen in the file alone.
    fn try_command(
        &self,
        first: Option<Line>,
        line: &Line,
        is_done: impl Fn() -> Result<bool, Error>,
    ) -> Result<bool, Error> {
        let mut ran = Ok(());
        for line in first.iter().chain([line]) {
            ran = client_command::run(line, &self.request.around);
        }
        let why = match ran {
            _ if is_done()? => return Ok(true),
            Ok(()) => format!("it left `{}` as it was", shown_path(&self.spot.file)),
            Err(why) => why,
        };
        remark(&format!("`{}` did not work ({why}); the file is edited instead", line.name()));
        Ok(false)
    }

    fn done(&self, verb: &str, preposition: &str, line: Option<&Line>, backup: Option<&Path>) -> String {
        let Request { name, .. } = self.request;
        let file = shown_path(&self.spot.file);
        let preposition = if verb == "updated" || verb == "replaced" { "in" } else { preposition };
        let way = line.map_or(String::new(), |line| format!(" with `{}`", line.name()));
        let backup = backup.map_or(String::new(), |backup| format!(" (as it was: {})", shown_path(backup)));
        let next = match verb {
            "removed" => format!("start {} anew, so that it lets go of it", self.client.title),
            // Others get a project's file too, so that clients ask them first.
            _ if self.request.scope == Scope::Project => {
                format!("{}; it starts after you approve it", self.client.next)
            }
            _ => self.client.next.to_owned(),
        };
        format!("{verb} `{name}` {preposition} {file}{way}{backup}; next: {next}\n")
    }

    /// The file is as it was: nothing is written that cannot be written right.
    fn refused(&self, document: Option<&Document>, wrong: Unwritable) -> Error {
        let error = Error::usage(format!("could not edit `{}`", shown_path(&self.spot.file)));
        let (line, column) = match &wrong {
            Unwritable::Unreadable(Unreadable { line, column, .. }) => (*line, *column),
            Unwritable::Blocked(Blocked::NoMap { at, .. } | Blocked::Twice { at, .. })
            | Unwritable::Inline { at } => document.map_or((0, 0), |document| document.place(*at)),
            Unwritable::Wrong => (0, 0),
        };
        let at = format!("line {line} column {column}");
        let key = |path: &[String]| format!("`{}`", shown(&path.join(".")));
        match wrong {
            Unwritable::Unreadable(Unreadable { what, .. }) => error
                .because(format!("{at}: it is not valid {}: {}", self.client.format, shown(&what)))
                .with_hint("nothing was changed; correct the file, or see `--print` for the entry"),
            Unwritable::Blocked(Blocked::NoMap { path, found, .. }) if path.is_empty() => error
                .because(format!("{at}: it holds {found} where an object should be"))
                .with_hint("nothing was changed; see `--print` for what belongs there"),
            Unwritable::Blocked(Blocked::NoMap { path, found, .. }) => {
                error.because(format!("{at}: {} is {found}, not an object", key(&path))).with_hint(format!(
                    "nothing was changed; remove {} if it means nothing, or make it an object",
                    key(&path)
                ))
            }
            Unwritable::Blocked(Blocked::Twice { path, .. }) => {
                error.because(format!("{at}: {} is there a second time", key(&path))).with_hint(
                    "nothing was changed; join the two, because clients differ in which one they read",
                )
            }
            Unwritable::Inline { .. } => error
                .because(format!("{at}: the servers are written on one line, which is not edited here"))
                .with_hint("nothing was changed; write them as a table, or see `--print` for the entry"),
            Unwritable::Wrong => error
                .because("the change would not have been what was meant")
                .with_hint("nothing was changed; see `--print`, and write the entry by hand"),
        }
    }

    fn contended(&self) -> Error {
        Error::operator(format!("could not write `{}`", shown_path(&self.spot.file)))
            .because("something else kept writing it")
            .with_hint(format!("end {}, and run this again", self.client.title))
    }
}

/// A path that a client can start at any later time.
fn this_program() -> Result<String, Error> {
    let fail = || Error::operator("could not find this program's own path");
    let path: PathBuf = std::env::current_exe()
        .and_then(|path| path.canonicalize())
        .map_err(|error| fail().because(error).with_hint("run it from where it is installed"))?;
    path.to_str().map(str::to_owned).ok_or_else(|| {
        fail().because("it is not valid UTF-8").with_hint("move the program to a path of plain letters")
    })
}

fn unknown(word: &str, near: Option<&str>) -> Error {
    let known: Vec<&str> = CLIENTS.iter().map(|client| client.id).collect();
    let known = known.join(", ");
    let hint = match near {
        Some(near) => format!("did you mean `{near}`? known are {known}"),
        None => format!("known are {known}"),
    };
    Error::usage(format!("could not find the client `{}`", shown(word)))
        .because("no client has that name")
        .with_hint(hint)
}
