//! `cove images`: lists the approved images, exports the built-in ones for editing, builds images ahead of time, and
//! removes builds that no definition needs any more.

mod build;
mod list;
mod prune;

use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

use clap::Arg;

use super::{CommandContext, all_settings, json_flag, runtime, settings_named};
use crate::config::Config;
use cove_core::error::{Failure, display_path};
use cove_core::image::ImageProblem;
use cove_core::image::export::export;

/// Show, build and export the images that sessions can be started in
#[derive(Debug, Clone, PartialEq, Eq, clap::Subcommand)]
pub enum ImagesCommand {
    /// List every image with what serves it, and what is wrong with the rest
    #[command(visible_alias = "ls", arg = json_flag("Print one object"), args = settings_named(LISTING))]
    List,
    /// Build images now, so that no session has to wait for it
    #[command(args = settings_named(BUILDING))]
    Build {
        /// Images to build; those that need a container if none is named
        #[arg(value_name = "NAME", num_args = 0..)]
        names: Vec<String>,
    },
    /// Export the built-in images to a directory, to edit them and use them with `--image-dir`
    Export {
        /// Directory to write to; nothing in it is overwritten
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
    /// Remove what was built from definitions that changed or are gone
    #[command(args = settings_named(BUILDING))]
    Prune,
}

/// The settings that decide which images exist and which backend runs them.
const LISTING: &[&str] = &["backend", "network", "runtime", "image-dir", "pull", "allow-compose", "config"];
/// The settings that decide what is built, and with which engine.
const BUILDING: &[&str] = &["backend", "network", "image-dir", "pull", "allow-compose", "allow-mount", "config"];

/// All settings that one of the commands has.
pub(super) fn image_settings() -> impl Iterator<Item = Arg> {
    all_settings().filter(|arg| [LISTING, BUILDING].concat().contains(&arg.get_id().as_str()))
}

/// Returns the text to print and the exit code. Remarks go to standard error at once.
pub fn run(command: ImagesCommand, context: &CommandContext) -> Result<(String, ExitCode), Failure> {
    let runtime = runtime::single_threaded()?;
    let text = match command {
        ImagesCommand::List => runtime.block_on(list::render(context))?,
        ImagesCommand::Build { names } => return runtime.block_on(build::run(&context.config, &context.env, &names)),
        ImagesCommand::Export { directory } => export_to(&context.env.cwd.join(directory), &context.env.cwd)?,
        ImagesCommand::Prune => runtime.block_on(prune::run(&context.config, &context.env))?,
    };
    Ok((text, ExitCode::SUCCESS))
}

/// Fails if Cove could not read the image directory, because then it knows nothing about any image.
fn check_image_dir(config: &Config, problems: &[ImageProblem], could_not: &str) -> Result<(), Failure> {
    let directory = config.images.dir.as_ref().map(|directory| display_path(directory));
    let is_whole = |problem: &&ImageProblem| Some(&problem.name) == directory.as_ref();
    match problems.iter().find(is_whole) {
        Some(problem) => {
            Err(Failure::usage(could_not.to_owned()).because(problem.problem.clone()).with_hint(problem.hint.clone()))
        }
        None => Ok(()),
    }
}

fn export_to(directory: &Path, cwd: &Path) -> Result<String, Failure> {
    let is_in_project = directory.starts_with(cwd) && !directory.components().any(|part| part == Component::ParentDir);
    let written = export(directory, if is_in_project { cwd } else { directory })?;
    let shown = display_path(directory);
    Ok(match written.is_empty() {
        true => format!("nothing to write: the images in `{shown}` are those that are built in\n"),
        false => format!("wrote {} to `{shown}`; use them with `--image-dir {shown}`\n", written.join(", ")),
    })
}
