//! The files that rules check: everything in the workspace except what is built, fetched or found by a fuzzer.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::product::{ProductFile, product_files};
use crate::attempts::ErrorContext;

/// Folder names that are skipped anywhere. A fuzz corpus is bytes that look like text by accident.
const SKIPPED: &[&str] = &[".git", "target", "artifacts", "corpus", "node_modules", "__pycache__", ".venv"];

pub(super) struct SourceTree {
    /// By path from the top, with `/`. `None` for files that are not UTF-8.
    files: BTreeMap<String, Option<String>>,
    /// The output of `cargo metadata`.
    pub(super) metadata: Value,
    product: OnceCell<Vec<ProductFile>>,
}

impl SourceTree {
    pub(super) fn new(files: BTreeMap<String, Option<String>>, metadata: Value) -> Self {
        SourceTree { files, metadata, product: OnceCell::new() }
    }

    pub(super) fn read(root: &Path, metadata: Value) -> Result<Self, String> {
        let mut files = BTreeMap::new();
        walk(root, "", &mut files)?;
        Ok(SourceTree::new(files, metadata))
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

    /// The product code, without tests. It is split on first use, because several rules read it.
    pub(super) fn product(&self) -> &[ProductFile] {
        self.product.get_or_init(|| product_files(self.texts()))
    }

    /// True for a file, and for a folder with a file somewhere below it.
    pub(super) fn has(&self, path: &str) -> bool {
        let folder = format!("{path}/");
        path.is_empty() || self.files.contains_key(path) || self.paths().any(|one| one.starts_with(&folder))
    }
}

/// True if a folder of the path, or the file itself without its extension, has this name.
pub(super) fn has_part(path: &str, name: &str) -> bool {
    path.split('/').any(|part| part == name || part.split('.').next() == Some(name))
}

fn walk(folder: &Path, prefix: &str, files: &mut BTreeMap<String, Option<String>>) -> Result<(), String> {
    let what = format!("read `{}`", folder.display());
    for entry in fs::read_dir(folder).could_not(&what)? {
        let entry = entry.could_not(&what)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = entry.file_type().could_not(&what)?;
        let path = format!("{prefix}{name}");
        if kind.is_dir() {
            if !SKIPPED.contains(&name.as_str()) {
                walk(&entry.path(), &format!("{path}/"), files)?;
            }
        } else if kind.is_file() {
            let bytes = fs::read(entry.path()).could_not(&what)?;
            files.insert(path, String::from_utf8(bytes).ok());
        } else {
            // A link has no text of its own, but documents may link to it.
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
        let tree = SourceTree::new(files, Value::Null);
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
        let tree = SourceTree::read(&crate::cargo::root(), Value::Null).unwrap();
        assert!(tree.rust().any(|(path, _)| path == "xtask/src/tidy/tree.rs"));
        assert!(tree.paths().all(|path| !path.starts_with("target/") && !path.starts_with(".git/")));
    }
}
