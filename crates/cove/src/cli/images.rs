//! `cove images`: the approved images, those built in written out to be edited, and what containers need of them built
//! ahead of time or removed when nobody needs it any more.

mod build;
pub(super) mod connect;
mod list;
mod prune;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::builder::ValueParser;
use clap::{Arg, ArgMatches, Command};

use super::{json, json_flag, settings_of, texts};
use crate::config::{Config, Surroundings};
use crate::error::{Error, shown_path};
use crate::image::Problem;
use crate::image::export::export;

/// What the command line asks for, and where.
#[derive(Debug, Clone, PartialEq)]
pub struct Asked {
    pub what: What,
    pub config: Config,
    pub around: Surroundings,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    List { json: bool },
    Build { names: Vec<String> },
    Export { directory: PathBuf },
    Prune,
}

/// The settings that decide which images there are and what serves them.
const LISTING: [&str; 7] = ["backend", "network", "runtime", "image-dir", "pull", "allow-compose", "config"];
/// Those that decide what is built, and with what.
const BUILDING: [&str; 7] =
    ["backend", "network", "image-dir", "pull", "allow-compose", "allow-mount", "config"];

pub fn command() -> Command {
    let only =
        |names: &'static [&str]| settings_of(|_| true).filter(|arg| names.contains(&arg.get_id().as_str()));
    let every = settings_of(|_| true)
        .filter(|arg| LISTING.contains(&arg.get_id().as_str()) || BUILDING.contains(&arg.get_id().as_str()));
    Command::new("images")
        .about("Show, build and export the images that sessions can be started in")
        .subcommand_required(true)
        .args(every.map(|arg| arg.hide(true)))
        .subcommand(
            Command::new("list")
                .about("List every image with what serves it, and what is wrong with the rest")
                .arg(json_flag("Print one object"))
                .args(only(&LISTING)),
        )
        .subcommand(
            Command::new("build")
                .about("Build images now, so that no session has to wait for it")
                .arg(
                    Arg::new("name")
                        .value_name("NAME")
                        .help("Images to build; those that need a container if none is named")
                        .num_args(0..)
                        .value_parser(ValueParser::os_string()),
                )
                .args(only(&BUILDING)),
        )
        .subcommand(
            Command::new("export")
                .about("Write the images that are built in to a directory, to be edited and used with `--image-dir`")
                .arg(
                    Arg::new("directory")
                        .value_name("DIR")
                        .help("Directory to write to; nothing in it is overwritten")
                        .required(true)
                        .value_parser(ValueParser::path_buf()),
                ),
        )
        .subcommand(
            Command::new("prune")
                .about("Remove what was built from definitions that changed or are gone")
                .args(only(&BUILDING)),
        )
}

/// The program's own flag, for people who know it from elsewhere: the same as `cove images export DIR`.
pub(super) fn export_flag() -> Arg {
    Arg::new("export-images")
        .long("export-images")
        .value_name("DIR")
        .help("Write the images that are built in to a directory, and end")
        .value_parser(ValueParser::path_buf())
}

pub(super) fn asked(
    what: &str,
    own: &ArgMatches,
    config: Config,
    around: &Surroundings,
) -> Result<Asked, Error> {
    let directory = || own.get_one::<PathBuf>("directory").cloned().unwrap_or_default();
    let what = match what {
        "list" => What::List { json: json(own, around)? },
        "build" => What::Build { names: texts(own, "name")? },
        "export" => What::Export { directory: directory() },
        _ => What::Prune,
    };
    Ok(Asked { what, config, around: around.clone() })
}

/// What to print, and the exit code. Remarks go to standard error at once.
pub fn run(asked: Asked) -> Result<(String, ExitCode), Error> {
    let Asked { what, config, around } = asked;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::internal("could not start the runtime").because(error))?;
    let text = match what {
        What::List { json } => runtime.block_on(list::text(&config, &around, json))?,
        What::Build { names } => return runtime.block_on(build::run(&config, &around, &names)),
        What::Export { directory } => exported(&around.cwd.join(directory))?,
        What::Prune => runtime.block_on(prune::text(&config, &around))?,
    };
    Ok((text, ExitCode::SUCCESS))
}

/// An error where the directory of the images could not be read: then nothing is known of any of them.
fn of_the_whole(config: &Config, problems: &[Problem], could_not: &str) -> Result<(), Error> {
    let directory = config.images.dir.as_ref().map(|directory| shown_path(directory));
    let is_whole = |problem: &&Problem| Some(&problem.name) == directory.as_ref();
    match problems.iter().find(is_whole) {
        Some(problem) => Err(Error::usage(could_not.to_owned())
            .because(problem.problem.clone())
            .with_hint(problem.hint.clone())),
        None => Ok(()),
    }
}

fn exported(directory: &Path) -> Result<String, Error> {
    let written = export(directory)?;
    let shown = shown_path(directory);
    Ok(match written.is_empty() {
        true => format!("nothing to write: the images in `{shown}` are those that are built in\n"),
        false => format!("wrote {} to `{shown}`; use them with `--image-dir {shown}`\n", written.join(", ")),
    })
}
