//! A backend without a sandbox: a script acts as the runner over a stream in memory. It can send messages that no real
//! runner would send, and stop or die whenever a test wants it to.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use cove_core::BoxFuture;
use cove_core::backend::{Backend, MemoryKiller, PlanFormat, Sandbox, SandboxControl, SandboxEnd, SandboxOwner};
use cove_core::error::Failure;
use cove_core::policy::Policy;
use cove_protocol::{FrameDecoder, FromRunner, InterpreterPath, Language, RunnerReady, ToRunner, VERSION, encode};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::watch;

/// What the runner does. It gets the runner's end of the stream, and the sandbox ends when it returns.
type RunnerScript = dyn Fn(FakeRunner) -> BoxFuture<'static, ()> + Send + Sync;

/// A backend whose sandboxes run a script.
pub struct FakeBackend {
    script: Arc<RunnerScript>,
    conduct: FakeConduct,
    image_id: Option<String>,
    /// The owners of all sandboxes, in the order of their starts.
    owners: Arc<Mutex<Vec<SandboxOwner>>>,
}

/// How a fake sandbox behaves towards its host.
#[derive(Clone)]
struct FakeConduct {
    /// What `wait` returns.
    ending: SandboxEnd,
    memory: Option<MemoryKiller>,
    trusts_runner: bool,
    settles_within: Duration,
    /// How long a sandbox stays after it was killed.
    stays_for: Duration,
    /// How often a sandbox of the backend was killed.
    kills: Arc<Mutex<usize>>,
}

impl FakeBackend {
    /// Returns a backend whose sandboxes run this script.
    pub fn new<F>(script: impl Fn(FakeRunner) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let conduct = FakeConduct {
            ending: SandboxEnd::Exited(0),
            memory: None,
            trusts_runner: false,
            settles_within: Duration::from_secs(2),
            stays_for: Duration::ZERO,
            kills: Arc::default(),
        };
        Self {
            script: Arc::new(move |runner| Box::pin(script(runner))),
            conduct,
            image_id: None,
            owners: Arc::default(),
        }
    }

    /// Reports this image for each sandbox.
    #[must_use]
    pub fn with_image(mut self, id: &str) -> Self {
        self.image_id = Some(id.to_owned());
        self
    }

    /// Returns the list of the owners of all sandboxes, which grows with each start.
    pub fn owners(&self) -> Arc<Mutex<Vec<SandboxOwner>>> {
        Arc::clone(&self.owners)
    }

    /// Reports this ending for each sandbox.
    #[must_use]
    pub fn ending_as(mut self, ending: SandboxEnd) -> Self {
        self.conduct.ending = ending;
        self
    }

    /// Reports that this killer ended a process for memory.
    #[must_use]
    pub fn out_of_memory(mut self, by: MemoryKiller) -> Self {
        self.conduct.memory = Some(by);
        self
    }

    /// Trusts the runner's report of whether memory ran out, as container backends do.
    #[must_use]
    pub fn trusting_its_runner(mut self) -> Self {
        self.conduct.trusts_runner = true;
        self
    }

    /// May take this long to find out how a sandbox ended.
    #[must_use]
    pub fn settling_within(mut self, time: Duration) -> Self {
        self.conduct.settles_within = time;
        self
    }

    /// Takes this long to end a sandbox that is killed.
    #[must_use]
    pub fn ending_after(mut self, time: Duration) -> Self {
        self.conduct.stays_for = time;
        self
    }

    /// Returns how often a sandbox was killed.
    pub fn kills(&self) -> usize {
        *self.conduct.kills.lock().expect("no test panics while it counts")
    }
}

impl Backend for FakeBackend {
    fn name(&self, _policy: &Policy) -> &'static str {
        "fake"
    }

    fn start<'a>(&'a self, _policy: &'a Policy, whose: &'a SandboxOwner) -> BoxFuture<'a, Result<Sandbox, Failure>> {
        Box::pin(async move {
            self.owners.lock().expect("no test panics while it adds").push(whose.clone());
            let (host, guest) = tokio::io::duplex(256 * 1024);
            let (kill, mut killed) = watch::channel(false);
            let (end, ended) = watch::channel(false);
            let script = Arc::clone(&self.script);
            let stays_for = self.conduct.stays_for;
            tokio::spawn(async move {
                let runner = FakeRunner { stream: guest, decoder: FrameDecoder::default() };
                let end_by_kill = async {
                    // Only a kill sends; a control that is dropped lets the script go on.
                    if killed.wait_for(|killed| *killed).await.is_err() {
                        std::future::pending::<()>().await;
                    }
                    tokio::time::sleep(stays_for).await;
                };
                tokio::select! {
                    () = script(runner) => {}
                    () = end_by_kill => {}
                }
                let _ = end.send(true);
            });
            let control = FakeControl { kill, ended, conduct: self.conduct.clone() };
            Ok(Sandbox {
                stream: Box::new(host),
                control: Box::new(control),
                interpreters: interpreters(),
                image_command: None,
                image_id: self.image_id.clone(),
            })
        })
    }

    fn explain<'a>(&'a self, _policy: &'a Policy, _form: PlanFormat) -> BoxFuture<'a, Result<String, Failure>> {
        Box::pin(async { Ok("nothing is isolated".into()) })
    }

    fn sweep(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

/// Returns two interpreters for one language, so that the runner has a choice.
fn interpreters() -> Vec<InterpreterPath> {
    ["/python", "/other/python"]
        .map(|program| InterpreterPath { language: Language::Python, program: program.into() })
        .into()
}

/// The control of one fake sandbox. The script's task waits for `kill`, and sets `ended`, which `wait` waits for, when the
/// script has returned or the kill has had its time.
struct FakeControl {
    kill: watch::Sender<bool>,
    ended: watch::Receiver<bool>,
    conduct: FakeConduct,
}

impl SandboxControl for FakeControl {
    fn start_failure(&mut self) -> BoxFuture<'_, Option<Failure>> {
        Box::pin(async { None })
    }

    fn kill(&mut self) {
        *self.conduct.kills.lock().expect("no test panics while it counts") += 1;
        let _ = self.kill.send(true);
    }

    fn wait(&mut self) -> BoxFuture<'_, SandboxEnd> {
        Box::pin(async {
            let _ = self.ended.wait_for(|ended| *ended).await;
            self.conduct.ending.clone()
        })
    }

    fn memory_killer(&mut self) -> BoxFuture<'_, Option<MemoryKiller>> {
        Box::pin(async { self.conduct.memory })
    }

    fn exit_timeout(&self) -> Duration {
        self.conduct.settles_within
    }

    fn trusts_runner_on_memory(&self) -> bool {
        self.conduct.trusts_runner
    }
}

/// The runner's end of the stream.
pub struct FakeRunner {
    stream: DuplexStream,
    decoder: FrameDecoder,
}

impl FakeRunner {
    /// Returns the next message of the host, or `None` if it has closed the stream.
    pub async fn receive(&mut self) -> Option<(ToRunner, Vec<u8>)> {
        loop {
            if let Some(message) = self.decoder.next().expect("the host follows the protocol") {
                return Some(message);
            }
            let mut buffer = [0; 4096];
            match self.stream.read(&mut buffer).await {
                Ok(count) if count > 0 => self.decoder.push(&buffer[..count]),
                _ => return None,
            }
        }
    }

    /// Sends a message.
    pub async fn send(&mut self, message: FromRunner, payload: &[u8]) {
        let mut bytes = Vec::new();
        encode(&message, payload, &mut bytes).expect("it can be encoded");
        self.send_bytes(&bytes).await;
    }

    /// Sends any bytes.
    pub async fn send_bytes(&mut self, bytes: &[u8]) {
        // The host may have closed the stream because of an earlier message.
        let _ = self.stream.write_all(bytes).await;
    }

    /// Answers `Hello` as a real runner does.
    pub async fn answer_hello(&mut self) {
        let Some((ToRunner::Hello(_), _)) = self.receive().await else { panic!("the host did not send `hello`") };
        self.send_ready(interpreters()[..1].to_vec()).await;
    }

    /// Sends `RunnerReady` with these interpreters.
    pub async fn send_ready(&mut self, interpreters: Vec<InterpreterPath>) {
        let ready = RunnerReady { version: VERSION, interpreters, received: 0, proxy_port: None, name_door: false };
        self.send(FromRunner::Ready(ready), &[]).await;
    }

    /// Waits for the next cell. Returns its id and its code, which is empty for a program.
    pub async fn next_cell(&mut self) -> Option<(cove_protocol::CellId, Vec<u8>)> {
        loop {
            match self.receive().await? {
                (ToRunner::Run(run), code) => return Some((run.cell, code)),
                (ToRunner::Start(start), nothing) => return Some((start.cell, nothing)),
                _ => continue,
            }
        }
    }
}
