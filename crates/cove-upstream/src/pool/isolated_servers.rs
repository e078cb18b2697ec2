//! One process or connection of a server for each principal (`--isolate-upstreams`, or `isolate` in a definition). A
//! process that serves several principals can answer one of them with what it knows of another; a process that has only
//! seen one principal cannot.
//!
//! The server of the pool itself stays: it lists the tools, and no call of code reaches it. Each principal's server starts
//! with that principal's first call and stops when it is idle, like any other. There are at most `MAX_ISOLATED`; when a
//! further one is needed, the one that was idle longest makes room.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::error::UpstreamError;
use super::lifecycle::Upstream;
use cove_core::session::registry::Principal;
use cove_core::sync::lock;

/// Servers for single principals, over all servers and principals.
const MAX_ISOLATED: usize = 64;

/// The servers that belong to one principal each, by server name and principal.
#[derive(Default)]
pub(super) struct IsolatedServers(Mutex<HashMap<(String, Principal), Arc<Upstream>>>);

impl IsolatedServers {
    /// Returns the principal's own instance of a server, and creates it if needed. Fails if there are too many that work.
    pub(super) fn find(&self, shared: &Arc<Upstream>, principal: &Principal) -> Result<Arc<Upstream>, UpstreamError> {
        let server = shared.definition().name.clone();
        let key = (server.clone(), principal.clone());
        let (own, stopped) = {
            let mut known = lock(&self.0);
            if let Some(own) = known.get(&key) {
                return Ok(Arc::clone(own));
            }
            let stopped = match known.len() < MAX_ISOLATED {
                true => None,
                false => {
                    let idle = known.iter().filter_map(|(key, own)| Some((own.unused_since()?, key)));
                    let Some(longest) = idle.min_by_key(|(since, _)| *since).map(|(_, key)| key.clone()) else {
                        let message = format!(
                            "{MAX_ISOLATED} servers for single principals work, which is all that Cove runs at once"
                        );
                        return Err(UpstreamError::protocol(&server, &message, None));
                    };
                    known.remove(&longest)
                }
            };
            let own = shared.new_instance();
            known.insert(key, Arc::clone(&own));
            (own, stopped)
        };
        stopped.into_iter().for_each(close_in_background);
        Ok(own)
    }

    /// Calls a function with every instance of a server.
    pub(super) fn for_each(&self, server: &str, mut use_instance: impl FnMut(&Arc<Upstream>)) {
        lock(&self.0).iter().filter(|((name, _), _)| name == server).for_each(|(_, own)| use_instance(own));
    }

    /// Stops the instances of a server in the background.
    pub(super) fn remove(&self, server: &str) {
        let removed: Vec<_> = lock(&self.0).extract_if(|(name, _), _| name == server).collect();
        removed.into_iter().for_each(|(_, own)| close_in_background(own));
    }

    /// Takes all instances, for the end of the pool.
    pub(super) fn take_all(&self) -> Vec<Arc<Upstream>> {
        std::mem::take(&mut *lock(&self.0)).into_values().collect()
    }
}

/// Stops a server in a task of its own. Without a runtime, no server was ever started.
pub(super) fn close_in_background(upstream: Arc<Upstream>) {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(async move { upstream.close().await });
    }
}
