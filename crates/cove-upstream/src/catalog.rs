//! Everything that Cove knows about upstream tools without starting a server: cached documents, search, signatures,
//! and checks of arguments. The catalog knows no MCP messages and starts nothing. Text of servers is data, sanitized
//! once when it comes in.

mod cache;
mod listed_tool;
pub mod names;
pub mod pins;
mod result_shape;
mod sanitize;
mod schema;
mod search;
pub mod server_overview;
pub mod signature;
mod tool_document;
mod tool_listing;
pub mod validate;
mod view;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use cove_core::policy::grants::Grants;
use cove_core::sync::{lock, read, write};
use pins::{PinKey, PinState, PinStore};
use view::{LearnedResult, LearnedResults};

pub(crate) use listed_tool::parse_tool;
pub use result_shape::ResultShape;
pub(crate) use sanitize::to_line;
use search::LazyEmbedding;
pub use search::{SearchHit, SearchHits, SearchMode};
pub use tool_document::{ToolDocument, definition_size};
pub use tool_listing::ToolListing;
pub use view::{CatalogServer, CatalogView, KnownTool, ToolLookupError};

const MAX_INSTRUCTIONS: usize = 2_000;
/// The first answers of a tool show what its results look like; later ones cost nothing.
const MAX_ANSWERS: u32 = 5;
/// Most tools of one server about whose results something is kept, so that its cache file stays within its bounds.
const MAX_LEARNED_TOOLS: usize = 128;

/// The protocol era that a server last used. Remembering it avoids a failed first attempt, which costs a slow server
/// its whole start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProtocolEra {
    Modern,
    Legacy,
}

impl ProtocolEra {
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Modern => Self::Legacy,
            Self::Legacy => Self::Modern,
        }
    }
}

/// How thoroughly pins are looked at again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PinReload {
    IfWritten,
    Always,
}

/// A configured server whose tools are not known yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerDeclaration {
    pub name: String,
    pub alias: String,
    pub description: String,
    /// Digest of the definition, without secrets. A cache with another digest is ignored.
    pub definition: String,
    /// The tools that the definition allows and denies.
    pub filter: Grants,
}

/// The shared catalog; clones share it. Readers take a [`CatalogView`] and keep it, so a search or a disk access
/// never blocks them.
#[derive(Debug, Clone)]
pub struct Catalog {
    folder: Option<Arc<Path>>,
    /// `None` if tools are not compared with earlier ones.
    pins: Option<Arc<PinStore>>,
    /// The stamp of the pins when they were last looked at.
    pins_seen: Arc<Mutex<Option<SystemTime>>>,
    view: Arc<RwLock<Arc<CatalogView>>>,
}

impl Catalog {
    /// Opens a catalog. Reads nothing: `declare` reads the file of a server.
    pub fn open(folder: impl Into<PathBuf>) -> Self {
        Self { folder: Some(Arc::from(folder.into())), ..Self::in_memory() }
    }

    /// Returns a catalog that is kept in memory only.
    pub fn in_memory() -> Self {
        Self { folder: None, pins: None, pins_seen: Arc::default(), view: Arc::default() }
            .with_search(SearchMode::default())
    }

    /// Compares the tools of servers with those that were accepted.
    pub fn with_pins(self, pins: PinStore) -> Self {
        *lock(&self.pins_seen) = pins.stamp();
        Self { pins: Some(Arc::new(pins)), ..self }
    }

    pub fn pins(&self) -> Option<&PinStore> {
        self.pins.as_deref()
    }

    /// Chooses how tools are ranked.
    pub fn with_search(self, mode: SearchMode) -> Self {
        self.with_embedding(match mode {
            SearchMode::Hybrid => Some(&search::BUILT_IN),
            SearchMode::Bm25 => None,
        })
    }

    fn with_embedding(self, embedding: Option<&'static LazyEmbedding>) -> Self {
        self.update_view(|view| view.with_embedding(embedding));
        self
    }

    /// Returns the current view. Later changes do not appear in it.
    pub fn view(&self) -> Arc<CatalogView> {
        Arc::clone(&read(&self.view))
    }

    /// Adds a configured server, with its cached tools if the digest of its definition is unchanged. Returns the
    /// problem if the cache is damaged. May read a file.
    pub fn declare(&self, declared: ServerDeclaration) -> Option<String> {
        let mut word = None;
        let same = |server: &&Arc<CatalogServer>| server.definition == declared.definition;
        let known = self.view().server_named(&declared.name).filter(same).cloned();
        let ServerDeclaration { name, alias, description, definition, filter } = declared;
        let description = sanitize::to_line(&description);
        let pins = self.pin_state(&name, &definition);
        let filter = Arc::new(filter);
        let unlisted = CatalogServer { name, alias, description, definition, filter, pins, ..CatalogServer::default() };
        let server = match known {
            Some(known) => {
                let CatalogServer { name, alias, description, filter, .. } = unlisted;
                CatalogServer { name, alias, description, filter, ..CatalogServer::clone(&known) }
            }
            None => match self.folder.as_deref().map(|folder| cache::read(folder, &unlisted.name)) {
                Some(Ok(Some((header, listing)))) if header.definition == unlisted.definition => {
                    let stamp = &unlisted.pins.stamp;
                    let is_pinned = header.pins == *stamp && (!stamp.is_empty() || self.pins.is_none());
                    let cached = CatalogServer {
                        listing: Some(Arc::new(listing)),
                        listed_at: Some(header.listed_at),
                        sent: header.sent,
                        era: header.era,
                        instructions: header.instructions,
                        results: Arc::new(header.results),
                        ..unlisted
                    };
                    // Another process or another policy may have changed what code sees.
                    if is_pinned { cached } else { self.recall_tools(cached) }
                }
                Some(Err(problem)) => {
                    tracing::warn!(server = unlisted.name, "{problem}");
                    word = Some(problem);
                    unlisted
                }
                _ => unlisted,
            },
        };
        self.insert_server(server);
        word
    }

    /// Stores the tools of a server in memory and on disk. Returns warnings for the operator: dropped tools, or a
    /// cache that could not be written.
    pub fn set_tools(&self, server: &str, alias: &str, description: &str, tools: Vec<ToolDocument>) -> Vec<String> {
        let sent = hash_list(&tools);
        let known = self.view().server_named(server).cloned();
        let definition = known.as_ref().map_or_else(String::new, |known| known.definition.clone());
        let (tools, pins, held) = match &self.pins {
            Some(pins) => {
                let checked = pins.check(PinKey { server, definition: &definition }, tools);
                (checked.documents, checked.state, checked.warnings)
            }
            None => (tools, PinState::default(), Vec::new()),
        };
        let (listing, mut words) = ToolListing::from_tools(tools);
        let mut listing = Arc::new(listing);
        if let Some(old) = known.as_ref().and_then(|known| known.listing.as_ref())
            && old.text() == listing.text()
        {
            // The list is unchanged, so keep the old one and its search index.
            listing = Arc::clone(old);
        }
        let results = known.as_ref().map(|known| keep_results(&known.results, &listing)).unwrap_or_default();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let is_news = known.as_ref().is_none_or(|known| known.pins != pins);
        let fresh = CatalogServer {
            name: server.to_owned(),
            alias: alias.to_owned(),
            description: sanitize::to_line(description),
            definition,
            listing: Some(listing),
            listed_at: Some(now),
            sent,
            era: known.as_ref().and_then(|known| known.era),
            instructions: known.as_ref().and_then(|known| known.instructions.clone()),
            filter: known.map(|known| Arc::clone(&known.filter)).unwrap_or_default(),
            pins,
            results,
        };
        words.extend(self.write_cache(&fresh));
        self.insert_server(fresh);
        // A server that reports changes again and again does not fill the log.
        for word in words.iter().chain(held.iter().filter(|_| is_news)) {
            tracing::warn!(server, "{word}");
        }
        words.extend(held);
        words
    }

    /// Returns true if a server sent the same list as before, and its pins are the same, so that there is nothing to do.
    pub(crate) fn has_list(&self, server: &str, tools: &[ToolDocument]) -> bool {
        let sent = hash_list(tools);
        self.view().server_named(server).is_some_and(|known| {
            let is_same = sent != 0 && sent == known.sent && known.listing.is_some();
            is_same && !known.pins.stamp.is_empty() && self.pin_state(server, &known.definition) == known.pins
        })
    }

    /// Stores what a server said at its start: its protocol era and its instructions. Writes a file if its tools are
    /// known. Returns a warning for the operator if the instructions are not those that were accepted.
    pub fn set_greeting(&self, server: &str, era: Option<ProtocolEra>, instructions: Option<&str>) -> Option<String> {
        let known = self.view().server_named(server).cloned()?;
        let instructions = instructions.map(|words| sanitize::sanitize_text(words, MAX_INSTRUCTIONS));
        let instructions = instructions.filter(|words| !words.is_empty());
        let era = era.or(known.era);
        let key = PinKey { server, definition: &known.definition };
        let (instructions, pins) = match &self.pins {
            Some(pins) => pins.check_instructions(key, instructions.as_deref()),
            None => (instructions, PinState::default()),
        };
        let is_news = pins.changes.instructions && !known.pins.changes.instructions;
        let warning = pins
            .changes
            .instructions
            .then(|| format!("its instructions changed: see `cove servers diff {server}`"))
            .inspect(|warning| {
                if is_news {
                    tracing::warn!(server, "{warning}")
                }
            });
        if (known.era, &known.instructions, &known.pins) == (era, &instructions, &pins) {
            return warning;
        }
        let fresh = CatalogServer { era, instructions, pins, ..CatalogServer::clone(&known) };
        if let Some(word) = self.write_cache(&fresh) {
            tracing::warn!(server, "{word}");
        }
        self.insert_server(fresh);
        warning
    }

    /// Learns what the results of a tool look like from one of its first answers; `None` is an answer of which nothing
    /// can be said. Returns true if something new was learned, and [`Catalog::save_results`] should be called.
    pub fn learn_result(&self, server: &str, tool: &str, answer: Option<&Value>) -> bool {
        let view = self.view();
        let Some(known) = view.server_named(server) else { return false };
        let is_enough = match known.results.get(tool) {
            Some(learned) => learned.answers >= MAX_ANSWERS,
            None => known.results.len() >= MAX_LEARNED_TOOLS,
        };
        let document = known.listing.as_ref().and_then(|listing| listing.document_text(listing.position(tool)?));
        let (false, Some(document)) = (is_enough, document) else { return false };
        let document = names::stable_hash(document.bytes());
        let shape = answer.map_or_else(ResultShape::unknown, ResultShape::from_answer);
        let mut is_new = false;
        self.update_view(|view| {
            let Some(known) = view.server_named(server) else { return view.clone() };
            let mut results = LearnedResults::clone(&known.results);
            let (answers, shape) = match results.remove(tool) {
                Some(learned) if learned.document == document => {
                    let merged = learned.shape.clone().merge(shape);
                    is_new = merged != learned.shape;
                    (learned.answers + 1, merged)
                }
                _ => {
                    is_new = true;
                    (1, shape)
                }
            };
            results.insert(tool.to_owned(), LearnedResult { document, answers, shape });
            view.with_server(CatalogServer { results: Arc::new(results), ..CatalogServer::clone(known) })
        });
        is_new
    }

    /// Writes what was learned about a server to its cache file.
    pub fn save_results(&self, server: &str) {
        if let Some(known) = self.view().server_named(server)
            && let Some(word) = self.write_cache(known)
        {
            tracing::warn!(server, "{word}");
        }
    }

    /// Looks whether another process accepted or held tools. [`PinReload::IfWritten`] reads nothing if no
    /// file was written.
    pub fn reload_pins(&self, depth: PinReload) {
        let Some(pins) = &self.pins else { return };
        let stamp = pins.stamp();
        let is_written = std::mem::replace(&mut *lock(&self.pins_seen), stamp) != stamp;
        if !is_written && depth == PinReload::IfWritten {
            return;
        }
        for server in self.servers() {
            let state = self.pin_state(&server.name, &server.definition);
            if state != server.pins {
                self.insert_server(self.recall_tools(CatalogServer { pins: state, ..CatalogServer::clone(&server) }));
            }
        }
    }

    fn pin_state(&self, server: &str, definition: &str) -> PinState {
        self.pins.as_ref().map(|pins| pins.state(PinKey { server, definition })).unwrap_or_default()
    }

    /// Returns a server with the tools that its pins let code see. Without pins, its tools must be listed again.
    fn recall_tools(&self, server: CatalogServer) -> CatalogServer {
        let key = PinKey { server: &server.name, definition: &server.definition };
        let Some((tools, instructions, pins)) = self.pins.as_ref().and_then(|pins| pins.recall(key)) else {
            return CatalogServer { listing: None, listed_at: None, instructions: None, ..server };
        };
        let (listing, _) = ToolListing::from_tools(tools);
        let results = keep_results(&server.results, &listing);
        let fresh = CatalogServer { listing: Some(Arc::new(listing)), instructions, pins, results, ..server };
        if let Some(word) = self.write_cache(&fresh) {
            tracing::warn!(server = fresh.name, "{word}");
        }
        fresh
    }

    /// Removes a server, its cache file and its pins.
    pub fn remove(&self, server: &str) {
        if let Some(pins) = &self.pins {
            pins.remove(server);
        }
        if let Some(folder) = &self.folder {
            cache::remove(folder, server);
        }
        self.update_view(|view| view.without_server(server));
    }

    /// Removes every server that `keep` rejects, in memory only. A server that returns finds its cache file again.
    pub fn retain(&self, keep: impl Fn(&str) -> bool) {
        let gone: Vec<String> =
            self.view().servers().map(|server| server.name.clone()).filter(|name| !keep(name)).collect();
        if !gone.is_empty() {
            self.update_view(|view| gone.iter().fold(view.clone(), |view, name| view.without_server(name)));
        }
    }

    /// Returns every known server, sorted by name.
    pub fn servers(&self) -> Vec<Arc<CatalogServer>> {
        self.view().servers().cloned().collect()
    }

    /// Returns the tools in the server's order, or `None` if the server is unknown or was never listed.
    pub fn tools(&self, server: &str) -> Option<Arc<ToolListing>> {
        self.view().find_server(server).and_then(|server| server.listing.clone())
    }

    /// Finds a tool by any spelling of its server's name and its own. Fails with the nearest names.
    pub fn find_tool(&self, server: &str, tool: &str) -> Result<KnownTool, ToolLookupError> {
        self.view().find_tool(server, tool)
    }

    pub fn search(&self, query: &str, limit: usize) -> SearchHits {
        self.view().search(query, limit)
    }

    /// Returns a warning if the cache could not be written. That costs the next run a start of the server, nothing
    /// else.
    fn write_cache(&self, server: &CatalogServer) -> Option<String> {
        cache::write(self.folder.as_deref()?, server, server.listing.as_ref()?).err()
    }

    fn insert_server(&self, server: CatalogServer) {
        self.update_view(|view| view.with_server(server));
    }

    fn update_view(&self, change: impl FnOnce(&CatalogView) -> CatalogView) {
        let mut view = write(&self.view);
        *view = Arc::new(change(&view));
    }
}

/// Returns a hash of the definitions of tools, in their order; 0 if one is not known.
fn hash_list(tools: &[ToolDocument]) -> u64 {
    let digests: Option<Vec<&str>> = tools.iter().map(|tool| Some(tool.definition.as_ref()?.digest.as_str())).collect();
    digests.map_or(0, |digests| names::stable_hash(digests.into_iter().flat_map(str::bytes)))
}

/// Returns what was learned about the tools whose documents are the same in the new list.
fn keep_results(results: &Arc<LearnedResults>, listing: &ToolListing) -> Arc<LearnedResults> {
    let is_same = |name: &str, learned: &LearnedResult| {
        let document = listing.names().position(|listed| listed == name).and_then(|at| listing.document_text(at));
        document.is_some_and(|document| names::stable_hash(document.bytes()) == learned.document)
    };
    let kept = results.iter().filter(|(name, learned)| is_same(name, learned));
    Arc::new(kept.map(|(name, learned)| (name.clone(), learned.clone())).collect())
}

#[cfg(test)]
mod tests;
