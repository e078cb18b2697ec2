//! `cove servers`: lists, adds, removes, refreshes and trusts upstream servers. It reads the same files as the server
//! does, and only `refresh` starts a server.

mod add;
mod list;
mod refresh;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Arg;

use super::tables::{PrintStyle, render_table};
use super::{CommandContext, json_flag, settings_named};
use crate::config::Config;
use cove_core::error::{Failure, display_path, display_value, escape_control};
use cove_core::process_env::ProcessEnv;
use cove_core::spelling::nearest;
use cove_core::text::{cut, is_invisible};
use cove_upstream::catalog::{Catalog, ToolListing};
use cove_upstream::definition::{DefinitionPlaces, ServerDefinitions, ServerLaunch, check_name, trust};
use cove_upstream::pool::{DefinitionProblem, FailureRecords, UpstreamPool, UpstreamSettings, UpstreamSummary};

pub use add::NewServer;

/// Most bytes of a command that `trust` shows.
const MAX_SHOWN_COMMAND: usize = 4_000;

/// Show and change the upstream servers that code can call
#[derive(Debug, Clone, PartialEq, clap::Subcommand)]
pub enum ServersCommand {
    /// List every server with its state and where it is defined, and what is wrong with the rest
    #[command(visible_alias = "ls", arg = json_flag("Print one object"), args = location_settings())]
    List,
    Add(NewServer),
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
    settings_named(&["config", "state-dir", "start-timeout"])
}

/// Returns the text to print and the exit code. Remarks go to standard error at once.
pub fn run(command: ServersCommand, context: CommandContext) -> Result<(String, ExitCode), Failure> {
    let CommandContext { config, env, json } = context;
    let here = ServersContext::new(&config, &env);
    let text = match command {
        ServersCommand::List => list::render(&here, json, PrintStyle::of_stdout())?,
        ServersCommand::Add(added) => add::add(&here, &added)?,
        ServersCommand::Remove { name } => add::remove(&here, &name)?,
        ServersCommand::Refresh { names } => return refresh::run(&here, &names, json),
        ServersCommand::Trust(project) => here.trust(&project.directory)?,
        ServersCommand::Untrust(project) => here.untrust(&project.directory)?,
    };
    Ok((text, ExitCode::SUCCESS))
}

/// The places to look for definitions, and the environment to look from.
struct ServersContext {
    places: DefinitionPlaces,
    env: ProcessEnv,
    settings: UpstreamSettings,
}

impl ServersContext {
    fn new(config: &Config, env: &ProcessEnv) -> Self {
        let settings = UpstreamSettings {
            start_timeout: config.start_timeout,
            failures: FailureRecords::new(config.server.state_dir.as_deref()),
            ..UpstreamSettings::from_env(env)
        };
        let places = DefinitionPlaces::new(config.file.clone(), config.server.state_dir.clone(), env);
        Self { places, env: env.clone(), settings }
    }

    fn definitions(&self) -> ServerDefinitions {
        ServerDefinitions::load(&self.places, &self.settings)
    }

    fn state_dir(&self) -> Result<&Path, Failure> {
        self.places.state_dir.as_deref().ok_or_else(|| {
            Failure::operator("could not find a place to keep this")
                .because("there is no home directory, so there is no state directory")
                .with_hint("name one with `--state-dir`")
        })
    }

    fn summaries(&self, definitions: ServerDefinitions) -> Vec<UpstreamSummary> {
        UpstreamPool::new(definitions, self.settings.clone()).summaries()
    }

    /// The catalog of tool lists from earlier runs, if there is a state directory.
    fn catalog(&self) -> Option<Catalog> {
        self.places.state_dir.as_ref().map(|state_dir| Catalog::open(state_dir.join("catalog")))
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
            Failure::operator(format!("could not trust `{}`", display_path(&directory))).because(error)
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
        let was_there = trust::distrust(self.state_dir()?, &directory)
            .map_err(|error| Failure::operator(format!("could not take the trust from `{shown}`")).because(error))?;
        Ok(match was_there {
            true => format!("`{shown}` is not trusted any more: its own servers are not used\n"),
            false => format!("`{shown}` was not trusted; nothing was changed\n"),
        })
    }
}

/// The command that Cove runs for a server, or its address, on one line. The text comes from the project.
fn describe_launch(launch: &ServerLaunch) -> String {
    let word = |word: &str| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "@%+=:,./_-${}".contains(c);
        let shown: String = word.chars().filter(|c| !is_invisible(*c)).collect();
        let shown = escape_control(&shown);
        if !word.is_empty() && word.chars().all(is_plain) { shown } else { format!("'{shown}'") }
    };
    match launch {
        ServerLaunch::Stdio { command, args, .. } => {
            let words: Vec<String> = [command].into_iter().chain(args).map(|one| word(one)).collect();
            cut(&words.join(" "), MAX_SHOWN_COMMAND)
        }
        // The query may hold a secret.
        ServerLaunch::Http { url, .. } => word(url.split('?').next().unwrap_or_default()),
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
    /// What is wrong with stored tool lists.
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
        let remarks = catalog.as_ref().map(|catalog| declare_servers(catalog, &summaries)).unwrap_or_default();
        Self { summaries, problems, untrusted, remarks, catalog }
    }

    /// The tools that a server listed before; `None` if it never did.
    pub(super) fn tools(&self, server: &str) -> Option<Arc<ToolListing>> {
        self.catalog.as_ref()?.tools(server)
    }
}

/// Declares servers to a catalog, each with the tools that it listed before. Returns what is wrong with those lists.
fn declare_servers(catalog: &Catalog, summaries: &[UpstreamSummary]) -> Vec<String> {
    summaries.iter().filter_map(|summary| catalog.declare(summary.to_declaration())).collect()
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
