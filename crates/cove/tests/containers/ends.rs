//! How containers end that do not end by themselves, what holds them, and what is refused before they begin.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bollard::Docker;
use bollard::models::VolumeCreateRequest;
use bollard::query_parameters::{KillContainerOptionsBuilder, RemoveContainerOptionsBuilder};
use cove::backend::docker::Docker as Backend;
use cove::backend::{Backend as _, Ending, Form, StartError, Whose};
use cove::image::{Recipe, Source};
use cove::output::Collector;
use cove::policy::{Access, Mount, Network, Policy, Root};
use cove::session::{Cell, CellEnd, Options, Session};
use cove_protocol::Language;
use cove_testkit::containers::{Maker, recipe};
use cove_testkit::measure;
use cove_testkit::skip::skip;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{cove, each, each_alone, listed, remove_volume};

pub(crate) fn policy() -> Policy {
    Policy { root: Root::Image(recipe()), python: None, ..measure::config().policy }
}

pub(crate) fn backend(maker: Maker, address: &str) -> Backend {
    maker.backend(address, cove().path())
}

/// What another run of the tests left is not this one's.
pub(crate) fn unique(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

/// A session that can be told apart from those of other tests.
pub(crate) async fn open(backend: &Backend, policy: &Policy, name: &str) -> Result<Session, StartError> {
    let whose = Whose { session: unique(name), principal: "tests".into() };
    Session::start(backend, policy, Options { whose, ..Options::default() }).await
}

pub(crate) async fn run(
    session: &Session,
    language: Language,
    code: &str,
    timeout: Duration,
) -> (CellEnd, String) {
    let mut collector = Collector::new(20_000, None);
    let cell = Cell { language, timeout, ..measure::cell(&measure::config(), code) };
    let end = session.run(cell, |shown| collector.show(shown), std::future::pending()).await;
    let collected = collector.finish();
    (end, collected.stdout.text + &collected.stderr.text)
}

pub(crate) const LONG: Duration = Duration::from_secs(60);

/// The containers of a session, by their label.
pub(crate) async fn containers(docker: &Docker, session: &str) -> Vec<String> {
    let found = listed(docker, &format!("cove.session={}", unique(session))).await;
    found.into_iter().filter_map(|container| container.id).collect()
}

#[test]
fn a_container_killed_from_outside_is_lost_with_its_cause() {
    each("a_container_killed_from_outside_is_lost_with_its_cause", async |maker, address, docker| {
        let backend = backend(maker, address);
        let killed = match maker {
            Maker::Docker => "somebody killed its container",
            Maker::Podman => "its container was killed, by somebody or for want of memory",
        };
        for (name, removed, told) in [("killed-1", false, killed), ("killed-2", true, "somebody")] {
            let session = open(&backend, &policy(), name).await.expect("a session starts");
            let ids = containers(&docker, name).await;
            assert_eq!(ids.len(), 1, "{ids:?}");
            let waits = run(&session, Language::Python, "import time; time.sleep(60)", LONG);
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
            let CellEnd::SandboxEnded(Ending::Lost(cause)) = end else { panic!("{maker:?} {name}: {end:?}") };
            assert!(cause.contains(told), "{maker:?} {name}: {cause}");
            assert!(start.elapsed() < Duration::from_secs(50), "{:?}", start.elapsed());
            assert_eq!(containers(&docker, name).await, [""; 0], "nothing of it is left");
        }
    });
}

/// What fills memory without a process of its own to be killed for it takes the runner with it.
#[test]
fn want_of_memory_is_not_laid_at_somebody_s_door() {
    each("want_of_memory_is_not_laid_at_somebody_s_door", async |maker, address, _| {
        let mut policy = policy();
        policy.limits.memory = 200 << 20;
        let session = open(&backend(maker, address), &policy, "hungry").await.expect("a session starts");
        let fills = "head -c 300m /dev/zero > /workspace/f";
        let (end, _) = run(&session, Language::Sh, fills, LONG).await;
        match &end {
            CellEnd::SandboxEnded(Ending::Lost(cause)) if maker == Maker::Podman => {
                assert!(cause.contains("by somebody or for want of memory"), "{cause}");
            }
            _ => assert_eq!(end.kind(), "out_of_memory", "{maker:?}: {end:?}"),
        }
    });
}

#[test]
fn work_that_is_late_is_ended_inside_the_container() {
    each("work_that_is_late_is_ended_inside_the_container", async |maker, address, _| {
        let session = open(&backend(maker, address), &policy(), "late").await.expect("a session starts");
        let count = "ls /proc/*/exe 2>/dev/null | while read exe; do readlink $exe; done | grep -c sleep";
        for code in ["sleep 300", "trap '' INT; sleep 300; sleep 300"] {
            let (end, _) = run(&session, Language::Bash, code, Duration::from_millis(600)).await;
            assert_eq!(end.kind(), "deadline", "{end:?}");
            let until = Instant::now() + Duration::from_secs(30);
            loop {
                let (_, left) = run(&session, Language::Sh, count, LONG).await;
                if left == "0\n" {
                    break;
                }
                assert!(Instant::now() < until, "{maker:?} {code}: {left}");
            }
        }
        session.stop().await;
    });
}

#[test]
fn a_session_that_stops_leaves_no_container() {
    each("a_session_that_stops_leaves_no_container", async |maker, address, docker| {
        let backend = backend(maker, address);
        let stopped = open(&backend, &policy(), "stopped").await.expect("a session starts");
        stopped.stop().await;
        assert_eq!(containers(&docker, "stopped").await, [""; 0]);
        drop(open(&backend, &policy(), "dropped").await.expect("a session starts"));
        let until = Instant::now() + Duration::from_secs(30);
        while !containers(&docker, "dropped").await.is_empty() {
            assert!(Instant::now() < until, "a session that was dropped leaves its container");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        // Whoever gives up while it starts leaves nothing either.
        for wait in [5, 60, 200] {
            let _ = tokio::time::timeout(Duration::from_millis(wait), open(&backend, &policy(), "given-up"))
                .await;
        }
        // What had been asked for may be made later.
        let seen = Instant::now() + Duration::from_secs(10);
        while Instant::now() < seen && containers(&docker, "given-up").await.is_empty() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let until = Instant::now() + Duration::from_secs(60);
        let mut empty = 0;
        while empty < 20 {
            empty = if containers(&docker, "given-up").await.is_empty() { empty + 1 } else { 0 };
            assert!(Instant::now() < until, "a start that was given up leaves its container");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
}

/// A program of its own, and so a volume of its own, that no other test uses.
pub(crate) fn own_program(whose: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("cove");
    let mut bytes = std::fs::read(cove().path()).expect("the program can be read");
    bytes.extend(whose.bytes());
    std::fs::write(&program, bytes).expect("it can be copied");
    (folder, program)
}

/// The volume with our program that a session's container has.
pub(crate) async fn volume_of(docker: &Docker, session: &str) -> String {
    let mut names = Vec::new();
    for id in containers(docker, session).await {
        let found = docker.inspect_container(&id, None).await.expect("it can be looked at");
        let ours = found.mounts.into_iter().flatten();
        names.extend(
            ours.filter(|mount| mount.destination.as_deref() == Some("/.cove"))
                .filter_map(|mount| mount.name),
        );
    }
    names.pop().expect("one has our volume")
}

/// Our volume is for all images, so nothing of one may get into it.
#[test]
fn an_image_puts_nothing_into_the_volume_with_our_program() {
    each_alone("an_image_puts_nothing_into_the_volume_with_our_program", async |maker, address, docker| {
        let (_folder, program) = own_program(&format!("planted {maker:?}"));
        let backend = maker.backend(address, &program);
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("evil"), "#!/bin/sh\necho evil\n").expect("a file");
        let dockerfile = "FROM ubuntu:24.04\nCOPY evil /.cove/bin/evil\n";
        std::fs::write(folder.path().join("Dockerfile"), dockerfile).expect("a file");
        let source = Source::Folder(folder.path().to_owned());
        let planted = Recipe { name: "cove-test-planted".into(), source, languages: Vec::new() };
        let look = "ls /.cove/bin; command -v evil";
        for (name, root) in [("planted-1", planted), ("planted-2", recipe())] {
            let policy = Policy { root: Root::Image(root), ..policy() };
            let session = open(&backend, &policy, name).await.expect("a session starts");
            assert_eq!(run(&session, Language::Bash, look, LONG).await.1, "mcp\n", "{maker:?} {name}");
            let volume = volume_of(&docker, name).await;
            session.stop().await;
            if name == "planted-2" {
                remove_volume(&docker, &volume).await;
            }
        }
    });
}

#[test]
fn our_program_is_put_back_when_its_volume_is_pruned() {
    each_alone("our_program_is_put_back_when_its_volume_is_pruned", async |maker, address, docker| {
        let (_folder, program) = own_program(&format!("pruned {maker:?}"));
        let backend = maker.backend(address, &program);
        let first = open(&backend, &policy(), "pruned").await.expect("a session starts");
        let volume = volume_of(&docker, "pruned").await;
        let labels = docker.inspect_volume(&volume).await.expect("it is there").labels;
        assert!(labels.contains_key("cove.runner"), "{labels:?}");
        first.stop().await;
        remove_volume(&docker, &volume).await;
        let second = open(&backend, &policy(), "pruned").await.expect("it is mended");
        assert_eq!(run(&second, Language::Python, "print(6*7)", LONG).await.1, "42\n");
        second.stop().await;
        // Another process takes what was made in place of it for what it is.
        let third = open(&maker.backend(address, &program), &policy(), "pruned").await;
        third.expect("it is whole").stop().await;
        remove_volume(&docker, &volume).await;
        // So it does with one that somebody else made.
        let foreign = VolumeCreateRequest { name: Some(volume.clone()), ..Default::default() };
        docker.create_volume(foreign).await.expect("a volume can be made");
        let fourth =
            open(&maker.backend(address, &program), &policy(), "pruned").await.expect("it is replaced");
        assert_eq!(run(&fourth, Language::Python, "print(6*7)", LONG).await.1, "42\n");
        fourth.stop().await;
        remove_volume(&docker, &volume).await;
    });
}

#[test]
fn a_runtime_is_used_by_name_or_refused() {
    each("a_runtime_is_used_by_name_or_refused", async |maker, address, docker| {
        let backend = backend(maker, address);
        let unknown = Policy { runtime: Some("no-such-runtime".into()), ..policy() };
        let error = open(&backend, &unknown, "runtime").await.err().expect("it is refused");
        assert_eq!(error.message, "could not use the runtime `no-such-runtime`");
        assert_eq!(containers(&docker, "runtime").await, [""; 0]);
        if maker == Maker::Podman {
            // Only the one that it was started with can be had, whatever else it knows.
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
        if maker == Maker::Docker {
            let gvisor = Policy { runtime: Some("runsc".into()), ..policy() };
            let session = open(&backend, &gvisor, "runtime").await.expect("gVisor is registered");
            // Its own kernel answers, not this machine's.
            let code = "print(open('/proc/version').read())";
            let (end, said) = run(&session, Language::Python, code, LONG).await;
            assert!(end.is_success(), "{end:?} {said}");
            let ours = std::fs::read_to_string("/proc/version").unwrap_or_default();
            assert_ne!(said.trim(), ours.trim());
            let plan = backend.explain(&gvisor, Form::Text).await.expect("it is explained");
            assert!(plan.contains("runtime     runsc"), "{plan}");
            session.stop().await;
        }
    });
}

#[test]
fn a_network_is_the_operator_s_choice_and_shown() {
    each("a_network_is_the_operator_s_choice_and_shown", async |maker, address, docker| {
        let backend = backend(maker, address);
        let name = format!("cove-tests-{}", std::process::id());
        let network = bollard::models::NetworkCreateRequest {
            name: name.clone(),
            internal: Some(true),
            ..Default::default()
        };
        docker.create_network(network).await.expect("a network can be made");
        let named = Policy { network: Network::Named(name.clone()), ..policy() };
        let plan = backend.explain(&named, Form::Text).await.expect("it is explained");
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
        assert!(hint.contains(&format!("`{} network ls`", maker.name())), "{hint}");
    });
}

#[test]
fn a_mount_in_a_container_is_read_only_unless_it_says_otherwise() {
    each("a_mount_in_a_container_is_read_only_unless_it_says_otherwise", async |maker, address, _| {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("in"), "seen").expect("a file");
        use std::os::unix::fs::PermissionsExt;
        let open_to_all = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(folder.path(), open_to_all).expect("it can be opened");
        let mount =
            |target: &str, access| Mount { source: folder.path().into(), target: target.into(), access };
        let mounts = vec![mount("/shown", Access::ReadOnly), mount("/given", Access::ReadWrite)];
        let policy = Policy { mounts, ..policy() };
        let session = open(&backend(maker, address), &policy, "mounts").await.expect("a session starts");
        let code =
            "cat /shown/in; echo x > /shown/out || echo refused; echo y > /given/out && cat /shown/out";
        let (_, said) = run(&session, Language::Bash, code, LONG).await;
        assert!(said.starts_with("seenrefused\ny\n"), "{maker:?}: {said}");
        assert_eq!(std::fs::read_to_string(folder.path().join("out")).expect("it was written"), "y\n");
        session.stop().await;
    });
}

#[test]
fn rootless_podman_that_cannot_hold_limits_is_refused_with_the_way_out() {
    let test = "rootless_podman_that_cannot_hold_limits_is_refused_with_the_way_out";
    let Some(address) = std::env::var("COVE_TEST_PODMAN_ROOTLESS").ok().filter(|address| !address.is_empty())
    else {
        return skip(test, "no rootless Podman was started for tests; `cargo xtask test` as root does");
    };
    // Before it is looked for whether there is such an image at all.
    let reference = Source::Reference("cove-tests/not-there:1".into());
    let root = Root::Image(Recipe { name: "none".into(), source: reference, languages: Vec::new() });
    let policy = Policy { root, ..policy() };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let backend = backend(Maker::Podman, &address);
        let prepared = backend.prepare(&policy, &|_| {}).await.err();
        let started = open(&backend, &policy, "rootless").await.err();
        for error in [prepared, started] {
            let error = error.expect("it is refused");
            assert!(error.message.contains("rootless Podman"), "{error:?}");
            assert!(error.hint.expect("a way out").contains("--backend jail"));
        }
    });
}

type Said = Arc<std::sync::Mutex<Vec<u8>>>;
type Tasks = Arc<std::sync::Mutex<tokio::task::JoinSet<()>>>;

/// Stands between us and the daemon, and can be cut.
pub(crate) struct Proxy {
    pub(crate) path: PathBuf,
    /// All that we have said.
    said: Said,
    _folder: tempfile::TempDir,
    tasks: Tasks,
    accepts: tokio::task::JoinHandle<()>,
}

impl Proxy {
    pub(crate) fn new(address: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let tasks = Arc::new(std::sync::Mutex::new(tokio::task::JoinSet::new()));
        let said = Said::default();
        let accepts = Self::listen(&path, address, Arc::clone(&tasks), Arc::clone(&said));
        Self { path, said, _folder: folder, tasks, accepts }
    }

    fn listen(path: &Path, address: &str, open: Tasks, said: Said) -> tokio::task::JoinHandle<()> {
        let listener = tokio::net::UnixListener::bind(path).expect("a socket");
        let behind = address.trim_start_matches("unix://").to_owned();
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let (behind, said) = (behind.clone(), Arc::clone(&said));
                open.lock().expect("no test panics here").spawn(async move {
                    if let Ok(far) = tokio::net::UnixStream::connect(behind).await {
                        join(near, far, &said).await;
                    }
                });
            }
        })
    }

    /// As if it had been started again.
    pub(crate) fn restore(&mut self, address: &str) {
        self.accepts = Self::listen(&self.path, address, Arc::clone(&self.tasks), Arc::clone(&self.said));
    }

    /// As if the daemon had died.
    pub(crate) fn cut(&self) {
        self.accepts.abort();
        let _ = std::fs::remove_file(&self.path);
        self.tasks.lock().expect("no test panics here").abort_all();
    }
}

async fn join(near: tokio::net::UnixStream, far: tokio::net::UnixStream, said: &Said) {
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

/// Whoever waits for a container's end makes Podman look for it without a pause, for as long as the session lasts.
#[test]
fn a_session_that_is_idle_asks_for_nothing() {
    each("a_session_that_is_idle_asks_for_nothing", async |maker, address, docker| {
        let proxy = Proxy::new(address);
        let backend = backend(maker, &format!("unix://{}", proxy.path.display()));
        let session = open(&backend, &policy(), "idle").await.expect("a session starts");
        let said = || proxy.said.lock().expect("no test panics here").clone();
        let id = containers(&docker, "idle").await.pop().expect("it has a container");
        let before = said().len();
        tokio::time::sleep(Duration::from_secs(5)).await;
        // Looks for what others left behind are under way too, and ask for nothing of this one.
        let text = String::from_utf8_lossy(&said()).into_owned();
        let since = String::from_utf8_lossy(&said()[before..]).into_owned();
        assert!(text.contains(&format!("/containers/{id}/attach?")), "{maker:?}: {text}");
        assert!(!since.contains(&id) && !text.contains("/wait"), "{maker:?}: {since}");
        session.stop().await;
    });
}

#[test]
fn a_daemon_that_dies_in_a_cell_is_an_error_within_seconds() {
    each("a_daemon_that_dies_in_a_cell_is_an_error_within_seconds", async |maker, address, docker| {
        let mut proxy = Proxy::new(address);
        let backend = backend(maker, &format!("unix://{}", proxy.path.display()));
        let session = open(&backend, &policy(), "cut-off").await.expect("a session starts");
        let waits = run(&session, Language::Python, "import time; time.sleep(60)", LONG);
        let cuts = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            proxy.cut();
            Instant::now()
        };
        let ((end, _), cut) = tokio::join!(waits, cuts);
        assert!(cut.elapsed() < Duration::from_secs(50), "{:?}", cut.elapsed());
        let CellEnd::SandboxEnded(Ending::Lost(cause)) = end else { panic!("{end:?}") };
        assert!(cause.contains("connection"), "{cause}");
        // What we cannot reach ends by itself, because its input has ended.
        let until = Instant::now() + Duration::from_secs(30);
        for id in containers(&docker, "cut-off").await {
            while docker.inspect_container(&id, None).await.ok().and_then(|found| found.state?.running)
                == Some(true)
            {
                assert!(Instant::now() < until, "{maker:?}: the container goes on");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        // What could not be removed is, as soon as somebody is there again.
        proxy.restore(address);
        let until = Instant::now() + Duration::from_secs(60);
        while !containers(&docker, "cut-off").await.is_empty() {
            assert!(Instant::now() < until, "{maker:?}: the container is left");
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    });
}
