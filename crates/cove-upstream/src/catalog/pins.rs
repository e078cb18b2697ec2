//! Pins: the definition of every tool as it was accepted, kept between runs, so that a server cannot change a tool
//! behind the back of the person who trusted it. The first listing of a server is accepted, or held in quarantine; a
//! later change is held, reported or taken over, as the policy says.
//!
//! There is one file for each server and definition, so that another server of the same name inherits nothing but what
//! a person has seen held: a change stays held if the server still lists it under its new definition. The file is
//! replaced atomically, by one process at a time: a process holds the lock of the folder from reading to renaming. The
//! first line is the header; each further line is a tool. A file that cannot be read is not a file that is missing:
//! while changes are blocked, its server is held.

mod pin_state;
mod server_pins;
mod tool_definition;

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::ToolDocument;
use super::names::stable_hash;
use cove_core::error::{display_path, display_value, write_hint};
use cove_core::keywords;
use cove_core::private_file::{
    ExistingFile, create_private_folder, lock_within, open_private_file, remove_unfinished, write_private_file,
};
use cove_core::sync::lock;
use server_pins::{PinnedTool, PinsHeader, ServerPins};

pub use pin_state::PinState;
pub use server_pins::{PinnedInstructions, ServerChanges};
pub use tool_definition::{FIELDS, ToolDefinition};

const VERSION: u32 = 1;
/// Twice the texts of a server and room for names and digests.
const MAX_FILE: u64 = 64 << 20;
const MAX_HEADER: u64 = 8 << 20;
/// Most files. Definitions that are no longer used leave theirs behind.
const MAX_FILES: usize = 512;
/// A process that holds the lock for longer is stopped or hangs.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

keywords!(
    /// What happens to a tool that is not as it was accepted.
    #[derive(Default)]
    pub ToolChangePolicy, "POLICY", "a policy for changed tools":
    /// Code cannot call it, and sees it as it was accepted.
    #[default]
    Block = "block",
    /// Code uses it as it is now, and the person is warned until the change is accepted.
    Warn = "warn",
    /// It counts as accepted.
    Allow = "allow",
);

/// What happens to the tools of a server that is listed for the first time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FirstListing {
    #[default]
    Accept,
    /// Code cannot use the server until a person accepts it.
    Quarantine,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PinPolicy {
    pub changes: ToolChangePolicy,
    pub first_listing: FirstListing,
}

/// Why code cannot use a server at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerHold {
    /// It is new, and was listed or not.
    Quarantined { is_listed: bool },
    /// The file with its accepted tools is damaged, for this reason.
    Damaged(String),
}

/// Why code cannot use one tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolHold {
    Changed,
    Added,
}

/// One difference between what was accepted and what a server lists.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolChange {
    pub tool: String,
    pub before: Option<ToolDefinition>,
    pub after: Option<ToolDefinition>,
}

/// Everything that a person may accept of one server.
#[derive(Debug, Clone, PartialEq)]
pub struct PendingChanges {
    pub is_quarantined: bool,
    pub tools: Vec<ToolChange>,
    pub instructions: Option<PinnedInstructions>,
}

/// What a person accepted.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AcceptedChanges {
    pub changes: ServerChanges,
    pub ends_quarantine: bool,
    pub replaces_damaged: bool,
}

/// Why nothing was accepted.
#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    #[error("its tools were never listed")]
    NeverListed,
    #[error("there is no change of `{0}`")]
    UnknownTool(String),
    #[error("`{0}` changed again after `cove servers diff` showed it")]
    ChangedAgain(String),
    #[error("`{0}` was not part of what `cove servers diff` showed")]
    NotShown(String),
    #[error("the server is in quarantine, and changes of tools are not blocked, so it is accepted as a whole")]
    OnlyWhole,
    #[error("{0}")]
    Storage(String),
}

/// The result of comparing a list with the pins of its server.
pub(super) struct CheckedTools {
    pub(super) documents: Vec<ToolDocument>,
    pub(super) state: PinState,
    pub(super) warnings: Vec<String>,
}

/// The pins of all servers.
#[derive(Debug)]
pub struct PinStore {
    folder: Option<PathBuf>,
    policy: PinPolicy,
    /// Pins that could not be written. They count until this process ends.
    unwritten: Mutex<HashMap<String, ServerPins>>,
}

/// A server, and the digest of its definition.
#[derive(Debug, Clone, Copy)]
pub(super) struct PinKey<'a> {
    pub(super) server: &'a str,
    pub(super) definition: &'a str,
}

impl PinKey<'_> {
    /// A server name can be any text. The header tells two names with the same hash apart.
    fn file_name(self) -> String {
        let definition: String = self.definition.chars().filter(char::is_ascii_alphanumeric).take(64).collect();
        format!("{}{definition}.pins", file_prefix(self.server))
    }
}

fn file_prefix(server: &str) -> String {
    let letters: String = server.chars().filter(char::is_ascii_alphanumeric).take(32).collect();
    format!("{}-{:016x}-", letters.to_lowercase(), stable_hash(server.bytes()))
}

impl PinStore {
    /// Opens the pins in a state directory. Reads nothing. Without a directory, pins last as long as the process.
    pub fn new(state_dir: Option<&Path>, policy: PinPolicy) -> Self {
        Self { folder: state_dir.map(|state_dir| state_dir.join("pins")), policy, unwritten: Mutex::default() }
    }

    /// Returns a value that changes when any process writes pins.
    pub(super) fn stamp(&self) -> Option<SystemTime> {
        fs::metadata(self.folder.as_ref()?).ok()?.modified().ok()
    }

    /// Returns what the pins of a server mean, without reading its tools.
    pub(super) fn state(&self, key: PinKey<'_>) -> PinState {
        match self.read_header(key) {
            Ok(header) => self.to_state(header.as_ref()),
            Err(damage) => self.damaged_state(key, damage),
        }
    }

    fn to_state(&self, header: Option<&PinsHeader>) -> PinState {
        let PinPolicy { changes, first_listing } = self.policy;
        let hold = match header {
            Some(header) if header.quarantined => Some(ServerHold::Quarantined { is_listed: true }),
            None if first_listing == FirstListing::Quarantine => Some(ServerHold::Quarantined { is_listed: false }),
            _ => None,
        };
        PinState {
            hold,
            changes: header.map(|header| Arc::new(header.changes.clone())).unwrap_or_default(),
            blocks: changes == ToolChangePolicy::Block,
            stamp: header.map(|header| format!("{:x}-{}", header.revision, changes.as_str())).unwrap_or_default(),
        }
    }

    fn damaged_state(&self, key: PinKey<'_>, damage: String) -> PinState {
        tracing::warn!(server = key.server, "{damage}");
        match self.policy.changes {
            ToolChangePolicy::Block => {
                PinState { hold: Some(ServerHold::Damaged(damage)), blocks: true, ..PinState::default() }
            }
            ToolChangePolicy::Warn | ToolChangePolicy::Allow => self.to_state(None),
        }
    }

    /// Compares a list of tools with the pins of its server, and writes what is new.
    pub(super) fn check(&self, key: PinKey<'_>, tools: Vec<ToolDocument>) -> CheckedTools {
        let mut listed = Vec::with_capacity(tools.len());
        let mut documents = HashMap::with_capacity(tools.len());
        for mut tool in tools {
            // The first tool of a name counts, as in the catalog.
            if !documents.contains_key(&tool.name) {
                let definition = tool.definition.take().map(|definition| *definition);
                let definition = definition.unwrap_or_else(|| ToolDefinition::from_document(&tool));
                listed.push((tool.name.clone(), definition));
                documents.insert(tool.name.clone(), tool);
            }
        }
        let policy = self.policy;
        let update = |pins: Option<ServerPins>| match pins {
            // Some servers have no tools until they are set up. Their first tools count as the first listing.
            Some(pins) if pins.tools.is_empty() && !pins.header.quarantined => {
                Some(ServerPins::new(pins.header, Vec::new(), listed, policy))
            }
            Some(mut pins) => {
                pins.update(listed, policy.changes);
                Some(pins)
            }
            None => {
                let ServerPins { header, tools } = self.held_before(key).unwrap_or_default();
                let header = PinsHeader { instructions: header.instructions, ..key.header() };
                Some(ServerPins::new(header, tools, listed, policy))
            }
        };
        match self.change(key, update) {
            Ok((pins, warning)) => {
                let pins = pins.unwrap_or_default();
                let state = self.to_state(Some(&pins.header));
                let mut warnings = Vec::from_iter(warning);
                warnings.extend(state.warning(key.server));
                CheckedTools { documents: pins.documents(policy.changes, documents), state, warnings }
            }
            // The list is for the person alone.
            Err(damage) => CheckedTools {
                warnings: vec![damage.clone()],
                state: PinState { hold: Some(ServerHold::Damaged(damage)), blocks: true, ..PinState::default() },
                documents: documents.into_values().collect(),
            },
        }
    }

    /// Returns what a person has not accepted under the last definition of a server that has another one now.
    fn held_before(&self, key: PinKey<'_>) -> Option<ServerPins> {
        let prefix = file_prefix(key.server);
        let entries = fs::read_dir(self.folder.as_ref()?).ok()?.flatten();
        let dated = entries.filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let definition = name.strip_prefix(&prefix)?.strip_suffix(".pins")?.to_owned();
            Some((entry.metadata().ok()?.modified().ok()?, definition))
        });
        let (_, definition) = dated.max()?;
        let mut pins = self.read(PinKey { definition: &definition, ..key }).ok()??;
        pins.tools.retain(|tool| tool.pending.is_some());
        pins.header.instructions = pins.header.instructions.filter(|pinned| pinned.pending.is_some());
        Some(pins).filter(|pins| !pins.header.quarantined)
    }

    /// Compares the instructions of a server with those that were accepted. Returns what code sees, and the new state.
    pub(super) fn check_instructions(&self, key: PinKey<'_>, now: Option<&str>) -> (Option<String>, PinState) {
        let text = now.unwrap_or_default();
        let policy = self.policy.changes;
        // The tools need not be read if nothing changed.
        if let Ok(Some(header)) = self.read_header(key)
            && header.instructions.as_ref().is_some_and(|pinned| pinned.pending.is_none() && pinned.accepted == text)
        {
            return (visible_instructions(&header, policy), self.to_state(Some(&header)));
        }
        let update = |pins: Option<ServerPins>| {
            let mut pins = pins?;
            pins.update_instructions(text, policy);
            Some(pins)
        };
        match self.change(key, update) {
            Ok((Some(pins), _)) => (visible_instructions(&pins.header, policy), self.to_state(Some(&pins.header))),
            Ok((None, _)) => (now.map(str::to_owned), self.to_state(None)),
            Err(damage) => (None, self.damaged_state(key, damage)),
        }
    }

    /// Returns the tools and instructions that code sees according to the pins. `None` if there are no pins.
    pub(super) fn recall(&self, key: PinKey<'_>) -> Option<(Vec<ToolDocument>, Option<String>, PinState)> {
        let policy = self.policy.changes;
        let pins = self.read(key).ok()??;
        let documents = pins.documents(policy, HashMap::new());
        Some((documents, visible_instructions(&pins.header, policy), self.to_state(Some(&pins.header))))
    }

    /// Returns what a person has not accepted. `None` if the server was never listed. Fails if its file is damaged.
    pub fn pending(&self, server: &str, definition: &str) -> Result<Option<PendingChanges>, String> {
        let Some(pins) = self.read(PinKey { server, definition })? else { return Ok(None) };
        let change = |tool: PinnedTool| ToolChange {
            after: if tool.is_gone { None } else { tool.pending },
            tool: tool.name,
            before: tool.accepted,
        };
        let is_quarantined = pins.header.quarantined;
        let instructions = pins.header.instructions.filter(|pinned| is_quarantined || pinned.pending.is_some());
        let tools = pins.tools.into_iter().filter(PinnedTool::differs).map(change).collect();
        Ok(Some(PendingChanges { is_quarantined, tools, instructions }))
    }

    /// Records what a person saw, so that a server cannot change a tool between the look and the acceptance.
    pub fn mark_shown(&self, server: &str, definition: &str, shown: &PendingChanges) {
        let digests: HashMap<&str, &str> = shown
            .tools
            .iter()
            .map(|change| (change.tool.as_str(), change.after.as_ref().map_or("gone", |after| &after.digest)))
            .collect();
        let key = PinKey { server, definition };
        let update = |pins: Option<ServerPins>| {
            let mut pins = pins?;
            for tool in &mut pins.tools {
                if let Some(digest) = digests.get(tool.name.as_str()) {
                    tool.shown = Some((*digest).to_owned());
                }
            }
            if let (Some(shown), Some(pinned)) = (&shown.instructions, &mut pins.header.instructions) {
                pinned.shown = Some(shown.pending.as_ref().unwrap_or(&shown.accepted).clone());
            }
            Some(pins)
        };
        if (!digests.is_empty() || shown.instructions.is_some())
            && let Err(warning) = self.change(key, update)
        {
            tracing::warn!(server, "{warning}");
        }
    }

    /// Accepts changes: of the named tools, or everything if none is named. Fails, and accepts nothing, if a tool has no
    /// change, or changed or appeared after `mark_shown`.
    pub fn accept(&self, server: &str, definition: &str, tools: &[String]) -> Result<AcceptedChanges, AcceptError> {
        let key = PinKey { server, definition };
        let storage = |error: io::Error| AcceptError::Storage(self.write_problem(server, &error));
        let folder = self.folder.as_ref().ok_or(AcceptError::NeverListed)?;
        let _lock = lock_folder(folder).map_err(storage)?;
        let mut pins = match self.read(key) {
            Ok(Some(pins)) => pins,
            Ok(None) => return Err(AcceptError::NeverListed),
            // Without the file, the next listing counts as the first.
            Err(_) => {
                fs::remove_file(folder.join(key.file_name())).map_err(storage)?;
                return Ok(AcceptedChanges { replaces_damaged: true, ..AcceptedChanges::default() });
            }
        };
        let is_wanted = |tool: &PinnedTool| tool.differs() && (tools.is_empty() || tools.contains(&tool.name));
        if let Some(unknown) =
            tools.iter().find(|name| !pins.tools.iter().any(|tool| tool.name == **name && tool.differs()))
        {
            return Err(AcceptError::UnknownTool(display_value(unknown)));
        }
        let ends_quarantine = pins.header.quarantined;
        if ends_quarantine && !tools.is_empty() && self.policy.changes != ToolChangePolicy::Block {
            return Err(AcceptError::OnlyWhole);
        }
        pins.check_shown(is_wanted, tools.is_empty())?;
        pins.header.quarantined = false;
        pins.sum_up();
        let before = pins.header.changes.clone();
        pins.accept_where(is_wanted);
        if tools.is_empty() {
            pins.header.instructions.iter_mut().for_each(PinnedInstructions::accept);
            pins.sum_up();
        }
        self.write(key, &mut pins).map_err(storage)?;
        let after = &pins.header.changes;
        let accepted = |before: Vec<String>, after: &[String]| {
            before.into_iter().filter(|name| after.binary_search(name).is_err()).collect()
        };
        let changes = ServerChanges {
            changed: accepted(before.changed, &after.changed),
            added: accepted(before.added, &after.added),
            removed: accepted(before.removed, &after.removed),
            instructions: before.instructions && !after.instructions,
        };
        Ok(AcceptedChanges { changes, ends_quarantine, replaces_damaged: false })
    }

    /// Forgets the pins of a server, of every definition.
    pub(super) fn remove(&self, server: &str) {
        let prefix = file_prefix(server);
        let Some(folder) = &self.folder else { return };
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.file_name().to_str().is_some_and(|name| name.starts_with(&prefix)) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// Reads the pins of a server, changes them, and writes them if they differ. Returns the new pins, and a warning if
    /// they could not be written. Fails if the file is damaged and must not be replaced.
    fn change(
        &self,
        key: PinKey<'_>,
        update: impl FnOnce(Option<ServerPins>) -> Option<ServerPins>,
    ) -> Result<(Option<ServerPins>, Option<String>), String> {
        let locked = self.folder.as_ref().map(|folder| lock_folder(folder)).transpose();
        let before = match self.read(key) {
            Ok(before) => before,
            Err(damage) if self.policy.changes == ToolChangePolicy::Block => return Err(damage),
            Err(_) => None,
        };
        let fingerprint = before.as_ref().map(ServerPins::fingerprint);
        let mut pins = match update(before) {
            Some(pins) if fingerprint != Some(pins.fingerprint()) => pins,
            unchanged => return Ok((unchanged, None)),
        };
        let written = locked.and_then(|_lock| self.write(key, &mut pins));
        let mut unwritten = lock(&self.unwritten);
        let warning = match written {
            Ok(()) => {
                unwritten.remove(&key.file_name());
                None
            }
            Err(error) => {
                unwritten.insert(key.file_name(), pins.clone());
                self.folder.is_some().then(|| self.write_problem(key.server, &error))
            }
        };
        Ok((Some(pins), warning))
    }

    fn write_problem(&self, server: &str, error: &io::Error) -> String {
        format!(
            "could not keep the accepted tools of `{}` in `{}`: {error}; {}",
            display_value(server),
            display_path(self.folder.as_deref().unwrap_or(Path::new(""))),
            write_hint(error, "make the folder writable")
        )
    }

    fn open_file(&self, key: PinKey<'_>) -> Result<Option<BufReader<io::Take<File>>>, String> {
        let Some(folder) = &self.folder else { return Ok(None) };
        let file = open_private_file(&folder.join(key.file_name()));
        let file = file.map_err(|error| self.damage(key, &error.to_string()))?;
        Ok(file.map(|file| BufReader::new(file.take(MAX_FILE))))
    }

    fn damage(&self, key: PinKey<'_>, reason: &str) -> String {
        let path = self.folder.as_deref().unwrap_or(Path::new("")).join(key.file_name());
        format!("could not read the accepted tools in `{}`: {}", display_path(&path), display_value(reason))
    }

    fn read_header(&self, key: PinKey<'_>) -> Result<Option<PinsHeader>, String> {
        if let Some(pins) = lock(&self.unwritten).get(&key.file_name()) {
            return Ok(Some(pins.header.clone()));
        }
        let Some(mut file) = self.open_file(key)? else { return Ok(None) };
        self.parse_header(key, &mut file).map(|header| Some(header.0))
    }

    /// Returns the header, and the number of tools that follow.
    fn parse_header(&self, key: PinKey<'_>, file: &mut impl BufRead) -> Result<(PinsHeader, usize), String> {
        let mut line = Vec::new();
        let parsed = file.take(MAX_HEADER).read_until(b'\n', &mut line).map_err(|error| error.to_string());
        let parsed = parsed.and_then(|_| serde_json::from_slice(&line).map_err(|error| error.to_string()));
        let (header, count): (PinsHeader, usize) = parsed.map_err(|reason| self.damage(key, &reason))?;
        if (header.version, &*header.server, &*header.definition) != (VERSION, key.server, key.definition) {
            return Err(self.damage(key, "it is of another server or another version of Cove"));
        }
        Ok((header, count))
    }

    fn read(&self, key: PinKey<'_>) -> Result<Option<ServerPins>, String> {
        if let Some(pins) = lock(&self.unwritten).get(&key.file_name()) {
            return Ok(Some(pins.clone()));
        }
        let Some(mut file) = self.open_file(key)? else { return Ok(None) };
        let (header, count) = self.parse_header(key, &mut file)?;
        let mut tools = Vec::with_capacity(count.min(100_000));
        let mut line = String::new();
        while file.read_line(&mut line).map_err(|error| self.damage(key, &error.to_string()))? > 0 {
            let tool: PinnedTool = serde_json::from_str(&line).map_err(|error| self.damage(key, &error.to_string()))?;
            tools.push(tool);
            line.clear();
        }
        match tools.len() == count {
            true => Ok(Some(ServerPins { header, tools })),
            false => Err(self.damage(key, "its end is missing")),
        }
    }

    /// Replaces the file of a server. The caller holds the lock.
    fn write(&self, key: PinKey<'_>, pins: &mut ServerPins) -> io::Result<()> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        pins.header.revision = since.as_nanos() as u64 ^ u64::from(std::process::id()).rotate_left(40);
        let folder = self.folder.as_ref().ok_or(ErrorKind::NotFound)?;
        let mut text = serde_json::to_vec(&(&pins.header, pins.tools.len()))?;
        text.push(b'\n');
        for tool in &pins.tools {
            serde_json::to_writer(&mut text, tool)?;
            text.push(b'\n');
        }
        write_private_file(&folder.join(key.file_name()), text, ExistingFile::Replace)?;
        // Only the process with the lock writes here.
        remove_unfinished(folder, Duration::ZERO);
        remove_oldest(folder);
        Ok(())
    }
}

impl PinKey<'_> {
    fn header(self) -> PinsHeader {
        PinsHeader {
            version: VERSION,
            server: self.server.to_owned(),
            definition: self.definition.to_owned(),
            ..PinsHeader::default()
        }
    }
}

fn visible_instructions(header: &PinsHeader, policy: ToolChangePolicy) -> Option<String> {
    let pinned = header.instructions.as_ref()?;
    let text = match (&pinned.pending, policy) {
        (Some(pending), ToolChangePolicy::Warn | ToolChangePolicy::Allow) => pending,
        _ => &pinned.accepted,
    };
    Some(text.clone()).filter(|text| !text.is_empty())
}

/// Locks the folder of pins, and creates it if it is missing. Fails if another process keeps the lock for long.
fn lock_folder(folder: &Path) -> io::Result<File> {
    create_private_folder(folder)?;
    let file = File::open(folder)?;
    lock_within(&file, LOCK_TIMEOUT)?;
    Ok(file)
}

/// Removes the files that were not written for the longest time.
fn remove_oldest(folder: &Path) {
    let dated = |entry: fs::DirEntry| Some((entry.metadata().ok()?.modified().ok()?, entry.path()));
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<(SystemTime, PathBuf)> = entries.filter_map(dated).collect();
    files.sort();
    for (_, oldest) in files.iter().take(files.len().saturating_sub(MAX_FILES)) {
        let _ = fs::remove_file(oldest);
    }
}

#[cfg(test)]
mod tests;
