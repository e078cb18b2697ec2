//! Subscriptions to changes of resources. Callers that want to know of the same resource share one subscription; it ends
//! at the server when the last of them drops it. In the legacy era Cove sends `resources/subscribe`, in the modern era it
//! keeps a `subscriptions/listen` request open.
//!
//! The transport counts changes as it reads them (`record_change`), so a flood of them needs no room. A server may report
//! a change of a part, whose address begins with the address of the resource.
//!
//! `changing` is held while Cove subscribes and unsubscribes, so that the end of an old subscription cannot overtake the
//! start of a new one for the same resource.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use rmcp::model::ServerCapabilities;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::answers::to_object;
use super::error::UpstreamError;
use super::lifecycle::Upstream;
use super::notifications::NotificationRouter;
use super::running_server::{ServerLease, new_request};
use super::{CallOptions, ProtocolEra};
use cove_core::session::registry::Principal;
use cove_core::sync::lock;

/// Counts all subscriptions.
static SUBSCRIPTIONS: AtomicU64 = AtomicU64::new(0);

/// Most subscriptions to one server. Over HTTP each may occupy one of 64 requests.
const MAX_SUBSCRIPTIONS_TO_SERVER: usize = 32;
const UNSUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a waiting caller looks whether the server is still there.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The subscriptions to one server.
#[derive(Default)]
pub(super) struct SubscriptionTable {
    /// By the address of the resource.
    live: Mutex<HashMap<String, Weak<ResourceSubscription>>>,
    changing: tokio::sync::Mutex<()>,
}

impl SubscriptionTable {
    /// Counts a change for every subscription that it concerns.
    pub(super) fn record_change(&self, uri: &str) {
        for (subscribed, subscription) in &*lock(&self.live) {
            if contains_resource(subscribed, uri)
                && let Some(subscription) = subscription.upgrade()
            {
                subscription.changes.send_modify(|changes| *changes += 1);
            }
        }
    }

    /// Returns the subscription to a resource if its server is still running. Forgets the ones that have ended.
    fn find(&self, uri: &str) -> Option<Arc<ResourceSubscription>> {
        let mut live = lock(&self.live);
        live.retain(|_, subscription| subscription.strong_count() > 0);
        live.get(uri)?.upgrade().filter(|subscription| !subscription.has_ended())
    }

    /// Makes room for one more subscription of this owner. If there are too many, the owner of most loses its latest one,
    /// unless the owner who asks would have as many. Returns false if there is no room.
    fn make_room(&self, owner: Option<&Principal>) -> bool {
        let mut live = lock(&self.live);
        if live.len() < MAX_SUBSCRIPTIONS_TO_SERVER {
            return true;
        }
        let open: Vec<Arc<ResourceSubscription>> = live.values().filter_map(Weak::upgrade).collect();
        let count = |owner: Option<&Principal>| open.iter().filter(|one| one.owner.as_ref() == owner).count();
        let largest = open.iter().max_by_key(|one| (count(one.owner.as_ref()), one.number));
        let Some(lost) = largest.filter(|one| count(one.owner.as_ref()) > count(owner) + 1) else { return false };
        live.remove(&lost.uri);
        drop(live);
        lost.displace();
        true
    }
}

/// Returns true if `uri` is the subscribed resource or a part of it.
fn contains_resource(subscribed: &str, uri: &str) -> bool {
    let is_part = |rest: &str| rest.is_empty() || subscribed.ends_with('/') || rest.starts_with(['/', '#', '?']);
    uri.strip_prefix(subscribed).is_some_and(is_part)
}

/// A subscription to changes of one resource. Dropping it ends it at the server.
pub struct ResourceSubscription {
    server: String,
    uri: String,
    /// The principal that subscribed first.
    owner: Option<Principal>,
    /// Larger than that of every earlier subscription.
    number: u64,
    /// Another principal got its place.
    is_displaced: AtomicBool,
    /// Keeps the server running. Taken by the request that ends the subscription.
    lease: Option<ServerLease>,
    notices: Arc<NotificationRouter>,
    changes: watch::Sender<u64>,
    /// The task that listens, in the modern era. The server may end it.
    listener: Mutex<Option<AbortHandle>>,
}

impl ResourceSubscription {
    pub fn server(&self) -> &str {
        &self.server
    }

    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// Returns how many changes the server has reported.
    pub fn change_count(&self) -> u64 {
        *self.changes.borrow()
    }

    /// Returns how many changes the server has reported, as soon as they are more than `seen`. Fails if the server ends.
    pub async fn wait_for_change(&self, seen: u64) -> Result<u64, UpstreamError> {
        let mut changes = self.changes.subscribe();
        loop {
            let count = *changes.borrow_and_update();
            if count > seen {
                return Ok(count);
            }
            if self.has_ended() {
                let (server, stderr_tail) = (self.server.clone(), String::new());
                let reason = match self.is_displaced.load(Ordering::Relaxed) {
                    true => "another client needed the place of this subscription".to_owned(),
                    false => "it ended the subscription".to_owned(),
                };
                return Err(UpstreamError::Gone { server, reason, stderr_tail });
            }
            let _ = tokio::time::timeout(CHECK_INTERVAL, changes.changed()).await;
        }
    }

    /// Ends the subscription for its owner.
    fn displace(&self) {
        self.is_displaced.store(true, Ordering::Relaxed);
        if let Some(listener) = lock(&self.listener).as_ref() {
            listener.abort();
        }
        self.changes.send_modify(|_| {});
    }

    fn has_ended(&self) -> bool {
        if self.is_displaced.load(Ordering::Relaxed) {
            return true;
        }
        let is_silent = lock(&self.listener).as_ref().is_some_and(AbortHandle::is_finished);
        is_silent || self.lease.as_ref().is_none_or(|lease| lease.is_closed())
    }
}

impl Drop for ResourceSubscription {
    fn drop(&mut self) {
        if let Some(listener) = lock(&self.listener).take() {
            // Dropping rmcp's subscription cancels its request.
            listener.abort();
        }
        // A legacy server may have accepted it although its answer never arrived.
        let lease = self.lease.take().filter(|lease| lease.era() == ProtocolEra::Legacy);
        let (Some(lease), Ok(runtime)) = (lease, tokio::runtime::Handle::try_current()) else { return };
        let (notices, uri) = (Arc::clone(&self.notices), std::mem::take(&mut self.uri));
        runtime.spawn(async move {
            let table = notices.subscriptions();
            let _changing = table.changing.lock().await;
            if table.find(&uri).is_none() {
                let request = new_request("resources/unsubscribe", to_object([("uri", uri.into())]));
                // The server loses nothing if it does not answer.
                let _ = lease.request(request, UNSUBSCRIBE_TIMEOUT, &CallOptions::default()).await;
            }
        });
    }
}

/// Subscribes to a resource, or joins a subscription that exists. Starts the server if needed. Fails if the server does
/// not report changes, refuses, or has too many subscriptions.
pub(super) async fn subscribe(
    upstream: &Arc<Upstream>,
    server: &str,
    uri: String,
    options: &CallOptions,
) -> Result<Arc<ResourceSubscription>, UpstreamError> {
    let lease = upstream.lease_running().await?;
    let reports_changes = |capabilities: &ServerCapabilities| {
        capabilities.resources.as_ref().is_some_and(|resources| resources.subscribe == Some(true))
    };
    if !lease.announces(reports_changes) {
        return Err(UpstreamError::protocol(server, "it does not report changes of resources", None));
    }
    let notices = Arc::clone(lease.notices());
    let table = notices.subscriptions();
    let _changing = table.changing.lock().await;
    if let Some(existing) = table.find(&uri) {
        return Ok(existing);
    }
    let owner = options.principal.clone();
    if !table.make_room(owner.as_ref()) {
        let message =
            format!("there are {MAX_SUBSCRIPTIONS_TO_SERVER} subscriptions to it, which is all that Cove keeps");
        return Err(UpstreamError::protocol(server, &message, None));
    }
    let era = lease.era();
    let subscription = Arc::new(ResourceSubscription {
        server: server.to_owned(),
        uri: uri.clone(),
        owner,
        number: SUBSCRIPTIONS.fetch_add(1, Ordering::Relaxed),
        is_displaced: AtomicBool::new(false),
        lease: Some(lease),
        notices: Arc::clone(&notices),
        changes: watch::Sender::new(0),
        listener: Mutex::default(),
    });
    // Registered first: the server may report a change before Cove reads its answer.
    lock(&table.live).insert(uri.clone(), Arc::downgrade(&subscription));
    let Some(lease) = &subscription.lease else { return Ok(subscription) };
    match era {
        ProtocolEra::Legacy => {
            let request = new_request("resources/subscribe", to_object([("uri", uri.into())]));
            upstream.request_on(lease, request, options).await?;
        }
        ProtocolEra::Modern => {
            // rmcp makes the request itself, so it has no logs.
            if let Some(logs) = &options.logs {
                notices.note_user(logs);
            }
            let timeout = upstream.call_timeout(options, upstream.default_call_timeout());
            let listener = lease.listen_to_resource(uri, timeout).await?;
            *lock(&subscription.listener) = Some(listener);
        }
    }
    Ok(subscription)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_parts_are_changes_of_the_resource() {
        for part in ["a://b", "a://b/c", "a://b#c", "a://b?c"] {
            assert!(contains_resource("a://b", part), "{part}");
        }
        assert!(contains_resource("a://b/", "a://b/c"));
        for other in ["a://bc", "a://", "b://a://b", ""] {
            assert!(!contains_resource("a://b", other), "{other}");
        }
    }
}
