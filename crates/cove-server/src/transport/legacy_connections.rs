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
use rmcp::model::{ClientJsonRpcMessage, NumberOrString, RequestId, ServerJsonRpcMessage};
use rmcp::transport::WorkerTransport;
use rmcp::transport::common::server_side_http::{ServerSseMessage, SessionId};
use rmcp::transport::streamable_http_server::session::SessionManager;
use rmcp::transport::streamable_http_server::session::local::{
    LocalSessionManager, LocalSessionManagerError, LocalSessionWorker, SessionConfig,
};

use super::requests_under_way::{OpenRequest, RequestsUnderWay};
use crate::server_config::ServerConfig;
use cove_core::fair_room::least_recent_of_largest;
use cove_core::session::registry::Principal;
use cove_core::sync::lock;

tokio::task_local! {
    /// The principal of the request that is being answered.
    pub(super) static PRINCIPAL: Principal;
}

/// Connections allowed for each session that may be open. Most clients open one connection and use no session for
/// long.
const CONNECTIONS_PER_SESSION: usize = 8;

/// How long an answer is kept for a client that comes back for it. rmcp asks clients to come back after 3 s.
const COMPLETED_ANSWER_LIFETIME: Duration = Duration::from_secs(10);

/// The open connections and their owners, in front of rmcp's own store.
pub(super) struct LegacyConnections {
    inner: LocalSessionManager,
    owners: Mutex<HashMap<SessionId, ConnectionOwner>>,
    requests: RequestsUnderWay,
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
        // rmcp keeps every answer this long for a client that lost the connection. It bounds them by time only, so the
        // time is short: the rate and the size of answers then bound the memory.
        lifetime.completed_cache_ttl = COMPLETED_ANSWER_LIFETIME;
        inner.session_config = lifetime;
        let most = config.max_sessions.saturating_mul(CONNECTIONS_PER_SESSION);
        Self { inner, owners: Mutex::default(), requests: RequestsUnderWay::default(), most }
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

    /// Opens a request on a connection. Returns `None` if one with this id is under way.
    pub(super) fn open_request(&self, connection: &str, id: &RequestId) -> Option<OpenRequest> {
        self.requests.open(connection.into(), id.clone())
    }

    fn check_caller(&self, id: &SessionId) -> Result<(), LocalSessionManagerError> {
        if self.belongs_to_caller(id) {
            return Ok(());
        }
        Err(LocalSessionManagerError::SessionNotFound(id.clone()))
    }

    /// Returns the connection to close if there is no room: the one unused for longest, of the principal that has most
    /// of them. Clients that disconnect without a request leave theirs behind.
    fn least_needed(&self) -> Option<SessionId> {
        let owners = self.owners();
        if owners.len() < self.most {
            return None;
        }
        let entries = owners.iter().map(|(id, owner)| (id, &owner.principal, owner.last_used));
        least_recent_of_largest(entries).map(|(id, _)| id.clone())
    }

    /// Closes every connection of a principal.
    pub(super) async fn close_all_of(&self, principal: &Principal) {
        let of_principal: Vec<SessionId> = {
            let owners = self.owners();
            owners.iter().filter(|(_, owner)| owner.principal == *principal).map(|(id, _)| id.clone()).collect()
        };
        for id in of_principal {
            self.owners().remove(&id);
            // Fails if it has ended by itself.
            let _ = self.inner.close_session(&id).await;
        }
    }
}

impl SessionManager for LegacyConnections {
    type Error = LocalSessionManagerError;
    type Transport = WorkerTransport<LocalSessionWorker>;

    async fn create_session(&self) -> Result<(SessionId, Self::Transport), Self::Error> {
        let principal = PRINCIPAL.try_with(Clone::clone).unwrap_or_else(|_| crate::mcp::local_principal());
        while let Some(oldest) = self.least_needed() {
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
        let request = match &message {
            ClientJsonRpcMessage::Request(request) => request.id.clone(),
            // rmcp gives only requests.
            _ => NumberOrString::String("".into()),
        };
        let stream = self.inner.create_stream(id, message).await?;
        Ok(self.requests.watch(stream, SessionId::clone(id), request))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_principal_with_most_protocol_connections_loses_one() {
        let connections = LegacyConnections::new(&ServerConfig { max_sessions: 1, ..ServerConfig::default() });
        let open = |name: &str| {
            PRINCIPAL.scope(Principal(name.to_owned()), async { connections.create_session().await.unwrap().0 })
        };
        let mut greedy = Vec::new();
        for _ in 0..20 {
            greedy.push(open("greedy").await);
        }
        let (first, second) = (open("modest").await, open("modest").await);
        let is_open = |id: &SessionId| connections.owners().contains_key(id);
        assert!(is_open(&first) && is_open(&second));
        assert_eq!(greedy.iter().filter(|id| is_open(id)).count(), CONNECTIONS_PER_SESSION - 2);
        connections.close_all_of(&Principal("greedy".into())).await;
        assert_eq!(connections.owners().len(), 2);
    }
}
