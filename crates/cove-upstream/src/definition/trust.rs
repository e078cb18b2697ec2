//! The directories whose server definitions the user trusts. A project may come from anywhere, and a definition is a
//! command that runs outside the sandbox.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const FILE: &str = "trusted";

/// The path of the list.
pub(super) fn file(state_dir: &Path) -> PathBuf {
    state_dir.join(FILE)
}

/// True if exactly this directory is in the list. Directories below it are not covered.
pub fn is_trusted(state_dir: &Path, directory: &Path) -> bool {
    let Ok(directory) = directory.canonicalize() else { return false };
    list(state_dir).is_ok_and(|known| known.contains(&directory))
}

/// The list, which has one directory per line. Empty if there is no file.
pub fn list(state_dir: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_to_string(state_dir.join(FILE)) {
        Ok(text) => Ok(text.lines().filter(|line| line.starts_with('/')).map(PathBuf::from).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Adds a directory by its path without links, and returns that path.
pub fn trust(state_dir: &Path, directory: &Path) -> io::Result<PathBuf> {
    let directory = directory.canonicalize()?;
    let line = directory.to_str().filter(|path| !path.contains('\n'));
    let line = line.ok_or_else(|| io::Error::other("its path is not a line of text"))?;
    if list(state_dir)?.contains(&directory) {
        return Ok(directory);
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(state_dir)?;
    let mut file = fs::OpenOptions::new().create(true).append(true).mode(0o600).open(state_dir.join(FILE))?;
    file.write_all(format!("{line}\n").as_bytes())?;
    Ok(directory)
}

/// Removes a directory from the list. Returns false if it was not there.
pub fn distrust(state_dir: &Path, directory: &Path) -> io::Result<bool> {
    // A directory that no longer exists can still be removed.
    let directory = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
    let known = list(state_dir)?;
    let left: Vec<&PathBuf> = known.iter().filter(|path| **path != directory).collect();
    if left.len() == known.len() {
        return Ok(false);
    }
    let text: String = left.iter().map(|path| format!("{}\n", path.display())).collect();
    let fresh = state_dir.join(format!("{FILE}.new"));
    let mut file = fs::OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&fresh)?;
    file.write_all(text.as_bytes())?;
    fs::rename(fresh, state_dir.join(FILE))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
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
        assert!(!is_trusted(&state, &project));
        assert_eq!(trust(&state, &link).unwrap(), project.canonicalize().unwrap());
        trust(&state, &project).unwrap();
        assert_eq!(list(&state).unwrap().len(), 1);
        assert!(is_trusted(&state, &project) && is_trusted(&state, &link));
        assert!(!is_trusted(&state, &below) && !is_trusted(&state, folder.path()));
        assert!(distrust(&state, &link).unwrap());
        assert!(!is_trusted(&state, &project) && !distrust(&state, &project).unwrap());
        assert!(trust(&state, &folder.path().join("missing")).is_err());
    }
}
