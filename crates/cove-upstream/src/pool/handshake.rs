//! The handshake with a server, in the protocol era that it speaks. Cove tries the modern era first unless it
//! remembers that the server is legacy. If the server answers with an error or nonsense, or stays silent for `discover_timeout`, Cove
//! tries the other era over the same pipes: a silent process may still be starting, and a second one would start over.
//! Cove starts a second process only if the first one ended.
//!
//! A process that was silent may answer both messages once it runs. `HandshakeIds` drops the answer to the first. If that
//! message bound the server to the modern era, it refuses the second one, and Cove repeats the first.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rmcp::ErrorData;
use rmcp::model::{ErrorCode, ProtocolVersion};
use rmcp::service::{ClientInitializeError, ClientLifecycleMode, ClientServiceExt, RoleClient};
use rmcp::transport::Transport;
use tokio::time::{Instant, timeout_at};

use super::ProtocolEra;
use super::client_handler::{UpstreamClient, UpstreamConnection};
use super::error::StartFailureKind;
use super::notifications::NotificationRouter;
use super::process::{ServerProcess, describe_exit};
use super::redaction::ServerSecrets;
use super::resolve::ServerCommand;
use super::settings::UpstreamSettings;
use super::sign_in::SignInNeed;
use super::stdio::{JunkOutput, UpstreamStdio};
use super::text;
use crate::definition::HttpTransport;
use cove_core::sync::lock;

/// A server that completed the handshake.
pub(super) struct ConnectedServer {
    pub(super) connection: UpstreamConnection,
    pub(super) era: ProtocolEra,
    /// The transport, if it is HTTP.
    pub(super) transport: HttpTransport,
    pub(super) process: Option<ServerProcess>,
    pub(super) junk: Arc<Mutex<JunkOutput>>,
}

/// Why the handshake failed.
#[derive(Debug, Default)]
pub(super) struct ConnectFailure {
    pub(super) reason: String,
    pub(super) stderr_tail: String,
    /// What the operator must provide before the server works.
    pub(super) needs: Option<String>,
    /// The person must sign in first.
    pub(super) sign_in: Option<Box<SignInNeed>>,
    pub(super) kind: StartFailureKind,
    /// The server refuses messages as a server of the older SSE transport does.
    pub(super) may_be_sse: bool,
}

impl ConnectFailure {
    /// True if the server wants a credential or a sign-in.
    pub(super) fn is_denied(&self) -> bool {
        self.needs.is_some() || self.sign_in.is_some()
    }

    pub(super) fn new(reason: String) -> Self {
        Self { reason, ..Self::default() }
    }
}

/// What all attempts of one start share.
pub(super) struct ConnectContext<'a> {
    /// The era that the server used before.
    pub(super) remembered: Option<ProtocolEra>,
    /// The transport that the server used before.
    pub(super) remembered_transport: HttpTransport,
    pub(super) settings: &'a UpstreamSettings,
    pub(super) notices: &'a Arc<NotificationRouter>,
    /// From the start to the first answer.
    /// Kept out of what the server says.
    pub(super) secrets: &'a ServerSecrets,
    pub(super) start_timeout: Duration,
    /// When the last attempt must have succeeded.
    pub(super) deadline: Instant,
}

impl ConnectContext<'_> {
    /// Returns the era of the first attempt, and when that attempt is given up.
    pub(super) fn first_attempt(&self) -> (ProtocolEra, Instant) {
        match self.remembered {
            Some(era) => (era, self.deadline),
            None => (ProtocolEra::Modern, self.deadline.min(Instant::now() + self.settings.discover_timeout)),
        }
    }

    /// Tries the handshake over one transport in one era. Fails if the server refuses it or the transport closes, and
    /// without an error if there is no answer in time.
    pub(super) async fn try_era<T>(
        &self,
        transport: T,
        era: ProtocolEra,
        until: Instant,
    ) -> Result<UpstreamConnection, Option<ClientInitializeError>>
    where
        T: Transport<RoleClient> + 'static,
    {
        let client = UpstreamClient::new(era, self.settings, Arc::clone(self.notices));
        let lifecycle = match era {
            ProtocolEra::Modern => ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::LATEST] },
            ProtocolEra::Legacy => ClientLifecycleMode::Initialize,
        };
        timeout_at(until, client.serve_with_lifecycle(transport, lifecycle)).await.map_err(|_| None)?.map_err(Some)
    }

    pub(super) fn silence_reason(&self) -> String {
        format!("it did not answer within {} s", self.start_timeout.as_secs_f64())
    }

    /// Starts a process and completes the handshake with it. If the era is not remembered and the process exits, starts
    /// a second one in the legacy era. Fails with the reason and the tail of standard error.
    pub(super) async fn connect_stdio(&self, program: &ServerCommand) -> Result<ConnectedServer, ConnectFailure> {
        let (mut first, mut until) = self.first_attempt();
        let mut may_restart = self.remembered.is_none();
        loop {
            let attempt = HandshakeAttempt::start(self, program)?;
            match attempt.try_both_eras(first, until).await {
                Ok((connection, era)) => {
                    let HandshakeAttempt { process, junk, .. } = attempt;
                    let transport = HttpTransport::default();
                    return Ok(ConnectedServer { connection, era, transport, process: Some(process), junk });
                }
                // A legacy server may exit at a first message that it does not know.
                Err(HandshakeFailure::Closed) if may_restart && Instant::now() < self.deadline => {
                    (first, until, may_restart) = (ProtocolEra::Legacy, self.deadline, false);
                }
                Err(failure) => return Err(attempt.into_failure(failure).await),
            }
        }
    }
}

#[derive(Debug)]
enum HandshakeFailure {
    /// No answer in time.
    Silent,
    /// The server's output ended.
    Closed,
    /// The server answered with an error, so the pipes can be used again.
    Refused(ErrorData),
    /// The server answered with something that the protocol does not allow here.
    Unexpected(String),
}

impl From<Option<ClientInitializeError>> for HandshakeFailure {
    fn from(error: Option<ClientInitializeError>) -> Self {
        match error {
            None => Self::Silent,
            Some(ClientInitializeError::ConnectionClosed(_) | ClientInitializeError::TransportError { .. }) => {
                Self::Closed
            }
            Some(ClientInitializeError::JsonRpcError(error)) => Self::Refused(error),
            Some(ClientInitializeError::NoCompatibleProtocolVersion { server_supported, .. }) => {
                let words = describe_versions(&server_supported);
                Self::Refused(ErrorData::new(ErrorCode::UNSUPPORTED_PROTOCOL_VERSION, words, None))
            }
            Some(other) => Self::Unexpected(other.to_string()),
        }
    }
}

pub(super) fn describe_versions(supported: &[ProtocolVersion]) -> String {
    let versions: Vec<&str> = supported.iter().map(ProtocolVersion::as_str).collect();
    format!("it speaks {} only", text::to_line(&versions.join(", "), 200))
}

pub(super) fn describe_refusal(error: &ErrorData) -> String {
    format!("it refused: {} ({})", text::to_line(&error.message, 500), error.code.0)
}

/// A process that is being greeted.
struct HandshakeAttempt<'a> {
    context: &'a ConnectContext<'a>,
    process: ServerProcess,
    transport: UpstreamStdio,
    junk: Arc<Mutex<JunkOutput>>,
}

impl<'a> HandshakeAttempt<'a> {
    fn start(context: &'a ConnectContext<'a>, program: &ServerCommand) -> Result<Self, ConnectFailure> {
        let (process, pipes) = ServerProcess::start(program).map_err(|error| {
            ConnectFailure::new(format!("`{}` could not be executed: {error}", program.path.display()))
        })?;
        let (transport, junk) = UpstreamStdio::new(pipes, Arc::clone(context.notices), context.secrets.clone());
        Ok(Self { context, process, transport, junk })
    }

    /// Tries `first` until `until`, and the other era if the server refuses it or stays silent. Returns the connection
    /// and its era.
    async fn try_both_eras(
        &self,
        first: ProtocolEra,
        until: Instant,
    ) -> Result<(UpstreamConnection, ProtocolEra), HandshakeFailure> {
        let (second, deadline) = (first.other(), self.context.deadline);
        let refused = match self.try_era(first, until).await {
            Err(HandshakeFailure::Refused(error)) => Some(error),
            // Some servers answer every method that they do not know with an empty success.
            Err(HandshakeFailure::Unexpected(words)) => Some(ErrorData::invalid_request(words, None)),
            Err(HandshakeFailure::Silent) if until < deadline => None,
            settled => return settled,
        };
        match (self.try_era(second, deadline).await, refused) {
            // The server speaks the first era only, and was not ready for it before.
            (Err(HandshakeFailure::Refused(_)), None) => self.try_era(first, deadline).await,
            // The server's late answer to the first message bound it to the modern era, so Cove uses that era.
            (Err(HandshakeFailure::Refused(error)), Some(_))
                if second == ProtocolEra::Legacy && error.code == ErrorCode::UNSUPPORTED_PROTOCOL_VERSION =>
            {
                self.try_era(first, deadline).await
            }
            // Reports the refusal of the era that the server speaks.
            (Err(HandshakeFailure::Refused(error)), Some(refused)) => {
                let is_modern = (-32022..=-32020).contains(&refused.code.0);
                let is_first = first == ProtocolEra::Legacy || is_modern;
                Err(HandshakeFailure::Refused(if is_first { refused } else { error }))
            }
            (settled, _) => settled,
        }
    }

    async fn try_era(
        &self,
        era: ProtocolEra,
        until: Instant,
    ) -> Result<(UpstreamConnection, ProtocolEra), HandshakeFailure> {
        Ok((self.context.try_era(self.transport.clone(), era, until).await?, era))
    }

    async fn into_failure(self, failure: HandshakeFailure) -> ConnectFailure {
        let kind = match failure {
            HandshakeFailure::Silent => StartFailureKind::SilentProcess,
            _ => StartFailureKind::Process,
        };
        let mut reason = match failure {
            HandshakeFailure::Silent => self.context.silence_reason(),
            HandshakeFailure::Closed => match self.process.wait_for_exit(Duration::from_secs(1)).await {
                Some(status) => format!("{} before it answered", describe_exit(status)),
                None => "it closed its output before it answered".to_owned(),
            },
            HandshakeFailure::Refused(error) => describe_refusal(&error),
            HandshakeFailure::Unexpected(words) => text::to_line(&words, 500),
        };
        lock(&self.junk).append_to(&mut reason);
        let stderr_tail = self.process.stderr_tail(self.context.secrets);
        ConnectFailure { stderr_tail, kind, ..ConnectFailure::new(reason) }
    }
}
