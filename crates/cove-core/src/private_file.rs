//! Files for one person alone: written as a whole or not at all, readable by their owner only, refused if others could
//! have read or replaced them, and locked while a process changes them. Every file of the state directory is opened
//! here, because each of them grants something: a trusted project, a token, a tool that was accepted.

mod folder_owner;

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use tempfile::NamedTempFile;

use crate::document::is_missing;
use crate::error::{display_path, hinted_io_error};

pub use folder_owner::check_path;

/// How the names of unfinished files begin: with a dot, so that no reader takes one for a definition.
pub const UNFINISHED: &str = ".new-";
/// No process writes a file for this long.
const ABANDONED_AGE: Duration = Duration::from_secs(3600);
/// How often a lock is tried that another process holds.
const LOCK_INTERVAL: Duration = Duration::from_millis(10);

/// What happens to a file that is already there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExistingFile {
    Keep,
    Replace,
}

/// Why a file is not used.
#[derive(Debug, thiserror::Error)]
pub enum UnsafeFileError {
    #[error("it is a symbolic link")]
    Link,
    #[error("it is not a regular file")]
    NotAFile,
    #[error("it belongs to user {owner}, and this is user {user}")]
    OtherOwner { owner: u32, user: u32 },
    #[error("others may use it: its mode is {mode:03o}")]
    OpenToOthers { mode: u32 },
    #[error("others may replace it: its directory `{}` is not yours alone: its mode is {mode:03o}", display_path(.folder))]
    SharedFolder { folder: PathBuf, owner: u32, mode: u32 },
    #[error("others may replace it: `{}` on its path belongs to user {owner}, and this is user {user}", display_path(.folder))]
    OtherFolderOwner { folder: PathBuf, owner: u32, user: u32 },
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl UnsafeFileError {
    /// Returns what the operator can do about a file that is refused.
    pub fn hint(&self, path: &Path) -> String {
        let name = display_path(path);
        match self {
            Self::Link => format!("replace `{name}` with the file itself"),
            Self::NotAFile => format!("move `{name}` away"),
            Self::OtherOwner { user, .. } => format!("`chown {user} {name}`, or remove it if it is not yours"),
            Self::OpenToOthers { .. } => format!("look at what is in it, then `chmod 600 {name}`"),
            Self::SharedFolder { folder, owner, .. } if *owner == rustix::process::geteuid().as_raw() => {
                format!("`chmod go-w {}`, or name another place", display_path(folder))
            }
            // Such as a volume of Kubernetes: a person inside cannot change it.
            Self::SharedFolder { folder, owner, .. } => format!(
                "name another place, or have user {owner}, its owner, run `chmod +t {}`, for a volume in an init container",
                display_path(folder)
            ),
            Self::OtherFolderOwner { folder, .. } => {
                format!("name a place that is yours; `{}` is not", display_path(folder))
            }
            Self::Io(_) => format!("make `{name}` readable and writable for you"),
        }
    }

    /// Returns the error unless the file could not be looked at: what cannot be read grants nothing.
    pub fn ignore_io(self) -> Result<(), Self> {
        if matches!(self, Self::Io(_)) { Ok(()) } else { Err(self) }
    }

    /// Returns an error that keeps the hint for `write_hint`.
    pub fn into_io(self, path: &Path) -> io::Error {
        match self {
            Self::Io(error) => error,
            error => {
                let hint = error.hint(path);
                hinted_io_error(error, hint)
            }
        }
    }
}

/// Creates a folder that only its owner can use, and the folders above it. Leaves an existing one as it is.
pub fn create_private_folder(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Writes a file that survives a crash, and its folder if there is none. Fails with `AlreadyExists` if a file is there
/// that is to be kept, and if another user could replace the file.
pub fn write_private_file(path: &Path, content: impl AsRef<[u8]>, existing: ExistingFile) -> io::Result<()> {
    check_path(folder_of(path)).map_err(|error| error.into_io(path))?;
    write_whole_file(path, content, existing)
}

/// Like [`write_private_file`], also where others may replace the file.
pub fn write_whole_file(path: &Path, content: impl AsRef<[u8]>, existing: ExistingFile) -> io::Result<()> {
    let fresh = write_unfinished(path, content.as_ref())?;
    fresh.as_file().sync_all()?;
    let written = match existing {
        ExistingFile::Keep => fresh.persist_noclobber(path),
        ExistingFile::Replace => fresh.persist(path),
    };
    written.map_err(|error| error.error)?;
    // The rename is on disk only when the folder is. Some file systems cannot sync folders.
    let _ = File::open(folder_of(path)).and_then(|folder| folder.sync_all());
    Ok(())
}

/// Replaces a file that may be lost in a crash, and creates its folder if there is none.
pub fn write_cached_file(path: &Path, content: impl AsRef<[u8]>) -> io::Result<()> {
    write_unfinished(path, content.as_ref())?.persist(path).map(drop).map_err(|error| error.error)
}

/// A temporary file is readable by its owner only from its creation on.
fn write_unfinished(path: &Path, content: &[u8]) -> io::Result<NamedTempFile> {
    let folder = folder_of(path);
    create_private_folder(folder)?;
    // Processes that were killed while they wrote left theirs.
    remove_unfinished(folder, ABANDONED_AGE);
    let mut fresh = tempfile::Builder::new().prefix(UNFINISHED).tempfile_in(folder)?;
    fresh.write_all(content)?;
    Ok(fresh)
}

/// Removes what killed processes left in one of Cove's own folders: unfinished files that are at least this old. If a
/// file cannot be removed, the next call tries again.
pub fn remove_unfinished(folder: &Path, age: Duration) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let modified = entry.metadata().and_then(|metadata| metadata.modified());
        let is_old = age.is_zero() || modified.is_ok_and(|at| at.elapsed().is_ok_and(|elapsed| elapsed >= age));
        if is_old && entry.file_name().as_encoded_bytes().starts_with(UNFINISHED.as_bytes()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Opens a file to read it. Returns `None` if there is none. Fails if it is not a regular file of this user that only
/// this user can use, or if others could put a file in its place.
pub fn open_private_file(path: &Path) -> Result<Option<File>, UnsafeFileError> {
    match open_checked(path, OpenOptions::new().read(true)) {
        Err(UnsafeFileError::Io(error)) if is_missing(&error) => Ok(None),
        opened => opened.map(Some),
    }
}

/// Opens a file to append to it and to read its end, and creates it and its folder if they are missing. Fails like
/// [`open_private_file`].
pub fn open_private_append(path: &Path) -> Result<File, UnsafeFileError> {
    check_own_folder(folder_of(path))?;
    create_private_folder(folder_of(path))?;
    open_checked(path, OpenOptions::new().read(true).append(true).create(true))
}

/// Fails if a file that may be missing is unsafe. Opens and creates nothing.
pub fn check_private_file(path: &Path) -> Result<(), UnsafeFileError> {
    check_own_folder(folder_of(path))?;
    match fs::symlink_metadata(path) {
        Ok(found) => check_file(&found),
        Err(error) if is_missing(&error) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Opens the file that stands for a lock, and creates it and its folder if they are missing. Fails if it is not a file
/// of this user alone.
pub fn open_lock_file(path: &Path) -> io::Result<File> {
    create_private_folder(folder_of(path))?;
    close_to_others(path);
    let opened = open_checked(path, OpenOptions::new().write(true).create(true).truncate(false));
    opened.map_err(|error| error.into_io(path))
}

/// Takes the rights of others to a file of this user. Earlier versions created some lock files with the usual mode; there
/// is nothing in them that others could have read or changed.
fn close_to_others(path: &Path) {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let Ok(file) = OpenOptions::new().read(true).custom_flags(flags).open(path) else { return };
    let is_open = |found: fs::Metadata| matches!(check_file(&found), Err(UnsafeFileError::OpenToOthers { .. }));
    if file.metadata().is_ok_and(is_open) {
        // If this fails, the file is refused.
        let _ = file.set_permissions(fs::Permissions::from_mode(0o600));
    }
}

fn open_checked(path: &Path, options: &mut OpenOptions) -> Result<File, UnsafeFileError> {
    // Looks first, because opening a device can have effects of its own.
    match fs::symlink_metadata(path) {
        Ok(found) => check_file(&found)?,
        Err(error) if is_missing(&error) => {}
        Err(error) => return Err(error.into()),
    }
    // Does not follow a link, and does not block on a pipe, if one was put there meanwhile.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = options.mode(0o600).custom_flags(flags).open(path)?;
    // Checks the opened file, not the file that has the name now.
    check_file(&file.metadata()?)?;
    check_own_folder(folder_of(path))?;
    Ok(file)
}

/// Fails if another user could replace a file in a folder that Cove created. Such a folder is for this user alone; the
/// folders above it may be open to the user's own group.
fn check_own_folder(folder: &Path) -> Result<(), UnsafeFileError> {
    check_path(folder)?;
    match fs::metadata(folder).map(|found| (found.uid(), found.mode() & 0o7777)) {
        Ok((owner, mode)) if mode & 0o022 != 0 && mode & 0o1000 == 0 => {
            Err(UnsafeFileError::SharedFolder { folder: folder.to_owned(), owner, mode })
        }
        _ => Ok(()),
    }
}

fn check_file(metadata: &fs::Metadata) -> Result<(), UnsafeFileError> {
    let (owner, user) = (metadata.uid(), rustix::process::geteuid().as_raw());
    match metadata.mode() & 0o777 {
        _ if metadata.is_symlink() => Err(UnsafeFileError::Link),
        _ if !metadata.is_file() => Err(UnsafeFileError::NotAFile),
        _ if owner != user => Err(UnsafeFileError::OtherOwner { owner, user }),
        mode if mode & 0o077 != 0 => Err(UnsafeFileError::OpenToOthers { mode }),
        _ => Ok(()),
    }
}

/// Locks a file or folder until it is closed. Fails with `TimedOut` if another process keeps the lock for that long.
pub fn lock_within(file: &File, limit: Duration) -> io::Result<()> {
    let started = Instant::now();
    while !try_lock(file, started, limit)? {
        std::thread::sleep(LOCK_INTERVAL);
    }
    Ok(())
}

/// Like [`lock_within`], without blocking the thread.
pub async fn wait_for_lock(file: &File, limit: Duration) -> io::Result<()> {
    let started = Instant::now();
    while !try_lock(file, started, limit)? {
        tokio::time::sleep(LOCK_INTERVAL).await;
    }
    Ok(())
}

fn try_lock(file: &File, started: Instant, limit: Duration) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) if started.elapsed() < limit => Ok(false),
        Err(TryLockError::WouldBlock) => {
            Err(io::Error::new(io::ErrorKind::TimedOut, "another process is changing it and does not finish"))
        }
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Returns the folder of a file, also of one that is named without a folder.
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn files_are_private_and_replaced_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("folder/file");
        write_private_file(&path, "one", ExistingFile::Keep).unwrap();
        let error = write_private_file(&path, "two", ExistingFile::Keep).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "one");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        write_private_file(&path, "two", ExistingFile::Replace).unwrap();
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        write_cached_file(&path, "three").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "three");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn a_link_is_replaced_and_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (target, link) = (dir.path().join("target"), dir.path().join("link"));
        fs::write(&target, "theirs").unwrap();
        symlink(&target, &link).unwrap();
        assert!(matches!(open_private_file(&link), Err(UnsafeFileError::Link)));
        assert!(open_lock_file(&link).is_err());
        write_private_file(&link, "ours", ExistingFile::Replace).unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "theirs");
        assert!(open_private_file(&link).unwrap().is_some());
    }

    #[test]
    fn refuses_files_that_others_can_use() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        assert!(open_private_file(&path).unwrap().is_none());
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(open_private_file(&path), Err(UnsafeFileError::OpenToOthers { mode: 0o640 })));
        assert!(open_private_file(&path.join("below")).unwrap().is_none());
        assert!(matches!(open_private_file(dir.path()), Err(UnsafeFileError::NotAFile)));
    }

    #[test]
    fn lock_files_of_earlier_versions_are_closed_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o664)).unwrap();
        open_lock_file(&path).unwrap();
        assert_eq!(mode(&path), 0o600);
        assert!(open_lock_file(dir.path()).is_err());
    }

    #[test]
    fn only_old_unfinished_files_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let names = [".new-old", ".new-recent", "old"].map(|name| dir.path().join(name));
        for name in &names {
            let file = File::create(name).unwrap();
            if name != &names[1] {
                file.set_modified(std::time::SystemTime::now() - Duration::from_secs(600)).unwrap();
            }
        }
        remove_unfinished(dir.path(), Duration::from_secs(60));
        assert_eq!(names.each_ref().map(|name| name.exists()), [false, true, true]);
        remove_unfinished(dir.path(), Duration::ZERO);
        assert_eq!(names.each_ref().map(|name| name.exists()), [false, false, true]);
    }

    #[tokio::test]
    async fn a_lock_is_waited_for_and_not_forever() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("folder/lock");
        let held = open_lock_file(&path).unwrap();
        lock_within(&held, Duration::ZERO).unwrap();
        let other = open_lock_file(&path).unwrap();
        assert_eq!(lock_within(&other, Duration::from_millis(30)).unwrap_err().kind(), io::ErrorKind::TimedOut);
        let late = wait_for_lock(&other, Duration::from_millis(30)).await;
        assert_eq!(late.unwrap_err().kind(), io::ErrorKind::TimedOut);
        let release = async {
            tokio::time::sleep(Duration::from_millis(30)).await;
            drop(held);
        };
        let (locked, ()) = tokio::join!(wait_for_lock(&other, Duration::from_secs(60)), release);
        locked.unwrap();
    }
}
