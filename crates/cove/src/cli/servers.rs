//! `cove servers`: lists, finds, adds, imports, removes, refreshes, compares, accepts and trusts upstream servers, signs in
//! to them, and answers requests for them. It reads the same files as the server does. Only `refresh`, `add` and `login`
//! start a server, and only `search` and `add` ask a registry.

mod accept;
mod add;
mod diff;
mod import;
mod list;
mod login;
mod published;
mod refresh;
mod requests;
mod search;
mod server_importer;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Arg;

use super::tables::{PrintStyle, print_remark, render_table};
use super::{CommandContext, json_flag, settings_named};
use crate::config::Config;
use cove_core::error::{Failure, display_path, display_value, write_hint};
use cove_core::process_env::ProcessEnv;
use cove_core::spelling::nearest;
use cove_core::text::cut;
use cove_upstream::catalog::pins::{PinPolicy, PinState, PinStore};
use cove_upstream::catalog::{Catalog, ToolListing};
use cove_upstream::definition::{
    DefinitionPlaces, ServerDefinition, ServerDefinitions, ServerLaunch, check_name, trust,
};
use cove_upstream::discovery::{ApprovedServers, RegistryAddress, ServerRequests, describe_word};
use cove_upstream::pool::sign_in::SignInRecords;
use cove_upstream::pool::{DefinitionProblem, FailureRecords, UpstreamPool, UpstreamSettings, UpstreamSummary};
use cove_upstream::secrets::SecretStore;

pub use add::NewServer;
pub use import::ServerImport;
pub use login::LoginArgs;
pub(super) use refresh::{ListedTools, RefreshResult, refresh_servers};
pub use requests::ApproveArgs;
pub use search::SearchArgs;
pub(super) use server_importer::{ImportMode, ImportOutcome, ServerImporter, describe_acts, imported_definition_text};

/// Most bytes of a command that `trust` shows.
const MAX_SHOWN_COMMAND: usize = 4_000;

/// Show and change the upstream servers that code can call
#[derive(Debug, Clone, PartialEq, clap::Subcommand)]
pub enum ServersCommand {
    /// List every server with its state and where it is defined, and what is wrong with the rest
    #[command(visible_alias = "ls", arg = json_flag("Print one object"), args = location_settings())]
    List,
    Search(SearchArgs),
    Add(Box<NewServer>),
    Import(ServerImport),
    /// Remove a server that `add` defined; for others, say where they are defined
    #[command(visible_alias = "rm", args = location_settings())]
    Remove {
        /// Name of the server
        name: String,
    },
    /// Start servers and keep the lists of their tools, so that they are found without a start
    #[command(arg = json_flag("Print an array of objects"), args = start_settings())]
    Refresh {
        /// Servers to start; all of them if none is named
        #[arg(value_name = "NAME", num_args = 0..)]
        names: Vec<String>,
    },
    Login(LoginArgs),
    /// Forget the sign-in to a server, and revoke its tokens where the server can
    #[command(args = location_settings())]
    Logout {
        /// Name of the server
        name: String,
    },
    /// List the servers that code asks for, and wait for your answer
    #[command(arg = json_flag("Print an array of objects"), args = location_settings())]
    Requests,
    Approve(ApproveArgs),
    /// Refuse a server that code asks for; a Cove that is running does not let code ask again
    #[command(args = location_settings())]
    Refuse {
        /// Name of the server in `cove servers requests`
        name: String,
    },
    /// Show how tools differ from those that you accepted; of a server in quarantine, all its tools
    #[command(arg = json_flag("Print an object"), args = location_settings())]
    Diff {
        /// Server; all of them if none is named
        name: Option<String>,
        /// Only of these tools
        #[arg(value_name = "TOOL")]
        tools: Vec<String>,
    },
    /// Let code use the tools of a server as they are now
    #[command(arg = json_flag("Print an object"), args = location_settings())]
    Accept {
        /// Name of the server
        name: String,
        /// Only these tools
        #[arg(value_name = "TOOL")]
        tools: Vec<String>,
    },
    /// Use the servers that a project defines itself (`./.mcp.json`, `./mcp-servers`, `./cove.toml`)
    Trust(ProjectFolder),
    /// Stop using the servers that a project defines
    Untrust(ProjectFolder),
}

#[derive(Debug, Clone, PartialEq, clap::Args)]
#[command(args = location_settings())]
pub struct ProjectFolder {
    /// Directory of the project
    #[arg(value_name = "DIR", default_value = ".")]
    directory: PathBuf,
}

/// The settings that decide which files Cove reads and where it keeps tool lists.
pub(super) fn location_settings() -> impl Iterator<Item = Arg> {
    settings_named(&["config", "state-dir"])
}

/// The same, for commands that start servers.
pub(super) fn start_settings() -> impl Iterator<Item = Arg> {
    settings_named(&["config", "state-dir", "start-timeout", "secrets-helper", "tool-changes", "quarantine"])
}

/// The same, for commands that may ask a registry.
pub(super) fn registry_settings() -> impl Iterator<Item = Arg> {
    start_settings().chain(settings_named(&["registry"]))
}

/// Returns the text to print and the exit code. Remarks go to standard error at once.
pub fn run(command: ServersCommand, context: CommandContext) -> Result<(String, ExitCode), Failure> {
    let CommandContext { config, env, json } = context;
    let here = ServersContext::new(&config, &env);
    let text = match command {
        ServersCommand::List => list::render(&here, json, PrintStyle::of_stdout())?,
        ServersCommand::Search(args) => search::render(&here, &args, json, PrintStyle::of_stdout())?,
        ServersCommand::Add(added) => add::add(&here, &added)?,
        ServersCommand::Import(args) => return import::run(&here, &args, json),
        ServersCommand::Remove { name } => add::remove(&here, &name)?,
        ServersCommand::Refresh { names } => return refresh::run(&here, &names, json),
        ServersCommand::Requests => requests::render(&here, json, PrintStyle::of_stdout())?,
        ServersCommand::Approve(args) => requests::approve(&here, &args)?,
        ServersCommand::Refuse { name } => requests::refuse(&here, &name)?,
        ServersCommand::Login(args) => return login::login(&here, &args),
        ServersCommand::Logout { name } => login::logout(&here, &name)?,
        ServersCommand::Diff { name, tools } => diff::render(&here, name.as_deref(), &tools, json)?,
        ServersCommand::Accept { name, tools } => accept::accept(&here, &name, &tools, json)?,
        ServersCommand::Trust(project) => here.trust(&project.directory)?,
        ServersCommand::Untrust(project) => here.untrust(&project.directory)?,
    };
    Ok((text, ExitCode::SUCCESS))
}

/// The places to look for definitions, and the environment to look from.
pub(super) struct ServersContext {
    places: DefinitionPlaces,
    env: ProcessEnv,
    settings: UpstreamSettings,
    registry: RegistryAddress,
    secrets: SecretStore,
    pins: PinPolicy,
}

impl ServersContext {
    pub(super) fn new(config: &Config, env: &ProcessEnv) -> Self {
        let settings = UpstreamSettings {
            start_timeout: config.start_timeout,
            secrets: config.secret_store(env),
            failures: FailureRecords::new(config.server.state_dir.as_deref()),
            sign_ins: SignInRecords::new(config.server.state_dir.as_deref()),
            ..UpstreamSettings::from_env(env)
        };
        let places = DefinitionPlaces::new(config.file.clone(), config.server.state_dir.clone(), env);
        Self {
            places,
            env: env.clone(),
            settings,
            registry: config.registry.clone(),
            secrets: config.secret_store(env),
            pins: config.pins(),
        }
    }

    pub(super) fn definitions(&self) -> ServerDefinitions {
        ServerDefinitions::load(&self.places, &self.settings)
    }

    /// The folder of the files that `add` writes.
    pub(super) fn own_directory(&self) -> Option<&Path> {
        self.places.own_directory()
    }

    pub(super) fn secrets(&self) -> &SecretStore {
        &self.settings.secrets
    }

    /// True if there are tokens for a server, which [`Self::forget`] would revoke.
    pub(super) fn is_signed_in(&self, name: &str) -> bool {
        self.settings.sign_ins.is_signed_in(name)
    }

    /// Forgets the tools and failures of a server that has no definition any more, and signs out of it. `before` are the
    /// definitions from when it had one.
    pub(super) fn forget(&self, name: &str, before: &ServerDefinitions) {
        if let Some(catalog) = self.catalog() {
            catalog.remove(name);
        }
        self.settings.failures.clear(name);
        if self.is_signed_in(name) {
            print_remark(login::sign_out_of_removed(self, name, before));
        }
        self.settings.sign_ins.forget(name);
    }

    pub(super) fn state_dir(&self) -> Result<&Path, Failure> {
        self.places.state_dir.as_deref().ok_or_else(|| {
            Failure::operator("could not find a place to keep this")
                .because("there is no home directory, so there is no state directory")
                .with_hint("name one with `--state-dir`")
        })
    }

    /// The servers that the operator approved.
    fn approved(&self) -> ApprovedServers {
        let folder = self.places.own_directory().map(ApprovedServers::folder_beside);
        folder.map(|folder| ApprovedServers::load(&folder)).unwrap_or_default()
    }

    fn summaries(&self, definitions: ServerDefinitions) -> Vec<UpstreamSummary> {
        UpstreamPool::new(definitions, self.settings.clone()).summaries()
    }

    /// The catalog of tool lists from earlier runs, if there is a state directory.
    fn catalog(&self) -> Option<Catalog> {
        self.places.state_dir.as_deref().map(|state_dir| self.catalog_in(state_dir))
    }

    fn catalog_in(&self, state_dir: &Path) -> Catalog {
        Catalog::open(state_dir.join("catalog")).with_pins(PinStore::new(Some(state_dir), self.pins))
    }

    /// Finds a configured server by its name or alias.
    fn find_server(&self, name: &str) -> Result<UpstreamSummary, Failure> {
        let known = self.summaries(self.definitions());
        let found = known.iter().find(|summary| summary.name == name || summary.alias == name).cloned();
        found.ok_or_else(|| unknown_server_error(name, known.iter().map(|summary| summary.name.as_str())))
    }

    fn trust(&self, directory: &Path) -> Result<String, Failure> {
        let directory = self.env.cwd.join(directory);
        let fail = |cause: &str| {
            Err(Failure::usage(format!("could not trust `{}`", display_path(&directory)))
                .because(cause.to_owned())
                .with_hint("name the folder of a project"))
        };
        match directory.metadata() {
            Ok(metadata) if metadata.is_dir() => {}
            Ok(_) => return fail("it is not a directory"),
            Err(error) => return fail(&error.to_string()),
        }
        let state_dir = self.state_dir()?;
        let trusted = trust::trust(state_dir, &directory).map_err(|error| {
            let hint = write_hint(&error, "make the state directory writable for you");
            Failure::operator(format!("could not trust `{}`", display_path(&directory))).because(error).with_hint(hint)
        })?;
        let project = DefinitionPlaces { project: Some(trusted.clone()), ..self.places.clone() };
        let all = ServerDefinitions::load(&project, &self.settings);
        let own = all
            .servers
            .iter()
            .filter(|server| {
                let file = &server.origin.path;
                let folder = file.parent();
                // The user's own configuration folder may be inside the project.
                folder == Some(&trusted.join("mcp-servers"))
                    || (folder == Some(&trusted) && self.places.config.as_ref() != Some(file))
            })
            .map(|server| [format!("  {}", server.name), describe_launch(&server.launch)]);
        let own = render_table(own);
        let own = if own.is_empty() { "  none yet\n".to_owned() } else { own };
        let trusted = display_path(&trusted);
        Ok(format!("trusted `{trusted}`: where Cove is started there, it runs its servers too, as you:\n{own}"))
    }

    fn untrust(&self, directory: &Path) -> Result<String, Failure> {
        let directory = self.env.cwd.join(directory);
        // A directory that no longer exists can still be removed from the list.
        let directory = directory.canonicalize().unwrap_or(directory);
        let shown = display_path(&directory);
        let was_there = trust::distrust(self.state_dir()?, &directory).map_err(|error| {
            let hint = write_hint(&error, "make the state directory writable for you");
            Failure::operator(format!("could not take the trust from `{shown}`")).because(error).with_hint(hint)
        })?;
        Ok(match was_there {
            true => format!("`{shown}` is not trusted any more: its own servers are not used\n"),
            false => format!("`{shown}` was not trusted; nothing was changed\n"),
        })
    }
}

/// Returns the names of approved servers.
pub(super) fn approved_names(config: &Config, env: &ProcessEnv) -> Vec<String> {
    ServersContext::new(config, env).approved().servers.into_iter().map(|server| server.name).collect()
}

/// Returns the names of servers that code asks for.
pub(super) fn requested_names(config: &Config, _: &ProcessEnv) -> Vec<String> {
    let open = config.server.state_dir.as_deref().and_then(|state_dir| ServerRequests::new(state_dir).list().ok());
    open.unwrap_or_default().into_iter().map(|request| request.name).collect()
}

/// The command that Cove runs for a server, or its address, on one line. The text comes from the project.
fn describe_launch(launch: &ServerLaunch) -> String {
    match launch {
        ServerLaunch::Stdio { command, args, .. } => {
            let words: Vec<String> = [command].into_iter().chain(args).map(|word| describe_word(word)).collect();
            cut(&words.join(" "), MAX_SHOWN_COMMAND)
        }
        // The query may hold a secret.
        ServerLaunch::Http { url, .. } => describe_word(url.split('?').next().unwrap_or_default()),
    }
}

/// What a list says that has no server.
pub(super) const NO_SERVERS: &str = "no servers are configured; add one with `cove servers add NAME -- COMMAND`\n";

/// The configured servers, and what earlier runs learned about them.
pub(super) struct KnownServers {
    pub(super) summaries: Vec<UpstreamSummary>,
    /// What is wrong with definitions.
    pub(super) problems: Vec<DefinitionProblem>,
    untrusted: Vec<PathBuf>,
    /// What is wrong with stored tool lists, and with how secrets are passed.
    remarks: Vec<String>,
    catalog: Option<Catalog>,
}

impl KnownServers {
    /// Starts no server.
    pub(super) fn load(config: &Config, env: &ProcessEnv) -> Self {
        Self::load_from(&ServersContext::new(config, env))
    }

    fn load_from(here: &ServersContext) -> Self {
        let all = here.definitions();
        let (problems, untrusted) = (all.problems.clone(), all.untrusted.clone());
        let summaries = here.summaries(all);
        let catalog = here.catalog();
        let mut remarks = catalog.as_ref().map(|catalog| declare_servers(catalog, &summaries)).unwrap_or_default();
        remarks.extend(summaries.iter().flat_map(server_remarks));
        Self { summaries, problems, untrusted, remarks, catalog }
    }

    /// The tools that a server listed before; `None` if it never did.
    pub(super) fn tools(&self, server: &str) -> Option<Arc<ToolListing>> {
        self.catalog.as_ref()?.tools(server)
    }

    /// What a person has not accepted of a server.
    pub(super) fn pins(&self, server: &str) -> PinState {
        let view = self.catalog.as_ref().map(Catalog::view);
        view.and_then(|view| Some(view.find_server(server)?.pins.clone())).unwrap_or_default()
    }
}

/// The definitions of all configured servers. Starts no server.
pub(super) fn configured_servers(config: &Config, env: &ProcessEnv) -> Vec<ServerDefinition> {
    ServersContext::new(config, env).definitions().servers
}

/// Declares servers to a catalog, each with the tools that it listed before. Returns what is wrong with those lists.
fn declare_servers(catalog: &Catalog, summaries: &[UpstreamSummary]) -> Vec<String> {
    summaries.iter().filter_map(|summary| catalog.declare(summary.to_declaration())).collect()
}

/// What a person should know about a server, each with its name.
fn server_remarks(summary: &UpstreamSummary) -> impl Iterator<Item = String> {
    summary.remarks.iter().map(|remark| format!("`{}`: {remark}", summary.name))
}

fn check_server_name(name: &str) -> Result<(), Failure> {
    check_name(name).map_err(|cause| {
        Failure::usage(format!("could not use the name `{}`", display_value(name)))
            .because(cause)
            .with_hint("use letters, digits, `_`, `.` and `-`, such as `github` or `my-files`")
    })
}

/// Reports an unknown server, with the name that comes nearest to it.
pub(super) fn unknown_server_error<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Failure {
    Failure::usage(format!("could not find the server `{}`", display_value(name)))
        .because("no configuration defines it")
        .with_hint(match nearest(name, known) {
            Some(nearest) => format!("did you mean `{nearest}`? `cove servers list` shows all of them"),
            None => "`cove servers list` shows the servers that are configured".to_owned(),
        })
}
