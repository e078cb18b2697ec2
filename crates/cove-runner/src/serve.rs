//! The loop: waits for the host, for interpreters and for what they write, and does one thing at a time.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::process::ExitCode;

use cove_protocol::limits::{CHUNK, MAX_IMAGE, MAX_IMAGES};
use cove_protocol::{
    CellId, Decoder, FromRunner, Hello, ImageFormat, Language, Outcome, Ready, Run, Stream, ToRunner,
    VERSION, encode,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use crate::calls::{self, Calls};
use crate::capture::Capture;
use crate::files::{Files, Listed};
use crate::interpreter::{Interpreter, Received, Standard, Third, part};
use crate::shim::{self, FromShim};
use crate::stdin::{Ask, Input};

/// The runner's role. Ends when the host says so or goes away; the kernel then ends everything else in the sandbox.
pub fn main() -> ExitCode {
    // Code inside runs as the same user: without this it could read the runner's memory and use its descriptors.
    let hidden = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    let served = hidden.map_err(io::Error::from).and_then(|()| Runner::new()).and_then(|mut runner| {
        let served = runner.serve();
        if let Err(error) = &served {
            // The host may be what failed; then nobody hears this.
            let _ = send(&FromRunner::Fault { message: error.to_string() }, &[]);
        }
        served
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the runner could not go on\ncaused by: {error}");
            ExitCode::FAILURE
        }
    }
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
    cell: Option<Cell>,
}

/// The cell that runs.
struct Cell {
    id: CellId,
    language: Language,
    sent: [u64; 2],
    images: usize,
    interrupted: bool,
    /// Its interpreter was started for it.
    fresh: bool,
}

enum Go {
    On,
    Home,
}

impl Runner {
    fn new() -> io::Result<Self> {
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
            calls: Calls::new(calls::SOCKET.as_ref()),
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
                self.calls.ready(source, found, &mut send)?;
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

    fn wait(&self) -> io::Result<Turn> {
        enum Source {
            Host,
            Children,
            Shim(Language),
            Capture(usize),
            Input,
            Calls(calls::Source),
        }
        let mut sources = vec![Source::Host, Source::Children];
        let stdin = rustix::stdio::stdin();
        let mut fds = vec![
            PollFd::from_borrowed_fd(stdin, PollFlags::IN),
            PollFd::new(&self.children_ended, PollFlags::IN),
        ];
        for (&language, interpreter) in &self.interpreters {
            let write = if interpreter.has_to_write() { PollFlags::OUT } else { PollFlags::empty() };
            fds.push(PollFd::from_borrowed_fd(interpreter.channel(), PollFlags::IN | write));
            sources.push(Source::Shim(language));
        }
        // Between cells output waits in its pipe, and input in the host.
        if self.cell.is_some() {
            for (index, capture) in self.captures.iter().enumerate() {
                fds.push(PollFd::from_borrowed_fd(capture.readable(), PollFlags::IN));
                sources.push(Source::Capture(index));
            }
            if let Some(writable) = self.input.as_ref().and_then(Input::writable) {
                fds.push(PollFd::from_borrowed_fd(writable, PollFlags::OUT));
                sources.push(Source::Input);
            }
        }
        for (source, fd, wanted) in self.calls.sources() {
            fds.push(PollFd::from_borrowed_fd(fd, wanted));
            sources.push(Source::Calls(source));
        }
        rustix::io::retry_on_intr(|| poll(&mut fds, None))?;
        let mut turn = Turn::default();
        for (fd, source) in fds.iter().zip(sources) {
            if fd.revents().is_empty() {
                continue;
            }
            match source {
                Source::Host => turn.host = true,
                Source::Children => turn.children = true,
                Source::Shim(language) => turn.shims.push(language),
                Source::Capture(index) => turn.captures.push(index),
                Source::Input => turn.input = true,
                Source::Calls(source) => turn.calls.push((source, fd.revents())),
            }
        }
        Ok(turn)
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
                send(&answer, &[])?;
            }
            ToRunner::Get { request, path, most } => match self.files.get(&path, most) {
                Ok(content) => send(&FromRunner::File { request }, &content)?,
                Err(problem) => send(&FromRunner::Refused { request, problem }, &[])?,
            },
            ToRunner::List { request, path } => {
                let answer = match self.files.list(&path) {
                    Ok(Listed { entries, left_out }) => FromRunner::Listing { request, entries, left_out },
                    Err(problem) => FromRunner::Refused { request, problem },
                };
                send(&answer, &[])?;
            }
            ToRunner::Ping { nonce, received: _ } => {
                send(&FromRunner::Pong { nonce, received: self.received }, &[])?;
            }
            ToRunner::Reply { call } => self.calls.reply(call, payload, &mut send)?,
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
        for interpreter in hello.interpreters {
            let executable = rustix::fs::access(&interpreter.program, rustix::fs::Access::EXEC_OK).is_ok();
            if executable {
                self.programs.insert(interpreter.language, interpreter.program);
            }
        }
        // Before the answer, so that the interpreter starts while the answer travels.
        if let Some(language) = hello.warm
            && self.programs.contains_key(&language)
        {
            // A failure shows when a cell asks for it.
            let _ = self.start(language);
        }
        let languages = self.programs.keys().copied().collect();
        send(&FromRunner::Ready(Ready { version: VERSION, languages, received: 0 }), &[])?;
        // After the answer, so that nobody waits for it.
        self.calls.listen();
        Ok(())
    }

    fn start(&mut self, language: Language) -> io::Result<()> {
        let (Some(program), Some(input)) = (self.programs.get(&language), &self.input) else {
            return Err(io::Error::other(format!("{language} is not installed in this sandbox")));
        };
        let standard = Standard {
            input: input.for_child()?,
            output: self.captures[0].for_child()?,
            error: self.captures[1].for_child()?,
        };
        let interpreter = Interpreter::start(language, program, standard, &mut self.third)?;
        self.interpreters.insert(language, interpreter);
        Ok(())
    }

    fn run(&mut self, run: Run, code: Vec<u8>) -> io::Result<()> {
        if self.cell.is_some() {
            return Err(broken("the host sent a cell while another was running"));
        }
        // A warm interpreter has run nothing yet, but the host counts it as started by this session.
        let fresh = !self.interpreters.contains_key(&run.language);
        if fresh && let Err(error) = self.start(run.language) {
            let outcome = Outcome::Unavailable { reason: error.to_string() };
            return send(&FromRunner::Done { cell: run.cell, outcome, fresh }, &[]);
        }
        self.calls.begin(run.cell);
        self.cell = Some(Cell {
            id: run.cell,
            language: run.language,
            sent: [0; 2],
            images: 0,
            interrupted: false,
            fresh,
        });
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

    /// Only the cell that runs: one that has just ended must not take the next one with it.
    fn signal_cell(&mut self, cell: CellId, signal: Signal) {
        if let Some(running) = self.cell.as_mut().filter(|running| running.id == cell) {
            running.interrupted = true;
            if let Some(interpreter) = self.interpreters.get(&running.language) {
                interpreter.signal(signal);
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
            interpreter.kill_alone();
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
                    interpreter.signal(Signal::KILL);
                    break;
                }
            }
        }
        Ok(())
    }

    fn cell_said(&mut self, language: Language, said: FromShim) -> io::Result<()> {
        let Some(cell) = self.cell.as_ref().filter(|cell| cell.language == language) else { return Ok(()) };
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
        send(&image, bytes)
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
        self.calls.end(&mut send)?;
        match self.cell.take() {
            Some(cell) => send(&FromRunner::Done { cell: cell.id, outcome, fresh: cell.fresh }, &[]),
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
        send(&output, bytes)?;
        Ok(bytes.len())
    }

    fn fill_input(&mut self) -> io::Result<()> {
        match self.input.as_mut().map(Input::fill).transpose()? {
            Some(Ask::Yes) => send(&FromRunner::NeedInput {}, &[]),
            Some(Ask::No) | None => Ok(()),
        }
    }

    fn drain_child_signals(&self) {
        let mut buffer = [0u8; 64];
        while matches!(rustix::io::read(&self.children_ended, &mut buffer), Ok(count) if count > 0) {}
    }

    /// As pid 1 this process inherits every orphan of the sandbox.
    fn reap(&mut self) -> io::Result<()> {
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            self.ended(pid, status)?;
        }
        Ok(())
    }

    fn wait_for_end(&mut self, language: Language) -> io::Result<()> {
        let Some(pid) = self.interpreters.get(&language).map(Interpreter::pid) else { return Ok(()) };
        match rustix::io::retry_on_intr(|| rustix::process::waitpid(Some(pid), WaitOptions::empty())) {
            Ok(Some((pid, status))) => self.ended(pid, status),
            // Not a child of ours, or not yet: it was killed all the same.
            Ok(None) | Err(_) => {
                self.gone(language, Outcome::InterpreterKilled { signal: Signal::KILL.as_raw() })
            }
        }
    }

    fn ended(&mut self, pid: Pid, status: WaitStatus) -> io::Result<()> {
        let is_it = |(&language, found): (&Language, &Interpreter)| (found.pid() == pid).then_some(language);
        let Some(language) = self.interpreters.iter().find_map(is_it) else { return Ok(()) };
        // What it said in its last moment counts, and that may be where it has moved to.
        if let Some(interpreter) = self.interpreters.get_mut(&language) {
            while interpreter.receive() == Received::Some {}
        }
        self.heed(language)?;
        if self.interpreters.get(&language).is_some_and(|interpreter| interpreter.pid() != pid) {
            return Ok(());
        }
        self.gone(
            language,
            match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => Outcome::InterpreterExited { code },
                (None, signal) => Outcome::InterpreterKilled { signal: signal.unwrap_or(0) },
            },
        )
    }

    fn gone(&mut self, language: Language, outcome: Outcome) -> io::Result<()> {
        self.interpreters.remove(&language);
        match &self.cell {
            Some(cell) if cell.language == language => self.finish(outcome),
            _ => Ok(()),
        }
    }
}

/// What is ready in one turn of the loop.
#[derive(Default)]
struct Turn {
    host: bool,
    children: bool,
    shims: Vec<Language>,
    captures: Vec<usize>,
    input: bool,
    calls: Vec<(calls::Source, PollFlags)>,
}

fn send(message: &FromRunner, payload: &[u8]) -> io::Result<()> {
    let mut bytes = Vec::new();
    encode(message, payload, &mut bytes).map_err(io::Error::other)?;
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        let count = rustix::io::retry_on_intr(|| rustix::io::write(rustix::stdio::stdout(), rest))?;
        rest = &rest[count..];
    }
    Ok(())
}

fn broken(message: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}
