//! Backends make sandboxes. A backend knows nothing about cells or calls: it starts a runner in isolation, returns the
//! byte stream to it, and reports how it ended.

pub mod jail;

use std::time::Duration;

pub use cove_jail::report::MemoryKiller;
use cove_protocol::InterpreterPath;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::BoxFuture;
use crate::error::Failure;
use crate::policy::Policy;

/// Starts sandboxes of one kind. A new backend needs no change in other modules.
pub trait Backend: Send + Sync {
    /// Returns the name of the backend that serves this policy.
    fn name(&self, policy: &Policy) -> &'static str;

    /// Starts a sandbox that enforces the whole policy. Fails if the backend cannot enforce a part of it. A failure
    /// after this returns closes the stream, and `SandboxControl::start_failure` returns it.
    fn start<'a>(&'a self, policy: &'a Policy, whose: &'a SandboxOwner) -> BoxFuture<'a, Result<Sandbox, Failure>>;

    /// Does the work that sandboxes of this policy need once, such as building an image, and reports its progress.
    /// `start` does the same work if it is still missing.
    fn prepare<'a>(
        &'a self,
        _policy: &'a Policy,
        _tell: ProgressCallback<'a>,
    ) -> BoxFuture<'a, Result<ImagePreparation, Failure>> {
        Box::pin(async { Ok(ImagePreparation::default()) })
    }

    /// Returns the exact plan for a policy, for people. Fails if the backend refuses the policy.
    fn explain<'a>(&'a self, policy: &'a Policy, form: PlanFormat) -> BoxFuture<'a, Result<String, Failure>>;

    /// Removes the remains of earlier Cove processes that were killed before they could clean up.
    fn sweep(&self) -> BoxFuture<'_, ()>;
}

/// What `Backend::prepare` has done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImagePreparation {
    /// A sentence about the work, or None if there was none.
    pub note: Option<String>,
    /// The image that the next sandbox gets, if one image alone decides what is in it.
    pub image_id: Option<String>,
}

/// Gets progress messages, one line at a time.
pub type ProgressCallback<'a> = &'a (dyn Fn(&str) + Send + Sync);

/// The session and the principal that a sandbox belongs to. Backends put both on the sandbox as labels where other
/// programs can see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxOwner {
    pub session: String,
    pub principal: String,
}

impl Default for SandboxOwner {
    /// The owner of a sandbox that a person starts with a command.
    fn default() -> Self {
        Self { session: "own".into(), principal: "local".into() }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlanFormat {
    Text,
    Json,
}

/// One running isolated environment. Dropping it kills it.
pub struct Sandbox {
    /// The stream to and from the runner.
    pub stream: Box<dyn ByteStream>,
    pub control: Box<dyn SandboxControl>,
    /// The interpreters inside the sandbox, in order of preference for each language.
    pub interpreters: Vec<InterpreterPath>,
    /// The command that the image runs by default; None if there is no image.
    pub image_command: Option<ImageCommand>,
    /// The image of the sandbox, as `Backend::prepare` returns it.
    pub image_id: Option<String>,
}

/// The default command of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageCommand {
    /// The entry point followed by the command; empty if the image has neither.
    pub command: Vec<String>,
    pub directory: Option<String>,
}

/// A byte stream in both directions.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// Ends a sandbox and reports how it ended.
pub trait SandboxControl: Send {
    /// Returns why the sandbox did not start its runner, or None if it did.
    fn start_failure(&mut self) -> BoxFuture<'_, Option<Failure>>;

    /// Starts to kill the sandbox and everything in it. `wait` returns when that is done.
    fn kill(&mut self);

    /// Waits until the sandbox has ended and is removed, and returns how it ended. May be dropped and called again.
    fn wait(&mut self) -> BoxFuture<'_, SandboxEnd>;

    /// False only if the sandbox runs. Takes microseconds, because each cell asks; `wait` must be asked for certainty.
    fn may_have_ended(&self) -> bool {
        true
    }

    /// Returns what a sandbox that has started has not got although its plan says so, as in "the sandbox …".
    fn unmet_plan(&self) -> Option<String> {
        None
    }

    /// Returns how long `wait` may need for an end that has happened. A backend whose `may_have_ended` is rarely wrong
    /// can afford some time.
    fn notice_time(&self) -> Duration {
        Duration::ZERO
    }

    /// True if cleanup failed because the engine did not respond. Removal is retried in the background.
    fn has_leftovers(&self) -> bool {
        false
    }

    /// Returns how long `wait` may take after the stream has ended by itself. A session that kills the sandbox sooner
    /// loses the reason for its end.
    fn exit_timeout(&self) -> Duration {
        Duration::from_secs(2)
    }

    /// Returns what has killed a process in the sandbox for lack of memory, or None if nothing has so far.
    fn memory_killer(&mut self) -> BoxFuture<'_, Option<MemoryKiller>>;

    /// Returns what has killed a process in the sandbox for lack of memory since the last call, or None if nothing has.
    /// Takes microseconds, because each cell asks.
    fn new_memory_killer(&mut self) -> BoxFuture<'_, Option<MemoryKiller>> {
        Box::pin(std::future::ready(None))
    }

    /// True if the runner's own report counts when `memory_killer` returns None, for sandboxes whose counters are best
    /// read from inside. Code inside can forge the report, but that only changes the message about its own end.
    fn trusts_runner_on_memory(&self) -> bool {
        false
    }
}

/// How a sandbox ended, as seen from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SandboxEnd {
    Exited(i32),
    Signalled(i32),
    OutOfMemory(MemoryKiller),
    /// The sandbox is gone for an unknown reason. Holds the last message from it.
    Lost(String),
}
