//! The command line: what it can say, and what one says. Flags of settings come from the table in `config`; their
//! values are read there, so that a wrong one is refused in the same words wherever it was written.

pub mod audit;
pub mod code;
pub mod completions;
pub mod config_show;
pub mod doctor;
pub mod explain;
pub mod images;
pub mod install;
mod live;
mod on_demand;
mod progress;
pub mod repl;
pub mod run;
pub mod serve;
pub mod servers;
mod shelf;
pub mod tools;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::ValueParser;
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Command};
use clap_complete::Shell;

use crate::config::{Config, Count, Flags, Part, SETTINGS, Surroundings, value};
use crate::error::{Error, shown};

pub use code::{CellSource, RunArgs};
pub use repl::{InputKind, ReplArgs};

/// What one command line asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Help or the version, for standard output.
    Print(String),
    Serve {
        config: Box<Config>,
        around: Box<Surroundings>,
    },
    Run {
        run: RunArgs,
        config: Config,
        around: Box<Surroundings>,
    },
    Repl {
        repl: ReplArgs,
        config: Config,
        around: Box<Surroundings>,
    },
    /// The profile of a container in which Cove itself runs.
    SeccompProfile,
    Explain {
        json: bool,
        config: Config,
        around: Box<Surroundings>,
    },
    Doctor {
        json: bool,
        config: Config,
        around: Box<Surroundings>,
    },
    ConfigShow {
        json: bool,
        config: Config,
    },
    Completions {
        shell: Shell,
    },
    Install(Box<install::Asked>),
    Tools {
        asked: tools::Asked,
        json: bool,
        config: Config,
        around: Box<Surroundings>,
    },
    Audit {
        asked: audit::Asked,
        config: Config,
    },
    Servers(Box<servers::Asked>),
    Images(Box<images::Asked>),
}

/// Reads a whole command line, the program's name first, together with the environment, the configuration file and
/// the code. Nothing is started, and every failure is of the usage kind.
pub fn parse(args: impl IntoIterator<Item = OsString>, around: &Surroundings) -> Result<Action, Error> {
    let matches = match command().try_get_matches_from(args) {
        Ok(matches) => matches,
        Err(asked) if matches!(asked.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            return Ok(Action::Print(asked.to_string()));
        }
        Err(wrong) => return Err(Error::usage(wrong.to_string().trim_end())),
    };
    let mut path = vec![&matches];
    let mut names = Vec::new();
    while let Some((name, below)) = path.last().and_then(|matches| matches.subcommand()) {
        names.push(name);
        path.push(below);
    }
    // The innermost command's own arguments.
    let own = path.last().copied().unwrap_or(&matches);
    let config = || Config::load(&flags(&path)?, around);
    if let Some(directory) = matches.get_one::<PathBuf>("export-images") {
        if let Some(command) = names.first() {
            return Err(Error::usage(format!("could not export images and `{command}` at once"))
                .with_hint("leave the command out, or say `cove images export DIR`"));
        }
        let what = images::What::Export { directory: directory.clone() };
        let asked = images::Asked { what, config: config()?, around: around.clone() };
        return Ok(Action::Images(Box::new(asked)));
    }
    match names.as_slice() {
        ["run"] => {
            let asked = code::Asked {
                file: own.get_one::<PathBuf>("file").cloned(),
                codes: texts(own, "code")?,
                args: texts(own, "args")?,
                language: one(own, "language")?,
            };
            let config = config()?;
            let run = code::load(asked, json(own, around)?, around)?;
            Ok(Action::Run { run, config, around: Box::new(around.clone()) })
        }
        ["repl"] => {
            let language = code::language(one(own, "language")?, None, around)?;
            let input = match around.stdin_is_terminal {
                false => InputKind::Pipe,
                true if is_plain(around.var("TERM")?) => InputKind::PlainTerminal,
                true => InputKind::Terminal,
            };
            let repl = ReplArgs { language, input, history: repl::history::path(around) };
            Ok(Action::Repl { repl, config: config()?, around: Box::new(around.clone()) })
        }
        ["explain"] if own.get_flag("seccomp-profile") => Ok(Action::SeccompProfile),
        ["explain"] => {
            let around_it = Box::new(around.clone());
            Ok(Action::Explain { config: config()?, json: json(own, around)?, around: around_it })
        }
        ["doctor"] => Ok(Action::Doctor {
            config: config()?,
            json: json(own, around)?,
            around: Box::new(around.clone()),
        }),
        ["config", "show"] => Ok(Action::ConfigShow { config: config()?, json: json(own, around)? }),
        ["completions"] => match own.get_one::<Shell>("shell") {
            Some(shell) => Ok(Action::Completions { shell: *shell }),
            None => Err(Error::internal("could not find the shell that the command line names")),
        },
        ["install"] => Ok(Action::Install(Box::new(install::asked_to_install(own, around)?))),
        ["uninstall"] => Ok(Action::Install(Box::new(install::asked_to_uninstall(own, around)?))),
        ["tools", verb] => {
            let (asked, json) = tools::asked(verb, own, around)?;
            Ok(Action::Tools { asked, json, config: config()?, around: Box::new(around.clone()) })
        }
        ["audit"] => Ok(Action::Audit { asked: audit::asked(own, around)?, config: config()? }),
        ["images", what] => Ok(Action::Images(Box::new(images::asked(what, own, config()?, around)?))),
        ["servers", what] => Ok(Action::Servers(Box::new(servers::asked(what, own, &config()?, around)?))),
        [] if around.stdin_is_terminal => Ok(Action::Print(command().render_help().to_string())),
        ["serve"] | [] => Ok(Action::Serve { config: Box::new(config()?), around: Box::new(around.clone()) }),
        unknown => Err(Error::internal(format!("could not find the command `{}`", unknown.join(" ")))),
    }
}

/// The definition that help, completions and parsing share.
pub fn command() -> Command {
    Command::new("cove")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Run code for AI agents in an isolated sandbox")
        .arg(images::export_flag())
        .args(all_settings())
        .subcommand(
            Command::new("serve")
                .about("Serve MCP: on standard input and output, or over HTTP")
                .args(all_settings()),
        )
        .subcommand(
            Command::new("run")
                .about("Run code in the sandbox that agents get")
                .arg(
                    Arg::new("file")
                        .value_name("FILE")
                        .help("File with the code of one cell")
                        .value_parser(ValueParser::path_buf()),
                )
                .arg(
                    Arg::new("code")
                        .short('c')
                        .value_name("CODE")
                        .help("Code of one cell; several share one session")
                        .action(ArgAction::Append)
                        .allow_hyphen_values(true)
                        .value_parser(ValueParser::os_string()),
                )
                .arg(language_flag(
                    "Language of the code\n[env: COVE_LANGUAGE] [default: by FILE's extension, else python]",
                ))
                .arg(json_flag("Print one JSON object for each cell"))
                .arg(
                    Arg::new("args")
                        .value_name("ARGS")
                        .help("Arguments that the code sees")
                        .last(true)
                        .num_args(0..)
                        .value_parser(ValueParser::os_string()),
                )
                .args(calling_settings()),
        )
        .subcommand(
            Command::new("repl")
                .about("Talk to a session by hand, or from a pipe")
                .arg(language_flag("Language of the first cells\n[env: COVE_LANGUAGE] [default: python]"))
                .args(calling_settings()),
        )
        .subcommand(
            Command::new("explain")
                .about("Show the exact plan of the sandbox, without starting it")
                .arg(json_flag("Print the plan as JSON"))
                .arg(
                    Arg::new("seccomp-profile")
                        .long("seccomp-profile")
                        .help("Print the system call profile for a container around Cove instead")
                        .action(ArgAction::SetTrue),
                )
                .args(settings()),
        )
        .subcommand(
            Command::new("doctor")
                .about("Show what works here and what does not, each proven by trying it")
                .arg(json_flag("Print an array of objects"))
                .args(settings()),
        )
        .subcommand(tools::command())
        .subcommand(audit::command())
        .subcommand(install::install_command())
        .subcommand(install::uninstall_command())
        .subcommand(servers::command())
        .subcommand(images::command())
        .subcommand(
            Command::new("config")
                .about("Show the configuration")
                .subcommand_required(true)
                .args(all_settings().map(|arg| arg.hide(true)))
                .subcommand(
                    Command::new("show")
                        .about("Show every setting with its value and where that comes from")
                        .arg(json_flag("Print an array of objects"))
                        .args(all_settings()),
                ),
        )
        .subcommand(
            Command::new("completions").about("Print the completions of a shell").arg(
                Arg::new("shell")
                    .value_name("SHELL")
                    .help("Shell to print them for")
                    .required(true)
                    .value_parser(clap::value_parser!(Shell)),
            ),
        )
}

/// A flag for each setting, and the one that names the file. They belong to every command that starts or describes a
/// sandbox and to the program itself, so that they may stand before or after the command.
fn settings() -> impl Iterator<Item = Arg> {
    settings_of(|part| part == Part::Sandbox)
}

/// The same, for commands whose code may call upstream servers.
fn calling_settings() -> impl Iterator<Item = Arg> {
    settings_of(|part| matches!(part, Part::Sandbox | Part::Calls))
}

/// The same and those of serving.
fn all_settings() -> impl Iterator<Item = Arg> {
    settings_of(|_| true)
}

fn settings_of(wanted: impl Fn(Part) -> bool + 'static) -> impl Iterator<Item = Arg> {
    let flag = |name: &'static str, placeholder: &'static str, help: String| {
        Arg::new(name)
            .long(name)
            .value_name(placeholder)
            .help(help)
            .help_heading("Settings")
            // Read by the setting, which says what would be right.
            .value_parser(ValueParser::os_string())
            .allow_negative_numbers(true)
    };
    let of_table = SETTINGS.iter().filter(move |setting| wanted(setting.part)).map(move |setting| {
        let help = format!("{}\n[env: {}] [default: {}]", setting.help, setting.env, setting.fallback.text());
        let heading = match setting.part {
            Part::Sandbox => "Settings",
            Part::Calls => "Settings of calls to MCP servers",
            Part::Server => "Settings of the server",
        };
        let arg = flag(setting.key, setting.placeholder, help).help_heading(heading);
        match setting.count {
            // The last one wins, so that an alias can be overridden.
            Count::One => arg.overrides_with(setting.key),
            Count::Many => arg.action(ArgAction::Append),
        }
    });
    let help = "File with settings\n[env: COVE_CONFIG] [default: ~/.config/cove/cove.toml]".to_owned();
    of_table.chain([flag("config", "FILE", help).overrides_with("config")])
}

fn language_flag(help: &'static str) -> Arg {
    Arg::new("language")
        .short('l')
        .long("language")
        .value_name("LANGUAGE")
        .help(help)
        .overrides_with("language")
        .value_parser(ValueParser::os_string())
}

fn json_flag(help: &'static str) -> Arg {
    Arg::new("json").long("json").help(format!("{help} [env: COVE_JSON]")).action(ArgAction::SetTrue)
}

/// A terminal that knows no way to move its cursor.
fn is_plain(term: Option<&str>) -> bool {
    matches!(term, None | Some("dumb"))
}

/// The settings along a path of commands, outermost first: the innermost value wins, repeated ones add up.
fn flags(path: &[&ArgMatches]) -> Result<Flags, Error> {
    let mut flags = Flags::default();
    // `completions` has no settings of its own.
    for matches in path.iter().filter(|matches| matches.try_contains_id("config").is_ok()) {
        if let Some(config) = one(matches, "config")? {
            flags.config = Some(config);
        }
        for setting in SETTINGS {
            if matches.try_contains_id(setting.key).is_err() {
                continue;
            }
            let values = texts(matches, setting.key)?;
            if values.is_empty() {
                continue;
            }
            let known = flags.values.entry(setting.key).or_default();
            match setting.count {
                Count::One => *known = values,
                Count::Many => known.extend(values),
            }
        }
    }
    Ok(flags)
}

fn texts(matches: &ArgMatches, id: &str) -> Result<Vec<String>, Error> {
    let text = |value: &OsString| {
        value.to_str().map(str::to_owned).ok_or_else(|| {
            Error::usage(format!("could not read `{}`", shown(&value.to_string_lossy())))
                .because("it is not valid UTF-8")
                .with_hint("write it as UTF-8 text")
        })
    };
    matches.get_many::<OsString>(id).unwrap_or_default().map(text).collect()
}

fn one(matches: &ArgMatches, id: &str) -> Result<Option<String>, Error> {
    Ok(texts(matches, id)?.pop())
}

fn json(own: &ArgMatches, around: &Surroundings) -> Result<bool, Error> {
    if own.get_flag("json") {
        return Ok(true);
    }
    let Some(text) = around.var("COVE_JSON")? else {
        return Ok(false);
    };
    value::boolean(text).map_err(|wrong| {
        Error::usage(format!("could not read `COVE_JSON={}`", shown(text)))
            .because(wrong.cause)
            .with_hint(wrong.hint)
    })
}

#[cfg(test)]
mod tests;
