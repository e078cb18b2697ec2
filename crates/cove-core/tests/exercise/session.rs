//! What holds for a session, whatever its runner sends and in whatever order: every cell ends, output reaches only the
//! cell that it belongs to, the host answers each call at most once, and a runner that breaks the protocol loses its
//! sandbox and nothing else.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cove_protocol::limits::MAX_IMAGES;
use cove_protocol::{
    CallId, CellId, CellOutcome, CodeQuestion, FrameDecoder, FromRunner, ImageFormat, InterpreterPath, Language,
    OutputStream, RequestId, RunnerReady, ToRunner, VERSION, encode,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

use super::calls::{CallHandler, error_reply};
use super::{CallingCell, Cell, CellEnd, Session, SessionOptions};
use crate::BoxFuture;
use crate::backend::{Backend, MemoryKiller, PlanFormat, Sandbox, SandboxControl, SandboxEnd, SandboxOwner};
use crate::error::Failure;
use crate::output::CellOutput;
use crate::policy::{Policy, SandboxLimits, SandboxUser};
use crate::sync::lock;

const CELLS: u64 = 3;
/// Longer than a cell and all its steps of stopping may take.
const MAX_CELL: Duration = Duration::from_secs(60);

/// Takes the bytes as a script for a runner, runs a few cells on it, and panics where the session breaks a promise.
pub fn exercise(bytes: &[u8]) {
    let script = bytes.to_vec();
    paused_runtime().block_on(run_cells(script));
}

/// A runtime whose clock jumps to the next timer, so that no input waits for one.
fn paused_runtime() -> Runtime {
    Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime can be built")
}

async fn run_cells(script: Vec<u8>) {
    let heard = Arc::new(Mutex::new(HeardMessages::default()));
    let backend = ScriptedBackend { script, heard: Arc::clone(&heard) };
    let options = SessionOptions { input: Some(Box::new(&b"some input"[..])), ..SessionOptions::default() };
    let Ok(session) = Session::start(&backend, &policy(), options).await else { return };
    for number in 1..=CELLS {
        let (mut text, mut images) = (Vec::new(), 0);
        let show = |shown: CellOutput<'_>| match shown {
            CellOutput::Text(_, bytes) => text.extend_from_slice(bytes),
            CellOutput::Image(..) => images += 1,
        };
        let calls = Arc::new(CountingCalls(Arc::clone(&heard)));
        let cell = session.run_with_calls(cell(), show, std::future::pending(), calls);
        let end = tokio::time::timeout(MAX_CELL, cell).await.expect("every cell ends");
        assert!(images <= MAX_IMAGES, "{images} images were shown");
        // The script writes the number of its cell.
        let foreign = text.iter().find(|byte| u64::from(**byte) != number);
        assert_eq!(foreign, None, "output of another cell is in cell {number}");
        let known = session.sandbox_end().cloned();
        match (&end, &known) {
            (CellEnd::SandboxEnded(end), Some(known)) => assert_eq!(end, known),
            (CellEnd::SandboxEnded(end), None) => panic!("the session does not know of {end:?}"),
            _ => {}
        }
        session.ask(Language::Python, CodeQuestion::Completeness, "x", Duration::from_secs(1)).await;
    }
    session.stop().await;
    let heard = lock(&heard);
    assert!(heard.replied.iter().all(|call| heard.called.contains(call)), "{heard:?} has replies without calls");
    assert_eq!(heard.violation, None);
}

/// What the host sent to the runner.
#[derive(Debug, Default)]
struct HeardMessages {
    called: BTreeSet<CallId>,
    replied: BTreeSet<CallId>,
    /// Requests that the host handled.
    handled: usize,
    /// What the host did that it must not. The tasks that notice it cannot panic for the test.
    violation: Option<String>,
}

struct CountingCalls(Arc<Mutex<HeardMessages>>);

impl CallHandler for CountingCalls {
    fn answer<'a>(&'a self, _cell: CallingCell, request: Vec<u8>) -> BoxFuture<'a, Vec<u8>> {
        let mut heard = lock(&self.0);
        heard.handled += 1;
        if heard.handled > heard.called.len() {
            heard.violation = Some("it handled a call twice".to_owned());
        }
        let length = request.first().copied().unwrap_or(0);
        Box::pin(async move {
            // Some calls take their time, and some have a long answer.
            tokio::time::sleep(Duration::from_millis(u64::from(length % 4) * 700)).await;
            if length > 200 { vec![b' '; 20_000] } else { error_reply("limit", "no", None) }
        })
    }
}

struct ScriptedBackend {
    script: Vec<u8>,
    heard: Arc<Mutex<HeardMessages>>,
}

struct ScriptedControl {
    killed: watch::Sender<bool>,
    ended: watch::Receiver<bool>,
}

impl Backend for ScriptedBackend {
    fn name(&self, _policy: &Policy) -> &'static str {
        "scripted"
    }

    fn start<'a>(&'a self, _: &'a Policy, _: &'a SandboxOwner) -> BoxFuture<'a, Result<Sandbox, Failure>> {
        let (host, runner) = tokio::io::duplex(4096);
        let (killed, mut kill) = watch::channel(false);
        let (end, ended) = watch::channel(false);
        let (script, heard) = (self.script.clone(), Arc::clone(&self.heard));
        tokio::spawn(async move {
            tokio::select! {
                () = follow_script(runner, script, heard) => {}
                _ = kill.wait_for(|killed| *killed) => {}
            }
            let _ = end.send(true);
        });
        let program = InterpreterPath { language: Language::Python, program: "/python".into() };
        let control = Box::new(ScriptedControl { killed, ended });
        let sandbox = Sandbox {
            stream: Box::new(host),
            control,
            interpreters: vec![program],
            image_command: None,
            image_id: None,
        };
        Box::pin(std::future::ready(Ok(sandbox)))
    }

    fn explain<'a>(&'a self, _: &'a Policy, _: PlanFormat) -> BoxFuture<'a, Result<String, Failure>> {
        Box::pin(std::future::ready(Ok(String::new())))
    }

    fn sweep(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

impl SandboxControl for ScriptedControl {
    fn start_failure(&mut self) -> BoxFuture<'_, Option<Failure>> {
        Box::pin(std::future::ready(None))
    }

    fn kill(&mut self) {
        let _ = self.killed.send(true);
    }

    fn wait(&mut self) -> BoxFuture<'_, SandboxEnd> {
        Box::pin(async {
            let _ = self.ended.wait_for(|ended| *ended).await;
            SandboxEnd::Exited(0)
        })
    }

    fn memory_killer(&mut self) -> BoxFuture<'_, Option<MemoryKiller>> {
        Box::pin(std::future::ready(None))
    }
}

/// Answers `Hello`, and then sends what the script says: each step has a byte for its kind and one for its value.
async fn follow_script(stream: DuplexStream, script: Vec<u8>, heard: Arc<Mutex<HeardMessages>>) {
    let (mut read, mut write) = tokio::io::split(stream);
    let listening = async {
        let (mut decoder, mut buffer) = (FrameDecoder::default(), vec![0; 4096]);
        while let Ok(count @ 1..) = read.read(&mut buffer).await {
            decoder.push(&buffer[..count]);
            loop {
                match decoder.next::<ToRunner>() {
                    Ok(None) => break,
                    Ok(Some((ToRunner::Reply { call }, _))) => {
                        let mut heard = lock(&heard);
                        if !heard.replied.insert(call) {
                            heard.violation = Some(format!("it replied twice to {call:?}"));
                        }
                    }
                    Ok(Some(_)) => {}
                    Err(error) => {
                        lock(&heard).violation = Some(error.to_string());
                        break;
                    }
                }
            }
        }
        std::future::pending::<()>().await;
    };
    let python = InterpreterPath { language: Language::Python, program: "/python".into() };
    let ready = FromRunner::Ready(RunnerReady {
        version: VERSION,
        interpreters: vec![python],
        received: 0,
        proxy_port: None,
        name_door: false,
    });
    let speaking = async {
        let mut state = ScriptState::default();
        let mut bytes = Vec::new();
        let _ = encode(&ready, &[], &mut bytes);
        let _ = write.write_all(&bytes).await;
        for step in script.chunks_exact(2) {
            bytes.clear();
            state.write_step(step[0], step[1], &mut bytes, &heard);
            if write.write_all(&bytes).await.is_err() {
                return;
            }
            if step[0] & 0x80 != 0 {
                tokio::time::sleep(Duration::from_millis(u64::from(step[1]) * 20)).await;
            } else {
                tokio::task::yield_now().await;
            }
        }
        // A runner that says no more keeps its cell until the deadline, or goes.
        if script.len().is_multiple_of(2) {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        () = listening => {}
        () = speaking => {}
    }
}

/// What an honest runner would send next, from which a script departs.
struct ScriptState {
    cell: u64,
    offset: u64,
    call: u64,
    request: u64,
}

impl Default for ScriptState {
    fn default() -> Self {
        Self { cell: 1, offset: 0, call: 1, request: 1 }
    }
}

impl ScriptState {
    fn write_step(&mut self, kind: u8, value: u8, bytes: &mut Vec<u8>, heard: &Mutex<HeardMessages>) {
        let number = u64::from(value);
        let cell = CellId(self.cell);
        let payload = vec![self.cell as u8; usize::from(value)];
        let (message, payload) = match kind & 0x1f {
            0..=5 => {
                let offset = self.offset;
                self.offset += number;
                (FromRunner::Output { cell, stream: OutputStream::Stdout, offset }, payload)
            }
            6 => (FromRunner::Output { cell: CellId(number), stream: OutputStream::Stderr, offset: 0 }, vec![value; 3]),
            7 => (FromRunner::Image { cell, format: ImageFormat::Png }, payload),
            8 => (FromRunner::NeedInput {}, Vec::new()),
            9..=13 => {
                let outcome = match value % 8 {
                    0 => CellOutcome::Raised { exception: "E".into(), message: "\u{1b}m".into() },
                    1 => CellOutcome::Exited { code: i32::from(value) },
                    2 => CellOutcome::Interrupted {},
                    3 => CellOutcome::InterpreterExited { code: 1 },
                    4 => CellOutcome::InterpreterKilled { signal: 9, out_of_memory: Some(true) },
                    5 => CellOutcome::Unavailable { reason: "\u{1b}[2J".into() },
                    _ => CellOutcome::Completed {},
                };
                (self.cell, self.offset) = (self.cell + 1, 0);
                (FromRunner::Done { cell, outcome, fresh: value & 0x10 != 0 }, Vec::new())
            }
            14..=19 => {
                let call = CallId(self.call);
                self.call += 1;
                lock(heard).called.insert(call);
                (FromRunner::Call { cell, call }, vec![value])
            }
            20 => {
                lock(heard).called.insert(CallId(number));
                (FromRunner::Call { cell, call: CallId(number) }, vec![value; 300])
            }
            21 => (FromRunner::Forget { call: CallId(number) }, Vec::new()),
            22 => (FromRunner::Taken { call: CallId(number) }, Vec::new()),
            23 | 24 => {
                let request = RequestId(self.request);
                self.request += 1;
                (FromRunner::Answer { request }, payload)
            }
            25 => (FromRunner::Answer { request: RequestId(number) }, payload),
            26 => (FromRunner::Stored { request: RequestId(number), bytes: number }, Vec::new()),
            27 => (FromRunner::Pong { nonce: number, received: number }, Vec::new()),
            28 => (FromRunner::Fault { message: "\u{1b}]0;x".into() }, Vec::new()),
            // Waits.
            29 => return,
            _ => return bytes.extend_from_slice(&payload),
        };
        let _ = encode(&message, &payload, bytes);
    }
}

fn cell() -> Cell {
    Cell {
        language: Language::Python,
        name: "<cell>".into(),
        code: "1".into(),
        args: Vec::new(),
        timeout: Duration::from_secs(5),
        grace: Duration::from_secs(1),
    }
}

fn policy() -> Policy {
    Policy {
        user: SandboxUser { uid: 5, gid: 6 },
        limits: SandboxLimits { memory: 1_000, cpus: 2.0, pids: 30, workspace: 40, tmp: 50 },
        ..Policy::default()
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn replays_the_corpus_of_session() {
        crate::replay::replay("session", super::exercise);
    }
}
