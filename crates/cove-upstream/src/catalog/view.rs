//! All servers and their tools at one moment. A view never changes, so a caller can keep it as long as it likes.

use std::collections::BTreeMap;
use std::sync::Arc;

use cove_protocol::Language;
use serde::{Deserialize, Serialize};

use super::pins::PinState;
use super::search::{self, LazyEmbedding};
use super::signature::ToolReference;
use super::{ProtocolEra, ResultShape, SearchHits, ToolDocument, ToolListing, names};
use cove_core::policy::grants::Grants;
use cove_core::spelling::suggestions;

/// One upstream server in the catalog.
#[derive(Debug, Clone, Default)]
pub struct CatalogServer {
    /// As configured.
    pub name: String,
    /// How code calls it.
    pub alias: String,
    pub description: String,
    pub definition: String,
    pub era: Option<ProtocolEra>,
    /// `None` if the server was never listed.
    pub listing: Option<Arc<ToolListing>>,
    /// Seconds since 1970.
    pub listed_at: Option<u64>,
    /// Hash of the list that the server sent; 0 if that is not known.
    pub(super) sent: u64,
    /// The server's own words on how to use it, sanitized and bounded.
    pub instructions: Option<String>,
    /// The tools that the definition allows and denies.
    pub filter: Arc<Grants>,
    /// What a person has not accepted.
    pub pins: PinState,
    /// What answers of tools looked like, by the name of the tool.
    pub(super) results: Arc<LearnedResults>,
}

/// What is known about the results of tools that do not declare them, by the name of the tool.
pub(super) type LearnedResults = BTreeMap<String, LearnedResult>;

/// What the answers of one tool looked like.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct LearnedResult {
    /// Digest of the tool's document. For another document, what was learned does not count.
    pub(super) document: u64,
    /// The number of answers that were looked at.
    pub(super) answers: u32,
    pub(super) shape: ResultShape,
}

impl CatalogServer {
    /// Returns a tool of this server as code refers to it. `alias` is how code calls the tool.
    pub fn reference<'a>(
        &'a self,
        language: Language,
        alias: &'a str,
        document: &'a ToolDocument,
    ) -> ToolReference<'a> {
        let learned = self.results.get(&document.name).map(|learned| &learned.shape);
        ToolReference { language, server: &self.alias, tool: alias, document, learned }
    }
}

/// A tool that was found by name.
#[derive(Debug, Clone)]
pub struct KnownTool {
    pub server: Arc<CatalogServer>,
    /// How code calls it.
    pub alias: String,
    pub document: ToolDocument,
}

/// Why a tool was not found, with the nearest names.
#[derive(Debug, Clone)]
pub enum ToolLookupError {
    Server {
        nearest: Vec<String>,
    },
    /// The server exists, but its tools are not known yet.
    Unlisted,
    Tool {
        nearest: Vec<String>,
    },
}

/// All servers at one moment. `with_server` and `without_server` return a changed copy.
#[derive(Debug, Clone, Default)]
pub struct CatalogView {
    servers: BTreeMap<String, Arc<CatalogServer>>,
    /// `None` if search compares words only.
    embedding: Option<&'static LazyEmbedding>,
}

impl CatalogView {
    pub(super) fn embedding(&self) -> Option<&'static LazyEmbedding> {
        self.embedding
    }

    /// Returns the servers, sorted by name.
    pub fn servers(&self) -> impl Iterator<Item = &Arc<CatalogServer>> {
        self.servers.values()
    }

    pub(super) fn server_named(&self, name: &str) -> Option<&Arc<CatalogServer>> {
        self.servers.get(name)
    }

    /// Finds a server by name, by alias, or by any other spelling that only one server matches.
    pub fn find_server(&self, name: &str) -> Option<&Arc<CatalogServer>> {
        let by_alias = || self.servers().find(|server| server.alias == name);
        let by_letters = || {
            let plain = names::plain(name);
            let mut alike = self.servers().filter(|server| {
                !plain.is_empty() && (names::plain(&server.name) == plain || names::plain(&server.alias) == plain)
            });
            alike.next().filter(|_| alike.next().is_none())
        };
        self.server_named(name).or_else(by_alias).or_else(by_letters)
    }

    /// Finds a tool by any spelling of its server's name and its own. Fails with the nearest names.
    pub fn find_tool(&self, server: &str, tool: &str) -> Result<KnownTool, ToolLookupError> {
        let Some(known) = self.find_server(server) else {
            return Err(ToolLookupError::Server { nearest: self.nearest_servers(server) });
        };
        let Some(listing) = &known.listing else { return Err(ToolLookupError::Unlisted) };
        let position =
            listing.position(tool).and_then(|at| Some((listing.alias(at).to_owned(), listing.document(at)?)));
        let (alias, document) = position.ok_or_else(|| {
            let nearest = suggestions(tool, listing.names()).into_iter().map(str::to_owned).collect();
            ToolLookupError::Tool { nearest }
        })?;
        Ok(KnownTool { server: Arc::clone(known), alias, document })
    }

    pub fn nearest_servers(&self, name: &str) -> Vec<String> {
        let all = self.servers().map(|server| server.name.as_str());
        suggestions(name, all).into_iter().map(str::to_owned).collect()
    }

    /// Returns the number of tools of all listed servers.
    pub fn tool_count(&self) -> usize {
        self.listings().map(|(_, listing)| listing.len()).sum()
    }

    pub fn search(&self, query: &str, limit: usize) -> SearchHits {
        self.search_allowed(query, limit, |_, _| true)
    }

    /// Searches only the tools that `allowed` accepts, by the names of server and tool. Others are neither returned
    /// nor counted.
    pub fn search_allowed(&self, query: &str, limit: usize, allowed: impl Fn(&str, &str) -> bool) -> SearchHits {
        search::search(self, query, limit, &allowed)
    }

    pub(super) fn listings(&self) -> impl Iterator<Item = (&Arc<CatalogServer>, &Arc<ToolListing>)> {
        self.servers().filter_map(|server| Some((server, server.listing.as_ref()?)))
    }

    pub(super) fn with_embedding(&self, embedding: Option<&'static LazyEmbedding>) -> Self {
        Self { embedding, ..self.clone() }
    }

    pub(super) fn with_server(&self, server: CatalogServer) -> Self {
        let mut servers = self.servers.clone();
        servers.insert(server.name.clone(), Arc::new(server));
        Self { servers, ..*self }
    }

    pub(super) fn without_server(&self, name: &str) -> Self {
        let mut servers = self.servers.clone();
        servers.remove(name);
        Self { servers, ..*self }
    }
}
