//! Finds the engine's containers, networks and volumes by their labels.

use std::collections::HashMap;

use bollard::Docker as Client;
use bollard::errors::Error;
use bollard::models::{ContainerSummary, Network, Volume};
use bollard::query_parameters::{ListContainersOptionsBuilder, ListNetworksOptionsBuilder, ListVolumesOptionsBuilder};

use super::podman_states;

pub(super) struct LabelledResources {
    pub containers: Vec<ContainerSummary>,
    pub networks: Vec<Network>,
    pub volumes: Vec<Volume>,
}

impl LabelledResources {
    /// Returns all resources that have every one of these labels, each `NAME` or `NAME=VALUE`. Fails if the engine does
    /// not answer.
    pub(super) async fn find(client: &Client, labels: &[String]) -> Result<Self, Error> {
        let containers = list_containers(client, labels).await?;
        let networks = ListNetworksOptionsBuilder::new().filters(&label_filters(labels)).build();
        let networks = client.list_networks(Some(networks)).await?;
        let volumes = ListVolumesOptionsBuilder::new().filters(&label_filters(labels)).build();
        let volumes = client.list_volumes(Some(volumes)).await?.volumes.unwrap_or_default();
        Ok(Self { containers, networks, volumes })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.containers.is_empty() && self.networks.is_empty() && self.volumes.is_empty()
    }
}

/// Returns only containers, including stopped ones. Fails if the engine does not answer.
pub(super) async fn list_containers(client: &Client, labels: &[String]) -> Result<Vec<ContainerSummary>, Error> {
    let options = ListContainersOptionsBuilder::new().all(true).filters(&label_filters(labels)).build();
    podman_states::list_containers(client, options).await
}

pub(super) fn has_name(container: &ContainerSummary, name: &str) -> bool {
    container_names(container).any(|other| other == name)
}

/// Decides by the container's name, which is unique. Its labels may come from an image that was committed from a
/// member.
pub(super) fn belongs_to_project(container: &ContainerSummary, project: &str) -> bool {
    container_names(container)
        .filter_map(|name| name.strip_prefix(project))
        .any(|rest| rest.starts_with('-') || rest.starts_with('_'))
}

fn container_names(container: &ContainerSummary) -> impl Iterator<Item = &str> {
    container.names.iter().flatten().map(|name| name.trim_start_matches('/'))
}

fn label_filters(labels: &[String]) -> HashMap<&'static str, Vec<String>> {
    HashMap::from([("label", labels.to_vec())])
}
