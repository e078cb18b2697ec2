//! Containers of Docker and of Podman as sandboxes, through the one interface that both have.
//!
//! Our own program is put into any image by a volume and is the container's first process, the runner. The stream to it is
//! the container's standard input and output: when this process ends, however it ends, that input ends, and with it the
//! runner and everything in the container.

pub mod build;
mod check;
pub mod compose;
mod composed;
pub(crate) mod connect;
mod control;
mod dockerfile;
mod facts;
mod filled;
mod instance;
mod launch;
mod libpod;
mod marked;
mod plan;
mod stream;
mod sweep;
mod told;
pub(crate) mod volume;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bollard::Docker as Client;
use bollard::errors::Error as ClientError;
use bollard::query_parameters::{CreateContainerOptions, CreateContainerOptionsBuilder};
use tokio::sync::{Mutex, OnceCell};

use crate::backend::{Backend, Form, Pending, Sandbox, StartError, Tell, Whose};
use crate::config::{AllowedMount, ComposeRisk, Surroundings};
use crate::image::{Recipe, Source};
use crate::policy::{Policy, Root};
use crate::session::registry::random;

use build::Ready;
use compose::Compose;
use composed::Wish;
pub use connect::Wanted;
use connect::{Connected, Connecting, START_IT};
use control::{Container, Guard, Watched, answered};
pub use facts::Maker;
use filled::Filled;
use instance::{Instance, LIFE, now};
use launch::{Failed, could_not, start_made};
use plan::{ImageFacts, NAME, Plan, Request, labels, plan};
use volume::{Filler, Program};

/// Between looks for what others left behind.
const SWEEP: Duration = Duration::from_secs(5 * 60);
/// The first looks come sooner: what a process had asked for when it was killed may be made a little later.
const FIRST_SWEEPS: [Duration; 2] = [Duration::from_secs(15), Duration::from_secs(60)];

#[derive(Clone)]
pub struct Docker {
    shared: Arc<Shared>,
}

struct Shared {
    wanted: Wanted,
    allowed: Allowed,
    around: Surroundings,
    /// The program that has the runner's role: this one.
    program: PathBuf,
    instance: Instance,
    connecting: Connecting,
    connected: OnceCell<Connected>,
    compose: OnceCell<Compose>,
    packed: OnceCell<Program>,
    /// Of others, as the last sweep saw it.
    ended: Mutex<sweep::Ended>,
    filled: Filled,
}

/// What the operator allows beyond what is always allowed.
#[derive(Debug, Clone, Default)]
pub struct Allowed {
    /// To fetch images that are not there.
    pub pull: bool,
    pub compose: Vec<ComposeRisk>,
    /// Directories that Compose files may mount from.
    pub mounts: Vec<AllowedMount>,
}

/// Docker or Podman, for people.
#[derive(Debug, Clone)]
pub struct Description {
    /// With its version.
    pub name: String,
    pub address: String,
    pub rootless: bool,
    pub cgroup: u8,
    pub runtimes: Vec<String>,
    /// What it cannot do, in words.
    pub gaps: Vec<String>,
    /// The version of Compose, or why there is none.
    pub compose: Result<String, String>,
}

impl Docker {
    pub fn new(wanted: Wanted, allowed: Allowed, around: Surroundings) -> Result<Self, StartError> {
        let program = std::env::current_exe()
            .map_err(|error| StartError::new("could not find this program's own file").because(error))?;
        Ok(Self::with_program(wanted, allowed, around, program))
    }

    /// For tests, which are not the program themselves.
    pub fn with_program(wanted: Wanted, allowed: Allowed, around: Surroundings, program: PathBuf) -> Self {
        let shared = Shared {
            wanted,
            allowed,
            around,
            program,
            instance: Instance::own(),
            connecting: Connecting::default(),
            connected: OnceCell::new(),
            compose: OnceCell::new(),
            packed: OnceCell::new(),
            ended: Mutex::default(),
            filled: Filled::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// A connection, for who has other business with images than to start them.
    pub async fn client(&self) -> Result<Client, StartError> {
        Ok(self.shared.connected().await?.client.clone())
    }

    /// What is there, and what it cannot do for sandboxes of this policy.
    pub async fn describe(&self, policy: &Policy) -> Result<Description, StartError> {
        let connected = self.shared.connected().await?;
        let facts = &connected.facts;
        let compose = self.shared.compose(connected).await;
        let mut gaps = plan::gaps(policy, facts)?;
        gaps.extend(compose.iter().flat_map(|compose| compose.gaps()).map(|gap| (*gap).to_owned()));
        Ok(Description {
            name: facts.name(),
            address: facts.address.clone(),
            rootless: facts.rootless,
            cgroup: facts.cgroup,
            runtimes: facts.runtimes.clone(),
            gaps,
            compose: compose.map(Compose::version).map_err(|error| crate::error::in_one_line(&error)),
        })
    }

    /// The digests by which the images are labelled that are built for a Compose file as it is now.
    pub async fn digests(&self, policy: &Policy) -> Result<Vec<String>, StartError> {
        let connected = self.shared.connected().await?;
        let program = self.shared.program().await?;
        let wish = Wish::new(&self.shared, policy, recipe(policy)?, program, &Whose::default());
        composed::digests(&self.shared, connected, &wish).await
    }

    /// The digest by which the volume with our own program is labelled.
    pub async fn runner(&self) -> Result<String, StartError> {
        Ok(self.shared.program().await?.digest().to_owned())
    }
}

impl Shared {
    async fn connected(self: &Arc<Self>) -> Result<&Connected, StartError> {
        self.connected
            .get_or_try_init(|| async {
                let connected = self.connecting.connect(self.wanted, &self.around).await?;
                let (weak, client, own) =
                    (Arc::downgrade(self), connected.client.clone(), self.instance.clone());
                tokio::spawn(async move {
                    let mut pauses = FIRST_SWEEPS.into_iter();
                    // As long as somebody may start containers here.
                    while let Some(shared) = weak.upgrade() {
                        let _ = tokio::task::spawn_blocking(compose::place::sweep).await;
                        sweep::sweep(&client, &own, &mut *shared.ended.lock().await).await;
                        drop(shared);
                        tokio::time::sleep(pauses.next().unwrap_or(SWEEP)).await;
                    }
                });
                Ok(connected)
            })
            .await
    }

    async fn compose(&self, connected: &Connected) -> Result<&Compose, StartError> {
        self.compose.get_or_try_init(|| composed::find(connected)).await
    }

    async fn program(&self) -> Result<&Program, StartError> {
        self.packed
            .get_or_try_init(|| async {
                let path = self.program.clone();
                let read = tokio::task::spawn_blocking(move || Program::read(&path)).await;
                read.map_err(|error| {
                    StartError::new("could not read this program's own file").because(error)
                })?
            })
            .await
    }

    /// The image, made or fetched if it must be, and what was done for it.
    async fn image(
        &self,
        client: &Client,
        recipe: &Recipe,
        tell: Tell<'_>,
    ) -> Result<(ImageFacts, Option<String>), StartError> {
        let Ready { image, done, .. } = build::ready(client, recipe, self.allowed.pull, tell).await?;
        Ok((image_facts(image), done))
    }

    fn filler<'a>(&self, image: &'a str) -> Filler<'a> {
        // Short-lived: whatever becomes of us, it need not be there tomorrow.
        let mut labels = labels(&Whose::default(), self.instance.to_string(), now() + SWEEP.as_secs());
        let name = new_name();
        labels.insert(NAME, name.clone());
        let labels = labels.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Filler { image, name, labels }
    }

    async fn start(self: &Arc<Self>, policy: &Policy, whose: &Whose) -> Result<Sandbox, StartError> {
        let recipe = recipe(policy)?;
        let connected = self.connected().await?;
        // Before anything is fetched or built for what could not be held.
        plan::gaps(policy, &connected.facts)?;
        let client = &connected.client;
        let program = self.program().await?;
        if let Source::Compose { .. } = recipe.source {
            let wish = Wish::new(self, policy, recipe, program, whose);
            return composed::start(self, connected, &wish, program).await;
        }
        let (image, _) = self.image(client, recipe, &|_| {}).await?;
        let seen = self.filled.see(client, program, self.filler(&image.id)).await?;
        let plan = self.plan(policy, recipe, &image, program, whose, connected)?;
        match self.start_planned(connected, &plan).await {
            Err(Failed::Starting(error)) => {
                tracing::info!(error = %error, "a container did not start; our volume is filled again");
                self.filled.mend(client, program, self.filler(&image.id), seen).await?;
            }
            // It was being put back meanwhile.
            Err(Failed::ForGood(error)) if !self.filled.is_mended(seen).await => {
                return Err(launch::no_network(connected, &policy.network).await.unwrap_or(error));
            }
            Err(Failed::ForGood(_)) => {}
            Ok(sandbox) => return Ok(sandbox),
        }
        match self.start_planned(connected, &plan).await.map_err(Failed::into_error) {
            Err(error) => Err(launch::no_network(connected, &policy.network).await.unwrap_or(error)),
            started => started,
        }
    }

    async fn prepare(
        self: &Arc<Self>,
        policy: &Policy,
        tell: Tell<'_>,
    ) -> Result<Option<String>, StartError> {
        let connected = self.connected().await?;
        let recipe = recipe(policy)?;
        plan::gaps(policy, &connected.facts)?;
        if let Source::Compose { .. } = recipe.source {
            let program = self.program().await?;
            let wish = Wish::new(self, policy, recipe, program, &Whose::default());
            return composed::prepare(self, connected, &wish, tell).await;
        }
        let (_, done) = self.image(&connected.client, recipe, tell).await?;
        Ok(done)
    }

    fn plan(
        &self,
        policy: &Policy,
        recipe: &Recipe,
        image: &ImageFacts,
        program: &Program,
        whose: &Whose,
        connected: &Connected,
    ) -> Result<Plan, StartError> {
        let request = Request {
            policy,
            image,
            languages: &recipe.languages,
            runner: &program.volume(),
            labels: labels(whose, self.instance.to_string(), now() + LIFE.as_secs()),
        };
        plan(&request, &connected.facts)
    }

    async fn start_planned(&self, connected: &Connected, plan: &Plan) -> Result<Sandbox, Failed> {
        let Connected { client, facts } = connected;
        let name = new_name();
        let plan = plan.named(&name);
        let made = client
            .create_container(Some(named(&name)), plan.body.clone())
            .await
            .map_err(|error| could_not("make", &error))?;
        // Also if whoever asked goes away meanwhile.
        let guard = Guard::new(client.clone(), made.id.clone());
        match start_made(client, facts, &plan, &made.id).await {
            Ok(stream) => {
                guard.release();
                let container = Container { client: client.clone(), id: made.id, maker: facts.maker };
                Ok(Sandbox {
                    control: Box::new(Watched::new(container, &stream)),
                    stream: Box::new(stream),
                    interpreters: plan.interpreters.clone(),
                    own: Some(plan.own.clone()),
                })
            }
            Err(failed) => {
                guard.remove().await;
                Err(failed)
            }
        }
    }
}

/// Of a container or of a project; nobody else has it.
fn new_name() -> String {
    format!("cove-{:032x}", random())
}

fn named(name: &str) -> CreateContainerOptions {
    CreateContainerOptionsBuilder::new().name(name).build()
}

fn recipe(policy: &Policy) -> Result<&Recipe, StartError> {
    match &policy.root {
        Root::Image(recipe) => Ok(recipe),
        Root::Tree(tree) => Err(StartError::new(format!("could not use `{}` as root", tree.display()))
            .because("a container has its image's files")
            .with_hint("use `--image` instead of `--rootfs`, or `--backend jail`")),
        Root::Host => Err(StartError::new("could not use this machine's own files as root")
            .because("a container has its image's files")
            .with_hint("choose an image with `--image`")),
    }
}

fn image_facts(found: bollard::models::ImageInspect) -> ImageFacts {
    let config = found.config.unwrap_or_default();
    let environment = config
        .env
        .unwrap_or_default()
        .iter()
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    ImageFacts {
        id: found.id.unwrap_or_default(),
        environment,
        command: config.entrypoint.into_iter().chain(config.cmd).flatten().collect(),
        folder: config.working_dir.filter(|folder| !folder.is_empty()),
        volumes: config.volumes.unwrap_or_default(),
        checks_health: config.healthcheck.and_then(|check| check.test).is_some_and(|test| !test.is_empty()),
    }
}

/// What went wrong, in the words of whoever answered, without the wrapping.
fn said(error: &ClientError) -> String {
    match error {
        ClientError::DockerResponseServerError { message, .. } => crate::error::escaped(message.trim()),
        // Of a chain of names for the same thing only the last says what it was.
        ClientError::HyperLegacyError { .. } => crate::error::escaped(&deepest(error).to_string()),
        other => crate::error::in_one_line(other),
    }
}

fn deepest<'a>(error: &'a (dyn std::error::Error + 'static)) -> &'a (dyn std::error::Error + 'static) {
    std::iter::successors(Some(error), |error| error.source()).last().unwrap_or(error)
}

/// Of a question that was refused, or that nobody answered.
fn unanswered(what: impl Into<String>, error: &ClientError) -> StartError {
    match error {
        ClientError::DockerResponseServerError { .. } => StartError::new(what).because(said(error)),
        _ => StartError::new("could not reach Docker or Podman").because(said(error)).with_hint(START_IT),
    }
}

impl Backend for Docker {
    fn name(&self, _policy: &Policy) -> &'static str {
        match (self.shared.connected.get(), self.shared.wanted) {
            // Whoever answers is who it is, whatever it was looked for as.
            (Some(connected), _) => connected.facts.maker.backend(),
            (None, Wanted::Podman) => Maker::Podman.backend(),
            (None, Wanted::Docker | Wanted::Any) => Maker::Docker.backend(),
        }
    }

    fn start<'a>(&'a self, policy: &'a Policy, whose: &'a Whose) -> Pending<'a, Result<Sandbox, StartError>> {
        let (shared, policy, whose) = (Arc::clone(&self.shared), policy.clone(), whose.clone());
        Box::pin(async move {
            // In a task of its own, which goes on when whoever asked has gone: a container that is being made has no name
            // yet by which it could be removed. Nobody takes the sandbox then, and that ends it.
            let started = tokio::spawn(async move {
                let client = &shared.connected().await?.client;
                answered(client, shared.start(&policy, &whose)).await
            })
            .await;
            started.unwrap_or_else(|error| Err(StartError::new("could not start a container").because(error)))
        })
    }

    fn prepare<'a>(
        &'a self,
        policy: &'a Policy,
        tell: Tell<'a>,
    ) -> Pending<'a, Result<Option<String>, StartError>> {
        Box::pin(async move {
            let client = &self.shared.connected().await?.client;
            answered(client, self.shared.prepare(policy, tell)).await
        })
    }

    fn explain<'a>(&'a self, policy: &'a Policy, form: Form) -> Pending<'a, Result<String, StartError>> {
        Box::pin(async move {
            let recipe = recipe(policy)?;
            let connected = self.shared.connected().await?;
            let program = self.shared.program().await?;
            let heading = format!("engine      {} at {}", connected.facts.name(), connected.facts.address);
            if let Source::Compose { .. } = recipe.source {
                let wish = Wish::new(&self.shared, policy, recipe, program, &Whose::default());
                let plan = composed::explain(&self.shared, connected, &wish, form).await?;
                return Ok(match form {
                    Form::Text => format!("{heading}\n{plan}"),
                    Form::Json => plan,
                });
            }
            let reference = build::expected(recipe).await?;
            // What is not there yet is planned all the same, without what it would bring.
            let image = match connected.client.inspect_image(&reference).await {
                Ok(found) => image_facts(found),
                Err(_) => ImageFacts { id: reference, ..ImageFacts::default() },
            };
            let plan = self.shared.plan(policy, recipe, &image, program, &Whose::default(), connected)?;
            match form {
                Form::Text => Ok(format!("{heading}\n{plan}")),
                Form::Json => serde_json::to_string_pretty(&plan)
                    .map_err(|error| StartError::new("could not write the plan as JSON").because(error)),
            }
        })
    }

    fn sweep(&self) -> Pending<'_, ()> {
        Box::pin(async {
            if !connect::may_be_there(self.shared.wanted, &self.shared.around) {
                return;
            }
            // Connecting begins it. Whoever wants a container hears of what went wrong.
            if let Err(error) = self.shared.connected().await {
                tracing::debug!(%error, "nothing was swept");
            }
        })
    }
}
