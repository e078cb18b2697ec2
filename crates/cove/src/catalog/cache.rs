//! One file a server, replaced whole or not at all. A cache only: what cannot be read is told and made anew, and nothing
//! here waits for the disk to be sure, because a file that was lost costs one start of its server.
//!
//! The file is JSON with a line for each tool, so that it can be taken apart without being parsed into a tree.

use std::fs::{self, DirBuilder, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Era, Listing, Server};
use crate::error::{shown, shown_path};

const VERSION: u32 = 1;
pub(super) const MAX_FILE: u64 = 32 << 20;
/// Ends the first line; the tools follow.
const TOOLS: &str = ",\"tools\":[";
const END: &str = "]}";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Header {
    version: u32,
    server: String,
    pub(super) definition: String,
    /// Seconds since 1970.
    pub(super) listed_at: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) era: Option<Era>,
}

impl Header {
    pub(super) fn of(server: &Server) -> Self {
        Self {
            version: VERSION,
            server: server.name.clone(),
            definition: server.definition.clone(),
            listed_at: server.listed_at.unwrap_or(0),
            era: server.era,
        }
    }
}

#[derive(Debug)]
pub(super) struct Kept {
    pub(super) header: Header,
    pub(super) listing: Listing,
}

/// Nothing if there is no file, or one of another version or server; why, if it is damaged.
pub(super) fn read(folder: &Path, server: &str) -> Result<Option<Kept>, String> {
    let path = path(folder, server);
    let fail = |why: String| {
        format!(
            "could not use the cached tools in `{}`: {}; they are listed anew when the server starts",
            shown_path(&path),
            shown(&why)
        )
    };
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(fail(error.to_string())),
    };
    if !file.metadata().is_ok_and(|meta| meta.is_file()) {
        return Err(fail("it is not a regular file".into()));
    }
    let mut text = String::new();
    file.take(MAX_FILE + 1).read_to_string(&mut text).map_err(|error| fail(error.to_string()))?;
    if text.len() as u64 > MAX_FILE {
        return Err(fail(format!("it has more than {} MiB", MAX_FILE >> 20)));
    }
    parse(text, server).map_err(fail)
}

fn parse(mut text: String, server: &str) -> Result<Option<Kept>, String> {
    let first = text.lines().next().unwrap_or_default();
    let start = first.strip_suffix(TOOLS).ok_or("it does not begin as it should")?;
    let header: Header = serde_json::from_str(&format!("{start}}}")).map_err(|error| error.to_string())?;
    if header.version != VERSION || header.server != server {
        return Ok(None);
    }
    let body = first.len() + 1;
    let end = text.trim_end().strip_suffix(END).ok_or("its end is missing")?.trim_end().len();
    text.truncate(end);
    text.drain(..body.min(end));
    text.shrink_to_fit();
    Ok(Some(Kept { header, listing: Listing::read(text)? }))
}

pub(super) fn write(folder: &Path, header: &Header, listing: &Listing) -> Result<(), String> {
    let path = path(folder, &header.server);
    let attempt = || -> std::io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        // Readable for its owner alone, as `tempfile` makes it: names of tools tell what somebody works on.
        let mut fresh = tempfile::Builder::new().prefix(".tools-").suffix(".tmp").tempfile_in(folder)?;
        let start = serde_json::to_string(header)?;
        let start = start.strip_suffix('}').unwrap_or(&start);
        fresh.write_all(format!("{start}{TOOLS}\n{}\n{END}\n", listing.text()).as_bytes())?;
        fresh.persist(&path).map_err(|error| error.error)?;
        Ok(())
    };
    attempt().map_err(|error| {
        format!(
            "could not keep the tools of `{}` in `{}`: {error}; make the folder writable, or the server is started \
             in every run to list them",
            shown(&header.server),
            shown_path(folder)
        )
    })
}

pub(super) fn remove(folder: &Path, server: &str) {
    let _ = fs::remove_file(path(folder, server));
}

/// A name can be anything, a path too: the file's has letters of it for people, and its digest.
fn path(folder: &Path, server: &str) -> PathBuf {
    let letters: String = server.chars().filter(char::is_ascii_alphanumeric).take(32).collect();
    folder.join(format!("{}-{:016x}.json", letters.to_lowercase(), digest(server.as_bytes())))
}

/// FNV-1a: the same in every build, and no secret goes in. Two names that come to the same are told apart by the header.
fn digest(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}
