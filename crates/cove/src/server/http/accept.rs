//! Takes connections, so many at once, until the server stops; then sees them all to their end.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use super::request::Ends;
use super::{Bound, Front, Mcp, connection};
use crate::telemetry::metrics::Metrics;

/// Connections over the limit that are being told so; those beyond even this are closed without a word.
const TURNED_AWAY: usize = 32;
/// After a failure that lasts, such as too many open files, which accepting again at once would only repeat.
const PAUSE: Duration = Duration::from_millis(100);

/// What all connections share.
pub(super) struct Site<M> {
    pub(super) front: Front,
    pub(super) mcp: M,
    pub(super) metrics: Arc<Metrics>,
    pub(super) sessions: Box<dyn Fn() -> usize + Send + Sync>,
    pub(super) ready: Box<dyn Fn() -> bool + Send + Sync>,
    pub(super) stop: CancellationToken,
}

/// Serves until `stop`, then closes what is idle, gives what is under way a few seconds, and closes the rest. Nothing is
/// left when this returns. `sessions` counts those that are open, for `/metrics`; `ready` tells whether work can be taken,
/// for `/readyz`.
pub async fn serve<M: Mcp>(
    bound: Bound,
    mcp: M,
    metrics: Arc<Metrics>,
    sessions: impl Fn() -> usize + Send + Sync + 'static,
    ready: impl Fn() -> bool + Send + Sync + 'static,
    stop: CancellationToken,
) {
    let Bound { listener, front, .. } = bound;
    let (sessions, ready) = (Box::new(sessions), Box::new(ready));
    let site = Arc::new(Site { front, mcp, metrics, sessions, ready, stop });
    let mut tasks = JoinSet::new();
    let places = Arc::new(Semaphore::new(site.front.max_connections));
    let doors = Arc::new(Semaphore::new(TURNED_AWAY));
    loop {
        let accepted = tokio::select! {
            () = site.stop.cancelled() => break,
            Some(ended) = tasks.join_next() => {
                report(ended);
                continue;
            }
            accepted = accept(&listener) => accepted,
        };
        let (stream, ends) = match accepted {
            Ok(accepted) => accepted,
            Err(failure) => {
                if !is_of_one_client(&failure) {
                    error!("could not accept a connection: {failure}");
                    sleep(PAUSE).await;
                }
                continue;
            }
        };
        // One that was left in the kernel's queue would hang without a word, and could not be told from a dead server.
        if let Ok(place) = Arc::clone(&places).try_acquire_owned() {
            let site = Arc::clone(&site);
            tasks.spawn(async move {
                connection::serve(stream, ends, &site).await;
                drop(place);
            });
        } else {
            site.metrics.request_refused("connections");
            tell(&site.front, ends);
            if let Ok(door) = Arc::clone(&doors).try_acquire_owned() {
                tasks.spawn(async move {
                    connection::turn_away(stream).await;
                    drop(door);
                });
            }
        }
    }
    drop(listener);
    let drained = timeout(site.front.bounds.drain, async {
        while let Some(ended) = tasks.join_next().await {
            report(ended);
        }
    });
    if drained.await.is_err() {
        warn!("closing {} connections that did not end in time", tasks.len());
    }
    tasks.shutdown().await;
}

async fn accept(listener: &TcpListener) -> io::Result<(TcpStream, Ends)> {
    let (stream, peer) = listener.accept().await?;
    let reached = stream.local_addr()?.ip();
    // Answers are written whole, so that waiting for more to send only delays them.
    stream.set_nodelay(true)?;
    // A client whose machine vanished says nothing; the kernel finds out.
    rustix::net::sockopt::set_socket_keepalive(&stream, true)?;
    Ok((stream, Ends { peer, reached }))
}

/// Whether the next connection may well succeed: this one ended before it was taken.
fn is_of_one_client(failure: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, InvalidInput, NotConnected};
    matches!(failure.kind(), ConnectionAborted | ConnectionReset | Interrupted | InvalidInput | NotConnected)
}

fn report(ended: Result<(), JoinError>) {
    if let Err(failure) = ended
        && failure.is_panic()
    {
        error!("a connection ended by a mistake of ours: {failure}");
    }
}

fn tell(front: &Front, ends: Ends) {
    if front.may_warn() {
        warn!(peer = %ends.peer, "connection refused: {} are open, as many as `max-connections`", front.max_connections);
    }
}
