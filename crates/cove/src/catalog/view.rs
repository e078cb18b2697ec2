//! All servers and their tools at one moment. Never changes; whoever holds one sees the same until it lets go.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Era, Found, Listing, ToolDocument, names, search};

/// One upstream server as the catalog knows it.
#[derive(Debug, Clone)]
pub struct Server {
    /// As configured.
    pub name: String,
    /// How code calls it.
    pub alias: String,
    pub description: String,
    pub definition: String,
    pub era: Option<Era>,
    /// Nothing if it was never asked.
    pub listing: Option<Arc<Listing>>,
    /// Seconds since 1970.
    pub listed_at: Option<u64>,
}

/// A tool that was found by name.
#[derive(Debug, Clone)]
pub struct Known {
    pub server: Arc<Server>,
    /// How code calls it.
    pub alias: String,
    pub document: ToolDocument,
}

/// Why there is no such tool, with what may have been meant.
#[derive(Debug, Clone)]
pub enum Unknown {
    Server {
        nearest: Vec<String>,
    },
    /// The server is there, and its tools are not known yet.
    Unlisted {
        server: Arc<Server>,
    },
    Tool {
        server: Arc<Server>,
        nearest: Vec<String>,
    },
}

#[derive(Debug, Clone, Default)]
pub struct View {
    servers: BTreeMap<String, Arc<Server>>,
}

impl View {
    /// By name.
    pub fn servers(&self) -> impl Iterator<Item = &Arc<Server>> {
        self.servers.values()
    }

    pub(super) fn exact(&self, name: &str) -> Option<&Arc<Server>> {
        self.servers.get(name)
    }

    /// By name, alias, or any other spelling that only one could be meant by.
    pub fn server(&self, name: &str) -> Option<&Arc<Server>> {
        let by_alias = || self.servers().find(|server| server.alias == name);
        let by_letters = || {
            let plain = names::plain(name);
            let mut alike = self.servers().filter(|server| {
                !plain.is_empty()
                    && (names::plain(&server.name) == plain || names::plain(&server.alias) == plain)
            });
            alike.next().filter(|_| alike.next().is_none())
        };
        self.exact(name).or_else(by_alias).or_else(by_letters)
    }

    pub fn get(&self, server: &str, tool: &str) -> Result<Known, Unknown> {
        let Some(known) = self.server(server) else {
            return Err(Unknown::Server { nearest: self.nearest_servers(server) });
        };
        let server = Arc::clone(known);
        let Some(listing) = &known.listing else { return Err(Unknown::Unlisted { server }) };
        match listing.position(tool).and_then(|at| Some((listing.alias(at), listing.document(at)?))) {
            Some((alias, document)) => Ok(Known { server, alias: alias.to_owned(), document }),
            None => {
                let nearest = names::nearest(tool, listing.names());
                Err(Unknown::Tool { server, nearest: nearest.into_iter().map(str::to_owned).collect() })
            }
        }
    }

    pub fn nearest_servers(&self, name: &str) -> Vec<String> {
        let all = self.servers().map(|server| server.name.as_str());
        names::nearest(name, all).into_iter().map(str::to_owned).collect()
    }

    /// Tools of all servers whose lists are known.
    pub fn tool_count(&self) -> usize {
        self.listings().map(|(_, listing)| listing.len()).sum()
    }

    pub fn find(&self, query: &str, limit: usize) -> Found {
        self.find_among(query, limit, |_, _| true)
    }

    /// Only tools that `allowed` says yes to, by the names of server and tool, are found or counted.
    pub fn find_among(&self, query: &str, limit: usize, allowed: impl Fn(&str, &str) -> bool) -> Found {
        search::find(self, query, limit, &allowed)
    }

    pub(super) fn listings(&self) -> impl Iterator<Item = (&Arc<Server>, &Arc<Listing>)> {
        self.servers().filter_map(|server| Some((server, server.listing.as_ref()?)))
    }

    pub(super) fn with(&self, server: Server) -> Self {
        let mut servers = self.servers.clone();
        servers.insert(server.name.clone(), Arc::new(server));
        Self { servers }
    }

    pub(super) fn without(&self, name: &str) -> Self {
        let mut servers = self.servers.clone();
        servers.remove(name);
        Self { servers }
    }
}
