//! One connection from its first byte to its last: the bounds of heads, the end when the server stops, and a close that
//! lets the client read what it was told.

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

use super::Mcp;
use super::accept::Site;
use super::request::{Ends, respond};

/// Head of a request: more than browsers and proxies send.
const MOST_HEAD: usize = 64 * 1024;
const MOST_HEADERS: usize = 100;
/// How long a client that was told to go may take to hear it.
const GOODBYE: Duration = Duration::from_secs(1);

/// For a client that came when all places were taken. No request is read, so this is all there is to say.
const FULL: &str = "{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32000,\"message\":\"could not accept the \
     connection: too many are open; close some, or raise `max-connections`\"}}";

/// Serves a connection until it ends. When the client goes away hyper notices, also while an answer is being made, and
/// drops that answer; whoever drops this does the same. It does not notice behind a further request that was sent before
/// the answer to the first: then the answer is made for nobody, for as long as it takes.
pub(super) async fn serve<M: Mcp>(stream: TcpStream, ends: Ends, site: &Site<M>) {
    let Site { metrics, stop, .. } = site;
    let _open = metrics.connection_opened();
    let answering = service_fn(|request| {
        // Boxed, because only what may be moved can be taken apart in the end.
        Box::pin(async move { Ok::<_, Infallible>(respond(site, ends, request).await) })
    });
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        // Counts from the end of the request before, so that it is also how long a connection may be idle.
        .header_read_timeout(site.front.bounds.head)
        // The one bounds what is buffered, the other what is parsed.
        .max_buf_size(MOST_HEAD)
        .max_header_size(MOST_HEAD)
        .max_headers(MOST_HEADERS)
        // Who closes one direction has gone. To wait for those who only half went would be to run code for nobody.
        .half_close(false)
        .serve_connection(TokioIo::new(stream), answering);
    let mut ended = {
        tokio::select! {
            ended = poll_fn(|cx| connection.poll_without_shutdown(cx)) => Some(ended),
            () = stop.cancelled() => None,
        }
    };
    if ended.is_none() {
        // Closes it at once when nothing is under way, else after the answer.
        Pin::new(&mut connection).graceful_shutdown();
        ended = Some(poll_fn(|cx| connection.poll_without_shutdown(cx)).await);
    }
    if let Some(Err(error)) = ended {
        if error.is_parse() {
            metrics.request_refused("malformed");
        }
        // Its text says which step failed, never what was sent.
        debug!(peer = %ends.peer, "connection ended: {error}");
    }
    if !stop.is_cancelled() {
        part(connection.into_parts().io.into_inner()).await;
    }
}

/// Answers before anything is asked.
pub(super) async fn turn_away(mut stream: TcpStream) {
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: {}\r\nretry-after: 1\r\n\
         cache-control: no-store\r\nx-content-type-options: nosniff\r\nconnection: close\r\n\r\n{FULL}",
        FULL.len()
    );
    // So short that it fits in the buffer of any new connection.
    if let Ok(Ok(())) = timeout(GOODBYE, stream.write_all(answer.as_bytes())).await {
        part(stream).await;
    }
}

/// Closes our direction, and reads on for a moment what the client still sends: a close with anything unread is a reset,
/// which throws away what we said before the client has read it.
async fn part(mut stream: TcpStream) {
    let rest = async {
        stream.shutdown().await?;
        let mut scrap = vec![0u8; 16 * 1024];
        while stream.read(&mut scrap).await? > 0 {}
        std::io::Result::Ok(())
    };
    let _ = timeout(GOODBYE, rest).await;
}
