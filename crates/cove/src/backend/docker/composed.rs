//! A session in a Compose image: the runner is one process in the main container, and all containers end with it.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use bollard::Docker as Client;
use bollard::query_parameters::ListImagesOptions;
use cove_jail::plan::environment;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::compose::{Asked, Compose, Environment, Project, Up};
use super::connect::Connected;
use super::control::{Watchable, Watched};
use super::facts::Facts;
use super::instance::{LIFE, now};
use super::plan::{NAME, gaps, interpreters, jail_limits, labels, takes_paths};
use super::stream::ContainerStream;
use super::volume::Program;
use super::{Shared, new_name, said};
use crate::backend::{Ending, Form, MemoryKiller, Pending, Sandbox, StartError, Tell, Whose};
use crate::image::{Recipe, Source};
use crate::policy::Policy;

/// All that a request is made of, so that it can be lent.
pub(super) struct Wish {
    policy: Policy,
    recipe: Recipe,
    project: String,
    labels: BTreeMap<String, String>,
    volume: String,
    /// Known with what Docker or Podman tells of itself.
    held: OnceLock<Held>,
}

/// What is asked for, as far as it can be had where the containers are.
struct Held {
    policy: Policy,
    env: Vec<String>,
}

impl Held {
    fn new(policy: &Policy, facts: &Facts) -> Self {
        let mut policy = policy.clone();
        // More than there are is refused by Docker; all of them is what it means.
        if facts.processors > 0 {
            policy.limits.cpus = policy.limits.cpus.min(f64::from(facts.processors));
        }
        let mut variables = environment(&jail_limits(&policy.limits), facts.processors);
        // It has that of the main container, with ours before it.
        variables.remove("PATH");
        let env = variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
        Self { policy, env }
    }
}

impl Wish {
    pub(super) fn new(
        shared: &Shared,
        policy: &Policy,
        recipe: &Recipe,
        program: &Program,
        whose: &Whose,
    ) -> Self {
        let project = new_name();
        let mut labels = labels(whose, shared.instance.to_string(), now() + LIFE.as_secs());
        labels.insert(NAME, project.clone());
        Self {
            policy: policy.clone(),
            recipe: recipe.clone(),
            project,
            labels: labels.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
            volume: program.volume(),
            held: OnceLock::new(),
        }
    }

    fn asked<'a>(&'a self, shared: &'a Shared, connected: &Connected) -> Result<Asked<'a>, StartError> {
        // What is refused for one container is refused for several.
        gaps(&self.policy, &connected.facts)?;
        takes_paths(&self.policy)?;
        let Source::Compose { folder, main } = &self.recipe.source else {
            return Err(StartError::new(format!(
                "could not find the Compose file of `{}`",
                self.recipe.name
            )));
        };
        let held = self.held.get_or_init(|| Held::new(&self.policy, &connected.facts));
        Ok(Asked {
            name: &self.recipe.name,
            folder,
            main: main.as_deref(),
            policy: &held.policy,
            project: &self.project,
            labels: &self.labels,
            runner_volume: &self.volume,
            env: &held.env,
            allowed: &shared.allowed.compose,
            mounts: &shared.allowed.mounts,
            pull: shared.allowed.pull,
        })
    }
}

pub(super) async fn find(connected: &Connected) -> Result<Compose, StartError> {
    Compose::find(connected.facts.maker, &connected.facts.address, Environment::of_this_process()).await
}

pub(super) async fn prepare(
    shared: &Shared,
    connected: &Connected,
    wish: &Wish,
    tell: Tell<'_>,
) -> Result<Option<String>, StartError> {
    let asked = wish.asked(shared, connected)?;
    shared.compose(connected).await?.prepare(&connected.client, &asked, tell).await
}

pub(super) async fn digests(
    shared: &Shared,
    connected: &Connected,
    wish: &Wish,
) -> Result<Vec<String>, StartError> {
    shared.compose(connected).await?.digests(&wish.asked(shared, connected)?).await
}

pub(super) async fn explain(
    shared: &Shared,
    connected: &Connected,
    wish: &Wish,
    form: Form,
) -> Result<String, StartError> {
    let asked = wish.asked(shared, connected)?;
    let compose = shared.compose(connected).await?;
    let document = compose.explain(&asked).await?;
    let pretty = |value: &Value| {
        serde_json::to_string_pretty(value)
            .map_err(|error| StartError::new("could not write the plan as JSON").because(error))
    };
    let mut gaps = gaps(&wish.policy, &connected.facts)?;
    gaps.extend(compose.gaps().iter().map(|gap| (*gap).to_owned()));
    let version = compose.version();
    if form == Form::Json {
        return pretty(&json!({ "compose": version, "gaps": gaps, "document": document }));
    }
    let gaps: String = gaps.iter().map(|gap| format!("gap         {gap}\n")).collect();
    Ok(format!("compose     {version}\n{gaps}document    {}", pretty(&document)?))
}

pub(super) async fn start(
    shared: &Shared,
    connected: &Connected,
    wish: &Wish,
    program: &Program,
) -> Result<Sandbox, StartError> {
    let client = &connected.client;
    let asked = wish.asked(shared, connected)?;
    let compose = shared.compose(connected).await?;
    let image = match any_image(client).await? {
        Some(image) => image,
        // Then there is at least one.
        None => {
            compose.prepare(client, &asked, &|_| {}).await?;
            let could_not = || StartError::new("could not find an image to copy our own program with");
            any_image(client).await?.ok_or_else(could_not)?
        }
    };
    shared.filled.see_whole(client, program, shared.filler(&image)).await?;
    let Up { output, input, project, path } = compose.up(client, &asked, &|_| {}).await?;
    let stream = ContainerStream::new(output, input);
    Ok(Sandbox {
        control: Box::new(Watched::new(Arc::new(Mutex::new(project)), &stream)),
        stream: Box::new(stream),
        interpreters: interpreters(&wish.recipe.languages, &path),
        own: None,
    })
}

/// Any will do to fill our volume by: nothing of it is started, nor copied.
async fn any_image(client: &Client) -> Result<Option<String>, StartError> {
    let images = client
        .list_images(None::<ListImagesOptions>)
        .await
        .map_err(|error| StartError::new("could not list images").because(said(&error)))?;
    Ok(images.into_iter().map(|image| image.id).next())
}

/// The project, which only one may ask at a time.
type Shown = Arc<Mutex<Project>>;

impl Watchable for Shown {
    fn ending(&self) -> Pending<'_, Option<Ending>> {
        Box::pin(async { self.lock().await.ending().await })
    }

    fn remove(&self) -> Pending<'_, bool> {
        Box::pin(async { self.lock().await.down().await })
    }

    fn out_of_memory(&self) -> Pending<'_, Option<MemoryKiller>> {
        Box::pin(async { self.lock().await.out_of_memory().await })
    }
}
