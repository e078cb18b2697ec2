//! Sessions in Compose images with the real runner: how they end, and what they get from their image.

use std::time::{Duration, Instant};

use bollard::errors::Error;
use bollard::models::VolumeCreateRequest;
use bollard::query_parameters::KillContainerOptionsBuilder;
use cove_core::backend::SandboxEnd;
use cove_core::policy::{Policy, SandboxRoot};
use cove_core::session::CellEnd;
use cove_protocol::Language;
use cove_testkit::TestUser;
use cove_testkit::containers::compose_recipe;
use cove_testkit::program::FinishedProgram;

use crate::container_ends::{
    EngineProxy, LONG, backend, containers, open, policy, program_copy, run, runner_volume_of, wait_until_removed,
};
use crate::{available_engines, cove, for_each_engine, for_each_engine_alone, remove_volume};

pub(crate) fn in_pair(folder: &tempfile::TempDir) -> Policy {
    Policy { root: SandboxRoot::Image(compose_recipe(folder.path())), ..policy() }
}

#[test]
fn compose_session_restores_a_pruned_runner_volume() {
    for_each_engine_alone("compose_session_restores_a_pruned_runner_volume", async |engine, address, docker| {
        let folder = tempfile::tempdir().expect("a folder");
        let (_folder, program) = program_copy(&format!("composed {engine:?}"));
        let backend = engine.backend(address, &program);
        let first = open(&backend, &in_pair(&folder), "again-1").await.expect("a session starts");
        let volume = runner_volume_of(&docker, "again-1").await;
        let labels = docker.inspect_volume(&volume).await.expect("it is there").labels;
        first.stop().await;
        remove_volume(&docker, &volume).await;
        let second = open(&backend, &in_pair(&folder), "again-2").await.expect("it is mended");
        assert_eq!(run(&second, Language::Python, "print(6*7)", LONG).await.1, "42\n");
        second.stop().await;
        // As if a process was killed before it had filled the volume.
        remove_volume(&docker, &volume).await;
        let request = VolumeCreateRequest { name: Some(volume.clone()), labels: Some(labels), ..Default::default() };
        docker.create_volume(request).await.expect("a volume can be made");
        let third = open(&engine.backend(address, &program), &in_pair(&folder), "again-3").await;
        let third = third.expect("it is filled");
        assert_eq!(run(&third, Language::Python, "print(6*7)", LONG).await.1, "42\n");
        third.stop().await;
        remove_volume(&docker, &volume).await;
    });
}

#[test]
fn reports_a_compose_container_killed_from_outside() {
    for_each_engine("reports_a_compose_container_killed_from_outside", async |engine, address, docker| {
        let folder = tempfile::tempdir().expect("a folder");
        let backend = backend(engine, address);
        let session = open(&backend, &in_pair(&folder), "lost").await.expect("a session starts");
        let ids = containers(&docker, "lost").await;
        assert_eq!(ids.len(), 2, "{ids:?}");
        let waits = run(&session, Language::Python, "import time; time.sleep(600)", LONG);
        let kills = async {
            tokio::time::sleep(Duration::from_millis(700)).await;
            for id in &ids {
                let options = KillContainerOptionsBuilder::new().signal("SIGKILL").build();
                let killed = docker.kill_container(id, Some(options)).await;
                // After the main container's end the session may have removed the other one.
                let is_gone =
                    |error: &Error| matches!(error, Error::DockerResponseServerError { status_code: 404 | 409, .. });
                assert!(killed.as_ref().err().is_none_or(is_gone), "{engine:?}: {killed:?}");
            }
        };
        let ((end, _), ()) = tokio::join!(waits, kills);
        let CellEnd::SandboxEnded(SandboxEnd::Lost(cause)) = end else { panic!("{engine:?}: {end:?}") };
        assert!(cause.starts_with("its main container was killed"), "{engine:?}: {cause}");
        wait_until_removed(&docker, "lost").await;
    });
}

#[test]
fn engine_death_in_a_compose_cell_is_reported_in_seconds() {
    for_each_engine("engine_death_in_a_compose_cell_is_reported_in_seconds", async |engine, address, docker| {
        let folder = tempfile::tempdir().expect("a folder");
        let mut proxy = EngineProxy::new(address);
        let backend = backend(engine, &format!("unix://{}", proxy.path.display()));
        let session = open(&backend, &in_pair(&folder), "composed-cut").await.expect("a session starts");
        let waits = run(&session, Language::Python, "import time; time.sleep(600)", LONG);
        let cuts = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            proxy.cut();
            Instant::now()
        };
        let ((end, _), cut) = tokio::join!(waits, cuts);
        assert!(cut.elapsed() < Duration::from_secs(120), "{engine:?}: {:?}", cut.elapsed());
        assert!(matches!(end, CellEnd::SandboxEnded(SandboxEnd::Lost(_))), "{engine:?}: {end:?}");
        proxy.restore(address);
        wait_until_removed(&docker, "composed-cut").await;
    });
}

/// Programs are found on the image's own search path.
#[test]
fn compose_session_uses_the_images_path_variable() {
    for_each_engine("compose_session_uses_the_images_path_variable", async |engine, address, _| {
        let folder = tempfile::tempdir().expect("a folder");
        let mut policy = in_pair(&folder);
        let file = "services: {main: {image: \"ubuntu:24.04\", command: [sleep, infinity], network_mode: none, \
            environment: {PATH: \"/opt/own/bin:/usr/bin:/bin\", GREETING: hello}}}";
        std::fs::write(folder.path().join("compose.yaml"), file).expect("a file");
        policy.mounts.clear();
        let session = open(&backend(engine, address), &policy, "path").await.expect("a session starts");
        let (_, said) = run(&session, Language::Bash, "echo $PATH $GREETING", LONG).await;
        assert_eq!(said, "/.cove/bin:/opt/own/bin:/usr/bin:/bin hello\n", "{engine:?}");
        assert_eq!(run(&session, Language::Python, "print(6*7)", LONG).await.1, "42\n");
        session.stop().await;
    });
}

/// Compose takes proxies from settings and variables from its environment, and would pass both to hostile code.
#[test]
fn compose_container_gets_nothing_of_the_operators_environment() {
    const FILE: &str = "\
services:
  main:
    image: \"ubuntu:24.04\"
    command: [sleep, infinity]
    network_mode: none
    environment: [HOME, PATH, DOCKER_HOST, DOCKER_CONFIG, SECRET, 'GREETING=${GREETING}',
      'FILLED=<${HOME}${PATH}${DOCKER_HOST}${CONTAINER_HOST}${DOCKER_CONFIG}${SECRET}>']
";
    const SETTINGS: &str = r#"{"proxies": {"default": {"httpProxy": "http://user:hunter2@proxy:3128",
        "httpsProxy": "http://user:hunter2@proxy:3128", "noProxy": "hunter2"}}}"#;
    let folder = tempfile::tempdir().expect("a folder");
    for (path, text) in [
        ("images/composed/compose.yaml", FILE),
        ("images/composed/.env", "GREETING=hello\n"),
        ("home/.docker/config.json", SETTINGS),
    ] {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().expect("it is in a folder")).expect("a folder");
        std::fs::write(path, text).expect("a file");
    }
    let home = folder.path().join("home");
    for (engine, address) in available_engines("compose_container_gets_nothing_of_the_operators_environment") {
        for config in [None, Some(home.join(".docker"))] {
            let mut command = cove().command(TestUser::Root);
            command.args(["run", "--backend", engine.name(), "--image", "composed", "--image-dir"]);
            command.arg(folder.path().join("images")).args(["--language", "sh", "-c", "env"]);
            command.env(engine.variable(), &address).env("HOME", &home).env("SECRET", "hunter2");
            command.envs(config.map(|config| ("DOCKER_CONFIG", config)));
            let finished = FinishedProgram::from_output(command.output().expect("the program can be started"));
            assert_eq!(finished.code, Some(0), "{engine:?}: {finished:#?}");
            let seen = &finished.stdout;
            let has = |line: &str| seen.lines().any(|one| one == line);
            assert!(has("GREETING=hello") && has("FILLED=<>"), "{engine:?}: {seen}");
            let of_image = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
            assert!(has(&format!("PATH=/.cove/bin:{of_image}")), "{engine:?}: {seen}");
            let folder = folder.path().to_str().expect("a plain path");
            for word in ["hunter2", "proxy", "SECRET", "DOCKER_", "cove-compose-", folder, &address] {
                assert!(!seen.to_lowercase().contains(&word.to_lowercase()), "{engine:?} {word}: {seen}");
            }
        }
    }
}
