//! Asks a registry of servers, by the official registry's API: version `v0.1`, or the older `v0` if the registry has no
//! other. Every answer is bounded in bytes, pages and time, and redirects stay within the registry's origin.

use std::collections::BTreeSet;
use std::time::Duration;

use reqwest::redirect::Policy;
use reqwest::{Client, Response, StatusCode, Url};
use serde_json::Value;

use super::approved::rank;
use super::server_json::PublishedServer;
use crate::definition::{is_loopback_url, parse_url};
use crate::pool::innermost_cause;
use cove_core::error::{Refusal, display_value, one_line_chain};
use cove_core::text::cut;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// For all requests of one command together.
const TIMEOUT: Duration = Duration::from_secs(20);
const MAX_REDIRECTS: usize = 5;
/// Most bytes of one answer.
const MAX_ANSWER: usize = 4 * 1024 * 1024;
/// Most requests of one search.
const MAX_PAGES: usize = 10;
const PAGE_SIZE: usize = 100;
/// Most words that are searched for one by one: a registry compares whole texts.
const MAX_WORDS: usize = 4;
const MAX_CURSOR: usize = 1024;
/// Versions of the API, the newest first.
const API_VERSIONS: [&str; 2] = ["v0.1", "v0"];

/// Where the registry is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum RegistryAddress {
    /// No registry is asked.
    #[default]
    None,
    At(Url),
}

impl RegistryAddress {
    /// Reads `none` or an address. Plain HTTP works on this machine only.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        if text == "none" {
            return Ok(Self::None);
        }
        let hint = "write an address such as `https://registry.example.com`, or `none`";
        let url =
            parse_url(text).map_err(|reason| Refusal::of_value(text, format!("is no address: {reason}"), hint))?;
        if url.scheme() != "https" && !is_loopback_url(&url) {
            return Err(Refusal::of_value(text, "is not encrypted, and it is on another machine", "write `https://`"));
        }
        Ok(Self::At(url))
    }
}

impl std::fmt::Display for RegistryAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::At(url) => f.write_str(url.as_str().trim_end_matches('/')),
        }
    }
}

/// The result of a search.
#[derive(Debug, Default)]
pub struct RegistryHits {
    pub servers: Vec<PublishedServer>,
    /// Why documents could not be used.
    pub problems: Vec<String>,
    /// True if the registry has more pages than one search reads.
    pub is_partial: bool,
}

/// A connection to one registry.
pub struct RegistryClient {
    client: Client,
    base: Url,
}

/// Why a registry gave no document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RegistryError {
    /// It has nothing at this address.
    Missing,
    /// It could not be asked, or its answer is none.
    Failed(String),
    /// It answered, and the document cannot be used.
    Unusable(String),
}

impl RegistryClient {
    /// Makes no request yet. Fails with the reason.
    pub fn new(base: &Url) -> Result<Self, String> {
        // Installs the process-wide provider. This fails, harmlessly, for every client but the first.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut client = Client::builder()
            .user_agent(concat!("cove/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(Policy::custom(|next| {
                let is_same = next.previous().last().is_some_and(|from| from.origin() == next.url().origin());
                if is_same && next.previous().len() <= MAX_REDIRECTS { next.follow() } else { next.stop() }
            }));
        if is_loopback_url(base) {
            client = client.no_proxy();
        }
        let client = client.build().map_err(|error| one_line_chain(&error))?;
        Ok(Self { client, base: base.clone() })
    }

    /// Returns the servers that have words of a query in their names, the best first, at most `limit`.
    pub async fn search(&self, query: &str, limit: usize) -> Result<RegistryHits, RegistryError> {
        let found = tokio::time::timeout(TIMEOUT, self.search_pages(query)).await.map_err(|_| late())?;
        let RegistryHits { servers, problems, is_partial } = found?;
        let ranked = rank(servers.iter(), query);
        let is_partial = is_partial || ranked.len() > limit;
        let servers = ranked.into_iter().take(limit).cloned().collect();
        Ok(RegistryHits { servers, problems, is_partial })
    }

    async fn search_pages(&self, query: &str) -> Result<RegistryHits, RegistryError> {
        let mut hits = RegistryHits::default();
        let words: Vec<&str> = query.split_whitespace().collect();
        let whole = words.join(" ");
        // A registry finds names that contain the whole text, so several words are also searched for one by one.
        let mut texts = vec![whole.as_str()];
        texts.extend(words.iter().copied().filter(|_| words.len() > 1).take(MAX_WORDS));
        let (mut pages, mut seen, mut version) = (0, BTreeSet::new(), None);
        for text in texts {
            let mut cursor: Option<String> = None;
            let mut cursors = BTreeSet::new();
            loop {
                if pages >= MAX_PAGES {
                    hits.is_partial = true;
                    return Ok(hits);
                }
                pages += 1;
                let page = self.list(&mut version, text, cursor.as_deref()).await?;
                for document in PublishedServer::documents_in(&page) {
                    match PublishedServer::read(document) {
                        Ok(server) if seen.insert(server.name.clone()) => hits.servers.push(server),
                        Ok(_) => {}
                        Err(reason) => hits.problems.push(cut(&reason, 300)),
                    }
                }
                let metadata = page.get("metadata");
                let next = metadata.and_then(|of| of.get("nextCursor").or_else(|| of.get("next_cursor")));
                let next = next.and_then(Value::as_str).filter(|next| !next.is_empty() && next.len() <= MAX_CURSOR);
                match next {
                    // A cursor that comes back would never end.
                    Some(next) if cursors.insert(next.to_owned()) => cursor = Some(next.to_owned()),
                    _ => break,
                }
            }
        }
        Ok(hits)
    }

    /// Returns one page of the list. The first request finds out which version of the API there is.
    async fn list(
        &self,
        version: &mut Option<&'static str>,
        text: &str,
        cursor: Option<&str>,
    ) -> Result<Value, RegistryError> {
        let candidates: Vec<&'static str> = version.map_or_else(|| API_VERSIONS.to_vec(), |known| vec![known]);
        for candidate in candidates {
            let mut url = self.url(&[candidate, "servers"])?;
            let limit = PAGE_SIZE.to_string();
            let query = [("search", text), ("limit", &limit), ("version", "latest")];
            url.query_pairs_mut().extend_pairs(query.into_iter().chain(cursor.map(|cursor| ("cursor", cursor))));
            match self.get(url).await {
                Ok(page) if page.get("servers").is_some() => {
                    *version = Some(candidate);
                    return Ok(page);
                }
                Ok(_) => return Err(RegistryError::Failed("its answer has no `servers`".to_owned())),
                Err(RegistryError::Missing) => {}
                Err(error) => return Err(error),
            }
        }
        Err(RegistryError::Failed("it has no list of servers at this address".to_owned()))
    }

    /// Returns one version of a server, the latest if none is named.
    pub async fn find(&self, name: &str, version: Option<&str>) -> Result<PublishedServer, RegistryError> {
        tokio::time::timeout(TIMEOUT, self.find_version(name, version)).await.map_err(|_| late())?
    }

    async fn find_version(&self, name: &str, version: Option<&str>) -> Result<PublishedServer, RegistryError> {
        for api in API_VERSIONS {
            let url = self.url(&[api, "servers", name, "versions", version.unwrap_or("latest")])?;
            match self.get(url).await {
                Ok(document) => return check_document(&document, name, version).map_err(RegistryError::Unusable),
                Err(RegistryError::Missing) => {}
                Err(error) => return Err(error),
            }
        }
        // The oldest registries have no versions by name, only the list.
        let page = self.list(&mut None, name, None).await?;
        let documents = PublishedServer::documents_in(&page);
        let found = documents.into_iter().find_map(|document| check_document(document, name, version).ok());
        found.ok_or(RegistryError::Missing)
    }

    /// Returns an address below the registry's own, with each part encoded.
    fn url(&self, parts: &[&str]) -> Result<Url, RegistryError> {
        let mut url = self.base.clone();
        url.set_query(None);
        url.set_fragment(None);
        url.path_segments_mut()
            .map_err(|()| RegistryError::Failed("its address cannot have a path".to_owned()))?
            .pop_if_empty()
            .extend(parts);
        Ok(url)
    }

    async fn get(&self, url: Url) -> Result<Value, RegistryError> {
        let failed = |words: String| RegistryError::Failed(words);
        let response = self.client.get(url).header("Accept", "application/json").send().await;
        let response =
            response.map_err(|error| failed(format!("it could not be reached: {}", innermost_cause(&error))))?;
        match response.status() {
            status if status.is_success() => {}
            StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::GONE => {
                return Err(RegistryError::Missing);
            }
            status if status.is_redirection() => {
                return Err(failed(format!("it answered HTTP {status} with a redirect that is not followed")));
            }
            status => return Err(failed(format!("it answered HTTP {status}"))),
        }
        let body = read_body(response).await.map_err(failed)?;
        serde_json::from_slice(&body)
            .map_err(|error| failed(format!("its answer is no JSON: {}", display_value(&error.to_string()))))
    }
}

/// Reads a document and checks that it is the one that was asked for.
fn check_document(document: &Value, name: &str, version: Option<&str>) -> Result<PublishedServer, String> {
    let server = PublishedServer::read(document)?;
    let is_it = server.name == name && version.is_none_or(|version| server.version == version);
    let other = || format!("it answered with `{}` {} instead", server.name, display_value(&server.version));
    if is_it { Ok(server) } else { Err(other()) }
}

async fn read_body(mut response: Response) -> Result<Vec<u8>, String> {
    let mut body = Vec::new();
    while let Some(piece) =
        response.chunk().await.map_err(|error| format!("its answer broke off: {}", innermost_cause(&error)))?
    {
        if body.len() + piece.len() > MAX_ANSWER {
            return Err(format!("its answer has more than {MAX_ANSWER} bytes"));
        }
        body.extend_from_slice(&piece);
    }
    Ok(body)
}

fn late() -> RegistryError {
    RegistryError::Failed(format!("it did not answer within {} seconds", TIMEOUT.as_secs()))
}
