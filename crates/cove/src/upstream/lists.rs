//! Lists of a server, page by page, within bounds.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use rmcp::model::{
    ClientRequest, ListPromptsRequest, ListResourceTemplatesRequest, ListResourcesRequest, ListToolsRequest,
    PaginatedRequestParams,
};
use serde_json::Value;

use super::error::UpstreamError;
use super::life::Upstream;
use super::running::Offer;

const MAX_PAGES: usize = 200;
const MAX_ENTRIES: usize = 20_000;
const METHOD_NOT_FOUND: i64 = -32601;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum List {
    Tools,
    Resources,
    Templates,
    Prompts,
}

impl List {
    fn request(self, cursor: Option<String>) -> ClientRequest {
        let params = Some(PaginatedRequestParams::default().with_cursor(cursor));
        let (method, extensions) = (Default::default(), Default::default());
        match self {
            List::Tools => ClientRequest::ListToolsRequest(ListToolsRequest {
                method: Default::default(),
                params,
                extensions,
            }),
            List::Resources => ClientRequest::ListResourcesRequest(ListResourcesRequest {
                method: Default::default(),
                params,
                extensions,
            }),
            List::Templates => ClientRequest::ListResourceTemplatesRequest(ListResourceTemplatesRequest {
                method,
                params,
                extensions,
            }),
            List::Prompts => ClientRequest::ListPromptsRequest(ListPromptsRequest {
                method: Default::default(),
                params,
                extensions,
            }),
        }
    }

    fn key(self) -> &'static str {
        match self {
            List::Tools => "tools",
            List::Resources => "resources",
            List::Templates => "resourceTemplates",
            List::Prompts => "prompts",
        }
    }

    fn offer(self) -> Offer {
        match self {
            List::Tools => Offer::Tools,
            List::Resources | List::Templates => Offer::Resources,
            List::Prompts => Offer::Prompts,
        }
    }
}

/// Every entry, as it came. `timeout` is for each page.
pub(super) async fn all(
    upstream: &Arc<Upstream>,
    list: List,
    timeout: Duration,
) -> Result<Vec<Value>, UpstreamError> {
    // One life of the server for all pages: cursors are its own.
    let lease = upstream.running().await?;
    if !lease.offers(list.offer()) {
        return Ok(Vec::new());
    }
    let (mut entries, mut cursor) = (Vec::new(), None);
    let mut seen = HashSet::new();
    for _ in 0..MAX_PAGES {
        let page = match upstream.request_on(&lease, list.request(cursor.take()), timeout, None).await {
            Ok(page) => page,
            // Some announce resources and know nothing of templates.
            Err(UpstreamError::Protocol { code: METHOD_NOT_FOUND, .. }) if list != List::Tools => break,
            Err(error) => return Err(error),
        };
        let Value::Object(mut page) = page else { break };
        entries.extend(super::list(&mut page, list.key()));
        entries.truncate(MAX_ENTRIES);
        match page.remove("nextCursor") {
            // One that comes again would go round for ever.
            Some(Value::String(next)) if entries.len() < MAX_ENTRIES && seen.insert(next.clone()) => {
                cursor = Some(next);
            }
            _ => break,
        }
    }
    Ok(entries)
}
