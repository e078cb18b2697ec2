//! How agents reach the server: over standard input and output, or over HTTP; and how serving ends.
//!
//! A server ends in the same order on both transports: `begin_shutdown` stops running calls, `drain_calls` waits for
//! their answers, the transport closes, and `shut_down` closes sandboxes and upstream servers. If calls do not end in
//! time, `drain_calls` closes their sandboxes first, which ends them.

mod client_line;
#[cfg(any(test, fuzzing))]
#[path = "../tests/exercise/client_lines.rs"]
pub(crate) mod exercise;
mod http;
mod legacy_connections;
mod request_scan;
mod requests_under_way;
mod stdio;

use std::sync::Arc;
use std::time::Duration;

use rmcp::serve_server;
use rmcp::service::ServerInitializeError;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::Server;
use super::mcp::{McpConnection, TransportKind};
use cove_core::error::Failure;

pub use http::serve_http;

use stdio::StdioTransport;

/// Largest message of a client. A file of 4 MiB fits, however it is escaped.
const MAX_MESSAGE: usize = 16 * 1024 * 1024;
/// How long calls in flight may continue after the client closed standard input: enough for a call that was sent just
/// before the end, as from a pipe.
const CALLS_AFTER_INPUT: Duration = Duration::from_millis(300);
/// How long stopped calls may take to answer after the client closed standard input.
const ANSWERS_AFTER_INPUT: Duration = Duration::from_millis(250);
/// How long the last answers may take after all sandboxes were closed.
const LAST_ANSWERS: Duration = Duration::from_millis(250);
/// How long stopped calls may take to answer after a signal.
const ANSWERS_AFTER_SIGNAL: Duration = Duration::from_secs(3);

/// Serves one client until it closes standard input or a signal arrives. Fails if the handshake fails or signals
/// cannot be handled.
pub async fn serve_stdio(server: Arc<Server>) -> Result<(), Failure> {
    let signals = StopSignals::listen()?;
    let input_ended = CancellationToken::new();
    let transport = StdioTransport::new(input_ended.clone());
    let stop = CancellationToken::new();
    let serving = {
        let (server, stop) = (Arc::clone(&server), stop.clone());
        tokio::spawn(async move {
            let connection = McpConnection::new(server, TransportKind::Stdio);
            let running = tokio::select! {
                running = serve_server(connection, transport) => running,
                () = stop.cancelled() => return Ok(()),
            };
            match running {
                Ok(running) => {
                    let token = running.cancellation_token();
                    tokio::spawn(async move {
                        stop.cancelled().await;
                        token.cancel();
                    });
                    // The connection has ended, whatever the reason.
                    let _ = running.waiting().await;
                    Ok(())
                }
                Err(ServerInitializeError::ConnectionClosed(_) | ServerInitializeError::Cancelled) => Ok(()),
                Err(error) => Err(Failure::operator("could not serve MCP").because(error)),
            }
        })
    };
    tracing::debug!("serving on standard input and output");
    let mut serving = serving;
    let (result, patience) = tokio::select! {
        result = &mut serving => (Some(result), Duration::ZERO),
        () = input_ended.cancelled() => {
            let result = tokio::time::timeout(CALLS_AFTER_INPUT, &mut serving).await.ok();
            (result, ANSWERS_AFTER_INPUT)
        }
        () = signals.wait() => (None, ANSWERS_AFTER_SIGNAL),
    };
    server.begin_shutdown();
    let result = match result {
        Some(result) => Some(result),
        None => {
            // Stopped calls answer first, and calls that do not react answer when their sandbox is closed. Then this
            // side closes the connection.
            server.drain_calls(patience).await;
            stop.cancel();
            tokio::time::timeout(LAST_ANSWERS, &mut serving).await.ok()
        }
    };
    server.shut_down().await;
    result.and_then(Result::ok).unwrap_or(Ok(()))
}

impl Server {
    /// Waits until no call is in flight. After `patience` it closes all sandboxes, which ends the remaining calls.
    async fn drain_calls(&self, patience: Duration) {
        if tokio::time::timeout(patience, self.wait_for_calls()).await.is_err() {
            self.shut_down().await;
            let _ = tokio::time::timeout(LAST_ANSWERS, self.wait_for_calls()).await;
        }
    }

    /// Waits until no call is in flight: every call holds one permit of `calls`.
    async fn wait_for_calls(&self) {
        let _ = self.calls.acquire_many(super::MAX_CALLS as u32).await;
    }
}

/// SIGTERM and SIGINT. The first signal shuts the server down in order, the second exits at once.
struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    fn listen() -> Result<Self, Failure> {
        let listen =
            |kind| signal(kind).map_err(|error| Failure::internal("could not listen for signals").because(error));
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    async fn next(&mut self) -> i32 {
        tokio::select! {
            _ = self.terminate.recv() => 15,
            _ = self.interrupt.recv() => 2,
        }
    }

    async fn wait(mut self) {
        self.next().await;
        tracing::info!(
            "ending: calls in flight are cancelled and their callers get an error; another signal ends at once"
        );
        tokio::spawn(async move {
            let number = self.next().await;
            // The sandboxes end with this process.
            std::process::exit(128 + number);
        });
    }
}
