//! fcntl(2) F_OFD_SETLK: claims on user ids of the host, so that no two live sandboxes have the same one.
//!
//! A claim is a lock on one byte of a file, at the offset of the id. The file is in a folder that belongs to the claiming
//! user alone, so other users of the machine can neither take ids nor hold them back. The kernel releases a lock when
//! the last copy of its descriptor closes, however the process ended: nothing stale is left.

use std::fs::DirBuilder;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, fstat, openat};

use crate::report::{JailStep, StepContext, StepFailure};
use crate::steps::random_number;
use crate::sys;

/// The folders for claims of root, the best first. The second is for containers whose `/run` is read-only.
pub(crate) const ROOTS_FOLDERS: &[&str] = &["/run/cove", "/tmp/cove-user-ids"];
const FILE: &str = "claimed-user-ids";

/// Claims one of `count` ids from `first` on. Returns it with the descriptor that holds the claim. Uses the first of
/// `folders` that this user can make and no other can use. Fails if there is none, or if every id is taken.
pub(crate) fn claim(folders: &[PathBuf], first: u32, count: u32) -> Result<(u32, OwnedFd), StepFailure> {
    let file = open_file(folders)?;
    // A random start, so that many starts at once do not all try the same ids.
    let start = (random_number(JailStep::User)? % u64::from(count)) as u32;
    for offset in 0..count {
        let id = first + (start + offset) % count;
        match sys::lock_byte(file.as_fd(), id.into()) {
            Ok(true) => return Ok((id, file)),
            Ok(false) => {}
            Err(error) => return Err(StepFailure::new(JailStep::User, format!("claim user id {id}"), error)),
        }
    }
    let cause = io::Error::other(format!("live sandboxes have all of {first} to {}", first + count - 1));
    Err(StepFailure::new(JailStep::User, "find a free user id", cause))
}

fn open_file(folders: &[PathBuf]) -> Result<OwnedFd, StepFailure> {
    let mut causes = Vec::new();
    for folder in folders {
        let opened = open_private_folder(folder).and_then(|opened| {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            Ok(openat(&opened, FILE, flags, Mode::from_raw_mode(0o600))?)
        });
        match opened {
            Ok(file) => return Ok(file),
            Err(error) => causes.push(format!("`{}`: {error}", folder.display())),
        }
    }
    let cause = io::Error::other(causes.join("; "));
    Err(cause).during(JailStep::User, || "open a private folder for claims on user ids".into())
}

/// Opens a folder, and makes it if it is not there. Fails if another user owns it or may use it.
fn open_private_folder(path: &Path) -> io::Result<OwnedFd> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = openat(CWD, path, flags, Mode::empty())?;
    let found = fstat(&folder)?;
    if found.st_uid != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other(format!("it belongs to user {}", found.st_uid)));
    }
    if found.st_mode & 0o077 != 0 {
        return Err(io::Error::other(format!("others may use it: its mode is {:03o}", found.st_mode & 0o777)));
    }
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn no_id_is_claimed_twice_and_a_dropped_claim_is_free() {
        let folder = tempfile::tempdir().unwrap();
        let folders = [folder.path().join("claims")];
        let mut claims: Vec<_> = (0..3).map(|_| claim(&folders, 100, 3).unwrap()).collect();
        let mut ids: Vec<u32> = claims.iter().map(|(id, _)| *id).collect();
        ids.sort_unstable();
        assert_eq!(ids, [100, 101, 102]);
        assert_eq!(claim(&folders, 100, 3).unwrap_err().cause, "live sandboxes have all of 100 to 102");
        let (free, _) = claims.swap_remove(1);
        assert_eq!(claim(&folders, 100, 3).unwrap().0, free);
    }

    #[test]
    fn a_folder_that_others_may_use_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let open = folder.path().join("open");
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
        let failure = claim(std::slice::from_ref(&open), 1, 1).unwrap_err();
        assert!(failure.cause.contains("others may use it: its mode is 777"), "{failure:?}");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(folder.path(), &link).unwrap();
        assert!(claim(std::slice::from_ref(&link), 1, 1).is_err());
        let private = folder.path().join("private");
        assert!(claim(&[open, link, private.clone()], 1, 1).is_ok());
        assert!(private.join(FILE).exists());
    }
}
