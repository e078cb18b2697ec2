//! Tests against real engines: Docker at `COVE_TEST_DOCKER`, Podman at `COVE_TEST_PODMAN`, both as `unix:///…`, which
//! `cargo xtask test --all` starts. A test without its engine is skipped by name.

mod build;
mod chaos;
mod cleanup;
mod compose;
mod compose_sessions;
mod container_ends;
mod default_image;
mod doctor_and_explain;
mod error_causes;
mod guide_walkthrough;
mod image_declarations;
mod images;
mod inside;
#[path = "../egress_attacks/inspected_api.rs"]
mod inspected_api;
mod killed_servers;
mod network_access;
mod ready_containers;
mod remote_engines;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use bollard::Docker;
use bollard::models::ContainerSummary;
use bollard::query_parameters::{
    ListContainersOptionsBuilder, ListNetworksOptionsBuilder, ListVolumesOptionsBuilder, RemoveVolumeOptionsBuilder,
};
use cove_testkit::containers::TestEngine;
use cove_testkit::program::FinishedProgram;
use cove_testkit::{TestProgram, TestUser};

/// A test that prunes must know every image and volume, so no other test may create any meanwhile.
static REMOVAL: RwLock<()> = RwLock::new(());

/// Held by tests that remove only their own objects.
fn shared_turn() -> RwLockReadGuard<'static, ()> {
    REMOVAL.read().unwrap_or_else(PoisonError::into_inner)
}

fn exclusive_turn() -> RwLockWriteGuard<'static, ()> {
    REMOVAL.write().unwrap_or_else(PoisonError::into_inner)
}

/// The engines that exist here, with their addresses, and the turn of the test that asked for them.
struct AvailableEngines<Turn> {
    left: std::vec::IntoIter<(TestEngine, String)>,
    _turn: Turn,
}

impl<Turn> AvailableEngines<Turn> {
    fn new(test: &str, turn: Turn) -> Self {
        let here = TestEngine::ALL.into_iter().filter_map(|engine| Some((engine, engine.address(test)?)));
        Self { left: here.collect::<Vec<_>>().into_iter(), _turn: turn }
    }
}

impl<Turn> Iterator for AvailableEngines<Turn> {
    type Item = (TestEngine, String);

    fn next(&mut self) -> Option<Self::Item> {
        self.left.next()
    }
}

fn available_engines(test: &str) -> AvailableEngines<RwLockReadGuard<'static, ()>> {
    AvailableEngines::new(test, shared_turn())
}

async fn connect(address: &str) -> Docker {
    let docker = Docker::connect_with_unix(address, 120, bollard::API_DEFAULT_VERSION).expect("an address");
    docker.negotiate_version().await.expect("the daemon answers")
}

/// Runs a check against each engine, one after the other: on two processors, both at once take longer, and Podman
/// answers too late.
fn for_each_engine(test: &str, check: impl AsyncFn(TestEngine, &str, Docker)) {
    run_for_engines(available_engines(test), check);
}

/// Like `for_each_engine`, while no other test runs.
fn for_each_engine_alone(test: &str, check: impl AsyncFn(TestEngine, &str, Docker)) {
    run_for_engines(AvailableEngines::new(test, exclusive_turn()), check);
}

fn run_for_engines<Turn>(engines: AvailableEngines<Turn>, check: impl AsyncFn(TestEngine, &str, Docker)) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    for (engine, address) in engines {
        runtime.block_on(async { check(engine, &address, connect(&address).await).await });
    }
}

/// All containers with this label. Asks again if Podman reports a transient state that bollard does not know.
async fn list_containers(docker: &Docker, label: &str) -> Vec<ContainerSummary> {
    let filters = HashMap::from([("label", vec![label])]);
    let options = ListContainersOptionsBuilder::new().all(true).filters(&filters).build();
    retry(async || docker.list_containers(Some(options.clone())).await).await
}

/// Repeats a request until it succeeds: objects that other tests remove meanwhile can make it fail.
async fn retry<T>(ask: impl AsyncFn() -> Result<T, bollard::errors::Error>) -> T {
    for _ in 0..300 {
        if let Ok(found) = ask().await {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    ask().await.expect("it can be listed")
}

/// Containers, networks and volumes with this label, each by its id or name with all its labels.
async fn list_labelled(docker: &Docker, label: &str) -> Vec<(String, HashMap<String, String>)> {
    let filters = HashMap::from([("label", vec![label])]);
    let options = ListNetworksOptionsBuilder::new().filters(&filters).build();
    let networks = retry(async || docker.list_networks(Some(options.clone())).await).await;
    let options = ListVolumesOptionsBuilder::new().filters(&filters).build();
    let volumes = retry(async || docker.list_volumes(Some(options.clone())).await).await.volumes;
    let containers = list_containers(docker, label).await.into_iter();
    let containers = containers.map(|one| (one.id.unwrap_or_default(), one.labels.unwrap_or_default()));
    let networks = networks.into_iter().map(|one| (one.name.unwrap_or_default(), one.labels.unwrap_or_default()));
    let volumes = volumes.into_iter().flatten().map(|one| (one.name, one.labels));
    containers.chain(networks).chain(volumes).collect()
}

/// Removes a volume. A container that has just ended may keep it for a moment.
async fn remove_volume(docker: &Docker, name: &str) {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let forced = RemoveVolumeOptionsBuilder::new().force(true).build();
        let Err(error) = docker.remove_volume(name, Some(forced)).await else { return };
        assert!(Instant::now() < until, "{error}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

fn cove() -> TestProgram {
    TestProgram::new(env!("CARGO_BIN_EXE_cove"))
}

/// Runs shell code with `cove run` in an image of this directory.
fn run_sh(engine: TestEngine, address: &str, images: &Path, image: &str, args: &[&str]) -> FinishedProgram {
    let mut command = cove().command(TestUser::Root);
    command.args(["run", "--backend", engine.name(), "--image", image, "--image-dir"]).arg(images);
    command.args(["--language", "sh"]).args(args).env(engine.variable(), address);
    FinishedProgram::from_output(command.output().expect("the program can be started"))
}
