//! A session: one sandbox, its variables and files, and the cells that run in it one after another. Files can be moved
//! while a cell runs. It does not know which backend it has.

pub mod calls;
pub mod cell;
pub mod files;
pub mod registry;

use std::collections::{BTreeSet, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cove_protocol::limits::{CHUNK, MAX_IMAGE, MAX_IMAGES};
use cove_protocol::{
    CallId, CellId, FromRunner, Hello, ImageFormat, Interpreter, Language, Outcome, Run, Stdin, Stream,
    ToRunner, VERSION,
};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::{Instant, sleep_until};

use crate::backend::{Backend, Control, Ending, MemoryKiller, StartError, Whose};
use crate::error::shown;
use crate::link::{CellMessages, Link, LinkError, Place, encoded};
use crate::policy::Policy;

use calls::UnderWay;

pub use calls::{Calls, NoCalls};
pub use cell::{Cell, CellEnd, Stop, Survived};

/// How long a runner may take to start and say that it is ready.
const START: Duration = Duration::from_secs(20);
const SIGKILL: i32 = 9;
/// How long a killed interpreter may take to be gone before the whole sandbox goes.
const KILL: Duration = Duration::from_secs(2);

/// Cells that may wait for their turn in one session.
const MAX_WAITING: usize = 16;

pub struct Session {
    link: Link,
    languages: Vec<Language>,
    interpreters: Vec<Interpreter>,
    /// Held by the cell that runs; others queue for it in order.
    turn: Mutex<Turn>,
    waiting: Semaphore,
    control: Mutex<Box<dyn Control>>,
    /// Set once the sandbox is gone.
    ended: OnceLock<Ending>,
}

/// What only the cell that runs may touch.
struct Turn {
    messages: CellMessages,
    next_cell: u64,
    last_call: CallId,
    /// Languages whose interpreter has run a cell and, as far as we know, still has its variables.
    alive: BTreeSet<Language>,
    input: Option<Box<dyn AsyncRead + Send + Unpin>>,
}

/// What a session is started with, besides its policy.
#[derive(Default)]
pub struct Options {
    /// What the code finds on its standard input; nothing when not set.
    pub input: Option<Box<dyn AsyncRead + Send + Unpin>>,
    /// An interpreter to start along with the sandbox.
    pub warm: Option<Language>,
    /// What its sandbox is marked with.
    pub whose: Whose,
}

impl Session {
    pub async fn start(backend: &dyn Backend, policy: &Policy, options: Options) -> Result<Self, StartError> {
        let mut sandbox = backend.start(policy, &options.whose).await?;
        let interpreters = sandbox.interpreters.clone();
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
            Ok(Ok((link, messages, ready))) => Ok(Self {
                link,
                languages: ready.languages,
                interpreters,
                turn: Mutex::new(Turn {
                    messages,
                    next_cell: 1,
                    last_call: CallId(0),
                    alive: BTreeSet::new(),
                    input: options.input,
                }),
                waiting: Semaphore::new(MAX_WAITING),
                control: Mutex::new(sandbox.control),
                ended: OnceLock::new(),
            }),
            Ok(Err(error)) => {
                if let Some(failure) = sandbox.control.start_failure().await {
                    return Err(failure);
                }
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

    /// The program that runs a language, as the sandbox sees it.
    pub fn program(&self, language: Language) -> Option<&str> {
        let known = self.interpreters.iter().find(|known| known.language == language)?;
        self.languages.contains(&language).then_some(known.program.as_str())
    }

    /// How the sandbox ended, if it has and that has been noticed.
    pub fn ended(&self) -> Option<&Ending> {
        self.ended.get()
    }

    /// Whether its sandbox runs, asked of the sandbox itself.
    pub async fn is_alive(&self) -> bool {
        let mut control = self.control.lock().await;
        self.ended.get().is_none() && tokio::time::timeout(Duration::ZERO, control.wait()).await.is_err()
    }

    /// Whether anything in the sandbox has been killed for memory so far, and by whom.
    pub async fn out_of_memory(&self) -> Option<MemoryKiller> {
        self.control.lock().await.out_of_memory().await
    }

    /// As `run_with`, for code that has nobody to call.
    pub async fn run(
        &self,
        cell: Cell,
        show: impl FnMut(Shown<'_>),
        stop: impl Future<Output = ()>,
    ) -> CellEnd {
        self.run_with(cell, show, stop, Arc::new(NoCalls)).await
    }

    /// Runs one cell to its end, after those that were asked for before. `show` gets what the code writes and shows, as
    /// it comes. When `stop` resolves the cell is interrupted as at its deadline. `calls` answers what the code asks of
    /// the host.
    pub async fn run_with(
        &self,
        cell: Cell,
        mut show: impl FnMut(Shown<'_>),
        stop: impl Future<Output = ()>,
        calls: Arc<dyn Calls>,
    ) -> CellEnd {
        let mut stop = std::pin::pin!(stop);
        let Ok(_waiting) = self.waiting.try_acquire() else {
            return CellEnd::Refused { waiting: MAX_WAITING };
        };
        let mut turn = tokio::select! {
            // What is not wanted any more does not begin, even if it could.
            biased;
            () = stop.as_mut() => {
                return CellEnd::Stopped { why: Stop::Cancelled, survived: Survived::Everything };
            }
            turn = self.turn.lock() => turn,
        };
        if let Some(ending) = self.ended.get() {
            return CellEnd::SandboxEnded(ending.clone());
        }
        if !self.languages.contains(&cell.language) {
            let reason = format!("{} is not installed in this sandbox", cell.language);
            return CellEnd::Unavailable { language: cell.language, reason };
        }
        let id = CellId(turn.next_cell);
        turn.next_cell += 1;
        let language = cell.language;
        let patience = Patience::new(Instant::now() + cell.timeout, cell.grace);
        let run = ToRunner::Run(Run { cell: id, language, name: cell.name, args: cell.args });
        let end = match encoded(&run, cell.code.as_bytes()) {
            Ok(run) => {
                let calls = UnderWay::new(id, calls, self.link.replies());
                let to_send = VecDeque::from([run]);
                let running =
                    Running { id, language, sent: [0; 2], images: 0, wants_input: false, to_send, calls };
                self.attend(&mut turn, running, patience, &mut show, stop).await
            }
            Err(error) => Err(error),
        };
        match end {
            Ok(end) => {
                match end.survived() {
                    Survived::Everything => drop(turn.alive.insert(language)),
                    Survived::Files | Survived::Nothing => drop(turn.alive.remove(&language)),
                }
                end
            }
            Err(error) => CellEnd::SandboxEnded(self.lost(error).await),
        }
    }

    /// Sees a cell through: its output, its calls, its hunger for input, its deadline. What it sends it sends when there
    /// is room: a runner that waits for us to read must not find us waiting for it to read.
    async fn attend(
        &self,
        turn: &mut Turn,
        mut running: Running,
        mut patience: Patience,
        show: &mut impl FnMut(Shown<'_>),
        mut stop: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<CellEnd, LinkError> {
        let mut may_stop = true;
        let mut piece = vec![0; CHUNK];
        loop {
            let event = tokio::select! {
                // Output first: a cell that has ended in time is not late because we were.
                biased;
                place = self.link.place(), if !running.to_send.is_empty() => Event::Room(place?),
                message = turn.messages.next() => Event::Message(message?),
                read = read_input(&mut turn.input, &mut piece), if running.may_have_input() => Event::Input(read),
                () = stop.as_mut(), if may_stop => Event::Stop,
                () = sleep_until(patience.until) => Event::Late,
            };
            match event {
                Event::Message((FromRunner::Output { cell, stream, offset }, bytes)) => {
                    running.check_output(cell, stream, offset, bytes.len())?;
                    show(Shown::Text(stream, &bytes));
                }
                Event::Message((FromRunner::Image { cell, format }, bytes)) => {
                    running.check_image(cell, bytes.len())?;
                    show(Shown::Image(format, &bytes));
                }
                Event::Message((FromRunner::Call { cell, call }, request)) => {
                    running.calls.begin(cell, call, request, &mut turn.last_call)?;
                }
                Event::Message((FromRunner::Forget { call }, _)) => {
                    running.calls.forget(call, turn.last_call)?;
                }
                Event::Message((FromRunner::NeedInput {}, _)) => {
                    running.ask_for_input(turn.input.is_some())?
                }
                Event::Message((FromRunner::Done { cell, outcome, fresh }, _)) => {
                    if cell != running.id {
                        return Err(LinkError::Protocol("it ended a cell that does not run"));
                    }
                    let forgotten = fresh && turn.alive.contains(&running.language);
                    return Ok(self.judge(running.language, outcome, forgotten, &patience).await);
                }
                Event::Message(_) => return Err(LinkError::Protocol("it said what nobody asked for")),
                Event::Room(place) => {
                    if let Some(bytes) = running.to_send.pop_front() {
                        place.send(bytes);
                    }
                }
                Event::Input(count) => {
                    running.wants_input = false;
                    running.send(&ToRunner::Input { end: count == 0 }, &piece[..count])?;
                }
                Event::Stop => {
                    may_stop = false;
                    patience.stop(Stop::Cancelled);
                    running.calls.stop();
                    running.send(&ToRunner::Interrupt { cell: running.id }, &[])?;
                }
                Event::Late => match patience.pass() {
                    Measure::Interrupt | Measure::Remind => {
                        running.calls.stop();
                        running.send(&ToRunner::Interrupt { cell: running.id }, &[])?;
                    }
                    Measure::Kill => running.send(&ToRunner::Kill { cell: running.id }, &[])?,
                    Measure::End => {
                        let why = patience.stopped.unwrap_or(Stop::Deadline);
                        self.end().await;
                        return Ok(CellEnd::Stopped { why, survived: Survived::Nothing });
                    }
                },
            }
        }
    }

    /// What the code's end means, given what we did to it.
    async fn judge(
        &self,
        language: Language,
        outcome: Outcome,
        forgotten: bool,
        patience: &Patience,
    ) -> CellEnd {
        if let Some(why) = patience.stopped {
            // Whatever the code made of it: it was stopped because it had to stop.
            let survived = match outcome {
                Outcome::InterpreterKilled { .. } | Outcome::InterpreterExited { .. } => Survived::Files,
                _ => Survived::Everything,
            };
            return CellEnd::Stopped { why, survived };
        }
        match outcome {
            Outcome::InterpreterKilled { signal } => match self.control.lock().await.out_of_memory().await {
                Some(by) if signal == SIGKILL => CellEnd::OutOfMemory { language, by },
                _ => CellEnd::InterpreterKilled { language, signal },
            },
            Outcome::Completed {} => CellEnd::Completed { forgotten },
            Outcome::Raised { exception, message } => CellEnd::Raised { exception, message, forgotten },
            Outcome::Exited { code } => CellEnd::Exited { code, forgotten },
            Outcome::Interrupted {} => {
                CellEnd::Raised { exception: "KeyboardInterrupt".into(), message: String::new(), forgotten }
            }
            Outcome::InterpreterExited { code } => CellEnd::InterpreterExited { language, code },
            Outcome::Unavailable { reason } => CellEnd::Unavailable { language, reason: shown(&reason) },
        }
    }

    /// The stream is over or cannot be trusted any more: so is the sandbox.
    async fn lost(&self, error: LinkError) -> Ending {
        let mut control = self.control.lock().await;
        let ending = if matches!(error, LinkError::Closed | LinkError::Io(_)) {
            // A runner that has only closed its stream, and lives on, is of no use.
            wait_or_kill(&mut **control).await
        } else {
            control.kill();
            control.wait().await;
            Ending::Lost(error.to_string())
        };
        self.ended.get_or_init(|| ending).clone()
    }

    /// Ends the sandbox at once.
    pub async fn end(&self) -> Ending {
        let mut control = self.control.lock().await;
        control.kill();
        let ending = control.wait().await;
        self.ended.get_or_init(|| ending).clone()
    }

    /// Ends the session in good order and waits until nothing of it is left.
    pub async fn stop(&self) -> Ending {
        if let Some(ending) = self.ended.get() {
            return ending.clone();
        }
        // A runner that does not read is ended below.
        let _ = tokio::time::timeout(KILL, self.link.send(&ToRunner::Bye {}, &[])).await;
        let ending = wait_or_kill(&mut **self.control.lock().await).await;
        self.ended.get_or_init(|| ending).clone()
    }
}

async fn wait_or_kill(control: &mut dyn Control) -> Ending {
    match tokio::time::timeout(KILL, control.wait()).await {
        Ok(ending) => ending,
        Err(_) => {
            control.kill();
            control.wait().await
        }
    }
}

/// What a cell lets be seen while it runs.
#[derive(Debug, Clone, Copy)]
pub enum Shown<'a> {
    Text(Stream, &'a [u8]),
    Image(ImageFormat, &'a [u8]),
}

enum Event<'a> {
    Room(Place<'a>),
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
    images: usize,
    wants_input: bool,
    /// What waits for room on the link.
    to_send: VecDeque<Vec<u8>>,
    calls: UnderWay,
}

impl Running {
    fn send(&mut self, message: &ToRunner, payload: &[u8]) -> Result<(), LinkError> {
        self.to_send.push_back(encoded(message, payload)?);
        Ok(())
    }

    /// A runner that asks and asks and reads nothing gets no more than fits.
    fn may_have_input(&self) -> bool {
        self.wants_input && self.to_send.is_empty()
    }

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

    fn check_image(&mut self, cell: CellId, length: usize) -> Result<(), LinkError> {
        self.images += 1;
        if cell != self.id || self.images > MAX_IMAGES || length > MAX_IMAGE {
            return Err(LinkError::Protocol("it shows more than it may"));
        }
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
