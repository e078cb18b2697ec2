//! One container from its start to its end: a task watches it, tells how it ended, and removes it.

use std::time::Duration;

use bollard::Docker as Client;
use bollard::errors::Error as ClientError;
use bollard::models::{ContainerInspectResponse, ContainerState, ContainerStateStatusEnum as Status};
use bollard::query_parameters::RemoveContainerOptionsBuilder;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::facts::Maker;
use super::instance::LIFE;
use super::said;
use super::stream::{ContainerStream, LastWords};
use super::told;
use crate::backend::{Control, Ending, MemoryKiller, Pending, StartError};

/// How long the end of a container may take to be told and cleaned up when Docker or Podman does not answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
const SIGKILL: i64 = 128 + 9;

/// Removes a container that nobody has taken charge of.
pub(super) struct Guard {
    client: Client,
    id: Option<String>,
}

impl Guard {
    pub(super) fn new(client: Client, id: String) -> Self {
        Self { client, id: Some(id) }
    }

    pub(super) fn release(mut self) {
        self.id = None;
    }

    /// At once, for who must know that it is gone; to the end, also if nobody waits for it any more.
    pub(super) async fn remove(mut self) {
        if let Some(id) = self.id.take() {
            let _ = tokio::spawn(see_gone(self.client.clone(), id)).await;
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else { return };
        let client = self.client.clone();
        // Without a runtime this process is ending: whatever is left the next one sweeps.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(see_gone(client, id));
        }
    }
}

/// Whether nobody is there to be asked.
pub(super) async fn is_silent(client: &Client) -> bool {
    !matches!(tokio::time::timeout(PATIENCE, client.ping()).await, Ok(Ok(_)))
}

/// Gives up on what waits for an answer, which may take long, when so many questions in a row were not answered.
pub(super) async fn while_answered<T>(
    client: &Client,
    questions: u32,
    work: impl Future<Output = T>,
) -> Option<T> {
    const PAUSE: Duration = Duration::from_secs(1);
    let silent = async {
        let mut unanswered = 0;
        while unanswered < questions {
            tokio::time::sleep(PAUSE).await;
            unanswered = if is_silent(client).await { unanswered + 1 } else { 0 };
        }
    };
    tokio::select! {
        biased;
        done = work => Some(done),
        () = silent => None,
    }
}

/// The same for what tells why it failed.
pub(super) async fn answered<T>(
    client: &Client,
    work: impl Future<Output = Result<T, StartError>>,
) -> Result<T, StartError> {
    while_answered(client, 2, work).await.unwrap_or_else(|| {
        Err(StartError::new("could not reach Docker or Podman")
            .because("it listens, and no longer answers")
            .with_hint(
                "start it again: `sudo systemctl restart docker`, or `systemctl --user restart podman`",
            ))
    })
}

async fn see_gone(client: Client, id: String) -> bool {
    until_done(move || {
        let (client, id) = (client.clone(), id.clone());
        async move { remove(&client, &id).await }
    })
    .await
}

/// Tries once, and tells whether it was done. Should it fail, as when Docker is being restarted, it is tried again and
/// again in the background: of what this process made, nobody else takes care while it lives.
pub(super) async fn until_done<F>(attempt: impl Fn() -> F + Send + Sync + 'static) -> bool
where
    F: Future<Output = bool> + Send,
{
    const PAUSE: Duration = Duration::from_secs(20);
    if attempt().await {
        return true;
    }
    tokio::spawn(async move {
        let until = tokio::time::Instant::now() + LIFE;
        while tokio::time::Instant::now() < until {
            tokio::time::sleep(PAUSE).await;
            if attempt().await {
                return;
            }
        }
    });
    false
}

/// With all that belongs to it, whatever it does. One that is just being started, stopped or removed cannot be removed at
/// once. Whether it is gone.
pub(super) async fn remove(client: &Client, id: &str) -> bool {
    const PAUSE: Duration = Duration::from_millis(300);
    let until = tokio::time::Instant::now() + PATIENCE * 4;
    loop {
        let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
        let removing = tokio::time::timeout_at(until, client.remove_container(id, Some(options)));
        let why = match while_answered(client, 1, removing).await {
            Some(Ok(Ok(()) | Err(ClientError::DockerResponseServerError { status_code: 404, .. }))) => {
                return true;
            }
            Some(Ok(Err(error))) => said(&error),
            Some(Err(_)) => "it took too long".to_owned(),
            None => {
                tracing::warn!(container = id, "a container could not be removed: nobody answers");
                return false;
            }
        };
        let is_late = tokio::time::Instant::now() + PAUSE >= until;
        if is_late || is_silent(client).await {
            tracing::warn!(container = id, why, "a container could not be removed");
            return false;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// What a task watches over until its end, and who can be asked about it meanwhile.
pub(super) struct Watched<W> {
    what: W,
    words: LastWords,
    kill: CancellationToken,
    ended: watch::Receiver<Option<Ended>>,
}

struct Ended {
    how: Ending,
    is_gone: bool,
}

pub(super) trait Watchable: Send + Sync {
    /// How it ended; nothing while it runs.
    fn ending(&self) -> Pending<'_, Option<Ending>>;
    /// Whether anything in it was killed for memory.
    fn out_of_memory(&self) -> Pending<'_, Option<MemoryKiller>>;
    /// Whatever it does. Whether it is gone; if not, that is tried on.
    fn remove(&self) -> Pending<'_, bool>;
}

impl<W: Watchable + Clone + 'static> Watched<W> {
    /// Nobody is asked before there is a sign that it has ended: the end of its stream. Podman would look without a pause
    /// for whoever waits, and Docker would keep a connection open.
    pub(super) fn new(what: W, stream: &ContainerStream) -> Self {
        let (words, stream_ended) = (stream.words(), stream.ended());
        let kill = CancellationToken::new();
        let (tell, ended) = watch::channel(None);
        let (watched, killed) = (what.clone(), kill.clone());
        tokio::spawn(async move {
            let ending = end_of(&watched, &stream_ended, &killed).await;
            let is_gone = watched.remove().await;
            tell.send(Some(Ended { how: ending, is_gone }))
        });
        Self { what, words, kill, ended }
    }
}

/// By itself, or as we end it.
async fn end_of(what: &impl Watchable, stream_ended: &CancellationToken, kill: &CancellationToken) -> Ending {
    const LOOK: Duration = Duration::from_millis(50);
    tokio::select! {
        // Whoever kills it because of that is late.
        biased;
        () = stream_ended.cancelled() => {}
        () = kill.cancelled() => return Ending::Signalled(9),
        () = tokio::time::sleep(LIFE) => {
            let hours = LIFE.as_secs() / 3600;
            return Ending::Lost(format!("it had lived for {hours} hours, the most a container may"));
        }
    }
    let until = tokio::time::Instant::now() + PATIENCE;
    loop {
        if let Some(ending) = what.ending().await {
            return ending;
        }
        if tokio::time::Instant::now() >= until {
            return Ending::Lost("the connection to its container broke while it ran".into());
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            () = kill.cancelled() => return Ending::Signalled(9),
        }
    }
}

impl<W> Drop for Watched<W> {
    fn drop(&mut self) {
        self.kill.cancel();
    }
}

impl<W: Watchable> Control for Watched<W> {
    fn start_failure(&mut self) -> Pending<'_, Option<StartError>> {
        Box::pin(async {
            // It was started, or there would be no stream; what is left to go wrong is the runner itself.
            let said = self.words.text();
            let error = StartError::new("could not start the runner in the container");
            (!said.is_empty()).then(|| error.because(said))
        })
    }

    fn kill(&mut self) {
        self.kill.cancel();
    }

    /// The state of a container tells of its end, not of what was killed inside while it goes on.
    fn trusts_runner_on_memory(&self) -> bool {
        true
    }

    fn wait(&mut self) -> Pending<'_, Ending> {
        Box::pin(async {
            match self.ended.wait_for(Option::is_some).await {
                Ok(ended) => ended.as_ref().map(|ended| ended.how.clone()),
                Err(_) => None,
            }
            .unwrap_or_else(|| Ending::Lost("nobody watches over it any more".into()))
        })
    }

    fn is_left(&self) -> bool {
        self.ended.borrow().as_ref().is_some_and(|ended| !ended.is_gone)
    }

    /// As long as `end_of` may look for the cause, and one answer more.
    fn settles_within(&self) -> Duration {
        PATIENCE * 2
    }

    fn out_of_memory(&mut self) -> Pending<'_, Option<MemoryKiller>> {
        self.what.out_of_memory()
    }
}

/// One container.
#[derive(Clone)]
pub(super) struct Container {
    pub(super) client: Client,
    pub(super) id: String,
    pub(super) maker: Maker,
}

impl Watchable for Container {
    fn ending(&self) -> Pending<'_, Option<Ending>> {
        Box::pin(async {
            match inspect(&self.client, &self.id).await {
                Ok(ContainerInspectResponse { state: Some(state), .. }) => of_state(&state, self.maker),
                Ok(_) => Some(Ending::Lost("its state is not told".into())),
                Err(ClientError::DockerResponseServerError { status_code: 404, .. }) => {
                    Some(Ending::Lost("somebody removed its container".into()))
                }
                Err(error) => {
                    Some(Ending::Lost(format!("the connection to its container broke: {}", said(&error))))
                }
            }
        })
    }

    fn out_of_memory(&self) -> Pending<'_, Option<MemoryKiller>> {
        Box::pin(async {
            let state = inspect(&self.client, &self.id).await.ok()?.state?;
            state.oom_killed.unwrap_or(false).then_some(MemoryKiller::Kernel)
        })
    }

    fn remove(&self) -> Pending<'_, bool> {
        Box::pin(see_gone(self.client.clone(), self.id.clone()))
    }
}

/// The exit code of a container that has ended. One that Podman is stopping runs no longer and has not ended: its code
/// is zero until the true one is known, and so is the time of its end.
pub(super) fn exit_code(state: &ContainerState) -> Option<i64> {
    const NEVER: &str = "0001-";
    let is_over = matches!(state.status, Some(Status::EXITED | Status::DEAD | Status::REMOVING));
    let is_settled = state.finished_at.as_deref().is_some_and(|at| !at.starts_with(NEVER));
    (is_over && is_settled).then_some(state.exit_code).flatten()
}

/// Nothing while it runs, or while its end is not settled.
fn of_state(state: &ContainerState, maker: Maker) -> Option<Ending> {
    let code = exit_code(state)?;
    if state.oom_killed == Some(true) && code != 0 {
        return Some(Ending::OutOfMemory(MemoryKiller::Kernel));
    }
    Some(match state.error.as_deref() {
        Some(error) if !error.is_empty() => Ending::Lost(error.to_owned()),
        _ if code == SIGKILL => Ending::Lost(killed(maker).into()),
        _ if (129..=128 + 64).contains(&code) => Ending::Signalled((code - 128) as i32),
        _ => Ending::Exited(i32::try_from(code).unwrap_or(-1)),
    })
}

/// Nobody said that it was for memory. Docker would have; Podman may have missed it, as it always does on cgroup v1.
fn killed(maker: Maker) -> &'static str {
    match maker {
        Maker::Docker => "somebody killed its container",
        Maker::Podman => {
            "its container was killed, by somebody or for want of memory, which Podman does not tell apart"
        }
    }
}

/// Tried for a while: whoever restarts answers again soon, and whoever is gone must not be waited for.
pub(super) async fn inspect(client: &Client, id: &str) -> Result<ContainerInspectResponse, ClientError> {
    const PAUSE: Duration = Duration::from_millis(250);
    let until = tokio::time::Instant::now() + PATIENCE / 2;
    loop {
        match tokio::time::timeout(PATIENCE / 2, told::container(client, id)).await {
            Ok(Ok(found)) => return Ok(found),
            // A container that is just being removed is an error of Podman's own first, and missing later.
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
    use super::*;

    #[test]
    fn every_end_has_its_cause() {
        let state = |code: i64| ContainerState {
            exit_code: Some(code),
            status: Some(Status::EXITED),
            finished_at: Some("2026-01-02T03:04:05Z".into()),
            ..Default::default()
        };
        let ended = |state: ContainerState| of_state(&state, Maker::Docker).unwrap();
        assert_eq!(ended(state(0)), Ending::Exited(0));
        assert_eq!(ended(state(3)), Ending::Exited(3));
        assert_eq!(ended(state(139)), Ending::Signalled(11));
        assert_eq!(ended(state(137)), Ending::Lost("somebody killed its container".into()));
        let memory = ContainerState { oom_killed: Some(true), ..state(137) };
        for maker in [Maker::Docker, Maker::Podman] {
            assert_eq!(of_state(&memory, maker), Some(Ending::OutOfMemory(MemoryKiller::Kernel)));
        }
        // Podman says so of both.
        let Some(Ending::Lost(cause)) = of_state(&state(137), Maker::Podman) else { panic!("it was killed") };
        assert!(cause.contains("by somebody or for want of memory"), "{cause}");
        // Something inside was, and it went on.
        let survived = ContainerState { oom_killed: Some(true), ..state(0) };
        assert_eq!(ended(survived), Ending::Exited(0));
        let odd = ContainerState { error: Some("exec format error".into()), ..state(126) };
        assert_eq!(ended(odd), Ending::Lost("exec format error".into()));
    }

    /// As Podman 4.3 tells of a container that somebody removes, and Docker of one that runs.
    #[test]
    fn what_has_not_ended_has_not_succeeded() {
        let told = |status, finished_at: &str| ContainerState {
            exit_code: Some(0),
            status: Some(status),
            finished_at: Some(finished_at.into()),
            ..Default::default()
        };
        let (never, now) = ("0001-01-01T00:00:00Z", "2026-01-02T03:04:05Z");
        for (state, settled) in [
            (told(Status::RUNNING, never), false),
            (told(Status::PAUSED, never), false),
            (told(Status::STOPPING, never), false),
            (told(Status::STOPPING, now), false),
            (told(Status::REMOVING, never), false),
            (told(Status::EXITED, never), false),
            (told(Status::EXITED, now), true),
            (told(Status::REMOVING, now), true),
            (ContainerState { exit_code: None, ..told(Status::EXITED, now) }, false),
        ] {
            assert_eq!(of_state(&state, Maker::Podman), settled.then_some(Ending::Exited(0)), "{state:?}");
        }
    }
}
