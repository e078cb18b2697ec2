//! What Docker or Podman has under some labels.

use std::collections::HashMap;
use std::time::Duration;

use bollard::Docker as Client;
use bollard::errors::Error;
use bollard::models::{ContainerSummary, Network, Volume};
use bollard::query_parameters::{
    ListContainersOptionsBuilder, ListNetworksOptionsBuilder, ListVolumesOptionsBuilder,
};

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
}

/// Containers alone, also those that do not run.
pub(super) async fn containers(client: &Client, labels: &[String]) -> Result<Vec<ContainerSummary>, Error> {
    let options = ListContainersOptionsBuilder::new().all(true).filters(&filters(labels)).build();
    // Podman has states in passing that Docker has no word for.
    for _ in 0..5 {
        match client.list_containers(Some(options.clone())).await {
            Err(Error::JsonDataError { .. }) => tokio::time::sleep(Duration::from_millis(300)).await,
            other => return other,
        }
    }
    client.list_containers(Some(options)).await
}

fn filters(labels: &[String]) -> HashMap<&'static str, Vec<String>> {
    HashMap::from([("label", labels.to_vec())])
}
