//! What Cove knows of upstream tools without starting a server: their documents, kept on disk between runs, found by
//! search, shown as signatures, and their arguments checked. It knows nothing of MCP's messages and starts nothing; text
//! of servers is data here, cleaned once on the way in.

mod cache;
mod clean;
mod document;
mod listing;
pub mod names;
pub mod roster;
mod search;
pub mod signature;
pub mod validate;
mod view;

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

pub use document::ToolDocument;
pub use listing::Listing;
pub use search::{Found, Hit};
pub use view::{Known, Server, Unknown, View};

/// How a server speaks, as it was last seen: asking anew costs a slow one its whole start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Era {
    Modern,
    Legacy,
}

/// A configured server, before anything is known of its tools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declared {
    pub name: String,
    pub alias: String,
    pub description: String,
    /// A digest of its definition, without secrets: what was cached under another one is not believed.
    pub definition: String,
}

/// Shared by all who hold a clone. Readers take a [`View`] and keep it; nobody waits for a search or for the disk.
#[derive(Debug, Clone)]
pub struct Catalog {
    folder: Option<Arc<PathBuf>>,
    view: Arc<RwLock<Arc<View>>>,
}

impl Catalog {
    /// Reads nothing yet: a server's file is read when the server is declared.
    pub fn open(folder: impl Into<PathBuf>) -> Self {
        Self { folder: Some(Arc::new(folder.into())), view: Arc::default() }
    }

    /// Kept nowhere but in memory.
    pub fn in_memory() -> Self {
        Self { folder: None, view: Arc::default() }
    }

    /// What is known now; later changes do not show in it.
    pub fn view(&self) -> Arc<View> {
        Arc::clone(&self.view.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes a configured server known, with the tools of its cache if its definition is still the same. Says what is
    /// wrong with the cache, if anything. Reads a file.
    pub fn declare(&self, declared: Declared) -> Option<String> {
        let mut word = None;
        let same = |server: &Arc<Server>| server.definition == declared.definition;
        let known = self.view().exact(&declared.name).filter(|server| same(server)).cloned();
        let (listing, listed_at, era) = match known {
            Some(known) => (known.listing.clone(), known.listed_at, known.era),
            None => match self.folder().map(|folder| cache::read(folder, &declared.name)) {
                Some(Ok(Some(kept))) if kept.header.definition == declared.definition => {
                    (Some(Arc::new(kept.listing)), Some(kept.header.listed_at), kept.header.era)
                }
                Some(Err(problem)) => {
                    tracing::warn!(server = declared.name, "{problem}");
                    word = Some(problem);
                    (None, None, None)
                }
                _ => (None, None, None),
            },
        };
        let Declared { name, alias, description, definition } = declared;
        let description = clean::line(&description);
        self.put(Server { name, alias, description, definition, listing, listed_at, era });
        word
    }

    /// Keeps what a server says it has, in memory and on disk. Returns what an operator should know: tools that were
    /// left out, a cache that could not be written. Writes a file.
    pub fn set(&self, server: &str, alias: &str, description: &str, tools: Vec<ToolDocument>) -> Vec<String> {
        let (listing, mut words) = Listing::of(tools);
        let mut listing = Arc::new(listing);
        let known = self.view().exact(server).cloned();
        if let Some(old) = known.as_ref().and_then(|known| known.listing.as_ref())
            && old.text() == listing.text()
        {
            // The same as before: its search index stays.
            listing = Arc::clone(old);
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let fresh = Server {
            name: server.to_owned(),
            alias: alias.to_owned(),
            description: clean::line(description),
            definition: known.as_ref().map_or_else(String::new, |known| known.definition.clone()),
            listing: Some(listing),
            listed_at: Some(now),
            era: known.and_then(|known| known.era),
        };
        words.extend(self.keep(&fresh));
        self.put(fresh);
        for word in &words {
            tracing::warn!(server, "{word}");
        }
        words
    }

    /// Remembers how a server speaks. Writes a file if its tools are known.
    pub fn set_era(&self, server: &str, era: Era) {
        let Some(known) = self.view().exact(server).cloned() else { return };
        if known.era == Some(era) {
            return;
        }
        let fresh = Server { era: Some(era), ..Server::clone(&known) };
        if let Some(word) = self.keep(&fresh) {
            tracing::warn!(server, "{word}");
        }
        self.put(fresh);
    }

    /// Forgets a server, and removes its file.
    pub fn remove(&self, server: &str) {
        if let Some(folder) = self.folder() {
            cache::remove(folder, server);
        }
        self.change(|view| view.without(server));
    }

    /// Forgets every server that is not named, in memory only: one that comes back finds its file again.
    pub fn retain(&self, keep: impl Fn(&str) -> bool) {
        let gone: Vec<String> =
            self.view().servers().map(|server| server.name.clone()).filter(|name| !keep(name)).collect();
        if !gone.is_empty() {
            self.change(|view| gone.iter().fold(view.clone(), |view, name| view.without(name)));
        }
    }

    /// Every known server, by name.
    pub fn servers(&self) -> Vec<Arc<Server>> {
        self.view().servers().cloned().collect()
    }

    /// The tools of a server in the order it lists them; nothing if it is unknown or was never listed.
    pub fn tools(&self, server: &str) -> Option<Arc<Listing>> {
        self.view().server(server).and_then(|server| server.listing.clone())
    }

    /// A tool, however its server's name and its own are spelled.
    pub fn get(&self, server: &str, tool: &str) -> Result<Known, Unknown> {
        self.view().get(server, tool)
    }

    pub fn find(&self, query: &str, limit: usize) -> Found {
        self.view().find(query, limit)
    }

    fn folder(&self) -> Option<&Path> {
        self.folder.as_deref().map(PathBuf::as_path)
    }

    /// What went wrong, if anything: a cache that cannot be written costs the next run a start, and nothing else.
    fn keep(&self, server: &Server) -> Option<String> {
        let (folder, listing) = (self.folder()?, server.listing.as_ref()?);
        let header = cache::Header::of(server);
        cache::write(folder, &header, listing).err()
    }

    fn put(&self, server: Server) {
        self.change(|view| view.with(server));
    }

    fn change(&self, change: impl FnOnce(&View) -> View) {
        let mut view = self.view.write().unwrap_or_else(PoisonError::into_inner);
        *view = Arc::new(change(&view));
    }
}

#[cfg(test)]
mod tests;
