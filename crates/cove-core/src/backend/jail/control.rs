//! The host's end of the control socket: sends requests to the jail process, kills it and reads its events.

use std::path::PathBuf;
use std::time::Duration;

use crate::error::Failure;
use cove_jail::report::{RunnerExit, read_kill_counter};
use cove_jail::{JailEvent, JailRequest};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, ChildStderr};
use tokio::task::JoinHandle;

use crate::BoxFuture;
use crate::backend::jail::hints;
use crate::backend::jail::processors::ProcessorClaim;
use crate::backend::{MemoryKiller, SandboxControl, SandboxEnd};

/// How many of the last bytes on the standard error of jail and runner are kept for a report.
const MAX_STDERR_TAIL: usize = 4096;

pub(super) struct JailControl {
    /// Kept so that the runtime reaps the process when it ends.
    _jail: Child,
    read: BufReader<OwnedReadHalf>,
    /// The part of the next event that has arrived, kept here so that a caller that drops the future loses nothing.
    line: Vec<u8>,
    /// Dropping it closes the socket, and the jail process kills the sandbox.
    write: Option<OwnedWriteHalf>,
    stderr_tail: Option<JoinHandle<String>>,
    ending: Option<SandboxEnd>,
    /// The user id of this process, if the plan gives the sandbox another one.
    pub(super) avoided_user: Option<u32>,
    /// The sandbox has that id.
    has_avoided_user: bool,
    /// Kept until the sandbox is gone.
    _processors: Option<ProcessorClaim>,
    /// The file in which the kernel counts the processes that it has killed for memory, and the count at the last look.
    kill_counter: Option<(PathBuf, u64)>,
    /// The watchdog has killed since the last call of `new_memory_killer`.
    watchdog_killed: bool,
}

impl JailControl {
    pub(super) fn new(mut jail: Child, socket: UnixStream, processors: Option<ProcessorClaim>) -> Self {
        let stderr_tail = jail.stderr.take().map(|stderr| tokio::spawn(read_stderr_tail(stderr)));
        let (read, write) = socket.into_split();
        Self {
            _jail: jail,
            read: BufReader::new(read),
            line: Vec::new(),
            write: Some(write),
            stderr_tail,
            ending: None,
            avoided_user: None,
            has_avoided_user: false,
            _processors: processors,
            kill_counter: None,
            watchdog_killed: false,
        }
    }

    pub(super) async fn send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match &mut self.write {
            Some(write) => write.write_all(bytes).await,
            None => Err(std::io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Returns the next event, or None if the socket has closed or the event is malformed. Cancel-safe.
    pub(super) async fn next_event(&mut self) -> Option<JailEvent> {
        self.read.read_until(b'\n', &mut self.line).await.ok()?;
        let event = serde_json::from_slice(&std::mem::take(&mut self.line)).ok()?;
        match &event {
            JailEvent::Started { host_uid, kill_counter } => {
                self.has_avoided_user = self.avoided_user == Some(*host_uid);
                if let Some(unmet) = self.unmet_plan() {
                    tracing::warn!("a sandbox {unmet}");
                }
                self.kill_counter = kill_counter.clone().map(|file| (file, 0));
            }
            JailEvent::MemoryKill {} => self.watchdog_killed = true,
            JailEvent::Ended { exit, exceeded } => self.ending = Some(sandbox_end(*exit, *exceeded)),
            _ => {}
        }
        Some(event)
    }

    /// Returns whether the kernel has killed anything for memory since the last call.
    fn kernel_has_killed(&mut self) -> bool {
        let Some((file, seen)) = &mut self.kill_counter else { return false };
        let count = read_kill_counter(file).unwrap_or(*seen);
        std::mem::replace(seen, count) < count
    }

    /// Returns the last lines on standard error, for a jail process that ended without an `Ended` event.
    pub(super) async fn take_stderr_tail(&mut self) -> String {
        let said = match self.stderr_tail.take() {
            Some(words) => words.await.unwrap_or_default(),
            None => String::new(),
        };
        match said.trim() {
            "" => "the jail process ended without a word".to_owned(),
            said => said.to_owned(),
        }
    }

    async fn wait_for_exit(&mut self) -> SandboxEnd {
        loop {
            match self.next_event().await {
                Some(JailEvent::Ended { exit, exceeded }) => return sandbox_end(exit, exceeded),
                Some(_) => {}
                None => return SandboxEnd::Lost(self.take_stderr_tail().await),
            }
        }
    }
}

impl SandboxControl for JailControl {
    fn start_failure(&mut self) -> BoxFuture<'_, Option<Failure>> {
        Box::pin(async {
            match self.next_event().await {
                Some(JailEvent::Failed { failure }) => Some(hints::explain_failure(&failure)),
                Some(_) => None,
                None => Some(Failure::operator("could not start a sandbox").because(self.take_stderr_tail().await)),
            }
        })
    }

    fn kill(&mut self) {
        self.write = None;
    }

    fn wait(&mut self) -> BoxFuture<'_, SandboxEnd> {
        Box::pin(async {
            if self.ending.is_none() {
                self.ending = Some(self.wait_for_exit().await);
            }
            self.ending.clone().unwrap_or(SandboxEnd::Exited(0))
        })
    }

    fn unmet_plan(&self) -> Option<String> {
        let user = self.avoided_user.filter(|_| self.has_avoided_user)?;
        Some(format!("has the user id {user} of this process: `newuidmap` gave it no other"))
    }

    /// Asks the socket itself, because the runtime learns only later that it has something to read.
    fn may_have_ended(&self) -> bool {
        let socket: &UnixStream = self.read.get_ref().as_ref();
        let next = rustix::net::recv(socket, &mut [0_u8; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        self.ending.is_some() || !self.read.buffer().is_empty() || !matches!(next, Err(Errno::AGAIN))
    }

    fn notice_time(&self) -> Duration {
        // The jail process has to be reaped, and its last words read.
        Duration::from_millis(50)
    }

    fn memory_killer(&mut self) -> BoxFuture<'_, Option<MemoryKiller>> {
        Box::pin(async {
            if self.send(&[JailRequest::Memory.byte()]).await.is_err() {
                return None;
            }
            loop {
                match self.next_event().await {
                    Some(JailEvent::Started { .. } | JailEvent::MemoryKill {}) => {}
                    Some(JailEvent::Memory { exceeded } | JailEvent::Ended { exceeded, .. }) => return exceeded,
                    Some(JailEvent::Failed { .. }) | None => return None,
                }
            }
        })
    }

    /// The kernel counts before it kills, and the watchdog reports before it kills: what a cell can have noticed is
    /// already there to be read.
    fn new_memory_killer(&mut self) -> BoxFuture<'_, Option<MemoryKiller>> {
        Box::pin(async {
            while self.ending.is_none() && self.may_have_ended() && self.next_event().await.is_some() {}
            if std::mem::take(&mut self.watchdog_killed) {
                return Some(MemoryKiller::Watchdog);
            }
            self.kernel_has_killed().then_some(MemoryKiller::Kernel)
        })
    }
}

fn sandbox_end(exit: RunnerExit, exceeded: Option<MemoryKiller>) -> SandboxEnd {
    match (exceeded, exit) {
        // A runner that exited was not killed for memory, even if another process was.
        (_, RunnerExit::Code(code)) => SandboxEnd::Exited(code),
        (Some(by), RunnerExit::Signal(_)) => SandboxEnd::OutOfMemory(by),
        (None, RunnerExit::Signal(signal)) => SandboxEnd::Signalled(signal),
    }
}

/// Reads standard error to its end, so that no process blocks on a full pipe, and returns its last bytes.
async fn read_stderr_tail(mut stderr: ChildStderr) -> String {
    let mut kept = Vec::new();
    let mut buffer = [0u8; 1024];
    while let Ok(count) = stderr.read(&mut buffer).await {
        if count == 0 {
            break;
        }
        kept.extend(&buffer[..count]);
        if kept.len() > MAX_STDERR_TAIL {
            kept.drain(..kept.len() - MAX_STDERR_TAIL);
        }
    }
    String::from_utf8_lossy(&kept).into_owned()
}
