//! `cove completions SHELL`: prints the script with which a shell completes Cove's command line. The script asks this
//! program at each Tab, so that it knows the servers, tools, images and packages of the moment. Nothing is started.
//!
//! A shell inserts a completion into the command line as it is, and names may come from servers and projects. So only
//! names without characters that a shell interprets are offered.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Arg, Command};
use clap_complete::Shell;
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use clap_complete::env::Shells;
use cove_protocol::Language;

use super::image_library::image_library;
use super::servers::{KnownServers, configured_servers};
use super::{collect_flags, command, command_path, install, runtime};
use crate::config::{Config, SETTINGS, SettingFlags};
use crate::packages::{PackageKind, PackageStore};
use cove_core::error::Failure;
use cove_core::process_env::ProcessEnv;
use cove_upstream::definition::ServerDefinition;

/// Set by the script when it asks.
pub const VARIABLE: &str = "COVE_COMPLETE";

/// Returns the script. `program` is how this process was started: by name, or by a path.
pub fn render(shell: Shell, program: &OsStr, cwd: &Path) -> Result<String, Failure> {
    let failed = || Failure::internal(format!("could not write the completions of {shell}"));
    let is_path = program.to_string_lossy().contains('/');
    let program = if is_path { cwd.join(program).to_string_lossy().into_owned() } else { "cove".to_owned() };
    let mut script = Vec::new();
    let shells = Shells::builtins();
    let adapter = shells.completer(&shell.to_string()).ok_or_else(failed)?;
    adapter
        .write_registration(VARIABLE, "cove", "cove", &program, &mut script)
        .map_err(|error| failed().because(error))?;
    Ok(String::from_utf8_lossy(&script).into_owned())
}

/// Answers a script that asks for completions. `None` if this process was started for something else.
pub fn answer(args: &[OsString], env: &ProcessEnv) -> Option<(String, ExitCode)> {
    let shell = env.var(VARIABLE).ok()??;
    let words = args.get(1).filter(|word| *word == "--").and_then(|_| args.get(2..))?;
    let shells = Shells::builtins();
    let adapter = shells.completer(shell)?;
    let names = Arc::new(NameSource::new(words, env));
    let mut command = add_candidates(command(), "", &names);
    let mut text = Vec::new();
    // A failure means that there is nothing to complete.
    let written = adapter.write_complete(&mut command, words.to_vec(), Some(&env.cwd), &mut text);
    let code = if written.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    Some((String::from_utf8_lossy(&text).into_owned(), code))
}

/// What an argument names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NameKind {
    Clients,
    Servers,
    /// Those in `catalog.d`.
    ApprovedServers,
    RequestedServers,
    Tools,
    /// A server, or one of its tools.
    ServersAndTools,
    Images,
    Packages,
    Languages,
    /// With TypeScript, which the repl does not have.
    RunLanguages,
    SignatureLanguages,
    /// Those that are kept or that definitions name.
    Secrets,
}

/// By command and argument. Settings have a table of their own.
const ARGUMENTS: &[(&str, &str, NameKind)] = &[
    ("install", "clients", NameKind::Clients),
    ("uninstall", "clients", NameKind::Clients),
    ("servers import", "sources", NameKind::Clients),
    ("entry", "client", NameKind::Clients),
    ("servers remove", "name", NameKind::Servers),
    ("servers refresh", "names", NameKind::Servers),
    ("servers add", "name", NameKind::ApprovedServers),
    ("servers approve", "name", NameKind::RequestedServers),
    ("servers refuse", "name", NameKind::RequestedServers),
    ("servers login", "name", NameKind::Servers),
    ("servers logout", "name", NameKind::Servers),
    ("servers diff", "name", NameKind::Servers),
    ("servers accept", "name", NameKind::Servers),
    ("audit", "server", NameKind::Servers),
    ("tools list", "servers", NameKind::Servers),
    ("tools show", "tool", NameKind::ServersAndTools),
    ("tools call", "tool", NameKind::Tools),
    ("tools find", "language", NameKind::SignatureLanguages),
    ("images build", "names", NameKind::Images),
    ("packages remove", "names", NameKind::Packages),
    ("run", "language", NameKind::RunLanguages),
    ("repl", "language", NameKind::Languages),
    ("secrets set", "name", NameKind::Secrets),
    ("secrets remove", "name", NameKind::Secrets),
];

/// Settings whose values depend on what there is here.
const NAMED_SETTINGS: &[(&str, NameKind)] =
    &[("image", NameKind::Images), ("allow-call", NameKind::ServersAndTools), ("deny-call", NameKind::ServersAndTools)];

fn add_candidates(command: Command, path: &str, names: &Arc<NameSource>) -> Command {
    let command = command.mut_args(|arg| add_to_argument(arg, path, names));
    command.mut_subcommands(|below| {
        let path = format!("{path} {}", below.get_name());
        add_candidates(below, path.trim_start(), names)
    })
}

fn add_to_argument(arg: Arg, path: &str, names: &Arc<NameSource>) -> Arg {
    let id = arg.get_id().as_str();
    let of_argument = ARGUMENTS.iter().find(|(of, argument, _)| *of == path && *argument == id).map(|(.., kind)| *kind);
    let of_setting = NAMED_SETTINGS.iter().find(|(key, _)| *key == id).map(|(_, kind)| *kind);
    if let Some(kind) = of_argument.or(of_setting) {
        let names = Arc::clone(names);
        return arg.add(ArgValueCandidates::new(move || to_candidates(names.list(kind))));
    }
    match SETTINGS.iter().find(|setting| setting.key == id).map(|setting| (setting.choices)()) {
        Some(choices) if !choices.is_empty() => arg.add(ArgValueCandidates::new(move || {
            to_candidates(choices.iter().map(|word| (*word).to_owned()).collect())
        })),
        _ => arg,
    }
}

fn to_candidates(names: BTreeSet<String>) -> Vec<CompletionCandidate> {
    names.into_iter().filter(|name| is_plain(name)).map(CompletionCandidate::new).collect()
}

/// True if no shell interprets any character of a name.
fn is_plain(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_.-/@+".contains(c);
    !name.is_empty() && !name.starts_with('-') && name.chars().all(is_plain)
}

/// Looks up names. What cannot be read has no names.
struct NameSource {
    /// With the flags of the line that is being written. `None` if it cannot be loaded.
    config: Option<Config>,
    env: ProcessEnv,
}

impl NameSource {
    fn new(words: &[OsString], env: &ProcessEnv) -> Self {
        let matches = command().ignore_errors(true).try_get_matches_from(words);
        let flags = matches.ok().and_then(|matches| collect_flags(&command_path(&matches)).ok());
        let load = |flags: &SettingFlags| Config::load(flags, env).ok();
        let config = flags.and_then(|flags| load(&flags)).or_else(|| load(&SettingFlags::default()));
        Self { config, env: env.clone() }
    }

    fn list(&self, kind: NameKind) -> BTreeSet<String> {
        match kind {
            NameKind::Clients => install::client_names().map(str::to_owned).collect(),
            NameKind::Languages => Language::ALL.map(|language| language.to_string()).into(),
            NameKind::RunLanguages => self.list(NameKind::Languages).into_iter().chain(["typescript".into()]).collect(),
            NameKind::SignatureLanguages => ["python", "node", "shell"].map(str::to_owned).into(),
            NameKind::Servers => self.servers().into_keys().collect(),
            NameKind::ApprovedServers => self.published_names(super::servers::approved_names),
            NameKind::RequestedServers => self.published_names(super::servers::requested_names),
            NameKind::Tools => self.servers().into_values().flatten().collect(),
            NameKind::ServersAndTools => {
                self.servers().into_iter().flat_map(|(server, tools)| [server].into_iter().chain(tools)).collect()
            }
            NameKind::Images => self.images().unwrap_or_default(),
            NameKind::Packages => self.packages().unwrap_or_default(),
            NameKind::Secrets => self.secrets().unwrap_or_default(),
        }
    }

    fn published_names(&self, list: fn(&Config, &ProcessEnv) -> Vec<String>) -> BTreeSet<String> {
        self.config.as_ref().map(|config| list(config, &self.env)).unwrap_or_default().into_iter().collect()
    }

    /// The configured servers, each with the tools that it listed before as `server.tool`.
    fn servers(&self) -> BTreeMap<String, Vec<String>> {
        let Some(config) = &self.config else { return BTreeMap::new() };
        let known = KnownServers::load(config, &self.env);
        let tools = |server: &str| {
            let listing = known.tools(server);
            let names = listing.iter().flat_map(|listing| listing.names());
            names.map(|tool| format!("{server}.{tool}")).collect()
        };
        known.summaries.iter().map(|summary| (summary.name.clone(), tools(&summary.name))).collect()
    }

    fn images(&self) -> Option<BTreeSet<String>> {
        let library = image_library(self.config.as_ref()?, &self.env);
        let images = runtime::single_threaded().ok()?.block_on(library.read()).images;
        Some(images.iter().map(|image| image.name().to_owned()).collect())
    }

    /// A helper program is not asked: it may take long, or ask the person something.
    fn secrets(&self) -> Option<BTreeSet<String>> {
        let config = self.config.as_ref()?;
        let servers = configured_servers(config, &self.env);
        let mut names: BTreeSet<String> =
            servers.iter().flat_map(ServerDefinition::secret_names).map(str::to_owned).collect();
        let store = config.secret_store(&self.env);
        if !store.has_helper() {
            let kept = runtime::single_threaded().ok()?.block_on(store.names()).unwrap_or_default();
            names.extend(kept.into_iter().map(|entry| entry.name));
        }
        Some(names)
    }

    fn packages(&self) -> Option<BTreeSet<String>> {
        let record = PackageStore::new(self.config.as_ref()?.server.state_dir.as_ref()?).read().ok()?;
        let added = PackageKind::ALL.into_iter().filter_map(|kind| record.added.get(&kind).map(|names| (kind, names)));
        Some(
            added
                .flat_map(|(kind, names)| names.iter().map(move |text| super::packages::package_name(kind, text)))
                .collect(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_the_table_exist() {
        for (path, id, _) in ARGUMENTS {
            let mut found = &command();
            for name in path.split(' ') {
                found = found.find_subcommand(name).unwrap_or_else(|| panic!("there is no `cove {path}`"));
            }
            assert!(found.get_arguments().any(|arg| arg.get_id() == id), "`cove {path}` has no `{id}`");
        }
        for (key, _) in NAMED_SETTINGS {
            assert!(SETTINGS.iter().any(|setting| setting.key == *key), "{key}");
        }
    }

    #[test]
    fn names_that_a_shell_would_interpret_are_not_offered() {
        for name in ["files.read_file", "@scope/name", "c++", "python3.12"] {
            assert!(is_plain(name), "{name}");
        }
        for name in ["", "-rf", "a b", "$(touch x)", "`x`", "a;b", "a\nb", "a'b", "a\"b", "a>b", "a*", "\u{1b}[2J", "ü"]
        {
            assert!(!is_plain(name), "{name}");
        }
    }

    #[test]
    fn scripts_call_the_program_that_wrote_them() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::PowerShell, Shell::Elvish] {
            let script = |program: &str| render(shell, OsStr::new(program), Path::new("/work")).unwrap();
            assert!(script("cove").contains(VARIABLE) && !script("cove").contains("/work"), "{shell}");
            assert!(script("bin/cove").contains("/work/bin/cove"), "{shell}");
            assert!(script("/opt/cove").contains("/opt/cove"), "{shell}");
        }
    }
}
