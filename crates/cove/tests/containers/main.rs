//! Against real daemons: Docker at `COVE_TEST_DOCKER`, Podman at `COVE_TEST_PODMAN`, both as `unix:///…`, which `cargo
//! xtask test` starts. One that is not there is skipped by name.

mod build;
mod compose;
mod ends;
mod examined;
mod images;
mod inside;
mod killed;
mod walk;

use bollard::Docker;
use cove_testkit::Program;
use cove_testkit::containers::Maker;

/// Those that are here, with their addresses.
fn daemons(test: &str) -> Vec<(Maker, String)> {
    Maker::ALL.into_iter().filter_map(|maker| Some((maker, maker.address(test)?))).collect()
}

async fn connect(address: &str) -> Docker {
    let docker = Docker::connect_with_unix(address, 120, bollard::API_DEFAULT_VERSION).expect("an address");
    docker.negotiate_version().await.expect("the daemon answers")
}

/// Runs a check against each daemon.
fn each(test: &str, check: impl AsyncFn(Maker, &str, Docker)) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    for (maker, address) in daemons(test) {
        runtime.block_on(async { check(maker, &address, connect(&address).await).await });
    }
}

fn cove() -> Program {
    Program::new(env!("CARGO_BIN_EXE_cove"))
}
