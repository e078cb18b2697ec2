//! Containers that do not end by themselves: how they end, what limits them, and what is refused before they start.

use cove_core::error::Failure;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bollard::Docker;
use bollard::models::VolumeCreateRequest;
use bollard::query_parameters::{KillContainerOptionsBuilder, RemoveContainerOptionsBuilder};
use cove_core::backend::{Backend as _, PlanFormat, SandboxEnd, SandboxOwner};
use cove_core::output::OutputCollector;
use cove_core::policy::{ImageRecipe, ImageSource};
use cove_core::policy::{MountAccess, Policy, SandboxMount, SandboxNetwork, SandboxRoot};
use cove_core::session::{Cell, CellEnd, Session, SessionOptions};
use cove_docker::ContainerBackend as Backend;
use cove_protocol::Language;
use cove_testkit::containers::{TestEngine, recipe};
use cove_testkit::measure;
use cove_testkit::skip::skip_without_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{cove, for_each_engine, for_each_engine_alone, list_containers, remove_volume};

pub(crate) fn policy() -> Policy {
    Policy { root: SandboxRoot::Image(recipe()), python: None, ..measure::config().policy }
}

pub(crate) fn backend(engine: TestEngine, address: &str) -> Backend {
    engine.backend(address, cove().path())
}

/// A name that differs from those of another test run.
pub(crate) fn unique(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

/// A session with a name that no other test uses.
pub(crate) async fn open(backend: &Backend, policy: &Policy, name: &str) -> Result<Session, Failure> {
    let whose = SandboxOwner { session: unique(name), principal: "tests".into() };
    Session::start(backend, policy, SessionOptions { owner: whose, ..SessionOptions::default() }).await
}

pub(crate) async fn run(session: &Session, language: Language, code: &str, timeout: Duration) -> (CellEnd, String) {
    let mut collector = OutputCollector::new(20_000_usize, None);
    let cell = Cell { language, timeout, ..measure::cell(&measure::config(), code) };
    let end = session.run(cell, |shown| collector.push(shown), std::future::pending()).await;
    let collected = collector.finish();
    (end, collected.stdout.text + &collected.stderr.text)
}

/// Longer than a busy engine takes for anything.
pub(crate) const LONG: Duration = Duration::from_secs(180);

/// The containers of a session, by their label.
pub(crate) async fn containers(docker: &Docker, session: &str) -> Vec<String> {
    let found = list_containers(docker, &format!("cove.session={}", unique(session))).await;
    found.into_iter().filter_map(|container| container.id).collect()
}

/// Waits until nothing of a session is left: Cove removes what a busy engine did not remove at once in the background.
pub(crate) async fn wait_until_removed(docker: &Docker, session: &str) {
    let until = Instant::now() + Duration::from_secs(120);
    while !containers(docker, session).await.is_empty() {
        assert!(Instant::now() < until, "the containers of `{session}` are left");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[test]
fn reports_a_container_killed_from_outside() {
    for_each_engine("reports_a_container_killed_from_outside", async |engine, address, docker| {
        let backend = backend(engine, address);
        let killed = match engine {
            TestEngine::Docker => "its container was killed from outside",
            TestEngine::Podman => "its container was killed, from outside or for lack of memory",
        };
        for (name, removed, reported) in [("killed-1", false, killed), ("killed-2", true, "from outside")] {
            let session = open(&backend, &policy(), name).await.expect("a session starts");
            let ids = containers(&docker, name).await;
            assert_eq!(ids.len(), 1, "{ids:?}");
            let waits = run(&session, Language::Python, "import time; time.sleep(600)", LONG);
            let kills = async {
                tokio::time::sleep(Duration::from_millis(700)).await;
                if removed {
                    let options = RemoveContainerOptionsBuilder::new().force(true).build();
                    docker.remove_container(&ids[0], Some(options)).await.expect("it can be removed");
                } else {
                    let options = KillContainerOptionsBuilder::new().signal("SIGKILL").build();
                    docker.kill_container(&ids[0], Some(options)).await.expect("it can be killed");
                }
            };
            let start = Instant::now();
            let ((end, _), ()) = tokio::join!(waits, kills);
            let CellEnd::SandboxEnded(SandboxEnd::Lost(cause)) = end else { panic!("{engine:?} {name}: {end:?}") };
            assert!(cause.contains(reported), "{engine:?} {name}: {cause}");
            assert!(start.elapsed() < Duration::from_secs(120), "{:?}", start.elapsed());
            wait_until_removed(&docker, name).await;
        }
    });
}

/// Code that fills memory without a process of its own that the kernel could kill takes the runner with it.
#[test]
fn out_of_memory_is_not_reported_as_an_outside_kill() {
    for_each_engine("out_of_memory_is_not_reported_as_an_outside_kill", async |engine, address, _| {
        let mut policy = policy();
        policy.limits.memory = 200 << 20;
        let session = open(&backend(engine, address), &policy, "hungry").await.expect("a session starts");
        let fills = "head -c 300m /dev/zero > /workspace/f";
        let (end, _) = run(&session, Language::Sh, fills, LONG).await;
        match &end {
            CellEnd::SandboxEnded(SandboxEnd::Lost(cause)) if engine == TestEngine::Podman => {
                assert!(cause.contains("from outside or for lack of memory"), "{cause}");
            }
            _ => assert_eq!(end.kind(), "out_of_memory", "{engine:?}: {end:?}"),
        }
    });
}

#[test]
fn timed_out_cell_is_stopped_inside_the_container() {
    for_each_engine("timed_out_cell_is_stopped_inside_the_container", async |engine, address, _| {
        let session = open(&backend(engine, address), &policy(), "late").await.expect("a session starts");
        let count = "ls /proc/*/exe 2>/dev/null | while read exe; do readlink $exe; done | grep -c sleep";
        for code in ["sleep 300", "trap '' INT; sleep 300; sleep 300"] {
            let (end, _) = run(&session, Language::Bash, code, Duration::from_millis(600)).await;
            assert_eq!(end.kind(), "deadline", "{end:?}");
            let until = Instant::now() + Duration::from_secs(120);
            loop {
                let (_, left) = run(&session, Language::Sh, count, LONG).await;
                if left == "0\n" {
                    break;
                }
                assert!(Instant::now() < until, "{engine:?} {code}: {left}");
            }
        }
        session.stop().await;
    });
}

#[test]
fn stopped_session_leaves_no_container() {
    for_each_engine("stopped_session_leaves_no_container", async |engine, address, docker| {
        let backend = backend(engine, address);
        let stopped = open(&backend, &policy(), "stopped").await.expect("a session starts");
        stopped.stop().await;
        assert_eq!(containers(&docker, "stopped").await, [""; 0]);
        drop(open(&backend, &policy(), "dropped").await.expect("a session starts"));
        wait_until_removed(&docker, "dropped").await;
        // A caller that gives up during a start leaves nothing either.
        for wait in [5, 60, 200] {
            let _ = tokio::time::timeout(Duration::from_millis(wait), open(&backend, &policy(), "given-up")).await;
        }
        // The engine may create the requested container later.
        let seen = Instant::now() + Duration::from_secs(10);
        while Instant::now() < seen && containers(&docker, "given-up").await.is_empty() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let until = Instant::now() + Duration::from_secs(180);
        let mut empty = 0;
        while empty < 20 {
            empty = if containers(&docker, "given-up").await.is_empty() { empty + 1 } else { 0 };
            assert!(Instant::now() < until, "a start that was given up leaves its container");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
}

/// A copy of the program with a digest, and so a volume, that no other test uses.
pub(crate) fn program_copy(whose: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("cove");
    let mut bytes = std::fs::read(cove().path()).expect("the program can be read");
    bytes.extend(whose.bytes());
    std::fs::write(&program, bytes).expect("it can be copied");
    (folder, program)
}

/// The volume with Cove's program in a session's container.
pub(crate) async fn runner_volume_of(docker: &Docker, session: &str) -> String {
    let mut names = Vec::new();
    for id in containers(docker, session).await {
        let found = docker.inspect_container(&id, None).await.expect("it can be looked at");
        let ours = found.mounts.into_iter().flatten();
        names
            .extend(ours.filter(|mount| mount.destination.as_deref() == Some("/.cove")).filter_map(|mount| mount.name));
    }
    names.pop().expect("one has our volume")
}

/// All images share the runner's volume, so no image may write to it.
#[test]
fn images_cannot_write_to_the_runner_volume() {
    for_each_engine_alone("images_cannot_write_to_the_runner_volume", async |engine, address, docker| {
        let (_folder, program) = program_copy(&format!("planted {engine:?}"));
        let backend = engine.backend(address, &program);
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("evil"), "#!/bin/sh\necho evil\n").expect("a file");
        let dockerfile = "FROM ubuntu:24.04\nCOPY evil /.cove/bin/evil\n";
        std::fs::write(folder.path().join("Dockerfile"), dockerfile).expect("a file");
        let source = ImageSource::Folder(folder.path().to_owned());
        let planted = ImageRecipe { name: "cove-test-planted".into(), source, languages: Vec::new() };
        let look = "ls /.cove/bin; command -v evil";
        for (name, root) in [("planted-1", planted), ("planted-2", recipe())] {
            let policy = Policy { root: SandboxRoot::Image(root), ..policy() };
            let session = open(&backend, &policy, name).await.expect("a session starts");
            assert_eq!(run(&session, Language::Bash, look, LONG).await.1, "mcp\n", "{engine:?} {name}");
            let volume = runner_volume_of(&docker, name).await;
            session.stop().await;
            if name == "planted-2" {
                remove_volume(&docker, &volume).await;
            }
        }
    });
}

#[test]
fn restores_a_pruned_runner_volume() {
    for_each_engine_alone("restores_a_pruned_runner_volume", async |engine, address, docker| {
        let (_folder, program) = program_copy(&format!("pruned {engine:?}"));
        let backend = engine.backend(address, &program);
        let first = open(&backend, &policy(), "pruned").await.expect("a session starts");
        let volume = runner_volume_of(&docker, "pruned").await;
        let labels = docker.inspect_volume(&volume).await.expect("it is there").labels;
        assert!(labels.contains_key("cove.runner"), "{labels:?}");
        first.stop().await;
        remove_volume(&docker, &volume).await;
        let second = open(&backend, &policy(), "pruned").await.expect("it is mended");
        assert_eq!(run(&second, Language::Python, "print(6*7)", LONG).await.1, "42\n");
        second.stop().await;
        // Another process recognizes the volume that replaced it.
        let third = open(&engine.backend(address, &program), &policy(), "pruned").await;
        third.expect("it is whole").stop().await;
        remove_volume(&docker, &volume).await;
        // It replaces a volume that another program created.
        let foreign = VolumeCreateRequest { name: Some(volume.clone()), ..Default::default() };
        docker.create_volume(foreign).await.expect("a volume can be made");
        let fourth = open(&engine.backend(address, &program), &policy(), "pruned").await.expect("it is replaced");
        assert_eq!(run(&fourth, Language::Python, "print(6*7)", LONG).await.1, "42\n");
        fourth.stop().await;
        remove_volume(&docker, &volume).await;
    });
}

#[test]
fn uses_a_named_runtime_or_refuses() {
    for_each_engine("uses_a_named_runtime_or_refuses", async |engine, address, docker| {
        let backend = backend(engine, address);
        let unknown = Policy { runtime: Some("no-such-runtime".into()), ..policy() };
        let error = open(&backend, &unknown, "runtime").await.err().expect("it is refused");
        assert_eq!(error.message, "could not use the runtime `no-such-runtime`");
        assert_eq!(containers(&docker, "runtime").await, [""; 0]);
        if engine == TestEngine::Podman {
            // Podman offers only the runtime that it was started with, whatever others it knows.
            let started_with = backend.describe(&policy()).await.expect("it answers").runtimes;
            let [default] = started_with.as_slice() else { panic!("{started_with:?}") };
            let other = if default == "runsc" { "runc" } else { "runsc" };
            let refused = Policy { runtime: Some(other.into()), ..policy() };
            let error = open(&backend, &refused, "runtime").await.err().expect("it is refused");
            assert_eq!(error.message, format!("could not use the runtime `{other}`"));
            let hint = error.hint.expect("a way out");
            assert!(hint.contains(&format!("`podman --runtime {other} system service`")), "{hint}");
            assert_eq!(containers(&docker, "runtime").await, [""; 0]);
            let same = Policy { runtime: Some(default.clone()), ..policy() };
            let session = open(&backend, &same, "runtime").await.expect("it is what it has");
            assert_eq!(run(&session, Language::Python, "print(6*7)", LONG).await.1, "42\n");
            session.stop().await;
        }
        if engine == TestEngine::Docker {
            let gvisor = Policy { runtime: Some("runsc".into()), ..policy() };
            let session = open(&backend, &gvisor, "runtime").await.expect("gVisor is registered");
            // The runtime's own kernel answers, not this machine's.
            let code = "print(open('/proc/version').read())";
            let (end, said) = run(&session, Language::Python, code, LONG).await;
            assert!(end.is_success(), "{end:?} {said}");
            let ours = std::fs::read_to_string("/proc/version").unwrap_or_default();
            assert_ne!(said.trim(), ours.trim());
            let plan = backend.explain(&gvisor, PlanFormat::Text).await.expect("it is explained");
            assert!(plan.contains("runtime     runsc"), "{plan}");
            session.stop().await;
        }
    });
}

#[test]
fn container_network_is_the_operators_choice() {
    for_each_engine("container_network_is_the_operators_choice", async |engine, address, docker| {
        let backend = backend(engine, address);
        let name = format!("cove-tests-{}", std::process::id());
        let network =
            bollard::models::NetworkCreateRequest { name: name.clone(), internal: Some(true), ..Default::default() };
        docker.create_network(network).await.expect("a network can be made");
        let named = Policy { network: SandboxNetwork::Named(name.clone()), ..policy() };
        let plan = backend.explain(&named, PlanFormat::Text).await.expect("it is explained");
        assert!(plan.contains(&format!("network     {name}, as the operator chose")), "{plan}");
        let session = open(&backend, &named, "network").await.expect("a session starts");
        let interfaces = "import socket; print(len(socket.if_nameindex()))";
        assert_eq!(run(&session, Language::Python, interfaces, LONG).await.1, "2\n");
        session.stop().await;
        docker.remove_network(&name).await.expect("nobody uses it");
        let session = open(&backend, &policy(), "network").await.expect("a session starts");
        assert_eq!(run(&session, Language::Python, interfaces, LONG).await.1, "1\n");
        session.stop().await;
        let error = open(&backend, &named, "network").await.err().expect("it is gone");
        assert_eq!(error.message, format!("could not use the network `{name}`"));
        let hint = error.hint.expect("what to do");
        assert!(hint.contains(&format!("`{} network ls`", engine.name())), "{hint}");
    });
}

#[test]
fn container_mounts_are_read_only_by_default() {
    for_each_engine("container_mounts_are_read_only_by_default", async |engine, address, _| {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("in"), "seen").expect("a file");
        use std::os::unix::fs::PermissionsExt;
        let open_to_all = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(folder.path(), open_to_all).expect("it can be opened");
        let mount = |target: &str, access| SandboxMount { source: folder.path().into(), target: target.into(), access };
        let mounts = vec![mount("/shown", MountAccess::ReadOnly), mount("/given", MountAccess::ReadWrite)];
        let policy = Policy { mounts, ..policy() };
        let session = open(&backend(engine, address), &policy, "mounts").await.expect("a session starts");
        let code = "cat /shown/in; echo x > /shown/out || echo refused; echo y > /given/out && cat /shown/out";
        let (_, said) = run(&session, Language::Bash, code, LONG).await;
        assert!(said.starts_with("seenrefused\ny\n"), "{engine:?}: {said}");
        assert_eq!(std::fs::read_to_string(folder.path().join("out")).expect("it was written"), "y\n");
        session.stop().await;
    });
}

#[test]
fn refuses_rootless_podman_without_limit_support() {
    let test = "refuses_rootless_podman_without_limit_support";
    let Some(address) = std::env::var("COVE_TEST_PODMAN_ROOTLESS").ok().filter(|address| !address.is_empty()) else {
        return skip_without_all(test, "only root starts the rootless Podman of the tests");
    };
    // Refused before Cove checks whether the image exists.
    let reference = ImageSource::Reference("cove-tests/not-there:1".into());
    let root = SandboxRoot::Image(ImageRecipe { name: "none".into(), source: reference, languages: Vec::new() });
    let policy = Policy { root, ..policy() };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let backend = backend(TestEngine::Podman, &address);
        let prepared = backend.prepare(&policy, &|_| {}).await.err();
        let started = open(&backend, &policy, "rootless").await.err();
        for error in [prepared, started] {
            let error = error.expect("it is refused");
            assert!(error.message.contains("rootless Podman"), "{error:?}");
            assert!(error.hint.expect("a way out").contains("--backend jail"));
        }
    });
}

type SentBytes = Arc<std::sync::Mutex<Vec<u8>>>;
type ProxyTasks = Arc<std::sync::Mutex<tokio::task::JoinSet<()>>>;

/// A proxy between Cove and the engine that can be cut.
pub(crate) struct EngineProxy {
    pub(crate) path: PathBuf,
    /// All bytes that Cove sent.
    said: SentBytes,
    _folder: tempfile::TempDir,
    tasks: ProxyTasks,
    accepts: tokio::task::JoinHandle<()>,
}

impl EngineProxy {
    pub(crate) fn new(address: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let tasks = Arc::new(std::sync::Mutex::new(tokio::task::JoinSet::new()));
        let said = SentBytes::default();
        let accepts = Self::listen(&path, address, Arc::clone(&tasks), Arc::clone(&said));
        Self { path, said, _folder: folder, tasks, accepts }
    }

    fn listen(path: &Path, address: &str, open: ProxyTasks, said: SentBytes) -> tokio::task::JoinHandle<()> {
        let listener = tokio::net::UnixListener::bind(path).expect("a socket");
        let behind = address.trim_start_matches("unix://").to_owned();
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let (behind, said) = (behind.clone(), Arc::clone(&said));
                open.lock().expect("no test panics here").spawn(async move {
                    if let Ok(far) = tokio::net::UnixStream::connect(behind).await {
                        copy_and_record(near, far, &said).await;
                    }
                });
            }
        })
    }

    /// As if the engine had restarted.
    pub(crate) fn restore(&mut self, address: &str) {
        self.accepts = Self::listen(&self.path, address, Arc::clone(&self.tasks), Arc::clone(&self.said));
    }

    /// As if the engine had died.
    pub(crate) fn cut(&self) {
        self.accepts.abort();
        let _ = std::fs::remove_file(&self.path);
        self.tasks.lock().expect("no test panics here").abort_all();
    }
}

async fn copy_and_record(near: tokio::net::UnixStream, far: tokio::net::UnixStream, said: &SentBytes) {
    let ((mut from_near, mut to_near), (mut from_far, mut to_far)) = (near.into_split(), far.into_split());
    let there = async {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(count @ 1..) = from_near.read(&mut buffer).await {
            said.lock().expect("no test panics here").extend_from_slice(&buffer[..count]);
            if to_far.write_all(&buffer[..count]).await.is_err() {
                break;
            }
        }
        let _ = to_far.shutdown().await;
    };
    let back = async {
        let _ = tokio::io::copy(&mut from_far, &mut to_near).await;
        let _ = to_near.shutdown().await;
    };
    tokio::join!(there, back);
}

/// A request that waits for a container's end makes Podman poll without a pause, for as long as the session lasts.
#[test]
fn idle_session_sends_no_engine_requests() {
    for_each_engine("idle_session_sends_no_engine_requests", async |engine, address, docker| {
        let proxy = EngineProxy::new(address);
        let backend = backend(engine, &format!("unix://{}", proxy.path.display()));
        let session = open(&backend, &policy(), "idle").await.expect("a session starts");
        let said = || proxy.said.lock().expect("no test panics here").clone();
        let id = containers(&docker, "idle").await.pop().expect("it has a container");
        let before = said().len();
        tokio::time::sleep(Duration::from_secs(5)).await;
        // Sweeps for leftovers may run too, but they do not ask about this container.
        let text = String::from_utf8_lossy(&said()).into_owned();
        let since = String::from_utf8_lossy(&said()[before..]).into_owned();
        assert!(text.contains(&format!("/containers/{id}/attach?")), "{engine:?}: {text}");
        assert!(!since.contains(&id) && !text.contains("/wait"), "{engine:?}: {since}");
        session.stop().await;
    });
}

#[test]
fn engine_death_in_a_cell_is_reported_in_seconds() {
    for_each_engine("engine_death_in_a_cell_is_reported_in_seconds", async |engine, address, docker| {
        let mut proxy = EngineProxy::new(address);
        let backend = backend(engine, &format!("unix://{}", proxy.path.display()));
        let session = open(&backend, &policy(), "cut-off").await.expect("a session starts");
        let waits = run(&session, Language::Python, "import time; time.sleep(600)", LONG);
        let cuts = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            proxy.cut();
            Instant::now()
        };
        let ((end, _), cut) = tokio::join!(waits, cuts);
        assert!(cut.elapsed() < Duration::from_secs(120), "{:?}", cut.elapsed());
        let CellEnd::SandboxEnded(SandboxEnd::Lost(cause)) = end else { panic!("{end:?}") };
        assert!(cause.contains("connection"), "{cause}");
        // A container that Cove cannot reach ends by itself, because its input has ended.
        let until = Instant::now() + Duration::from_secs(120);
        for id in containers(&docker, "cut-off").await {
            while docker.inspect_container(&id, None).await.ok().and_then(|found| found.state?.running) == Some(true) {
                assert!(Instant::now() < until, "{engine:?}: the container goes on");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        // Cove removes the container as soon as the engine answers again.
        proxy.restore(address);
        wait_until_removed(&docker, "cut-off").await;
    });
}
