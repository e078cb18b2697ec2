//! Files of the user that may hold secrets, such as variables and headers of servers: written as a whole or not at all,
//! readable only by their owner.

use std::fs::DirBuilder;
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// What happens to a file that is already there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExistingFile {
    Keep,
    Replace,
}

/// Writes a file, and its folder if there is none. Fails with `AlreadyExists` if a file is there that is to be kept.
pub(super) fn write_private_file(path: &Path, text: &str, existing: ExistingFile) -> io::Result<()> {
    let folder = path.parent().ok_or(io::ErrorKind::NotFound)?;
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    // Its name begins with a dot, so that no reader takes the unfinished file for a definition.
    let mut fresh = tempfile::Builder::new().prefix(".new-").tempfile_in(folder)?;
    fresh.write_all(text.as_bytes())?;
    fresh.as_file().sync_all()?;
    let written = match existing {
        ExistingFile::Keep => fresh.persist_noclobber(path),
        ExistingFile::Replace => fresh.persist(path),
    };
    written.map(drop).map_err(|error| error.error)
}
