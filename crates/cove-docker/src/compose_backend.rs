//! Sessions in Compose images: the runner is a process in the main container, and all containers are removed when it
//! ends.

use std::sync::Arc;

use bollard::Docker as Client;
use cove_jail::guest::environment;
use serde_json::json;
use tokio::sync::Mutex;

use super::compose::{ComposeProject, ComposeRequest, RunningProject};
use super::connect::EngineConnection;
use super::control::{EngineControl, WatchTarget};
use super::gaps::{GapScope, gaps_of};
use super::image_list::list_images;
use super::plan::{LABEL_NAME, check_mount_paths, enforcement_gaps, interpreters};
use super::process_identity::MAX_CONTAINER_AGE;
use super::stream::container_stream;
use super::{BackendState, image_recipe, new_name, pretty_json, request_error};
use cove_core::BoxFuture;
use cove_core::backend::{MemoryKiller, PlanFormat, Sandbox, SandboxEnd, SandboxOwner};
use cove_core::error::Failure;
use cove_core::policy::{ImageRecipe, ImageSource, Policy};

impl BackendState {
    /// Returns the request for a project if the policy's image has a Compose file, and `None` for any other image.
    /// Fails if the engine cannot enforce the policy.
    pub(super) async fn compose_request(
        &self,
        connected: &EngineConnection,
        policy: &Policy,
        owner: &SandboxOwner,
    ) -> Result<Option<ComposeRequest>, Failure> {
        let (recipe, facts) = (image_recipe(policy)?, &connected.facts);
        // The checks for a single container apply to a project too.
        enforcement_gaps(policy, facts)?;
        let ImageSource::Compose { folder, main } = &recipe.source else { return Ok(None) };
        check_mount_paths(policy)?;
        let project = new_name();
        let mut labels = self.labels(owner, MAX_CONTAINER_AGE);
        labels.insert(LABEL_NAME.to_owned(), project.clone());
        let mut policy = policy.clone();
        policy.limits.cpus = facts.usable_cpus(policy.limits.cpus);
        let mut variables = environment(&policy.limits, facts.processors);
        // The runner gets the `PATH` of the main container, after Cove's own folder.
        variables.remove("PATH");
        Ok(Some(ComposeRequest {
            name: recipe.name.clone(),
            folder: folder.clone(),
            main: main.clone(),
            policy,
            project,
            labels,
            runner_volume: self.runner_program().await?.volume_name(),
            env: variables.iter().map(|(name, value)| format!("{name}={value}")).collect(),
            permissions: self.permissions.clone(),
        }))
    }

    pub(super) async fn explain_project(
        &self,
        connected: &EngineConnection,
        request: &ComposeRequest,
        heading: &str,
        format: PlanFormat,
    ) -> Result<String, Failure> {
        let compose = self.compose(connected).await?;
        let document = compose.explain(request).await?;
        let (policy, facts) = (&request.policy, &connected.facts);
        let gaps = [enforcement_gaps(policy, facts)?, gaps_of(facts, policy, GapScope::ComposeProject)].concat();
        let gaps: Vec<&str> = gaps.iter().map(|gap| gap.text).collect();
        let version = compose.version();
        if format == PlanFormat::Json {
            return pretty_json(&json!({ "compose": version, "gaps": gaps, "document": document }));
        }
        let gaps: String = gaps.iter().map(|gap| format!("gap         {gap}\n")).collect();
        Ok(format!("{heading}\ncompose     {version}\n{gaps}document    {}", pretty_json(&document)?))
    }

    /// Starts a project and returns its sandbox. Fails if the file is refused or any step of the start fails.
    pub(super) async fn start_project(
        &self,
        connected: &EngineConnection,
        recipe: &ImageRecipe,
        request: &ComposeRequest,
    ) -> Result<Sandbox, Failure> {
        let client = &connected.client;
        let compose = self.compose(connected).await?;
        let image = match find_any_image(client).await? {
            Some(image) => image,
            // After this call the engine has at least one image.
            None => {
                compose.prepare(client, request, &|_| {}).await?;
                let could_not = || Failure::operator("could not find an image to copy our own program with");
                find_any_image(client).await?.ok_or_else(could_not)?
            }
        };
        self.runner_volume.ensure_filled(self.volume_filler(client, self.runner_program().await?, &image)).await?;
        let RunningProject { output, input, project, path } = compose.start_project(client, request, &|_| {}).await?;
        let (stream, watch) = container_stream(output, input);
        Ok(Sandbox {
            control: Box::new(EngineControl::new(Arc::new(Mutex::new(project)), watch)),
            stream: Box::new(stream),
            interpreters: interpreters(&recipe.languages, &path),
            image_command: None,
            image_id: None,
        })
    }
}

/// Returns any image of the engine. Filling the runner volume only needs a container that is never started.
async fn find_any_image(client: &Client) -> Result<Option<String>, Failure> {
    let images = list_images(client, None).await.map_err(|error| request_error("could not list images", &error))?;
    Ok(images.into_iter().map(|image| image.id).next())
}

/// The project. The watch task and the session share it and take turns through the mutex.
type SharedProject = Arc<Mutex<ComposeProject>>;

impl WatchTarget for SharedProject {
    fn end(&self) -> BoxFuture<'_, Option<SandboxEnd>> {
        Box::pin(async { self.lock().await.runner_end().await })
    }

    fn end_report(&self) -> BoxFuture<'_, Option<String>> {
        Box::pin(async { self.lock().await.main_end_report().await })
    }

    fn remove(&self) -> BoxFuture<'_, bool> {
        Box::pin(async { self.lock().await.shut_down().await })
    }

    fn memory_killer(&self) -> BoxFuture<'_, Option<MemoryKiller>> {
        Box::pin(async { self.lock().await.memory_killer().await })
    }
}
