//! Private folders for the files that Cove gives to Compose. Their names contain the identity of the process that
//! created them, so that a sweep can find and remove the folders of killed processes.

use cove_core::error::Failure;
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use tempfile::TempDir;

use super::super::process_identity::{MAX_CONTAINER_AGE, ProcessIdentity, ProcessLiveness};

const PREFIX: &str = "cove-compose-";
/// Replaces `/` between the parts of a `ProcessIdentity` in a file name.
const SEPARATOR: &str = "_";

/// Creates a folder that only this user can open. It is removed when dropped. Fails if the folder cannot be created.
pub(super) fn create() -> Result<TempDir, Failure> {
    tempfile::Builder::new()
        .prefix(&format!("{PREFIX}{}.", ProcessIdentity::current().to_string().replace('/', SEPARATOR)))
        .permissions(Permissions::from_mode(0o700))
        .tempdir()
        .map_err(|error| Failure::operator("could not make a private folder").because(error))
}

/// Removes the folders of Cove processes that were killed.
pub(in super::super) fn sweep() {
    for folder in abandoned_dirs(&std::env::temp_dir()) {
        tracing::info!(folder = %folder.display(), "removing a folder that was left behind");
        if let Err(error) = std::fs::remove_dir_all(&folder) {
            tracing::warn!(%error, folder = %folder.display(), "could not remove a folder that was left behind");
        }
    }
}

fn abandoned_dirs(place: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(place) else { return Vec::new() };
    let is_ours = |entry: &std::fs::DirEntry| {
        // Any user can create such names in the shared temporary folder, so the owner is checked too.
        let found = entry.metadata().ok()?;
        let whose = owner(entry.file_name().to_str()?)?;
        let age = SystemTime::now().duration_since(found.modified().ok()?).unwrap_or_default();
        let is_left = match whose.liveness() {
            ProcessLiveness::Alive => false,
            ProcessLiveness::Dead => true,
            ProcessLiveness::Unknown => age > MAX_CONTAINER_AGE,
        };
        (found.is_dir() && found.uid() == rustix::process::geteuid().as_raw() && is_left).then_some(())
    };
    entries.flatten().filter(|entry| is_ours(entry).is_some()).map(|entry| entry.path()).collect()
}

fn owner(name: &str) -> Option<ProcessIdentity> {
    let (instance, _) = name.strip_prefix(PREFIX)?.split_once('.')?;
    ProcessIdentity::parse(&instance.replace(SEPARATOR, "/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removes_only_directories_of_dead_processes() {
        let made = create().unwrap();
        let name = made.path().file_name().unwrap().to_str().unwrap().to_owned();
        assert_eq!(owner(&name), Some(ProcessIdentity::current()), "{name}");
        assert_eq!(made.path().metadata().unwrap().permissions().mode() & 0o777, 0o700);

        let place = tempfile::tempdir().unwrap();
        let (process, random) = name.split_once('.').unwrap();
        let (process, began) = process.rsplit_once(SEPARATOR).unwrap();
        let dead = format!("{process}{SEPARATOR}{}.{random}", began.parse::<u64>().unwrap() + 1);
        for folder in [name.as_str(), &dead, "cove-compose-other", "cove-compose-1_2_3_4.x", "other"] {
            std::fs::create_dir(place.path().join(folder)).unwrap();
        }
        std::os::unix::fs::symlink("/", place.path().join(format!("{dead}-link"))).unwrap();
        std::fs::write(place.path().join(format!("{dead}-file")), "").unwrap();
        assert_eq!(abandoned_dirs(place.path()), [place.path().join(&dead)]);
    }
}
