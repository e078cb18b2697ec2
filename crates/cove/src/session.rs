//! A session: one sandbox, its variables and files, and the cells that run in it one after another. It does not know
//! which backend it has.

pub mod cell;

use std::collections::BTreeSet;
use std::pin::Pin;
use std::time::Duration;

use cove_protocol::{CellId, FromRunner, Hello, Language, Outcome, Run, Stdin, Stream, ToRunner, VERSION};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::{Instant, sleep_until};

use crate::backend::{Backend, Control, Ending, StartError};
use crate::link::{Link, LinkError};
use crate::policy::Policy;

pub use cell::{Cell, CellEnd, Stop, Survived};

/// How long a runner may take to start and say that it is ready.
const START: Duration = Duration::from_secs(20);
/// How long a killed interpreter may take to be gone before the whole sandbox goes.
const KILL: Duration = Duration::from_secs(2);

pub struct Session {
    link: Link,
    control: Box<dyn Control>,
    languages: Vec<Language>,
    next_cell: u64,
    /// Languages whose interpreter has run a cell and, as far as we know, still has its variables.
    alive: BTreeSet<Language>,
    input: Option<Box<dyn AsyncRead + Send + Unpin>>,
    /// Set once the sandbox is gone.
    ended: Option<Ending>,
}

/// What a session is started with, besides its policy.
#[derive(Default)]
pub struct Options {
    /// What the code finds on its standard input; nothing when not set.
    pub input: Option<Box<dyn AsyncRead + Send + Unpin>>,
    /// An interpreter to start along with the sandbox.
    pub warm: Option<Language>,
}

impl Session {
    pub async fn start(backend: &dyn Backend, policy: &Policy, options: Options) -> Result<Self, StartError> {
        let mut sandbox = backend.start(policy).await?;
        let hello = Hello {
            version: VERSION,
            stdin: if options.input.is_some() { Stdin::Host } else { Stdin::Empty },
            interpreters: sandbox.interpreters,
            warm: options.warm,
            resume: None,
        };
        let opened = tokio::time::timeout(START, Link::open(sandbox.stream, hello)).await;
        let failed = StartError::new("could not reach the runner in the sandbox");
        match opened {
            Ok(Ok((link, ready))) => Ok(Self {
                link,
                control: sandbox.control,
                languages: ready.languages,
                next_cell: 1,
                alive: BTreeSet::new(),
                input: options.input,
                ended: None,
            }),
            Ok(Err(error)) => {
                sandbox.control.kill();
                let ending = sandbox.control.wait().await;
                Err(failed.because(format!("{error}; the sandbox {}", cell::describe_ending(&ending))))
            }
            Err(_) => {
                sandbox.control.kill();
                Err(failed.because(format!("it did not answer within {} s", START.as_secs())))
            }
        }
    }

    pub fn languages(&self) -> &[Language] {
        &self.languages
    }

    /// Runs one cell to its end. `write` gets what the code writes, as it comes. When `stop` resolves the cell is
    /// interrupted as at its deadline.
    pub async fn run(
        &mut self,
        cell: Cell,
        mut write: impl FnMut(Stream, &[u8]),
        stop: impl Future<Output = ()>,
    ) -> CellEnd {
        if let Some(ending) = &self.ended {
            return CellEnd::SandboxEnded(ending.clone());
        }
        if !self.languages.contains(&cell.language) {
            let reason = format!("{} is not installed in this sandbox", cell.language);
            return CellEnd::Unavailable { language: cell.language, reason };
        }
        let id = CellId(self.next_cell);
        self.next_cell += 1;
        let language = cell.language;
        let deadline = Instant::now() + cell.timeout;
        let run = ToRunner::Run(Run { cell: id, language, name: cell.name, args: cell.args });
        let end = match self.link.send(&run, cell.code.as_bytes()).await {
            Ok(()) => {
                let running = Running { id, language, sent: [0; 2], wants_input: false };
                self.attend(running, Patience::new(deadline, cell.grace), &mut write, stop).await
            }
            Err(error) => Err(error),
        };
        match end {
            Ok(end) => {
                match end.survived() {
                    Survived::Everything => drop(self.alive.insert(language)),
                    Survived::Files | Survived::Nothing => drop(self.alive.remove(&language)),
                }
                end
            }
            Err(error) => self.lost(error).await,
        }
    }

    /// Sees a cell through: its output, its hunger for input, its deadline.
    async fn attend(
        &mut self,
        mut running: Running,
        mut patience: Patience,
        write: &mut impl FnMut(Stream, &[u8]),
        stop: impl Future<Output = ()>,
    ) -> Result<CellEnd, LinkError> {
        let mut stop = std::pin::pin!(stop);
        let mut may_stop = true;
        let mut piece = vec![0; cove_protocol::limits::CHUNK];
        loop {
            let event = tokio::select! {
                // Output first: a cell that has ended in time is not late because we were.
                biased;
                message = self.link.receive() => Event::Message(message?),
                read = read_input(&mut self.input, &mut piece), if running.wants_input => Event::Input(read),
                () = stop.as_mut(), if may_stop => Event::Stop,
                () = sleep_until(patience.until) => Event::Late,
            };
            match event {
                Event::Message((FromRunner::Output { cell, stream, offset }, bytes)) => {
                    running.check_output(cell, stream, offset, bytes.len())?;
                    write(stream, &bytes);
                }
                Event::Message((FromRunner::NeedInput {}, _)) => {
                    running.ask_for_input(self.input.is_some())?
                }
                Event::Message((FromRunner::Done { cell, outcome, fresh }, _)) => {
                    if cell != running.id {
                        return Err(LinkError::Protocol("it ended a cell that does not run"));
                    }
                    return Ok(self.judge(running.language, outcome, fresh, &patience).await);
                }
                Event::Message((FromRunner::Fault { message }, _)) => return Err(LinkError::Fault(message)),
                Event::Message((FromRunner::Ready(_) | FromRunner::Pong { .. }, _)) => {
                    return Err(LinkError::Protocol("it said what nobody asked for"));
                }
                Event::Input(count) => {
                    running.wants_input = false;
                    self.link.send(&ToRunner::Input { end: count == 0 }, &piece[..count]).await?;
                }
                Event::Stop => {
                    may_stop = false;
                    patience.stop(Stop::Cancelled);
                    self.link.send(&ToRunner::Interrupt { cell: running.id }, &[]).await?;
                }
                Event::Late => match patience.pass() {
                    Measure::Interrupt | Measure::Remind => {
                        self.link.send(&ToRunner::Interrupt { cell: running.id }, &[]).await?;
                    }
                    Measure::Kill => self.link.send(&ToRunner::Kill { cell: running.id }, &[]).await?,
                    Measure::End => {
                        let stop = patience.stopped.unwrap_or(Stop::Deadline);
                        self.control.kill();
                        self.ended = Some(self.control.wait().await);
                        return Ok(CellEnd::Stopped { why: stop, survived: Survived::Nothing });
                    }
                },
            }
        }
    }

    /// What the code's end means, given what we did to it.
    async fn judge(
        &mut self,
        language: Language,
        outcome: Outcome,
        fresh: bool,
        patience: &Patience,
    ) -> CellEnd {
        let forgotten = fresh && self.alive.contains(&language);
        match outcome {
            // Whatever the code made of it: it was stopped because it had to stop.
            Outcome::InterpreterKilled { .. } | Outcome::InterpreterExited { .. }
                if patience.stopped.is_some() =>
            {
                CellEnd::Stopped {
                    why: patience.stopped.unwrap_or(Stop::Deadline),
                    survived: Survived::Files,
                }
            }
            _ if let Some(why) = patience.stopped => CellEnd::Stopped { why, survived: Survived::Everything },
            Outcome::InterpreterKilled { signal } => match self.control.out_of_memory().await {
                Some(by) if signal == 9 => CellEnd::OutOfMemory { language, by },
                _ => CellEnd::InterpreterKilled { language, signal },
            },
            Outcome::Completed {} => CellEnd::Completed { forgotten },
            Outcome::Raised { exception, message } => CellEnd::Raised { exception, message, forgotten },
            Outcome::Exited { code } => CellEnd::Exited { code, forgotten },
            Outcome::Interrupted {} => {
                CellEnd::Raised { exception: "KeyboardInterrupt".into(), message: String::new(), forgotten }
            }
            Outcome::InterpreterExited { code } => CellEnd::InterpreterExited { language, code },
            Outcome::Unavailable { reason } => CellEnd::Unavailable { language, reason },
        }
    }

    /// The stream is over or cannot be trusted any more: so is the sandbox.
    async fn lost(&mut self, error: LinkError) -> CellEnd {
        if !matches!(error, LinkError::Closed | LinkError::Io(_)) {
            self.control.kill();
            let _ = self.control.wait().await;
            let ending = Ending::Lost(error.to_string());
            self.ended = Some(ending.clone());
            return CellEnd::SandboxEnded(ending);
        }
        // A runner that has only closed its stream, and lives on, is of no use.
        let ending = match tokio::time::timeout(KILL, self.control.wait()).await {
            Ok(ending) => ending,
            Err(_) => {
                self.control.kill();
                self.control.wait().await
            }
        };
        self.ended = Some(ending.clone());
        CellEnd::SandboxEnded(ending)
    }

    /// Ends the session in good order and waits until nothing of it is left.
    pub async fn stop(mut self) -> Ending {
        if let Some(ending) = self.ended {
            return ending;
        }
        let _ = self.link.send(&ToRunner::Bye {}, &[]).await;
        match tokio::time::timeout(KILL, self.control.wait()).await {
            Ok(ending) => ending,
            Err(_) => {
                self.control.kill();
                self.control.wait().await
            }
        }
    }
}

enum Event {
    Message((FromRunner, Vec<u8>)),
    Input(usize),
    Stop,
    Late,
}

/// The cell that runs, and what the runner may say of it.
struct Running {
    id: CellId,
    language: Language,
    sent: [u64; 2],
    wants_input: bool,
}

impl Running {
    fn check_output(
        &mut self,
        cell: CellId,
        stream: Stream,
        offset: u64,
        count: usize,
    ) -> Result<(), LinkError> {
        let sent = match stream {
            Stream::Stdout => &mut self.sent[0],
            Stream::Stderr => &mut self.sent[1],
        };
        if cell != self.id || offset != *sent {
            return Err(LinkError::Protocol("its output is out of order"));
        }
        *sent += count as u64;
        Ok(())
    }

    fn ask_for_input(&mut self, there_is_some: bool) -> Result<(), LinkError> {
        if self.wants_input || !there_is_some {
            return Err(LinkError::Protocol("it asked for input out of turn"));
        }
        self.wants_input = true;
        Ok(())
    }
}

/// How far a cell has used up its time: first it is interrupted, which keeps its variables, then its interpreter is
/// killed, which keeps its files, then its sandbox.
struct Patience {
    until: Instant,
    grace: Duration,
    step: Measure,
    stopped: Option<Stop>,
}

#[derive(Clone, Copy)]
enum Measure {
    Interrupt,
    /// Some code takes the first interrupt for a wish: python's `asyncio.run` only cancels its task at the first.
    Remind,
    Kill,
    End,
}

impl Patience {
    fn new(deadline: Instant, grace: Duration) -> Self {
        Self { until: deadline, grace, step: Measure::Interrupt, stopped: None }
    }

    /// The time is up: what to do about it now.
    fn pass(&mut self) -> Measure {
        let now = self.step;
        match now {
            Measure::Interrupt => self.stop(Stop::Deadline),
            Measure::Remind => {
                self.until = Instant::now() + self.grace * 2 / 3;
                self.step = Measure::Kill;
            }
            Measure::Kill => {
                self.until = Instant::now() + KILL;
                self.step = Measure::End;
            }
            Measure::End => {}
        }
        now
    }

    /// An interrupt goes out now, another after a third of the grace, and after the rest of it the kill.
    fn stop(&mut self, why: Stop) {
        if self.stopped.is_none() {
            self.stopped = Some(why);
            self.until = Instant::now() + self.grace / 3;
            self.step = Measure::Remind;
        }
    }
}

/// The next piece of input; nothing at its end, or when it cannot be read.
async fn read_input(input: &mut Option<Box<dyn AsyncRead + Send + Unpin>>, piece: &mut [u8]) -> usize {
    match input {
        Some(input) => Pin::new(input).read(piece).await.unwrap_or(0),
        None => 0,
    }
}
