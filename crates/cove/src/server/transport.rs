//! How agents reach the server: over standard input and output, or over HTTP; and how serving ends.

mod connections;
mod http;
mod message;
mod oversized;
mod stdio;

use std::sync::Arc;
use std::time::Duration;

use rmcp::serve_server;
use rmcp::service::ServerInitializeError;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::Server;
use super::mcp::{Connection, Origin};
use crate::error::Error;

pub use http::serve_http;

use stdio::Stdio;

/// Largest message that a client may send: a file of 4 MiB fits, however it is escaped.
const MAX_MESSAGE: usize = 16 * 1024 * 1024;
/// How long calls in flight may go on after the client closed standard input: enough for one that was sent along with
/// the end, as from a pipe.
const AFTER_INPUT: Duration = Duration::from_millis(300);
/// How long the answers of calls that were stopped may take, when the client closed standard input.
const ANSWERS_AFTER_INPUT: Duration = Duration::from_millis(250);
/// How long what is left may take once sandboxes have been ended.
const LAST: Duration = Duration::from_millis(250);
/// The same when a signal ended the server.
const ANSWERS: Duration = Duration::from_secs(3);

/// Serves one client until it closes standard input or a signal comes.
pub async fn serve_stdio(server: Arc<Server>) -> Result<(), Error> {
    let signals = Signals::listen()?;
    let input_ended = CancellationToken::new();
    let transport = Stdio::new(input_ended.clone());
    let stop = CancellationToken::new();
    let serving = {
        let (server, stop) = (Arc::clone(&server), stop.clone());
        tokio::spawn(async move {
            let connection = Connection::new(server, Origin::Stdio);
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
                    // Whatever ended it, there is nobody left to serve.
                    let _ = running.waiting().await;
                    Ok(())
                }
                Err(ServerInitializeError::ConnectionClosed(_) | ServerInitializeError::Cancelled) => Ok(()),
                Err(error) => Err(Error::operator("could not serve MCP").because(error)),
            }
        })
    };
    tracing::info!("serving on standard input and output");
    let mut serving = serving;
    let (result, patience) = tokio::select! {
        result = &mut serving => (Some(result), Duration::ZERO),
        () = input_ended.cancelled() => {
            let result = tokio::time::timeout(AFTER_INPUT, &mut serving).await.ok();
            (result, ANSWERS_AFTER_INPUT)
        }
        () = signals.wait() => (None, ANSWERS),
    };
    server.begin_to_end();
    let result = match result {
        Some(result) => Some(result),
        None => {
            // Calls that were stopped answer first, those that do not listen when their sandbox is gone; then the
            // connection is closed from this side.
            server.end_calls(patience).await;
            stop.cancel();
            tokio::time::timeout(LAST, &mut serving).await.ok()
        }
    };
    server.end().await;
    result.and_then(Result::ok).unwrap_or(Ok(()))
}

impl Server {
    /// Until no call is under way: those that were told to stop have this long, the others lose their sandbox.
    async fn end_calls(&self, patience: Duration) {
        if tokio::time::timeout(patience, self.calls_ended()).await.is_err() {
            self.end().await;
            let _ = tokio::time::timeout(LAST, self.calls_ended()).await;
        }
    }

    /// Until no call is under way.
    async fn calls_ended(&self) {
        let _ = self.calls.acquire_many(super::MAX_CALLS as u32).await;
    }
}

/// SIGTERM and SIGINT: the first ends the server in good order, the second at once.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> Result<Self, Error> {
        let listen = |kind| {
            signal(kind).map_err(|error| Error::internal("could not listen for signals").because(error))
        };
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
        tracing::info!("ending: calls in flight are told and stopped; another signal ends at once");
        tokio::spawn(async move {
            let number = self.next().await;
            // Sandboxes end with this process.
            std::process::exit(128 + number);
        });
    }
}
