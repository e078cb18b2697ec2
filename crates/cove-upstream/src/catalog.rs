//! Everything that Cove knows about upstream tools without starting a server: cached documents, search, signatures,
//! and checks of arguments. The catalog knows no MCP messages and starts nothing. Text of servers is data, sanitized
//! once when it comes in.

mod cache;
pub mod names;
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

use cove_core::sync::{read, write};

pub use search::{SearchHit, SearchHits};
pub use tool_document::ToolDocument;
pub use tool_listing::ToolListing;
pub use view::{CatalogServer, CatalogView, KnownTool, ToolLookupError};

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
        Self { folder: Some(Arc::from(folder.into())), view: Arc::default() }
    }

    /// Returns a catalog that is kept in memory only.
    pub fn in_memory() -> Self {
        Self { folder: None, view: Arc::default() }
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
        let (listing, listed_at, era) = match known {
            Some(known) => (known.listing.clone(), known.listed_at, known.era),
            None => match self.folder.as_deref().map(|folder| cache::read(folder, &declared.name)) {
                Some(Ok(Some((header, listing)))) if header.definition == declared.definition => {
                    (Some(Arc::new(listing)), Some(header.listed_at), header.era)
                }
                Some(Err(problem)) => {
                    tracing::warn!(server = declared.name, "{problem}");
                    word = Some(problem);
                    (None, None, None)
                }
                _ => (None, None, None),
            },
        };
        let ServerDeclaration { name, alias, description, definition } = declared;
        let description = sanitize::to_line(&description);
        self.insert_server(CatalogServer { name, alias, description, definition, listing, listed_at, era });
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
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let fresh = CatalogServer {
            name: server.to_owned(),
            alias: alias.to_owned(),
            description: sanitize::to_line(description),
            definition: known.as_ref().map_or_else(String::new, |known| known.definition.clone()),
            listing: Some(listing),
            listed_at: Some(now),
            era: known.and_then(|known| known.era),
        };
        words.extend(self.write_cache(&fresh));
        self.insert_server(fresh);
        for word in &words {
            tracing::warn!(server, "{word}");
        }
        words
    }

    /// Stores the protocol era of a server. Writes a file if its tools are known.
    pub fn set_era(&self, server: &str, era: ProtocolEra) {
        let Some(known) = self.view().server_named(server).cloned() else { return };
        if known.era == Some(era) {
            return;
        }
        let fresh = CatalogServer { era: Some(era), ..CatalogServer::clone(&known) };
        if let Some(word) = self.write_cache(&fresh) {
            tracing::warn!(server, "{word}");
        }
        self.insert_server(fresh);
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

#[cfg(test)]
mod tests;
