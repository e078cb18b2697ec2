//! Sessions that are started ahead of the calls that will use them, with an interpreter that has run nothing yet. A
//! warm session has no owner until a caller takes it; from then on it is that caller's session and never returns to the
//! pool.
//!
//! `WarmPool` is shared by the registry and the tasks that start sessions. `refill` counts a start in `starting` under
//! the lock before it spawns the task, so that `ready` and `starting` together never exceed the capacity. The task
//! counts it down under the same lock when it adds the session to `ready`, or when the start failed. `close` sets
//! `closed` and takes `ready` in one step; a task that finishes later sees `closed` and drops its session, which kills
//! the sandbox.

use std::sync::{Arc, Mutex};

use cove_protocol::Language;

use crate::backend::{Backend, SandboxOwner};
use crate::policy::{Policy, SandboxRoot};
use crate::session::{Session, SessionOptions};
use crate::sync::lock;

/// The language whose interpreter is running in a warm session.
const WARM_LANGUAGE: Language = Language::Python;

pub(super) struct WarmSessions {
    backend: Arc<dyn Backend>,
    policy: Arc<Policy>,
    capacity: usize,
    pool: Arc<Mutex<WarmPool>>,
}

#[derive(Default)]
struct WarmPool {
    ready: Vec<Session>,
    starting: usize,
    closed: bool,
}

impl WarmSessions {
    pub(super) fn new(backend: Arc<dyn Backend>, policy: Policy, most: usize) -> Self {
        // A container is labelled with its owner when it is made, so it cannot be made before there is one.
        let capacity = if matches!(policy.root, SandboxRoot::Image(_)) { 0 } else { most };
        Self { backend, policy: Arc::new(policy), capacity, pool: Arc::default() }
    }

    /// Returns a warm session that is alive and starts another in its place. Returns None if there is none, or if the
    /// caller needs another language than `WARM_LANGUAGE` at once.
    pub(super) async fn take(&self, warm: Option<Language>) -> Option<Session> {
        let taken = match warm {
            Some(language) if language != WARM_LANGUAGE => None,
            _ => self.take_alive().await,
        };
        self.refill();
        taken
    }

    async fn take_alive(&self) -> Option<Session> {
        loop {
            let session = lock(&self.pool).ready.pop()?;
            // Its sandbox may have ended while it waited.
            if session.is_alive().await {
                return Some(session);
            }
        }
    }

    /// Starts a session in the background if the pool is not full. Ignores a failure: a caller that needs a session
    /// starts one itself and gets the error.
    pub(super) fn refill(&self) {
        {
            let mut pool = lock(&self.pool);
            if pool.closed || pool.ready.len() + pool.starting >= self.capacity {
                return;
            }
            pool.starting += 1;
        }
        let (backend, policy, pool) = (Arc::clone(&self.backend), Arc::clone(&self.policy), Arc::clone(&self.pool));
        tokio::spawn(async move {
            let owner = SandboxOwner { session: "parked".into(), principal: "nobody".into() };
            let options = SessionOptions { input: None, warm_language: Some(WARM_LANGUAGE), owner };
            let started = Session::start(&*backend, &policy, options).await;
            let mut pool = lock(&pool);
            pool.starting -= 1;
            // A session that is ready after `close` is dropped, which kills its sandbox.
            if let Ok(session) = started
                && !pool.closed
            {
                pool.ready.push(session);
            }
        });
    }

    /// Returns the remaining sessions and starts no more. The caller kills them.
    pub(super) fn close(&self) -> Vec<Session> {
        let mut pool = lock(&self.pool);
        pool.closed = true;
        std::mem::take(&mut pool.ready)
    }
}
