//! Everything that Cove knows about upstream tools without starting a server: cached documents, search, signatures,
//! and checks of arguments. The catalog knows no MCP messages and starts nothing. Text of servers is data, sanitized
//! once when it comes in.

mod cache;
pub mod names;
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
use std::sync::{Arc, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use cove_core::sync::{read, write};
use view::{LearnedResult, LearnedResults};

pub use result_shape::ResultShape;
use search::LazyEmbedding;
pub use search::{SearchHit, SearchHits, SearchMode};
pub use tool_document::ToolDocument;
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

/// A configured server whose tools are not known yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerDeclaration {
    pub name: String,
    pub alias: String,
    pub description: String,
    /// Digest of the definition, without secrets. A cache with another digest is ignored.
    pub definition: String,
}

/// The shared catalog; clones share it. Readers take a [`CatalogView`] and keep it, so a search or a disk access
/// never blocks them.
#[derive(Debug, Clone)]
pub struct Catalog {
    folder: Option<Arc<Path>>,
    view: Arc<RwLock<Arc<CatalogView>>>,
}

impl Catalog {
    /// Opens a catalog. Reads nothing: `declare` reads the file of a server.
    pub fn open(folder: impl Into<PathBuf>) -> Self {
        Self { folder: Some(Arc::from(folder.into())), ..Self::in_memory() }
    }

    /// Returns a catalog that is kept in memory only.
    pub fn in_memory() -> Self {
        Self { folder: None, view: Arc::default() }.with_search(SearchMode::default())
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
        let ServerDeclaration { name, alias, description, definition } = declared;
        let description = sanitize::to_line(&description);
        let unlisted = CatalogServer { name, alias, description, definition, ..CatalogServer::default() };
        let server = match known {
            Some(known) => {
                let CatalogServer { name, alias, description, definition, .. } = unlisted;
                CatalogServer { name, alias, description, definition, ..CatalogServer::clone(&known) }
            }
            None => match self.folder.as_deref().map(|folder| cache::read(folder, &unlisted.name)) {
                Some(Ok(Some((header, listing)))) if header.definition == unlisted.definition => CatalogServer {
                    listing: Some(Arc::new(listing)),
                    listed_at: Some(header.listed_at),
                    era: header.era,
                    instructions: header.instructions,
                    results: Arc::new(header.results),
                    ..unlisted
                },
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
        let (listing, mut words) = ToolListing::from_tools(tools);
        let mut listing = Arc::new(listing);
        let known = self.view().server_named(server).cloned();
        if let Some(old) = known.as_ref().and_then(|known| known.listing.as_ref())
            && old.text() == listing.text()
        {
            // The list is unchanged, so keep the old one and its search index.
            listing = Arc::clone(old);
        }
        let results = known.as_ref().map(|known| keep_results(&known.results, &listing)).unwrap_or_default();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let fresh = CatalogServer {
            name: server.to_owned(),
            alias: alias.to_owned(),
            description: sanitize::to_line(description),
            definition: known.as_ref().map_or_else(String::new, |known| known.definition.clone()),
            listing: Some(listing),
            listed_at: Some(now),
            era: known.as_ref().and_then(|known| known.era),
            instructions: known.and_then(|known| known.instructions.clone()),
            results,
        };
        words.extend(self.write_cache(&fresh));
        self.insert_server(fresh);
        for word in &words {
            tracing::warn!(server, "{word}");
        }
        words
    }

    /// Stores what a server said at its start: its protocol era and its instructions. Writes a file if its tools are
    /// known.
    pub fn set_greeting(&self, server: &str, era: Option<ProtocolEra>, instructions: Option<&str>) {
        let Some(known) = self.view().server_named(server).cloned() else { return };
        let instructions = instructions.map(|words| sanitize::sanitize_text(words, MAX_INSTRUCTIONS));
        let instructions = instructions.filter(|words| !words.is_empty());
        let era = era.or(known.era);
        if (known.era, &known.instructions) == (era, &instructions) {
            return;
        }
        let fresh = CatalogServer { era, instructions, ..CatalogServer::clone(&known) };
        if let Some(word) = self.write_cache(&fresh) {
            tracing::warn!(server, "{word}");
        }
        self.insert_server(fresh);
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

    /// Removes a server and its cache file.
    pub fn remove(&self, server: &str) {
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
