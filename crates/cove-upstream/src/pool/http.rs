//! Servers over HTTP, with the headers of their definition. rmcp writes the messages; this module chooses the target,
//! the transport, the order of the eras, and the error messages.
//!
//! If the definition does not name a transport, Cove tries Streamable HTTP first. A server that refuses its messages as
//! servers of the older transport do gets one attempt with that transport, whose success the process remembers.

mod command_headers;
mod http_client;
mod parameter_headers;
mod sse;
mod sse_transport;
mod target;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rmcp::service::ClientInitializeError;
use rmcp::transport::common::client_side_sse::ExponentialBackoff;
use rmcp::transport::streamable_http_client::{StreamableHttpClientTransport, StreamableHttpClientTransportConfig};
use tokio::time::Instant;

use super::ProtocolEra;
use super::error::StartFailureKind;
use super::handshake::{ConnectContext, ConnectFailure, ConnectedServer, describe_refusal, describe_versions};
use super::redaction::ServerSecrets;
use super::sign_in::ServerSignIn;
use super::stdio::JunkOutput;
use super::text;
use crate::definition::HttpTransport;

pub(crate) use http_client::innermost_cause;
pub(super) use http_client::{HttpClientError, HttpErrorKind};
pub use parameter_headers::ParameterHeaders;
pub(super) use parameter_headers::check_annotations;
#[cfg(any(test, fuzzing))]
pub use sse::exercise::exercise as exercise_sse;
pub(super) use target::HttpTarget;

use http_client::{HttpTransportError, UpstreamHttpClient};
use sse_transport::SseTransport;

use cove_core::sync::lock;

/// As many calls as code may have in flight at once.
const MAX_CALLS: usize = 64;

/// How servers of the older transport refuse a message of the newer one.
const OLDER_SERVER_STATUSES: [u16; 3] = [400, 404, 405];

impl ConnectContext<'_> {
    /// Connects and completes the handshake, with the transport of the definition or the one that works. Fails with the
    /// reason, and with what the operator must provide if that is known.
    pub(super) async fn connect_http(
        &self,
        target: &HttpTarget,
        secrets: &ServerSecrets,
        sign_in: Option<&Arc<ServerSignIn>>,
    ) -> Result<ConnectedServer, ConnectFailure> {
        let junk: Arc<Mutex<JunkOutput>> = Arc::default();
        let client = UpstreamHttpClient::new(
            target,
            Arc::clone(self.notices),
            Arc::clone(&junk),
            secrets.clone(),
            sign_in.cloned(),
        )
        .map_err(address_failure)?;
        let transport = match target.transport {
            HttpTransport::Detected => self.remembered_transport,
            chosen => chosen,
        };
        let connected = match transport {
            HttpTransport::LegacySse => self.connect_sse(&client, target, &junk, None).await,
            HttpTransport::Detected | HttpTransport::StreamableHttp => {
                match self.connect_streamable(&client, target, &junk).await {
                    Err(refused) if refused.may_be_sse && transport == HttpTransport::Detected => {
                        self.connect_sse(&client, target, &junk, Some(refused)).await
                    }
                    Err(refused) if refused.may_be_sse => {
                        Err(ConnectFailure { kind: StartFailureKind::SseAddress, ..refused })
                    }
                    settled => settled,
                }
            }
        };
        if let (Ok(_), Some(sign_in)) = (&connected, sign_in) {
            sign_in.forget_refusal().await;
        }
        connected
    }

    /// Connects with the older transport. Fails with `refused` if the server does not even open an event stream.
    async fn connect_sse(
        &self,
        client: &UpstreamHttpClient,
        target: &HttpTarget,
        junk: &Arc<Mutex<JunkOutput>>,
        refused: Option<ConnectFailure>,
    ) -> Result<ConnectedServer, ConnectFailure> {
        let until = self.deadline.min(Instant::now() + sse_transport::ENDPOINT_TIMEOUT);
        let stream = match SseTransport::open_stream(client, &target.url, until).await {
            Ok(stream) => stream,
            Err(error) => {
                let failure = transport_failure(&error);
                return Err(refused.filter(|_| !failure.is_denied()).unwrap_or(failure));
            }
        };
        let transport = SseTransport::from_stream(client, stream, &target.url, until).await;
        let transport = transport.map_err(|error| transport_failure(&error))?;
        match self.try_era(transport, ProtocolEra::Legacy, self.deadline).await {
            Ok(connection) => Ok(ConnectedServer {
                connection,
                era: ProtocolEra::Legacy,
                transport: HttpTransport::LegacySse,
                process: None,
                junk: Arc::clone(junk),
            }),
            Err(Some(error)) => Err(match classify_failure(error, junk) {
                Ok(failure) | Err(failure) => failure,
            }),
            Err(None) => Err(self.silent_address()),
        }
    }

    fn silent_address(&self) -> ConnectFailure {
        let kind = StartFailureKind::SilentAddress;
        ConnectFailure { kind, ..ConnectFailure::new(self.silence_reason()) }
    }

    /// Connects over Streamable HTTP. If the server refuses one era, tries the other.
    async fn connect_streamable(
        &self,
        client: &UpstreamHttpClient,
        target: &HttpTarget,
        junk: &Arc<Mutex<JunkOutput>>,
    ) -> Result<ConnectedServer, ConnectFailure> {
        let (first, first_deadline) = self.first_attempt();
        let mut refused: Option<ConnectFailure> = None;
        let mut may_be_sse = true;
        for (era, until) in [(first, first_deadline), (first.other(), self.deadline)] {
            let mut config = StreamableHttpClientTransportConfig::with_uri(target.url.as_str());
            config.max_concurrent_requests = MAX_CALLS;
            let mut backoff = ExponentialBackoff::default();
            backoff.max_delay = Some(Duration::from_secs(60));
            config.retry_config = Arc::new(backoff);
            let transport = StreamableHttpClientTransport::with_client(client.clone(), config);
            let failure = match self.try_era(transport, era, until).await {
                Ok(connection) => {
                    let (transport, junk) = (HttpTransport::StreamableHttp, Arc::clone(junk));
                    return Ok(ConnectedServer { connection, era, transport, process: None, junk });
                }
                Err(Some(error)) => classify_failure(error, junk)?,
                Err(None) => self.silent_address(),
            };
            may_be_sse &= failure.may_be_sse;
            // Only a modern server refuses with errors of its own. Otherwise the refusal in the legacy era counts.
            refused = refused.filter(|_| era != ProtocolEra::Legacy).or(Some(failure));
        }
        Err(ConnectFailure { may_be_sse, ..refused.unwrap_or_default() })
    }
}

fn address_failure(reason: String) -> ConnectFailure {
    ConnectFailure { kind: StartFailureKind::Address, ..ConnectFailure::new(reason) }
}

fn client_failure(error: &HttpClientError) -> ConnectFailure {
    let message = error.message.clone();
    match (&error.sign_in, error.kind) {
        (Some(need), _) => {
            let failure = ConnectFailure::new(format!("it needs {need}"));
            ConnectFailure { sign_in: Some(need.clone()), ..failure }
        }
        (None, HttpErrorKind::Denied) => {
            ConnectFailure { needs: Some(message.clone()), ..ConnectFailure::new(format!("it needs {message}")) }
        }
        (None, _) => address_failure(message),
    }
}

fn transport_failure(error: &HttpTransportError) -> ConnectFailure {
    match error {
        HttpTransportError::Client(error) => client_failure(error),
        other => address_failure(text::to_line(&other.to_string(), 500)),
    }
}

/// Returns the failure if the other era is worth an attempt, and fails with it if not.
fn classify_failure(error: ClientInitializeError, junk: &Mutex<JunkOutput>) -> Result<ConnectFailure, ConnectFailure> {
    let (mut is_final, mut may_be_sse) = (false, false);
    let mut reason = match error {
        ClientInitializeError::TransportError { error, .. } => match HttpClientError::find_in(&error) {
            Some(error) if error.kind == HttpErrorKind::Denied => return Err(client_failure(error)),
            Some(HttpClientError { kind, message, .. }) => {
                is_final = *kind == HttpErrorKind::Unreachable;
                may_be_sse = matches!(kind, HttpErrorKind::Refused(status) if OLDER_SERVER_STATUSES.contains(status));
                message.clone()
            }
            None => text::to_line(&error.error.to_string(), 500),
        },
        ClientInitializeError::JsonRpcError(error) => describe_refusal(&error),
        ClientInitializeError::NoCompatibleProtocolVersion { server_supported, .. } => {
            describe_versions(&server_supported)
        }
        ClientInitializeError::ConnectionClosed(_) => "its answer could not be used".to_owned(),
        other => text::to_line(&other.to_string(), 500),
    };
    lock(junk).append_to(&mut reason);
    let failure = ConnectFailure { may_be_sse, ..address_failure(reason) };
    if is_final { Err(failure) } else { Ok(failure) }
}
