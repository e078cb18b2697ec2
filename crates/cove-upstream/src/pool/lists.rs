//! The lists of a server, read page by page within bounds.

use std::collections::HashSet;
use std::sync::Arc;

use rmcp::model::ServerCapabilities;
use serde_json::{Map, Value};

use super::CallOptions;
use super::answers::take_array;
use super::error::UpstreamError;
use super::lifecycle::Upstream;
use super::running_server::new_request;

const MAX_PAGES: usize = 200;
const MAX_ENTRIES: usize = 20_000;
const METHOD_NOT_FOUND: i64 = -32601;

/// One kind of list.
pub(super) struct ListKind {
    method: &'static str,
    /// The key of the entries in a page.
    key: &'static str,
    is_announced: fn(&ServerCapabilities) -> bool,
}

pub(super) const TOOLS: ListKind =
    ListKind { method: "tools/list", key: "tools", is_announced: |server| server.tools.is_some() };
pub(super) const RESOURCES: ListKind =
    ListKind { method: "resources/list", key: "resources", is_announced: |server| server.resources.is_some() };
pub(super) const TEMPLATES: ListKind = ListKind {
    method: "resources/templates/list",
    key: "resourceTemplates",
    is_announced: |server| server.resources.is_some(),
};
pub(super) const PROMPTS: ListKind =
    ListKind { method: "prompts/list", key: "prompts", is_announced: |server| server.prompts.is_some() };

/// Returns every entry as the server sent it, starting the server if needed. The timeout of calls applies to each page.
/// Returns nothing if the server does not announce such a list.
pub(super) async fn list_all(upstream: &Arc<Upstream>, list: &ListKind) -> Result<Vec<Value>, UpstreamError> {
    // One lease for all pages: a cursor is only valid in the process that issued it.
    let lease = upstream.lease_running().await?;
    if !lease.announces(list.is_announced) {
        return Ok(Vec::new());
    }
    let (mut entries, mut params) = (Vec::new(), Map::new());
    let mut seen = HashSet::new();
    for _ in 0..MAX_PAGES {
        let page = match upstream.request_on(&lease, new_request(list.method, params), &CallOptions::default()).await {
            Ok(page) => page,
            // Some servers announce resources and do not implement templates.
            Err(UpstreamError::Protocol { code: METHOD_NOT_FOUND, .. }) if list.method != TOOLS.method => break,
            Err(error) => return Err(error),
        };
        let Value::Object(mut page) = page else { break };
        entries.extend(take_array(&mut page, list.key));
        entries.truncate(MAX_ENTRIES);
        match page.remove("nextCursor") {
            // A repeated cursor would loop for ever.
            Some(Value::String(next)) if entries.len() < MAX_ENTRIES && seen.insert(next.clone()) => {
                params = Map::from_iter([("cursor".to_owned(), next.into())]);
            }
            _ => break,
        }
    }
    Ok(entries)
}
