//! The lists of a server, read page by page within bounds.

use std::collections::HashSet;
use std::sync::Arc;

use rmcp::model::{GetExtensions, ServerCapabilities};
use serde_json::{Map, Value};

use super::CallOptions;
use super::answers::take_array;
use super::bounded_json::JsonShape;
use super::error::UpstreamError;
use super::intake::ListPage;
use super::lifecycle::Upstream;
use super::running_server::{ServerLease, new_request};

const MAX_PAGES: usize = 200;
const MAX_ENTRIES: usize = 20_000;
const MAX_CURSOR: usize = 64 * 1024;
const METHOD_NOT_FOUND: i64 = -32601;

/// One kind of list.
pub(super) struct ListKind {
    method: &'static str,
    /// The key of the entries in a page.
    key: &'static str,
    /// Which parts of an entry Cove keeps.
    entry: &'static JsonShape,
    is_announced: fn(&ServerCapabilities) -> bool,
}

pub(super) const TOOLS: ListKind = ListKind {
    method: "tools/list",
    key: "tools",
    entry: &JsonShape::Tool,
    is_announced: |server| server.tools.is_some(),
};
pub(super) const RESOURCES: ListKind = ListKind {
    method: "resources/list",
    key: "resources",
    entry: &JsonShape::Whole,
    is_announced: |server| server.resources.is_some(),
};
pub(super) const TEMPLATES: ListKind = ListKind {
    method: "resources/templates/list",
    key: "resourceTemplates",
    entry: &JsonShape::Whole,
    is_announced: |server| server.resources.is_some(),
};
pub(super) const PROMPTS: ListKind = ListKind {
    method: "prompts/list",
    key: "prompts",
    entry: &JsonShape::Whole,
    is_announced: |server| server.prompts.is_some(),
};

/// Returns every entry with the parts that Cove uses, starting the server if needed. The timeout of calls and one budget
/// of bytes apply to the whole list. One list of a server is read at a time. Returns nothing if the server does not
/// announce such a list. Fails if the list is too large or takes too long.
pub(super) async fn list_all(upstream: &Arc<Upstream>, list: &ListKind) -> Result<Vec<Value>, UpstreamError> {
    // One lease for all pages: a cursor is only valid in the process that issued it.
    let lease = upstream.lease_running().await?;
    if !lease.announces(list.is_announced) {
        return Ok(Vec::new());
    }
    let timeout = upstream.call_timeout(&CallOptions::default(), upstream.default_call_timeout());
    let read = async {
        let _turn = upstream.list_turn.lock().await;
        read_pages(upstream, &lease, list).await
    };
    tokio::time::timeout(timeout, read).await.unwrap_or_else(|_| Err(upstream.timeout_error(timeout)))
}

async fn read_pages(
    upstream: &Arc<Upstream>,
    lease: &ServerLease,
    list: &ListKind,
) -> Result<Vec<Value>, UpstreamError> {
    let page = ListPage { shape: JsonShape::Page { key: list.key, entry: list.entry }, budget: Arc::default() };
    let options = CallOptions::default();
    let (mut entries, mut params) = (Vec::new(), Map::new());
    let mut seen = HashSet::new();
    for _ in 0..MAX_PAGES {
        let mut request = new_request(list.method, params);
        request.extensions_mut().insert(page.clone());
        let page = match upstream.request_on(lease, request, &options).await {
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
            Some(Value::String(next))
                if entries.len() < MAX_ENTRIES && next.len() <= MAX_CURSOR && seen.insert(next.clone()) =>
            {
                params = Map::from_iter([("cursor".to_owned(), next.into())]);
            }
            _ => break,
        }
    }
    Ok(entries)
}
