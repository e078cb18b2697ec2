//! The loop: waits for the host, for interpreters and for what they write, and does one thing at a time.

mod ends;
mod outbox;
mod turn;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cove_protocol::limits::{CHUNK, MAX_IMAGE, MAX_IMAGES};
use cove_protocol::{
    CellId, Decoder, FromRunner, Hello, ImageFormat, Interpreter as Taken, Language, Outcome, Ready, Run,
    Start, Stream, ToRunner, VERSION,
};
use rustix::process::Signal;

use self::outbox::Outbox;
use crate::calls::{self, Calls};
use crate::capture::Capture;
use crate::descendants;
use crate::files::{Files, Listed};
use crate::interpreter::{Interpreter, Received, Third, part};
use crate::memory::Memory;
use crate::process::{Process, Standard};
use crate::program;
use crate::shim::{self, FromShim};
use crate::stdin::{Ask, Input};

/// The runner's role. Ends when the host says so or goes away, and everything else in the sandbox with it: by the kernel
/// if this is its first process, else by itself.
pub fn main() -> ExitCode {
    let is_first = descendants::is_first();
    let served = prepare(is_first).and_then(|mut runner| {
        let served = runner.serve();
        if let Err(error) = &served {
            // The host may be what failed; then nobody hears this.
            let _ = runner.outbox.say(&FromRunner::Fault { message: error.to_string() }, &[]);
        }
        let _ = runner.outbox.send();
        if is_first {
            return served;
        }
        runner.calls.clear();
        served.and(descendants::end_all())
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the runner could not go on\ncaused by: {error}");
            ExitCode::FAILURE
        }
    }
}

fn prepare(is_first: bool) -> io::Result<Runner> {
    // Code inside runs as the same user: without this it could read the runner's memory and use its descriptors.
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    if !is_first {
        descendants::adopt()?;
    }
    hear_signals()?;
    Runner::new(is_first)
}

/// Whoever started Cove may ignore signals, as shells do for what runs in the background, and what is ignored stays so in
/// every program that is started: a shell could not be interrupted. What is caught here is as usual in them.
fn hear_signals() -> io::Result<()> {
    use signal_hook::consts::{
        SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU, SIGUSR1, SIGUSR2,
    };
    let heard = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU, SIGUSR1, SIGUSR2] {
        signal_hook::flag::register(signal, Arc::clone(&heard))?;
    }
    Ok(())
}

struct Runner {
    third: Third,
    children_ended: OwnedFd,
    decoder: Decoder,
    /// For reading what the host sends.
    buffer: Vec<u8>,
    received: u64,
    /// Empty until the host has said hello.
    programs: BTreeMap<Language, String>,
    interpreters: BTreeMap<Language, Interpreter>,
    input: Option<Input>,
    captures: [Capture; 2],
    files: Files,
    calls: Calls,
    memory: Memory,
    outbox: Outbox,
    cell: Option<Cell>,
}

/// The cell that runs.
struct Cell {
    id: CellId,
    by: By,
    sent: [u64; 2],
    images: usize,
    interrupted: bool,
    /// Its interpreter was started for it.
    fresh: bool,
}

/// What runs a cell.
#[derive(Clone, Copy)]
enum By {
    Interpreter(Language),
    Program(Process),
}

impl Cell {
    fn is_of(&self, language: Language) -> bool {
        matches!(self.by, By::Interpreter(of) if of == language)
    }
}

enum Go {
    On,
    Home,
}

impl Runner {
    fn new(is_first: bool) -> io::Result<Self> {
        let third = Third::reserve()?;
        let (children_ended, written) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&children_ended, true)?;
        signal_hook::low_level::pipe::register(signal_hook::consts::SIGCHLD, written)?;
        Ok(Self {
            third,
            children_ended,
            decoder: Decoder::default(),
            buffer: vec![0; CHUNK],
            received: 0,
            programs: BTreeMap::new(),
            interpreters: BTreeMap::new(),
            input: None,
            captures: [Capture::new(Stream::Stdout)?, Capture::new(Stream::Stderr)?],
            files: Files::open(&std::env::current_dir()?)?,
            calls: Calls::new(&calls::socket(is_first)),
            memory: Memory::new(),
            outbox: Outbox::default(),
            cell: None,
        })
    }

    fn serve(&mut self) -> io::Result<()> {
        loop {
            let ready = self.wait()?;
            if ready.children {
                self.drain_child_signals();
            }
            for language in ready.shims {
                self.hear(language)?;
            }
            for index in ready.captures {
                self.forward(index, CHUNK)?;
            }
            for (source, found) in ready.calls {
                self.calls.ready(source, found, &mut |said, payload| self.outbox.say(said, payload))?;
            }
            // After the shims: what one said before it died counts.
            if ready.children {
                self.reap()?;
            }
            if ready.input {
                self.fill_input()?;
            }
            if ready.host
                && let Go::Home = self.hear_host()?
            {
                return Ok(());
            }
        }
    }

    fn hear_host(&mut self) -> io::Result<Go> {
        let buffer = &mut self.buffer[..];
        let count = rustix::io::retry_on_intr(|| rustix::io::read(rustix::stdio::stdin(), &mut *buffer))?;
        if count == 0 {
            self.decoder.finish().map_err(io::Error::other)?;
            return Ok(Go::Home);
        }
        self.decoder.push(&self.buffer[..count]);
        while let Some((message, payload)) = self.decoder.next::<ToRunner>().map_err(io::Error::other)? {
            if let Go::Home = self.obey(message, payload)? {
                return Ok(Go::Home);
            }
        }
        Ok(Go::On)
    }

    fn obey(&mut self, message: ToRunner, payload: Vec<u8>) -> io::Result<Go> {
        if !matches!(message, ToRunner::Hello(_)) {
            self.received += 1;
            if self.input.is_none() {
                return Err(broken("the host spoke before it said hello"));
            }
        }
        match message {
            ToRunner::Hello(hello) => self.greet(hello)?,
            ToRunner::Run(run) => self.run(run, payload)?,
            ToRunner::Start(start) => self.start_program(start)?,
            ToRunner::Interrupt { cell } => self.signal_cell(cell, Signal::INT),
            ToRunner::Kill { cell } => self.signal_cell(cell, Signal::KILL),
            ToRunner::Input { end } => {
                if let Some(input) = &mut self.input {
                    input
                        .answer(payload, end)
                        .map_err(|_| broken("the host sent input that nobody asked for"))?;
                }
            }
            ToRunner::Put { request, path } => {
                let answer = match self.files.put(&path, &payload) {
                    Ok(bytes) => FromRunner::Stored { request, bytes },
                    Err(problem) => FromRunner::Refused { request, problem },
                };
                self.outbox.say(&answer, &[])?;
            }
            ToRunner::Get { request, path, most } => match self.files.get(&path, most) {
                Ok(content) => self.outbox.say(&FromRunner::File { request }, &content)?,
                Err(problem) => self.outbox.say(&FromRunner::Refused { request, problem }, &[])?,
            },
            ToRunner::List { request, path } => {
                let answer = match self.files.list(&path) {
                    Ok(Listed { entries, left_out }) => FromRunner::Listing { request, entries, left_out },
                    Err(problem) => FromRunner::Refused { request, problem },
                };
                self.outbox.say(&answer, &[])?;
            }
            ToRunner::Ping { nonce, received: _ } => {
                self.outbox.say(&FromRunner::Pong { nonce, received: self.received }, &[])?;
            }
            ToRunner::Reply { call } => {
                self.calls.reply(call, payload, &mut |said, payload| self.outbox.say(said, payload))?;
            }
            ToRunner::Bye {} => return Ok(Go::Home),
        }
        Ok(Go::On)
    }

    fn greet(&mut self, hello: Hello) -> io::Result<()> {
        if hello.version != VERSION {
            let message = format!("the host speaks version {}, this runner {VERSION}", hello.version);
            return Err(broken(&message));
        }
        if self.input.is_some() || hello.resume.is_some() {
            return Err(broken("this runner has one stream for its whole life and cannot resume another"));
        }
        self.input = Some(Input::new(hello.stdin)?);
        for Taken { language, program } in hello.interpreters {
            if !self.programs.contains_key(&language) && program::is_executable(program.as_ref()) {
                self.programs.insert(language, program);
            }
        }
        // Before the answer, so that the interpreter starts while the answer travels.
        if let Some(language) = hello.warm
            && self.programs.contains_key(&language)
        {
            // A failure shows when a cell asks for it.
            let _ = self.start(language);
        }
        let taken = self.programs.iter();
        let taken = taken.map(|(&language, program)| Taken { language, program: program.clone() });
        let ready = Ready { version: VERSION, interpreters: taken.collect(), received: 0 };
        self.outbox.say(&FromRunner::Ready(ready), &[])?;
        // After the answer, so that nobody waits for it.
        self.calls.listen();
        Ok(())
    }

    fn start(&mut self, language: Language) -> io::Result<()> {
        let Some(program) = self.programs.get(&language) else {
            return Err(io::Error::other(format!("{language} is not installed in this sandbox")));
        };
        let standard = self.standard()?;
        let interpreter =
            Interpreter::start(language, program, standard, self.calls.path(), &mut self.third)?;
        self.interpreters.insert(language, interpreter);
        Ok(())
    }

    /// What everything that runs cells reads and writes.
    fn standard(&self) -> io::Result<Standard> {
        let Some(input) = &self.input else { return Err(broken("the host has not said hello")) };
        Ok(Standard {
            input: input.for_child()?,
            output: self.captures[0].for_child()?,
            error: self.captures[1].for_child()?,
        })
    }

    fn run(&mut self, run: Run, code: Vec<u8>) -> io::Result<()> {
        if self.cell.is_some() {
            return Err(broken("the host sent a cell while another was running"));
        }
        self.forget_kills();
        // A warm interpreter has run nothing yet, but the host counts it as started by this session.
        let fresh = !self.interpreters.contains_key(&run.language);
        if fresh && let Err(error) = self.start(run.language) {
            let outcome = Outcome::Unavailable { reason: error.to_string() };
            return self.outbox.say(&FromRunner::Done { cell: run.cell, outcome, fresh }, &[]);
        }
        self.begin(run.cell, By::Interpreter(run.language), fresh);
        let handed = match self.interpreters.get_mut(&run.language) {
            Some(interpreter) => interpreter.run(&run.name, &code, &run.args),
            None => Ok(()),
        };
        if handed.is_err() {
            let reason = "its code has every control character, and a shell needs one that is free";
            return self.finish(Outcome::Unavailable { reason: reason.into() });
        }
        Ok(())
    }

    fn start_program(&mut self, start: Start) -> io::Result<()> {
        if self.cell.is_some() {
            return Err(broken("the host sent a program while a cell was running"));
        }
        start.check().map_err(|bad| broken(&format!("the host sent a program that cannot be: {bad}")))?;
        self.forget_kills();
        // A descriptor that cannot be made is its reason too: it may be the limit that code has used up.
        let started = match self.standard() {
            Ok(standard) => program::start(&start, standard, self.calls.path()),
            Err(error) => Err(error.to_string()),
        };
        match started {
            Ok(process) => {
                self.begin(start.cell, By::Program(process), true);
                Ok(())
            }
            Err(reason) => {
                let outcome = Outcome::Unavailable { reason };
                self.outbox.say(&FromRunner::Done { cell: start.cell, outcome, fresh: true }, &[])
            }
        }
    }

    fn begin(&mut self, id: CellId, by: By, fresh: bool) {
        self.calls.begin(id);
        self.cell = Some(Cell { id, by, sent: [0; 2], images: 0, interrupted: false, fresh });
    }

    /// Only the cell that runs: one that has just ended must not take the next one with it.
    fn signal_cell(&mut self, cell: CellId, signal: Signal) {
        if let Some(running) = self.cell.as_mut().filter(|running| running.id == cell) {
            running.interrupted = true;
            let process = match running.by {
                By::Program(process) => Some(process),
                By::Interpreter(language) => self.interpreters.get(&language).map(Interpreter::process),
            };
            if let Some(process) = process {
                process.signal(signal);
            }
        }
    }

    fn hear(&mut self, language: Language) -> io::Result<()> {
        let Some(interpreter) = self.interpreters.get_mut(&language) else { return Ok(()) };
        interpreter.flush();
        let received = interpreter.receive();
        self.heed(language)?;
        if received == Received::Closed
            && let Some(interpreter) = self.interpreters.get(&language)
        {
            // It has ended, or code has closed the channel; in both cases it is of no more use, and is reaped.
            interpreter.process().kill_alone();
            self.wait_for_end(language)?;
        }
        Ok(())
    }

    /// Acts on every whole message that has come from a shim.
    fn heed(&mut self, language: Language) -> io::Result<()> {
        while let Some(interpreter) = self.interpreters.get_mut(&language) {
            match interpreter.take() {
                Ok(Some(FromShim::Load(name))) => {
                    let text = part(language, &name).unwrap_or_default();
                    interpreter.send(shim::part(text));
                }
                Ok(Some(FromShim::Moved { process })) => interpreter.moved_to(process),
                Ok(Some(said)) => self.cell_said(language, said)?,
                Ok(None) => break,
                Err(_) => {
                    // Code has written into the shim's channel. Its interpreter cannot be driven any further.
                    interpreter.process().signal(Signal::KILL);
                    break;
                }
            }
        }
        Ok(())
    }

    fn cell_said(&mut self, language: Language, said: FromShim) -> io::Result<()> {
        let Some(cell) = self.cell.as_ref().filter(|cell| cell.is_of(language)) else { return Ok(()) };
        let outcome = match said {
            FromShim::Load(_) | FromShim::Moved { .. } => return Ok(()),
            FromShim::Image { format, bytes } => return self.forward_image(format, &bytes),
            FromShim::Completed => Outcome::Completed {},
            FromShim::Raised { exception, message } => Outcome::Raised { exception, message },
            FromShim::Exited(code) => Outcome::Exited { code },
            FromShim::Interrupted if cell.interrupted => Outcome::Interrupted {},
            // Code may raise it by itself.
            FromShim::Interrupted => {
                Outcome::Raised { exception: "KeyboardInterrupt".into(), message: String::new() }
            }
        };
        self.finish(outcome)
    }

    /// The shim counts too, and tells the code; this is for code that talks to us past its shim.
    fn forward_image(&mut self, format: ImageFormat, bytes: &[u8]) -> io::Result<()> {
        let Some(cell) = self.cell.as_mut() else { return Ok(()) };
        if cell.images == MAX_IMAGES || bytes.len() > MAX_IMAGE {
            return Ok(());
        }
        cell.images += 1;
        let image = FromRunner::Image { cell: cell.id, format };
        self.outbox.say(&image, bytes)
    }

    /// Sends what the cell had written by now, then its end.
    fn finish(&mut self, outcome: Outcome) -> io::Result<()> {
        for index in 0..self.captures.len() {
            let mut waiting = self.captures[index].waiting()?;
            while waiting > 0 {
                let count = self.forward(index, waiting)?;
                waiting = waiting.saturating_sub(count.max(1));
            }
        }
        self.calls.end(&mut |said, payload| self.outbox.say(said, payload))?;
        match self.cell.take() {
            Some(cell) => {
                self.outbox.say(&FromRunner::Done { cell: cell.id, outcome, fresh: cell.fresh }, &[])
            }
            None => Ok(()),
        }
    }

    fn forward(&mut self, index: usize, most: usize) -> io::Result<usize> {
        let mut buffer = [0u8; CHUNK];
        let capture = &self.captures[index];
        // `finish` may have emptied the pipe since it was found readable.
        let most = most.min(capture.waiting()?);
        let Some(cell) = self.cell.as_mut().filter(|_| most > 0) else { return Ok(0) };
        let bytes = capture.read(&mut buffer, most)?;
        let output = FromRunner::Output { cell: cell.id, stream: capture.stream(), offset: cell.sent[index] };
        cell.sent[index] += bytes.len() as u64;
        self.outbox.say(&output, bytes)?;
        Ok(bytes.len())
    }

    fn fill_input(&mut self) -> io::Result<()> {
        match self.input.as_mut().map(Input::fill).transpose()? {
            Some(Ask::Yes) => self.outbox.say(&FromRunner::NeedInput {}, &[]),
            Some(Ask::No) | None => Ok(()),
        }
    }
}

fn broken(message: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}
