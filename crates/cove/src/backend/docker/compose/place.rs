//! Folders for the files that Compose is given, which only this user reads. They are named after the process that made
//! them, so that those of a process that was killed are known and removed.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use tempfile::TempDir;

use super::super::instance::{Instance, LIFE, Life};
use crate::backend::StartError;

const PREFIX: &str = "cove-compose-";
/// Between the parts of a process's name, as a file can have it.
const BETWEEN: &str = "_";

pub(super) fn make() -> Result<TempDir, StartError> {
    tempfile::Builder::new()
        .prefix(&format!("{PREFIX}{}.", Instance::own().to_string().replace('/', BETWEEN)))
        .permissions(Permissions::from_mode(0o700))
        .tempdir()
        .map_err(|error| StartError::new("could not make a private folder").because(error))
}

/// Removes what processes of ours left behind that were killed.
pub(in super::super) fn sweep() {
    for folder in left_behind(&std::env::temp_dir()) {
        tracing::info!(folder = %folder.display(), "removing a folder that was left behind");
        if let Err(error) = std::fs::remove_dir_all(&folder) {
            tracing::warn!(%error, folder = %folder.display(), "could not remove a folder that was left behind");
        }
    }
}

fn left_behind(place: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(place) else { return Vec::new() };
    let is_ours = |entry: &std::fs::DirEntry| {
        // Anybody may put names into a place that all share.
        let found = entry.metadata().ok()?;
        let whose = owner(entry.file_name().to_str()?)?;
        let age = SystemTime::now().duration_since(found.modified().ok()?).unwrap_or_default();
        let is_left = match whose.life() {
            Life::Alive => false,
            Life::Dead => true,
            Life::Elsewhere => age > LIFE,
        };
        (found.is_dir() && found.uid() == rustix::process::geteuid().as_raw() && is_left).then_some(())
    };
    entries.flatten().filter(|entry| is_ours(entry).is_some()).map(|entry| entry.path()).collect()
}

fn owner(name: &str) -> Option<Instance> {
    let (instance, _) = name.strip_prefix(PREFIX)?.split_once('.')?;
    Instance::parse(&instance.replace(BETWEEN, "/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_folders_of_the_dead_are_left_behind() {
        let made = make().unwrap();
        let name = made.path().file_name().unwrap().to_str().unwrap().to_owned();
        assert_eq!(owner(&name), Some(Instance::own()), "{name}");
        assert_eq!(made.path().metadata().unwrap().permissions().mode() & 0o777, 0o700);

        let place = tempfile::tempdir().unwrap();
        let (process, random) = name.split_once('.').unwrap();
        let (process, began) = process.rsplit_once(BETWEEN).unwrap();
        let dead = format!("{process}{BETWEEN}{}.{random}", began.parse::<u64>().unwrap() + 1);
        for folder in [name.as_str(), &dead, "cove-compose-other", "cove-compose-1_2_3_4.x", "other"] {
            std::fs::create_dir(place.path().join(folder)).unwrap();
        }
        std::os::unix::fs::symlink("/", place.path().join(format!("{dead}-link"))).unwrap();
        std::fs::write(place.path().join(format!("{dead}-file")), "").unwrap();
        assert_eq!(left_behind(place.path()), [place.path().join(&dead)]);
    }
}
