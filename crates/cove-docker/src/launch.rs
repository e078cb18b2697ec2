//! Verifies a created container and only then starts it.
//!
//! The order matters. The caller creates the container and holds a `ContainerGuard` for it. `start_created` inspects
//! the container and compares it with the plan before any process runs in it, then attaches to its streams, then starts
//! it. On an error the caller's guard removes the container. `LaunchError::may_lack_runner` tells the caller that the
//! runner program may be missing: the caller then refills the runner volume and tries once more.

use bollard::Docker as Client;
use bollard::container::AttachContainerResults;
use bollard::errors::Error as ClientError;
use bollard::query_parameters::{AttachContainerOptionsBuilder, StartContainerOptions};

use super::connect::EngineConnection;
use super::engine::EngineFacts;
use super::plan::ContainerPlan;
use super::{is_missing, libpod, podman_states, read_back, request_error};
use cove_core::error::{Failure, display_value};
use cove_core::policy::SandboxNetwork;

/// Starts a created container. Returns the streams of its runner. Fails if the container differs from the plan or cannot
/// be inspected; and with `may_lack_runner` if the engine cannot attach to it or start it.
pub(super) async fn start_created(
    client: &Client,
    facts: &EngineFacts,
    plan: &ContainerPlan,
    id: &str,
) -> Result<AttachContainerResults, LaunchError> {
    let found = podman_states::inspect_container(client, id).await.map_err(|error| launch_error("look at", &error))?;
    let mut differences = read_back::plan_differences(&plan.body, &found, facts);
    let runtime = plan.body.host_config.as_ref().and_then(|host| host.runtime.as_deref());
    if let (Some(runtime), false) = (runtime, facts.engine.traits().reports_runtime) {
        differences.extend(libpod::runtime_difference(&facts.endpoint, id, runtime).await);
    }
    if !differences.is_empty() {
        let failure = Failure::operator(format!("could not use the container that {} made", facts.name()))
            .because(format!("it is not as it was asked for: {}", differences.join("; ")))
            .with_hint("it was removed before it ran; `cove explain` shows what is asked for");
        return Err(failure.into());
    }
    // Attach before the start, so that no output is lost. Without detach keys every byte of the stream is data.
    let attach =
        AttachContainerOptionsBuilder::new().stream(true).stdin(true).stdout(true).stderr(true).detach_keys("").build();
    let started = async {
        // Podman already starts the container's runtime here, so this can fail for a missing runner program too.
        let attached = client.attach_container(id, Some(attach)).await?;
        client.start_container(id, None::<StartContainerOptions>).await?;
        Ok(attached)
    };
    started.await.map_err(|error| LaunchError { failure: launch_error("start", &error), may_lack_runner: true })
}

pub(super) fn launch_error(what: &str, error: &ClientError) -> Failure {
    request_error(format!("could not {what} a container"), error)
}

/// Returns an error that names the policy's network if the engine does not have it. The engines report this case
/// unclearly or not at all.
pub(super) async fn missing_network_error(connected: &EngineConnection, network: &SandboxNetwork) -> Option<Failure> {
    let SandboxNetwork::Named(name) = network else { return None };
    connected.client.inspect_network(name, None).await.err().filter(is_missing)?;
    let (command, name) = (connected.facts.engine.traits().backend_name, display_value(name));
    let error = Failure::operator(format!("could not use the network `{name}`"));
    Some(error.because(format!("{} has none of that name", connected.facts.name())).with_hint(format!(
        "`{command} network ls` lists those that there are, `{command} network create {name}` makes it; without `--network` \
         there is none but its own loopback"
    )))
}

/// Why a container did not start.
pub(super) struct LaunchError {
    pub(super) failure: Failure,
    /// True if the runner program may be missing, so that a refill of its volume can help. Otherwise a second try would
    /// fail in the same way.
    pub(super) may_lack_runner: bool,
}

impl From<Failure> for LaunchError {
    fn from(failure: Failure) -> Self {
        Self { failure, may_lack_runner: false }
    }
}
