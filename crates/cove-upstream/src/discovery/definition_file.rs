//! Files with the definition of one server each.

use std::io;
use std::path::{Path, PathBuf};

use cove_core::private_file::{ExistingFile, write_private_file};
use serde::Serialize;
use serde_json::{Map, Value, json};

/// Returns the text of a file that defines one server.
pub fn definition_text(name: &str, entry: &impl Serialize) -> String {
    let document = json!({"mcpServers": {(name): entry}});
    format!("{document:#}\n")
}

/// Writes the definition of a server into a folder, and returns its file. Fails with `AlreadyExists` if there is one.
pub fn write_definition(folder: &Path, name: &str, entry: &Map<String, Value>) -> io::Result<PathBuf> {
    let path = folder.join(format!("{name}.json"));
    write_private_file(&path, definition_text(name, entry), ExistingFile::Keep)?;
    Ok(path)
}
