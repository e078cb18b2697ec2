//! Servers over Streamable HTTP, with the headers of their definition. rmcp writes the messages; this module chooses
//! the target, the order of the eras, and the error messages.

mod http_client;
mod sse;
mod target;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rmcp::service::ClientInitializeError;
use rmcp::transport::common::client_side_sse::ExponentialBackoff;
use rmcp::transport::streamable_http_client::{StreamableHttpClientTransport, StreamableHttpClientTransportConfig};

use super::ProtocolEra;
use super::error::StartFailureKind;
use super::handshake::{ConnectContext, ConnectFailure, ConnectedServer, describe_refusal, describe_versions};
use super::redaction::ServerSecrets;
use super::stdio::JunkOutput;
use super::text;

pub(super) use http_client::{HttpClientError, HttpErrorKind, unwrap_result};
pub(super) use target::HttpTarget;

use http_client::UpstreamHttpClient;

use cove_core::sync::lock;

/// As many calls as code may have in flight at once.
const MAX_CALLS: usize = 64;

impl ConnectContext<'_> {
    /// Connects and completes the handshake. If the server refuses one era, tries the other. Fails with the reason,
    /// and with what the operator must provide if that is known.
    pub(super) async fn connect_http(
        &self,
        target: &HttpTarget,
        secrets: &ServerSecrets,
    ) -> Result<ConnectedServer, ConnectFailure> {
        let junk: Arc<Mutex<JunkOutput>> = Arc::default();
        let client = UpstreamHttpClient::new(target, Arc::clone(self.notices), Arc::clone(&junk), secrets.clone())
            .map_err(address_failure)?;
        let (first, first_deadline) = self.first_attempt();
        let mut refused: Option<ConnectFailure> = None;
        for (era, until) in [(first, first_deadline), (first.other(), self.deadline)] {
            let mut config = StreamableHttpClientTransportConfig::with_uri(target.url.as_str());
            config.max_concurrent_requests = MAX_CALLS;
            let mut backoff = ExponentialBackoff::default();
            backoff.max_delay = Some(Duration::from_secs(60));
            config.retry_config = Arc::new(backoff);
            let transport = StreamableHttpClientTransport::with_client(client.clone(), config);
            let failure = match self.try_era(transport, era, until).await {
                Ok(connection) => return Ok(ConnectedServer { connection, era, process: None, junk }),
                Err(Some(error)) => classify_failure(error, &junk)?,
                Err(None) => {
                    let kind = StartFailureKind::SilentAddress;
                    ConnectFailure { kind, ..ConnectFailure::new(self.silence_reason()) }
                }
            };
            // Only a modern server refuses with errors of its own. Otherwise the refusal in the legacy era counts.
            refused = refused.filter(|_| era != ProtocolEra::Legacy).or(Some(failure));
        }
        let mut refused = refused.unwrap_or_default();
        if refused.kind == StartFailureKind::Address && target.url.path().ends_with("/sse") {
            refused.kind = StartFailureKind::SseAddress;
        }
        Err(refused)
    }
}

fn address_failure(reason: String) -> ConnectFailure {
    ConnectFailure { kind: StartFailureKind::Address, ..ConnectFailure::new(reason) }
}

/// Returns the failure if the other era is worth an attempt, and fails with it if not.
fn classify_failure(error: ClientInitializeError, junk: &Mutex<JunkOutput>) -> Result<ConnectFailure, ConnectFailure> {
    let (mut is_final, mut kind) = (false, StartFailureKind::Address);
    let mut reason = match error {
        ClientInitializeError::TransportError { error, .. } => match HttpClientError::find_in(&error) {
            Some(HttpClientError { kind: HttpErrorKind::Denied, message }) => {
                let reason = format!("it needs {message}");
                return Err(ConnectFailure { needs: Some(message.clone()), ..ConnectFailure::new(reason) });
            }
            Some(HttpClientError { kind: cause, message }) => {
                is_final = *cause == HttpErrorKind::Unreachable;
                // A server of the older transport takes messages at another address than the one that people know.
                if *cause == HttpErrorKind::Refused(405) {
                    kind = StartFailureKind::SseAddress;
                }
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
    let failure = ConnectFailure { kind, ..ConnectFailure::new(reason) };
    if is_final { Err(failure) } else { Ok(failure) }
}
