//! Where the sandbox's system files and its python come from.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::Surroundings;
use super::mount;
use super::value::Wrong;
use crate::error::{shown, shown_path};
use crate::policy::Root;

/// A directory that looks like the root of a Linux system.
pub(super) fn tree(text: &str, around: &Surroundings) -> Result<PathBuf, Wrong> {
    let wrong = |problem: &str| {
        Wrong::new(
            format!("`{}` {problem}", shown(text)),
            "name a directory with the files of a Linux system, such as `/srv/debian`",
        )
    };
    if text.is_empty() {
        return Err(wrong("is not a directory"));
    }
    let path = mount::existing(text, around).map_err(|problem| wrong(&problem))?;
    if !path.is_dir() {
        return Err(wrong("is not a directory"));
    }
    if path == Path::new("/") {
        return Err(wrong("is this machine's own root"));
    }
    // A home directory with a `bin` would look like a root.
    mount::refuse_private(&path, around).map_err(|problem| wrong(&problem))?;
    if !["usr", "bin"].iter().any(|name| path.join(name).symlink_metadata().is_ok()) {
        return Err(wrong("has neither `usr` nor `bin`"));
    }
    Ok(path)
}

/// The python to start: of this machine, or inside the tree that is the root.
pub(super) fn python(text: &str, root: &Root, around: &Surroundings) -> Result<PathBuf, Wrong> {
    let shown = shown(text);
    if let Root::Tree(tree) = root {
        // Not looked up: links in the tree mean something else on this side.
        return mount::plain(text).map_err(|problem| {
            Wrong::new(
                format!("`{shown}` {problem}"),
                format!("write its path inside `{}`, such as `/usr/bin/python3`", shown_path(tree)),
            )
        });
    }
    let wrong = |problem: &str| {
        Wrong::new(
            format!("`{shown}` {problem}"),
            "write the path of a python, such as `/usr/bin/python3` or `.venv/bin/python`",
        )
    };
    // The link itself is kept: a virtual environment's python is a link to another one, and python finds its
    // packages beside the link. Collecting the components drops `.` and leaves links and `..` alone.
    let path: PathBuf = around.cwd.join(text).components().collect();
    match path.metadata() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(wrong("does not exist")),
        Err(error) => Err(wrong(&format!("could not be looked at: {error}"))),
        Ok(found) if !found.is_file() => Err(wrong("is not a file")),
        Ok(found) if found.permissions().mode() & 0o111 == 0 => Err(wrong("is not executable")),
        Ok(_) => Ok(path),
    }
}
