//! `cove servers`: which upstream servers there are, and adding, removing, listing the tools of, and trusting them. Files
//! are read as the server reads them; only `refresh` starts anything.

mod add;
mod definition;
mod list;
mod refresh;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::catalog::Catalog;
use crate::config::Surroundings;
use crate::error::{Error, shown, shown_path};
use crate::upstream::definition::{Definitions, Places, check_name, trust};
use crate::upstream::{Settings, Summary, Upstreams};

pub use add::Added;
pub use definition::{asked, command};

/// What the command line asks for, and where.
#[derive(Debug, Clone, PartialEq)]
pub struct Asked {
    pub what: What,
    pub places: Places,
    pub around: Surroundings,
}

#[derive(Debug, Clone, PartialEq)]
pub enum What {
    List { json: bool },
    Add(Added),
    Remove { name: String },
    Refresh { names: Vec<String>, json: bool },
    Trust { directory: PathBuf },
    Untrust { directory: PathBuf },
}

/// What to print, and the exit code. Remarks go to standard error at once.
pub fn run(asked: Asked) -> Result<(String, ExitCode), Error> {
    let here = Here { places: asked.places, around: asked.around };
    let text = match asked.what {
        What::List { json } => list::text(&here, json)?,
        What::Add(added) => add::add(&here, &added)?,
        What::Remove { name } => add::remove(&here, &name)?,
        What::Refresh { names, json } => return refresh::run(&here, &names, json),
        What::Trust { directory } => here.trust(&directory)?,
        What::Untrust { directory } => here.untrust(&directory)?,
    };
    Ok((text, ExitCode::SUCCESS))
}

/// Where definitions are looked for, and by whom.
struct Here {
    places: Places,
    around: Surroundings,
}

impl Here {
    fn definitions(&self) -> Definitions {
        Definitions::load(&self.places, &Settings::of(&self.around))
    }

    fn state_dir(&self) -> Result<&Path, Error> {
        self.places.state_dir.as_deref().ok_or_else(|| {
            Error::operator("could not find a place to keep this")
                .because("there is no home directory, so there is no state directory")
                .with_hint("name one with `--state-dir`")
        })
    }

    /// What was listed in earlier runs, if there is a place for it.
    fn catalog(&self) -> Option<Catalog> {
        self.places.state_dir.as_ref().map(|state_dir| Catalog::open(state_dir.join("catalog")))
    }

    fn trust(&self, directory: &Path) -> Result<String, Error> {
        let directory = self.around.cwd.join(directory);
        let fail = |cause: &str| {
            Err(Error::usage(format!("could not trust `{}`", shown_path(&directory)))
                .because(cause.to_owned())
                .with_hint("name the folder of a project"))
        };
        match directory.metadata() {
            Ok(found) if found.is_dir() => {}
            Ok(_) => return fail("it is not a directory"),
            Err(error) => return fail(&error.to_string()),
        }
        let state_dir = self.state_dir()?;
        let trusted = trust::trust(state_dir, &directory).map_err(|error| {
            Error::operator(format!("could not trust `{}`", shown_path(&directory))).because(error)
        })?;
        let project = Places { project: Some(trusted.clone()), ..self.places.clone() };
        let all = Definitions::load(&project, &Settings::of(&self.around));
        let own: Vec<&str> = all
            .servers
            .iter()
            .filter(|server| {
                let file = &server.origin.path;
                let folder = file.parent();
                // The person's own folders may lie below the project.
                folder == Some(&trusted.join("mcp-servers"))
                    || (folder == Some(&trusted) && self.places.config.as_ref() != Some(file))
            })
            .map(|server| server.name.as_str())
            .collect();
        let own = if own.is_empty() { "none yet".to_owned() } else { own.join(", ") };
        let trusted = shown_path(&trusted);
        Ok(format!("trusted `{trusted}`: where Cove is started there, its servers are used too ({own})\n"))
    }

    fn untrust(&self, directory: &Path) -> Result<String, Error> {
        let directory = self.around.cwd.join(directory);
        // One that is gone can still be taken out of the list.
        let directory = directory.canonicalize().unwrap_or(directory);
        let shown = shown_path(&directory);
        let was_there = trust::distrust(self.state_dir()?, &directory).map_err(|error| {
            Error::operator(format!("could not take the trust from `{shown}`")).because(error)
        })?;
        Ok(match was_there {
            true => format!("`{shown}` is not trusted any more: its own servers are not used\n"),
            false => format!("`{shown}` was not trusted; nothing was changed\n"),
        })
    }
}

/// Makes servers known to a catalog, each with what was listed of it before. Says what is wrong with that.
fn declare(catalog: &Catalog, summaries: &[Summary]) -> Vec<String> {
    summaries.iter().filter_map(|summary| catalog.declare(summary.declared())).collect()
}

fn summaries(definitions: Definitions, around: &Surroundings) -> Vec<Summary> {
    Upstreams::new(definitions, Settings::of(around)).summaries()
}

fn checked(name: &str) -> Result<(), Error> {
    check_name(name).map_err(|cause| {
        Error::usage(format!("could not use the name `{}`", shown(name)))
            .because(cause)
            .with_hint("use letters, digits, `_`, `.` and `-`, such as `github` or `my-files`")
    })
}

/// A name that is not there, and the one that may be meant.
fn unknown<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Error {
    let near = |known: &&str| crate::config::distance(&known.to_lowercase(), &name.to_lowercase());
    let nearest = known.min_by_key(near).filter(|known| near(known) <= 1 + known.len() / 3);
    Error::usage(format!("could not find the server `{}`", shown(name)))
        .because("no configuration defines it")
        .with_hint(match nearest {
            Some(nearest) => format!("did you mean `{nearest}`? `cove servers list` shows all of them"),
            None => "`cove servers list` shows the servers that are configured".to_owned(),
        })
}

fn remark(text: &str) {
    // Standard error may be closed; a remark is not worth failing for.
    let _ = writeln!(std::io::stderr(), "{text}");
}
