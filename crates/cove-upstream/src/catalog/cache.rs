//! The cache: one file per server, replaced atomically. A damaged file is reported, and its tools are listed again at
//! the server's next start. Writes are not synced to disk, because a lost file only costs one start of its server.
//!
//! The file is JSON with one line per tool, so it can be split without parsing it into a tree.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::names::stable_hash;
use super::view::LearnedResults;
use super::{CatalogServer, ProtocolEra, ToolListing};
use cove_core::error::{display_path, display_value, write_hint};
use cove_core::private_file::{open_private_file, write_cached_file};

const VERSION: u32 = 3;
pub(super) const MAX_FILE: u64 = 32 << 20;
/// Ends the first line. The tools follow.
const TOOLS: &str = ",\"tools\":[";
const END: &str = "]}";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct CacheHeader {
    version: u32,
    server: String,
    pub(super) definition: String,
    /// The pins that the tools come from.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) pins: String,
    /// Seconds since 1970.
    pub(super) listed_at: u64,
    /// Hash of the list that the server sent.
    #[serde(default)]
    pub(super) sent: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) era: Option<ProtocolEra>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) instructions: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) results: LearnedResults,
}

/// Returns `None` if there is no file, or one of another version or server. Fails with the reason if the file is
/// damaged.
pub(super) fn read(folder: &Path, server: &str) -> Result<Option<(CacheHeader, ToolListing)>, String> {
    let path = cache_path(folder, server);
    let fail = |why: String| {
        format!(
            "could not use the cached tools in `{}`: {}; they are listed again when the server starts",
            display_path(&path),
            display_value(&why)
        )
    };
    let file = open_private_file(&path).map_err(|error| fail(error.to_string()))?;
    let Some(file) = file else { return Ok(None) };
    let mut text = String::new();
    file.take(MAX_FILE + 1).read_to_string(&mut text).map_err(|error| fail(error.to_string()))?;
    if text.len() as u64 > MAX_FILE {
        return Err(fail(format!("it has more than {} MiB", MAX_FILE >> 20)));
    }
    parse(text, server).map_err(fail)
}

fn parse(mut text: String, server: &str) -> Result<Option<(CacheHeader, ToolListing)>, String> {
    let first = text.lines().next().unwrap_or_default();
    let start = first.strip_suffix(TOOLS).ok_or("it does not begin as it should")?;
    let header: CacheHeader = serde_json::from_str(&format!("{start}}}")).map_err(|error| error.to_string())?;
    if header.version != VERSION || header.server != server {
        return Ok(None);
    }
    let body = first.len() + 1;
    let end = text.trim_end().strip_suffix(END).ok_or("its end is missing")?.trim_end().len();
    text.truncate(end);
    text.drain(..body.min(end));
    text.shrink_to_fit();
    Ok(Some((header, ToolListing::parse(text)?)))
}

/// Replaces the cache file of a server. Fails with a message for the operator.
pub(super) fn write(folder: &Path, server: &CatalogServer, listing: &ToolListing) -> Result<(), String> {
    let path = cache_path(folder, &server.name);
    let header = CacheHeader {
        version: VERSION,
        server: server.name.clone(),
        definition: server.definition.clone(),
        pins: server.pins.stamp.clone(),
        sent: server.sent,
        listed_at: server.listed_at.unwrap_or(0),
        era: server.era,
        instructions: server.instructions.clone(),
        results: LearnedResults::clone(&server.results),
    };
    let attempt = || -> std::io::Result<()> {
        let start = serde_json::to_string(&header)?;
        let start = start.strip_suffix('}').unwrap_or(&start);
        // Names of tools reveal what the user works on.
        write_cached_file(&path, format!("{start}{TOOLS}\n{}\n{END}\n", listing.text()))
    };
    attempt().map_err(|error| {
        format!(
            "could not keep the tools of `{}` in `{}`: {error}; {}, or the server is started in every run to list them",
            display_value(&server.name),
            display_path(folder),
            write_hint(&error, "make the folder writable")
        )
    })
}

pub(super) fn remove(folder: &Path, server: &str) {
    let _ = fs::remove_file(cache_path(folder, server));
}

/// A server name can be any text, even a path. The file name has some of its letters, for people, and a hash;
/// the header tells two names with the same hash apart.
fn cache_path(folder: &Path, server: &str) -> PathBuf {
    let letters: String = server.chars().filter(char::is_ascii_alphanumeric).take(32).collect();
    folder.join(format!("{}-{:016x}.json", letters.to_lowercase(), stable_hash(server.bytes())))
}
