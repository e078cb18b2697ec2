//! One connection: limits on request heads, the end when the server stops, and a close that lets the client read the
//! last answer.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tracing::debug;

use super::McpHandler;
use super::accept::HttpContext;
use super::request::{ConnectionAddresses, respond};

/// Larger than the heads that browsers and proxies send.
const MAX_HEAD_BYTES: usize = 64 * 1024;
const MAX_HEADERS: usize = 100;
/// How long a client may take to read the last answer before the connection closes.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The answer to a client when all places are taken. No request is read.
const FULL_RESPONSE: &str = "{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32000,\"message\":\"could not accept the \
     connection: too many are open; close some, or raise `max-connections`\"}}";

/// Serves a connection until it ends. When the client disconnects, hyper drops the answer in progress; dropping this
/// future does the same. hyper does not notice a disconnect behind a pipelined request, and then the first answer is
/// computed to its end.
pub(super) async fn serve_connection<M: McpHandler>(
    stream: TcpStream,
    ends: ConnectionAddresses,
    site: &HttpContext<M>,
) {
    let HttpContext { metrics, stop, .. } = site;
    let _open = metrics.connection_opened();
    let answering = service_fn(|request| {
        // Boxed, because `into_parts` below needs a service that can be moved.
        Box::pin(async move { Ok::<_, Infallible>(respond(site, ends, request).await) })
    });
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        // Counts from the end of the previous request, so it also limits idle time.
        .header_read_timeout(site.front.bounds.head)
        // The first limits the buffer, the second the parsed head.
        .max_buf_size(MAX_HEAD_BYTES)
        .max_header_size(MAX_HEAD_BYTES)
        .max_headers(MAX_HEADERS)
        // A client that closes one direction counts as gone. Otherwise its code would run although it may never read
        // the answer.
        .half_close(false)
        .serve_connection(TokioIo::new(stream), answering);
    let mut ended = {
        tokio::select! {
            ended = poll_fn(|cx| connection.poll_without_shutdown(cx)) => Some(ended),
            () = stop.cancelled() => None,
        }
    };
    if ended.is_none() {
        // Closes at once if no answer is in flight, otherwise after the answer.
        Pin::new(&mut connection).graceful_shutdown();
        ended = Some(poll_fn(|cx| connection.poll_without_shutdown(cx)).await);
    }
    if let Some(Err(error)) = ended {
        if error.is_parse() {
            metrics.request_refused("malformed");
        }
        // The error names the step that failed, never the data that the client sent.
        debug!(peer = %ends.peer, "connection ended: {error}");
    }
    if !stop.is_cancelled() {
        close_gracefully(connection.into_parts().io.into_inner()).await;
    }
}

/// Answers 503 without reading a request.
pub(super) async fn refuse_connection(mut stream: TcpStream) {
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: {}\r\nretry-after: 1\r\n\
         cache-control: no-store\r\nx-content-type-options: nosniff\r\nconnection: close\r\n\r\n{FULL_RESPONSE}",
        FULL_RESPONSE.len()
    );
    // Short enough for the send buffer of any new connection.
    if let Ok(Ok(())) = timeout(CLOSE_TIMEOUT, stream.write_all(answer.as_bytes())).await {
        close_gracefully(stream).await;
    }
}

/// Closes the sending direction and reads for a moment what the client still sends. Closing with unread data would
/// reset the connection, and the client would lose an answer that it has not read yet.
async fn close_gracefully(mut stream: TcpStream) {
    let rest = async {
        stream.shutdown().await?;
        let mut scrap = vec![0u8; 16 * 1024];
        while stream.read(&mut scrap).await? > 0 {}
        std::io::Result::Ok(())
    };
    let _ = timeout(CLOSE_TIMEOUT, rest).await;
}
