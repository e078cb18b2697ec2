//! Sandboxes as containers of Docker or Podman, through the Docker API that both engines speak.
//!
//! Cove puts its own program into every container through a volume. That program is the container's first process: the
//! runner. The runner's stream is the container's standard input and output. When the Cove process ends, for any
//! reason, the engine closes that input, and the runner ends together with everything else in the container.

pub mod build;
pub mod compose;
mod compose_backend;
pub mod connect;
mod container_user;
mod control;
mod dockerfile;
mod engine;
mod gaps;
mod image_list;
mod labels;
mod launch;
mod libpod;
mod plan;
mod podman_states;
mod process_identity;
mod read_back;
#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;
pub mod runner_program;
mod runner_volume;
mod stream;
mod sweep;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bollard::Docker as Client;
use bollard::container::AttachContainerResults;
use bollard::errors::Error as ClientError;
use bollard::query_parameters::{CreateContainerOptions, CreateContainerOptionsBuilder};
use serde::Serialize;
use tokio::sync::{Mutex, OnceCell};

use cove_core::BoxFuture;
use cove_core::backend::{Backend, ImagePreparation, PlanFormat, ProgressCallback, Sandbox, SandboxOwner};
use cove_core::error::Failure;
use cove_core::policy::{AllowedMount, ComposeRisk, ImageRecipe, Policy, SandboxRoot};
use cove_core::process_env::ProcessEnv;
use cove_core::random::random_bits;

use build::ImageProvider;
use compose::{ComposeClient, ComposeEnv};
use connect::{EngineConnection, EngineConnector, START_ENGINE_HINT};
use container_user::with_own_user;
use control::{ContainerGuard, ContainerHandle, EngineControl, or_unresponsive_error};
#[cfg(any(test, fuzzing))]
pub use dockerfile::exercise::exercise as exercise_dockerfile;
pub use engine::Engine;
use engine::EngineFacts;
use gaps::gaps_of;
pub use gaps::{ENFORCEMENT_GAPS, EnforcementGap, GapScope};
use launch::{LaunchError, launch_error, start_created};
use plan::{ContainerPlan, ImageFacts, LABEL_NAME, PlanRequest, labels, plan};
use process_identity::{MAX_CONTAINER_AGE, ProcessIdentity, unix_now};
use runner_program::{RunnerProgram, VolumeFiller};
use runner_volume::RunnerVolume;
use stream::container_stream;

/// The pause between two sweeps for resources that dead Cove processes left behind.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5 * 60);
/// The pauses before the second and the third sweep. They are short because the engine may finish a request of a killed
/// process only after the first sweep.
const FIRST_SWEEP_DELAYS: [Duration; 2] = [Duration::from_secs(15), Duration::from_secs(60)];

/// The backend that starts sandboxes as containers. Clones share one connection to the engine.
#[derive(Clone)]
pub struct ContainerBackend {
    shared: Arc<BackendState>,
}

struct BackendState {
    /// `None` for the first engine that answers.
    engine_choice: Option<Engine>,
    permissions: ContainerPermissions,
    env: ProcessEnv,
    /// The program that is copied into containers as the runner: this executable.
    program: PathBuf,
    identity: ProcessIdentity,
    connector: EngineConnector,
    connection: OnceCell<EngineConnection>,
    compose: OnceCell<ComposeClient>,
    runner_program: OnceCell<RunnerProgram>,
    /// Ended containers of processes that this one cannot see, as the last sweep found them. Only the sweep task uses
    /// it.
    ended_containers: Mutex<sweep::EndedContainers>,
    runner_volume: RunnerVolume,
}

/// What the operator permits in addition to the defaults.
#[derive(Debug, Clone, Default)]
pub struct ContainerPermissions {
    /// Pull images that are missing on this machine.
    pub pull: bool,
    pub compose: Vec<ComposeRisk>,
    /// Directories that Compose files may mount from.
    pub mounts: Vec<AllowedMount>,
}

/// The engine in use, described for people.
#[derive(Debug, Clone)]
pub struct EngineDescription {
    /// Name and version, such as `Docker 20.10.24`.
    pub name: String,
    pub address: String,
    pub rootless: bool,
    pub cgroup: u8,
    pub runtimes: Vec<String>,
    /// What the engine cannot enforce for single containers, and then for those of Compose files if it has Compose.
    pub gaps: Vec<&'static EnforcementGap>,
    /// The version of Compose, or the reason why Compose cannot be used.
    pub compose: Result<String, String>,
}

impl ContainerBackend {
    /// Returns a backend that copies the current executable into containers. Connects to nothing yet. Fails if the path
    /// of the executable is unknown.
    pub fn new(
        engine_choice: Option<Engine>,
        permissions: ContainerPermissions,
        env: ProcessEnv,
    ) -> Result<Self, Failure> {
        let program = std::env::current_exe()
            .map_err(|error| Failure::operator("could not find this program's own file").because(error))?;
        Ok(Self::with_program(engine_choice, permissions, env, program))
    }

    /// Like `new`, with an explicit runner program: the executable of a test is not `cove`.
    pub fn with_program(
        engine_choice: Option<Engine>,
        permissions: ContainerPermissions,
        env: ProcessEnv,
        program: PathBuf,
    ) -> Self {
        let shared = BackendState {
            engine_choice,
            permissions,
            env,
            program,
            identity: ProcessIdentity::current(),
            connector: EngineConnector::default(),
            connection: OnceCell::new(),
            compose: OnceCell::new(),
            runner_program: OnceCell::new(),
            ended_containers: Mutex::default(),
            runner_volume: RunnerVolume::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Returns a client for managing images. Fails if no engine can be reached.
    pub async fn client(&self) -> Result<Client, Failure> {
        Ok(self.shared.connection().await?.client.clone())
    }

    /// Describes the engine and what it cannot enforce for sandboxes of this policy. Fails if no engine can be reached
    /// or if it cannot enforce the policy at all.
    pub async fn describe(&self, policy: &Policy) -> Result<EngineDescription, Failure> {
        let connected = self.shared.connection().await?;
        let facts = &connected.facts;
        let compose = self.shared.compose(connected).await;
        let mut gaps = plan::enforcement_gaps(policy, facts)?;
        if compose.is_ok() {
            gaps.extend(gaps_of(facts, policy, GapScope::ComposeProject));
        }
        Ok(EngineDescription {
            name: facts.name(),
            address: facts.address.clone(),
            rootless: facts.rootless,
            cgroup: facts.cgroup,
            runtimes: facts.runtimes.clone(),
            gaps,
            compose: compose.map(ComposeClient::version).map_err(|error| cove_core::error::one_line_chain(&error)),
        })
    }

    /// Returns the digests that label the images built for a Compose file in its present state. Fails if the file is
    /// refused.
    pub async fn compose_digests(&self, policy: &Policy) -> Result<Vec<String>, Failure> {
        let connected = self.shared.connection().await?;
        match self.shared.compose_request(connected, policy, &SandboxOwner::default()).await? {
            Some(request) => self.shared.compose(connected).await?.digests(&request).await,
            None => {
                let name = &image_recipe(policy)?.name;
                Err(Failure::operator(format!("could not find the Compose file of `{name}`")))
            }
        }
    }

    /// Returns the digest that labels the volume with the runner program. Fails if the program cannot be read.
    pub async fn runner_digest(&self) -> Result<String, Failure> {
        Ok(self.shared.runner_program().await?.digest.clone())
    }
}

impl BackendState {
    /// Returns the connection to the engine. The first successful call opens it and starts the sweep task, which runs
    /// until the last clone of the backend is dropped. A failure is not kept, so the next call tries again.
    async fn connection(self: &Arc<Self>) -> Result<&EngineConnection, Failure> {
        self.connection
            .get_or_try_init(|| async {
                let connected = self.connector.connect(self.engine_choice, &self.env).await?;
                let (weak, client, own) = (Arc::downgrade(self), connected.client.clone(), self.identity.clone());
                tokio::spawn(async move {
                    let mut pauses = FIRST_SWEEP_DELAYS.into_iter();
                    // The task holds only a weak reference, so it stops when the backend is gone.
                    while let Some(shared) = weak.upgrade() {
                        let _ = tokio::task::spawn_blocking(compose::private_dir::sweep).await;
                        sweep::sweep(&client, &own, &mut *shared.ended_containers.lock().await).await;
                        drop(shared);
                        tokio::time::sleep(pauses.next().unwrap_or(SWEEP_INTERVAL)).await;
                    }
                });
                Ok(connected)
            })
            .await
    }

    async fn compose(&self, connected: &EngineConnection) -> Result<&ComposeClient, Failure> {
        let facts = &connected.facts;
        let find = || ComposeClient::find(facts.engine, &facts.endpoint, ComposeEnv::from_process());
        self.compose.get_or_try_init(find).await
    }

    async fn runner_program(&self) -> Result<&RunnerProgram, Failure> {
        self.runner_program
            .get_or_try_init(|| async {
                let path = self.program.clone();
                let read = tokio::task::spawn_blocking(move || RunnerProgram::read(&path)).await;
                read.map_err(|error| Failure::operator("could not read this program's own file").because(error))?
            })
            .await
    }

    /// Returns the labels of a resource that this process creates, without `LABEL_NAME`.
    fn labels(&self, owner: &SandboxOwner, lifetime: Duration) -> BTreeMap<String, String> {
        labels(owner, self.identity.to_string(), unix_now() + lifetime.as_secs())
    }

    /// Describes the container that mounts the runner volume while the program is copied into it.
    fn volume_filler<'a>(&self, client: &'a Client, program: &'a RunnerProgram, image: &'a str) -> VolumeFiller<'a> {
        // This container lives only for the copy, so it expires early.
        let mut labels = self.labels(&SandboxOwner::default(), SWEEP_INTERVAL);
        let name = new_name();
        labels.insert(LABEL_NAME.to_owned(), name.clone());
        VolumeFiller { client, program, image, name, labels }
    }

    fn image_provider<'a>(&self, client: &'a Client, tell: ProgressCallback<'a>) -> ImageProvider<'a> {
        ImageProvider { docker: client, pull: self.permissions.pull, tell }
    }

    /// Starts a sandbox. If its container does not start, the runner volume may have been pruned: this call refills it,
    /// or finds that another call has, and tries once more. Fails with the engine's second answer.
    async fn start(self: &Arc<Self>, policy: &Policy, owner: &SandboxOwner) -> Result<Sandbox, Failure> {
        let recipe = image_recipe(policy)?;
        let connected = self.connection().await?;
        let policy = &with_own_user(policy, &connected.facts);
        // Refuses an unenforceable policy before the engine pulls or builds anything.
        if let Some(request) = self.compose_request(connected, policy, owner).await? {
            return self.start_project(connected, recipe, &request).await;
        }
        let client = &connected.client;
        let program = self.runner_program().await?;
        let image = image_facts(self.image_provider(client, &|_| {}).prepare_image(recipe).await?.image);
        let filler = || self.volume_filler(client, program, &image.id);
        let seen = self.runner_volume.ensure_exists(filler()).await?;
        let plan = self.plan_container(policy, &image, owner, &connected.facts).await?;
        let mut is_second = false;
        loop {
            let LaunchError { failure, may_lack_runner } = match self.start_planned(connected, &plan).await {
                Ok(sandbox) => return Ok(sandbox),
                Err(error) => error,
            };
            // If the volume has not been refilled since, a second try would fail in the same way.
            if is_second || !may_lack_runner && !self.runner_volume.was_refilled_since(seen).await {
                return Err(launch::missing_network_error(connected, &policy.network).await.unwrap_or(failure));
            }
            if may_lack_runner {
                tracing::info!(error = %failure, "a container did not start; our volume is filled again");
                self.runner_volume.refill(filler(), seen).await?;
            }
            is_second = true;
        }
    }

    async fn prepare(
        self: &Arc<Self>,
        policy: &Policy,
        tell: ProgressCallback<'_>,
    ) -> Result<ImagePreparation, Failure> {
        let connected = self.connection().await?;
        if let Some(request) = self.compose_request(connected, policy, &SandboxOwner::default()).await? {
            let note = self.compose(connected).await?.prepare(&connected.client, &request, tell).await?;
            return Ok(ImagePreparation { note, image_id: None });
        }
        let prepared = self.image_provider(&connected.client, tell).prepare_image(image_recipe(policy)?).await?;
        Ok(ImagePreparation { note: prepared.summary, image_id: Some(image_facts(prepared.image).id) })
    }

    /// Plans a container of the image. Fails if the engine cannot enforce the policy.
    async fn plan_container(
        &self,
        policy: &Policy,
        image: &ImageFacts,
        owner: &SandboxOwner,
        facts: &EngineFacts,
    ) -> Result<ContainerPlan, Failure> {
        let request = PlanRequest {
            policy,
            image,
            languages: &image_recipe(policy)?.languages,
            runner_volume: &self.runner_program().await?.volume_name(),
            labels: self.labels(owner, MAX_CONTAINER_AGE),
        };
        plan(&request, facts)
    }

    /// Creates, verifies and starts one container. If any step fails, the container is removed before the error is
    /// returned.
    async fn start_planned(&self, connected: &EngineConnection, plan: &ContainerPlan) -> Result<Sandbox, LaunchError> {
        let EngineConnection { client, facts, .. } = connected;
        let name = new_name();
        let plan = plan.with_name(&name);
        let made = client
            .create_container(Some(create_options(&name)), plan.body.clone())
            .await
            .map_err(|error| launch_error("make", &error))?;
        // The guard removes the container even if the caller drops this future.
        let guard = ContainerGuard::new(client.clone(), made.id.clone());
        match start_created(client, facts, &plan, &made.id).await {
            Ok(AttachContainerResults { output, input }) => {
                guard.release();
                let (stream, watch) = container_stream(output, input);
                let container = ContainerHandle { client: client.clone(), id: made.id, engine: facts.engine };
                Ok(Sandbox {
                    control: Box::new(EngineControl::new(container, watch)),
                    stream: Box::new(stream),
                    interpreters: plan.interpreters.clone(),
                    image_command: Some(plan.image_command.clone()),
                    image_id: plan.body.image.clone(),
                })
            }
            Err(failed) => {
                guard.remove().await;
                Err(failed)
            }
        }
    }
}

/// Returns a random, unique name for a container or a Compose project.
fn new_name() -> String {
    format!("cove-{:032x}", random_bits())
}

fn create_options(name: &str) -> CreateContainerOptions {
    CreateContainerOptionsBuilder::new().name(name).build()
}

/// Returns the image of the policy. Fails if the policy's root is not an image.
fn image_recipe(policy: &Policy) -> Result<&ImageRecipe, Failure> {
    match &policy.root {
        SandboxRoot::Image(recipe) => Ok(recipe),
        SandboxRoot::Tree(tree) => Err(Failure::operator(format!("could not use `{}` as root", tree.display()))
            .because("a container has its image's files")
            .with_hint("use `--image` instead of `--rootfs`, or `--backend jail`")),
        SandboxRoot::Host => Err(Failure::operator("could not use this machine's own files as root")
            .because("a container has its image's files")
            .with_hint("choose an image with `--image`")),
    }
}

fn image_facts(found: bollard::models::ImageInspect) -> ImageFacts {
    let config = found.config.unwrap_or_default();
    let variables = config.env.iter().flatten().filter_map(|line| line.split_once('='));
    ImageFacts {
        id: found.id.unwrap_or_default(),
        environment: variables.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        command: config.entrypoint.into_iter().chain(config.cmd).flatten().collect(),
        folder: config.working_dir.filter(|folder| !folder.is_empty()),
        volumes: config.volumes.unwrap_or_default(),
        has_health_check: config.healthcheck.and_then(|check| check.test).is_some_and(|test| !test.is_empty()),
    }
}

fn pretty_json(plan: &impl Serialize) -> Result<String, Failure> {
    serde_json::to_string_pretty(plan)
        .map_err(|error| Failure::operator("could not write the plan as JSON").because(error))
}

/// Returns true if the engine does not have what the request names.
fn is_missing(error: &ClientError) -> bool {
    matches!(error, ClientError::DockerResponseServerError { status_code: 404, .. })
}

/// Returns the engine's own error message, without the client's wrapping.
fn error_message(error: &ClientError) -> String {
    match error {
        ClientError::DockerResponseServerError { message, .. } => cove_core::error::escape_control(message.trim()),
        // The errors of this chain only repeat each other; the innermost one names the cause.
        ClientError::HyperLegacyError { .. } => cove_core::error::escape_control(&root_cause(error).to_string()),
        other => cove_core::error::one_line_chain(other),
    }
}

fn root_cause<'a>(error: &'a (dyn std::error::Error + 'static)) -> &'a (dyn std::error::Error + 'static) {
    std::iter::successors(Some(error), |error| error.source()).last().unwrap_or(error)
}

/// Turns an error of a request into a failure: `what` if the engine refused it, otherwise that the engine is
/// unreachable.
fn request_error(what: impl Into<String>, error: &ClientError) -> Failure {
    match error {
        ClientError::DockerResponseServerError { .. } => Failure::operator(what).because(error_message(error)),
        _ => Failure::operator("could not reach Docker or Podman")
            .because(error_message(error))
            .with_hint(START_ENGINE_HINT),
    }
}

impl Backend for ContainerBackend {
    fn name(&self, _policy: &Policy) -> &'static str {
        // The engine that answered decides, not the one that was looked for.
        let engine = self.shared.connection.get().map(|connected| connected.facts.engine);
        engine.or(self.shared.engine_choice).unwrap_or(Engine::Docker).traits().backend_name
    }

    fn start<'a>(&'a self, policy: &'a Policy, owner: &'a SandboxOwner) -> BoxFuture<'a, Result<Sandbox, Failure>> {
        let (shared, policy, owner) = (Arc::clone(&self.shared), policy.clone(), owner.clone());
        Box::pin(async move {
            // A separate task finishes even if the caller drops this future: a container that the engine is still
            // creating has no id yet by which Cove could remove it. If the caller is gone, the finished sandbox is
            // dropped, which removes its container.
            let started = tokio::spawn(async move {
                let client = &shared.connection().await?.client;
                or_unresponsive_error(client, shared.start(&policy, &owner)).await
            })
            .await;
            started.unwrap_or_else(|error| Err(Failure::operator("could not start a container").because(error)))
        })
    }

    fn prepare<'a>(
        &'a self,
        policy: &'a Policy,
        tell: ProgressCallback<'a>,
    ) -> BoxFuture<'a, Result<ImagePreparation, Failure>> {
        Box::pin(async move {
            let client = &self.shared.connection().await?.client;
            or_unresponsive_error(client, self.shared.prepare(policy, tell)).await
        })
    }

    fn explain<'a>(&'a self, policy: &'a Policy, format: PlanFormat) -> BoxFuture<'a, Result<String, Failure>> {
        Box::pin(async move {
            let recipe = image_recipe(policy)?;
            let connected = self.shared.connection().await?;
            let owner = SandboxOwner::default();
            let heading = format!("engine      {} at {}", connected.facts.name(), connected.facts.address);
            if let Some(request) = self.shared.compose_request(connected, policy, &owner).await? {
                return self.shared.explain_project(connected, &request, &heading, format).await;
            }
            let reference = build::expected_reference(recipe).await?;
            // A missing image is planned too, without the settings that only the image itself can supply.
            let image = match connected.client.inspect_image(&reference).await {
                Ok(found) => image_facts(found),
                Err(_) => ImageFacts { id: reference, ..ImageFacts::default() },
            };
            let plan = self.shared.plan_container(policy, &image, &owner, &connected.facts).await?;
            match format {
                PlanFormat::Text => Ok(format!("{heading}\n{plan}")),
                PlanFormat::Json => pretty_json(&plan),
            }
        })
    }

    fn sweep(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            if !connect::may_have_engine(self.shared.engine_choice, &self.shared.env) {
                return;
            }
            // Connecting starts the sweep task. A failure is only logged here; the next start of a sandbox reports it.
            if let Err(error) = self.shared.connection().await {
                tracing::debug!(%error, "nothing was swept");
            }
        })
    }
}
