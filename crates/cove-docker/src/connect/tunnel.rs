//! Carries connections to an engine on another machine over TLS or ssh. Cove listens at a socket in a folder of its own
//! and passes each connection on, so that everything that speaks to the engine (bollard, Podman's own API, Compose) uses
//! one local socket and needs neither keys nor certificates. An ssh that ends is started again with the next connection.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;

use super::ssh_forward::SshForward;
use crate::compose::private_dir;
use cove_core::error::display_value;

/// How long it may take until the other machine is reached, with the handshake of TLS or ssh.
pub(super) const OPEN_TIMEOUT: Duration = Duration::from_secs(20);
/// Longer answers to the first request are cut.
const MAX_PING_BYTES: u64 = 4096;

/// A stream to the engine.
trait TunnelStream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> TunnelStream for S {}

/// How a tunnel reaches the other machine.
pub(super) enum TunnelRoute {
    Tls(TlsRoute),
    Ssh(Box<SshForward>),
}

/// A TCP address with TLS.
pub(super) struct TlsRoute {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) name: ServerName<'static>,
    pub(super) connector: TlsConnector,
}

impl TunnelRoute {
    async fn connect(&self) -> io::Result<Box<dyn TunnelStream>> {
        match self {
            Self::Tls(route) => {
                let stream = TcpStream::connect((route.host.as_str(), route.port)).await?;
                Ok(Box::new(route.connector.connect(route.name.clone(), stream).await?))
            }
            Self::Ssh(forward) => Ok(Box::new(forward.connect().await?)),
        }
    }

    /// Sends one harmless request. A server that refuses a client's certificate says so only in its first answer, and
    /// ssh reports a missing socket by closing the connection.
    async fn check(&self) -> Result<(), String> {
        let answer = async {
            let mut stream = self.connect().await?;
            stream.write_all(b"GET /_ping HTTP/1.0\r\nHost: engine\r\n\r\n").await?;
            let mut answer = Vec::new();
            match stream.take(MAX_PING_BYTES).read_to_end(&mut answer).await {
                Err(error) if answer.is_empty() => Err(error),
                _ => Ok(answer),
            }
        };
        let is_closed = |error: &io::Error| {
            use io::ErrorKind::{BrokenPipe, ConnectionReset};
            matches!(error.kind(), BrokenPipe | ConnectionReset)
        };
        match (answer.await, self) {
            (Ok(answer), _) if !answer.is_empty() => Ok(()),
            (Err(error), Self::Tls(_)) => Err(describe_error(&error)),
            (Err(error), Self::Ssh(_)) if !is_closed(&error) => Err(describe_error(&error)),
            (Ok(_), Self::Tls(_)) => Err("it closed the connection without an answer".to_owned()),
            (_, Self::Ssh(forward)) => Err(forward.describe_closed_connection().await),
        }
    }
}

fn describe_error(error: &io::Error) -> String {
    display_value(&error.to_string())
}

/// A local socket whose connections end at an engine on another machine. Dropping it closes it.
pub(super) struct EngineTunnel {
    socket: PathBuf,
    accepting: JoinHandle<()>,
    _folder: tempfile::TempDir,
}

impl EngineTunnel {
    /// Opens a tunnel whose route `make_route` builds for a private folder. Fails if the other machine cannot be reached
    /// or no engine answers there.
    pub(super) async fn open(make_route: impl FnOnce(&Path) -> Result<TunnelRoute, String>) -> Result<Self, String> {
        let could_not = |error: io::Error| format!("a private folder for the connection could not be made: {error}");
        let folder = private_dir::create_for_socket().map_err(could_not)?;
        let route = Arc::new(make_route(folder.path())?);
        route.check().await?;
        let socket = folder.path().join("engine.sock");
        let listener = UnixListener::bind(&socket).map_err(could_not)?;
        let accepting = tokio::spawn(accept_connections(listener, route));
        Ok(Self { socket, accepting, _folder: folder })
    }

    pub(super) fn url(&self) -> String {
        format!("unix://{}", self.socket.display())
    }
}

impl Drop for EngineTunnel {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept_connections(listener: UnixListener, route: Arc<TunnelRoute>) {
    while let Ok((near, _)) = listener.accept().await {
        tokio::spawn(carry(near, route.clone()));
    }
}

/// Copies both ways until both sides have closed. If the engine cannot be reached the near side sees an early end.
async fn carry(mut near: UnixStream, route: Arc<TunnelRoute>) {
    let far = match tokio::time::timeout(OPEN_TIMEOUT, route.connect()).await {
        Ok(Ok(far)) => far,
        Ok(Err(error)) => return tracing::warn!(error = describe_error(&error), "could not reach the engine"),
        Err(_) => return tracing::warn!("could not reach the engine in time"),
    };
    let mut far = far;
    if let Err(error) = tokio::io::copy_bidirectional(&mut near, &mut far).await {
        tracing::debug!(error = describe_error(&error), "a connection to the engine ended");
    }
}
