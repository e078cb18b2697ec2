//! A session: one sandbox, its variables and files, and the cells that run in it one after another. Files can be moved
//! while a cell runs. A session does not know which backend made its sandbox.
//!
//! Turns: a cell first takes one of the `waiting_slots` and keeps it until it ends; without a free slot it is refused.
//! Then it locks `turn`, which serves cells in the order in which they asked. The holder of `turn` is the only reader
//! of the runner's cell messages and the only writer of `CellTurn`. A cell whose `stop` resolves before it has the turn
//! never reaches the runner. Its deadline counts from the moment it gets the turn; `clock` says when that time stands
//! still.
//!
//! The end: `kill`, `stop` and `end_after_link_error` wait for the sandbox through `control`, then set `ended`; the
//! first of them decides its value and the others return that value. `take_turn` reads `ended` after it gets the turn,
//! so a cell that waited while the sandbox ended reports that end and sends nothing.

pub mod calls;
pub mod cell;
pub mod clock;
#[cfg(any(test, fuzzing))]
#[path = "../tests/exercise/session.rs"]
pub mod exercise;
pub mod files;
mod questions;
pub mod registry;
mod running_cell;
mod warm_up;

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cove_protocol::limits::CHUNK;
use cove_protocol::{
    CallId, CellId, CellOutcome, CodeCell, FromRunner, HostHello, InterpreterPath, Language, NetworkSetup, ProgramCell,
    StdinSource, ToRunner, VERSION,
};
use tokio::io::AsyncRead;
use tokio::sync::{Mutex, Semaphore};
use tokio::time::{Instant, sleep_until};

use crate::backend::{Backend, ImageCommand, MemoryKiller, SandboxControl, SandboxEnd, SandboxOwner};
use crate::error::{Failure, display_value};
use crate::guest_streams::SessionNetwork;
use crate::link::{CellMessages, Link, LinkError, SendPermit, encode_frame};
use crate::output::CellOutput;
use crate::policy::{ImageRecipe, Policy, SandboxRoot};
use crate::units::{MIB, show_size};

use calls::CellCalls;
use running_cell::{RunningCell, SessionInput, StopLadder, StopStep};

pub use calls::{CallHandler, NoCalls, UnknownName};
pub use cell::{Cell, CellEnd, CellProcess, CellRequest, ProgramRun, StopReason, SurvivingState};
pub use clock::{CallingCell, CellClock};
pub use warm_up::{IMPORT_TIMEOUT, PreloadFault, ReadyStartError};

/// How long a runner may take to start and to send `Ready`.
const START_TIMEOUT: Duration = Duration::from_secs(20);
const SIGKILL: i32 = 9;
/// How long a killed interpreter may take to exit before the session kills the whole sandbox, and how long a sandbox
/// may take to end after `Bye`.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// Cells of one session that may run or wait for their turn.
const MAX_WAITING_CELLS: usize = 16;

pub struct Session {
    link: Link,
    languages: Vec<Language>,
    /// The interpreters that the runner chose from those that the backend offered.
    interpreters: Vec<InterpreterPath>,
    image_command: Option<ImageCommand>,
    image_id: Option<String>,
    /// The runner answers no names, although rules name some.
    lacks_name_door: bool,
    /// The image of the sandbox.
    recipe: Option<ImageRecipe>,
    /// Locked by the running cell; other cells queue for it in order.
    turn: Mutex<CellTurn>,
    waiting_slots: Semaphore,
    control: Mutex<Box<dyn SandboxControl>>,
    /// Set once, by the first of `kill`, `stop` and `end_after_link_error` that sees the sandbox end.
    ended: OnceLock<SandboxEnd>,
}

/// State that only the running cell may use.
struct CellTurn {
    messages: CellMessages,
    next_cell: u64,
    last_call: CallId,
    /// Languages whose interpreter has run a cell and, as far as the session knows, still has its variables. If the
    /// runner reports a fresh interpreter for one of them, the cell's end says that the variables were lost.
    live_interpreters: BTreeSet<Language>,
    input: SessionInput,
}

/// How to start a session, besides its policy.
#[derive(Default)]
pub struct SessionOptions {
    /// The standard input of the code; empty if not set.
    pub input: Option<Box<dyn AsyncRead + Send + Unpin>>,
    /// An interpreter to start along with the sandbox.
    pub warm_language: Option<Language>,
    /// The labels that the backend puts on the sandbox.
    pub owner: SandboxOwner,
    /// The network of the session, if the host keeps something for it.
    pub network: Option<SessionNetwork>,
}

/// Returns the error for a session whose certificates could not be written, or would not fit: they need this many bytes of the
/// `tmp` that there are.
pub fn certificates_failure(bytes: u64, tmp: u64) -> Failure {
    let failed = "could not write the certificates of a session, which its rules about the network need";
    let hint = match tmp < bytes {
        true => {
            let enough = show_size(bytes.div_ceil(MIB).saturating_mul(MIB));
            format!("set `tmp-size` to at least `{enough}`; it is `{}`", show_size(tmp))
        }
        false => "the sandbox's `/tmp` must be writable and have room".to_owned(),
    };
    Failure::operator(failed).with_hint(hint)
}

impl Session {
    /// Starts a sandbox and waits until its runner is ready. Fails if the backend refuses the policy, or if the runner
    /// does not answer within `START_TIMEOUT` or breaks the protocol; the sandbox is killed then.
    pub async fn start(backend: &dyn Backend, policy: &Policy, options: SessionOptions) -> Result<Self, Failure> {
        let mut sandbox = backend.start(policy, &options.owner).await?;
        let network = options.network;
        let hello = HostHello {
            version: VERSION,
            stdin: if options.input.is_some() { StdinSource::Host } else { StdinSource::Empty },
            interpreters: sandbox.interpreters,
            warm: options.warm_language,
            network: policy.network_setup().map(|setup| match &network {
                Some(SessionNetwork { authority, variables, .. }) => {
                    NetworkSetup { authority: authority.clone(), variables: variables.clone(), ..setup }
                }
                None => setup,
            }),
            resume: None,
        };
        let opened = tokio::time::timeout(START_TIMEOUT, Link::open(sandbox.stream, hello, network)).await;
        let failed = Failure::operator("could not reach the runner in the sandbox");
        match opened {
            Ok(Ok((link, messages, ready))) => Ok(Self {
                link,
                languages: ready.interpreters.iter().map(|taken| taken.language).collect(),
                interpreters: ready.interpreters,
                image_command: sandbox.image_command,
                image_id: sandbox.image_id,
                lacks_name_door: policy.reachable_names().next().is_some() && !ready.name_door,
                recipe: match &policy.root {
                    SandboxRoot::Image(recipe) => Some(recipe.clone()),
                    SandboxRoot::Host | SandboxRoot::Tree(_) => None,
                },
                turn: Mutex::new(CellTurn {
                    messages,
                    next_cell: 1,
                    last_call: CallId(0),
                    live_interpreters: BTreeSet::new(),
                    input: SessionInput::new(options.input),
                }),
                waiting_slots: Semaphore::new(MAX_WAITING_CELLS),
                control: Mutex::new(sandbox.control),
                ended: OnceLock::new(),
            }),
            Ok(Err(error)) => {
                if let Some(failure) = sandbox.control.start_failure().await {
                    return Err(failure);
                }
                sandbox.control.kill();
                let ending = sandbox.control.wait().await;
                if let LinkError::NoCertificates { bytes, message } = error {
                    return Err(certificates_failure(bytes, policy.limits.tmp).because(message));
                }
                Err(failed.because(format!("{error}; the sandbox {}", cell::describe_end(&ending))))
            }
            Err(_) => {
                sandbox.control.kill();
                Err(failed.because(format!("it did not answer within {} s", START_TIMEOUT.as_secs())))
            }
        }
    }

    pub fn languages(&self) -> &[Language] {
        &self.languages
    }

    /// Returns why a language is not available in this session.
    pub fn unavailable_reason(&self, language: Language) -> String {
        match &self.recipe {
            // An image whose recipe names no language offers all that it has.
            Some(ImageRecipe { name, languages, .. }) if !languages.is_empty() && !languages.contains(&language) => {
                let languages: Vec<&str> = languages.iter().map(|language| language.as_str()).collect();
                format!(
                    "the image `{name}` does not offer {language}: `languages` in its `image.toml` has {}",
                    languages.join(", ")
                )
            }
            _ => format!("{language} is not installed in this sandbox"),
        }
    }

    /// Returns the path of a language's interpreter inside the sandbox, or None if it has none.
    pub fn interpreter_path(&self, language: Language) -> Option<&str> {
        let known = self.interpreters.iter().find(|known| known.language == language)?;
        Some(known.program.as_str())
    }

    /// Returns the command that the image runs by default, or None if the session has no image.
    pub fn image_command(&self) -> Option<&ImageCommand> {
        self.image_command.as_ref()
    }

    /// Returns the id of the image that the sandbox has, as `Backend::prepare` returns it.
    pub fn image_id(&self) -> Option<&str> {
        self.image_id.as_deref()
    }

    /// Returns what code must know of the network of this sandbox, if it lacks something.
    pub fn network_notice(&self) -> Option<&'static str> {
        self.lacks_name_door.then_some(
            "this sandbox answers no host names: programs reach the network only if they obey the variables that name a \
             proxy",
        )
    }

    /// Returns how the sandbox ended, or None if the session has not noticed an end. Does not ask the sandbox.
    pub fn sandbox_end(&self) -> Option<&SandboxEnd> {
        self.ended.get()
    }

    /// False only if the sandbox runs. Does not wait for the sandbox, and returns true while another task asks the sandbox.
    pub fn may_have_ended(&self) -> bool {
        self.ended.get().is_some() || self.control.try_lock().map_or(true, |control| control.may_have_ended())
    }

    /// True if the sandbox still runs. Asks the sandbox itself.
    pub async fn is_alive(&self) -> bool {
        let mut control = self.control.lock().await;
        // A timeout takes a tick of the runtime's clock, a millisecond, however short it is.
        let patience = control.notice_time();
        self.ended.get().is_none()
            && (!control.may_have_ended() || tokio::time::timeout(patience, control.wait()).await.is_err())
    }

    /// Does the same as `run_with_calls`, and answers every call with an error.
    pub async fn run(&self, cell: Cell, show: impl FnMut(CellOutput<'_>), stop: impl Future<Output = ()>) -> CellEnd {
        self.run_with_calls(cell, show, stop, Arc::new(NoCalls)).await
    }

    /// Waits for earlier cells, runs this one and returns how it ended. `show` gets the output and the images of the
    /// code as they arrive. When `stop` resolves, the cell is interrupted as at its deadline. `calls` answers the calls
    /// that the code makes to the host. A program gets the session's standard input; its cell ends when it exits, and
    /// its exit code decides how.
    pub async fn run_with_calls(
        &self,
        request: impl Into<CellRequest>,
        mut show: impl FnMut(CellOutput<'_>),
        stop: impl Future<Output = ()>,
        calls: Arc<dyn CallHandler>,
    ) -> CellEnd {
        let request = request.into();
        let who = request.process();
        if let Some(reason) = self.reason_against(&request) {
            return CellEnd::Unavailable { who, reason };
        }
        let mut stop = std::pin::pin!(stop);
        let Ok(_waiting) = self.waiting_slots.try_acquire() else {
            return CellEnd::Refused { waiting: MAX_WAITING_CELLS };
        };
        let mut turn = tokio::select! {
            // `stop` comes first, so that a cancelled cell does not begin even if the turn is free.
            biased;
            () = stop.as_mut() => {
                return CellEnd::Stopped { reason: StopReason::Cancelled, survived: SurvivingState::Everything };
            }
            turn = self.turn.lock() => turn,
        };
        if let Some(ending) = self.ended.get() {
            return CellEnd::SandboxEnded(ending.clone());
        }
        let id = CellId(turn.next_cell);
        turn.next_cell += 1;
        let (timeout, grace) = request.time_limits();
        let ladder = StopLadder::new(Instant::now() + timeout, grace);
        let begin = match request {
            CellRequest::Code(Cell { language, name, code, args, .. }) => {
                encode_frame(&ToRunner::Run(CodeCell { cell: id, language, name, args }), code.as_bytes())
            }
            CellRequest::Program(ProgramRun { command, directory, .. }) => {
                encode_frame(&ToRunner::Start(ProgramCell { cell: id, command, directory }), &[])
            }
        };
        let end = match begin {
            Ok(begin) => {
                let calls = CellCalls::new(id, calls, self.link.reply_sender());
                let running = RunningCell::new(id, who, begin, calls);
                self.drive_cell(&mut turn, running, ladder, &mut show, stop).await
            }
            Err(error) => Err(error),
        };
        match (end, who) {
            (Ok(end), CellProcess::Interpreter(language)) => {
                match end.survived() {
                    SurvivingState::Everything => turn.live_interpreters.insert(language),
                    SurvivingState::Files | SurvivingState::Nothing => turn.live_interpreters.remove(&language),
                };
                end
            }
            (Ok(end), CellProcess::Program) => end,
            (Err(error), _) => CellEnd::SandboxEnded(self.end_after_link_error(error).await),
        }
    }

    /// Returns why this session cannot run a cell, or None if it can.
    fn reason_against(&self, request: &CellRequest) -> Option<String> {
        match request {
            CellRequest::Code(cell) if self.languages.contains(&cell.language) => None,
            CellRequest::Code(cell) => Some(self.unavailable_reason(cell.language)),
            CellRequest::Program(ProgramRun { command, directory, .. }) => {
                let start = ProgramCell { cell: CellId(0), command: command.clone(), directory: directory.clone() };
                start.check().err().map(|error| error.to_string())
            }
        }
    }

    /// Handles the messages, the input and the deadline of the running cell until it ends. Fails if the link breaks or
    /// the runner violates the protocol. Messages to the runner wait in `running.to_send` until the link has room, so
    /// that this loop never stops reading: host and runner cannot both wait for the other to read.
    async fn drive_cell(
        &self,
        turn: &mut CellTurn,
        mut running: RunningCell,
        mut ladder: StopLadder,
        show: &mut impl FnMut(CellOutput<'_>),
        mut stop: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<CellEnd, LinkError> {
        let mut may_stop = true;
        let mut piece = vec![0; CHUNK];
        loop {
            let may_read = running.accepts_input(&turn.input);
            let event = tokio::select! {
                // Messages come before the deadline: a cell that ended in time is not late because the host was.
                biased;
                place = self.link.reserve(), if !running.to_send.is_empty() => CellEvent::CanSend(place?),
                message = turn.messages.next() => CellEvent::Message(message?),
                read = turn.input.read(&mut piece), if may_read => CellEvent::Input(read),
                () = stop.as_mut(), if may_stop => CellEvent::Stop,
                () = running.calls.clock().pass(ladder.next_step_at), if ladder.stop_reason.is_none() => {
                    CellEvent::DeadlinePassed
                }
                () = sleep_until(ladder.next_step_at), if ladder.stop_reason.is_some() => CellEvent::DeadlinePassed,
            };
            match event {
                CellEvent::Message((FromRunner::Output { cell, stream, offset }, bytes)) => {
                    running.check_output(cell, stream, offset, bytes.len())?;
                    show(CellOutput::Text(stream, &bytes));
                }
                CellEvent::Message((FromRunner::Image { cell, format }, bytes)) => {
                    running.check_image(cell, bytes.len())?;
                    show(CellOutput::Image(format, &bytes));
                }
                CellEvent::Message((FromRunner::Call { cell, call }, request)) => {
                    running.calls.begin(cell, call, request, &mut turn.last_call)?;
                }
                CellEvent::Message((FromRunner::Forget { call }, _)) => {
                    running.calls.forget(call, turn.last_call)?;
                }
                CellEvent::Message((FromRunner::NeedInput {}, _)) => turn.input.request()?,
                CellEvent::Message((FromRunner::MemoryKill { cell }, _)) => {
                    if cell != running.id || std::mem::replace(&mut running.reports_memory_kill, true) {
                        return Err(LinkError::Protocol("it reported a memory kill of no cell, or twice"));
                    }
                }
                CellEvent::Message((FromRunner::OpenStream { cell, stream, .. }, _)) => {
                    running.calls.serve_stream(cell, self.link.take_stream(stream))?;
                }
                CellEvent::Message((FromRunner::UnknownName { cell, name }, _)) => {
                    running.calls.report_name(cell, UnknownName::One(name), self.link.traffic())?;
                }
                CellEvent::Message((FromRunner::MoreUnknownNames { cell, count }, _)) => {
                    running.calls.report_name(cell, UnknownName::More(count), self.link.traffic())?;
                }
                CellEvent::Message((FromRunner::Done { cell, outcome, fresh }, _)) => {
                    if cell != running.id {
                        return Err(LinkError::Protocol("it ended a cell that does not run"));
                    }
                    running.check_outcome(&outcome)?;
                    running.calls.end_streams().await;
                    let known =
                        matches!(running.process, CellProcess::Interpreter(of) if turn.live_interpreters.contains(&of));
                    let killed = running.reports_memory_kill;
                    return Ok(self.classify_end(running.process, outcome, fresh && known, killed, &ladder).await);
                }
                CellEvent::Message(_) => return Err(LinkError::Protocol("it sent an unexpected message")),
                CellEvent::CanSend(place) => {
                    if let Some(bytes) = running.to_send.pop_front() {
                        place.send(bytes);
                    }
                }
                CellEvent::Input(count) => {
                    running.send(&ToRunner::Input { end: count == 0 }, &piece[..count])?;
                }
                CellEvent::Stop => {
                    may_stop = false;
                    ladder.stop(StopReason::Cancelled);
                    running.calls.stop();
                    running.send(&ToRunner::Interrupt { cell: running.id }, &[])?;
                }
                CellEvent::DeadlinePassed => match ladder.advance() {
                    StopStep::Interrupt | StopStep::InterruptAgain => {
                        running.calls.stop();
                        running.send(&ToRunner::Interrupt { cell: running.id }, &[])?;
                    }
                    StopStep::KillInterpreter => running.send(&ToRunner::Kill { cell: running.id }, &[])?,
                    StopStep::EndSandbox => {
                        let why = ladder.stop_reason.unwrap_or(StopReason::Deadline);
                        self.kill().await;
                        return Ok(CellEnd::Stopped { reason: why, survived: SurvivingState::Nothing });
                    }
                },
            }
        }
    }

    /// Returns how the cell ended, from the runner's outcome and from what the session did to stop it.
    async fn classify_end(
        &self,
        who: CellProcess,
        outcome: CellOutcome,
        forgotten: bool,
        reports_memory_kill: bool,
        ladder: &StopLadder,
    ) -> CellEnd {
        let new_killer = self.new_memory_killer(reports_memory_kill).await;
        if let Some(why) = ladder.stop_reason {
            // A stopped cell counts as stopped, even if the code caught the interrupt and completed.
            let survived = match (outcome, who) {
                (
                    CellOutcome::InterpreterKilled { .. } | CellOutcome::InterpreterExited { .. },
                    CellProcess::Interpreter(_),
                ) => SurvivingState::Files,
                _ => SurvivingState::Everything,
            };
            return CellEnd::Stopped { reason: why, survived };
        }
        match outcome {
            CellOutcome::InterpreterKilled { signal: SIGKILL, out_of_memory } => {
                match new_killer.or(self.memory_killer(out_of_memory).await) {
                    Some(by) => CellEnd::OutOfMemory { who, killer: by },
                    None => CellEnd::Killed { process: who, signal: SIGKILL },
                }
            }
            CellOutcome::InterpreterKilled { signal, .. } => CellEnd::Killed { process: who, signal },
            CellOutcome::Completed {} => CellEnd::Completed { forgotten },
            CellOutcome::Raised { exception, message } => CellEnd::Raised { exception, message, forgotten },
            CellOutcome::Exited { code } => CellEnd::Exited { code, forgotten },
            CellOutcome::Interrupted {} => {
                CellEnd::Raised { exception: "KeyboardInterrupt".into(), message: String::new(), forgotten }
            }
            CellOutcome::InterpreterExited { code } => match who {
                CellProcess::Interpreter(language) => CellEnd::InterpreterExited { language, code },
                CellProcess::Program if code == 0 => CellEnd::Completed { forgotten },
                CellProcess::Program => CellEnd::Exited { code, forgotten },
            },
            CellOutcome::Unavailable { reason } => CellEnd::Unavailable { who, reason: display_value(&reason) },
        }
        .after_memory_kill(new_killer)
    }

    /// Returns what has killed a process for lack of memory since the last cell, or None if nothing did. The runner's
    /// report counts as in `memory_killer`.
    async fn new_memory_killer(&self, reported: bool) -> Option<MemoryKiller> {
        let mut control = self.control.lock().await;
        let reported = (reported && control.trusts_runner_on_memory()).then_some(MemoryKiller::Kernel);
        control.new_memory_killer().await.or(reported)
    }

    /// Returns what killed a process for lack of memory, or None if nothing did. Asks the backend first. The runner's
    /// report counts only if the backend knows nothing and trusts its runner.
    async fn memory_killer(&self, said: Option<bool>) -> Option<MemoryKiller> {
        let mut control = self.control.lock().await;
        let said = (said == Some(true) && control.trusts_runner_on_memory()).then_some(MemoryKiller::Kernel);
        control.memory_killer().await.or(said)
    }

    /// Ends the sandbox after the link failed, and returns how it ended. After a protocol violation the sandbox is
    /// killed at once.
    async fn end_after_link_error(&self, error: LinkError) -> SandboxEnd {
        let mut control = self.control.lock().await;
        let ending = if matches!(error, LinkError::Closed | LinkError::Io(_)) {
            // A runner that closed its stream but still runs is of no use, so it is killed after the timeout.
            let timeout = control.exit_timeout();
            wait_or_kill(&mut **control, timeout).await
        } else {
            control.kill();
            control.wait().await;
            SandboxEnd::Lost(error.to_string())
        };
        self.ended.get_or_init(|| ending).clone()
    }

    /// Kills the sandbox, waits until it has ended and returns how.
    pub async fn kill(&self) -> SandboxEnd {
        let mut control = self.control.lock().await;
        control.kill();
        let ending = control.wait().await;
        self.ended.get_or_init(|| ending).clone()
    }

    /// True if the sandbox has ended but its backend could not remove all of it yet.
    pub async fn has_leftovers(&self) -> bool {
        self.control.lock().await.has_leftovers()
    }

    /// Asks the runner to exit, kills the sandbox if it does not within `KILL_TIMEOUT`, and returns how it ended.
    pub async fn stop(&self) -> SandboxEnd {
        if let Some(ending) = self.ended.get() {
            return ending.clone();
        }
        // A runner that does not read `Bye` is killed below.
        let _ = tokio::time::timeout(KILL_TIMEOUT, self.link.send(&ToRunner::Bye {}, &[])).await;
        let ending = wait_or_kill(&mut **self.control.lock().await, KILL_TIMEOUT).await;
        self.ended.get_or_init(|| ending).clone()
    }
}

/// Waits for the sandbox to end and kills it after `timeout`. Returns how it ended.
async fn wait_or_kill(control: &mut dyn SandboxControl, timeout: Duration) -> SandboxEnd {
    match tokio::time::timeout(timeout, control.wait()).await {
        Ok(ending) => ending,
        Err(_) => {
            control.kill();
            control.wait().await
        }
    }
}

enum CellEvent<'a> {
    CanSend(SendPermit<'a>),
    Message((FromRunner, Vec<u8>)),
    Input(usize),
    Stop,
    DeadlinePassed,
}
