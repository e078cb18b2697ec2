//! What `cove run` keeps of a sandbox: with `--out` the files that code wrote to its working directory, and the images
//! that it showed. The sandbox is hostile: names are checked, and number, depth and size are bounded.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use cove_protocol::limits::MAX_FILE_READ;
use cove_protocol::{FileKind, ImageFormat, unescape_path};

use cove_core::error::{Failure, display_path, display_value, write_hint};
use cove_core::link_path::check_inside;
use cove_core::policy::{Policy, SandboxMount};
use cove_core::session::Session;
use cove_jail::guest::WORKSPACE;

const MAX_FILES: usize = 1000;
const MAX_DEPTH: usize = 16;
/// Bytes of all files together.
const MAX_TOTAL: u64 = 512 << 20;

/// What was kept and what was not.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct KeptFiles {
    pub(super) files: usize,
    /// What was left out, and why.
    pub(super) left_out: Vec<String>,
}

/// Copies the files that code wrote below `/workspace` to a folder of the host, under the names that a listing shows: a
/// byte that is no visible character is written as `\xHH`. Leaves out what is mounted there.
pub(super) async fn keep_files(session: &Session, policy: &Policy, out: &Path) -> Result<KeptFiles, Failure> {
    let mut kept = KeptFiles::default();
    let mut total = 0;
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        let inside = Path::new(WORKSPACE).join(&folder);
        let Ok(listing) = session.list_directory(&inside.to_string_lossy()).await else { continue };
        if listing.left_out > 0 {
            kept.left_out.push(format!("{} more entries of `{}`", listing.left_out, display_path(&inside)));
        }
        for entry in listing.entries {
            let path = folder.join(&entry.name);
            let inside = Path::new(WORKSPACE).join(&path);
            if is_mounted(&policy.mounts, Path::new(OsStr::from_bytes(&unescape_path(&inside.to_string_lossy())))) {
                continue;
            }
            let shown = display_value(&path.to_string_lossy());
            match entry.kind {
                // Made by Python for itself.
                FileKind::Folder if entry.name == "__pycache__" => {}
                // What code installed for its session, which is of no use outside.
                FileKind::Folder if policy.proxy_door && [".venv", "node_modules"].map(Path::new).contains(&&*path) => {
                }
                _ if !is_plain_name(&entry.name) => kept.left_out.push(format!("`{shown}`, because of its name")),
                FileKind::Folder if path.components().count() < MAX_DEPTH => folders.push(path),
                FileKind::Folder => kept.left_out.push(format!("`{shown}`, which lies too deep")),
                FileKind::File if kept.files >= MAX_FILES || total + entry.size > MAX_TOTAL => {
                    kept.left_out.push(format!("`{shown}` and what follows, because it is too much"));
                    return Ok(kept);
                }
                FileKind::File if entry.size > MAX_FILE_READ as u64 => {
                    kept.left_out.push(format!("`{shown}`, which has more than {} bytes", MAX_FILE_READ));
                }
                FileKind::File => match session.read_file(&inside.to_string_lossy()).await {
                    Ok(content) => {
                        // The folder may be a project with links in it.
                        if let Err(error) = check_inside(out, &out.join(&path)) {
                            kept.left_out.push(format!("`{shown}`: {error}"));
                            continue;
                        }
                        write_whole(&out.join(&path), &content).map_err(|error| {
                            Failure::operator(format!("could not write `{}`", display_path(&out.join(&path))))
                                .because(error)
                        })?;
                        total += content.len() as u64;
                        kept.files += 1;
                    }
                    Err(error) => kept.left_out.push(format!("`{shown}`: {error}")),
                },
                FileKind::Link | FileKind::Fifo | FileKind::Socket | FileKind::Device => {}
            }
        }
    }
    Ok(kept)
}

/// Creates the folder of `--out`. Fails before the code runs if no file can be written there.
pub(super) fn check_writable(out: &Path) -> Result<(), Failure> {
    fs::create_dir_all(out).and_then(|()| tempfile::tempfile_in(out)).map(drop).map_err(|error| {
        let hint = write_hint(&error, "name a directory that you may write to");
        Failure::usage(format!("could not use `--out {}`", display_path(out))).because(error).with_hint(hint)
    })
}

fn is_mounted(mounts: &[SandboxMount], path: &Path) -> bool {
    mounts.iter().any(|mount| mount.target == path)
}

/// True for a name that stays in its folder and fits into one. The sandbox chose it.
fn is_plain_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 255
        && !matches!(name, "." | "..")
        && !name.contains(['/', '\0'])
        && !name.contains(char::is_control)
}

/// Saves an image under a name that is not taken: `cove-image-1.png`. Returns the path.
pub(super) fn save_image(folder: &Path, format: ImageFormat, bytes: &[u8]) -> io::Result<PathBuf> {
    let ending = format.mime().trim_start_matches("image/").replace("jpeg", "jpg");
    fs::create_dir_all(folder)?;
    for number in 1..=MAX_FILES {
        let path = folder.join(format!("cove-image-{number}.{ending}"));
        match fs::OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(mut file) => return file.write_all(bytes).map(|()| path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other("there are too many images in the folder"))
}

/// Writes a file as a whole or not at all. A link under that name is replaced and not followed.
fn write_whole(path: &Path, content: &[u8]) -> io::Result<()> {
    let folder = path.parent().ok_or(io::ErrorKind::NotFound)?;
    fs::create_dir_all(folder)?;
    let mut fresh = tempfile::NamedTempFile::new_in(folder)?;
    fresh.write_all(content)?;
    fresh.as_file().set_permissions(fs::Permissions::from_mode(0o644))?;
    fresh.persist(path).map(drop).map_err(|error| error.error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_sandbox_stay_in_their_folder() {
        for name in ["a", "a b", ".hidden", "..x", "é", "a\\x0a"] {
            assert!(is_plain_name(name), "{name:?}");
        }
        for name in ["", ".", "..", "a/b", "../../etc", "a\0", "a\nb", &"\\xff".repeat(64)] {
            assert!(!is_plain_name(name), "{name:?}");
        }
    }

    #[test]
    fn images_get_names_that_are_free() {
        let folder = tempfile::tempdir().unwrap();
        let first = save_image(folder.path(), ImageFormat::Jpeg, b"a").unwrap();
        let second = save_image(folder.path(), ImageFormat::Jpeg, b"b").unwrap();
        assert_eq!(first, folder.path().join("cove-image-1.jpg"));
        assert_eq!((second, fs::read(first).unwrap()), (folder.path().join("cove-image-2.jpg"), b"a".to_vec()));
    }
}
