//! What a file is to hold after Cove's entry is gone: everything else that is there now, and no empty container that
//! Cove added. The backups tell which containers are Cove's.

use super::client_file::ClientFile;
use super::edit::{self, ClientEntry};
use cove_core::document::{ConfigDocument, DocumentNode};
use cove_core::error::Refusal;

/// A file without Cove's entry.
#[derive(Debug)]
pub(super) enum RestoredFile {
    Text(ConfigDocument),
    /// Cove created the file, and nothing else is in it.
    Absent,
}

impl RestoredFile {
    /// None if there is to be no file.
    pub(super) fn text(&self) -> Option<String> {
        match self {
            Self::Text(document) => Some(document.file_text()),
            Self::Absent => None,
        }
    }
}

/// Returns what to write after a client's command removed the entry at the path from a file that was meant to become
/// `wanted`. None if nothing is left to do.
pub(super) fn finish_removal(
    document: &ConfigDocument,
    wanted: &RestoredFile,
    path: &[String],
) -> Result<Option<RestoredFile>, Refusal> {
    let absent =
        ConfigDocument::parse(document.format(), "").map_err(|error| edit::unreadable(document.format(), &error))?;
    let old = match wanted {
        RestoredFile::Text(old) => old,
        RestoredFile::Absent => &absent,
    };
    let tidied = without_containers(document.clone(), old, path);
    let members = |document: &ConfigDocument| document.members().to_vec();
    Ok(match wanted {
        // The client wrote the rest in its own layout.
        RestoredFile::Text(old) if old.root() == tidied.root() => Some(RestoredFile::Text(old.clone())),
        RestoredFile::Absent if members(&tidied).is_empty() => Some(RestoredFile::Absent),
        _ if tidied.text() == document.text() => None,
        _ => Some(RestoredFile::Text(tidied)),
    })
}

/// Returns None if there is no entry at the path.
pub(super) fn without_entry(
    document: &ConfigDocument,
    path: &[String],
    file: &ClientFile,
) -> Result<Option<RestoredFile>, Refusal> {
    let (Some(node), Some(removed)) = (edit::find(document, path)?, edit::remove(document, path)?) else {
        return Ok(None);
    };
    let container = &path[..path.len() - 1];
    // Among other servers, the entry goes and leaves every other byte.
    if !is_empty(&removed, container) {
        return Ok(Some(RestoredFile::Text(removed)));
    }
    let entry = ClientEntry { fixed: node.members().unwrap_or_default().to_vec(), initial: Vec::new() };
    let text = document.file_text();
    let parse = |text: String| ConfigDocument::parse(document.format(), &text).ok();
    let lacks_entry = |old: &ConfigDocument| matches!(edit::find(old, path), Ok(None));
    let Some(old) = file.backups().into_iter().filter_map(parse).find(lacks_entry) else {
        // The first install into an existing file kept a backup without the entry. To clients, a file that had nothing
        // in it is the same as none.
        let is_ours = edit::entry_alone(document.format(), path, &entry).is_ok_and(|alone| alone == text);
        return Ok(Some(if is_ours { RestoredFile::Absent } else { RestoredFile::Text(removed) }));
    };
    // With the entry, the backup is what the file is now, so without the entry it is what the file was.
    if edit::set(&old, path, &entry).is_ok_and(|with_entry| with_entry.file_text() == text) {
        return Ok(Some(RestoredFile::Text(old)));
    }
    // The file changed since.
    Ok(Some(RestoredFile::Text(without_containers(removed, &old, path))))
}

/// The document without those empty containers of the path that an older one does not have.
fn without_containers(document: ConfigDocument, old: &ConfigDocument, path: &[String]) -> ConfigDocument {
    let mut restored = document;
    for depth in (1..path.len()).rev() {
        let container = &path[..depth];
        let is_added = is_empty(&restored, container) && matches!(edit::find(old, container), Ok(None));
        match edit::remove(&restored, container) {
            Ok(Some(without)) if is_added => restored = without,
            _ => break,
        }
    }
    restored
}

/// True if there is nothing in the map at a path.
fn is_empty(document: &ConfigDocument, path: &[String]) -> bool {
    let members = |node: Option<&DocumentNode>| node.and_then(DocumentNode::members).map_or(0, <[_]>::len);
    edit::find(document, path).is_ok_and(|node| members(node) == 0)
}
