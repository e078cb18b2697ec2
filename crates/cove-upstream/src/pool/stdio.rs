//! A server's standard input and output as an rmcp transport. Two tasks own the pipes, `write_lines` and
//! `read_lines`, so that no bytes are lost when rmcp drops a `send` or `receive` future. Lines that are not messages
//! are counted and quoted in errors, never passed on.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::service::RoleClient;
use rmcp::transport::Transport;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{ChildStdin, ChildStdout};
use tokio::sync::mpsc;

use super::handshake_ids::HandshakeIds;
use super::message::MessageReader;
use super::notifications::NotificationRouter;
use super::process::ServerPipes;
use super::redaction::ServerSecrets;
use super::text;
use cove_core::sync::lock;

/// Largest message of a server. Results are bounded again where they leave the host.
pub(super) const MAX_LINE: usize = 64 * 1024 * 1024;
/// Most bytes that may wait for a server to read them.
const MAX_QUEUED: usize = 64 * 1024 * 1024;
/// After this many lines in a row that are not messages, Cove stops reading from the server.
pub(super) const MAX_JUNK_LINES: usize = 1_000;
const MAX_JUNK_BYTES: usize = 1024 * 1024;
const MAX_QUOTED_LINES: usize = 3;
/// Methods whose results rmcp parses itself.
const TYPED_METHODS: &[&str] = &["initialize", "server/discover", "subscriptions/listen"];

/// Lines on standard output that are not messages.
#[derive(Debug, Default)]
pub(super) struct JunkOutput {
    lines: usize,
    first: Vec<String>,
    /// Why Cove stopped reading from the server.
    stop_reason: Option<String>,
}

impl JunkOutput {
    pub(super) fn add(&mut self, line: &[u8]) {
        self.lines += 1;
        if self.first.len() < MAX_QUOTED_LINES {
            self.first.push(text::to_line(&String::from_utf8_lossy(&line[..line.len().min(400)]), 200));
        }
    }

    /// Records why Cove stopped reading from the server.
    pub(super) fn give_up(&mut self, why: &str) {
        self.stop_reason = Some(why.to_owned());
    }

    /// Adds the unusable output, if there was any, to the reason of an error.
    pub(super) fn append_to(&self, reason: &mut String) {
        let quoted = self.first.iter().map(|line| format!("`{line}`")).collect::<Vec<_>>().join(", ");
        let what = match (&self.stop_reason, self.lines) {
            (None, 0) => return,
            (Some(broken), 0) => broken.clone(),
            (Some(broken), _) => format!("{broken}: {quoted}"),
            (None, 1) => format!("it wrote a line on standard output that is no message: {quoted}"),
            (None, lines) => format!("it wrote {lines} lines on standard output that are no messages: {quoted}"),
        };
        *reason += &format!("; {what}");
    }
}

/// Both directions of the pipes. Clones share them, because the second handshake attempt uses the same pipes.
#[derive(Clone)]
pub(super) struct UpstreamStdio {
    lines: mpsc::UnboundedSender<Vec<u8>>,
    queued: Arc<AtomicUsize>,
    messages: Arc<tokio::sync::Mutex<mpsc::Receiver<ServerJsonRpcMessage>>>,
    reader: Arc<MessageReader>,
    handshakes: Arc<Mutex<HandshakeIds>>,
}

impl UpstreamStdio {
    pub(super) fn new(
        pipes: ServerPipes,
        notices: Arc<NotificationRouter>,
        secrets: ServerSecrets,
    ) -> (Self, Arc<Mutex<JunkOutput>>) {
        let (lines, queue) = mpsc::unbounded_channel();
        let (sender, messages) = mpsc::channel(64);
        let queued = Arc::new(AtomicUsize::new(0));
        let reader = Arc::new(MessageReader::new(TYPED_METHODS, notices));
        let junk: Arc<Mutex<JunkOutput>> = Arc::default();
        tokio::spawn(write_lines(pipes.stdin, queue, Arc::clone(&queued)));
        tokio::spawn(read_lines(pipes.stdout, sender, Arc::clone(&reader), Arc::clone(&junk), secrets));
        let messages = Arc::new(tokio::sync::Mutex::new(messages));
        (Self { lines, queued, messages, reader, handshakes: Arc::default() }, junk)
    }

    /// Queues a message and fails if the server does not read. `send` calls this before it returns its future,
    /// because rmcp polls those futures in any order and a cancellation must not overtake its request.
    fn queue_message(&self, mut message: ClientJsonRpcMessage) -> io::Result<()> {
        lock(&self.handshakes).send(&mut message);
        self.reader.note_sent(&message);
        let mut line = serde_json::to_vec(&message)?;
        line.push(b'\n');
        if self.queued.fetch_add(line.len(), Ordering::Relaxed) > MAX_QUEUED {
            self.queued.fetch_sub(line.len(), Ordering::Relaxed);
            return Err(io::Error::other("it does not read what it is sent"));
        }
        self.lines.send(line).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

impl Transport<RoleClient> for UpstreamStdio {
    type Error = io::Error;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        std::future::ready(self.queue_message(message))
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        let mut messages = self.messages.lock().await;
        loop {
            let mut message = messages.recv().await?;
            if lock(&self.handshakes).receive(&mut message) {
                return Some(message);
            }
        }
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }
}

/// Writes queued lines to the server. Ends, and so closes standard input, when the last clone of [`UpstreamStdio`] is
/// dropped.
async fn write_lines(mut stdin: ChildStdin, mut queue: mpsc::UnboundedReceiver<Vec<u8>>, queued: Arc<AtomicUsize>) {
    while let Some(mut lines) = queue.recv().await {
        // Adds the lines that already wait to the same write.
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

/// Reads messages until the output ends, all receivers are dropped, or the server writes too much junk.
async fn read_lines(
    stdout: ChildStdout,
    messages: mpsc::Sender<ServerJsonRpcMessage>,
    reader: Arc<MessageReader>,
    junk: Arc<Mutex<JunkOutput>>,
    secrets: ServerSecrets,
) {
    let mut stdout = BufReader::with_capacity(64 * 1024, stdout);
    let mut line = Vec::new();
    let (mut junk_lines, mut junk_bytes) = (0, 0);
    loop {
        reader.intake().wait_for_pace().await;
        match read_line(&mut stdout, &mut line).await {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => return lock(&junk).give_up(&error.to_string()),
        }
        if line.trim_ascii().is_empty() {
            continue;
        }
        if let Some(parsed) = reader.parse_line(&line) {
            (junk_lines, junk_bytes) = (0, 0);
            for message in parsed {
                if messages.send(message).await.is_err() {
                    return;
                }
            }
        } else {
            // Before the line is cut: half a secret would not be recognised.
            let quoted = String::from_utf8_lossy(&line[..line.len().min(MAX_JUNK_BYTES)]);
            lock(&junk).add(secrets.redact(&quoted).as_bytes());
            junk_lines += 1;
            junk_bytes += line.len();
            if junk_lines > MAX_JUNK_LINES || junk_bytes > MAX_JUNK_BYTES {
                return lock(&junk).give_up("it writes nonsense on standard output, and was cut off");
            }
        }
        // Frees the buffer of a large result instead of keeping it as long as the server runs.
        if line.capacity() > 1024 * 1024 {
            line = Vec::new();
        }
    }
}

/// Reads the next line without its line end. Returns false at the end of output, and fails if the line is too long.
async fn read_line(stdout: &mut BufReader<ChildStdout>, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    stdout.take(MAX_LINE as u64 + 1).read_until(b'\n', line).await?;
    let is_complete = line.pop_if(|last| *last == b'\n').is_some();
    if line.len() > MAX_LINE {
        return Err(io::Error::other(format!("it wrote a line of more than {MAX_LINE} bytes")));
    }
    Ok(is_complete || !line.is_empty())
}
