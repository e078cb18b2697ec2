//! A configuration file on disk: read within bounds, and replaced as a whole or not at all. Links are followed to the file
//! they mean, its mode and owner are kept, and the old bytes stay beside it under another name. It knows no syntax.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Gid, OFlags, Uid, fchown, flock};

use crate::error::{Error, shown_path};

/// Clients keep histories in the same file, so that they grow; what is larger is no configuration.
pub(super) const MAX_FILE: u64 = 64 << 20;
/// The kernel gives up after as many links.
const MAX_LINKS: usize = 40;
/// Old bytes that are kept, the newest first.
const BACKUPS: usize = 3;
const LOCK_PATIENCE: Duration = Duration::from_secs(5);

/// A file as it was found.
#[derive(Debug)]
pub(super) struct Found {
    /// Behind all links.
    target: PathBuf,
    /// Nothing if there is no file yet.
    pub(super) text: Option<String>,
}

pub(super) fn read(path: &Path) -> Result<Found, Error> {
    let fail =
        |error: io::Error| Error::operator(format!("could not read `{}`", shown_path(path))).because(error);
    let target = follow(path)?;
    let refuse = |cause: String, hint: &str| {
        Err(Error::usage(format!("could not read `{}`", shown_path(path))).because(cause).with_hint(hint))
    };
    // Not waiting, for whatever is not a file.
    let opened = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(&target);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found { target, text: None }),
        Err(error) => return Err(fail(error).with_hint("make the file and its folders readable for you")),
    };
    let meta = file.metadata().map_err(fail)?;
    if !meta.is_file() {
        return refuse("it is not a regular file".to_owned(), "move it away, and run this again");
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(fail)?;
    if bytes.len() as u64 > MAX_FILE {
        return refuse(
            format!("it has more than {} MiB", MAX_FILE >> 20),
            "see `--print`, and write the entry by hand",
        );
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Found { target, text: Some(text) }),
        Err(error) => {
            let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
            let (line, column) = super::edit::place(&String::from_utf8_lossy(valid), valid.len());
            refuse(
                format!("line {line} column {column} is not valid UTF-8"),
                "save the file as UTF-8, and run this again",
            )
        }
    }
}

/// The file that a path means, which need not be there yet.
fn follow(path: &Path) -> Result<PathBuf, Error> {
    let mut path = path.to_path_buf();
    for _ in 0..MAX_LINKS {
        match fs::read_link(&path) {
            Ok(next) => path = path.parent().unwrap_or(Path::new("/")).join(next),
            // There is nothing, or no link.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput) => {
                return Ok(path);
            }
            Err(error) => {
                return Err(Error::operator(format!("could not read `{}`", shown_path(&path)))
                    .because(error)
                    .with_hint("look at its folders: one is missing, closed or no folder"));
            }
        }
    }
    Err(Error::usage(format!("could not read `{}`", shown_path(&path)))
        .because("its links lead in a circle")
        .with_hint("remove the link, and run this again"))
}

/// Held while a file is read and replaced, so that two of us do not overwrite each other. Other programs do not look
/// at it; that the file is still as it was read is checked besides.
#[derive(Debug)]
pub(super) struct Lock {
    _folder: Option<File>,
}

impl Lock {
    /// Makes the folder, for nobody else, if it is missing.
    pub(super) fn take(path: &Path) -> Result<Self, Error> {
        let target = follow(path)?;
        let folder = target.parent().unwrap_or(Path::new("/"));
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(|error| {
            Error::operator(format!("could not make `{}`", shown_path(folder)))
                .because(error)
                .with_hint("make it by hand, or see `--print`")
        })?;
        let Ok(folder) = File::open(folder) else { return Ok(Self { _folder: None }) };
        let begun = Instant::now();
        // A lock that nobody gives back must not keep us: what it guards against is checked again later.
        while flock(&folder, FlockOperation::NonBlockingLockExclusive) == Err(rustix::io::Errno::WOULDBLOCK)
            && begun.elapsed() < LOCK_PATIENCE
        {
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(Self { _folder: Some(folder) })
    }
}

/// Why a file was not replaced.
#[derive(Debug)]
pub(super) enum NotReplaced {
    /// Somebody else wrote it after it was read.
    Changed,
    Failed(Error),
}

impl Found {
    /// Copies the old bytes beside the file, and says under which name.
    pub(super) fn back_up(&self) -> Result<Option<PathBuf>, Error> {
        let Some(text) = &self.text else { return Ok(None) };
        let name = |age: usize| {
            let mut name = self.target.clone().into_os_string();
            name.push(".cove-backup");
            if age > 1 {
                name.push(format!("-{age}"));
            }
            PathBuf::from(name)
        };
        let newest = name(1);
        // What a person gets back is what was there, once: the same bytes are not kept twice.
        if fs::read(&newest).is_ok_and(|kept| kept == text.as_bytes()) {
            return Ok(Some(newest));
        }
        for age in (1..BACKUPS).rev() {
            let _ = fs::rename(name(age), name(age + 1));
        }
        self.write_as(&newest, text).map_err(|error| self.failed("copy", &newest, error))?;
        Ok(Some(newest))
    }

    pub(super) fn replace(&self, text: &str) -> Result<(), NotReplaced> {
        let now = fs::read(&self.target);
        let is_as_read = match (&self.text, now) {
            (Some(old), Ok(now)) => old.as_bytes() == now,
            (None, Err(error)) => error.kind() == io::ErrorKind::NotFound,
            _ => false,
        };
        if !is_as_read {
            return Err(NotReplaced::Changed);
        }
        self.write_as(&self.target, text)
            .map_err(|error| NotReplaced::Failed(self.failed("write", &self.target, error)))
    }

    fn failed(&self, verb: &str, path: &Path, error: io::Error) -> Error {
        let hint = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                "nothing was changed; make room, and run this again"
            }
            _ => "nothing was changed; make the folder writable for you, or see `--print`",
        };
        let failed = Error::operator(format!("could not {verb} `{}`", shown_path(path))).with_hint(hint);
        // Some are about a name that only we know.
        if error.raw_os_error().is_some() {
            failed.because(error)
        } else {
            failed.because(error.kind().to_string())
        }
    }

    /// Whole and safely on disk before it gets its name. Mode and owner are the old file's; a new one is for its
    /// owner alone, because others write secrets into it.
    fn write_as(&self, path: &Path, text: &str) -> io::Result<()> {
        let folder = path.parent().unwrap_or(Path::new("/"));
        let mut fresh = tempfile::Builder::new().prefix(".cove-").suffix(".tmp").tempfile_in(folder)?;
        fresh.write_all(text.as_bytes())?;
        if let Ok(old) = fs::metadata(&self.target) {
            let made = fresh.as_file().metadata()?;
            if (made.uid(), made.gid()) != (old.uid(), old.gid()) {
                fchown(fresh.as_file(), Some(Uid::from_raw(old.uid())), Some(Gid::from_raw(old.gid())))?;
            }
            fresh.as_file().set_permissions(fs::Permissions::from_mode(old.mode() & 0o7777))?;
        }
        fresh.as_file().sync_all()?;
        fresh.persist(path).map_err(|error| error.error)?;
        // The name is safe only when its folder is; some file systems cannot say.
        let _ = File::open(folder).and_then(|folder| folder.sync_all());
        Ok(())
    }
}

#[cfg(test)]
mod tests;
