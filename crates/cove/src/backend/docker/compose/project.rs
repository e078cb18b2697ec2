//! The containers of one session's Compose file, from the moment the first is made until the last thing is gone. They
//! are made, compared with what must hold, and only then started. Whoever drops a project takes it down.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bollard::Docker;
use bollard::errors::Error;
use bollard::exec::{CreateExecOptions, StartExecOptions, StartExecResults};
use bollard::models::{ContainerInspectResponse, ContainerSummary, NetworkConnectRequest};
use bollard::query_parameters::{
    LogsOptionsBuilder, RemoveContainerOptionsBuilder, RemoveVolumeOptionsBuilder,
};
use cove_jail::plan::COMMANDS;
use futures_util::StreamExt;

use super::super::control::{PATIENCE, exit_code, inspect, is_silent, until_done, while_answered};
use super::super::facts::Maker;
use super::super::libpod;
use super::super::marked::{self, Marked, is_member};
use super::super::plan::{PATH, data_limit};
use super::super::stream::{Input, Output};
use super::check::Net;
use super::document::RUNNER;
use super::{Asked, Compose, Ready, environment, verify};
use crate::backend::{Ending, MemoryKiller, StartError};
use crate::error::shown;
use crate::output::harmless;
use crate::policy::Network;

/// The label that Compose marks all that it makes with.
pub const PROJECT: &str = "com.docker.compose.project";
const MEMBER: &str = "com.docker.compose.service";

/// Taking a project down has to end, too.
const DOWN: Duration = Duration::from_secs(60);
/// For one look and what it leads to.
const ROUND: Duration = Duration::from_secs(20);

/// A runner in the main container, and all around it.
pub struct Up {
    /// What the runner writes, with standard error apart.
    pub output: Output,
    pub input: Input,
    pub project: Project,
    /// Where the main container looks for programs.
    pub path: String,
}

/// Everything that was made for a session. Dropping it takes it down, in the background.
#[derive(Debug)]
pub struct Project {
    api: Docker,
    kind: Maker,
    name: String,
    /// The main container.
    main: String,
    /// The runner in it.
    runner: String,
    is_down: bool,
}

pub(super) async fn up(
    compose: &Compose,
    api: &Docker,
    asked: &Asked<'_>,
    ready: &Ready,
) -> Result<Up, StartError> {
    let mut project = Project {
        api: api.clone(),
        kind: compose.kind,
        name: asked.project.to_owned(),
        main: String::new(),
        runner: String::new(),
        is_down: false,
    };
    match started(compose, asked, ready, &mut project).await {
        Ok(((output, input), path)) => Ok(Up { output, input, project, path }),
        Err(error) => {
            project.down().await;
            Err(error)
        }
    }
}

type Streams = (Output, Input);

async fn started(
    compose: &Compose,
    asked: &Asked<'_>,
    ready: &Ready,
    project: &mut Project,
) -> Result<(Streams, String), StartError> {
    let api = project.api.clone();
    let failed = || StartError::new(format!("could not start `{}`", shown(asked.name)));
    let said = |failure: super::command::Failure| failure.into_error(failed().message);
    let asking = |error: Error| failed().because(error);
    compose.run(asked, ready, &["up", "--no-start", "--no-build"]).await.map_err(said)?;

    let made = project.members().await.map_err(asking)?;
    let profile = compose.profile(ready);
    let terms = compose.terms(asked, ready, profile.as_deref());
    let mut wrong = Vec::new();
    let mut path = PATH.to_owned();
    for name in ready.checked.members.keys() {
        let count = made.iter().filter(|(member, _)| member == name).count();
        if count != 1 {
            wrong.push(format!("`{name}`: there are {count} containers"));
        }
    }
    for (name, id) in &made {
        let found = inspect(&api, id).await.map_err(asking)?;
        wrong.extend(verify::container(name, &ready.checked, &terms, &found));
        wrong.extend(environment::differs(&api, &ready.checked, name, &terms, &found).await.map_err(asking)?);
        wrong.extend(closed(&api, compose.kind, name, &found).await.map_err(asking)?);
        let runtime = asked.policy.runtime.as_deref().filter(|_| compose.kind == Maker::Podman);
        if let Some(runtime) = runtime {
            let other = libpod::other_runtime(compose.program.host(), id, runtime).await;
            wrong.extend(other.map(|what| format!("`{name}`: {what}")));
        }
        if *name == ready.checked.main {
            path = path_of(&found).unwrap_or(path);
        }
    }
    if !wrong.is_empty() {
        return Err(failed()
            .because(format!("what Compose made is not what was asked for: {}", wrong.join("; ")))
            .with_hint("use another version of Compose, of Docker or of Podman"));
    }
    if let Network::Named(network) = &asked.policy.network {
        for (name, id) in &made {
            if matches!(ready.checked.members[name].net, Net::Joined(_)) {
                let request = NetworkConnectRequest { container: id.clone(), ..Default::default() };
                api.connect_network(network, request).await.map_err(|error| {
                    let message = format!("could not join the network `{}`", shown(network));
                    StartError::new(message).because(error).with_hint("choose one with `--network`")
                })?;
            }
        }
    }
    let start = ["up", "-d", "--no-recreate", "--no-build"];
    let up = compose.run(asked, ready, &start).await;
    for (name, id) in made {
        if name == ready.checked.main {
            project.main = id;
        }
    }
    if let Err(failure) = up {
        return Err(match project.last_words().await {
            Some(words) => failed().because(format!("{}\n{words}", failure.words)),
            None => said(failure),
        });
    }
    // A runtime of its own may know nothing of the filter that Docker is given.
    let filter_inside = profile.is_none() || asked.policy.runtime.is_some();
    let streams = exec(&api, asked, filter_inside, &path, project).await.map_err(|error| match error {
        Ok(error) => failed().because(error),
        Err(words) => failed().because(words).with_hint("see that its main container goes on running"),
    })?;
    Ok((streams, path))
}

fn path_of(found: &ContainerInspectResponse) -> Option<String> {
    let environment = found.config.as_ref()?.env.as_ref()?;
    let path = environment.iter().find_map(|line| line.strip_prefix("PATH="))?;
    (!path.is_empty()).then(|| path.to_owned())
}

/// Starts the runner. The error is Docker's, or tells what became of the main container.
async fn exec(
    api: &Docker,
    asked: &Asked<'_>,
    filter_inside: bool,
    path: &str,
    project: &mut Project,
) -> Result<Streams, Result<Error, String>> {
    let user = asked.policy.user;
    let mut command = vec![format!("{RUNNER}/cove"), "runner".to_owned(), data_limit(asked.policy)];
    if filter_inside {
        command.push("--filter".to_owned());
    }
    let mut env = asked.env.to_vec();
    env.push(format!("PATH={COMMANDS}:{path}"));
    let options = CreateExecOptions {
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        tty: Some(false),
        env: Some(env),
        cmd: Some(command),
        privileged: Some(false),
        user: Some(format!("{}:{}", user.uid, user.gid)),
        working_dir: Some("/workspace".to_owned()),
        ..Default::default()
    };
    let started = async {
        let created = api.create_exec(&project.main, options).await?;
        project.runner.clone_from(&created.id);
        api.start_exec(&created.id, Some(StartExecOptions { detach: false, ..Default::default() })).await
    };
    match started.await {
        Ok(StartExecResults::Attached { output, input }) => Ok((output, input)),
        Ok(StartExecResults::Detached) => Err(Err("the runner was started without its streams".into())),
        Err(error) => Err(project.last_words().await.map_or(Ok(error), Err)),
    }
}

/// Looks at the networks that a container is in.
async fn closed(
    api: &Docker,
    kind: Maker,
    member: &str,
    found: &ContainerInspectResponse,
) -> Result<Vec<String>, Error> {
    let mut wrong = Vec::new();
    let joined = found.network_settings.as_ref().and_then(|settings| settings.networks.as_ref());
    for name in joined.into_iter().flat_map(HashMap::keys).filter(|name| *name != "none" && *name != "host") {
        let network = api.inspect_network(name, None).await?;
        wrong.extend(verify::network(name, kind, &network).map(|what| format!("`{member}`: {what}")));
    }
    Ok(wrong)
}

impl Project {
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The main container, as Docker and Podman know it.
    pub fn main(&self) -> &str {
        &self.main
    }

    /// How the runner ended; nothing while it runs. The main container's own end is the runner's, too.
    pub async fn ending(&self) -> Option<Ending> {
        let mut seen = self.seen().await?;
        // Of a kill, Docker hears a moment later that it was for memory, and that the whole container has ended.
        for _ in 0..5 {
            if seen != Ending::Signalled(9) && seen != killed(self.kind) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
            seen = self.seen().await?;
        }
        Some(seen)
    }

    async fn seen(&self) -> Option<Ending> {
        let container = match inspect(&self.api, &self.main).await {
            Ok(found) => found.state.unwrap_or_default(),
            Err(error) if is_missing(&error) => {
                return Some(Ending::Lost("somebody removed its container".into()));
            }
            Err(error) => return Some(Ending::Lost(format!("nobody answers: {error}"))),
        };
        let runs = container.running == Some(true);
        let code = if runs {
            match tokio::time::timeout(PATIENCE, self.api.inspect_exec(&self.runner)).await {
                Err(_) => return Some(Ending::Lost("nobody answers".into())),
                Ok(Ok(found)) if found.running == Some(true) => return None,
                Ok(Ok(found)) => found.exit_code.unwrap_or(-1),
                Ok(Err(error)) => return Some(Ending::Lost(format!("the runner is gone: {error}"))),
            }
        } else {
            exit_code(&container)?
        };
        Some(match code {
            137 if container.oom_killed == Some(true) => Ending::OutOfMemory(MemoryKiller::Kernel),
            137 if !runs => killed(self.kind),
            // As a shell says it.
            129..=159 => Ending::Signalled(i32::try_from(code - 128).unwrap_or(9)),
            _ => Ending::Exited(i32::try_from(code).unwrap_or(-1)),
        })
    }

    /// Whether anything in the main container has been killed for memory.
    pub async fn out_of_memory(&self) -> Option<MemoryKiller> {
        let found = inspect(&self.api, &self.main).await.ok()?;
        (found.state?.oom_killed == Some(true)).then_some(MemoryKiller::Kernel)
    }

    /// Kills everything and removes it, until nothing with the project's name is left. What cannot be removed now is
    /// removed later, in the background.
    ///
    /// Without Compose, which would first ask every container to end: whoever made them is known by a label.
    pub async fn down(&mut self) -> bool {
        self.is_down = true;
        // To the end, also if nobody waits for it any more.
        tokio::spawn(see_down(self.api.clone(), self.name.clone())).await.unwrap_or(false)
    }

    /// Name in the file and id of each container.
    async fn members(&self) -> Result<Vec<(String, String)>, Error> {
        let found = containers(&self.api, &self.name).await?;
        let member = |labels: Option<HashMap<String, String>>| labels?.remove(MEMBER);
        Ok(found
            .into_iter()
            .filter_map(|one| Some((member(one.labels).unwrap_or_default(), one.id?)))
            .collect())
    }

    /// Why the main container has ended, if it has.
    async fn last_words(&self) -> Option<String> {
        let found = inspect(&self.api, &self.main).await.ok()?;
        let state = found.state?;
        if state.running == Some(true) || state.exit_code == Some(0) && state.started_at.is_none() {
            return None;
        }
        let options = LogsOptionsBuilder::default().stdout(true).stderr(true).tail("20").build();
        let mut logs = self.api.logs(&self.main, Some(options));
        let mut words = Vec::new();
        let reading = async {
            while let Some(Ok(piece)) = logs.next().await {
                words.extend_from_slice(&piece.into_bytes());
                if words.len() > 16 * 1024 {
                    break;
                }
            }
        };
        // What came until then is enough.
        let _ = tokio::time::timeout(Duration::from_secs(5), reading).await;
        let code = state.exit_code.unwrap_or(-1);
        let words = harmless(&words);
        Some(format!("the main container ended with exit code {code}\n{words}").trim_end().to_owned())
    }
}

impl Drop for Project {
    fn drop(&mut self) {
        if self.is_down {
            return;
        }
        let (api, name) = (self.api.clone(), std::mem::take(&mut self.name));
        // Without a runtime the program ends, and what is left is swept by the next.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(see_down(api, name));
        }
    }
}

async fn see_down(api: Docker, project: String) -> bool {
    until_done(move || {
        let (api, project) = (api.clone(), project.clone());
        async move {
            let left = take_down(&api, &project).await;
            if !left.is_empty() {
                tracing::warn!(project, left = left.join("; "), "a Compose project could not be removed");
            }
            left.is_empty()
        }
    })
    .await
}

fn labels(project: &str) -> [String; 1] {
    [format!("{PROJECT}={project}")]
}

async fn containers(api: &Docker, project: &str) -> Result<Vec<ContainerSummary>, Error> {
    let mut found = marked::containers(api, &labels(project)).await?;
    found.retain(|one| is_member(one, project));
    Ok(found)
}

/// Whether nobody is in a project any more: the runner of a session ends with whoever made it, the containers do not.
pub async fn is_abandoned(api: &Docker, project: &str) -> bool {
    let Ok(members) = containers(api, project).await else { return false };
    for id in members.into_iter().filter_map(|member| member.id) {
        let Ok(found) = inspect(api, &id).await else { return false };
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

/// Kills and removes all of a project, also one that another process left; what is left in spite of that, in words.
pub async fn take_down(api: &Docker, project: &str) -> Vec<String> {
    let began = Instant::now();
    let mut was_empty = false;
    loop {
        let round = tokio::time::timeout(ROUND, remove_all(api, project));
        let (left, is_known) = match while_answered(api, 1, round).await {
            Some(Ok(Ok(left))) => (left, true),
            Some(Ok(Err(error))) => (vec![error.to_string()], false),
            Some(Err(_)) => (vec!["it took too long".to_owned()], false),
            None => return vec!["nobody answers".to_owned()],
        };
        if !is_known && is_silent(api).await {
            return left;
        }
        // Twice: what Compose had asked for when it was killed may be made after the first look.
        if left.is_empty() && was_empty {
            return left;
        }
        was_empty = left.is_empty();
        if began.elapsed() > DOWN {
            return left;
        }
        tokio::time::sleep(Duration::from_millis(if was_empty { 100 } else { 300 })).await;
    }
}

/// What was there, in words.
async fn remove_all(api: &Docker, project: &str) -> Result<Vec<String>, Error> {
    let marked = Marked::find(api, &labels(project)).await?;
    let members = marked.containers.into_iter().filter(|one| is_member(one, project));
    let mut found = Vec::new();
    for id in members.filter_map(|one| one.id) {
        let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
        let removed = api.remove_container(&id, Some(options)).await;
        found.push(told("the container", &id, removed));
    }
    for name in marked.networks.into_iter().filter_map(|one| one.name) {
        let removed = api.remove_network(&name).await;
        found.push(told("the network", &name, removed));
    }
    for name in marked.volumes.into_iter().map(|one| one.name) {
        let options = RemoveVolumeOptionsBuilder::default().force(true).build();
        let removed = api.remove_volume(&name, Some(options)).await;
        found.push(told("the volume", &name, removed));
    }
    Ok(found)
}

fn told(what: &str, name: &str, removed: Result<(), Error>) -> String {
    match removed {
        Ok(()) => format!("{what} `{name}` was there"),
        Err(error) => format!("{what} `{name}`: {error}"),
    }
}

fn killed(kind: Maker) -> Ending {
    let told = match kind {
        Maker::Docker => "its main container was killed",
        Maker::Podman => {
            "its main container was killed, by somebody or for want of memory, which Podman does not tell apart"
        }
    };
    Ending::Lost(told.into())
}

fn is_missing(error: &Error) -> bool {
    matches!(error, Error::DockerResponseServerError { status_code: 404, .. })
}
