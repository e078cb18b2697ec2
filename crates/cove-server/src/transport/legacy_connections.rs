//! Connections of clients with old protocol revisions, which have a protocol session. Each connection belongs to the
//! principal that opened it; for all others it does not exist. Their number is bounded, unlike in rmcp's own store.
//!
//! The HTTP handler sets [`PRINCIPAL`] for each request, and every method of [`LegacyConnections`] that rmcp calls
//! inside that request reads it. `create_session` records the owner, the other methods check it and refresh
//! `last_used`. If there is no room, `create_session` first closes the least needed connection. rmcp also calls these
//! methods from its own tasks, when a connection expires; then there is no principal, and the call is allowed.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use futures_core::Stream;
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::WorkerTransport;
use rmcp::transport::common::server_side_http::{ServerSseMessage, SessionId};
use rmcp::transport::streamable_http_server::session::SessionManager;
use rmcp::transport::streamable_http_server::session::local::{
    LocalSessionManager, LocalSessionManagerError, LocalSessionWorker, SessionConfig,
};

use crate::server_config::ServerConfig;
use cove_core::session::registry::Principal;
use cove_core::sync::lock;

tokio::task_local! {
    /// The principal of the request that is being answered.
    pub(super) static PRINCIPAL: Principal;
}

/// Connections allowed for each session that may be open. Most clients open one connection and use no session for
/// long.
const CONNECTIONS_PER_SESSION: usize = 8;

/// The open connections and their owners, in front of rmcp's own store.
pub(super) struct LegacyConnections {
    inner: LocalSessionManager,
    owners: Mutex<HashMap<SessionId, ConnectionOwner>>,
    most: usize,
}

struct ConnectionOwner {
    principal: Principal,
    /// The time of the last request.
    last_used: Instant,
}

impl LegacyConnections {
    pub(super) fn new(config: &ServerConfig) -> Self {
        let mut inner = LocalSessionManager::default();
        let mut lifetime = SessionConfig::default();
        // As long as a Cove session lasts, and longer than a person may take to answer a question: rmcp counts a connection
        // that waits for an answer as idle, and its end would end the session too.
        let margin = Duration::from_secs(60);
        lifetime.keep_alive = Some(config.idle_timeout.max(config.input_timeout + margin));
        inner.session_config = lifetime;
        Self { inner, owners: Mutex::default(), most: config.max_sessions.saturating_mul(CONNECTIONS_PER_SESSION) }
    }

    fn owners(&self) -> std::sync::MutexGuard<'_, HashMap<SessionId, ConnectionOwner>> {
        lock(&self.owners)
    }

    /// Returns true if the current principal opened the connection, and refreshes it. Also returns true outside a
    /// request, as when a connection expires.
    fn belongs_to_caller(&self, id: &SessionId) -> bool {
        PRINCIPAL
            .try_with(|asker| match self.owners().get_mut(id) {
                Some(owner) if owner.principal == *asker => {
                    owner.last_used = Instant::now();
                    true
                }
                _ => false,
            })
            .unwrap_or(true)
    }

    /// Returns true if the current principal has a connection with this id.
    pub(super) fn is_known_to_caller(&self, id: &str) -> bool {
        self.belongs_to_caller(&SessionId::from(id.to_owned()))
    }

    fn check_caller(&self, id: &SessionId) -> Result<(), LocalSessionManagerError> {
        if self.belongs_to_caller(id) {
            return Ok(());
        }
        Err(LocalSessionManagerError::SessionNotFound(id.clone()))
    }

    /// Returns the connection to close if there is no room: the one unused for longest, of the same principal if it
    /// has any. Clients that disconnect without a request leave theirs behind.
    fn least_needed(&self, asker: &Principal) -> Option<SessionId> {
        let owners = self.owners();
        if owners.len() < self.most {
            return None;
        }
        let least = owners.iter().min_by_key(|(_, owner)| (owner.principal != *asker, owner.last_used));
        least.map(|(id, _)| id.clone())
    }
}

impl SessionManager for LegacyConnections {
    type Error = LocalSessionManagerError;
    type Transport = WorkerTransport<LocalSessionWorker>;

    async fn create_session(&self) -> Result<(SessionId, Self::Transport), Self::Error> {
        let principal = PRINCIPAL.try_with(Clone::clone).unwrap_or_else(|_| crate::mcp::local_principal());
        while let Some(oldest) = self.least_needed(&principal) {
            self.owners().remove(&oldest);
            tracing::warn!("gave up the connection that was unused for longest, to make room for another");
            let _ = self.inner.close_session(&oldest).await;
        }
        let (id, transport) = self.inner.create_session().await?;
        self.owners().insert(id.clone(), ConnectionOwner { principal, last_used: Instant::now() });
        Ok((id, transport))
    }

    async fn initialize_session(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage, Self::Error> {
        self.check_caller(id)?;
        self.inner.initialize_session(id, message).await
    }

    async fn has_session(&self, id: &SessionId) -> Result<bool, Self::Error> {
        Ok(self.belongs_to_caller(id) && self.inner.has_session(id).await?)
    }

    async fn close_session(&self, id: &SessionId) -> Result<(), Self::Error> {
        self.check_caller(id)?;
        self.owners().remove(id);
        self.inner.close_session(id).await
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.check_caller(id)?;
        self.inner.create_stream(id, message).await
    }

    async fn accept_message(&self, id: &SessionId, message: ClientJsonRpcMessage) -> Result<(), Self::Error> {
        self.check_caller(id)?;
        self.inner.accept_message(id, message).await
    }

    async fn create_standalone_stream(
        &self,
        id: &SessionId,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.check_caller(id)?;
        self.inner.create_standalone_stream(id).await
    }

    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.check_caller(id)?;
        self.inner.resume(id, last_event_id).await
    }
}
