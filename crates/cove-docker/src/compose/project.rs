//! The containers of one session's Compose file, from the first creation to the last removal.
//!
//! A start runs in this order. `start_project` makes a `ComposeProject` first, so that dropping the future at any later
//! point takes the project down. Compose then creates all containers without starting them (`up --no-start`). Cove
//! inspects each one, records the id of the main one in `main`, and compares each with the document; any difference
//! ends the start. Cove joins containers to the operator's network, lets Compose start them (`up -d --no-recreate`),
//! starts the runner in the main one with an exec and records that exec's id in `runner`. The watch task of `EngineControl` later
//! reads both ids to learn how the session ended, and calls `shut_down`, which sets `is_down` so that `Drop` does not
//! repeat the work.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bollard::Docker;
use bollard::errors::Error;
use bollard::exec::{CreateExecOptions, StartExecOptions, StartExecResults};
use bollard::models::{ContainerInspectResponse, ContainerSummary, NetworkConnectRequest};
use bollard::query_parameters::{LogsOptionsBuilder, RemoveContainerOptionsBuilder, RemoveVolumeOptionsBuilder};
use cove_jail::guest::{COMMAND_FOLDER, RUNNER_PROGRAM, SEARCH_PATH, WORKSPACE};
use futures_util::StreamExt;

use super::super::control::{
    ANSWER_TIMEOUT, ContainerHandle, WatchTarget, exit_code, inspect_with_retries, is_unresponsive,
    retry_in_background, spawn_removal, while_responsive,
};
use super::super::engine::Engine;
use super::super::labels::{self, LabelledResources, belongs_to_project};
use super::super::plan::{data_limit, process_limits};
use super::super::stream::{ContainerInput, ContainerOutput};
use super::super::{is_missing, libpod};
use super::check::ServiceNetwork;
use super::environment::environment_differences;
use super::{PreparedProject, read_back};
use cove_core::backend::{MemoryKiller, SandboxEnd};
use cove_core::error::{Failure, display_value};
use cove_core::output::neutralise;
use cove_core::policy::SandboxNetwork;

/// The label that Compose sets on everything it creates. Its value is the project name.
pub const LABEL_PROJECT: &str = "com.docker.compose.project";
const LABEL_SERVICE: &str = "com.docker.compose.service";

/// The time limit for taking a project down.
const TAKE_DOWN_TIMEOUT: Duration = Duration::from_secs(60);
/// The time limit for one round of listing and removing.
const ROUND_TIMEOUT: Duration = Duration::from_secs(20);

/// A started project with the streams of its runner.
pub struct RunningProject {
    /// The runner's output. Standard error is marked separately in it.
    pub output: ContainerOutput,
    pub input: ContainerInput,
    pub project: ComposeProject,
    /// The `PATH` of the main container.
    pub path: String,
}

/// Everything that Compose created for a session. Dropping it takes the project down in the background.
#[derive(Debug)]
pub struct ComposeProject {
    name: String,
    /// The main container. Its id is empty until Compose has created it.
    main: ContainerHandle,
    /// The id of the runner's exec. Empty until the runner is created.
    runner: String,
    /// Set by `shut_down`, cleared after a failed start; read by `Drop`.
    is_down: bool,
}

/// Starts a project and its runner. If a step fails, removes everything that was created and returns that step's error.
pub(super) async fn start_project(api: &Docker, ready: &PreparedProject<'_>) -> Result<RunningProject, Failure> {
    let mut project = ComposeProject {
        name: ready.request.project.clone(),
        main: ContainerHandle { client: api.clone(), id: String::new(), engine: ready.client.engine },
        runner: String::new(),
        is_down: false,
    };
    match start_services(api, ready, &mut project).await {
        Ok((output, input, path)) => Ok(RunningProject { output, input, project, path }),
        Err(error) => {
            project.shut_down().await;
            // Compose may have been killed at its time limit, so dropping the project looks again.
            project.is_down = false;
            Err(error)
        }
    }
}

fn start_error(ready: &PreparedProject<'_>) -> Failure {
    Failure::operator(format!("could not start `{}`", display_value(&ready.request.name)))
}

/// Creates, verifies and starts the containers, then starts the runner. Returns its streams and the `PATH` of the main
/// container. Fails at the first step that fails; the caller then takes the project down.
async fn start_services(
    api: &Docker,
    ready: &PreparedProject<'_>,
    project: &mut ComposeProject,
) -> Result<(ContainerOutput, ContainerInput, String), Failure> {
    let PreparedProject { client, request, checked, .. } = ready;
    let unanswered = |error: Error| start_error(ready).because(error);
    let said = |failure: super::CommandFailure| failure.into_error(start_error(ready).message);
    ready.run(&["up", "--no-start", "--no-build"]).await.map_err(said)?;

    let made = project.created_containers(checked.services.len()).await.map_err(unanswered)?;
    let mut wrong = Vec::new();
    let mut path = SEARCH_PATH.to_owned();
    for name in checked.services.keys() {
        let count = made.iter().filter(|(member, _)| member == name).count();
        if count != 1 {
            wrong.push(format!("`{name}`: there are {count} containers"));
        }
    }
    for (name, id) in &made {
        let found = inspect_with_retries(api, id).await.map_err(unanswered)?;
        wrong.extend(read_back::container_differences(name, checked, &ready.settings(), &found));
        let mut others = network_differences(api, client.engine, &found).await.map_err(unanswered)?;
        if let Some(member) = checked.services.get(name) {
            others.extend(environment_differences(api, client.engine, member, &found).await.map_err(unanswered)?);
        }
        if let (Some(runtime), false) = (&request.policy.runtime, client.engine.traits().reports_runtime) {
            others.extend(libpod::runtime_difference(client.program.host(), id, runtime).await);
        }
        wrong.extend(others.iter().map(|what| format!("`{name}`: {what}")));
        if *name == checked.main {
            project.main.id.clone_from(id);
            path = search_path(&found).unwrap_or(path);
        }
    }
    if !wrong.is_empty() {
        return Err(start_error(ready)
            .because(format!("what Compose made is not what was asked for: {}", wrong.join("; ")))
            .with_hint("use another version of Compose, of Docker or of Podman"));
    }
    if let SandboxNetwork::Named(network) = &request.policy.network {
        for (name, id) in &made {
            if matches!(checked.services[name].network, ServiceNetwork::Joined(_)) {
                let request = NetworkConnectRequest { container: id.clone(), ..Default::default() };
                api.connect_network(network, request).await.map_err(|error| {
                    let message = format!("could not join the network `{}`", display_value(network));
                    Failure::operator(message).because(error).with_hint("choose one with `--network`")
                })?;
            }
        }
    }
    if let Err(failure) = ready.run(&["up", "-d", "--no-recreate", "--no-build"]).await {
        return Err(match project.main_end_report().await {
            Some(words) => start_error(ready).because(format!("{}\n{words}", failure.output_tail)),
            None => said(failure),
        });
    }
    let (output, input) = start_runner(api, ready, &path, project).await?;
    Ok((output, input, path))
}

fn search_path(found: &ContainerInspectResponse) -> Option<String> {
    let environment = found.config.as_ref()?.env.as_ref()?;
    let path = environment.iter().find_map(|line| line.strip_prefix("PATH="))?;
    (!path.is_empty()).then(|| path.to_owned())
}

/// Starts the runner in the main container and returns its streams. Fails with the engine's error, or with a report if
/// the main container has ended.
async fn start_runner(
    api: &Docker,
    ready: &PreparedProject<'_>,
    path: &str,
    project: &mut ComposeProject,
) -> Result<(ContainerOutput, ContainerInput), Failure> {
    let policy = &ready.request.policy;
    let mut command = vec![RUNNER_PROGRAM.to_owned(), "runner".to_owned(), data_limit(policy), process_limits(policy)];
    // A runtime chosen by the operator may ignore the seccomp profile that Docker passes on.
    if ready.profile.is_none() || policy.runtime.is_some() {
        command.push("--filter".to_owned());
    }
    let mut env = ready.request.env.clone();
    env.push(format!("PATH={COMMAND_FOLDER}:{path}"));
    let options = CreateExecOptions {
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        tty: Some(false),
        env: Some(env),
        cmd: Some(command),
        privileged: Some(false),
        user: Some(format!("{}:{}", policy.user.uid, policy.user.gid)),
        working_dir: Some(WORKSPACE.to_owned()),
        ..Default::default()
    };
    let started = async {
        let created = api.create_exec(&project.main.id, options).await?;
        project.runner.clone_from(&created.id);
        api.start_exec(&created.id, Some(StartExecOptions { detach: false, ..Default::default() })).await
    };
    let words = match started.await {
        Ok(StartExecResults::Attached { output, input }) => return Ok((output, input)),
        Ok(StartExecResults::Detached) => "the runner was started without its streams".to_owned(),
        Err(error) => match project.main_end_report().await {
            Some(words) => words,
            None => return Err(start_error(ready).because(error)),
        },
    };
    Err(start_error(ready).because(words).with_hint("see that its main container goes on running"))
}

/// Returns what is wrong with the networks that a container is in. Fails if the engine does not answer.
async fn network_differences(
    api: &Docker,
    engine: Engine,
    found: &ContainerInspectResponse,
) -> Result<Vec<String>, Error> {
    let mut wrong = Vec::new();
    let joined = found.network_settings.as_ref().and_then(|settings| settings.networks.as_ref());
    for name in joined.into_iter().flat_map(HashMap::keys).filter(|name| *name != "none" && *name != "host") {
        let network = api.inspect_network(name, None).await?;
        wrong.extend(read_back::network_difference(name, engine, &network));
    }
    Ok(wrong)
}

impl ComposeProject {
    /// Returns the id of the main container.
    pub fn main(&self) -> &str {
        &self.main.id
    }

    /// Returns how the runner ended, or `None` while it runs. If the main container has ended, so has the runner.
    pub async fn runner_end(&self) -> Option<SandboxEnd> {
        let mut seen = self.inspect_end().await?;
        // After a kill, Docker learns with a delay whether it was for memory, and whether the whole container has
        // ended.
        for _ in 0..5 {
            if seen != SandboxEnd::Signalled(9) && seen != self.killed_end() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
            seen = self.inspect_end().await?;
        }
        Some(seen)
    }

    async fn inspect_end(&self) -> Option<SandboxEnd> {
        let ContainerHandle { client, id, .. } = &self.main;
        let lost = |why: String| Some(SandboxEnd::Lost(why));
        let container = match inspect_with_retries(client, id).await {
            Ok(found) => found.state.unwrap_or_default(),
            Err(error) if is_missing(&error) => return lost("its container was removed from outside".into()),
            Err(error) => return lost(format!("the engine does not answer: {error}")),
        };
        let runs = container.running == Some(true);
        let code = if runs {
            match tokio::time::timeout(ANSWER_TIMEOUT, client.inspect_exec(&self.runner)).await {
                Err(_) => return lost("the engine does not answer".into()),
                Ok(Ok(found)) if found.running == Some(true) => return None,
                Ok(Ok(found)) => found.exit_code.unwrap_or(-1),
                Ok(Err(error)) => return lost(format!("the runner is gone: {error}")),
            }
        } else {
            exit_code(&container)?
        };
        Some(match code {
            137 if container.oom_killed == Some(true) => SandboxEnd::OutOfMemory(MemoryKiller::Kernel),
            137 if !runs => self.killed_end(),
            // Exit codes above 128 mean a signal, as in a shell.
            129..=159 => SandboxEnd::Signalled(i32::try_from(code - 128).unwrap_or(9)),
            _ => SandboxEnd::Exited(i32::try_from(code).unwrap_or(-1)),
        })
    }

    fn killed_end(&self) -> SandboxEnd {
        SandboxEnd::Lost(format!("its main container was killed{}", self.main.engine.traits().kill_cause))
    }

    /// Returns `Kernel` if the kernel killed a process in the main container for lack of memory.
    pub async fn memory_killer(&self) -> Option<MemoryKiller> {
        self.main.memory_killer().await
    }

    /// Kills and removes everything with the project's name. Returns true if nothing is left; otherwise removal is
    /// retried in the background. Does not use Compose, which would first ask every container to stop; the project
    /// label finds them all.
    pub async fn shut_down(&mut self) -> bool {
        self.is_down = true;
        // A separate task finishes even if the caller drops this future.
        tokio::spawn(take_down_with_retries(self.main.client.clone(), self.name.clone())).await.unwrap_or(false)
    }

    /// Returns the service name and the id of each container. Fails if the engine does not answer.
    async fn service_containers(&self) -> Result<Vec<(String, String)>, Error> {
        let found = project_containers(&self.main.client, &self.name).await?;
        let member = |labels: Option<HashMap<String, String>>| labels?.remove(LABEL_SERVICE);
        Ok(found.into_iter().filter_map(|one| Some((member(one.labels).unwrap_or_default(), one.id?))).collect())
    }

    /// Returns the containers that Compose has just created. Looks again for a short time if there are too few, because
    /// Podman leaves containers out of its list while it is busy with them.
    async fn created_containers(&self, expected: usize) -> Result<Vec<(String, String)>, Error> {
        let mut found = self.service_containers().await?;
        for _ in 0..10 {
            if found.len() >= expected {
                break;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
            found = self.service_containers().await?;
        }
        Ok(found)
    }

    /// Returns the exit code and the last log lines of the main container, or `None` if it has not ended.
    pub async fn main_end_report(&self) -> Option<String> {
        let ContainerHandle { client, id, .. } = &self.main;
        let state = inspect_with_retries(client, id).await.ok()?.state?;
        if state.running == Some(true) || state.exit_code == Some(0) && state.started_at.is_none() {
            return None;
        }
        let options = LogsOptionsBuilder::default().stdout(true).stderr(true).tail("20").build();
        let mut logs = client.logs(id, Some(options));
        let mut words = Vec::new();
        let reading = async {
            while let Some(Ok(piece)) = logs.next().await {
                words.extend_from_slice(&piece.into_bytes());
                if words.len() > 16 * 1024 {
                    break;
                }
            }
        };
        // After the time limit, the lines read so far are enough.
        let _ = tokio::time::timeout(Duration::from_secs(5), reading).await;
        let code = state.exit_code.unwrap_or(-1);
        let words = neutralise(&words);
        Some(format!("the main container ended with exit code {code}\n{words}").trim_end().to_owned())
    }
}

impl Drop for ComposeProject {
    fn drop(&mut self) {
        if !self.is_down {
            spawn_removal(take_down_interrupted(self.main.client.clone(), std::mem::take(&mut self.name)));
        }
    }
}

/// Takes down a project whose Compose may have been killed: a busy engine finishes the requests of a killed client even
/// seconds later, so this function looks again.
async fn take_down_interrupted(api: Docker, project: String) -> bool {
    let mut is_gone = take_down_with_retries(api.clone(), project.clone()).await;
    for pause in [2, 8, 30] {
        tokio::time::sleep(Duration::from_secs(pause)).await;
        is_gone &= take_down_or_warn(&api, &project).await;
    }
    is_gone
}

async fn take_down_with_retries(api: Docker, project: String) -> bool {
    retry_in_background(move || {
        let (api, project) = (api.clone(), project.clone());
        async move { take_down_or_warn(&api, &project).await }
    })
    .await
}

/// Takes a project down. Returns true if nothing is left; otherwise logs what is.
pub(in super::super) async fn take_down_or_warn(api: &Docker, project: &str) -> bool {
    let left = take_down(api, project).await;
    if !left.is_empty() {
        tracing::warn!(project, left = left.join("; "), "a Compose project could not be removed");
    }
    left.is_empty()
}

fn project_labels(project: &str) -> [String; 1] {
    [format!("{LABEL_PROJECT}={project}")]
}

async fn project_containers(api: &Docker, project: &str) -> Result<Vec<ContainerSummary>, Error> {
    let mut found = labels::list_containers(api, &project_labels(project)).await?;
    found.retain(|one| belongs_to_project(one, project));
    Ok(found)
}

/// Returns true if no exec runs in any container of the project. The runner is an exec and ends with its Cove process,
/// while the containers go on. Returns false if the engine does not answer.
pub async fn is_abandoned(api: &Docker, project: &str) -> bool {
    let Ok(members) = project_containers(api, project).await else { return false };
    for id in members.into_iter().filter_map(|member| member.id) {
        let Ok(found) = inspect_with_retries(api, &id).await else { return false };
        for exec in found.exec_ids.unwrap_or_default() {
            match api.inspect_exec(&exec).await {
                Ok(found) if found.running == Some(false) => {}
                Err(error) if is_missing(&error) => {}
                _ => return false,
            }
        }
    }
    true
}

/// Kills and removes a whole project, also one of another process. Returns what is left, one entry each; empty on
/// success.
pub async fn take_down(api: &Docker, project: &str) -> Vec<String> {
    let began = Instant::now();
    let mut was_empty = false;
    loop {
        let round = tokio::time::timeout(ROUND_TIMEOUT, remove_all(api, project));
        let (left, is_known) = match while_responsive(api, 1, round).await {
            Some(Ok(Ok(left))) => (left, true),
            Some(Ok(Err(error))) => (vec![error.to_string()], false),
            Some(Err(_)) => (vec!["it took too long".to_owned()], false),
            None => return vec!["the engine does not answer".to_owned()],
        };
        if !is_known && is_unresponsive(api).await {
            return left;
        }
        // Look twice: the engine may finish a request of a killed Compose after the first look.
        if left.is_empty() && was_empty {
            return left;
        }
        was_empty = left.is_empty();
        if began.elapsed() > TAKE_DOWN_TIMEOUT {
            return left;
        }
        tokio::time::sleep(Duration::from_millis(if was_empty { 100 } else { 300 })).await;
    }
}

/// Tries to remove everything in the project once. Returns what it found, one entry each. Fails if the engine does not
/// answer.
async fn remove_all(api: &Docker, project: &str) -> Result<Vec<String>, Error> {
    let marked = LabelledResources::find(api, &project_labels(project)).await?;
    let members = marked.containers.into_iter().filter(|one| belongs_to_project(one, project));
    let mut found = Vec::new();
    for id in members.filter_map(|one| one.id) {
        let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
        let removed = api.remove_container(&id, Some(options)).await;
        found.push(describe_leftover("the container", &id, removed));
    }
    for name in marked.networks.into_iter().filter_map(|one| one.name) {
        let removed = api.remove_network(&name).await;
        found.push(describe_leftover("the network", &name, removed));
    }
    for name in marked.volumes.into_iter().map(|one| one.name) {
        let options = RemoveVolumeOptionsBuilder::default().force(true).build();
        let removed = api.remove_volume(&name, Some(options)).await;
        found.push(describe_leftover("the volume", &name, removed));
    }
    Ok(found)
}

fn describe_leftover(what: &str, name: &str, removed: Result<(), Error>) -> String {
    match removed {
        Ok(()) => format!("{what} `{name}` was there"),
        Err(error) => format!("{what} `{name}`: {error}"),
    }
}
