//! A container that was made is looked at, and only then started.

use bollard::Docker as Client;
use bollard::errors::Error as ClientError;
use bollard::query_parameters::{AttachContainerOptionsBuilder, StartContainerOptions};

use super::connect::Connected;
use super::facts::{Facts, Maker};
use super::plan::Plan;
use super::stream::ContainerStream;
use super::{check, libpod, said, told};
use crate::backend::StartError;
use crate::error::shown;
use crate::policy::Network;

pub(super) async fn start_made(
    client: &Client,
    facts: &Facts,
    plan: &Plan,
    id: &str,
) -> Result<ContainerStream, Failed> {
    let found = told::container(client, id).await.map_err(|error| could_not("look at", &error))?;
    let mut differences = check::differences(&plan.body, &found, facts);
    let runtime = plan.body.host_config.as_ref().and_then(|host| host.runtime.as_deref());
    if let (Some(runtime), Maker::Podman) = (runtime, facts.maker) {
        differences.extend(libpod::other_runtime(&facts.address, id, runtime).await);
    }
    if !differences.is_empty() {
        let error = StartError::new(format!("could not use the container that {} made", facts.name()))
            .because(format!("it is not as it was asked for: {}", differences.join("; ")))
            .with_hint("it was removed before it ran; `cove explain` shows what is asked for");
        return Err(Failed::ForGood(error));
    }
    // Before it starts, or its first words could be lost. No keys mean anything: the stream has every byte there is.
    let attach = AttachContainerOptionsBuilder::new()
        .stream(true)
        .stdin(true)
        .stdout(true)
        .stderr(true)
        .detach_keys("")
        .build();
    // Podman begins to start it here already.
    let attached = client
        .attach_container(id, Some(attach))
        .await
        .map_err(|error| Failed::Starting(could_not("start", &error).into_error()))?;
    client
        .start_container(id, None::<StartContainerOptions>)
        .await
        .map_err(|error| Failed::Starting(could_not("start", &error).into_error()))?;
    Ok(ContainerStream::new(attached.output, attached.input))
}

pub(super) fn could_not(what: &str, error: &ClientError) -> Failed {
    Failed::ForGood(StartError::new(format!("could not {what} a container")).because(said(error)))
}

/// Why nothing starts in a network that is not there, which engines say in many words or in none.
pub(super) async fn no_network(connected: &Connected, network: &Network) -> Option<StartError> {
    let Network::Named(name) = network else { return None };
    let missing = connected.client.inspect_network(name, None).await.err()?;
    if !matches!(missing, ClientError::DockerResponseServerError { status_code: 404, .. }) {
        return None;
    }
    let (command, name) = (connected.facts.maker.backend(), shown(name));
    let error = StartError::new(format!("could not use the network `{name}`"));
    Some(error.because(format!("{} has none of that name", connected.facts.name())).with_hint(format!(
        "`{command} network ls` lists those that there are, `{command} network create {name}` makes it; without `--network` \
         there is none but its own loopback"
    )))
}

/// Whether it is worth another try.
pub(super) enum Failed {
    ForGood(StartError),
    Starting(StartError),
}

impl Failed {
    pub(super) fn into_error(self) -> StartError {
        match self {
            Self::ForGood(error) | Self::Starting(error) => error,
        }
    }
}
