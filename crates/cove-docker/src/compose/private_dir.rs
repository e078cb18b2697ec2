//! Private folders for the files that Cove gives to Compose, and for the socket of a tunnel. They name the process that
//! created them, so that a sweep can find and remove the folders of killed processes.

use cove_core::document::read_limited;
use cove_core::error::Failure;
use cove_core::private_file::{ExistingFile, open_private_file, write_private_file};
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use tempfile::TempDir;

use super::super::process_identity::{MAX_CONTAINER_AGE, ProcessIdentity, ProcessLiveness};

const PREFIX: &str = "cove-compose-";
/// The path of a socket must be short, so such a folder has the identity in a file.
const SOCKET_PREFIX: &str = "cove-engine-";
const OWNER_FILE: &str = "owner";
/// More than an identity has.
const MAX_OWNER: u64 = 256;
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

/// The same, for a socket.
pub(in super::super) fn create_for_socket() -> io::Result<TempDir> {
    let mode = Permissions::from_mode(0o700);
    let folder = tempfile::Builder::new().prefix(SOCKET_PREFIX).permissions(mode).tempdir()?;
    let identity = ProcessIdentity::current().to_string();
    write_private_file(&folder.path().join(OWNER_FILE), identity, ExistingFile::Keep)?;
    Ok(folder)
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
        let found = entry.metadata().ok().filter(|found| found.is_dir())?;
        let whose = owner(entry.file_name().to_str()?).or_else(|| owner_in_file(&entry.path()))?;
        let age = SystemTime::now().duration_since(found.modified().ok()?).unwrap_or_default();
        let is_left = match whose.liveness() {
            ProcessLiveness::Alive => false,
            ProcessLiveness::Dead => true,
            ProcessLiveness::Unknown => age > MAX_CONTAINER_AGE,
        };
        (found.uid() == rustix::process::geteuid().as_raw() && is_left).then_some(())
    };
    entries.flatten().filter(|entry| is_ours(entry).is_some()).map(|entry| entry.path()).collect()
}

fn owner(name: &str) -> Option<ProcessIdentity> {
    let (instance, _) = name.strip_prefix(PREFIX)?.split_once('.')?;
    ProcessIdentity::parse(&instance.replace(SEPARATOR, "/"))
}

fn owner_in_file(folder: &Path) -> Option<ProcessIdentity> {
    folder.file_name()?.to_str()?.strip_prefix(SOCKET_PREFIX)?;
    let file = open_private_file(&folder.join(OWNER_FILE)).ok()??;
    ProcessIdentity::parse(read_limited(file, MAX_OWNER).ok()?.trim())
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

        // A tunnel of a dead process, and one of this process.
        let identity = |name: &str| owner(name).unwrap().to_string();
        for (folder, text) in [("cove-engine-dead", identity(&dead)), ("cove-engine-mine", identity(&name))] {
            let folder = place.path().join(folder);
            std::fs::create_dir(&folder).unwrap();
            std::fs::write(folder.join(OWNER_FILE), text).unwrap();
            std::fs::set_permissions(folder.join(OWNER_FILE), Permissions::from_mode(0o600)).unwrap();
        }
        let mut found = abandoned_dirs(place.path());
        found.sort();
        assert_eq!(found, [place.path().join(&dead), place.path().join("cove-engine-dead")]);
        let tunnel = create_for_socket().unwrap();
        assert_eq!(tunnel.path().metadata().unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(owner_in_file(tunnel.path()), Some(ProcessIdentity::current()));
    }
}
