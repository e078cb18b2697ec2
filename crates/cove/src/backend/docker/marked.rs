//! What Docker or Podman has under some labels.

use std::collections::HashMap;

use bollard::Docker as Client;
use bollard::errors::Error;
use bollard::models::{ContainerSummary, Network, Volume};
use bollard::query_parameters::{
    ListContainersOptionsBuilder, ListNetworksOptionsBuilder, ListVolumesOptionsBuilder,
};

use super::told;

pub(super) struct Marked {
    pub containers: Vec<ContainerSummary>,
    pub networks: Vec<Network>,
    pub volumes: Vec<Volume>,
}

impl Marked {
    /// Everything that has all of these labels, each `NAME` or `NAME=VALUE`.
    pub(super) async fn find(client: &Client, labels: &[String]) -> Result<Self, Error> {
        let containers = containers(client, labels).await?;
        let networks = ListNetworksOptionsBuilder::new().filters(&filters(labels)).build();
        let networks = client.list_networks(Some(networks)).await?;
        let volumes = ListVolumesOptionsBuilder::new().filters(&filters(labels)).build();
        let volumes = client.list_volumes(Some(volumes)).await?.volumes.unwrap_or_default();
        Ok(Self { containers, networks, volumes })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.containers.is_empty() && self.networks.is_empty() && self.volumes.is_empty()
    }
}

/// Containers alone, also those that do not run.
pub(super) async fn containers(client: &Client, labels: &[String]) -> Result<Vec<ContainerSummary>, Error> {
    told::containers(client, ListContainersOptionsBuilder::new().all(true).filters(&filters(labels)).build())
        .await
}

pub(super) fn is_named(container: &ContainerSummary, name: &str) -> bool {
    names(container).any(|other| other == name)
}

/// By its name, which nobody else's has: a label may come from an image that was committed from a member.
pub(super) fn is_member(container: &ContainerSummary, project: &str) -> bool {
    names(container)
        .filter_map(|name| name.strip_prefix(project))
        .any(|rest| rest.starts_with('-') || rest.starts_with('_'))
}

fn names(container: &ContainerSummary) -> impl Iterator<Item = &str> {
    container.names.iter().flatten().map(|name| name.trim_start_matches('/'))
}

fn filters(labels: &[String]) -> HashMap<&'static str, Vec<String>> {
    HashMap::from([("label", labels.to_vec())])
}
