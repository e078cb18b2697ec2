//! The runner's loop: waits for the host, for interpreters, for their output and for calls, and does one thing at a
//! time.
//!
//! There is one thread, so nothing here needs a lock. The order within one turn of the loop matters instead, and is the
//! order in which `wait` returns what is ready:
//!
//! 1. Messages of shims come first. A shim reports the end of a cell on its channel after the code has written its last
//!    output, so `finish` forwards everything that is in the output pipes at that moment before it sends `Done`.
//! 2. Then output, and then calls of code. In the first moments of a cell (`OUTPUT_PAUSE`) output alone does not wake the
//!    runner, so that the output of a short cell and its end leave together; whatever else wakes it takes the output along.
//! 3. Ended processes are reaped after the shims were read, so that the last message of a dying interpreter still
//!    counts.
//! 4. Standard input and the host come last, so an `Interrupt` that has crossed a `Done` on the wire finds no cell.
//!
//! Everything for the host goes through `HostWriter`, which `wait` empties before it blocks.

mod ended_processes;
mod host_writer;
mod poll;
mod questions;
mod shim_messages;

use std::collections::BTreeMap;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use cove_protocol::limits::CHUNK;
use cove_protocol::{
    CellId, CellOutcome, CodeCell, FileProblem, FrameDecoder, FromRunner, HostHello, InterpreterPath, Language,
    OutputStream, ProgramCell, RequestId, RunnerReady, ToRunner, VERSION, WireMessage,
};
use rustix::process::Signal;

use self::host_writer::HostWriter;
use self::poll::PollSource;
use crate::authority_files;
use crate::calls::{self, CallRouter};
use crate::capture::OutputCapture;
use crate::descendants;
use crate::files::{FolderListing, WorkspaceFiles};
use crate::interpreter::{InterpreterProcess, InterpreterStart, PosixShell, ReservedDescriptor};
use crate::network_door::NetworkDoor;
use crate::oom_counter::OomCounter;
use crate::process::{CellProcess, StandardStreams};
use crate::program;
use crate::protocol_error;
use crate::session_packages::SessionPackages;
use crate::stdin::StdinPipe;

/// Runs the runner's role until the host sends `Bye` or closes the stream. Everything else in the sandbox ends with it:
/// the kernel kills it if this is the first process of the sandbox, else this process does.
///
/// Returns failure if the host broke the protocol or the stream broke.
pub fn main() -> ExitCode {
    let is_first = descendants::is_first();
    let served = prepare(is_first).and_then(|mut runner| {
        let served = runner.serve();
        if let Err(error) = &served {
            // The stream to the host may be what failed; then this message is lost.
            let _ = runner.host.push(&FromRunner::Fault { message: error.to_string() }, &[]);
        }
        let _ = runner.host.flush();
        if is_first {
            return served;
        }
        authority_files::remove();
        runner.calls.remove_socket();
        served.and(descendants::kill_all())
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the runner could not continue\ncaused by: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Protects this process from the code that it will start, and makes the runner.
fn prepare(is_first: bool) -> io::Result<Runner> {
    // Code inside runs as the same user. Without this it could read the runner's memory and use its descriptors.
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    if !is_first {
        descendants::adopt_orphans()?;
    }
    catch_signals()?;
    Runner::new(is_first)
}

/// Catches signals that the process that started Cove may ignore, as shells do for background jobs. A program inherits
/// ignored signals, and then could not be interrupted; but a signal that is caught here has its default action in the
/// programs that the runner starts.
fn catch_signals() -> io::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU, SIGUSR1, SIGUSR2};
    let caught = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU, SIGUSR1, SIGUSR2] {
        signal_hook::flag::register(signal, Arc::clone(&caught))?;
    }
    Ok(())
}

struct Runner {
    shim_descriptor: ReservedDescriptor,
    /// Becomes readable when a child has ended: the handler of SIGCHLD writes to the other end.
    children_ended: OwnedFd,
    decoder: FrameDecoder,
    /// For reading from the host.
    buffer: Vec<u8>,
    /// Counted messages of the host, for `Pong`.
    received: u64,
    /// The program for each language. Empty until the host has sent `Hello`.
    programs: BTreeMap<Language, String>,
    interpreters: BTreeMap<Language, InterpreterProcess>,
    /// What the last `sh` has left for the next one, if each cell of `sh` has a process of its own.
    shell_state: Option<Vec<u8>>,
    /// Set once the host has sent `Hello`.
    input: Option<StdinPipe>,
    captures: [OutputCapture; 2],
    files: WorkspaceFiles,
    calls: CallRouter,
    door: NetworkDoor,
    /// Variables for the environment of code.
    variables: Vec<(String, String)>,
    /// This process is the first one of the sandbox.
    is_first: bool,
    packages: SessionPackages,
    oom_counter: OomCounter,
    host: HostWriter,
    cell: Option<RunningCell>,
}

/// How long the output of a new cell may wait in its pipes for the end of the cell. Every message to the host wakes each
/// process between here and the client, which takes longer than most cells that do not end within this time.
const OUTPUT_PAUSE: Duration = Duration::from_micros(500);

/// The cell that runs now.
struct RunningCell {
    id: CellId,
    executor: CellExecutor,
    /// Until then output alone does not wake the runner. None once that time is over.
    quiet_until: Option<Instant>,
    /// Bytes of output sent so far, by stream.
    sent: [u64; 2],
    /// Images sent so far.
    images: usize,
    /// The host has sent `Interrupt` or `Kill` for this cell.
    interrupted: bool,
    /// The runner started the interpreter for this cell.
    fresh: bool,
}

/// What runs a cell.
#[derive(Clone, Copy)]
enum CellExecutor {
    Interpreter(Language),
    Program(CellProcess),
}

impl RunningCell {
    fn runs_in(&self, language: Language) -> bool {
        matches!(self.executor, CellExecutor::Interpreter(own) if own == language)
    }
}

impl Runner {
    fn new(is_first: bool) -> io::Result<Self> {
        let shim_descriptor = ReservedDescriptor::reserve()?;
        // A signal handler may do little more than write to a pipe. The loop polls the pipe and reaps.
        let (children_ended, written) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        // Non-blocking, because `reap` reads until the pipe is empty.
        rustix::io::ioctl_fionbio(&children_ended, true)?;
        signal_hook::low_level::pipe::register(signal_hook::consts::SIGCHLD, written)?;
        Ok(Self {
            shim_descriptor,
            children_ended,
            decoder: FrameDecoder::default(),
            buffer: vec![0; CHUNK],
            received: 0,
            programs: BTreeMap::new(),
            interpreters: BTreeMap::new(),
            shell_state: None,
            input: None,
            captures: [OutputCapture::new(OutputStream::Stdout)?, OutputCapture::new(OutputStream::Stderr)?],
            files: WorkspaceFiles::open(&std::env::current_dir()?)?,
            calls: CallRouter::new(&calls::socket_path(is_first)),
            door: NetworkDoor::default(),
            variables: Vec::new(),
            is_first,
            packages: SessionPackages::default(),
            oom_counter: OomCounter::new(),
            host: HostWriter::default(),
            cell: None,
        })
    }

    /// Serves until the host ends the runner. Fails if the host breaks the protocol, or on an error of the kernel.
    fn serve(&mut self) -> io::Result<()> {
        loop {
            for (source, events) in self.wait()? {
                match source {
                    PollSource::Shim(language) => self.read_shim(language)?,
                    PollSource::Capture(index) => drop(self.forward(index, CHUNK)?),
                    PollSource::Calls(source) => {
                        self.calls.handle(source, events, &mut |message, payload| self.host.push(message, payload))?;
                    }
                    PollSource::Door(source) => {
                        self.door.handle(source, events, &mut |message, payload| self.host.push(message, payload))?;
                    }
                    PollSource::Children => self.reap()?,
                    PollSource::Input => self.fill_input()?,
                    PollSource::Host => {
                        if self.read_host()?.is_break() {
                            return Ok(());
                        }
                    }
                }
            }
        }
    }

    /// Reads once from the host, and acts on every message that is whole.
    fn read_host(&mut self) -> io::Result<ControlFlow<()>> {
        let buffer = &mut self.buffer[..];
        let count = rustix::io::retry_on_intr(|| rustix::io::read(rustix::stdio::stdin(), &mut *buffer))?;
        if count == 0 {
            // The host has closed the stream, which ends the runner as `Bye` does, unless it cuts a message.
            self.decoder.finish().map_err(io::Error::other)?;
            return Ok(ControlFlow::Break(()));
        }
        self.decoder.push(&self.buffer[..count]);
        while let Some((message, payload)) = self.decoder.next::<ToRunner>().map_err(io::Error::other)? {
            if self.handle_message(message, payload)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn handle_message(&mut self, message: ToRunner, payload: Vec<u8>) -> io::Result<ControlFlow<()>> {
        if !matches!(message, ToRunner::Hello(_)) {
            self.received += 1;
            if self.input.is_none() {
                return Err(protocol_error(format!("the host sent `{}` before `hello`", message.type_name())));
            }
        }
        match message {
            ToRunner::Hello(hello) => self.open(hello)?,
            ToRunner::Run(run) => self.run(run, payload)?,
            ToRunner::Ask { request, language, question } => self.ask(request, language, question, &payload)?,
            ToRunner::Start(start) => self.start_program(start)?,
            ToRunner::Interrupt { cell } => self.signal_cell(cell, Signal::INT),
            ToRunner::Kill { cell } => self.signal_cell(cell, Signal::KILL),
            ToRunner::Input { end } => {
                if let Some(input) = &mut self.input {
                    input.accept(payload, end)?;
                }
            }
            ToRunner::Put { request, path } => {
                let stored = self.files.put(&path, &payload);
                self.answer_files(request, stored.map(|bytes| (FromRunner::Stored { request, bytes }, Vec::new())))?;
            }
            ToRunner::Get { request, path, most } => {
                let content = self.files.get(&path, most);
                self.answer_files(request, content.map(|content| (FromRunner::File { request }, content)))?;
            }
            ToRunner::List { request, path } => {
                let listing = self.files.list(&path).map(|FolderListing { entries, left_out }| {
                    (FromRunner::Listing { request, entries, left_out }, Vec::new())
                });
                self.answer_files(request, listing)?;
            }
            ToRunner::Ping { nonce, received: _ } => {
                self.host.push(&FromRunner::Pong { nonce, received: self.received }, &[])?;
            }
            ToRunner::Reply { call } => {
                self.calls.reply(call, payload, &mut |message, payload| self.host.push(message, payload))?;
            }
            ToRunner::StreamData { stream } => {
                self.door.receive(stream, &payload, &mut |message, payload| self.host.push(message, payload))?;
            }
            ToRunner::StreamCredit { stream, bytes } => self.door.add_credit(stream, bytes)?,
            ToRunner::EndStream { stream } => {
                self.door.end_stream(stream, &mut |message, payload| self.host.push(message, payload))?;
            }
            ToRunner::ResetStream { stream } => self.door.reset(stream)?,
            ToRunner::Bye {} => return Ok(ControlFlow::Break(())),
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Answers a request about files: with a message and its payload, or with the problem.
    fn answer_files(
        &mut self,
        request: RequestId,
        result: Result<(FromRunner, Vec<u8>), FileProblem>,
    ) -> io::Result<()> {
        let refuse = |problem| (FromRunner::Refused { request, problem }, Vec::new());
        let (answer, payload) = result.unwrap_or_else(refuse);
        self.host.push(&answer, &payload)
    }

    /// Opens the session: chooses an interpreter for each language, and answers `Ready`.
    fn open(&mut self, hello: HostHello) -> io::Result<()> {
        if hello.version != VERSION {
            let theirs = hello.version;
            let message = format!("the host's protocol has version {theirs}, the runner's has {VERSION}");
            return Err(protocol_error(message));
        }
        if self.input.is_some() {
            return Err(protocol_error("the host sent a second `hello`"));
        }
        if hello.resume.is_some() {
            return Err(protocol_error("the host sent a `hello` that resumes, but this runner has one stream only"));
        }
        self.input = Some(StdinPipe::new(hello.stdin)?);
        // The first executable program of each language wins.
        for InterpreterPath { language, program } in hello.interpreters {
            if !self.programs.contains_key(&language) && program::is_executable(program.as_ref()) {
                self.programs.insert(language, program);
            }
        }
        // Before any code runs, which could take the port.
        if let Some(mut network) = hello.network {
            self.variables = std::mem::take(&mut network.variables);
            let authority = network.authority.take();
            self.door.open(network);
            self.variables.extend(self.door.variables().into_iter().map(|(name, value)| (name.to_owned(), value)));
            if let Some(authority) = authority {
                let written = authority_files::write(&authority, self.is_first);
                if let Err(error) = &written {
                    let bytes = authority_files::needed_room(Path::new("/"), authority.len());
                    self.host.push(&FromRunner::NoCertificates { bytes, message: error.to_string() }, &[])?;
                }
                self.variables.extend(written?);
            }
            let (python, search) = (self.programs.get(&Language::Python), std::env::var_os("PATH"));
            self.packages = SessionPackages::prepare(&std::env::current_dir()?, python.map(String::as_str), search);
            let own = self.packages.variables().iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
            self.variables.extend(own);
        }
        // Before the answer, so that the interpreter starts while the answer travels.
        if let Some(language) = hello.warm
            && self.programs.contains_key(&language)
        {
            // If this fails, the first cell tries again and reports the failure.
            let _ = self.start_interpreter(language);
        }
        let chosen = self.programs.iter();
        let chosen = chosen.map(|(&language, program)| InterpreterPath { language, program: program.clone() });
        let ready = RunnerReady {
            version: VERSION,
            interpreters: chosen.collect(),
            received: 0,
            proxy_port: self.door.proxy_port(),
            name_door: self.door.answers_names(),
        };
        self.host.push(&FromRunner::Ready(ready), &[])?;
        // After the answer, so that the host does not wait for it.
        self.calls.listen();
        Ok(())
    }

    /// Starts the interpreter of a language. Fails if it is not installed or the kernel refuses.
    fn start_interpreter(&mut self, language: Language) -> io::Result<()> {
        let Some(program) = self.programs.get(&language) else {
            return Err(io::Error::other(format!("{language} is not installed in this sandbox")));
        };
        let streams = self.standard_streams()?;
        // Bash keeps the state of `sh` cells better than any other sh can.
        let bash = self.programs.get(&Language::Bash).filter(|_| language == Language::Sh);
        let start = InterpreterStart {
            language,
            program: self.packages.start_path(bash.unwrap_or(program)),
            shell: if bash.is_some() { PosixShell::Bash } else { PosixShell::Other },
            socket: self.calls.path(),
            variables: &self.variables,
            shell_state: self.shell_state.as_deref().filter(|_| language == Language::Sh),
        };
        let interpreter = InterpreterProcess::start(start, streams, &mut self.shim_descriptor)?;
        self.interpreters.insert(language, interpreter);
        Ok(())
    }

    /// Returns copies of the pipes that every interpreter and program reads and writes.
    fn standard_streams(&self) -> io::Result<StandardStreams> {
        let Some(input) = &self.input else { return Err(protocol_error("the host has not sent `hello`")) };
        Ok(StandardStreams {
            input: input.for_child()?,
            output: self.captures[0].for_child()?,
            error: self.captures[1].for_child()?,
        })
    }

    /// Gives a cell of code to the interpreter of its language, which it starts if need be.
    fn run(&mut self, run: CodeCell, code: Vec<u8>) -> io::Result<()> {
        self.refuse_second_cell("run", run.cell)?;
        self.oom_counter.reset();
        // A warm interpreter is not fresh, although it has run nothing yet: the session has started it, not this cell.
        let interpreter = self.interpreters.get_mut(&run.language);
        let fresh = interpreter.is_none_or(|interpreter| std::mem::take(&mut interpreter.for_question))
            && (run.language != Language::Sh || self.shell_state.is_none());
        if !self.interpreters.contains_key(&run.language)
            && let Err(error) = self.start_interpreter(run.language)
        {
            let outcome = CellOutcome::Unavailable { reason: error.to_string() };
            return self.host.push(&FromRunner::Done { cell: run.cell, outcome, fresh }, &[]);
        }
        self.begin(run.cell, CellExecutor::Interpreter(run.language), fresh);
        if let Some(interpreter) = self.interpreters.get_mut(&run.language)
            && interpreter.run(&run.name, &code, &run.args).is_err()
        {
            let reason = "its code uses every control character, and a shell needs one that is unused";
            return self.finish(CellOutcome::Unavailable { reason: reason.into() });
        }
        Ok(())
    }

    /// Starts a program as a cell. One that cannot be started ends the cell as `Unavailable`.
    fn start_program(&mut self, start: ProgramCell) -> io::Result<()> {
        self.refuse_second_cell("start", start.cell)?;
        let bad = |error| protocol_error(format!("the host sent a bad `start` for cell {}: {error}", start.cell));
        start.check().map_err(bad)?;
        self.oom_counter.reset();
        // Failing to copy a descriptor is such a reason too: code may have used up the limit.
        let streams = self.standard_streams().map_err(|error| error.to_string());
        match streams.and_then(|streams| program::start(&start, streams, self.calls.path(), &self.variables)) {
            Ok(process) => {
                self.begin(start.cell, CellExecutor::Program(process), true);
                Ok(())
            }
            Err(reason) => {
                let outcome = CellOutcome::Unavailable { reason };
                self.host.push(&FromRunner::Done { cell: start.cell, outcome, fresh: true }, &[])
            }
        }
    }

    /// Fails if a cell runs: the host may send the next one only after `Done`.
    fn refuse_second_cell(&self, message: &str, cell: CellId) -> io::Result<()> {
        let Some(RunningCell { id, .. }) = &self.cell else { return Ok(()) };
        Err(protocol_error(format!("the host sent `{message}` for cell {cell} while cell {id} was running")))
    }

    fn begin(&mut self, id: CellId, executor: CellExecutor, fresh: bool) {
        self.calls.begin(id);
        self.door.begin(id);
        let quiet_until = Some(Instant::now() + OUTPUT_PAUSE);
        self.cell = Some(RunningCell { id, executor, quiet_until, sent: [0; 2], images: 0, interrupted: false, fresh });
    }

    /// Signals the process that runs `cell`, if that cell still runs: a late interrupt must not hit the next cell.
    fn signal_cell(&mut self, cell: CellId, signal: Signal) {
        if let Some(running) = self.cell.as_mut().filter(|running| running.id == cell) {
            running.interrupted = true;
            let process = match running.executor {
                CellExecutor::Program(process) => Some(process),
                CellExecutor::Interpreter(language) => self.interpreters.get(&language).map(|one| one.process),
            };
            if let Some(process) = process {
                process.signal(signal);
            }
        }
    }

    /// Sends the output that the cell has written so far, then the end of its calls, then `Done`.
    fn finish(&mut self, outcome: CellOutcome) -> io::Result<()> {
        for index in 0..self.captures.len() {
            // Measured once: a background process that keeps writing must not keep the cell from ending.
            let mut waiting = self.captures[index].waiting()?;
            while waiting > 0 {
                let count = self.forward(index, waiting)?;
                waiting = waiting.saturating_sub(count.max(1));
            }
        }
        self.calls.end(&mut |message, payload| self.host.push(message, payload))?;
        self.door.end(&mut |message, payload| self.host.push(message, payload))?;
        let Some(cell) = self.cell.take() else { return Ok(()) };
        // If the kernel has killed the process of the cell itself, its outcome says so and the counter has been read.
        if self.oom_counter.has_killed() == Some(true) {
            self.host.push(&FromRunner::MemoryKill { cell: cell.id }, &[])?;
        }
        self.host.push(&FromRunner::Done { cell: cell.id, outcome, fresh: cell.fresh }, &[])
    }

    /// Sends at most `most` bytes of one output pipe to the host. Returns how many; 0 without a cell, so that output
    /// waits in its pipe for the next one.
    fn forward(&mut self, index: usize, most: usize) -> io::Result<usize> {
        let Some(cell) = self.cell.as_mut() else { return Ok(0) };
        let capture = &self.captures[index];
        // `finish` may have emptied the pipe since `poll` found it readable.
        let most = most.min(capture.waiting()?);
        if most == 0 {
            return Ok(0);
        }
        let bytes = capture.read(&mut self.buffer, most)?;
        let output = FromRunner::Output { cell: cell.id, stream: capture.stream(), offset: cell.sent[index] };
        cell.sent[index] += bytes.len() as u64;
        self.host.push(&output, bytes)?;
        Ok(bytes.len())
    }

    fn fill_input(&mut self) -> io::Result<()> {
        if let Some(input) = &mut self.input
            && input.fill()?
        {
            self.host.push(&FromRunner::NeedInput {}, &[])?;
        }
        Ok(())
    }
}
