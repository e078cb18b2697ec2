//! One container from its start to its end: a task watches it, tells how it ended, and removes it.

use std::time::Duration;

use bollard::Docker as Client;
use bollard::errors::Error as ClientError;
use bollard::models::{ContainerInspectResponse, ContainerState};
use bollard::query_parameters::{
    InspectContainerOptions, RemoveContainerOptionsBuilder, WaitContainerOptions,
};
use futures_util::StreamExt;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::said;
use super::stream::LastWords;
use crate::backend::{Control, Ending, MemoryKiller, Pending, StartError};

/// How long the end of a container may take to be told and cleaned up when Docker or Podman does not answer.
const PATIENCE: Duration = Duration::from_secs(5);
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

    /// At once, for who must know that it is gone.
    pub(super) async fn remove(mut self) {
        if let Some(id) = self.id.take() {
            remove(&self.client, &id).await;
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else { return };
        let client = self.client.clone();
        // Without a runtime this process is ending: whatever is left the next one sweeps.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { remove(&client, &id).await });
        }
    }
}

/// With all that belongs to it, whatever it does. What cannot be removed now is left to the sweep.
pub(super) async fn remove(client: &Client, id: &str) {
    let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
    let removed = tokio::time::timeout(PATIENCE * 4, client.remove_container(id, Some(options))).await;
    match removed {
        Ok(Ok(()) | Err(ClientError::DockerResponseServerError { status_code: 404 | 409, .. })) => {}
        Ok(Err(error)) => {
            tracing::warn!(container = id, error = said(&error), "a container could not be removed")
        }
        Err(_) => tracing::warn!(container = id, "a container took too long to be removed"),
    }
}

pub(super) struct ContainerControl {
    client: Client,
    id: String,
    words: LastWords,
    kill: CancellationToken,
    ended: watch::Receiver<Option<Ending>>,
}

impl ContainerControl {
    /// Takes charge of a container that was started. It ends by itself after `life`.
    pub(super) fn new(client: Client, id: String, words: LastWords, life: Duration) -> Self {
        let kill = CancellationToken::new();
        let (tell, ended) = watch::channel(None);
        tokio::spawn(see_through(client.clone(), id.clone(), kill.clone(), life, tell));
        Self { client, id, words, kill, ended }
    }
}

impl Drop for ContainerControl {
    fn drop(&mut self) {
        self.kill.cancel();
    }
}

impl Control for ContainerControl {
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
                Ok(ending) => ending.clone().unwrap_or(Ending::Exited(0)),
                Err(_) => Ending::Lost("nobody watches over it any more".into()),
            }
        })
    }

    fn out_of_memory(&mut self) -> Pending<'_, Option<MemoryKiller>> {
        Box::pin(async {
            let state = inspect(&self.client, &self.id).await.ok()?.state?;
            state.oom_killed.unwrap_or(false).then_some(MemoryKiller::Kernel)
        })
    }
}

async fn see_through(
    client: Client,
    id: String,
    kill: CancellationToken,
    life: Duration,
    tell: watch::Sender<Option<Ending>>,
) {
    let mut waited = client.wait_container(&id, None::<WaitContainerOptions>);
    let ending = tokio::select! {
        // Its exit code is in its state, with what else there is to know.
        _ = waited.next() => ending(&client, &id).await,
        () = kill.cancelled() => Ending::Signalled(9),
        () = tokio::time::sleep(life) => {
            Ending::Lost(format!("it had lived for {} hours, the most a container may", life.as_secs() / 3600))
        }
    };
    drop(waited);
    remove(&client, &id).await;
    let _ = tell.send(Some(ending));
}

async fn ending(client: &Client, id: &str) -> Ending {
    match inspect(client, id).await {
        Ok(ContainerInspectResponse { state: Some(state), .. }) => of_state(&state),
        Ok(_) => Ending::Lost("its state is not told".into()),
        Err(ClientError::DockerResponseServerError { status_code: 404, .. }) => {
            Ending::Lost("somebody removed its container".into())
        }
        Err(error) => Ending::Lost(format!("the connection to its container broke: {}", said(&error))),
    }
}

fn of_state(state: &ContainerState) -> Ending {
    let code = state.exit_code.unwrap_or(0);
    if state.oom_killed == Some(true) && code != 0 {
        return Ending::OutOfMemory(MemoryKiller::Kernel);
    }
    match (state.running, state.error.as_deref()) {
        (Some(true), _) => Ending::Lost("the connection to its container broke while it ran".into()),
        (_, Some(error)) if !error.is_empty() => Ending::Lost(error.to_owned()),
        _ if code == SIGKILL => Ending::Lost("somebody killed its container".into()),
        _ if (129..=128 + 64).contains(&code) => Ending::Signalled((code - 128) as i32),
        _ => Ending::Exited(i32::try_from(code).unwrap_or(-1)),
    }
}

/// Tried for a while: whoever restarts answers again soon, and whoever is gone must not be waited for.
async fn inspect(client: &Client, id: &str) -> Result<ContainerInspectResponse, ClientError> {
    const PAUSE: Duration = Duration::from_millis(250);
    let until = tokio::time::Instant::now() + PATIENCE / 2;
    loop {
        let asked = client.inspect_container(id, None::<InspectContainerOptions>);
        match tokio::time::timeout(PATIENCE / 2, asked).await {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(error @ ClientError::DockerResponseServerError { .. })) => return Err(error),
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
        let state =
            |code: i64| ContainerState { exit_code: Some(code), running: Some(false), ..Default::default() };
        assert_eq!(of_state(&state(0)), Ending::Exited(0));
        assert_eq!(of_state(&state(3)), Ending::Exited(3));
        assert_eq!(of_state(&state(139)), Ending::Signalled(11));
        assert_eq!(of_state(&state(137)), Ending::Lost("somebody killed its container".into()));
        let memory = ContainerState { oom_killed: Some(true), ..state(137) };
        assert_eq!(of_state(&memory), Ending::OutOfMemory(MemoryKiller::Kernel));
        // Something inside was, and it went on.
        let survived = ContainerState { oom_killed: Some(true), ..state(0) };
        assert_eq!(of_state(&survived), Ending::Exited(0));
        let odd = ContainerState { error: Some("exec format error".into()), ..state(126) };
        assert_eq!(of_state(&odd), Ending::Lost("exec format error".into()));
    }
}
