//! Reads the requests of code inside TLS before `hyper` does, and refuses what `hyper` would mend: a body of two lengths, two
//! hosts, lines without CR and LF. What a person reads in an audit line is then all that there was.
//!
//! `StrictHeads` passes on one whole head at a time. In place of a malformed one it gives `hyper` a request for a path that no
//! code can guess, whose handler answers with the refusal. It follows the lengths of bodies, and nothing else of them: after
//! a chunked body the connection ends, so it need not find the end of that.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use cove_core::sync::lock;
use httparse::{EMPTY_HEADER, Request, Status};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::proxy_request::{
    BodyLength, LONG_METHOD, MAX_FIELDS, MAX_HEAD, MAX_METHOD, body_length, has_bare_line_break,
};

const PIECE: usize = 16 * 1024;

/// The stream of one client inside TLS.
pub(crate) struct StrictHeads<S> {
    stream: S,
    place: StreamPlace,
    /// Bytes that were read.
    buffer: Vec<u8>,
    /// How many of them `hyper` may have; `place` is behind those.
    ready: usize,
    /// How many of them were searched for the end of a head: a head may come in very many pieces.
    searched: usize,
    problem: Arc<HeadProblem>,
}

/// What comes next on the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamPlace {
    Head,
    Body(u64),
    /// Nothing more is a head: the connection ends after this request, or becomes another protocol.
    Rest,
}

/// How the handler of requests learns of a malformed one.
pub(crate) struct HeadProblem {
    /// The path that stands for it.
    path: String,
    cause: Mutex<Option<String>>,
}

impl HeadProblem {
    pub(crate) fn new(nonce: &str) -> Arc<Self> {
        Arc::new(Self { path: format!("/{nonce}"), cause: Mutex::default() })
    }

    /// Returns what was wrong, if this path stands for a malformed request.
    pub(crate) fn of_path(&self, path: &str) -> Option<String> {
        (path == self.path).then(|| lock(&self.cause).take().unwrap_or_else(|| "it cannot be read".to_owned()))
    }
}

impl<S> StrictHeads<S> {
    pub(crate) fn new(stream: S, problem: Arc<HeadProblem>) -> Self {
        Self { stream, place: StreamPlace::Head, buffer: Vec::new(), ready: 0, searched: 0, problem }
    }

    /// Decides how much of the buffer `hyper` may have next.
    fn advance(&mut self) {
        if self.place == StreamPlace::Body(0) {
            self.place = StreamPlace::Head;
        }
        match self.place {
            StreamPlace::Rest => self.ready = self.buffer.len(),
            StreamPlace::Body(left) => {
                self.ready = self.buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                self.place = StreamPlace::Body(left - self.ready as u64);
            }
            StreamPlace::Head => match judge_head(&self.buffer, self.searched) {
                Ok(None) => self.searched = self.buffer.len(),
                Ok(Some((length, place))) => (self.ready, self.searched, self.place) = (length, 0, place),
                Err(cause) => {
                    *lock(&self.problem.cause) = Some(cause);
                    let path = &self.problem.path;
                    self.buffer = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").into_bytes();
                    (self.ready, self.place) = (self.buffer.len(), StreamPlace::Rest);
                }
            },
        }
    }

    fn give(&mut self, buffer: &mut ReadBuf<'_>) {
        let count = self.ready.min(buffer.remaining());
        buffer.put_slice(&self.buffer[..count]);
        self.buffer.drain(..count);
        self.ready -= count;
    }
}

/// Returns the length of the head and what follows it, or None if it is not whole. Its end is not in the bytes that were
/// searched. Fails with what is wrong.
fn judge_head(bytes: &[u8], searched: usize) -> Result<Option<(usize, StreamPlace)>, String> {
    let from = searched.saturating_sub(3);
    let Some(length) = bytes[from..].windows(4).position(|window| window == b"\r\n\r\n").map(|at| from + at + 4) else {
        return match bytes.len() > MAX_HEAD {
            true => Err(format!("its head has more than {MAX_HEAD} bytes")),
            false if has_lone_line_end(&bytes[from..]) => Err("a line ends without CR and LF".to_owned()),
            false => Ok(None),
        };
    };
    let head = &bytes[..length];
    if has_bare_line_break(head) {
        return Err("a line ends without CR and LF".to_owned());
    }
    let mut fields = [EMPTY_HEADER; MAX_FIELDS];
    let mut request = Request::new(&mut fields);
    match request.parse(head) {
        Ok(Status::Complete(parsed)) if parsed == length => {}
        Ok(_) => return Err("its head is not whole".to_owned()),
        Err(error) => return Err(error.to_string()),
    }
    if request.method.is_some_and(|method| method.len() > MAX_METHOD) {
        return Err(LONG_METHOD.to_owned());
    }
    if request.version == Some(0) {
        return Err("HTTP/1.0 is too old".to_owned());
    }
    let count = |name: &str| request.headers.iter().filter(|field| field.name.eq_ignore_ascii_case(name)).count();
    if count("host") != 1 {
        return Err("it does not have exactly one Host field".to_owned());
    }
    let upgrades = count("upgrade") > 0;
    Ok(Some((
        length,
        match body_length(request.headers, "?").map_err(|refusal| refusal.cause)? {
            _ if upgrades => StreamPlace::Rest,
            BodyLength::Chunked => StreamPlace::Rest,
            BodyLength::Known(0) => StreamPlace::Head,
            BodyLength::Known(body) => StreamPlace::Body(body),
        },
    )))
}

/// True if a line has ended without CR, so that no end of the head may ever come.
fn has_lone_line_end(bytes: &[u8]) -> bool {
    bytes.windows(2).any(|pair| pair[1] == b'\n' && pair[0] != b'\r')
}

impl<S: AsyncRead + Unpin> AsyncRead for StrictHeads<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            if this.ready == 0 && !this.buffer.is_empty() {
                this.advance();
            }
            if this.ready > 0 {
                this.give(buffer);
                return Poll::Ready(Ok(()));
            }
            let mut piece = [0; PIECE];
            let mut read = ReadBuf::new(&mut piece);
            ready!(Pin::new(&mut this.stream).poll_read(context, &mut read))?;
            if read.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.buffer.extend_from_slice(read.filled());
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for StrictHeads<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    /// Returns what `hyper` gets of these bytes, which arrive in pieces of this size.
    async fn read(sent: &[u8], piece: usize) -> String {
        let (mut client, server) = tokio::io::duplex(piece);
        let sent = sent.to_vec();
        tokio::spawn(async move { tokio::io::AsyncWriteExt::write_all(&mut client, &sent).await });
        let mut strict = StrictHeads::new(server, HeadProblem::new("nonce"));
        let mut got = Vec::new();
        strict.read_to_end(&mut got).await.unwrap();
        String::from_utf8(got).unwrap()
    }

    #[tokio::test]
    async fn well_formed_requests_pass_unchanged() {
        let two = "POST /a HTTP/1.1\r\nHost: a.test\r\nContent-Length: 6\r\n\r\n\r\n\r\n\r\nGET /b HTTP/1.1\r\nHost: a.test\r\n\r\n";
        let chunked = "POST /a HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n";
        for text in [two, chunked] {
            for piece in [1, 7, 4096] {
                assert_eq!(read(text.as_bytes(), piece).await, text);
            }
        }
    }

    #[tokio::test]
    async fn requests_that_two_programs_read_differently_never_reach_the_parser() {
        for fields in [
            "Content-Length: 3\r\nTransfer-Encoding: chunked",
            "Transfer-Encoding: chunked\r\nContent-Length: 3",
            "Transfer-Encoding: gzip, chunked",
            "Content-Length: 3\r\nContent-Length: 3",
            "Content-Length: +3",
            "Host: evil.test",
            "X: a\r\n folded",
            "X: a\nY: b",
            "X: a\rY: b",
            "X : a",
        ] {
            let request = format!("POST / HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n\r\nabc");
            for piece in [1, 4096] {
                let got = read(request.as_bytes(), piece).await;
                assert_eq!(got.lines().next(), Some("GET /nonce HTTP/1.1"), "{fields}: {got}");
            }
        }
        for request in ["GET / HTTP/1.1\r\n\r\n", "GET / HTTP/1.0\r\nHost: a.test\r\n\r\n", "GET /\r\n\r\n"] {
            assert!(read(request.as_bytes(), 4096).await.starts_with("GET /nonce "), "{request}");
        }
        let methods = [("a".repeat(MAX_METHOD), false), ("a".repeat(MAX_METHOD + 1), true)];
        for (method, is_refused) in methods {
            let got = read(format!("{method} / HTTP/1.1\r\nHost: a.test\r\n\r\n").as_bytes(), 4096).await;
            assert_eq!(got.starts_with("GET /nonce "), is_refused, "{method}");
        }
        let long = format!("GET / HTTP/1.1\r\nX: {}", "a".repeat(MAX_HEAD));
        assert!(read(long.as_bytes(), 4096).await.starts_with("GET /nonce "));
    }
}
