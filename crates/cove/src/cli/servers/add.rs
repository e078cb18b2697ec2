//! `cove servers add` and `remove`: one file per server, in a folder that Cove reads before the files of other
//! programs.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ValueHint;
use serde_json::{Value, json};

use cove_core::error::{Failure, display_path, display_value, escape_control, write_hint};
use cove_core::private_file::{ExistingFile, write_private_file};
use cove_upstream::definition::ServerDefinitions;
use cove_upstream::discovery::definition_text;
use cove_upstream::pool::UpstreamState;

use super::published::{self, PublishedFlags};
use super::{ServersContext, check_server_name, refresh, registry_settings, server_remarks, unknown_server_error};
use crate::cli::tables::print_remark;

/// Define a server, in a file of its own in `~/.config/cove/servers.d`
#[derive(Debug, Clone, PartialEq, clap::Args)]
#[command(args = registry_settings())]
#[command(
    after_help = "Values may have `${VARIABLE}`, `${VARIABLE:-default}`, `${secret:NAME}` (see `cove secrets set`), \
                  `${file:PATH}` and `${cmd:PROGRAM ARGUMENTS}`, which are put in when the server is started: quote them \
                  for your shell. The file is readable for you alone."
)]
pub struct NewServer {
    /// Name of the server, or of a published one such as `com.example/tracker`
    name: String,
    #[command(flatten)]
    published: PublishedFlags,
    /// Variable that the server is started with
    #[arg(long, value_name = "KEY=VALUE", allow_hyphen_values = true, conflicts_with = "url")]
    env: Vec<String>,
    /// File with more variables, one `KEY=VALUE` a line, read at each start
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "url")]
    env_file: Option<PathBuf>,
    /// What it is for, shown to agents
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// Directory that it is started in
    #[arg(long, value_name = "DIR", conflicts_with = "url")]
    cwd: Option<String>,
    /// Address of a server over HTTP, instead of a command
    #[arg(long)]
    url: Option<String>,
    /// Transport of the address: `auto` tries Streamable HTTP, then the older SSE
    #[arg(long = "type", value_name = "TYPE", value_parser = ["auto", "http", "sse"], requires = "url", hide_short_help = true)]
    transport: Option<String>,
    /// Header that the server is sent with every request, also as `KEY=VALUE`
    #[arg(long, value_name = "KEY: VALUE", allow_hyphen_values = true, conflicts_with = "command")]
    header: Vec<String>,
    /// Program that prints more headers as a JSON object, run at each start and after HTTP status 401
    #[arg(long, value_name = "COMMAND", conflicts_with = "command", hide_short_help = true)]
    headers_cmd: Option<String>,
    /// Let the address be plain `http` on another machine
    #[arg(long, conflicts_with = "command")]
    allow_http: bool,
    /// Replace the server of that name that was added before
    #[arg(long)]
    force: bool,
    /// Do not start the server to list its tools; without a terminal it is never started
    #[arg(long)]
    no_try: bool,
    /// Command that starts the server, with its arguments
    #[arg(last = true, conflicts_with = "url")]
    command: Vec<String>,
}

impl NewServer {
    fn to_entry(&self, cwd: &Path) -> Result<Value, Failure> {
        // The definition is used from other folders too. A reference or `~` keeps its meaning.
        let env_file = self.env_file.as_ref().map(|file| match file.to_string_lossy() {
            text if text.starts_with(['~', '$']) => text.into_owned(),
            _ => cwd.join(file).to_string_lossy().into_owned(),
        });
        let fields = json!({
            "description": self.description,
            "command": self.command.first(),
            "args": self.command.get(1..),
            "type": self.transport,
            "url": self.url,
            "env": parse_pairs(PairFlag::Env, &self.env)?,
            "env_file": env_file,
            "headers": parse_pairs(PairFlag::Header, &self.header)?,
            "headers_cmd": self.headers_cmd,
            "cwd": self.cwd,
            "allow_http": self.allow_http.then_some(true),
        });
        let fields = fields.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
        Ok(fields.map(|(key, value)| (key.clone(), value.clone())).collect())
    }
}

/// Fails if the whole command is one quoted word, such as `"npx -y package"`, and no program has that name.
fn check_quotes(here: &ServersContext, added: &NewServer) -> Result<(), Failure> {
    let [word] = added.command.as_slice() else { return Ok(()) };
    let Some((program, _)) = word.trim().split_once(char::is_whitespace) else { return Ok(()) };
    if word.contains("${") || here.env.cwd.join(word).exists() {
        return Ok(());
    }
    Err(Failure::usage(format!("could not add the server `{}`", added.name))
        .because("its command is one word with spaces in it, and there is no such program")
        .with_hint(format!("leave out the quotes: `cove servers add {} -- {} …`", added.name, display_value(program))))
}

/// A flag that takes a name and a value.
#[derive(Clone, Copy, PartialEq)]
enum PairFlag {
    Env,
    /// Also written as `NAME: VALUE`, as in HTTP and with `curl`.
    Header,
}

/// The table that a repeated flag describes. None without the flag.
fn parse_pairs(flag: PairFlag, pairs: &[String]) -> Result<Option<BTreeMap<String, String>>, Failure> {
    let separators: &[char] = if flag == PairFlag::Env { &['='] } else { &['=', ':'] };
    let pair = |(index, pair): (usize, &String)| match pair.split_once(separators) {
        Some((key, value)) if !key.is_empty() => match flag {
            PairFlag::Env => Ok((key.to_owned(), value.to_owned())),
            PairFlag::Header => Ok((key.trim().to_owned(), value.trim().to_owned())),
        },
        // The text may be the secret itself, so the message does not repeat it.
        _ => {
            let (name, form, example) = match flag {
                PairFlag::Env => ("env", "NAME=VALUE", "TOKEN='${TOKEN}'"),
                PairFlag::Header => ("header", "NAME: VALUE", "'Authorization: Bearer ${TOKEN}'"),
            };
            Err(Failure::usage(format!("could not read `--{name}` number {}", index + 1))
                .because(format!("it is not of the form {form}"))
                .with_hint(format!("write `--{name} {example}`")))
        }
    };
    let table: BTreeMap<_, _> = pairs.iter().enumerate().map(pair).collect::<Result<_, _>>()?;
    Ok(Some(table).filter(|table| !table.is_empty()))
}

impl ServersContext {
    /// The file that `add` writes for a name.
    pub(in crate::cli) fn definition_file(&self, name: &str) -> Result<PathBuf, Failure> {
        let folder = self.places.own_directory().ok_or_else(|| {
            Failure::operator("could not find a place for servers")
                .because("there is no home directory")
                .with_hint("set `HOME` or `XDG_CONFIG_HOME`")
        })?;
        Ok(folder.join(format!("{name}.json")))
    }
}

pub(super) fn add(here: &ServersContext, added: &NewServer) -> Result<String, Failure> {
    let storing = DefinitionStoring {
        existing: if added.force { ExistingFile::Replace } else { ExistingFile::Keep },
        is_tried: !added.no_try,
    };
    if added.command.is_empty() && added.url.is_none() {
        let others = [
            ("env", added.env.is_empty()),
            ("env-file", added.env_file.is_none()),
            ("header", added.header.is_empty()),
            ("headers-cmd", added.headers_cmd.is_none()),
            ("cwd", added.cwd.is_none()),
            ("description", added.description.is_none()),
        ];
        if let Some((flag, _)) = others.iter().find(|(_, is_unused)| !is_unused) {
            return Err(Failure::usage(format!("could not use `--{flag}` for `{}`", display_value(&added.name)))
                .because("there is no command and no address, so it is a published server")
                .with_hint("give its values with `--set NAME=VALUE`, or a command behind `--`"));
        }
        return published::add(here, &added.name, &added.published, storing);
    }
    added.published.check_unused()?;
    check_server_name(&added.name)?;
    check_quotes(here, added)?;
    store_definition(here, &added.name, &added.to_entry(&here.env.cwd)?, storing)
}

/// How a definition is written, and what happens then.
#[derive(Debug, Clone, Copy)]
pub(super) struct DefinitionStoring {
    pub(super) existing: ExistingFile,
    /// True if the server is started at once on a terminal.
    pub(super) is_tried: bool,
}

/// Writes the definition of a server, and tries the server on a terminal. Returns the text to print.
pub(super) fn store_definition(
    here: &ServersContext,
    name: &str,
    entry: &Value,
    storing: DefinitionStoring,
) -> Result<String, Failure> {
    let file = here.definition_file(name)?;
    let shown = display_path(&file);
    let text = definition_text(name, entry);
    // Parses the entry as the server will, so that Cove never writes an entry that it later refuses.
    if let Some(problem) = ServerDefinitions::from_text(&file, &text).problems.into_iter().next() {
        return Err(Failure::usage(format!("could not add the server `{name}`"))
            .because(problem.what)
            .with_hint(problem.hint));
    }
    write_private_file(&file, &text, storing.existing).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => Failure::usage(format!("could not add the server `{name}`"))
            .because(format!("`{shown}` is there already"))
            .with_hint("choose another name, or replace it with `--force`"),
        _ => {
            let hint = write_hint(&error, "make the folder writable for you");
            Failure::operator(format!("could not write `{shown}`")).because(error).with_hint(hint)
        }
    })?;
    here.settings.failures.clear(name);
    let all = here.definitions();
    for problem in all.problems.iter().filter(|problem| problem.path == file) {
        print_remark(format!("warning: {problem}"));
    }
    let used = all.servers.iter().find(|server| server.name == name);
    if let Some(used) = used.filter(|used| used.origin.path != file) {
        print_remark(format!(
            "warning: `{name}` is defined earlier in {}, which is used instead; remove that one, or choose another name",
            used.origin
        ));
    }
    let state = here.summaries(all).into_iter().find(|summary| summary.name == name);
    let remarks = state.iter().flat_map(server_remarks);
    remarks.for_each(|remark| print_remark(format!("warning: {}", escape_control(&remark))));
    let mut next = format!("next: `cove servers refresh {name}` starts it and lists its tools");
    if let Some(UpstreamState::Needs(what)) = state.map(|summary| summary.state) {
        print_remark(format!("warning: `{name}` needs {} before it can be used", what.join(", ")));
        next = format!("next: give it what it needs; then `cove servers refresh {name}` lists its tools");
    } else if storing.is_tried && io::stdout().is_terminal() {
        print_remark(format!("added `{name}` in {shown}"));
        // A server that fails stays added: the person may want to correct its environment, not its definition.
        let (text, code) = refresh::run(here, &[name.to_owned()], false)?;
        let hint = "it is kept; `cove servers refresh` tries it again, `cove servers remove` removes it";
        return Ok(if code == ExitCode::SUCCESS { text } else { format!("{text}hint: {hint}\n") });
    }
    Ok(format!("added `{name}` in {shown}\n{next}\n"))
}

pub(super) fn remove(here: &ServersContext, name: &str) -> Result<String, Failure> {
    check_server_name(name)?;
    let file = here.definition_file(name)?;
    let shown = display_path(&file);
    let all = here.definitions();
    let fail = || Failure::usage(format!("could not remove the server `{name}`"));
    let by_hand = |place: String| {
        fail()
            .because(format!("it is defined in {place}, which `cove servers add` did not write"))
            .with_hint("take it out of that file by hand")
    };
    let origins = |all: &ServerDefinitions| {
        let server = all.servers.iter().find(|server| server.name == name).cloned();
        server.map(|server| [vec![server.origin], server.shadowed].concat()).unwrap_or_default()
    };
    let text = match fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(match origins(&all).first() {
                Some(origin) => by_hand(origin.to_string()),
                None => match all.problems.iter().find(|problem| problem.what.contains(&format!("`{name}`"))) {
                    Some(problem) => fail().because(problem.to_string()).with_hint("take it out of that file by hand"),
                    None => unknown_server_error(name, all.servers.iter().map(|server| server.name.as_str())),
                },
            });
        }
        Err(error) => return Err(fail().because(format!("`{shown}` could not be read: {error}"))),
    };
    let inside = ServerDefinitions::from_text(&file, &text);
    if let Some(problem) = inside.problems.first() {
        return Err(fail().because(problem.to_string()).with_hint(format!("correct `{shown}`, or delete it by hand")));
    }
    match inside.servers.as_slice() {
        [only] if only.name == name => {}
        others => {
            return Err(match others.iter().find(|server| server.name == name) {
                Some(server) => by_hand(server.origin.to_string()),
                None => fail().because(format!("`{shown}` defines other servers")).with_hint("edit that file by hand"),
            });
        }
    }
    fs::remove_file(&file).map_err(|error| Failure::operator(format!("could not remove `{shown}`")).because(error))?;
    let left = here.definitions();
    match origins(&left).first() {
        Some(origin) => Ok(format!("removed {shown}; from now on `{name}` is the one in {origin}\n")),
        None => {
            here.forget(name, &all);
            Ok(format!("removed `{name}` ({shown})\n"))
        }
    }
}
