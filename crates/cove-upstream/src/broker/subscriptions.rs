//! Subscriptions of code to changes of resources. They end with their cell.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use cove_core::session::CallingCell;
use cove_core::sync::lock;
use cove_protocol::CellId;
use serde_json::{Map, Value, json};

use super::call::to_call_error;
use super::request::{CallError, CallErrorKind};
use super::{Broker, CallScope};
use crate::pool::ResourceSubscription;

/// Subscriptions that one cell may have.
const MAX_SUBSCRIPTIONS_OF_CELL: usize = 16;
/// Longer than any cell may run, in seconds.
const MAX_WAIT: f64 = 86_400.0;
const METHOD: &str = "resources/subscribe";

/// The subscriptions of one run of code. Dropping it ends them.
#[derive(Default)]
pub struct CellSubscriptions(Mutex<OpenSubscriptions>);

#[derive(Default)]
struct OpenSubscriptions {
    open: Vec<CellSubscription>,
    /// The number of the last one.
    last: u64,
}

struct CellSubscription {
    number: u64,
    cell: CellId,
    changes: Arc<ResourceSubscription>,
}

impl CellSubscriptions {
    /// Ends the subscriptions of earlier cells, and returns how many the cell has.
    fn count(&self, cell: CellId) -> usize {
        let ended: Vec<_> = {
            let mut known = lock(&self.0);
            let (open, ended) = std::mem::take(&mut known.open).into_iter().partition(|one| one.cell == cell);
            known.open = open;
            ended
        };
        drop(ended);
        lock(&self.0).open.len()
    }

    fn add(&self, cell: CellId, changes: Arc<ResourceSubscription>) -> u64 {
        let mut known = lock(&self.0);
        known.last += 1;
        let number = known.last;
        known.open.push(CellSubscription { number, cell, changes });
        number
    }

    /// Fails if the cell has no such subscription.
    fn find(&self, cell: CellId, number: u64) -> Result<Arc<ResourceSubscription>, CallError> {
        let known = lock(&self.0);
        let found = known.open.iter().find(|one| one.number == number && one.cell == cell);
        found.map(|one| Arc::clone(&one.changes)).ok_or_else(|| {
            let message = format!("this cell has no subscription {number}");
            CallError::new(CallErrorKind::NotFound, message)
                .with_hint("a subscription ends with its cell; subscribe again")
        })
    }

    fn remove(&self, number: u64) {
        let removed = {
            let mut known = lock(&self.0);
            let at = known.open.iter().position(|one| one.number == number);
            at.map(|at| known.open.swap_remove(at))
        };
        drop(removed);
    }
}

impl Broker {
    /// Subscribes to changes of a resource. Returns the number of the subscription. Fails if the server or the method is
    /// not granted, if the server does not report changes, or if the cell has too many subscriptions.
    pub(super) async fn subscribe(
        &self,
        run: &CallScope,
        cell: &CallingCell,
        server: &str,
        uri: String,
    ) -> Result<Value, CallError> {
        let digested = Map::from_iter([("uri".to_owned(), json!(uri))]);
        let mut record = self.trail.begin(run, cell.id, server, METHOD, &digested)?;
        let attempt = async {
            let server = self.find_server(run, server, Some(METHOD))?;
            record.set_tool(&server.name, METHOD);
            self.check_grant(run, &server, METHOD)?;
            check_room(run, cell)?;
            let started = self.wait_for_start(run, cell, &server.name).await;
            started.map_err(|error| to_call_error(error, None))?;
            let options = self.call_options(run, cell, &server.name);
            let subscribed = self.servers.upstreams().subscribe(&server.name, uri, &options).await;
            let subscription = subscribed.map_err(|error| to_call_error(error, None))?;
            // Others may have been added meanwhile.
            check_room(run, cell)?;
            let changes = subscription.change_count();
            Ok(json!({"subscription": run.subscriptions.add(cell.id, subscription), "changes": changes}))
        };
        let result = attempt.await;
        record.end(result)
    }

    /// Waits until a subscription has more changes than `seen`, or until the timeout. Returns how many it has.
    pub(super) async fn wait_for_change(
        &self,
        run: &CallScope,
        cell: &CallingCell,
        (number, seen, timeout): (u64, u64, f64),
    ) -> Result<Value, CallError> {
        if !(0.0..=MAX_WAIT).contains(&timeout) {
            let message = format!("`timeout` is {timeout}, and must be seconds: from 0 to {MAX_WAIT}");
            return Err(CallError::new(CallErrorKind::BadArguments, message));
        }
        let subscription = run.subscriptions.find(cell.id, number)?;
        let waiting = subscription.wait_for_change(seen);
        let changes = match tokio::time::timeout(Duration::from_secs_f64(timeout), waiting).await {
            Ok(changed) => changed.map_err(|error| to_call_error(error, None))?,
            Err(_) => subscription.change_count(),
        };
        Ok(json!({ "changes": changes }))
    }

    /// Ends a subscription.
    pub(super) fn unsubscribe(&self, run: &CallScope, cell: &CallingCell, number: u64) -> Result<Value, CallError> {
        let subscription = run.subscriptions.find(cell.id, number)?;
        let digested = Map::from_iter([("uri".to_owned(), json!(subscription.uri()))]);
        let record = self.trail.begin(run, cell.id, subscription.server(), "resources/unsubscribe", &digested)?;
        drop(subscription);
        run.subscriptions.remove(number);
        record.end(Ok(json!({})))
    }
}

fn check_room(run: &CallScope, cell: &CallingCell) -> Result<(), CallError> {
    if run.subscriptions.count(cell.id) < MAX_SUBSCRIPTIONS_OF_CELL {
        return Ok(());
    }
    let message = format!("this cell has {MAX_SUBSCRIPTIONS_OF_CELL} subscriptions, which is all that a cell may have");
    Err(CallError::new(CallErrorKind::Limit, message).with_hint("close those that you do not need"))
}
