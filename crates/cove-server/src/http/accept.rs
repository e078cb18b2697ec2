//! The accept loop: accepts connections until the server stops, then waits for their end.
//!
//! `serve` owns every task in one `JoinSet`. A connection task holds its place in the `ConnectionTable`, and drops the
//! connection when that place is taken away. One more task looks at the token file and ends what belongs to tokens
//! that are gone. When `stop` is cancelled, the loop ends and closes the listener, the connection tasks finish their
//! current answers, and `serve` aborts those that exceed the drain limit.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use super::connection_table::{ConnectionPlace, ConnectionTable};
use super::request::{ConnectionAddresses, RequestOrigin};
use super::token::keeper::TokenKeeper;
use super::{BoundListener, HttpFront, McpHandler, connection};
use crate::telemetry::metrics::Metrics;
use cove_core::session::registry::{Principal, RegistryFigures};

/// The pause after an error that lasts, such as too many open files; accepting again at once would only repeat it.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// How often the accept loop looks for room while too many clients without a token connect.
const ROOM_RETRY_DELAY: Duration = Duration::from_millis(5);
/// How often the token file is looked at while no request comes, so that open streams end with their token.
const TOKEN_INTERVAL: Duration = Duration::from_millis(300);
/// How many times everything of a principal without a token is ended: a call that was on its way may come after the
/// first time.
const PRINCIPAL_ENDS: usize = 3;

/// The state that all connections share.
pub(super) struct HttpContext<M> {
    pub(super) front: HttpFront,
    pub(super) connections: Arc<ConnectionTable>,
    pub(super) mcp: M,
    pub(super) metrics: Arc<Metrics>,
    pub(super) sessions: Box<dyn Fn() -> RegistryFigures + Send + Sync>,
    pub(super) ready: Box<dyn Fn() -> bool + Send + Sync>,
    pub(super) stop: CancellationToken,
}

/// Serves until `stop` is cancelled. Then it closes idle connections, gives answers in flight a few seconds, and
/// closes the rest. No connection is left when it returns. `sessions` returns the figures of `/metrics`; `ready`
/// says whether the server accepts work, for `/readyz`.
pub async fn serve<M: McpHandler>(
    bound: BoundListener,
    mcp: M,
    metrics: Arc<Metrics>,
    sessions: impl Fn() -> RegistryFigures + Send + Sync + 'static,
    ready: impl Fn() -> bool + Send + Sync + 'static,
    stop: CancellationToken,
) {
    let BoundListener { listener, front, .. } = bound;
    let (sessions, ready) = (Box::new(sessions), Box::new(ready));
    let connections = Arc::new(ConnectionTable::new(front.max_connections, front.bounds.token_grace));
    let site = Arc::new(HttpContext { front, connections, mcp, metrics, sessions, ready, stop });
    let mut tasks = JoinSet::new();
    if site.front.tokens.is_some() {
        let site = Arc::clone(&site);
        tasks.spawn(async move {
            if let Some(tokens) = &site.front.tokens {
                tokio::select! {
                    () = site.stop.cancelled() => {}
                    () = revoke_tokens(tokens, &site) => {}
                }
            }
        });
    }
    loop {
        let accepted = tokio::select! {
            () = site.stop.cancelled() => break,
            Some(ended) = tasks.join_next() => {
                log_panic(ended);
                continue;
            }
            accepted = accept(&listener, &site.connections) => accepted,
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
        let (place, made_room) = site.connections.enter(ends.peer.ip());
        if made_room {
            site.metrics.request_refused("no_token_in_time");
            if site.front.may_warn() {
                let most = site.front.max_connections;
                warn!(peer = %ends.peer, "closed a connection without a token for another: {most} of them are open");
            }
        }
        let site = Arc::clone(&site);
        tasks.spawn(async move { serve_place(stream, ends, &place, &site).await });
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

async fn serve_place<M: McpHandler>(
    stream: TcpStream,
    ends: ConnectionAddresses,
    place: &ConnectionPlace,
    site: &HttpContext<M>,
) {
    place.begin_reading();
    tokio::select! {
        () = connection::serve_connection(stream, RequestOrigin { ends, place }, site) => {}
        () = place.closed.cancelled() => {}
    }
}

/// Ends what belongs to tokens that are gone from the file: connections at once, and sessions if no other token has
/// their principal. Never returns.
async fn revoke_tokens<M: McpHandler>(tokens: &TokenKeeper, site: &HttpContext<M>) {
    let mut was_faulty = false;
    let mut removed = HashSet::new();
    let mut to_end: Vec<(Principal, usize)> = Vec::new();
    loop {
        sleep(TOKEN_INTERVAL).await;
        tokens.current();
        removed.extend(tokens.take_removed());
        // Looked at after that: a principal that has a token now is not gone, and one that loses it from here on is
        // among those of the next look.
        let current = tokens.current();
        // A file that an editor is writing is malformed for a moment. Requests are refused meanwhile.
        let is_settled = !current.is_faulty() || was_faulty;
        was_faulty = current.is_faulty();
        if !is_settled {
            continue;
        }
        // At every look: a request may have shown its token just before the file changed, and be entered just after.
        let closed = site.connections.close_revoked(&current.tokens);
        if closed > 0 {
            warn!("closed {closed} connections of revoked tokens");
        }
        // A file that cannot be used does not say whose token is gone: a line that a person mistyped must not end the
        // sessions of everyone. Nothing reaches them until the file can be used again.
        if !current.is_faulty() {
            to_end.extend(removed.drain().map(|principal| (principal, PRINCIPAL_ENDS)));
        }
        to_end.retain(|(principal, left)| *left > 0 && !current.tokens.has_principal(principal));
        for (principal, left) in &mut to_end {
            site.mcp.end_principal(principal).await;
            *left -= 1;
        }
    }
}

/// Returns the next connection once it has a place.
async fn accept(listener: &TcpListener, connections: &ConnectionTable) -> io::Result<(TcpStream, ConnectionAddresses)> {
    while !connections.has_room() {
        sleep(ROOM_RETRY_DELAY).await;
    }
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
