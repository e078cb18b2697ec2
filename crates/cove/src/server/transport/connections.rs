//! Connections of clients of old revisions, which have a session of the protocol's own. Each belongs to whoever began it:
//! to anybody else it is not there. Their number is bounded, which rmcp's own store is not.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_core::Stream;
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::WorkerTransport;
use rmcp::transport::common::server_side_http::{ServerSseMessage, SessionId};
use rmcp::transport::streamable_http_server::session::SessionManager;
use rmcp::transport::streamable_http_server::session::local::{
    LocalSessionManager, LocalSessionManagerError, LocalSessionWorker, SessionConfig,
};

use crate::config::ServerConfig;
use crate::session::registry::Principal;

tokio::task_local! {
    /// Who the request is from that is being answered.
    pub(super) static PRINCIPAL: Principal;
}

/// For each session that may be open, this many connections: most clients open one and use no session for long.
const PER_SESSION: usize = 8;

pub(super) struct Connections {
    inner: LocalSessionManager,
    owners: Mutex<HashMap<SessionId, Principal>>,
    most: usize,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectionError {
    #[error("{most} connections are open, which is all that may be")]
    TooMany { most: usize },
    #[error(transparent)]
    Inner(#[from] LocalSessionManagerError),
}

impl Connections {
    pub(super) fn new(config: &ServerConfig) -> Self {
        let mut inner = LocalSessionManager::default();
        let mut lifetime = SessionConfig::default();
        // As long as a session of ours would last; its default is shorter, and would take that session with it.
        lifetime.keep_alive = Some(config.idle_timeout.max(Duration::from_secs(60)));
        inner.session_config = lifetime;
        Self { inner, owners: Mutex::default(), most: config.max_sessions.saturating_mul(PER_SESSION) }
    }

    fn owners(&self) -> std::sync::MutexGuard<'_, HashMap<SessionId, Principal>> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether whoever asks began it. Without a request, as when a connection ends by itself, nobody asks.
    fn is_asker_s(&self, id: &SessionId) -> bool {
        PRINCIPAL.try_with(|asker| self.owners().get(id).is_some_and(|owner| owner == asker)).unwrap_or(true)
    }

    fn check(&self, id: &SessionId) -> Result<(), ConnectionError> {
        if self.is_asker_s(id) {
            return Ok(());
        }
        Err(LocalSessionManagerError::SessionNotFound(id.clone()).into())
    }
}

impl SessionManager for Connections {
    type Error = ConnectionError;
    type Transport = WorkerTransport<LocalSessionWorker>;

    async fn create_session(&self) -> Result<(SessionId, Self::Transport), Self::Error> {
        if self.owners().len() >= self.most {
            return Err(ConnectionError::TooMany { most: self.most });
        }
        let (id, transport) = self.inner.create_session().await?;
        let owner = PRINCIPAL.try_with(Clone::clone).unwrap_or_else(|_| crate::server::mcp::local());
        self.owners().insert(id.clone(), owner);
        Ok((id, transport))
    }

    async fn initialize_session(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage, Self::Error> {
        self.check(id)?;
        Ok(self.inner.initialize_session(id, message).await?)
    }

    async fn has_session(&self, id: &SessionId) -> Result<bool, Self::Error> {
        Ok(self.is_asker_s(id) && self.inner.has_session(id).await?)
    }

    async fn close_session(&self, id: &SessionId) -> Result<(), Self::Error> {
        self.check(id)?;
        self.owners().remove(id);
        Ok(self.inner.close_session(id).await?)
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.check(id)?;
        Ok(self.inner.create_stream(id, message).await?)
    }

    async fn accept_message(&self, id: &SessionId, message: ClientJsonRpcMessage) -> Result<(), Self::Error> {
        self.check(id)?;
        Ok(self.inner.accept_message(id, message).await?)
    }

    async fn create_standalone_stream(
        &self,
        id: &SessionId,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.check(id)?;
        Ok(self.inner.create_standalone_stream(id).await?)
    }

    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.check(id)?;
        Ok(self.inner.resume(id, last_event_id).await?)
    }
}
