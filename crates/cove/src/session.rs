//! A session: one sandbox, its variables and files, and the cells that run in it one after another. Files can be moved
//! while a cell runs. It does not know which backend it has.

pub mod calls;
pub mod cell;
pub mod files;
pub mod registry;
mod running;

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cove_protocol::limits::CHUNK;
use cove_protocol::{
    CallId, CellId, FromRunner, Hello, ImageFormat, Interpreter, Language, Outcome, Run, Start, Stdin,
    Stream, ToRunner, VERSION,
};
use tokio::io::AsyncRead;
use tokio::sync::{Mutex, Semaphore};
use tokio::time::{Instant, sleep_until};

use crate::backend::{Backend, Control, Ending, MemoryKiller, OwnProgram, StartError, Whose};
use crate::error::shown;
use crate::link::{CellMessages, Link, LinkError, Place, encoded};
use crate::policy::{Policy, Root};

use calls::UnderWay;
use running::{Measure, Patience, Running, read_input};

pub use calls::{Calls, NoCalls};
pub use cell::{Cell, CellEnd, Program, Stop, Survived, Who};

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
    /// Those that the runner took of what the backend offered.
    interpreters: Vec<Interpreter>,
    own: Option<OwnProgram>,
    offer: Option<Offer>,
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

/// What an image is offered for, where it says that.
struct Offer {
    image: String,
    languages: Vec<Language>,
}

impl Offer {
    fn of(policy: &Policy) -> Option<Self> {
        match &policy.root {
            Root::Image(recipe) if !recipe.languages.is_empty() => {
                Some(Self { image: recipe.name.clone(), languages: recipe.languages.clone() })
            }
            _ => None,
        }
    }
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
                languages: ready.interpreters.iter().map(|taken| taken.language).collect(),
                interpreters: ready.interpreters,
                own: sandbox.own,
                offer: Offer::of(policy),
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

    /// Why it does not speak a language.
    pub fn why_not(&self, language: Language) -> String {
        match &self.offer {
            Some(Offer { image, languages }) if !languages.contains(&language) => {
                let languages: Vec<&str> = languages.iter().map(|language| language.as_str()).collect();
                format!(
                    "the image `{image}` does not offer {language}: `languages` in its `image.toml` has {}",
                    languages.join(", ")
                )
            }
            _ => format!("{language} is not installed in this sandbox"),
        }
    }

    /// The program that runs a language, as the sandbox sees it.
    pub fn program(&self, language: Language) -> Option<&str> {
        let known = self.interpreters.iter().find(|known| known.language == language)?;
        Some(known.program.as_str())
    }

    /// What its image starts by itself; nothing where there is no image.
    pub fn own_program(&self) -> Option<&OwnProgram> {
        self.own.as_ref()
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
        show: impl FnMut(Shown<'_>),
        stop: impl Future<Output = ()>,
        calls: Arc<dyn Calls>,
    ) -> CellEnd {
        let Cell { language, name, code, args, timeout, grace } = cell;
        if !self.languages.contains(&language) {
            let reason = self.why_not(language);
            return CellEnd::Unavailable { who: language.into(), reason };
        }
        let message = |cell| ToRunner::Run(Run { cell, language, name, args });
        let given = Given { who: language.into(), payload: code.as_bytes(), timeout, grace };
        self.take_turn(message, given, show, stop, calls).await
    }

    /// As `run_with`, for a program that is started for this and has the session's standard input. It is no interpreter:
    /// that it ends is the end of the cell, and its exit code says how.
    pub async fn run_program(
        &self,
        program: Program,
        show: impl FnMut(Shown<'_>),
        stop: impl Future<Output = ()>,
        calls: Arc<dyn Calls>,
    ) -> CellEnd {
        let Program { command, directory, timeout, grace } = program;
        let who = Who::Program;
        let mut start = Start { cell: CellId(0), command, directory };
        if let Err(bad) = start.check() {
            return CellEnd::Unavailable { who, reason: bad.to_string() };
        }
        let message = |cell| {
            start.cell = cell;
            ToRunner::Start(start)
        };
        self.take_turn(message, Given { who, payload: &[], timeout, grace }, show, stop, calls).await
    }

    /// Waits for the cells before, then sends the message that begins this one, and sees it through.
    async fn take_turn(
        &self,
        message: impl FnOnce(CellId) -> ToRunner,
        given: Given<'_>,
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
        let id = CellId(turn.next_cell);
        turn.next_cell += 1;
        let Given { who, payload, timeout, grace } = given;
        let patience = Patience::new(Instant::now() + timeout, grace);
        let end = match encoded(&message(id), payload) {
            Ok(begin) => {
                let calls = UnderWay::new(id, calls, self.link.replies());
                let running = Running::new(id, who, begin, calls);
                self.attend(&mut turn, running, patience, &mut show, stop).await
            }
            Err(error) => Err(error),
        };
        match (end, who) {
            (Ok(end), Who::Interpreter(language)) => {
                match end.survived() {
                    Survived::Everything => drop(turn.alive.insert(language)),
                    Survived::Files | Survived::Nothing => drop(turn.alive.remove(&language)),
                }
                end
            }
            (Ok(end), Who::Program) => end,
            (Err(error), _) => CellEnd::SandboxEnded(self.lost(error).await),
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
                    running.check_outcome(&outcome)?;
                    let known = matches!(running.who, Who::Interpreter(of) if turn.alive.contains(&of));
                    return Ok(self.judge(running.who, outcome, fresh && known, &patience).await);
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
    async fn judge(&self, who: Who, outcome: Outcome, forgotten: bool, patience: &Patience) -> CellEnd {
        if let Some(why) = patience.stopped {
            // Whatever the code made of it: it was stopped because it had to stop.
            let survived = match (outcome, who) {
                (
                    Outcome::InterpreterKilled { .. } | Outcome::InterpreterExited { .. },
                    Who::Interpreter(_),
                ) => Survived::Files,
                _ => Survived::Everything,
            };
            return CellEnd::Stopped { why, survived };
        }
        match outcome {
            Outcome::InterpreterKilled { signal: SIGKILL, out_of_memory } => {
                match self.killed_for_memory(out_of_memory).await {
                    Some(by) => CellEnd::OutOfMemory { who, by },
                    None => CellEnd::Killed { who, signal: SIGKILL },
                }
            }
            Outcome::InterpreterKilled { signal, .. } => CellEnd::Killed { who, signal },
            Outcome::Completed {} => CellEnd::Completed { forgotten },
            Outcome::Raised { exception, message } => CellEnd::Raised { exception, message, forgotten },
            Outcome::Exited { code } => CellEnd::Exited { code, forgotten },
            Outcome::Interrupted {} => {
                CellEnd::Raised { exception: "KeyboardInterrupt".into(), message: String::new(), forgotten }
            }
            Outcome::InterpreterExited { code } => match who {
                Who::Interpreter(language) => CellEnd::InterpreterExited { language, code },
                Who::Program if code == 0 => CellEnd::Completed { forgotten },
                Who::Program => CellEnd::Exited { code, forgotten },
            },
            Outcome::Unavailable { reason } => CellEnd::Unavailable { who, reason: shown(&reason) },
        }
    }

    /// By whom something was killed for memory, as the sandbox is seen from outside, or where nothing is seen from there
    /// and the backend lets it, as its runner says.
    async fn killed_for_memory(&self, said: Option<bool>) -> Option<MemoryKiller> {
        let mut control = self.control.lock().await;
        let said = (said == Some(true) && control.trusts_runner_on_memory()).then_some(MemoryKiller::Kernel);
        control.out_of_memory().await.or(said)
    }

    /// The stream is over or cannot be trusted any more: so is the sandbox.
    async fn lost(&self, error: LinkError) -> Ending {
        let mut control = self.control.lock().await;
        let ending = if matches!(error, LinkError::Closed | LinkError::Io(_)) {
            // A runner that has only closed its stream, and lives on, is of no use.
            let patience = control.settles_within();
            wait_or_kill(&mut **control, patience).await
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

    /// Whether something of the sandbox is left that ought to have ended.
    pub async fn is_left(&self) -> bool {
        self.control.lock().await.is_left()
    }

    /// Ends the session in good order and waits until nothing of it is left.
    pub async fn stop(&self) -> Ending {
        if let Some(ending) = self.ended.get() {
            return ending.clone();
        }
        // A runner that does not read is ended below.
        let _ = tokio::time::timeout(KILL, self.link.send(&ToRunner::Bye {}, &[])).await;
        let ending = wait_or_kill(&mut **self.control.lock().await, KILL).await;
        self.ended.get_or_init(|| ending).clone()
    }
}

async fn wait_or_kill(control: &mut dyn Control, patience: Duration) -> Ending {
    match tokio::time::timeout(patience, control.wait()).await {
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

/// What a cell of either kind is given.
struct Given<'a> {
    who: Who,
    payload: &'a [u8],
    timeout: Duration,
    grace: Duration,
}

enum Event<'a> {
    Room(Place<'a>),
    Message((FromRunner, Vec<u8>)),
    Input(usize),
    Stop,
    Late,
}
