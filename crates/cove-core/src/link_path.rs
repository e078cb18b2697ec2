//! Where a path leads when its links are followed, for callers that have to know each step: who could change it, and
//! whether it leaves a folder.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::path::{Component, Path, PathBuf};

use rustix::io::Errno;

use crate::document::is_missing;
use crate::error::display_path;

/// The kernel follows as many links.
const MAX_LINKS: usize = 40;

/// Follows the links of a path as the kernel does, and calls a function with every folder and link on the way and with
/// the end. Returns the path without links. A part that does not exist stays as it is.
pub(crate) fn resolve_links<E: From<io::Error>>(
    path: &Path,
    mut visit: impl FnMut(&Path, &Metadata) -> Result<(), E>,
) -> Result<PathBuf, E> {
    let absolute = std::path::absolute(path)?;
    let mut left: VecDeque<OsString> = names(&absolute).collect();
    let mut here = PathBuf::from("/");
    visit(&here, &fs::metadata(&here)?)?;
    let mut links = 0;
    while let Some(name) = left.pop_front() {
        if name == ".." {
            here.pop();
            continue;
        }
        let next = here.join(&name);
        let found = match fs::symlink_metadata(&next) {
            Ok(found) => found,
            Err(error) if is_missing(&error) => {
                here = next;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        // A file where a folder should be counts as a missing folder: daemons run with `HOME=/dev/null`.
        if found.is_dir() || found.is_symlink() || left.is_empty() {
            visit(&next, &found)?;
        }
        if !found.is_symlink() {
            here = next;
            continue;
        }
        links += 1;
        if links > MAX_LINKS {
            return Err(io::Error::from(Errno::LOOP).into());
        }
        let target = fs::read_link(&next)?;
        if target.is_absolute() {
            here = PathBuf::from("/");
        }
        names(&target).rev().for_each(|name| left.push_front(name));
    }
    Ok(here)
}

fn names(path: &Path) -> impl DoubleEndedIterator<Item = OsString> {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

/// Fails if a path below a folder leads out of the folder through a link. The folder may come from a stranger, such as a
/// repository, and the file at the end need not exist.
pub fn check_inside(folder: &Path, path: &Path) -> io::Result<()> {
    let end = resolve_links(path, |_, _| io::Result::Ok(()))?;
    if end.starts_with(resolve_links(folder, |_, _| io::Result::Ok(()))?) {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "a link leads to `{}`, which is not in `{}`",
        display_path(&end),
        display_path(folder)
    )))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_may_stay_in_the_folder_and_not_leave_it() {
        let dir = tempfile::tempdir().unwrap();
        let project = dir.path().join("project");
        fs::create_dir_all(project.join("sub/deep")).unwrap();
        fs::write(dir.path().join("outside"), "").unwrap();
        let link = |target: &str, name: &str| symlink(target, project.join(name)).unwrap();
        link("sub/file", "inside");
        link(project.join("sub").to_str().unwrap(), "absolute");
        link("../outside", "file");
        link("../missing", "dangling");
        link("..", "up");
        link("inside/../../../outside", "twisted");
        link("sub/deep/back", "first");
        symlink("../../../outside", project.join("sub/deep/back")).unwrap();
        link("circle", "circle");
        for name in ["inside", "absolute/new", "sub/new", "new/folder/file"] {
            check_inside(&project, &project.join(name)).unwrap();
        }
        for name in ["file", "dangling", "up/new", "up/project/../x", "twisted", "first", "circle", "../outside"] {
            check_inside(&project, &project.join(name)).expect_err(name);
        }
        // The folder itself may be reached through a link.
        symlink(&project, dir.path().join("link")).unwrap();
        check_inside(&dir.path().join("link"), &dir.path().join("link/sub/new")).unwrap();
    }
}
