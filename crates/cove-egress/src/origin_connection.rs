//! Connections to the servers of inspected hosts: TLS with the certificates that this machine trusts, never with those of a
//! session.

use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls_platform_verifier::BuilderVerifierExt;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::dial::connect;
use crate::egress_meter::EgressMeter;
use crate::proxy_request::MAX_HEAD;
use crate::refusal::{EgressRefusal, RefusalReason};
use crate::target_host::{HostTarget, TargetHost};

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The body of a request.
pub(crate) type SentBody = UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

/// How to trust servers: as this machine does, or `SSL_CERT_FILE` says.
#[derive(Default)]
pub(crate) struct OriginTrust(OnceLock<Result<Arc<rustls::ClientConfig>, String>>);

impl OriginTrust {
    /// Reads the certificates of this machine once. Fails if it has none.
    fn config(&self) -> Result<Arc<rustls::ClientConfig>, String> {
        let make = || {
            let builder = rustls::ClientConfig::builder_with_provider(Arc::new(default_provider()));
            let builder = builder.with_safe_default_protocol_versions().map_err(|error| error.to_string())?;
            let config = builder.with_platform_verifier().map_err(|error| error.to_string())?;
            let mut config = config.with_no_client_auth();
            config.alpn_protocols = vec![b"http/1.1".to_vec()];
            Ok(Arc::new(config))
        };
        self.0.get_or_init(make).clone()
    }

    /// Trusts servers of a test.
    #[cfg(test)]
    pub(crate) fn of_test(roots: rustls::RootCertStore) -> Self {
        let builder = rustls::ClientConfig::builder_with_provider(Arc::new(default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        Self(OnceLock::from(Ok(Arc::new(builder.with_root_certificates(roots).with_no_client_auth()))))
    }
}

/// What a connection to a server has carried, or a request would carry. A server that takes the end of one request for the
/// beginning of another answers the wrong one from then on, so a connection carries requests in this order only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CarriedRequest {
    /// Nothing but what Cove wrote: its answer is given to other sessions too.
    Shared,
    /// Written by code, without a body.
    WithoutBody,
    /// Nothing follows it: many servers do not read the bodies of some requests, and go on within them.
    WithBody,
}

/// Fails if a file that shall say which servers to trust cannot be read, or holds no certificate: no server would then be
/// trusted.
pub fn check_trust(file: &Path) -> Result<(), String> {
    let mut certificates = CertificateDer::pem_file_iter(file).map_err(|error| match error {
        pem::Error::Io(error) => error.to_string(),
        other => other.to_string(),
    })?;
    match certificates.next() {
        Some(Ok(_)) => Ok(()),
        Some(Err(pem::Error::Io(error))) => Err(error.to_string()),
        Some(Err(error)) => Err(error.to_string()),
        None => Err("there is no certificate in it".to_owned()),
    }
}

/// A connection to a server, for one request after another.
pub(crate) struct OriginConnection {
    pub(crate) sender: http1::SendRequest<SentBody>,
    pub(crate) address: IpAddr,
    carried: CarriedRequest,
    /// Ends with the connection of the code that it serves.
    task: JoinHandle<()>,
}

impl OriginConnection {
    /// Connects to one of these addresses, which were judged, for a first request of this kind. Fails if none answers, or if
    /// the server is not the target.
    pub(crate) async fn open(
        trust: &OriginTrust,
        target: &HostTarget,
        addresses: &[IpAddr],
        meter: &dyn EgressMeter,
        carried: CarriedRequest,
    ) -> Result<Self, EgressRefusal> {
        let refuse = |reason, cause: String, hint: &str| EgressRefusal {
            reason,
            target: target.to_string(),
            cause,
            hint: hint.to_owned(),
        };
        let untrusted = |cause: String| {
            let hint = "the operator can add the authority of the server to those that the machine trusts";
            refuse(RefusalReason::UntrustedServer, cause, hint)
        };
        let config = trust.config().map_err(|error| untrusted(format!("no certificates could be read: {error}")))?;
        let name = match &target.host {
            TargetHost::Name(name) => ServerName::try_from(name.clone()),
            TargetHost::Address(address) => Ok(ServerName::from(*address)),
        };
        let name = name.map_err(|_| untrusted("its name cannot be in a certificate".to_owned()))?;
        let (stream, address) = connect(target, addresses, meter).await?;
        let again = "a rule allows this host; try again later";
        let unreachable = |cause: String| refuse(RefusalReason::Unreachable, cause, again);
        let connected = timeout(HANDSHAKE_TIMEOUT, TlsConnector::from(config).connect(name, stream)).await;
        let stream = match connected {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                return Err(match certificate_problem(&error) {
                    Some(problem) => untrusted(format!("the certificate of the server is not trusted: {problem}")),
                    None => unreachable(format!("TLS with the server failed: {}", error.kind())),
                });
            }
            Err(_) => return Err(unreachable("it did not answer in time".to_owned())),
        };
        // A session has many connections, and the usual size is six times this.
        let handshake = http1::Builder::new().max_buf_size(MAX_HEAD).handshake(TokioIo::new(stream)).await;
        let (sender, connection) = handshake.map_err(|_| unreachable("it closed the connection".to_owned()))?;
        let task = tokio::spawn(async move {
            // The request that was under way reports the error.
            let _ = connection.with_upgrades().await;
        });
        Ok(Self { sender, address, carried, task })
    }

    /// True if the server can take this request on this connection.
    pub(crate) async fn may_carry(&mut self, request: CarriedRequest) -> bool {
        let is_in_order = self.carried <= request && self.carried != CarriedRequest::WithBody;
        self.carried = request;
        is_in_order && self.sender.ready().await.is_ok()
    }
}

impl Drop for OriginConnection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Returns what is wrong with a certificate, if that is why a handshake failed.
fn certificate_problem(error: &io::Error) -> Option<String> {
    match error.get_ref()?.downcast_ref::<rustls::Error>()? {
        rustls::Error::InvalidCertificate(problem) => Some(format!("{problem:?}").chars().take(200).collect()),
        _ => None,
    }
}
