//! The process of a stdio server. It leads its own process group, so that everything it starts ends with it. The end
//! of its standard error is kept. This module knows no protocol.
//!
//! Three parties share the process. The `reap` task owns the `Child`. It waits on a pidfd until the leader has
//! exited, kills the rest of the group, and only then reaps the leader; until then the kernel cannot give the group's
//! number to another process. It clears `is_signalable` before it publishes the exit status. `ServerProcess` signals
//! the group under the same lock, so no signal follows the reaping. The `keep_stderr_tail` task publishes the end of
//! standard error.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt, Interest};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::sync::watch;

use super::redaction::ServerSecrets;
use super::resolve::ServerCommand;
use super::text;
use cove_core::sync::lock;

const KEPT: usize = 64 * 1024;
const TAIL_LINES: usize = 20;
const TAIL_LINE: usize = 500;

/// A server's process. Dropping it kills the whole group.
pub(super) struct ServerProcess {
    group: Arc<ServerProcessGroup>,
    exit: watch::Receiver<Option<ExitStatus>>,
    stderr: Arc<Mutex<VecDeque<u8>>>,
    stderr_open: watch::Receiver<bool>,
}

pub(super) struct ServerPipes {
    pub(super) stdin: ChildStdin,
    pub(super) stdout: ChildStdout,
}

impl ServerProcess {
    /// Starts the process in its own group and spawns the tasks that reap it and read its standard error. Fails if it
    /// cannot be spawned.
    pub(super) fn start(program: &ServerCommand) -> io::Result<(Self, ServerPipes)> {
        let mut child = Command::new(&program.path)
            .args(&program.args)
            .env_clear()
            .envs(&program.env)
            .current_dir(&program.cwd)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let pid = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        let pid = pid.ok_or_else(|| io::Error::other("it has no process id"))?;
        let piped = |missing| io::Error::other(format!("it has no {missing}"));
        let stdin = child.stdin.take().ok_or_else(|| piped("standard input"))?;
        let stdout = child.stdout.take().ok_or_else(|| piped("standard output"))?;
        let stderr = child.stderr.take().ok_or_else(|| piped("standard error"))?;

        let group = Arc::new(ServerProcessGroup { id: pid, is_signalable: Mutex::new(true) });
        let (exited, exit) = watch::channel(None);
        tokio::spawn(reap(child, Arc::clone(&group), exited));
        let kept = Arc::new(Mutex::new(VecDeque::new()));
        let (open, stderr_open) = watch::channel(true);
        tokio::spawn(keep_stderr_tail(stderr, Arc::clone(&kept), open));
        Ok((Self { group, exit, stderr: kept, stderr_open }, ServerPipes { stdin, stdout }))
    }

    /// Returns the exit status if the process ends within `patience`. By then, normally, all of its standard error
    /// has been read.
    pub(super) async fn wait_for_exit(&self, patience: Duration) -> Option<ExitStatus> {
        let mut exit = self.exit.clone();
        let status = tokio::time::timeout(patience, exit.wait_for(Option::is_some)).await.ok()?;
        let status = status.ok().and_then(|status| *status);
        let mut open = self.stderr_open.clone();
        // A process that left the group may keep standard error open for ever.
        let _ = tokio::time::timeout(Duration::from_millis(300), open.wait_for(|open| !open)).await;
        status
    }

    /// Stops the process group. The caller has closed standard input; after `grace` comes SIGTERM, then SIGKILL.
    pub(super) async fn stop(&self, grace: Duration) {
        if self.wait_for_exit(grace).await.is_none() {
            self.group.signal(Signal::TERM);
            if self.wait_for_exit(grace).await.is_none() {
                self.group.signal(Signal::KILL);
                self.wait_for_exit(grace).await;
            }
        }
    }

    pub(super) fn kill(&self) {
        self.group.signal(Signal::KILL);
    }

    /// Returns the last lines of standard error, without control characters and secrets.
    pub(super) fn stderr_tail(&self, secrets: &ServerSecrets) -> String {
        let kept: Vec<u8> = lock(&self.stderr).iter().copied().collect();
        // Before lines are cut: half a secret would not be recognised.
        let whole = secrets.redact(&String::from_utf8_lossy(&kept));
        let lines: Vec<&str> = whole.lines().filter(|line| !line.trim().is_empty()).collect();
        let from = lines.len().saturating_sub(TAIL_LINES);
        let tail: Vec<String> = lines[from..].iter().map(|line| text::to_line(line, TAIL_LINE)).collect();
        tail.join("\n")
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Describes how a process ended, for an error message.
pub(super) fn describe_exit(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("it ended with exit code {code}"),
        (None, Some(signal)) => format!("it was ended by signal {signal}"),
        (None, None) => "it ended".to_owned(),
    }
}

/// A process group. It may be signalled until its leader is reaped, because the kernel does not reuse its number
/// before that.
struct ServerProcessGroup {
    id: Pid,
    is_signalable: Mutex<bool>,
}

impl ServerProcessGroup {
    fn signal(&self, signal: Signal) {
        if *lock(&self.is_signalable) {
            let _ = kill_process_group(self.id, signal);
        }
    }

    /// Kills what is left of the group when its leader has exited, and forbids further signals.
    fn kill_remaining(&self) {
        let mut is_there = lock(&self.is_signalable);
        if *is_there {
            let _ = kill_process_group(self.id, Signal::KILL);
        }
        *is_there = false;
    }
}

/// Covers the end of the runtime, which drops the task that would have reaped the leader.
impl Drop for ServerProcessGroup {
    fn drop(&mut self) {
        self.kill_remaining();
    }
}

/// Waits for the leader to exit, kills the rest of the group, reaps the leader, and publishes the exit status.
async fn reap(mut child: Child, group: Arc<ServerProcessGroup>, exited: watch::Sender<Option<ExitStatus>>) {
    // The pidfd reports the exit without reaping, so the group still belongs to the leader when the rest is killed.
    if let Ok(pidfd) = pidfd_open(group.id, PidfdFlags::empty()) {
        #[expect(deprecated, reason = "unsound for types that lie about their descriptor; `OwnedFd` does not")]
        let pidfd: io::Result<AsyncFd<OwnedFd>> = AsyncFd::with_interest(pidfd, Interest::READABLE);
        if let Ok(pidfd) = pidfd {
            let _ = pidfd.readable().await;
            group.kill_remaining();
        }
    }
    let status = child.wait().await;
    group.kill_remaining();
    let _ = exited.send(Some(status.unwrap_or_else(|_| ExitStatus::from_raw(0))));
}

/// Keeps the last `KEPT` bytes of standard error, and publishes its end.
async fn keep_stderr_tail(mut stderr: ChildStderr, kept: Arc<Mutex<VecDeque<u8>>>, open: watch::Sender<bool>) {
    let mut piece = vec![0; 8 * 1024];
    while let Ok(count @ 1..) = stderr.read(&mut piece).await {
        let mut kept = lock(&kept);
        kept.extend(&piece[..count]);
        let excess = kept.len().saturating_sub(KEPT);
        kept.drain(..excess);
    }
    let _ = open.send(false);
}
