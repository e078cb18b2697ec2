//! The directories whose server definitions the user trusts. A project may come from anywhere, and a definition is a
//! command that runs outside the sandbox.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cove_core::document::read_limited;
use cove_core::private_file::{ExistingFile, lock_within, open_lock_file, open_private_file, write_private_file};

const FILE: &str = "trusted";
const MAX_FILE: u64 = 4 << 20;
/// How long a process waits for another one that changes the list.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// The path of the list.
pub(super) fn file(state_dir: &Path) -> PathBuf {
    state_dir.join(FILE)
}

/// True if exactly this directory is in the list. Directories below it are not covered. Fails if the list cannot be
/// read, or if another user could have written it.
pub fn is_trusted(state_dir: &Path, directory: &Path) -> io::Result<bool> {
    let known = list(state_dir)?;
    Ok(directory.canonicalize().is_ok_and(|directory| known.contains(&directory)))
}

/// The list, which has one directory per line. Empty if there is no file. Fails if another user could have written it.
pub fn list(state_dir: &Path) -> io::Result<Vec<PathBuf>> {
    let path = file(state_dir);
    match open_private_file(&path).map_err(|error| error.into_io(&path))? {
        Some(file) => {
            let text = read_limited(file, MAX_FILE)?;
            Ok(text.lines().filter(|line| line.starts_with('/')).map(PathBuf::from).collect())
        }
        None => Ok(Vec::new()),
    }
}

/// Changes the list with a function that returns its new text, or None if it stays.
fn change(state_dir: &Path, update: impl FnOnce(Vec<PathBuf>) -> Option<Vec<PathBuf>>) -> io::Result<bool> {
    // An unsafe list is refused before anything is created.
    list(state_dir)?;
    let lock = open_lock_file(&state_dir.join(".trusted.lock"))?;
    lock_within(&lock, LOCK_TIMEOUT)?;
    let Some(directories) = update(list(state_dir)?) else { return Ok(false) };
    let text: String = directories.iter().map(|path| format!("{}\n", path.display())).collect();
    write_private_file(&file(state_dir), text, ExistingFile::Replace)?;
    Ok(true)
}

/// Adds a directory by its path without links, and returns that path.
pub fn trust(state_dir: &Path, directory: &Path) -> io::Result<PathBuf> {
    let directory = directory.canonicalize()?;
    if directory.to_str().is_none_or(|path| path.contains('\n')) {
        return Err(io::Error::other("its path is not a line of text"));
    }
    let add = |mut known: Vec<PathBuf>| {
        let is_new = !known.contains(&directory);
        known.push(directory.clone());
        is_new.then_some(known)
    };
    change(state_dir, add)?;
    Ok(directory)
}

/// Removes a directory from the list. Returns false if it was not there.
pub fn distrust(state_dir: &Path, directory: &Path) -> io::Result<bool> {
    // A directory that no longer exists can still be removed.
    let directory = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
    let remove = |mut known: Vec<PathBuf>| {
        let count = known.len();
        known.retain(|path| *path != directory);
        (known.len() < count).then_some(known)
    };
    change(state_dir, remove)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_directory_is_trusted_alone_and_through_links() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let project = folder.path().join("project");
        let below = project.join("below");
        fs::create_dir_all(&below).unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&project, &link).unwrap();
        assert!(!is_trusted(&state, &project).unwrap());
        assert_eq!(trust(&state, &link).unwrap(), project.canonicalize().unwrap());
        trust(&state, &project).unwrap();
        assert_eq!(list(&state).unwrap().len(), 1);
        assert!(is_trusted(&state, &project).unwrap() && is_trusted(&state, &link).unwrap());
        assert!(!is_trusted(&state, &below).unwrap() && !is_trusted(&state, folder.path()).unwrap());
        assert!(distrust(&state, &link).unwrap());
        assert!(!is_trusted(&state, &project).unwrap() && !distrust(&state, &project).unwrap());
        assert!(trust(&state, &folder.path().join("missing")).is_err());
    }
}
