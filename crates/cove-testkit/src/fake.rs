//! A backend without a sandbox: a script plays the runner over a stream in memory. It can say what no real runner
//! would, and fall silent or die where a test wants it to.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use cove::backend::{Backend, Control, Ending, Form, MemoryKiller, Pending, Sandbox, StartError, Whose};
use cove::policy::Policy;
use cove_protocol::{Decoder, FromRunner, Interpreter, Language, Ready, ToRunner, VERSION, encode};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::watch;

/// The runner's part: gets its end of the stream, and is over when it returns.
type Script = dyn Fn(FakeRunner) -> Pending<'static, ()> + Send + Sync;

pub struct FakeBackend {
    script: Arc<Script>,
    /// What the sandbox's end is said to have been.
    ending: Ending,
    memory: Option<MemoryKiller>,
    trusts_runner: bool,
    settles_within: Duration,
    kills: Arc<Mutex<usize>>,
}

impl FakeBackend {
    pub fn new<F>(script: impl Fn(FakeRunner) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self {
            script: Arc::new(move |runner| Box::pin(script(runner))),
            ending: Ending::Exited(0),
            memory: None,
            trusts_runner: false,
            settles_within: Duration::from_secs(2),
            kills: Arc::default(),
        }
    }

    #[must_use]
    pub fn ending_as(mut self, ending: Ending) -> Self {
        self.ending = ending;
        self
    }

    #[must_use]
    pub fn out_of_memory(mut self, by: MemoryKiller) -> Self {
        self.memory = Some(by);
        self
    }

    /// As a backend that lets its runner say whether memory ran out.
    #[must_use]
    pub fn trusting_its_runner(mut self) -> Self {
        self.trusts_runner = true;
        self
    }

    /// As a backend that may take so long to tell how a sandbox ended.
    #[must_use]
    pub fn settling_within(mut self, time: Duration) -> Self {
        self.settles_within = time;
        self
    }

    /// How often a sandbox was killed.
    pub fn kills(&self) -> usize {
        *self.kills.lock().expect("no test panics while it counts")
    }
}

impl Backend for FakeBackend {
    fn name(&self, _policy: &Policy) -> &'static str {
        "fake"
    }

    fn start<'a>(
        &'a self,
        _policy: &'a Policy,
        _whose: &'a Whose,
    ) -> Pending<'a, Result<Sandbox, StartError>> {
        Box::pin(async move {
            let (host, guest) = tokio::io::duplex(256 * 1024);
            let (over, ended) = watch::channel(false);
            let script = Arc::clone(&self.script);
            let mut killed = ended.clone();
            let over_for_kill = over.clone();
            tokio::spawn(async move {
                let runner = FakeRunner { stream: guest, decoder: Decoder::default() };
                tokio::select! {
                    () = script(runner) => {}
                    _ = killed.wait_for(|over| *over) => {}
                }
                let _ = over.send(true);
            });
            let control = FakeControl {
                over: over_for_kill,
                ended,
                ending: self.ending.clone(),
                memory: self.memory,
                trusts_runner: self.trusts_runner,
                settles_within: self.settles_within,
                kills: Arc::clone(&self.kills),
            };
            Ok(Sandbox {
                stream: Box::new(host),
                control: Box::new(control),
                interpreters: interpreters(),
                own: None,
            })
        })
    }

    fn explain<'a>(&'a self, _policy: &'a Policy, _form: Form) -> Pending<'a, Result<String, StartError>> {
        Box::pin(async { Ok("nothing is isolated".into()) })
    }

    fn sweep(&self) -> Pending<'_, ()> {
        Box::pin(async {})
    }
}

/// Two for one language, so that the runner has a choice.
fn interpreters() -> Vec<Interpreter> {
    ["/python", "/other/python"]
        .map(|program| Interpreter { language: Language::Python, program: program.into() })
        .into()
}

struct FakeControl {
    over: watch::Sender<bool>,
    ended: watch::Receiver<bool>,
    ending: Ending,
    memory: Option<MemoryKiller>,
    trusts_runner: bool,
    settles_within: Duration,
    kills: Arc<Mutex<usize>>,
}

impl Control for FakeControl {
    fn start_failure(&mut self) -> Pending<'_, Option<StartError>> {
        Box::pin(async { None })
    }

    fn kill(&mut self) {
        *self.kills.lock().expect("no test panics while it counts") += 1;
        let _ = self.over.send(true);
    }

    fn wait(&mut self) -> Pending<'_, Ending> {
        Box::pin(async {
            let _ = self.ended.wait_for(|over| *over).await;
            self.ending.clone()
        })
    }

    fn out_of_memory(&mut self) -> Pending<'_, Option<MemoryKiller>> {
        Box::pin(async { self.memory })
    }

    fn settles_within(&self) -> Duration {
        self.settles_within
    }

    fn trusts_runner_on_memory(&self) -> bool {
        self.trusts_runner
    }
}

/// The guest's end of the stream.
pub struct FakeRunner {
    stream: DuplexStream,
    decoder: Decoder,
}

impl FakeRunner {
    /// The next message of the host; nothing when it has gone.
    pub async fn hear(&mut self) -> Option<(ToRunner, Vec<u8>)> {
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

    pub async fn say(&mut self, message: FromRunner, payload: &[u8]) {
        let mut bytes = Vec::new();
        encode(&message, payload, &mut bytes).expect("it can be encoded");
        self.say_bytes(&bytes).await;
    }

    /// Anything at all.
    pub async fn say_bytes(&mut self, bytes: &[u8]) {
        // The host may have hung up on what was said before.
        let _ = self.stream.write_all(bytes).await;
    }

    /// Answers hello as a good runner does.
    pub async fn greet(&mut self) {
        let Some((ToRunner::Hello(_), _)) = self.hear().await else { panic!("the host did not say hello") };
        self.take(interpreters()[..1].to_vec()).await;
    }

    /// Says which interpreters are there.
    pub async fn take(&mut self, interpreters: Vec<Interpreter>) {
        let ready = Ready { version: VERSION, interpreters, received: 0 };
        self.say(FromRunner::Ready(ready), &[]).await;
    }

    /// Waits for the next cell; its id and code, of which a program has none.
    pub async fn cell(&mut self) -> Option<(cove_protocol::CellId, Vec<u8>)> {
        loop {
            match self.hear().await? {
                (ToRunner::Run(run), code) => return Some((run.cell, code)),
                (ToRunner::Start(start), nothing) => return Some((start.cell, nothing)),
                _ => continue,
            }
        }
    }
}
