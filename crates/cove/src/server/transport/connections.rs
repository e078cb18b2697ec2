//! Connections of clients of old revisions, which have a session of the protocol's own. Each belongs to whoever began it:
//! to anybody else it is not there. Their number is bounded, which rmcp's own store is not.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

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
    owners: Mutex<HashMap<SessionId, Owner>>,
    most: usize,
}

struct Owner {
    principal: Principal,
    /// When it was used last.
    last: Instant,
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

    fn owners(&self) -> std::sync::MutexGuard<'_, HashMap<SessionId, Owner>> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether whoever asks began it. Without a request, as when a connection ends by itself, nobody asks.
    fn is_asker_s(&self, id: &SessionId) -> bool {
        PRINCIPAL
            .try_with(|asker| match self.owners().get_mut(id) {
                Some(owner) if owner.principal == *asker => {
                    owner.last = Instant::now();
                    true
                }
                _ => false,
            })
            .unwrap_or(true)
    }

    /// Whether whoever asks has a connection of this id.
    pub(super) fn knows(&self, id: &str) -> bool {
        self.is_asker_s(&SessionId::from(id.to_owned()))
    }

    fn check(&self, id: &SessionId) -> Result<(), LocalSessionManagerError> {
        if self.is_asker_s(id) {
            return Ok(());
        }
        Err(LocalSessionManagerError::SessionNotFound(id.clone()))
    }

    /// The one that is missed least when there is no room: unused for longest, of the asker's own if there is one. Clients
    /// that go away without a word leave theirs behind.
    fn to_give_up(&self, asker: &Principal) -> Option<SessionId> {
        let owners = self.owners();
        if owners.len() < self.most {
            return None;
        }
        let least = owners.iter().min_by_key(|(_, owner)| (owner.principal != *asker, owner.last));
        least.map(|(id, _)| id.clone())
    }
}

impl SessionManager for Connections {
    type Error = LocalSessionManagerError;
    type Transport = WorkerTransport<LocalSessionWorker>;

    async fn create_session(&self) -> Result<(SessionId, Self::Transport), Self::Error> {
        let principal = PRINCIPAL.try_with(Clone::clone).unwrap_or_else(|_| crate::server::mcp::local());
        while let Some(oldest) = self.to_give_up(&principal) {
            self.owners().remove(&oldest);
            tracing::warn!("gave up the connection that was unused for longest, to make room for another");
            let _ = self.inner.close_session(&oldest).await;
        }
        let (id, transport) = self.inner.create_session().await?;
        self.owners().insert(id.clone(), Owner { principal, last: Instant::now() });
        Ok((id, transport))
    }

    async fn initialize_session(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage, Self::Error> {
        self.check(id)?;
        self.inner.initialize_session(id, message).await
    }

    async fn has_session(&self, id: &SessionId) -> Result<bool, Self::Error> {
        Ok(self.is_asker_s(id) && self.inner.has_session(id).await?)
    }

    async fn close_session(&self, id: &SessionId) -> Result<(), Self::Error> {
        self.check(id)?;
        self.owners().remove(id);
        self.inner.close_session(id).await
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.check(id)?;
        self.inner.create_stream(id, message).await
    }

    async fn accept_message(&self, id: &SessionId, message: ClientJsonRpcMessage) -> Result<(), Self::Error> {
        self.check(id)?;
        self.inner.accept_message(id, message).await
    }

    async fn create_standalone_stream(
        &self,
        id: &SessionId,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.check(id)?;
        self.inner.create_standalone_stream(id).await
    }

    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.check(id)?;
        self.inner.resume(id, last_event_id).await
    }
}
