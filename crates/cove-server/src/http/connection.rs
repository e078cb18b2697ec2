//! One connection: limits on request heads, the end when the server stops, and a close that lets the client read the
//! last answer.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Body;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;
use tracing::debug;

use super::McpHandler;
use super::accept::HttpContext;
use super::request::{RequestOrigin, respond};

/// Larger than the heads that browsers and proxies send.
const MAX_HEAD_BYTES: usize = 64 * 1024;
const MAX_HEADERS: usize = 100;
/// How long a client may take to read the last answer before the connection closes.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a connection without an answer in flight may go on when the server stops: for the last bytes of an answer,
/// and not for the rest of a head that may never come.
const STOP_TIMEOUT: Duration = Duration::from_millis(250);

/// Serves a connection until it ends. The caller drops this future when the connection's place is taken away. When the
/// client disconnects, hyper drops the answer in progress; dropping this future does the same. hyper does not notice a
/// disconnect behind a pipelined request, and then the first answer is computed to its end.
pub(super) async fn serve_connection<M: McpHandler>(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    origin: RequestOrigin<'_>,
    site: &HttpContext<M>,
) {
    let HttpContext { metrics, stop, .. } = site;
    let _open = metrics.connection_opened();
    // Each answer in flight has a copy.
    let answers = Arc::new(());
    let answering = service_fn(|request| {
        let in_flight = Arc::clone(&answers);
        // Boxed, because `into_parts` below needs a service that can be moved.
        Box::pin(async move {
            let answer = respond(site, origin, request).await;
            Ok::<_, Infallible>(match answer.body().size_hint().exact() {
                Some(_) => answer,
                // A stream lasts as long as its body.
                None => answer.map(|body| {
                    body.map_frame(move |frame| {
                        let _ = &in_flight;
                        frame
                    })
                    .boxed()
                }),
            })
        })
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
        // Closes at once if the connection is idle, otherwise after the answer.
        Pin::new(&mut connection).graceful_shutdown();
        while ended.is_none() {
            ended = timeout(STOP_TIMEOUT, poll_fn(|cx| connection.poll_without_shutdown(cx))).await.ok();
            if ended.is_none() && Arc::strong_count(&answers) == 1 {
                break;
            }
        }
    }
    if let Some(Err(error)) = ended {
        if error.is_parse() {
            metrics.request_refused("malformed");
        }
        // The error names the step that failed, never the data that the client sent.
        debug!(peer = %origin.ends.peer, "connection ended: {error}");
    }
    if !stop.is_cancelled() {
        close_gracefully(connection.into_parts().io.into_inner()).await;
    }
}

/// Closes the sending direction and reads for a moment what the client still sends. Closing with unread data would
/// reset the connection, and the client would lose an answer that it has not read yet.
async fn close_gracefully(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let rest = async {
        stream.shutdown().await?;
        let mut scrap = vec![0u8; 16 * 1024];
        while stream.read(&mut scrap).await? > 0 {}
        std::io::Result::Ok(())
    };
    let _ = timeout(CLOSE_TIMEOUT, rest).await;
}
