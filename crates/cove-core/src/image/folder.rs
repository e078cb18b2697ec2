//! Reads the operator's directory of images, which has one folder for each. Every request reads it again, because the
//! operator edits it while the server runs. A folder that cannot be used is reported as a problem and does not affect
//! the others.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::definition::{self, ImageFolderParts, ImagePlace};
use super::{Image, ImageOrigin, ImageProblem, ImageSet, built_in};
use crate::error::{Refusal, display_path, display_value};
use crate::policy::{ComposeRisk, ImageSource};

/// The names of Compose files, in the order in which Compose itself looks for them.
pub const COMPOSE_FILES: [&str; 4] = ["compose.yaml", "compose.yml", "docker-compose.yml", "docker-compose.yaml"];

/// Checks the text of a Compose file. The arguments are the text, its folder, the service that runs the runner, and the
/// risks that the operator allows. The caller provides the check, because only the engine crate knows Compose.
pub type ComposeCheck = fn(&str, &Path, Option<&str>, &[ComposeRisk]) -> Result<(), Refusal>;

/// The number of folders that are read. If there are more, a problem says so.
const MAX_FOLDERS: usize = 256;
/// The number of directory entries that are examined.
const MAX_ENTRIES: usize = 4096;
const MAX_TOML: u64 = 64 * 1024;
const MAX_FILE: u64 = 1024 * 1024;
/// Longest name of an image.
const MAX_NAME: usize = 64;

/// Returns all images in a directory, sorted by name. `allowed` has the risks that Compose files may take.
pub fn read_images(directory: &Path, allowed: &[ComposeRisk], check: ComposeCheck) -> ImageSet {
    let mut set = ImageSet::default();
    let whole = display_path(directory);
    let listed = directory.canonicalize().and_then(|real| Ok((folder_names(&real)?, real)));
    let ((mut names, is_cut), real) = match listed {
        Ok(listed) => listed,
        Err(error) => {
            let hint =
                "set `--image-dir` to a directory with a folder for each image; `cove images export DIR` makes one";
            let problem = format!("could not read the directory of images `{whole}`: {error}");
            set.problems.push(ImageProblem::new(&whole, problem, hint));
            return set;
        }
    };
    names.sort();
    if is_cut || names.len() > MAX_FOLDERS {
        set.problems.push(ImageProblem::new(
            &whole,
            format!("could not read all images: there are more than {MAX_FOLDERS} folders or {MAX_ENTRIES} entries"),
            "move what is no image elsewhere",
        ));
    }
    for name in names.iter().take(MAX_FOLDERS) {
        set.add(name, read_image(&real, name, allowed, check));
    }
    set
}

/// Returns the names of folders and of links, except links to files, and whether some entries were left out.
fn folder_names(directory: &Path) -> io::Result<(Vec<String>, bool)> {
    let mut names = Vec::new();
    let mut entries = fs::read_dir(directory)?;
    for entry in entries.by_ref().take(MAX_ENTRIES) {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = entry.file_type()?;
        // Files are ignored, and so are links to files. A broken link is kept, so that it is reported.
        let is_folder = kind.is_dir() || (kind.is_symlink() && !entry.path().is_file());
        if is_folder && !name.starts_with('.') {
            names.push(name);
        }
    }
    let is_cut = entries.next().is_some();
    Ok((names, is_cut))
}

/// Returns the image that a folder defines. The cause of a refusal says which file or folder is wrong.
fn read_image(directory: &Path, name: &str, allowed: &[ComposeRisk], check: ComposeCheck) -> Result<Image, Refusal> {
    let unusable = |why: &str, hint: String| {
        Refusal::new(format!("could not use the folder `{}`: {why}", display_value(name)), hint)
    };
    if !is_valid_name(name) {
        let hint = format!(
            "use lower-case letters, digits, and `-`, `_` or `.` between them, at most {MAX_NAME}, such as `data-tools`"
        );
        return Err(unusable("that is no name for an image", hint));
    }
    let folder = resolve_inside(directory, &directory.join(name))
        .map_err(|why| unusable(&why, format!("put the folder itself into `{}`", display_path(directory))))?;
    if !folder.is_dir() {
        return Err(unusable("it is a link that leads nowhere", "remove it".into()));
    }
    let folder = ImageFolder { path: folder, name };
    let toml = folder.read_text(definition::FILE, MAX_TOML)?;
    let has_dockerfile = folder.read_text("Dockerfile", MAX_FILE)?.is_some();
    let mut compose = None;
    for file in COMPOSE_FILES {
        if let Some(text) = folder.read_text(file, MAX_FILE)? {
            compose = Some((file, text));
            break;
        }
    }
    let origin = if folder.is_exported() { ImageOrigin::Exported } else { ImageOrigin::Folder };
    let place = ImagePlace::Folder(folder.path);
    let image = definition::image(&ImageFolderParts {
        name,
        toml: toml.as_deref(),
        has_dockerfile,
        compose: compose.as_ref().map(|(file, _)| *file),
        place,
        origin,
    })?;
    if let (Some((file, text)), ImageSource::Compose { folder, main }) = (&compose, &image.recipe.source) {
        let checked = check(text, folder, main.as_deref(), allowed);
        checked.map_err(|wrong| Refusal::new(format!("could not use `{name}/{file}`: {}", wrong.cause), wrong.hint))?;
    }
    Ok(image)
}

/// True if Docker and Podman accept the name, so that a built image can be tagged with it.
pub fn is_valid_name(name: &str) -> bool {
    let is_letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let separators: Vec<&str> = name.split(is_letter).filter(|between| !between.is_empty()).collect();
    let allowed = |between: &&str| matches!(*between, "." | "_" | "__") || between.chars().all(|letter| letter == '-');
    (1..=MAX_NAME).contains(&name.len())
        && name.starts_with(is_letter)
        && name.ends_with(is_letter)
        && separators.iter().all(allowed)
}

/// Returns the real path. Fails if it is not below `directory` or does not exist.
fn resolve_inside(directory: &Path, path: &Path) -> Result<PathBuf, String> {
    match path.canonicalize() {
        Ok(real) if real.starts_with(directory) && real != directory => Ok(real),
        Ok(_) => Err("it is a link that leads out of its directory".into()),
        Err(error) => Err(error.to_string()),
    }
}

struct ImageFolder<'a> {
    path: PathBuf,
    name: &'a str,
}

impl ImageFolder<'_> {
    /// Returns the text of a file in this folder, or None if there is no such file. Fails if it is too long, is not
    /// UTF-8, is not a regular file, or is a link out of the folder.
    fn read_text(&self, file: &str, most: u64) -> Result<Option<String>, Refusal> {
        let name = self.name;
        let path = self.path.join(file);
        let wrong = |why: String, hint: &str| Err(Refusal::new(format!("could not read `{name}/{file}`: {why}"), hint));
        match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return wrong(error.to_string(), "make it readable for the user that runs Cove"),
            Ok(_) => {}
        }
        let real = match resolve_inside(&self.path, &path) {
            Ok(real) => real,
            Err(why) => return wrong(why, "put the file itself into the folder"),
        };
        // A folder cannot be read as text, and opening a pipe would block.
        if !real.is_file() {
            return wrong("it is not a file".into(), "remove it, or put a file in its place");
        }
        let mut text = String::new();
        let read = fs::File::open(&real).and_then(|file| file.take(most + 1).read_to_string(&mut text));
        match read {
            Ok(_) if text.len() as u64 > most => wrong(format!("it has more than {most} bytes"), "make it smaller"),
            Ok(_) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                wrong("it is not valid UTF-8".into(), "write it as UTF-8 text")
            }
            Err(error) => wrong(error.to_string(), "make it readable for the user that runs Cove"),
        }
    }

    /// True if the folder has exactly the files that `cove images export` writes.
    fn is_exported(&self) -> bool {
        let Some(built_in) = built_in::find(self.name) else { return false };
        let Ok(entries) = fs::read_dir(&self.path) else { return false };
        let same =
            |(file, text): &(&str, &str)| matches!(self.read_text(file, MAX_FILE), Ok(Some(found)) if found == *text);
        // Counting one entry more than expected is enough.
        entries.take(built_in.files.len() + 1).count() == built_in.files.len() && built_in.files.iter().all(same)
    }
}

#[cfg(test)]
mod tests;
