//! The command line: its definition, and how one is parsed. Flags of settings come from the table in `config`, which
//! parses their values too, so that a bad value gets the same message wherever it was written.

pub mod audit;
pub mod code;
pub mod completions;
pub mod config_file;
pub mod config_show;
pub mod doctor;
pub mod explain;
mod help;
mod image_library;
pub mod images;
pub mod install;
mod kept_files;
mod lazy_broker;
mod live_output;
pub mod manual;
pub mod net;
mod network_checks;
pub mod packages;
mod progress_line;
pub mod repl;
pub mod run;
mod runtime;
mod script_folder;
pub mod secrets;
pub mod serve;
pub mod servers;
pub mod tables;
mod terminal_questions;
pub mod token;
pub mod tools;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::builder::{StyledStr, ValueParser};
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, CommandFactory, FromArgMatches, Parser, Subcommand, ValueHint};
use clap_complete::Shell;

use crate::config::{self, Config, SETTINGS, SettingFlags, SettingGroup, boolean};
use cove_core::error::{Failure, display_value};
use cove_core::process_env::ProcessEnv;

use help::HelpLength;

pub use code::{CellSource, RunArgs};
pub use repl::{InputKind, ReplArgs};

/// The exit code of a program that SIGINT ended, as shells have it.
const INTERRUPTED: u8 = 128 + 2;

/// The action that a command line asks for, with its parsed arguments.
#[derive(Debug, Clone, PartialEq)]
pub enum CliAction {
    /// Help or the version, for standard output.
    Print(StyledStr),
    Serve(Box<CommandContext>),
    Run(RunArgs, Box<CommandContext>),
    Repl(ReplArgs, Box<CommandContext>),
    /// The profile of a container in which Cove itself runs.
    SeccompProfile,
    Explain(Box<CommandContext>),
    Doctor(Box<CommandContext>),
    ConfigShow(Box<CommandContext>),
    ConfigPath(PathBuf),
    ConfigInit(PathBuf),
    Token(token::TokenArgs, Box<CommandContext>),
    Completions(Shell),
    Manual(PathBuf),
    Install(Box<install::InstallRequest>),
    Tools(tools::ToolsRequest, Box<CommandContext>),
    Audit(audit::AuditArgs, Box<CommandContext>),
    Servers(servers::ServersCommand, Box<CommandContext>),
    Secrets(secrets::SecretsCommand, Box<CommandContext>),
    Images(images::ImagesCommand, Box<CommandContext>),
    Packages(packages::PackagesCommand, Box<CommandContext>),
    Net(net::NetCommand, Box<CommandContext>),
}

/// The configuration and the environment that a command works with.
#[derive(Debug, Clone, PartialEq)]
pub struct CommandContext {
    pub config: Config,
    pub env: ProcessEnv,
    /// True if the command is to print JSON.
    pub json: bool,
}

/// Run code for AI agents in an isolated sandbox
#[derive(Parser)]
#[command(name = "cove", version = help::version(), styles = help::STYLES, args = all_settings())]
struct CommandLine {
    /// Export the built-in images to a directory and exit
    // For people who know the flag from other tools: the same as `cove images export DIR`.
    #[arg(long, value_name = "DIR")]
    export_images: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<CliCommand>,
}

#[derive(Subcommand)]
enum CliCommand {
    /// Serve MCP on standard input and output, or over HTTP
    #[command(args = all_settings())]
    Serve,
    Run(code::CodeArgs),
    Repl(ReplFlags),
    Explain(ExplainFlags),
    /// Test what works on this machine and what does not
    #[command(arg = json_flag("Print an array of objects"), args = sandbox_settings())]
    Doctor,
    #[command(subcommand, arg_required_else_help = false, args = hidden(broker_settings()))]
    Tools(tools::ToolsCommand),
    Audit(audit::AuditArgs),
    Install(install::InstallArgs),
    Uninstall(install::UninstallArgs),
    Entry(install::EntryArgs),
    #[command(subcommand, arg_required_else_help = false, args = hidden(servers::registry_settings()))]
    Servers(servers::ServersCommand),
    #[command(subcommand, arg_required_else_help = false, args = hidden(secrets::store_settings()))]
    Secrets(secrets::SecretsCommand),
    #[command(subcommand, arg_required_else_help = false, args = hidden(packages::package_settings()))]
    Packages(packages::PackagesCommand),
    #[command(subcommand, arg_required_else_help = false, args = hidden(images::image_settings()))]
    Images(images::ImagesCommand),
    #[command(subcommand, arg_required_else_help = false, args = hidden(sandbox_settings()))]
    Net(net::NetCommand),
    #[command(subcommand, arg_required_else_help = false, args = hidden(all_settings()))]
    Config(ConfigCommand),
    Token(token::TokenArgs),
    Completions(CompletionsFlags),
    /// Write the man pages into a folder
    #[command(hide = true)]
    Manual {
        /// Folder to write them into
        directory: PathBuf,
    },
}

/// Start an interactive session, or read cells from a pipe
#[derive(Args)]
#[command(args = call_settings())]
struct ReplFlags {
    /// Language of the first cells
    /// [env: COVE_LANGUAGE] [default: python]
    #[arg(short, long, overrides_with = "language", verbatim_doc_comment)]
    language: Option<String>,
}

/// Show the exact plan of the sandbox, without starting it
#[derive(Args)]
#[command(arg = json_flag("Print the plan as JSON").display_order(0), args = sandbox_settings())]
struct ExplainFlags {
    /// Print the system call profile for a container around Cove instead
    #[arg(long)]
    seccomp_profile: bool,
}

/// Show the settings, or write a file for them
#[derive(Subcommand)]
enum ConfigCommand {
    /// Show every setting with its value and where that comes from
    #[command(arg = json_flag("Print an array of objects"), args = all_settings())]
    Show,
    /// Print the path of the configuration file, whether or not it exists
    #[command(args = settings_named(&["config"]))]
    Path,
    /// Write a configuration file that describes every setting and changes none
    #[command(args = settings_named(&["config"]))]
    Init,
}

/// Print shell completions
#[derive(Args)]
#[command(after_help = COMPLETIONS_HELP)]
struct CompletionsFlags {
    /// Shell to print completions for
    shell: Shell,
}

const COMPLETIONS_HELP: &str = "\
Add one line to the file that your shell reads when it starts:
  bash        source <(cove completions bash)                      in ~/.bashrc
  zsh         source <(cove completions zsh)                       in ~/.zshrc, after compinit
  fish        cove completions fish | source                       in ~/.config/fish/config.fish
  elvish      eval (cove completions elvish | slurp)               in ~/.config/elvish/rc.elv
  powershell  cove completions powershell | Out-String | iex       in $PROFILE
The script asks `cove` at each Tab, so it knows your servers, tools, images and packages.";

/// Parses a whole command line, the program's name first, and reads the environment, the configuration file and the
/// code. Prints warnings about the file, and starts nothing. Every failure is a usage error.
pub fn parse_command_line(args: impl IntoIterator<Item = OsString>, env: &ProcessEnv) -> Result<CliAction, Failure> {
    let args: Vec<OsString> = args.into_iter().collect();
    let matches = match command().try_get_matches_from(&args) {
        Ok(matches) => matches,
        Err(help) if help.kind() == ErrorKind::DisplayHelp => {
            let whole = help::command(HelpLength::wanted(&args)).try_get_matches_from(&args);
            return Ok(CliAction::Print(whole.err().unwrap_or(help).render()));
        }
        Err(version) if version.kind() == ErrorKind::DisplayVersion => return Ok(CliAction::Print(version.render())),
        Err(error) if error.kind() == ErrorKind::InvalidUtf8 => return Err(not_utf8(invalid_value(&args))),
        Err(error) => return Err(Failure::usage(error.to_string().trim_end())),
    };
    let line = CommandLine::from_arg_matches(&matches)
        .map_err(|error| Failure::internal("could not read the command line").because(error))?;
    let path = command_path(&matches);
    // It has a log of its own.
    let is_server = matches!(line.command, None | Some(CliCommand::Serve));
    let context = || -> Result<Box<CommandContext>, Failure> {
        let config = Config::load(&collect_flags(&path)?, env)?;
        if !is_server {
            config.warnings.iter().for_each(|warning| tables::print_remark(format!("warning: {warning}")));
        }
        // The innermost command decides whether there is JSON to print.
        let flag = path.last().and_then(|own| own.try_get_one::<bool>("json").ok().flatten());
        let json = flag.is_some_and(|flag| *flag) || (flag.is_some() && wants_json(env)?);
        Ok(Box::new(CommandContext { config, env: env.clone(), json }))
    };
    // Without reading the file: `init` makes it.
    let config_path = || -> Result<PathBuf, Failure> {
        config::path(collect_flags(&path)?.config.as_deref(), env)?.ok_or_else(|| {
            Failure::usage("could not find a place for the configuration file")
                .because("there is no home directory")
                .with_hint("set `HOME` or `XDG_CONFIG_HOME`, or name a file with `--config`")
        })
    };
    if let Some(directory) = line.export_images {
        if let Some(command) = matches.subcommand_name() {
            return Err(Failure::usage(format!("could not export images and `{command}` at once"))
                .with_hint("leave the command out, or say `cove images export DIR`"));
        }
        return Ok(CliAction::Images(images::ImagesCommand::Export { directory }, context()?));
    }
    Ok(match line.command {
        None if env.stdin_is_terminal => CliAction::Print(help::command(HelpLength::Short).render_help()),
        None | Some(CliCommand::Serve) => CliAction::Serve(context()?),
        Some(CliCommand::Run(args)) => {
            let context = context()?;
            CliAction::Run(code::load_code(args, env)?, context)
        }
        Some(CliCommand::Repl(flags)) => {
            let language = code::choose_language(flags.language, None, None, env)?;
            let input = match env.stdin_is_terminal {
                false => InputKind::Pipe,
                true if is_plain_terminal(env.var("TERM")?) => InputKind::PlainTerminal,
                true => InputKind::Terminal,
            };
            let history = repl::history::path(env);
            CliAction::Repl(ReplArgs { language, input, history }, context()?)
        }
        Some(CliCommand::Explain(flags)) if flags.seccomp_profile => CliAction::SeccompProfile,
        Some(CliCommand::Explain(_)) => CliAction::Explain(context()?),
        Some(CliCommand::Doctor) => CliAction::Doctor(context()?),
        Some(CliCommand::Tools(command)) => CliAction::Tools(tools::parse_request(command)?, context()?),
        Some(CliCommand::Audit(args)) => CliAction::Audit(args, context()?),
        Some(CliCommand::Install(flags)) => {
            CliAction::Install(Box::new(install::install_request(flags, args.last().map(OsString::as_os_str), env)?))
        }
        Some(CliCommand::Uninstall(args)) => CliAction::Install(Box::new(install::uninstall_request(args, env)?)),
        Some(CliCommand::Entry(args)) => CliAction::Install(Box::new(install::entry_request(args, env)?)),
        Some(CliCommand::Servers(command)) => CliAction::Servers(command, context()?),
        Some(CliCommand::Secrets(command)) => CliAction::Secrets(command, context()?),
        Some(CliCommand::Packages(command)) => CliAction::Packages(command, context()?),
        Some(CliCommand::Net(command)) => CliAction::Net(command, context()?),
        Some(CliCommand::Images(command)) => CliAction::Images(command, context()?),
        Some(CliCommand::Config(ConfigCommand::Show)) => CliAction::ConfigShow(context()?),
        Some(CliCommand::Config(ConfigCommand::Path)) => CliAction::ConfigPath(config_path()?),
        Some(CliCommand::Config(ConfigCommand::Init)) => CliAction::ConfigInit(config_path()?),
        Some(CliCommand::Token(args)) => CliAction::Token(args, context()?),
        Some(CliCommand::Completions(flags)) => CliAction::Completions(flags.shell),
        Some(CliCommand::Manual { directory }) => CliAction::Manual(directory),
    })
}

/// The definition that help, completions and parsing share.
pub fn command() -> Command {
    CommandLine::command()
}

/// A flag for each setting of the sandbox, and `--config`. Every command that starts or describes a sandbox has them.
/// The program itself has them too, so that they can stand before or after the command.
fn sandbox_settings() -> impl Iterator<Item = Arg> {
    settings_where(|group| group == SettingGroup::Sandbox)
}

/// The same, for commands whose code may call upstream servers.
fn call_settings() -> impl Iterator<Item = Arg> {
    settings_where(|group| matches!(group, SettingGroup::Sandbox | SettingGroup::Calls))
}

/// The same, and the settings of the server.
fn all_settings() -> impl Iterator<Item = Arg> {
    settings_where(|_| true)
}

/// The settings of commands that call upstream servers without a sandbox.
fn broker_settings() -> impl Iterator<Item = Arg> {
    settings_where(|group| group == SettingGroup::Calls)
}

fn settings_named(names: &'static [&'static str]) -> impl Iterator<Item = Arg> {
    all_settings().filter(|arg| names.contains(&arg.get_id().as_str()))
}

/// Flags that a command accepts for its subcommands, and does not show in its own help.
fn hidden(args: impl Iterator<Item = Arg>) -> impl Iterator<Item = Arg> {
    args.map(|arg| arg.hide(true))
}

fn settings_where(wanted: impl Fn(SettingGroup) -> bool + 'static) -> impl Iterator<Item = Arg> {
    let flag = |name: &'static str, placeholder: &'static str, help: String| {
        Arg::new(name)
            .long(name)
            .value_name(placeholder)
            .help(help)
            .help_heading(help::SANDBOX_SETTINGS)
            // The setting parses the value, so that its error message can name the valid ones.
            .value_parser(ValueParser::os_string())
            .value_hint(match placeholder {
                "DIR" | "DIR[:rw]" => ValueHint::DirPath,
                "FILE" => ValueHint::FilePath,
                "PATH" | "SOURCE:TARGET[:rw]" => ValueHint::AnyPath,
                _ => ValueHint::Other,
            })
            .allow_negative_numbers(true)
    };
    let of_table = SETTINGS.iter().filter(move |setting| wanted(setting.group)).map(move |setting| {
        let help = format!("{}\n[env: {}] [default: {}]", setting.help, setting.env, setting.kind.default_text());
        let heading = match setting.group {
            SettingGroup::Sandbox => help::SANDBOX_SETTINGS,
            SettingGroup::Calls => help::CALL_SETTINGS,
            SettingGroup::Server => help::SERVER_SETTINGS,
        };
        let arg = flag(setting.key, setting.placeholder, help).help_heading(heading);
        // `--quarantine` alone switches it on.
        let arg = match setting.placeholder {
            "BOOLEAN" => arg.num_args(0..=1).default_missing_value("true"),
            _ => arg,
        };
        match setting.kind.is_list() {
            // The last one wins, so that an alias can be overridden.
            false => arg.overrides_with(setting.key),
            true => arg.action(ArgAction::Append),
        }
    });
    let help = "File with settings\n[env: COVE_CONFIG] [default: ~/.config/cove/cove.toml]".to_owned();
    of_table.chain([flag("config", "FILE", help).overrides_with("config")])
}

fn json_flag(help: &'static str) -> Arg {
    Arg::new("json").long("json").help(format!("{help} [env: COVE_JSON]")).action(ArgAction::SetTrue)
}

/// True for a terminal that cannot move its cursor.
fn is_plain_terminal(term: Option<&str>) -> bool {
    matches!(term, None | Some("dumb"))
}

/// The matches of each command of a line, outermost first.
fn command_path(matches: &ArgMatches) -> Vec<&ArgMatches> {
    std::iter::successors(Some(matches), |matches| matches.subcommand().map(|(_, below)| below)).collect()
}

/// Collects the settings along a path of commands, outermost first. The innermost value wins; lists add up.
fn collect_flags(path: &[&ArgMatches]) -> Result<SettingFlags, Failure> {
    let mut flags = SettingFlags::default();
    for matches in path {
        flags.config = text_values(matches, "config")?.pop().or(flags.config);
        for setting in SETTINGS {
            let values = text_values(matches, setting.key)?;
            match flags.values.get_mut(setting.key) {
                Some(outer) if setting.kind.is_list() => outer.extend(values),
                _ if values.is_empty() => {}
                _ => drop(flags.values.insert(setting.key, values)),
            }
        }
    }
    Ok(flags)
}

/// The values of a setting. Empty for a command that does not have it.
fn text_values(matches: &ArgMatches, id: &str) -> Result<Vec<String>, Failure> {
    let text = |value: &OsString| value.to_str().map(str::to_owned).ok_or_else(|| not_utf8(value));
    matches.try_get_many::<OsString>(id).ok().flatten().unwrap_or_default().map(text).collect()
}

fn not_utf8(value: &OsStr) -> Failure {
    Failure::usage(format!("could not read `{}`", display_value(&value.to_string_lossy())))
        .because("it is not valid UTF-8")
        .with_hint("write it as UTF-8 text")
}

/// The first value that is not valid UTF-8, without the flag that it is written to.
fn invalid_value(args: &[OsString]) -> &OsStr {
    let arg = args.iter().find(|arg| arg.to_str().is_none()).map(|arg| arg.as_bytes()).unwrap_or_default();
    let value = arg.split(|byte| *byte == b'=').nth(1).filter(|_| arg.starts_with(b"--"));
    OsStr::from_bytes(value.unwrap_or(arg))
}

/// Whether commands print JSON without the flag.
fn wants_json(env: &ProcessEnv) -> Result<bool, Failure> {
    let Some(text) = env.var("COVE_JSON")? else { return Ok(false) };
    boolean(text).map_err(|refusal| {
        Failure::usage(format!("could not read `COVE_JSON={}`", display_value(text)))
            .because(refusal.cause)
            .with_hint(refusal.hint)
    })
}

/// Reads a whole number from 1 to `most` that was written to a flag.
fn parse_count(flag: &str, text: Option<&str>, default: usize, most: usize) -> Result<usize, Failure> {
    let Some(text) = text else { return Ok(default) };
    text.parse().ok().filter(|count| (1..=most).contains(count)).ok_or_else(|| {
        Failure::usage(format!("could not read `--{flag} {}`", display_value(text)))
            .with_hint(format!("write a whole number from 1 to {most}"))
    })
}

#[cfg(test)]
mod tests;
