//! What is removed of what others made, and what is not; and what happens when somebody else removes what is ours.

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
use cove::backend::Ending;
use cove::backend::docker::build::{self, Files};
use cove::session::CellEnd;
use cove::session::registry::{Bounds, Principal, Sessions, Which};
use cove_protocol::Language;
use cove_testkit::containers::Maker;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

use crate::ends::{LONG, backend, containers, open, own_program, policy, run, volume_of};
use crate::{each, listed, remove_volume};

const ELSEWHERE: &str = "00000000-0000-0000-0000-000000000000/1/1/1";
const PROJECT: &str = "com.docker.compose.project";

/// A process that is no more.
fn dead() -> String {
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

async fn until_gone(docker: &Docker, id: &str, within: Duration, what: &str) {
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
fn the_sweep_leaves_alone_what_others_may_need() {
    each("the_sweep_leaves_alone_what_others_may_need", async |maker, address, docker| {
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
        // A project that is just being started, of which one has ended as it should.
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
        // What somebody made from a sandbox of a process that is dead, and the sandbox itself.
        let name = new_name();
        let copy = make(&docker, &format!("mine-{name}"), labels(&dead(), &name), "600").await;
        start(&docker, &copy).await;
        stay.push(("a copy".to_owned(), copy));
        go.push(("the original".to_owned(), make(&docker, &name, labels(&dead(), &name), "600").await));

        let backend = backend(maker, address);
        backend.client().await.expect("somebody answers");
        for (what, id) in &go {
            until_gone(&docker, id, Duration::from_secs(60), &format!("{maker:?}: {what}")).await;
        }
        // The second look was over when what had ended was gone.
        let mut gone = Vec::new();
        for (what, id) in stay {
            if is_gone(&docker, &id).await {
                gone.push(what);
            }
            remove(&docker, &id).await;
        }
        assert_eq!(gone, [""; 0], "{maker:?}");
    });
}

#[test]
fn a_project_that_was_left_behind_goes_with_all_it_has() {
    each("a_project_that_was_left_behind_goes_with_all_it_has", async |maker, address, docker| {
        let project = new_name();
        let mut labels = labels(&dead(), &project);
        labels.insert(PROJECT.into(), project.clone());
        let member = make(&docker, &format!("{project}-main-1"), labels.clone(), "600").await;
        let copy = make(&docker, &format!("mine-{project}"), labels, "600").await;
        let only = HashMap::from([(PROJECT.to_owned(), project.clone())]);
        let network =
            NetworkCreateRequest { name: project.clone(), labels: Some(only.clone()), ..Default::default() };
        docker.create_network(network).await.expect("a network can be made");
        let volume =
            VolumeCreateRequest { name: Some(project.clone()), labels: Some(only), ..Default::default() };
        docker.create_volume(volume).await.expect("a volume can be made");
        let backend = backend(maker, address);
        backend.client().await.expect("somebody answers");
        until_gone(&docker, &member, Duration::from_secs(30), "its container").await;
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            let network = docker.inspect_network(&project, None).await;
            let volume = docker.inspect_volume(&project).await;
            if network.is_err_and(|error| is_missing(&error)) && volume.is_err_and(|error| is_missing(&error))
            {
                break;
            }
            assert!(Instant::now() < until, "{maker:?}: its network or its volume is still there");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        assert!(!is_gone(&docker, &copy).await, "{maker:?}: what somebody made of it is theirs");
        remove(&docker, &copy).await;
    });
}

/// Kills what Podman starts to clean up after a container, so that it stays `stopped`, which Docker has no word for.
struct NoCleanup(Arc<AtomicBool>);

impl NoCleanup {
    fn of(id: &str) -> Self {
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

impl Drop for NoCleanup {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

#[test]
fn a_container_that_stays_stopped_hides_no_other_and_is_swept() {
    each("a_container_that_stays_stopped_hides_no_other_and_is_swept", async |maker, address, docker| {
        if maker != Maker::Podman {
            return;
        }
        let name = new_name();
        let stopped = make(&docker, &name, labels(&dead(), &name), "1").await;
        let other = new_name();
        let other = make(&docker, &other, labels(&dead(), &other), "600").await;
        let cleanup = NoCleanup::of(&stopped);
        start(&docker, &stopped).await;
        let until = Instant::now() + Duration::from_secs(15);
        // As long as it can be read, it is in a state that Docker knows.
        while docker.inspect_container(&stopped, None).await.is_ok() {
            assert!(Instant::now() < until, "it did not come to be stopped");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let backend = backend(maker, address);
        backend.client().await.expect("somebody answers");
        for id in [&stopped, &other] {
            until_gone(&docker, id, Duration::from_secs(12), "what was left behind").await;
        }
        drop(cleanup);
    });
}

#[test]
fn an_end_that_nobody_cleans_up_after_has_its_cause() {
    each("an_end_that_nobody_cleans_up_after_has_its_cause", async |maker, address, docker| {
        if maker != Maker::Podman {
            return;
        }
        let session = open(&backend(maker, address), &policy(), "stopped").await.expect("a session starts");
        let ids = containers(&docker, "stopped").await;
        let _cleanup = NoCleanup::of(&ids[0]);
        let waits = run(&session, Language::Python, "import time; time.sleep(60)", LONG);
        let kills = async {
            tokio::time::sleep(Duration::from_millis(700)).await;
            let options = KillContainerOptionsBuilder::new().signal("SIGKILL").build();
            docker.kill_container(&ids[0], Some(options)).await.expect("it can be killed");
        };
        let ((end, _), ()) = tokio::join!(waits, kills);
        let CellEnd::SandboxEnded(Ending::Lost(cause)) = end else { panic!("{end:?}") };
        assert!(cause.contains("killed"), "{cause}");
    });
}

#[test]
fn many_starts_at_once_mend_a_pruned_volume_together() {
    each("many_starts_at_once_mend_a_pruned_volume_together", async |maker, address, docker| {
        let (_folder, program) = own_program(&format!("pruned at once {maker:?}"));
        let backend = maker.backend(address, &program);
        let first = open(&backend, &policy(), "at-once").await.expect("a session starts");
        let volume = volume_of(&docker, "at-once").await;
        first.stop().await;
        remove_volume(&docker, &volume).await;
        let policy = policy();
        let starts = (0..6).map(|_| open(&backend, &policy, "at-once"));
        let started = futures_util::future::join_all(starts).await;
        let labels = docker.inspect_volume(&volume).await.expect("it is there").labels;
        assert!(labels.contains_key("cove.runner"), "{maker:?}: {labels:?}");
        for session in started {
            let session = session.unwrap_or_else(|error| panic!("{maker:?}: {error:?}"));
            assert_eq!(run(&session, Language::Python, "print(6*7)", LONG).await.1, "42\n");
            session.stop().await;
        }
        remove_volume(&docker, &volume).await;
    });
}

/// Podman builds on when nobody waits any longer.
#[test]
fn whoever_asks_again_for_a_build_waits_for_the_one_under_way() {
    each("whoever_asks_again_for_a_build_waits_for_the_one_under_way", async |maker, _, docker| {
        let folder = tempfile::tempdir().expect("a folder");
        let lines = format!("FROM ubuntu:24.04\nRUN sleep 8 && echo {} > /when\n", new_name());
        std::fs::write(folder.path().join("Dockerfile"), lines).expect("a file");
        let files = || Files::Folder(folder.path().to_owned());
        let build = || build::built(&docker, "tests-again", files(), false, &|_| {});
        let cut = tokio::time::timeout(Duration::from_secs(3), build()).await;
        assert!(cut.is_err(), "{maker:?}: it was not cut off: {cut:?}");
        let again = build().await.unwrap_or_else(|error| panic!("{maker:?}: {error:?}"));
        assert_eq!(again.done.is_none(), maker == Maker::Podman, "{maker:?}: {:?}", again.done);
        let options = RemoveImageOptionsBuilder::default().force(true).build();
        docker.remove_image(&again.reference, Some(options), None).await.expect("it can be removed");
    });
}

/// Leads to a daemon until it hangs: then it still listens, and nothing comes through any more.
async fn hanging(address: &str, folder: &Path) -> (String, watch::Sender<bool>) {
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
fn a_daemon_that_hangs_is_an_error_within_seconds() {
    each("a_daemon_that_hangs_is_an_error_within_seconds", async |maker, address, docker| {
        let folder = tempfile::tempdir().expect("a folder");
        let (through, hang) = hanging(address, folder.path()).await;
        let backend = backend(maker, &through);
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
        assert!(!end.is_success(), "{maker:?}: {end:?}");
        let took = over.duration_since(began);
        // Each request may take two minutes.
        const SECONDS: Duration = Duration::from_secs(60);
        assert!(took < SECONDS, "{maker:?}: the cell took {took:?}");
        let began = Instant::now();
        let error = open(&backend, &policy(), "hangs").await.err().expect("nobody answers");
        assert!(began.elapsed() < SECONDS, "{maker:?}: a start took {:?}", began.elapsed());
        assert_eq!(error.message, "could not reach Docker or Podman", "{maker:?}: {error:?}");
        assert!(session.is_left().await, "{maker:?}: what was not removed is not called gone");
        for id in containers(&docker, "hangs").await {
            remove(&docker, &id).await;
        }
    });
}

/// Nothing is told as stopped that may run on.
#[test]
fn a_session_that_could_not_be_stopped_is_told() {
    each("a_session_that_could_not_be_stopped_is_told", async |maker, address, docker| {
        let folder = tempfile::tempdir().expect("a folder");
        let (through, hang) = hanging(address, folder.path()).await;
        let bounds = Bounds { most: 4, idle: Duration::from_secs(600), parked: 0 };
        let sessions = Sessions::new(Arc::new(backend(maker, &through)), policy(), bounds);
        let owner = Principal("tests".into());
        let stop = async |hangs: bool| {
            let held = sessions.hold(&owner, Which::New, &policy(), None).await.expect("a session starts");
            let id = held.id().clone();
            drop(held);
            hang.send_replace(hangs);
            (id.clone(), sessions.stop(&owner, Which::Handle(id)).await)
        };
        let (id, stopped) = stop(false).await;
        assert_eq!(stopped.ok(), Some(id), "{maker:?}");
        let (id, left) = stop(true).await;
        let told = left.expect_err("nobody answers").to_string();
        assert!(told.contains("could not remove the sandbox"), "{maker:?}: {told}");
        for container in listed(&docker, &format!("cove.session={id}")).await {
            remove(&docker, &container.id.expect("an id")).await;
        }
    });
}
