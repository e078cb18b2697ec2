//! Images in a directory of the operator's: one folder each, read anew whenever somebody asks, because the operator edits
//! them while the server runs. What cannot be used is told, and takes nothing else with it.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::definition::{self, Parts, Place};
use super::{Found, Image, Origin, Problem, Source, built_in};
use crate::backend::docker::compose;
use crate::config::ComposeRisk;
use crate::error::{shown, shown_path};

/// In the order in which Compose itself looks for them.
pub const COMPOSE_FILES: [&str; 4] =
    ["compose.yaml", "compose.yml", "docker-compose.yml", "docker-compose.yaml"];

/// Folders that are read; the rest are told.
const MAX_FOLDERS: usize = 256;
/// Entries that are looked at to find them.
const MAX_ENTRIES: usize = 4096;
const MAX_TOML: u64 = 64 * 1024;
const MAX_FILE: u64 = 1024 * 1024;
/// Longest name of an image.
const MAX_NAME: usize = 64;

/// All images in a directory, by name. `allowed` is what Compose files may have.
pub fn images(directory: &Path, allowed: &[ComposeRisk]) -> Found {
    let mut found = Found::default();
    let whole = shown_path(directory);
    let listed = directory.canonicalize().and_then(|real| Ok((folders(&real)?, real)));
    let ((mut names, is_cut), real) = match listed {
        Ok(listed) => listed,
        Err(error) => {
            found.problems.push(Problem::new(
                &whole,
                format!("could not read the directory of images `{whole}`: {error}"),
                "set `--image-dir` to a directory with a folder for each image; `cove images export DIR` makes one",
            ));
            return found;
        }
    };
    names.sort();
    if is_cut || names.len() > MAX_FOLDERS {
        found.problems.push(Problem::new(
            &whole,
            format!("could not read all images: there are more than {MAX_FOLDERS} folders or {MAX_ENTRIES} entries"),
            "move what is no image elsewhere",
        ));
    }
    for name in names.iter().take(MAX_FOLDERS) {
        match image(&real, name, allowed) {
            Ok(image) => found.images.push(image),
            Err(problem) => found.problems.push(problem),
        }
    }
    found
}

/// Names of folders and of links, which may lead to one. Whether some were left out.
fn folders(directory: &Path) -> io::Result<(Vec<String>, bool)> {
    let mut names = Vec::new();
    let mut entries = fs::read_dir(directory)?;
    for entry in entries.by_ref().take(MAX_ENTRIES) {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = entry.file_type()?;
        // A link to a plain file is as little an image as the file.
        let is_folder = kind.is_dir() || (kind.is_symlink() && !entry.path().is_file());
        if is_folder && !name.starts_with('.') {
            names.push(name);
        }
    }
    let is_cut = entries.next().is_some();
    Ok((names, is_cut))
}

fn image(directory: &Path, name: &str, allowed: &[ComposeRisk]) -> Result<Image, Problem> {
    check_name(name)?;
    let named = directory.join(name);
    let folder = inside(directory, &named).map_err(|why| {
        let hint = format!("put the folder itself into `{}`", shown_path(directory));
        Problem::new(name, format!("could not use the folder `{name}`: {why}"), hint)
    })?;
    if !folder.is_dir() {
        return Err(Problem::new(
            name,
            format!("could not use the folder `{name}`: it is a link that leads nowhere"),
            "remove it",
        ));
    }
    let folder = Folder { path: folder, name };
    let toml = folder.text(definition::FILE, MAX_TOML)?;
    let has_dockerfile = folder.text("Dockerfile", MAX_FILE)?.is_some();
    let mut compose = None;
    for file in COMPOSE_FILES {
        if let Some(text) = folder.text(file, MAX_FILE)? {
            compose = Some((file, text));
            break;
        }
    }
    let origin = if folder.is_exported() { Origin::Exported } else { Origin::Folder };
    let place = Place::Folder(folder.path);
    let image = definition::image(&Parts {
        name,
        toml: toml.as_deref(),
        has_dockerfile,
        compose: compose.as_ref().map(|(file, _)| *file),
        place,
        origin,
    })?;
    if let (Some((file, text)), Source::Compose { folder, main }) = (&compose, &image.recipe.source) {
        compose::first_look(text, folder, main.as_deref(), allowed).map_err(|wrong| {
            Problem::new(name, format!("could not use `{name}/{file}`: {}", wrong.cause), wrong.hint)
        })?;
    }
    Ok(image)
}

/// What Docker and Podman take for a name, so that what is built can carry it.
pub fn is_name(name: &str) -> bool {
    let is_letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let separators: Vec<&str> = name.split(is_letter).filter(|between| !between.is_empty()).collect();
    let allowed =
        |between: &&str| matches!(*between, "." | "_" | "__") || between.chars().all(|letter| letter == '-');
    (1..=MAX_NAME).contains(&name.len())
        && name.starts_with(is_letter)
        && name.ends_with(is_letter)
        && separators.iter().all(allowed)
}

fn check_name(name: &str) -> Result<(), Problem> {
    if is_name(name) {
        return Ok(());
    }
    Err(Problem::new(
        name,
        format!("could not use the folder `{}`: that is no name for an image", shown(name)),
        format!(
            "use lower-case letters, digits, and `-`, `_` or `.` between them, at most {MAX_NAME}, such as `data-tools`"
        ),
    ))
}

/// Where a path leads, if that is below `directory`.
fn inside(directory: &Path, path: &Path) -> Result<PathBuf, String> {
    match path.canonicalize() {
        Ok(real) if real.starts_with(directory) && real != directory => Ok(real),
        Ok(_) => Err("it is a link that leads out of its directory".into()),
        Err(error) => Err(error.to_string()),
    }
}

struct Folder<'a> {
    path: PathBuf,
    name: &'a str,
}

impl Folder<'_> {
    /// A file of this folder itself, within bounds; nothing if there is none.
    fn text(&self, file: &str, most: u64) -> Result<Option<String>, Problem> {
        let name = self.name;
        let path = self.path.join(file);
        let wrong = |why: String, hint: &str| {
            Err(Problem::new(name, format!("could not read `{name}/{file}`: {why}"), hint))
        };
        match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return wrong(error.to_string(), "make it readable for whoever runs Cove"),
            Ok(_) => {}
        }
        let real = match inside(&self.path, &path) {
            Ok(real) => real,
            Err(why) => return wrong(why, "put the file itself into the folder"),
        };
        // Neither a folder nor a pipe, which would be waited for.
        if !real.is_file() {
            return wrong("it is not a file".into(), "remove it, or put a file in its place");
        }
        let mut text = String::new();
        let read = fs::File::open(&real).and_then(|file| file.take(most + 1).read_to_string(&mut text));
        match read {
            Ok(_) if text.len() as u64 > most => {
                wrong(format!("it has more than {most} bytes"), "make it smaller")
            }
            Ok(_) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                wrong("it is not valid UTF-8".into(), "write it as UTF-8 text")
            }
            Err(error) => wrong(error.to_string(), "make it readable for whoever runs Cove"),
        }
    }

    /// Whether it is what `cove images export` writes, and nothing else.
    fn is_exported(&self) -> bool {
        let Some(built_in) = built_in::find(self.name) else { return false };
        let Ok(entries) = fs::read_dir(&self.path) else { return false };
        let same = |(file, text): &(&str, &str)| matches!(self.text(file, MAX_FILE), Ok(Some(found)) if found == *text);
        // One more than there should be is enough to know.
        entries.take(built_in.files.len() + 1).count() == built_in.files.len()
            && built_in.files.iter().all(same)
    }
}

#[cfg(test)]
mod tests;
