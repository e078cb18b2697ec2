//! Against real daemons: Docker at `COVE_TEST_DOCKER`, Podman at `COVE_TEST_PODMAN`, both as `unix:///…`, which `cargo
//! xtask test` starts. One that is not there is skipped by name.

mod build;
mod compose;
mod composed;
mod declared;
mod elsewhere;
mod ends;
mod examined;
mod images;
mod inside;
mod killed;
mod standard;
mod swept;
mod told;
mod walk;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use bollard::Docker;
use bollard::models::ContainerSummary;
use bollard::query_parameters::{
    ListContainersOptionsBuilder, ListNetworksOptionsBuilder, ListVolumesOptionsBuilder,
    RemoveVolumeOptionsBuilder,
};
use cove_testkit::containers::Maker;
use cove_testkit::program::Finished;
use cove_testkit::{Program, Who};

/// Whoever removes what nobody needs must know all that is there: meanwhile no other test makes images or volumes.
static REMOVAL: RwLock<()> = RwLock::new(());

/// While no other test removes more than its own.
fn beside() -> RwLockReadGuard<'static, ()> {
    REMOVAL.read().unwrap_or_else(PoisonError::into_inner)
}

fn alone() -> RwLockWriteGuard<'static, ()> {
    REMOVAL.write().unwrap_or_else(PoisonError::into_inner)
}

/// Those that are here, with their addresses, and the turn of the test that asked for them.
struct Daemons<Turn> {
    left: std::vec::IntoIter<(Maker, String)>,
    _turn: Turn,
}

impl<Turn> Daemons<Turn> {
    fn new(test: &str, turn: Turn) -> Self {
        let here = Maker::ALL.into_iter().filter_map(|maker| Some((maker, maker.address(test)?)));
        Self { left: here.collect::<Vec<_>>().into_iter(), _turn: turn }
    }
}

impl<Turn> Iterator for Daemons<Turn> {
    type Item = (Maker, String);

    fn next(&mut self) -> Option<Self::Item> {
        self.left.next()
    }
}

fn daemons(test: &str) -> Daemons<RwLockReadGuard<'static, ()>> {
    Daemons::new(test, beside())
}

async fn connect(address: &str) -> Docker {
    let docker = Docker::connect_with_unix(address, 120, bollard::API_DEFAULT_VERSION).expect("an address");
    docker.negotiate_version().await.expect("the daemon answers")
}

/// Runs a check against each daemon.
fn each(test: &str, check: impl AsyncFn(Maker, &str, Docker)) {
    in_turn(daemons(test), check);
}

/// As `each`, while no other test runs.
fn each_alone(test: &str, check: impl AsyncFn(Maker, &str, Docker)) {
    in_turn(Daemons::new(test, alone()), check);
}

fn in_turn<Turn>(daemons: Daemons<Turn>, check: impl AsyncFn(Maker, &str, Docker)) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    for (maker, address) in daemons {
        runtime.block_on(async { check(maker, &address, connect(&address).await).await });
    }
}

/// All containers with these labels. Podman has a state in passing that bollard does not know: asked again.
async fn listed(docker: &Docker, label: &str) -> Vec<ContainerSummary> {
    let filters = HashMap::from([("label", vec![label])]);
    let options = ListContainersOptionsBuilder::new().all(true).filters(&filters).build();
    again(async || docker.list_containers(Some(options.clone())).await).await
}

/// Asks until it is answered: what other tests remove meanwhile can be an error.
async fn again<T>(ask: impl AsyncFn() -> Result<T, bollard::errors::Error>) -> T {
    for _ in 0..50 {
        if let Ok(found) = ask().await {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    ask().await.expect("it can be listed")
}

/// Containers, networks and volumes with this label, each by its id or name with all its labels.
async fn marked(docker: &Docker, label: &str) -> Vec<(String, HashMap<String, String>)> {
    let filters = HashMap::from([("label", vec![label])]);
    let options = ListNetworksOptionsBuilder::new().filters(&filters).build();
    let networks = again(async || docker.list_networks(Some(options.clone())).await).await;
    let options = ListVolumesOptionsBuilder::new().filters(&filters).build();
    let volumes = again(async || docker.list_volumes(Some(options.clone())).await).await.volumes;
    let containers = listed(docker, label).await.into_iter();
    let containers = containers.map(|one| (one.id.unwrap_or_default(), one.labels.unwrap_or_default()));
    let networks =
        networks.into_iter().map(|one| (one.name.unwrap_or_default(), one.labels.unwrap_or_default()));
    let volumes = volumes.into_iter().flatten().map(|one| (one.name, one.labels));
    containers.chain(networks).chain(volumes).collect()
}

/// A container that has just ended may hang on to it for a moment.
async fn remove_volume(docker: &Docker, name: &str) {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        let forced = RemoveVolumeOptionsBuilder::new().force(true).build();
        let Err(error) = docker.remove_volume(name, Some(forced)).await else { return };
        assert!(Instant::now() < until, "{error}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

fn cove() -> Program {
    Program::new(env!("CARGO_BIN_EXE_cove"))
}

/// `cove run` of shell code in an image of a directory's.
fn run_sh(maker: Maker, address: &str, images: &Path, image: &str, args: &[&str]) -> Finished {
    let mut command = cove().command(Who::Root);
    command.args(["run", "--backend", maker.name(), "--image", image, "--image-dir"]).arg(images);
    command.args(["--language", "sh"]).args(args).env(maker.variable(), address);
    Finished::of(command.output().expect("the program can be started"))
}
