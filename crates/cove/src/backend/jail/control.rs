//! The host's end of a jail process: how it is asked, killed and heard out.

use cove_jail::report::{Exit, OutOfMemory};
use cove_jail::{Event, Request};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, ChildStderr};
use tokio::task::JoinHandle;

use crate::backend::jail::hints;
use crate::backend::{Control, Ending, MemoryKiller, Pending, StartError};

/// Of what the jail and the runner write to standard error, this much is kept for a report.
const KEPT_WORDS: usize = 4096;

pub(super) struct JailControl {
    /// Reaped by the runtime when it ends.
    _jail: Child,
    read: BufReader<OwnedReadHalf>,
    /// What has come of the next event, kept here so that whoever stops waiting for it loses nothing.
    line: Vec<u8>,
    /// Dropping it is the kill.
    write: Option<OwnedWriteHalf>,
    words: Option<JoinHandle<String>>,
    ending: Option<Ending>,
}

impl JailControl {
    pub(super) fn new(mut jail: Child, socket: UnixStream) -> Self {
        let words = jail.stderr.take().map(|stderr| tokio::spawn(keep_last_words(stderr)));
        let (read, write) = socket.into_split();
        Self {
            _jail: jail,
            read: BufReader::new(read),
            line: Vec::new(),
            write: Some(write),
            words,
            ending: None,
        }
    }

    pub(super) async fn send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match &mut self.write {
            Some(write) => write.write_all(bytes).await,
            None => Err(std::io::ErrorKind::BrokenPipe.into()),
        }
    }

    pub(super) async fn next_event(&mut self) -> Option<Event> {
        self.read.read_until(b'\n', &mut self.line).await.ok()?;
        serde_json::from_slice(&std::mem::take(&mut self.line)).ok()
    }

    /// What it said before it went without a proper end.
    pub(super) async fn last_words(&mut self) -> String {
        let said = match self.words.take() {
            Some(words) => words.await.unwrap_or_default(),
            None => String::new(),
        };
        match said.trim() {
            "" => "the jail process ended without a word".to_owned(),
            said => said.to_owned(),
        }
    }

    async fn until_end(&mut self) -> Ending {
        loop {
            match self.next_event().await {
                Some(Event::Ended { exit, exceeded }) => return ending(exit, exceeded),
                Some(_) => {}
                None => return Ending::Lost(self.last_words().await),
            }
        }
    }
}

impl Control for JailControl {
    fn start_failure(&mut self) -> Pending<'_, Option<StartError>> {
        Box::pin(async {
            match self.next_event().await {
                Some(Event::Failed { failure }) => Some(hints::explain(&failure)),
                Some(Event::Ended { exit, exceeded }) => {
                    self.ending = Some(ending(exit, exceeded));
                    None
                }
                Some(Event::Started { .. } | Event::Memory { .. }) => None,
                None => Some(StartError::new("could not start a sandbox").because(self.last_words().await)),
            }
        })
    }

    fn kill(&mut self) {
        self.write = None;
    }

    fn wait(&mut self) -> Pending<'_, Ending> {
        Box::pin(async {
            if self.ending.is_none() {
                self.ending = Some(self.until_end().await);
            }
            self.ending.clone().unwrap_or(Ending::Exited(0))
        })
    }

    fn out_of_memory(&mut self) -> Pending<'_, Option<MemoryKiller>> {
        Box::pin(async {
            if self.send(&[Request::Memory.byte()]).await.is_err() {
                return None;
            }
            loop {
                match self.next_event().await {
                    Some(Event::Started { .. }) => {}
                    Some(Event::Memory { exceeded }) => return exceeded.map(killer),
                    Some(Event::Ended { exit, exceeded }) => {
                        self.ending = Some(ending(exit, exceeded));
                        return exceeded.map(killer);
                    }
                    Some(Event::Failed { .. }) | None => return None,
                }
            }
        })
    }
}

fn ending(exit: Exit, exceeded: Option<OutOfMemory>) -> Ending {
    match (exceeded, exit) {
        // The code's own end is not for memory, even if something was killed for it before.
        (_, Exit::Code(code)) => Ending::Exited(code),
        (Some(by), Exit::Signal(_)) => Ending::OutOfMemory(killer(by)),
        (None, Exit::Signal(signal)) => Ending::Signalled(signal),
    }
}

fn killer(by: OutOfMemory) -> MemoryKiller {
    match by {
        OutOfMemory::Kernel => MemoryKiller::Kernel,
        OutOfMemory::Watchdog => MemoryKiller::Watchdog,
    }
}

/// Reads to the end, so that nobody blocks on a full pipe, and keeps the last of it.
async fn keep_last_words(mut stderr: ChildStderr) -> String {
    let mut kept = Vec::new();
    let mut buffer = [0u8; 1024];
    while let Ok(count) = stderr.read(&mut buffer).await {
        if count == 0 {
            break;
        }
        kept.extend(&buffer[..count]);
        if kept.len() > KEPT_WORDS {
            kept.drain(..kept.len() - KEPT_WORDS);
        }
    }
    String::from_utf8_lossy(&kept).into_owned()
}
