//! Programs by name on a search path.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use rustix::fs::Access;

/// Returns every program of that name in the order of the search path. Skips folders that are not absolute, so that
/// nothing from a project's own folder runs.
pub fn programs(name: &str, search_path: &OsStr) -> impl Iterator<Item = PathBuf> {
    absolute_folders(search_path).map(move |folder| folder.join(name)).filter(|path| is_executable(path))
}

/// Returns the folders of a search path that are absolute.
pub fn absolute_folders(search_path: &OsStr) -> impl Iterator<Item = PathBuf> {
    std::env::split_paths(search_path).filter(|folder| folder.is_absolute())
}

/// True for a file that this user may execute.
pub fn is_executable(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, Access::EXEC_OK).is_ok()
}

/// Returns the path of a program of a directory tree, as processes see it whose root that tree is. Does not follow
/// links, because their targets are valid only for those processes.
pub fn program_in_tree(name: &str, tree: &Path) -> Option<PathBuf> {
    ["usr/local/bin", "usr/bin", "bin"]
        .map(|folder| Path::new(folder).join(name))
        .into_iter()
        .find(|path| tree.join(path).symlink_metadata().is_ok())
        .map(|path| Path::new("/").join(path))
}
