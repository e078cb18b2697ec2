//! The files that rules look at: everything in the workspace except what is built, fetched or found by a fuzzer.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

/// Folders by name, wherever they are. A fuzz corpus is bytes that look like text by accident.
const SKIPPED: &[&str] = &[".git", "target", "artifacts", "corpus", "node_modules", "__pycache__", ".venv"];

pub(super) struct Tree {
    /// By path from the top, with `/`. No text for what is not UTF-8.
    files: BTreeMap<String, Option<String>>,
    /// What `cargo metadata` says.
    pub(super) metadata: Value,
}

impl Tree {
    pub(super) fn new(files: BTreeMap<String, Option<String>>, metadata: Value) -> Self {
        Tree { files, metadata }
    }

    pub(super) fn read(root: &Path, metadata: Value) -> Result<Self, String> {
        let mut files = BTreeMap::new();
        walk(root, "", &mut files)?;
        Ok(Tree::new(files, metadata))
    }

    pub(super) fn file_count(&self) -> usize {
        self.files.len()
    }

    pub(super) fn paths(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    pub(super) fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().filter_map(|(path, text)| Some((path.as_str(), text.as_deref()?)))
    }

    pub(super) fn with_extension(&self, extension: &str) -> impl Iterator<Item = (&str, &str)> {
        self.texts().filter(move |(path, _)| Path::new(path).extension().is_some_and(|own| own == extension))
    }

    pub(super) fn rust(&self) -> impl Iterator<Item = (&str, &str)> {
        self.with_extension("rs")
    }

    /// A file, or a folder with a file somewhere below it.
    pub(super) fn has(&self, path: &str) -> bool {
        let folder = format!("{path}/");
        path.is_empty() || self.files.contains_key(path) || self.paths().any(|one| one.starts_with(&folder))
    }
}

/// Whether some folder on the way, or the file itself without its extension, is called that.
pub(super) fn has_part(path: &str, name: &str) -> bool {
    path.split('/').any(|part| part == name || part.split('.').next() == Some(name))
}

fn walk(folder: &Path, prefix: &str, files: &mut BTreeMap<String, Option<String>>) -> Result<(), String> {
    let could_not = |error| format!("could not read `{}`\ncaused by: {error}", folder.display());
    for entry in fs::read_dir(folder).map_err(could_not)? {
        let entry = entry.map_err(could_not)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = entry.file_type().map_err(could_not)?;
        let path = format!("{prefix}{name}");
        if kind.is_dir() {
            if !SKIPPED.contains(&name.as_str()) {
                walk(&entry.path(), &format!("{path}/"), files)?;
            }
        } else if kind.is_file() {
            let bytes = fs::read(entry.path()).map_err(could_not)?;
            files.insert(path, String::from_utf8(bytes).ok());
        } else {
            // A link has no text of its own, but may be linked to.
            files.insert(path, None);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_there_if_something_is_in_it() {
        let files = BTreeMap::from([("docs/guides/a.md".to_owned(), None)]);
        let tree = Tree::new(files, Value::Null);
        assert!(tree.has("docs/guides/a.md") && tree.has("docs/guides") && tree.has("docs"));
        assert!(!tree.has("docs/guide") && !tree.has("docs/guides/b.md"));
    }

    #[test]
    fn parts_of_a_path_are_whole_names() {
        assert!(has_part("crates/cove/tests/it/main.rs", "tests"));
        assert!(has_part("crates/cove/src/config/tests.rs", "tests"));
        assert!(!has_part("crates/cove/src/contests.rs", "tests"));
    }

    #[test]
    fn this_file_is_in_the_tree() {
        let tree = Tree::read(&crate::cargo::root(), Value::Null).unwrap();
        assert!(tree.rust().any(|(path, _)| path == "xtask/src/tidy/tree.rs"));
        assert!(tree.paths().all(|path| !path.starts_with("target/") && !path.starts_with(".git/")));
    }
}
