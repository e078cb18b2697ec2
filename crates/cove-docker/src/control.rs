//! The life of one sandbox after its start: a watch task waits for its end, removes it and reports how it ended.
//!
//! The protocol between `EngineControl` and its watch task: `EngineControl::new` spawns one task per sandbox. The task
//! waits for the first of three signals: the container's stream cancels its end token when the output ends or the stream
//! is dropped; `kill` and `Drop` of `EngineControl` cancel the `kill` token; `MAX_CONTAINER_AGE` passes. The task then
//! finds out the cause, removes the target, and only after that sends one `WatchResult` through the `ended` channel.
//! `wait` and `has_leftovers` read that channel, so a caller that has seen `wait` return knows that removal was tried.

use cove_core::error::Failure;
use std::time::Duration;

use bollard::Docker as Client;
use bollard::errors::Error as ClientError;
use bollard::models::{ContainerInspectResponse, ContainerState, ContainerStateStatusEnum as Status};
use bollard::query_parameters::RemoveContainerOptionsBuilder;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::engine::Engine;
use super::podman_states;
use super::process_identity::MAX_CONTAINER_AGE;
use super::stream::StreamWatch;
use super::{error_message, is_missing};
use cove_core::BoxFuture;
use cove_core::backend::{MemoryKiller, SandboxControl, SandboxEnd};

/// How long the engine may take to answer a ping, and the unit of the other time limits for ending a container.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
const SIGKILL_EXIT_CODE: i64 = 128 + 9;

/// Removes a container unless it is released first. `release` hands the container over to an `EngineControl`; `remove`
/// and `Drop` take the id out, so it is removed only once.
pub(super) struct ContainerGuard {
    client: Client,
    id: Option<String>,
}

impl ContainerGuard {
    pub(super) fn new(client: Client, id: String) -> Self {
        Self { client, id: Some(id) }
    }

    /// Gives up responsibility for the container.
    pub(super) fn release(mut self) {
        self.id = None;
    }

    /// Removes the container and waits for the first attempt. The removal continues in its own task if the caller is
    /// dropped.
    pub(super) async fn remove(mut self) {
        if let Some(id) = self.id.take() {
            let _ = tokio::spawn(remove_with_retries(self.client.clone(), id)).await;
        }
    }
}

impl Drop for ContainerGuard {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            spawn_removal(remove_with_retries(self.client.clone(), id));
        }
    }
}

/// Runs a removal in the background. Without a runtime this process is ending: a later sweep removes what is left.
pub(super) fn spawn_removal(removal: impl Future<Output = bool> + Send + 'static) {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(removal);
    }
}

/// Returns true if the engine does not answer a ping within `ANSWER_TIMEOUT`.
pub(super) async fn is_unresponsive(client: &Client) -> bool {
    !matches!(tokio::time::timeout(ANSWER_TIMEOUT, client.ping()).await, Ok(Ok(_)))
}

/// Runs `work`, which may take long, and pings the engine meanwhile. Returns `None` once `questions` pings in a row
/// were not answered.
pub(super) async fn while_responsive<T>(client: &Client, questions: u32, work: impl Future<Output = T>) -> Option<T> {
    const PAUSE: Duration = Duration::from_secs(1);
    let silent = async {
        let mut unanswered = 0;
        while unanswered < questions {
            tokio::time::sleep(PAUSE).await;
            unanswered = if is_unresponsive(client).await { unanswered + 1 } else { 0 };
        }
    };
    tokio::select! {
        biased;
        done = work => Some(done),
        () = silent => None,
    }
}

/// Like `while_responsive`, for work with an error of its own. Fails if the engine leaves two pings in a row
/// unanswered.
pub(super) async fn or_unresponsive_error<T>(
    client: &Client,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    while_responsive(client, 2, work).await.unwrap_or_else(|| {
        Err(Failure::operator("could not reach Docker or Podman")
            .because("it listens, and no longer answers")
            .with_hint("start it again: `sudo systemctl restart docker`, or `systemctl --user restart podman`"))
    })
}

/// Removes a container. Returns true if it is gone after the first attempt; otherwise retries in the background.
async fn remove_with_retries(client: Client, id: String) -> bool {
    retry_in_background(move || {
        let (client, id) = (client.clone(), id.clone());
        async move { remove_container(&client, &id).await }
    })
    .await
}

/// Runs `attempt` once and returns its result. If it fails, for example while the engine restarts, a background task
/// repeats it until it succeeds or `MAX_CONTAINER_AGE` has passed: while this process lives, no other process removes
/// its containers.
pub(super) async fn retry_in_background<F>(attempt: impl Fn() -> F + Send + Sync + 'static) -> bool
where
    F: Future<Output = bool> + Send,
{
    const PAUSE: Duration = Duration::from_secs(20);
    if attempt().await {
        return true;
    }
    tokio::spawn(async move {
        let until = tokio::time::Instant::now() + MAX_CONTAINER_AGE;
        while tokio::time::Instant::now() < until {
            tokio::time::sleep(PAUSE).await;
            if attempt().await {
                return;
            }
        }
    });
    false
}

/// Removes a container in any state, together with its anonymous volumes. Returns true if it is gone. The engine
/// refuses while it is starting, stopping or removing the container, so this function repeats the request for a while.
/// Returns false if the engine stops answering or time runs out.
pub(super) async fn remove_container(client: &Client, id: &str) -> bool {
    const PAUSE: Duration = Duration::from_millis(300);
    let until = tokio::time::Instant::now() + ANSWER_TIMEOUT * 4;
    loop {
        let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
        let removing = tokio::time::timeout_at(until, client.remove_container(id, Some(options)));
        let why = match while_responsive(client, 1, removing).await {
            Some(Ok(Ok(()))) => return true,
            Some(Ok(Err(error))) if is_missing(&error) => return true,
            Some(Ok(Err(error))) => error_message(&error),
            Some(Err(_)) => "it took too long".to_owned(),
            None => {
                tracing::warn!(container = id, "a container could not be removed: the engine does not answer");
                return false;
            }
        };
        let is_late = tokio::time::Instant::now() + PAUSE >= until;
        if is_late || is_unresponsive(client).await {
            tracing::warn!(container = id, why, "a container could not be removed");
            return false;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// The handle to a sandbox that a watch task looks after. The module documentation describes how the two interact.
pub(super) struct EngineControl<W> {
    target: W,
    /// What the container's stream shows: read by `start_failure` and `may_have_ended`, and by the watch task.
    stream: StreamWatch,
    /// Cancelled by `kill` and `Drop`; read by the watch task.
    kill: CancellationToken,
    /// Written once by the watch task, after it has tried to remove the target; read by `wait` and `has_leftovers`.
    ended: watch::Receiver<Option<WatchResult>>,
    /// Written once by the watch task, before it removes the target; read by `start_failure`.
    end_report: oneshot::Receiver<Option<String>>,
}

/// What the watch task reports when it is done.
struct WatchResult {
    end: SandboxEnd,
    /// False if the first removal failed. Removal is then retried in the background.
    is_removed: bool,
}

/// A container or a Compose project, as the watch task sees it.
pub(super) trait WatchTarget: Send + Sync {
    /// Returns how it ended, or `None` while it runs.
    fn end(&self) -> BoxFuture<'_, Option<SandboxEnd>>;
    /// Returns who killed a process in it for lack of memory, or `None` if that has not happened.
    fn memory_killer(&self) -> BoxFuture<'_, Option<MemoryKiller>>;
    /// Returns how what should have kept it running ended, and its last words, if that is why the runner cannot start in it.
    fn end_report(&self) -> BoxFuture<'_, Option<String>>;
    /// Removes it in any state. Returns true if it is gone; otherwise removal is retried in the background.
    fn remove(&self) -> BoxFuture<'_, bool>;
}

impl<W: WatchTarget + Clone + 'static> EngineControl<W> {
    /// Spawns the watch task. The task does not query the engine before the stream ends: for a waiting client Podman
    /// polls without a pause, and Docker keeps a connection open.
    pub(super) fn new(target: W, stream: StreamWatch) -> Self {
        let (stream_ended, stderr_tail) = (stream.ended.clone(), stream.stderr_tail.clone());
        let kill = CancellationToken::new();
        let (tell, ended) = watch::channel(None);
        let (tell_report, end_report) = oneshot::channel();
        let (watched, killed) = (target.clone(), kill.clone());
        tokio::spawn(async move {
            let ending = wait_for_end(&watched, &stream_ended, &killed).await;
            // Without words of the runner, or of the engine in its place, it did start.
            if !stderr_tail.text().is_empty() {
                let _ = tell_report.send(watched.end_report().await);
            }
            let is_gone = watched.remove().await;
            tell.send(Some(WatchResult { end: ending, is_removed: is_gone }))
        });
        Self { target, stream, kill, ended, end_report }
    }
}

/// Waits until the target ends by itself, is killed through `kill`, or reaches `MAX_CONTAINER_AGE`. Returns the cause.
async fn wait_for_end(
    what: &impl WatchTarget,
    stream_ended: &CancellationToken,
    kill: &CancellationToken,
) -> SandboxEnd {
    const CAUSE_LOOKUP_TIME: Duration = Duration::from_millis(50);
    tokio::select! {
        // A caller may kill the sandbox because its stream ended. The stream's end is checked first, so that the true
        // cause is reported and not that kill.
        biased;
        () = stream_ended.cancelled() => {}
        () = kill.cancelled() => return SandboxEnd::Signalled(9),
        () = tokio::time::sleep(MAX_CONTAINER_AGE) => {
            let hours = MAX_CONTAINER_AGE.as_secs() / 3600;
            return SandboxEnd::Lost(format!("it had lived for {hours} hours, the most a container may"));
        }
    }
    let until = tokio::time::Instant::now() + ANSWER_TIMEOUT;
    loop {
        if let Some(ending) = what.end().await {
            return ending;
        }
        if tokio::time::Instant::now() >= until {
            return SandboxEnd::Lost("the connection to its container broke while it ran".into());
        }
        tokio::select! {
            () = tokio::time::sleep(CAUSE_LOOKUP_TIME) => {}
            () = kill.cancelled() => return SandboxEnd::Signalled(9),
        }
    }
}

impl<W> Drop for EngineControl<W> {
    fn drop(&mut self) {
        self.kill.cancel();
    }
}

impl<W: WatchTarget> SandboxControl for EngineControl<W> {
    fn start_failure(&mut self) -> BoxFuture<'_, Option<Failure>> {
        Box::pin(async {
            // The stream exists, so the container did start. Only the runner itself can still have failed.
            let said = self.stream.stderr_tail.text();
            let error = Failure::operator("could not start the runner in the container");
            if said.is_empty() {
                return None;
            }
            // The engine only says that it cannot run anything in a container that has ended.
            Some(match (&mut self.end_report).await {
                Ok(Some(report)) => error.because(report).with_hint("see that its main container goes on running"),
                _ => error.because(said),
            })
        })
    }

    fn kill(&mut self) {
        self.kill.cancel();
    }

    /// The state of a container covers its end, not processes that the kernel killed inside while the container goes
    /// on.
    fn trusts_runner_on_memory(&self) -> bool {
        true
    }

    fn wait(&mut self) -> BoxFuture<'_, SandboxEnd> {
        Box::pin(async {
            match self.ended.wait_for(Option::is_some).await {
                Ok(ended) => ended.as_ref().map(|ended| ended.end.clone()),
                Err(_) => None,
            }
            .unwrap_or_else(|| SandboxEnd::Lost("its watcher has ended".into()))
        })
    }

    /// The end of the stream comes first. The watch task reports the cause only after it has removed the target.
    fn may_have_ended(&self) -> bool {
        self.stream.ended.is_cancelled() || self.ended.has_changed().is_err() || self.ended.borrow().is_some()
    }

    fn notice_time(&self) -> Duration {
        self.exit_timeout()
    }

    fn has_leftovers(&self) -> bool {
        self.ended.borrow().as_ref().is_some_and(|ended| !ended.is_removed)
    }

    /// As long as `wait_for_end` may look for the cause, plus one answer of the engine.
    fn exit_timeout(&self) -> Duration {
        ANSWER_TIMEOUT * 2
    }

    fn memory_killer(&mut self) -> BoxFuture<'_, Option<MemoryKiller>> {
        self.target.memory_killer()
    }
}

/// One container, as a `WatchTarget`.
#[derive(Debug, Clone)]
pub(super) struct ContainerHandle {
    pub(super) client: Client,
    pub(super) id: String,
    pub(super) engine: Engine,
}

impl WatchTarget for ContainerHandle {
    fn end(&self) -> BoxFuture<'_, Option<SandboxEnd>> {
        Box::pin(async {
            let why = match inspect_with_retries(&self.client, &self.id).await {
                Ok(ContainerInspectResponse { state: Some(state), .. }) => return end_from_state(&state, self.engine),
                Ok(_) => "the engine does not report its state".to_owned(),
                Err(error) if is_missing(&error) => "its container was removed from outside".to_owned(),
                Err(error) => format!("the connection to its container broke: {}", error_message(&error)),
            };
            Some(SandboxEnd::Lost(why))
        })
    }

    fn memory_killer(&self) -> BoxFuture<'_, Option<MemoryKiller>> {
        Box::pin(async {
            let state = inspect_with_retries(&self.client, &self.id).await.ok()?.state?;
            state.oom_killed.unwrap_or(false).then_some(MemoryKiller::Kernel)
        })
    }

    /// The runner is what keeps it running.
    fn end_report(&self) -> BoxFuture<'_, Option<String>> {
        Box::pin(std::future::ready(None))
    }

    fn remove(&self) -> BoxFuture<'_, bool> {
        Box::pin(remove_with_retries(self.client.clone(), self.id.clone()))
    }
}

/// Returns the exit code of a container that has ended. A container that Podman is stopping no longer runs but has not
/// ended either: Podman reports exit code 0 and a zero end time until it knows the true values.
pub(super) fn exit_code(state: &ContainerState) -> Option<i64> {
    const NEVER_FINISHED: &str = "0001-";
    let is_over = matches!(state.status, Some(Status::EXITED | Status::DEAD | Status::REMOVING));
    let is_settled = state.finished_at.as_deref().is_some_and(|at| !at.starts_with(NEVER_FINISHED));
    (is_over && is_settled).then_some(state.exit_code).flatten()
}

/// Returns how the container ended, or `None` while it runs or its exit code is not final.
fn end_from_state(state: &ContainerState, engine: Engine) -> Option<SandboxEnd> {
    let code = exit_code(state)?;
    if state.oom_killed == Some(true) && code != 0 {
        return Some(SandboxEnd::OutOfMemory(MemoryKiller::Kernel));
    }
    Some(match state.error.as_deref() {
        Some(error) if !error.is_empty() => SandboxEnd::Lost(error.to_owned()),
        _ if code == SIGKILL_EXIT_CODE => {
            SandboxEnd::Lost(format!("its container was killed{}", engine.traits().kill_cause))
        }
        _ if engine.traits().unknown_exit_code == Some(code) => {
            SandboxEnd::Lost(format!("its container ended while {} did not run", engine.traits().name))
        }
        _ if (129..=128 + 64).contains(&code) => SandboxEnd::Signalled((code - 128) as i32),
        _ => SandboxEnd::Exited(i32::try_from(code).unwrap_or(-1)),
    })
}

/// Inspects a container. Repeats failed requests for a short time, because an engine that restarts answers again soon.
/// Fails at once if the engine refuses the request or does not answer.
pub(super) async fn inspect_with_retries(client: &Client, id: &str) -> Result<ContainerInspectResponse, ClientError> {
    const PAUSE: Duration = Duration::from_millis(250);
    let until = tokio::time::Instant::now() + ANSWER_TIMEOUT / 2;
    loop {
        match tokio::time::timeout(ANSWER_TIMEOUT / 2, podman_states::inspect_container(client, id)).await {
            Ok(Ok(found)) => return Ok(found),
            // While Podman removes a container, it first answers with a server error, and with 404 later.
            Ok(Err(error @ ClientError::DockerResponseServerError { status_code: ..500, .. })) => {
                return Err(error);
            }
            Ok(Err(error)) if tokio::time::Instant::now() >= until => return Err(error),
            Err(_) => return Err(ClientError::RequestTimeoutError),
            Ok(Err(_)) => tokio::time::sleep(PAUSE).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::stream::StderrTail;
    use super::*;

    #[test]
    fn container_ends_map_to_their_causes() {
        let state = |code: i64| ContainerState {
            exit_code: Some(code),
            status: Some(Status::EXITED),
            finished_at: Some("2026-01-02T03:04:05Z".into()),
            ..Default::default()
        };
        let ended = |state: ContainerState| end_from_state(&state, Engine::Docker).unwrap();
        assert_eq!(ended(state(0)), SandboxEnd::Exited(0));
        assert_eq!(ended(state(3)), SandboxEnd::Exited(3));
        assert_eq!(ended(state(139)), SandboxEnd::Signalled(11));
        assert_eq!(ended(state(137)), SandboxEnd::Lost("its container was killed from outside".into()));
        let unknown = "its container ended while Docker did not run".into();
        assert_eq!(ended(state(255)), SandboxEnd::Lost(unknown));
        assert_eq!(end_from_state(&state(255), Engine::Podman), Some(SandboxEnd::Exited(255)));
        let memory = ContainerState { oom_killed: Some(true), ..state(137) };
        for engine in [Engine::Docker, Engine::Podman] {
            assert_eq!(end_from_state(&memory, engine), Some(SandboxEnd::OutOfMemory(MemoryKiller::Kernel)));
        }
        // Podman reports both causes in the same way.
        let Some(SandboxEnd::Lost(cause)) = end_from_state(&state(137), Engine::Podman) else {
            panic!("it was killed")
        };
        assert!(cause.contains("from outside or for lack of memory"), "{cause}");
        // The kernel killed a process inside, and the container went on.
        let survived = ContainerState { oom_killed: Some(true), ..state(0) };
        assert_eq!(ended(survived), SandboxEnd::Exited(0));
        let odd = ContainerState { error: Some("exec format error".into()), ..state(126) };
        assert_eq!(ended(odd), SandboxEnd::Lost("exec format error".into()));
    }

    /// A target whose removal never ends.
    #[derive(Clone)]
    struct StubbornTarget;

    impl WatchTarget for StubbornTarget {
        fn end(&self) -> BoxFuture<'_, Option<SandboxEnd>> {
            Box::pin(async { Some(SandboxEnd::Exited(0)) })
        }

        fn memory_killer(&self) -> BoxFuture<'_, Option<MemoryKiller>> {
            Box::pin(async { None })
        }

        fn end_report(&self) -> BoxFuture<'_, Option<String>> {
            Box::pin(async { Some("its last words".to_owned()) })
        }

        fn remove(&self) -> BoxFuture<'_, bool> {
            Box::pin(std::future::pending())
        }
    }

    /// What runs in a container may end between the start of the container and that of the runner.
    #[tokio::test]
    async fn the_last_words_of_a_container_are_why_its_runner_cannot_start() {
        let stream = StreamWatch { stderr_tail: StderrTail::default(), ended: CancellationToken::new() };
        stream.stderr_tail.add(b"cannot exec in a container that is not running");
        let mut control = EngineControl::new(StubbornTarget, stream.clone());
        stream.ended.cancel();
        let report = control.start_failure().await.unwrap().report().to_string();
        assert!(report.contains("caused by: its last words"), "{report}");
    }

    /// A caller that asks in between must not take it for alive.
    #[tokio::test]
    async fn an_ended_stream_shows_before_the_removal() {
        let stream = StreamWatch { stderr_tail: StderrTail::default(), ended: CancellationToken::new() };
        let control = EngineControl::new(StubbornTarget, stream.clone());
        assert!(!control.may_have_ended());
        stream.ended.cancel();
        assert!(control.may_have_ended());
    }

    /// States as Podman 4.3 reports them for a container under removal, and Docker for a running one.
    #[test]
    fn a_stopping_container_has_no_exit_code() {
        let reported = |status, finished_at: &str| ContainerState {
            exit_code: Some(0),
            status: Some(status),
            finished_at: Some(finished_at.into()),
            ..Default::default()
        };
        let (never, now) = ("0001-01-01T00:00:00Z", "2026-01-02T03:04:05Z");
        for (state, settled) in [
            (reported(Status::RUNNING, never), false),
            (reported(Status::PAUSED, never), false),
            (reported(Status::STOPPING, never), false),
            (reported(Status::STOPPING, now), false),
            (reported(Status::REMOVING, never), false),
            (reported(Status::EXITED, never), false),
            (reported(Status::EXITED, now), true),
            (reported(Status::REMOVING, now), true),
            (ContainerState { exit_code: None, ..reported(Status::EXITED, now) }, false),
        ] {
            assert_eq!(end_from_state(&state, Engine::Podman), settled.then_some(SandboxEnd::Exited(0)), "{state:?}");
        }
    }
}
