//! The accept loop: accepts connections up to a limit until the server stops, then waits for their end.
//!
//! `serve` owns every task in one `JoinSet`. A connection task holds a permit of `places`, whose number is
//! `max-connections`. If there is none, a short task answers 503; those tasks hold permits of `doors`, and beyond
//! those the socket is closed at once. When `stop` is cancelled, the loop ends and closes the listener, the
//! connection tasks finish their current answers, and `serve` aborts those that exceed the drain limit.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use super::request::ConnectionAddresses;
use super::{BoundListener, HttpFront, McpHandler, connection};
use crate::telemetry::metrics::Metrics;

/// Most connections over the limit that get an answer at the same time. Further ones are closed without an answer.
const MAX_BEING_REFUSED: usize = 32;
/// The pause after an error that lasts, such as too many open files; accepting again at once would only repeat it.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// The state that all connections share.
pub(super) struct HttpContext<M> {
    pub(super) front: HttpFront,
    pub(super) mcp: M,
    pub(super) metrics: Arc<Metrics>,
    pub(super) sessions: Box<dyn Fn() -> usize + Send + Sync>,
    pub(super) ready: Box<dyn Fn() -> bool + Send + Sync>,
    pub(super) stop: CancellationToken,
}

/// Serves until `stop` is cancelled. Then it closes idle connections, gives answers in flight a few seconds, and
/// closes the rest. No connection is left when it returns. `sessions` counts open sessions for `/metrics`; `ready`
/// says whether the server accepts work, for `/readyz`.
pub async fn serve<M: McpHandler>(
    bound: BoundListener,
    mcp: M,
    metrics: Arc<Metrics>,
    sessions: impl Fn() -> usize + Send + Sync + 'static,
    ready: impl Fn() -> bool + Send + Sync + 'static,
    stop: CancellationToken,
) {
    let BoundListener { listener, front, .. } = bound;
    let (sessions, ready) = (Box::new(sessions), Box::new(ready));
    let site = Arc::new(HttpContext { front, mcp, metrics, sessions, ready, stop });
    let mut tasks = JoinSet::new();
    let places = Arc::new(Semaphore::new(site.front.max_connections));
    let doors = Arc::new(Semaphore::new(MAX_BEING_REFUSED));
    loop {
        let accepted = tokio::select! {
            () = site.stop.cancelled() => break,
            Some(ended) = tasks.join_next() => {
                log_panic(ended);
                continue;
            }
            accepted = accept(&listener) => accepted,
        };
        let (stream, ends) = match accepted {
            Ok(accepted) => accepted,
            Err(failure) => {
                if !is_client_failure(&failure) {
                    error!("could not accept a connection: {failure}");
                    sleep(ACCEPT_RETRY_DELAY).await;
                }
                continue;
            }
        };
        // A connection left in the kernel's queue would hang, and the client could not tell that from a dead server.
        if let Ok(place) = Arc::clone(&places).try_acquire_owned() {
            let site = Arc::clone(&site);
            tasks.spawn(async move {
                connection::serve_connection(stream, ends, &site).await;
                drop(place);
            });
        } else {
            site.metrics.request_refused("connections");
            if site.front.may_warn() {
                let most = site.front.max_connections;
                warn!(peer = %ends.peer, "connection refused: {most} are open, as many as `max-connections`");
            }
            if let Ok(door) = Arc::clone(&doors).try_acquire_owned() {
                tasks.spawn(async move {
                    connection::refuse_connection(stream).await;
                    drop(door);
                });
            }
        }
    }
    drop(listener);
    let drained = timeout(site.front.bounds.drain, async {
        while let Some(ended) = tasks.join_next().await {
            log_panic(ended);
        }
    });
    if drained.await.is_err() {
        warn!("closing {} connections that did not end in time", tasks.len());
    }
    tasks.shutdown().await;
}

async fn accept(listener: &TcpListener) -> io::Result<(TcpStream, ConnectionAddresses)> {
    let (stream, peer) = listener.accept().await?;
    let reached = stream.local_addr()?.ip();
    // Answers are written as a whole, so waiting for more data only delays them.
    stream.set_nodelay(true)?;
    // Keep-alive detects clients whose machine disappeared.
    rustix::net::sockopt::set_socket_keepalive(&stream, true)?;
    Ok((stream, ConnectionAddresses { peer, reached }))
}

/// Returns true if only this connection failed, so that the next one may succeed.
fn is_client_failure(failure: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, InvalidInput, NotConnected};
    matches!(failure.kind(), ConnectionAborted | ConnectionReset | Interrupted | InvalidInput | NotConnected)
}

fn log_panic(ended: Result<(), JoinError>) {
    if let Err(failure) = ended
        && failure.is_panic()
    {
        error!("a connection ended by a mistake of ours: {failure}");
    }
}
