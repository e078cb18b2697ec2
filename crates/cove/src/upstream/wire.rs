//! A server's standard input and output as a transport of rmcp's. Lines are read and written by tasks of their own, so
//! that nothing is lost when a wait is given up. What is no message is counted and quoted, never passed on.

use std::collections::HashSet;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rmcp::model::{ClientJsonRpcMessage, ClientRequest, RequestId, ServerJsonRpcMessage};
use rmcp::service::RoleClient;
use rmcp::transport::Transport;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{ChildStdin, ChildStdout};
use tokio::sync::mpsc;

use super::child::Pipes;
use super::message::{self, Heard};
use super::notices::Notices;
use super::text;

/// One message of a server. Results are bounded again where they leave the host.
pub(super) const MAX_LINE: usize = 64 * 1024 * 1024;
/// What a server has not read yet.
const MAX_QUEUED: usize = 64 * 1024 * 1024;
/// So much that is no message, without one between, and a server is not listened to any longer.
const MAX_JUNK_LINES: usize = 1_000;
const MAX_JUNK_BYTES: usize = 1024 * 1024;
const QUOTED: usize = 3;

/// What was on standard output beside messages.
#[derive(Debug, Default)]
pub(super) struct Junk {
    lines: usize,
    first: Vec<String>,
    /// Why the server is no longer listened to.
    broken: Option<String>,
}

impl Junk {
    pub(super) fn add(&mut self, line: &[u8]) {
        self.lines += 1;
        if self.first.len() < QUOTED {
            self.first.push(text::line(&String::from_utf8_lossy(&line[..line.len().min(400)]), 200));
        }
    }

    /// It is not listened to any longer.
    pub(super) fn give_up(&mut self, why: &str) {
        self.broken = Some(why.to_owned());
    }

    /// What there is to say about it.
    pub(super) fn shown(&self) -> Option<String> {
        let quoted = || self.first.iter().map(|line| format!("`{line}`")).collect::<Vec<_>>().join(", ");
        match (&self.broken, self.lines) {
            (Some(broken), 0) => Some(broken.clone()),
            (Some(broken), _) => Some(format!("{broken}: {}", quoted())),
            (None, 0) => None,
            (None, 1) => Some(format!("it wrote a line on standard output that is no message: {}", quoted())),
            (None, lines) => {
                Some(format!("it wrote {lines} lines on standard output that are no messages: {}", quoted()))
            }
        }
    }
}

/// Both directions. Clones share them: a second way of greeting goes over the same pipes.
#[derive(Clone)]
pub(super) struct Wire {
    lines: mpsc::UnboundedSender<Vec<u8>>,
    queued: Arc<AtomicUsize>,
    messages: Arc<tokio::sync::Mutex<mpsc::Receiver<ServerJsonRpcMessage>>>,
    /// Requests whose results rmcp itself reads; all others are left as they came.
    typed: Arc<Mutex<HashSet<RequestId>>>,
}

impl Wire {
    pub(super) fn new(pipes: Pipes, notices: Arc<Notices>) -> (Self, Arc<Mutex<Junk>>) {
        let (lines, queue) = mpsc::unbounded_channel();
        let (heard, messages) = mpsc::channel(64);
        let queued = Arc::new(AtomicUsize::new(0));
        let typed: Arc<Mutex<HashSet<RequestId>>> = Arc::default();
        let junk: Arc<Mutex<Junk>> = Arc::default();
        tokio::spawn(write(pipes.stdin, queue, Arc::clone(&queued)));
        let reader = Reader { heard, typed: Arc::clone(&typed), junk: Arc::clone(&junk), notices };
        tokio::spawn(reader.run(pipes.stdout));
        let messages = Arc::new(tokio::sync::Mutex::new(messages));
        (Self { lines, queued, messages, typed }, junk)
    }

    /// Here and not in the future that `send` returns: those are polled in any order, and a cancellation must not
    /// overtake its request.
    fn push(&self, message: &ClientJsonRpcMessage) -> io::Result<()> {
        if let ClientJsonRpcMessage::Request(request) = message
            && matches!(
                request.request,
                ClientRequest::InitializeRequest(_)
                    | ClientRequest::DiscoverRequest(_)
                    | ClientRequest::SubscriptionsListenRequest(_)
            )
        {
            self.typed.lock().unwrap_or_else(PoisonError::into_inner).insert(request.id.clone());
        }
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        if self.queued.fetch_add(line.len(), Ordering::Relaxed) > MAX_QUEUED {
            self.queued.fetch_sub(line.len(), Ordering::Relaxed);
            return Err(io::Error::other("it does not read what it is sent"));
        }
        self.lines.send(line).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

impl Transport<RoleClient> for Wire {
    type Error = io::Error;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        std::future::ready(self.push(&message))
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        self.messages.lock().await.recv().await
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }
}

/// Ends, and with it the server's standard input, when the last clone of the wire is gone.
async fn write(mut stdin: ChildStdin, mut queue: mpsc::UnboundedReceiver<Vec<u8>>, queued: Arc<AtomicUsize>) {
    while let Some(mut lines) = queue.recv().await {
        // Whatever else waits goes in the same write.
        while lines.len() < 64 * 1024
            && let Ok(more) = queue.try_recv()
        {
            lines.extend(more);
        }
        if stdin.write_all(&lines).await.is_err() {
            return;
        }
        queued.fetch_sub(lines.len(), Ordering::Relaxed);
    }
}

struct Reader {
    heard: mpsc::Sender<ServerJsonRpcMessage>,
    typed: Arc<Mutex<HashSet<RequestId>>>,
    junk: Arc<Mutex<Junk>>,
    notices: Arc<Notices>,
}

impl Reader {
    /// Reads until the output ends, nobody listens, or it is not worth listening to.
    async fn run(self, stdout: ChildStdout) {
        let mut stdout = BufReader::with_capacity(64 * 1024, stdout);
        let mut line = Vec::new();
        let (mut junk_lines, mut junk_bytes) = (0, 0);
        loop {
            match next_line(&mut stdout, &mut line).await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => return self.give_up(&error.to_string()),
            }
            if line.trim_ascii().is_empty() {
                continue;
            }
            match message::parse(&line, &self.typed, &self.notices) {
                Heard::Messages(messages) => {
                    (junk_lines, junk_bytes) = (0, 0);
                    for message in messages {
                        if self.heard.send(message).await.is_err() {
                            return;
                        }
                    }
                }
                Heard::Junk => {
                    self.junk.lock().unwrap_or_else(PoisonError::into_inner).add(&line);
                    junk_lines += 1;
                    junk_bytes += line.len();
                    if junk_lines > MAX_JUNK_LINES || junk_bytes > MAX_JUNK_BYTES {
                        return self.give_up("it writes nonsense on standard output, and was cut off");
                    }
                }
            }
            // A large result is not kept in mind for the rest of the server's life.
            if line.capacity() > 1024 * 1024 {
                line = Vec::new();
            }
        }
    }

    fn give_up(&self, why: &str) {
        self.junk.lock().unwrap_or_else(PoisonError::into_inner).give_up(why);
    }
}

/// The next line without its end; false when there is none.
async fn next_line(stdout: &mut BufReader<ChildStdout>, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    loop {
        let piece = stdout.fill_buf().await?;
        if piece.is_empty() {
            return Ok(!line.is_empty());
        }
        let end = piece.iter().position(|byte| *byte == b'\n');
        let taken = end.unwrap_or(piece.len());
        if line.len() + taken > MAX_LINE {
            return Err(io::Error::other(format!("it wrote a line of more than {MAX_LINE} bytes")));
        }
        line.extend_from_slice(&piece[..taken]);
        stdout.consume(taken + usize::from(end.is_some()));
        if end.is_some() {
            return Ok(true);
        }
    }
}
