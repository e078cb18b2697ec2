//! A process that ends with its owner, even if a test panics, and whose every wait has a limit.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};

use crate::PATIENCE;

/// Standard output line by line, and all of standard error so far.
pub(crate) struct ClientProcess {
    child: Child,
    /// Set once it was reaped.
    status: Option<ExitStatus>,
    lines: Receiver<String>,
    errors: Arc<Mutex<String>>,
    /// Ends when no process can write to standard error any more.
    errors_reader: JoinHandle<()>,
}

/// How long a child that outlives the process may keep standard error open.
const STDERR_PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct ExitedProcess {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl ClientProcess {
    /// Starts it in a process group of its own, so that its children end with it.
    pub(crate) fn start(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let (send, lines) = channel();
        let output = child.stdout.take().expect("piped");
        std::thread::spawn(move || forward_lines(output, &send));
        let errors = Arc::new(Mutex::new(String::new()));
        let (from, to) = (child.stderr.take().expect("piped"), Arc::clone(&errors));
        let errors_reader = std::thread::spawn(move || {
            let (send, lines) = channel();
            std::thread::spawn(move || forward_lines(from, &send));
            for line in lines {
                to.lock().unwrap_or_else(PoisonError::into_inner).push_str(&line);
            }
        });
        Self { child, status: None, lines, errors, errors_reader }
    }

    /// Runs it to the end.
    pub(crate) fn run_to_end(command: Command) -> ExitedProcess {
        Self::run_within(command, PATIENCE)
    }

    /// Runs a command that must succeed. Returns what it printed.
    #[track_caller]
    pub(crate) fn run_successfully(command: Command) -> String {
        let shown = format!("{command:?}");
        let ExitedProcess { code, stdout, stderr } = Self::run_to_end(command);
        assert_eq!(code, Some(0), "{shown}\n{stdout}\n{stderr}");
        stdout
    }

    /// Runs it to the end, for which it has `patience`.
    pub(crate) fn run_within(command: Command, patience: Duration) -> ExitedProcess {
        let mut running = Self::start(command);
        running.close_input();
        let end = Instant::now() + patience;
        let mut stdout = String::new();
        loop {
            match running.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => stdout += &line,
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    panic!("no end after {patience:?}\nstdout: {stdout}\nstderr: {}", running.stderr())
                }
            }
        }
        let code = running.wait(PATIENCE).expect("it closed its output, so it ends");
        // What it wrote last may not have been read yet.
        let ended = Instant::now();
        while !running.errors_reader.is_finished() && ended.elapsed() < STDERR_PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        ExitedProcess { code, stdout, stderr: running.stderr() }
    }

    pub(crate) fn stderr(&self) -> String {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn send(&mut self, line: &str) {
        let input = self.child.stdin.as_mut().expect("still open");
        input.write_all(line.as_bytes()).and_then(|()| input.write_all(b"\n")).expect("it reads");
    }

    pub(crate) fn close_input(&mut self) {
        drop(self.child.stdin.take());
    }

    #[track_caller]
    pub(crate) fn next_line(&self, what: &str) -> String {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => line,
            Err(error) => panic!("no answer to {what}: {error}\nstderr: {}", self.stderr()),
        }
    }

    /// Asks it to end, as an operator would.
    pub(crate) fn terminate(&self) {
        let _ = kill_process(self.id(), Signal::TERM);
    }

    /// Closes its input. Returns `Some` with its exit code if it ended in time.
    pub(crate) fn close(&mut self, patience: Duration) -> Option<Option<i32>> {
        self.close_input();
        self.wait(patience)
    }

    fn wait(&mut self, patience: Duration) -> Option<Option<i32>> {
        if let Some(status) = self.status {
            return Some(status.code());
        }
        let start = Instant::now();
        while !self.has_ended() {
            if start.elapsed() > patience {
                return None;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Some(self.reap().code())
    }

    /// Does not reap it: until then no other process can get its id, which is also its group's.
    pub(crate) fn has_ended(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(self.id()), options).expect("it is our child").is_some()
    }

    /// Ends it and everything that it started.
    fn reap(&mut self) -> ExitStatus {
        let _ = kill_process_group(self.id(), Signal::KILL);
        let status = self.child.wait().expect("it is our child");
        self.status = Some(status);
        status
    }

    fn id(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for ClientProcess {
    fn drop(&mut self) {
        // A process that reads its input ends by itself, and ends its own children properly.
        if self.close(Duration::from_secs(5)).is_none() {
            self.reap();
        }
    }
}

fn forward_lines(from: impl Read, to: &Sender<String>) {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
        if to.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
            return;
        }
        line.clear();
    }
}
