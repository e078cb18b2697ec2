//! The process of a stdio server: its own process group from start to end, so that everything it started ends with it;
//! its standard error, kept within bounds. It knows no protocol.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt, Interest};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::sync::watch;

use super::ready::Program;
use super::text;

const KEPT: usize = 64 * 1024;
const TAIL_LINES: usize = 20;
const TAIL_LINE: usize = 500;

/// A server's process. Dropping it kills the whole group.
pub(super) struct Process {
    group: Arc<Group>,
    exit: watch::Receiver<Option<ExitStatus>>,
    stderr: Arc<Mutex<VecDeque<u8>>>,
    stderr_open: watch::Receiver<bool>,
}

pub(super) struct Pipes {
    pub(super) stdin: ChildStdin,
    pub(super) stdout: ChildStdout,
}

impl Process {
    pub(super) fn start(program: &Program) -> io::Result<(Self, Pipes)> {
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

        let group = Arc::new(Group { id: pid, is_there: Mutex::new(true) });
        let (exited, exit) = watch::channel(None);
        tokio::spawn(reap(child, Arc::clone(&group), exited));
        let kept = Arc::new(Mutex::new(VecDeque::new()));
        let (open, stderr_open) = watch::channel(true);
        tokio::spawn(keep(stderr, Arc::clone(&kept), open));
        Ok((Self { group, exit, stderr: kept, stderr_open }, Pipes { stdin, stdout }))
    }

    /// How it ended, if it does within `patience`; then also all it wrote on standard error is there.
    pub(super) async fn ended(&self, patience: Duration) -> Option<ExitStatus> {
        let mut exit = self.exit.clone();
        let status = tokio::time::timeout(patience, exit.wait_for(Option::is_some)).await.ok()?;
        let status = status.ok().and_then(|status| *status);
        let mut open = self.stderr_open.clone();
        // Something that left the group may hold it open for ever.
        let _ = tokio::time::timeout(Duration::from_millis(300), open.wait_for(|open| !open)).await;
        status
    }

    /// Ends it and everything it started: its input was closed by the caller, then it is asked, then killed.
    pub(super) async fn stop(&self, grace: Duration) {
        if self.ended(grace).await.is_none() {
            self.group.signal(Signal::TERM);
            if self.ended(grace).await.is_none() {
                self.group.signal(Signal::KILL);
                self.ended(grace).await;
            }
        }
    }

    pub(super) fn kill(&self) {
        self.group.signal(Signal::KILL);
    }

    /// The last lines of standard error, harmless to show.
    pub(super) fn stderr_tail(&self) -> String {
        let kept: Vec<u8> = lock(&self.stderr).iter().copied().collect();
        let whole = String::from_utf8_lossy(&kept);
        let lines: Vec<&str> = whole.lines().filter(|line| !line.trim().is_empty()).collect();
        let from = lines.len().saturating_sub(TAIL_LINES);
        let tail: Vec<String> = lines[from..].iter().map(|line| text::line(line, TAIL_LINE)).collect();
        tail.join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// How a process ended, in words.
pub(super) fn shown_status(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("it ended with exit code {code}"),
        (None, Some(signal)) => format!("it was ended by signal {signal}"),
        (None, None) => "it ended".to_owned(),
    }
}

/// A process group that may be signalled as long as its leader was not reaped: until then nobody else gets its number.
struct Group {
    id: Pid,
    is_there: Mutex<bool>,
}

impl Group {
    fn signal(&self, signal: Signal) {
        if *lock(&self.is_there) {
            let _ = kill_process_group(self.id, signal);
        }
    }

    /// The leader ended and is about to be reaped: what is left of its group goes with it.
    fn finish(&self) {
        let mut is_there = lock(&self.is_there);
        if *is_there {
            let _ = kill_process_group(self.id, Signal::KILL);
        }
        *is_there = false;
    }
}

/// Also when the runtime ends and the task that would have reaped the leader is dropped.
impl Drop for Group {
    fn drop(&mut self) {
        self.finish();
    }
}

async fn reap(mut child: Child, group: Arc<Group>, exited: watch::Sender<Option<ExitStatus>>) {
    // Waited for without reaping, so that the group still is the leader's when the rest of it is killed.
    if let Ok(pidfd) = pidfd_open(group.id, PidfdFlags::empty()) {
        #[expect(
            deprecated,
            reason = "unsound for types that lie about their descriptor; `OwnedFd` does not"
        )]
        let pidfd: io::Result<AsyncFd<OwnedFd>> = AsyncFd::with_interest(pidfd, Interest::READABLE);
        if let Ok(pidfd) = pidfd {
            let _ = pidfd.readable().await;
            group.finish();
        }
    }
    let status = child.wait().await;
    group.finish();
    let _ = exited.send(Some(status.unwrap_or_else(|_| ExitStatus::from_raw(0))));
}

async fn keep(mut stderr: ChildStderr, kept: Arc<Mutex<VecDeque<u8>>>, open: watch::Sender<bool>) {
    let mut piece = vec![0; 8 * 1024];
    while let Ok(count @ 1..) = stderr.read(&mut piece).await {
        let mut kept = lock(&kept);
        kept.extend(&piece[..count]);
        let excess = kept.len().saturating_sub(KEPT);
        kept.drain(..excess);
    }
    let _ = open.send(false);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
