//! A client's configuration file on disk: read within limits, and replaced as a whole or not at all. Symbolic links
//! are followed, mode and owner are kept, and a backup with the old bytes stays beside the file. This module knows no
//! syntax.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Gid, OFlags, Uid, fchown};

use cove_core::document::position;
use cove_core::error::{Failure, display_path};
use cove_core::link_path::check_inside;
use cove_core::private_file::lock_within;

/// Some clients keep histories in the same file. A file larger than this is not a configuration.
pub(super) const MAX_FILE: u64 = 64 << 20;
/// The kernel follows as many links.
const MAX_LINKS: usize = 40;
/// How many backups are kept.
const BACKUPS: usize = 3;
/// The names of files that are being written. A killed Cove leaves one behind.
const TEMPORARY: (&str, &str) = (".cove-", ".tmp");
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// Who may read a file that Cove writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileProtection {
    /// A new file is only for its owner, because clients write secrets into it. An existing one keeps its mode.
    Private,
    /// A new file is for everyone, as far as the umask allows. An existing one keeps its mode.
    Shared,
    /// The file is only for its owner, also if it exists, because Cove writes a secret into it.
    Secret,
}

/// A file at the time it was read.
#[derive(Debug)]
pub(super) struct ClientFile {
    /// The path after all links are followed.
    target: PathBuf,
    /// None if there is no file yet.
    pub(super) text: Option<String>,
}

pub(super) fn read(path: &Path) -> Result<ClientFile, Failure> {
    let could_not = format!("could not read `{}`", display_path(path));
    let fail = |error: io::Error| Failure::operator(could_not.clone()).because(error);
    let refuse = |cause: String, hint: &str| Err(Failure::usage(could_not.clone()).because(cause).with_hint(hint));
    let target = follow(path)?;
    // Opening a pipe must not wait for its writer.
    let file = match OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(&target) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(ClientFile { target, text: None }),
        Err(error) => return Err(fail(error).with_hint("give yourself permission to read the file and its folders")),
    };
    if !file.metadata().map_err(fail)?.is_file() {
        return refuse("it is not a regular file".to_owned(), "move it away and run this again");
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(fail)?;
    if bytes.len() as u64 > MAX_FILE {
        let cause = format!("it has more than {} MiB", MAX_FILE >> 20);
        return refuse(cause, "see `--print`, and write the entry by hand");
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok(ClientFile { target, text: Some(text) }),
        Err(error) => {
            let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
            let (line, column) = position(&String::from_utf8_lossy(valid), valid.len());
            let cause = format!("line {line} column {column} is not valid UTF-8");
            refuse(cause, "save the file as UTF-8 and run this again")
        }
    }
}

/// Fails if a link leads from a project to a file outside it. The project may come from a stranger, who must not choose
/// which of the user's files Cove edits.
pub(super) fn check_in_project(path: &Path, project: &Path) -> Result<(), Failure> {
    check_inside(project, path).map_err(|error| {
        Failure::usage(format!("could not use `{}`", display_path(path)))
            .because(error)
            .with_hint("nothing was changed; remove the link, or use `--scope user`")
    })
}

/// Follows symbolic links. The file at the end need not exist yet.
fn follow(path: &Path) -> Result<PathBuf, Failure> {
    let mut path = path.to_path_buf();
    for _ in 0..MAX_LINKS {
        match fs::read_link(&path) {
            Ok(next) => path = path.parent().unwrap_or(Path::new("/")).join(next),
            // The path does not exist, or is not a link.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput) => {
                return Ok(without_dots(path));
            }
            Err(error) => {
                return Err(Failure::operator(format!("could not read `{}`", display_path(&path)))
                    .because(error)
                    .with_hint("check its folders: one is missing, closed to you, or not a folder"));
            }
        }
    }
    Err(Failure::usage(format!("could not read `{}`", display_path(&path)))
        .because("its symbolic links form a circle")
        .with_hint("remove the link and run this again"))
}

/// Replaces a folder with `..` in its path by its real path, for people to read.
fn without_dots(path: PathBuf) -> PathBuf {
    let has_dots = path.components().any(|part| part == Component::ParentDir);
    let real_path = || Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?));
    let shown = if has_dots { real_path() } else { None };
    shown.unwrap_or(path)
}

/// Locks the folder of a file while Cove reads and replaces it, so that two Coves do not overwrite each other's changes.
/// Other programs ignore the lock; `ClientFile::replace` therefore compares the file with what was read. Creates the
/// folder if it is missing.
pub(super) fn lock_folder(path: &Path, protection: FileProtection) -> Result<Option<File>, Failure> {
    let target = follow(path)?;
    let folder = target.parent().unwrap_or(Path::new("/"));
    let mode = if protection == FileProtection::Shared { 0o755 } else { 0o700 };
    fs::DirBuilder::new().recursive(true).mode(mode).create(folder).map_err(|error| {
        Failure::operator(format!("could not create `{}`", display_path(folder)))
            .because(error)
            .with_hint("create it by hand, or see `--print`")
    })?;
    let Ok(lock) = File::open(folder) else { return Ok(None) };
    // A lock that is never released must not block Cove: `replace` checks again for what it guards against. Some file
    // systems have no locks.
    if lock_within(&lock, LOCK_TIMEOUT).is_err_and(|error| error.kind() == io::ErrorKind::TimedOut) {
        return Ok(Some(lock));
    }
    remove_leftovers(folder);
    Ok(Some(lock))
}

/// Removes what a Cove left behind that was killed while it wrote. No other Cove writes here while this one has the lock.
fn remove_leftovers(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_str().and_then(|name| name.strip_prefix(TEMPORARY.0)?.strip_suffix(TEMPORARY.1));
        // The characters between are random, and of a fixed number.
        let is_leftover =
            name.is_some_and(|random| random.len() == 6 && random.bytes().all(|b| b.is_ascii_alphanumeric()));
        if is_leftover && entry.file_type().is_ok_and(|kind| kind.is_file()) {
            // If this fails, it is tried again at the next change.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Whether a file was replaced.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReplaceOutcome {
    Replaced,
    /// Another program wrote the file after Cove read it. Nothing was changed.
    Outdated,
}

impl ClientFile {
    /// Copies the old bytes to a file beside this one, and returns its path.
    pub(super) fn back_up(&self) -> Result<Option<PathBuf>, Failure> {
        let Some(text) = &self.text else { return Ok(None) };
        let newest = self.backup_path(1);
        // The same bytes are not kept twice.
        if fs::read(&newest).is_ok_and(|kept| kept == text.as_bytes()) {
            return Ok(Some(newest));
        }
        for age in (1..BACKUPS).rev() {
            let _ = fs::rename(self.backup_path(age), self.backup_path(age + 1));
        }
        let written = self.write_as(&newest, text, FileProtection::Private);
        written.map_err(|error| failed("copy", &newest, error))?;
        Ok(Some(newest))
    }

    fn backup_path(&self, age: usize) -> PathBuf {
        let mut name = self.target.clone().into_os_string();
        name.push(".cove-backup");
        if age > 1 {
            name.push(format!("-{age}"));
        }
        PathBuf::from(name)
    }

    /// The texts of the backups that can be read, newest first.
    pub(super) fn backups(&self) -> Vec<String> {
        let text = |age| read_copy(&self.backup_path(age));
        (1..=BACKUPS).filter_map(text).collect()
    }

    /// Keeps a text as the file without Cove, beside the file and until `remove_pinned`. It may hold secrets.
    pub(super) fn pin(&self, text: &str) -> Result<(), Failure> {
        let path = self.pinned_path();
        self.write_as(&path, text, FileProtection::Secret).map_err(|error| failed("write", &path, error))
    }

    /// The path of that copy, whether or not it exists.
    pub(super) fn pinned_path(&self) -> PathBuf {
        let mut name = self.target.clone().into_os_string();
        name.push(".cove-adopted");
        PathBuf::from(name)
    }

    /// The text of that copy, if it can be read.
    pub(super) fn pinned(&self) -> Option<String> {
        read_copy(&self.pinned_path())
    }

    pub(super) fn remove_pinned(&self) {
        // A copy that stays does no harm.
        let _ = fs::remove_file(self.pinned_path());
    }

    /// The paths of everything that Cove keeps of earlier contents.
    pub(super) fn kept_copies(&self) -> Vec<PathBuf> {
        let backups = (1..=BACKUPS).map(|age| self.backup_path(age));
        [self.pinned_path()].into_iter().chain(backups).filter(|path| path.is_file()).collect()
    }

    /// Fails if the file could not be replaced. Changes nothing.
    pub(super) fn check_writable(&self) -> Result<(), Failure> {
        let folder = self.target.parent().unwrap_or(Path::new("/"));
        let probe = tempfile::Builder::new().prefix(TEMPORARY.0).suffix(TEMPORARY.1).tempfile_in(folder);
        probe.map(drop).map_err(|error| failed("write", &self.target, error))
    }

    /// Removes the backups, unless a link led out of the folder: there they may be of the user's own file.
    pub(super) fn remove_backups_in(&self, folder: &Path) {
        let parent = self.target.parent().and_then(|parent| parent.canonicalize().ok());
        let is_inside = |parent: &PathBuf| folder.canonicalize().is_ok_and(|folder| parent.starts_with(folder));
        if !parent.as_ref().is_some_and(is_inside) {
            return;
        }
        for path in (1..=BACKUPS).map(|age| self.backup_path(age)) {
            if path.symlink_metadata().is_ok_and(|metadata| metadata.is_file()) {
                // A backup that stays does no harm.
                let _ = fs::remove_file(path);
            }
        }
    }

    /// True if other users may read the file.
    pub(super) fn is_open_to_others(&self) -> bool {
        fs::metadata(&self.target).is_ok_and(|metadata| metadata.mode() & 0o077 != 0)
    }

    /// Replaces the file; without a text, removes it.
    pub(super) fn replace(&self, text: Option<&str>, protection: FileProtection) -> Result<ReplaceOutcome, Failure> {
        let now = fs::read(&self.target);
        let is_unchanged = match (&self.text, now) {
            (Some(old), Ok(now)) => old.as_bytes() == now,
            (None, Err(error)) => error.kind() == io::ErrorKind::NotFound,
            _ => false,
        };
        if !is_unchanged {
            return Ok(ReplaceOutcome::Outdated);
        }
        let written = match text {
            Some(text) => self.write_as(&self.target, text, protection),
            None => fs::remove_file(&self.target),
        };
        written.map_err(|error| failed("write", &self.target, error))?;
        Ok(ReplaceOutcome::Replaced)
    }

    /// Writes a temporary file and renames it once it is safely on disk. Mode and owner are those of the old file, as
    /// far as the protection allows.
    fn write_as(&self, path: &Path, text: &str, protection: FileProtection) -> io::Result<()> {
        let folder = path.parent().unwrap_or(Path::new("/"));
        let mode = if protection == FileProtection::Shared { 0o644 } else { 0o600 };
        let mut fresh = tempfile::Builder::new()
            .prefix(TEMPORARY.0)
            .suffix(TEMPORARY.1)
            .permissions(fs::Permissions::from_mode(mode))
            .tempfile_in(folder)?;
        fresh.write_all(text.as_bytes())?;
        if let Ok(old) = fs::metadata(&self.target) {
            let made = fresh.as_file().metadata()?;
            if (made.uid(), made.gid()) != (old.uid(), old.gid()) {
                fchown(fresh.as_file(), Some(Uid::from_raw(old.uid())), Some(Gid::from_raw(old.gid())))?;
            }
            let kept = if protection == FileProtection::Secret { 0o700 } else { 0o7777 };
            fresh.as_file().set_permissions(fs::Permissions::from_mode(old.mode() & kept))?;
        }
        fresh.as_file().sync_all()?;
        fresh.persist(path).map_err(|error| error.error)?;
        // The rename is on disk only when the folder is. Some file systems cannot sync folders.
        let _ = File::open(folder).and_then(|folder| folder.sync_all());
        Ok(())
    }
}

/// The text of a copy that Cove wrote. A link under its name is not one.
fn read_copy(path: &Path) -> Option<String> {
    if path.is_symlink() { None } else { read(path).ok()?.text }
}

fn failed(verb: &str, path: &Path, error: io::Error) -> Failure {
    let hint = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "nothing was changed; free some space and run this again"
        }
        _ => "nothing was changed; give yourself permission to write to the folder, or see `--print`",
    };
    let failed = Failure::operator(format!("could not {verb} `{}`", display_path(path))).with_hint(hint);
    // Some messages name the temporary file, which means nothing to the user.
    if error.raw_os_error().is_some() { failed.because(error) } else { failed.because(error.kind().to_string()) }
}

#[cfg(test)]
mod tests;
