//! What Cove removes of objects that other processes created, what it keeps, and what happens when another program
//! removes Cove's own.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use bollard::Docker;
use bollard::models::{ContainerCreateBody, NetworkCreateRequest, VolumeCreateRequest};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, KillContainerOptionsBuilder, RemoveContainerOptionsBuilder,
    RemoveImageOptionsBuilder, StartContainerOptions,
};
use cove_core::backend::SandboxEnd;
use cove_core::session::CellEnd;
use cove_core::session::registry::{Principal, RegistryLimits, SessionBlueprint, SessionRef, SessionRegistry};
use cove_docker::build::{BuildSource, ImageProvider};
use cove_protocol::Language;
use cove_testkit::containers::TestEngine;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, watch};

use crate::container_ends::{LONG, backend, containers, open, policy, program_copy, run, runner_volume_of};
use crate::{for_each_engine, list_containers, remove_volume};

const ELSEWHERE: &str = "00000000-0000-0000-0000-000000000000/1/1/1";
const PROJECT: &str = "com.docker.compose.project";

/// The instance of a process that no longer exists.
fn dead_instance() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("it is there");
    let place = std::fs::metadata("/proc/self/ns/pid").expect("it is there").ino();
    format!("{}/{place}/4194304/1", boot.trim())
}

fn new_name() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/uuid").expect("it is there");
    format!("cove-{}", id.trim().replace('-', ""))
}

fn labels(instance: &str, name: &str) -> HashMap<String, String> {
    [
        ("cove.kind", "sandbox"),
        ("cove.instance", instance),
        ("cove.session", "s_1"),
        ("cove.principal", "local"),
        ("cove.expires", "4000000000"),
        ("cove.name", name),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into()
}

async fn make(docker: &Docker, name: &str, labels: HashMap<String, String>, seconds: &str) -> String {
    let body = ContainerCreateBody {
        image: Some("ubuntu:24.04".into()),
        cmd: Some(vec!["sleep".into(), seconds.into()]),
        labels: Some(labels),
        ..ContainerCreateBody::default()
    };
    let options = CreateContainerOptionsBuilder::new().name(name).build();
    docker.create_container(Some(options), body).await.expect("a container can be made").id
}

async fn start(docker: &Docker, id: &str) {
    docker.start_container(id, None::<StartContainerOptions>).await.expect("it starts");
}

async fn remove(docker: &Docker, id: &str) {
    let options = RemoveContainerOptionsBuilder::new().force(true).build();
    let _ = docker.remove_container(id, Some(options)).await;
}

fn is_missing(error: &bollard::errors::Error) -> bool {
    matches!(error, bollard::errors::Error::DockerResponseServerError { status_code: 404, .. })
}

async fn is_gone(docker: &Docker, id: &str) -> bool {
    docker.inspect_container(id, None).await.is_err_and(|error| is_missing(&error))
}

async fn wait_until_gone(docker: &Docker, id: &str, within: Duration, what: &str) {
    let until = Instant::now() + within;
    while !is_gone(docker, id).await {
        if Instant::now() >= until {
            remove(docker, id).await;
            panic!("{what} is still there");
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[test]
fn sweep_keeps_what_other_processes_may_need() {
    for_each_engine("sweep_keeps_what_other_processes_may_need", async |engine, address, docker| {
        let (mut stay, mut go) = (Vec::new(), Vec::new());
        for what in ["created", "paused", "running", "ended"] {
            let name = new_name();
            let seconds = if what == "ended" { "0" } else { "600" };
            let id = make(&docker, &name, labels(ELSEWHERE, &name), seconds).await;
            if what != "created" {
                start(&docker, &id).await;
            }
            if what == "paused" {
                docker.pause_container(&id).await.expect("it can be paused");
            }
            if what == "ended" { &mut go } else { &mut stay }.push((format!("{what}, of another"), id));
        }
        // A project that is still starting: one of its containers has already ended as it should.
        let project = new_name();
        for (member, seconds) in [("main", "600"), ("setup", "0")] {
            let mut labels = labels(ELSEWHERE, &project);
            labels.insert(PROJECT.into(), project.clone());
            let id = make(&docker, &format!("{project}-{member}-1"), labels, seconds).await;
            if member == "setup" {
                start(&docker, &id).await;
            }
            stay.push((format!("{member} of a project"), id));
        }
        // A container that a user created from a sandbox of a dead process, and that sandbox itself.
        let name = new_name();
        let copy = make(&docker, &format!("mine-{name}"), labels(&dead_instance(), &name), "600").await;
        start(&docker, &copy).await;
        stay.push(("a copy".to_owned(), copy));
        go.push(("the original".to_owned(), make(&docker, &name, labels(&dead_instance(), &name), "600").await));

        let backend = backend(engine, address);
        backend.client().await.expect("somebody answers");
        for (what, id) in &go {
            wait_until_gone(&docker, id, Duration::from_secs(180), &format!("{engine:?}: {what}")).await;
        }
        // The second sweep was over when the ended containers were gone.
        let mut gone = Vec::new();
        for (what, id) in stay {
            if is_gone(&docker, &id).await {
                gone.push(what);
            }
            remove(&docker, &id).await;
        }
        assert_eq!(gone, [""; 0], "{engine:?}");
    });
}

#[test]
fn sweep_removes_an_abandoned_compose_project() {
    for_each_engine("sweep_removes_an_abandoned_compose_project", async |engine, address, docker| {
        let project = new_name();
        let mut labels = labels(&dead_instance(), &project);
        labels.insert(PROJECT.into(), project.clone());
        let member = make(&docker, &format!("{project}-main-1"), labels.clone(), "600").await;
        let copy = make(&docker, &format!("mine-{project}"), labels, "600").await;
        let only = HashMap::from([(PROJECT.to_owned(), project.clone())]);
        let network = NetworkCreateRequest { name: project.clone(), labels: Some(only.clone()), ..Default::default() };
        docker.create_network(network).await.expect("a network can be made");
        let volume = VolumeCreateRequest { name: Some(project.clone()), labels: Some(only), ..Default::default() };
        docker.create_volume(volume).await.expect("a volume can be made");
        let backend = backend(engine, address);
        backend.client().await.expect("somebody answers");
        wait_until_gone(&docker, &member, Duration::from_secs(180), "its container").await;
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let network = docker.inspect_network(&project, None).await;
            let volume = docker.inspect_volume(&project).await;
            if network.is_err_and(|error| is_missing(&error)) && volume.is_err_and(|error| is_missing(&error)) {
                break;
            }
            assert!(Instant::now() < until, "{engine:?}: its network or its volume is still there");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        assert!(!is_gone(&docker, &copy).await, "{engine:?}: a copy belongs to its author");
        remove(&docker, &copy).await;
    });
}

/// Kills the process that Podman starts to clean up after a container, so that the container stays in the state
/// `stopped`, which Docker does not have.
struct CleanupBlocker(Arc<AtomicBool>);

impl CleanupBlocker {
    fn new(id: &str) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let (id, flag) = (id.to_owned(), Arc::clone(&over));
        std::thread::spawn(move || {
            while !flag.load(SeqCst) {
                for entry in std::fs::read_dir("/proc").expect("it is there").flatten() {
                    let Ok(line) = std::fs::read(entry.path().join("cmdline")) else { continue };
                    let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
                    let is_conmon = words[0].ends_with(b"conmon");
                    if !is_conmon && words.contains(&&b"cleanup"[..]) && words.contains(&id.as_bytes()) {
                        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
                        let pid = pid.and_then(rustix::process::Pid::from_raw).expect("a process");
                        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                    }
                }
            }
        });
        Self(over)
    }
}

impl Drop for CleanupBlocker {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

#[test]
fn sweep_removes_podman_containers_that_stay_stopped() {
    for_each_engine("sweep_removes_podman_containers_that_stay_stopped", async |engine, address, docker| {
        if engine != TestEngine::Podman {
            return;
        }
        let name = new_name();
        let stopped = make(&docker, &name, labels(&dead_instance(), &name), "1").await;
        let other = new_name();
        let other = make(&docker, &other, labels(&dead_instance(), &other), "600").await;
        let cleanup = CleanupBlocker::new(&stopped);
        start(&docker, &stopped).await;
        let until = Instant::now() + Duration::from_secs(60);
        // While the state can be parsed, it is one that Docker knows.
        while docker.inspect_container(&stopped, None).await.is_ok() {
            assert!(Instant::now() < until, "it did not come to be stopped");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let backend = backend(engine, address);
        backend.client().await.expect("somebody answers");
        for id in [&stopped, &other] {
            wait_until_gone(&docker, id, Duration::from_secs(180), "what was left behind").await;
        }
        drop(cleanup);
    });
}

#[test]
fn end_is_reported_although_podman_never_cleans_up() {
    for_each_engine("end_is_reported_although_podman_never_cleans_up", async |engine, address, docker| {
        if engine != TestEngine::Podman {
            return;
        }
        let session = open(&backend(engine, address), &policy(), "stopped").await.expect("a session starts");
        let ids = containers(&docker, "stopped").await;
        let _cleanup = CleanupBlocker::new(&ids[0]);
        let waits = run(&session, Language::Python, "import time; time.sleep(600)", LONG);
        let kills = async {
            tokio::time::sleep(Duration::from_millis(700)).await;
            let options = KillContainerOptionsBuilder::new().signal("SIGKILL").build();
            docker.kill_container(&ids[0], Some(options)).await.expect("it can be killed");
        };
        let ((end, _), ()) = tokio::join!(waits, kills);
        let CellEnd::SandboxEnded(SandboxEnd::Lost(cause)) = end else { panic!("{end:?}") };
        assert!(cause.contains("killed"), "{cause}");
    });
}

#[test]
fn concurrent_starts_restore_a_pruned_volume() {
    for_each_engine("concurrent_starts_restore_a_pruned_volume", async |engine, address, docker| {
        let (_folder, program) = program_copy(&format!("pruned at once {engine:?}"));
        let backend = engine.backend(address, &program);
        let first = open(&backend, &policy(), "at-once").await.expect("a session starts");
        let volume = runner_volume_of(&docker, "at-once").await;
        first.stop().await;
        remove_volume(&docker, &volume).await;
        let policy = policy();
        let starts = (0..6).map(|_| open(&backend, &policy, "at-once"));
        let started = futures_util::future::join_all(starts).await;
        let labels = docker.inspect_volume(&volume).await.expect("it is there").labels;
        assert!(labels.contains_key("cove.runner"), "{engine:?}: {labels:?}");
        for session in started {
            let session = session.unwrap_or_else(|error| panic!("{engine:?}: {error:?}"));
            assert_eq!(run(&session, Language::Python, "print(6*7)", LONG).await.1, "42\n");
            session.stop().await;
        }
        remove_volume(&docker, &volume).await;
    });
}

/// Podman continues a build when its client disconnects.
#[test]
fn repeated_build_request_joins_the_running_build() {
    for_each_engine("repeated_build_request_joins_the_running_build", async |engine, _, docker| {
        let folder = tempfile::tempdir().expect("a folder");
        let lines = format!("FROM ubuntu:24.04\nRUN sleep 8 && echo {} > /when\n", new_name());
        std::fs::write(folder.path().join("Dockerfile"), lines).expect("a file");
        let files = || BuildSource::Folder(folder.path().to_owned());
        let begun = Notify::new();
        let tell = |line: &str| {
            if line.contains("RUN sleep") {
                begun.notify_one();
            }
        };
        let images = ImageProvider { docker: &docker, pull: false, tell: &tell };
        let build = || images.find_or_build("tests-again", files());
        tokio::select! {
            built = build() => panic!("{engine:?}: it was not cut off: {built:?}"),
            () = begun.notified() => {}
        }
        let again = build().await.unwrap_or_else(|error| panic!("{engine:?}: {error:?}"));
        assert_eq!(again.summary.is_none(), engine == TestEngine::Podman, "{engine:?}: {:?}", again.summary);
        let options = RemoveImageOptionsBuilder::default().force(true).build();
        docker.remove_image(&again.reference, Some(options), None).await.expect("it can be removed");
    });
}

/// Forwards to an engine until it hangs: then it still listens, but forwards nothing.
async fn hanging_proxy(address: &str, folder: &Path) -> (String, watch::Sender<bool>) {
    let path = folder.join("socket");
    let listener = UnixListener::bind(&path).expect("a socket");
    let behind = address.trim_start_matches("unix://").to_owned();
    let (hang, hangs) = watch::channel(false);
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let (behind, mut hangs) = (behind.clone(), hangs.clone());
            tokio::spawn(async move {
                let mut far = UnixStream::connect(behind).await.expect("it is there");
                tokio::select! {
                    _ = tokio::io::copy_bidirectional(&mut near, &mut far) => return,
                    _ = hangs.wait_for(|hangs| *hangs) => {}
                }
                std::future::pending::<()>().await;
            });
        }
    });
    (format!("unix://{}", path.display()), hang)
}

#[test]
fn hanging_engine_is_reported_in_seconds() {
    for_each_engine("hanging_engine_is_reported_in_seconds", async |engine, address, docker| {
        let folder = tempfile::tempdir().expect("a folder");
        let (through, hang) = hanging_proxy(address, folder.path()).await;
        let backend = backend(engine, &through);
        let session = open(&backend, &policy(), "hangs").await.expect("a session starts");
        let code = "import time; time.sleep(60)";
        let waits = async {
            let (end, _) = run(&session, Language::Python, code, Duration::from_secs(3)).await;
            (end, Instant::now())
        };
        let hangs = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            hang.send_replace(true);
            Instant::now()
        };
        let ((end, over), began) = tokio::join!(waits, hangs);
        assert!(!end.is_success(), "{engine:?}: {end:?}");
        let took = over.duration_since(began);
        // A single request may take two minutes.
        const SECONDS: Duration = Duration::from_secs(100);
        assert!(took < SECONDS, "{engine:?}: the cell took {took:?}");
        let began = Instant::now();
        let error = open(&backend, &policy(), "hangs").await.err().expect("the engine does not answer");
        assert!(began.elapsed() < SECONDS, "{engine:?}: a start took {:?}", began.elapsed());
        assert_eq!(error.message, "could not reach Docker or Podman", "{engine:?}: {error:?}");
        assert!(session.has_leftovers().await, "{engine:?}: what was not removed is not called gone");
        for id in containers(&docker, "hangs").await {
            remove(&docker, &id).await;
        }
    });
}

/// A session that may still run is not reported as stopped.
#[test]
fn reports_a_session_that_could_not_be_removed() {
    for_each_engine("reports_a_session_that_could_not_be_removed", async |engine, address, docker| {
        let folder = tempfile::tempdir().expect("a folder");
        let (through, hang) = hanging_proxy(address, folder.path()).await;
        let bounds = RegistryLimits { max_sessions: 4, idle_timeout: Duration::from_secs(600), headroom: || None };
        let blueprint =
            SessionBlueprint { may_be_ready: false, ..SessionBlueprint::default_for(Arc::new(policy()), None) };
        let sessions = SessionRegistry::new(Arc::new(backend(engine, &through)), policy(), bounds);
        let owner = Principal("tests".into());
        let stop = async |hangs: bool| {
            let held =
                sessions.lease(&owner, SessionRef::New, blueprint.clone(), None).await.expect("a session starts");
            let id = held.id().clone();
            drop(held);
            hang.send_replace(hangs);
            (id.clone(), sessions.stop(&owner, SessionRef::Handle(id)).await)
        };
        let (id, stopped) = stop(false).await;
        assert_eq!(stopped.ok(), Some(id), "{engine:?}");
        let (id, left) = stop(true).await;
        let reported = left.expect_err("the engine does not answer").to_string();
        assert!(reported.contains("could not remove the sandbox"), "{engine:?}: {reported}");
        for container in list_containers(&docker, &format!("cove.session={id}")).await {
            remove(&docker, &container.id.expect("an id")).await;
        }
    });
}
