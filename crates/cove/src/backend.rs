//! Backends make sandboxes. A backend knows nothing of cells or calls: it starts a runner in an isolated place, hands
//! out the byte stream to it, and says how it ended.

pub mod docker;
pub mod jail;
pub mod mixed;

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use cove_protocol::Interpreter;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::error::Hint;
use crate::policy::Policy;

pub type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The one trait with many implementors: a new backend touches no other module.
pub trait Backend: Send + Sync {
    /// Which one serves this policy.
    fn name(&self, policy: &Policy) -> &'static str;

    /// Starts a sandbox that enforces the policy, or refuses it. Nothing is weakened in silence. What goes wrong after
    /// this returns closes the stream, and `Control::start_failure` tells it.
    fn start<'a>(&'a self, policy: &'a Policy, whose: &'a Whose) -> Pending<'a, Result<Sandbox, StartError>>;

    /// Does what must be done once before sandboxes of this policy can start, such as building an image, and tells of
    /// it meanwhile. Starting does the same where it was not done. What was done, in words; nothing if nothing was.
    fn prepare<'a>(
        &'a self,
        _policy: &'a Policy,
        _tell: Tell<'a>,
    ) -> Pending<'a, Result<Option<String>, StartError>> {
        Box::pin(async { Ok(None) })
    }

    /// The exact plan for a policy, for people: as text, or as JSON.
    fn explain<'a>(&'a self, policy: &'a Policy, form: Form) -> Pending<'a, Result<String, StartError>>;

    /// Removes what a process of ours left behind that was killed before it could clean up.
    fn sweep(&self) -> Pending<'_, ()>;
}

/// Hears of what takes long, a line at a time.
pub type Tell<'a> = &'a (dyn Fn(&str) + Send + Sync);

/// What a sandbox is marked with, where it can be seen by others than us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Whose {
    pub session: String,
    pub principal: String,
}

impl Default for Whose {
    /// Of somebody who runs the program by hand.
    fn default() -> Self {
        Self { session: "own".into(), principal: "local".into() }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Text,
    Json,
}

/// One running isolated environment. Dropping it kills it.
pub struct Sandbox {
    /// Both directions to the runner.
    pub stream: Box<dyn Duplex>,
    pub control: Box<dyn Control>,
    /// How each language may be started in there, in order of preference.
    pub interpreters: Vec<Interpreter>,
    /// What its image starts by itself; nothing where there is no image.
    pub own: Option<OwnProgram>,
}

/// What an image is made to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnProgram {
    /// Its entry point and its command; empty where it has neither.
    pub command: Vec<String>,
    pub directory: Option<String>,
}

pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

pub trait Control: Send {
    /// Why the sandbox never came to run its runner; nothing if it did.
    fn start_failure(&mut self) -> Pending<'_, Option<StartError>>;

    /// Ends the sandbox and everything in it. `wait` tells when that is done.
    fn kill(&mut self);

    /// Until the sandbox has ended and nothing of it is left.
    fn wait(&mut self) -> Pending<'_, Ending>;

    /// Whether something of it is left although `wait` is over, because whoever could remove it does not answer. It is tried
    /// on.
    fn is_left(&self) -> bool {
        false
    }

    /// How long `wait` may take when the stream is over and nobody killed the sandbox. Who kills it sooner never hears why
    /// it ended.
    fn settles_within(&self) -> Duration {
        Duration::from_secs(2)
    }

    /// Whether anything in the sandbox has been killed for memory so far, and by whom.
    fn out_of_memory(&mut self) -> Pending<'_, Option<MemoryKiller>>;

    /// Whether the runner's word counts where `out_of_memory` knows nothing: for sandboxes whose counters are best seen
    /// from inside. Code inside may forge it, and gains no more by that than another text for its own end.
    fn trusts_runner_on_memory(&self) -> bool {
        false
    }
}

/// How a sandbox ended, as seen from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    Exited(i32),
    Signalled(i32),
    OutOfMemory(MemoryKiller),
    /// It is gone and nobody can say why; this is what was seen last.
    Lost(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryKiller {
    Kernel,
    Watchdog,
}

#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct StartError {
    /// As in "could not create a user namespace".
    pub message: String,
    #[source]
    pub cause: Option<Box<dyn std::error::Error + Send + Sync>>,
    pub hint: Option<String>,
}

impl Hint for StartError {
    fn hint(&self) -> Option<String> {
        self.hint.clone()
    }
}

impl StartError {
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), cause: None, hint: None }
    }

    #[must_use]
    pub fn because(mut self, cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.cause = Some(cause.into());
        self
    }

    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}
