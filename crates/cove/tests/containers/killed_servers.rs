//! A server that is killed at any moment leaves nothing that the next one does not remove, and the next one removes
//! nothing else.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use bollard::Docker;
use bollard::models::ContainerCreateBody;
use bollard::query_parameters::{CreateContainerOptionsBuilder, RemoveContainerOptionsBuilder};
use cove_testkit::TestUser;
use cove_testkit::containers::TestEngine;
use cove_testkit::figures::{print_figures, sample_size};
use cove_testkit::mcp::{ClientEra, TestStdioClient};
use serde_json::json;

use crate::{cove, for_each_engine, list_labelled, run_sh};

/// Everything with a Cove label: containers, networks and volumes, each with its instance.
pub(crate) async fn labelled(docker: &Docker) -> Vec<(String, String)> {
    let found = list_labelled(docker, "cove.instance").await;
    let row = |(name, mut labels): (String, HashMap<String, String>)| Some((name, labels.remove("cove.instance")?));
    found.into_iter().filter_map(row).collect()
}

/// Images of all three kinds: oneshot, persistent, and several containers with a volume.
const IMAGES: [&str; 3] = ["python", "ubuntu", "pair"];
const PAIR: &str = "\
services:
  main: {image: \"ubuntu:24.04\", command: [sleep, infinity], volumes: [\"kept:/kept\"]}
  other: {image: \"ubuntu:24.04\", command: [sleep, infinity]}
volumes: {kept: {}}
";

/// The environment of a server, and what it may leave there.
pub(crate) struct KilledServerHome {
    engine: TestEngine,
    address: String,
    folder: tempfile::TempDir,
}

impl KilledServerHome {
    pub(crate) fn new(engine: TestEngine, address: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("temporary")).expect("a folder");
        let images = folder.path().join("images");
        let exported = cove().command(TestUser::Root).args(["images", "export"]).arg(&images).output();
        assert!(exported.expect("it runs").status.success());
        std::fs::create_dir(images.join("pair")).expect("a folder");
        std::fs::write(images.join("pair/compose.yaml"), PAIR).expect("a file");
        Self { engine, address: address.to_owned(), folder }
    }

    /// Adds an image that is no folder to build.
    pub(crate) fn add_image(&self, name: &str, definition: &str) {
        let folder = self.folder.path().join("images").join(name);
        std::fs::create_dir(&folder).expect("a folder");
        std::fs::write(folder.join("image.toml"), definition).expect("a file");
    }

    pub(crate) fn serve(&self) -> TestStdioClient {
        self.serve_with(&[])
    }

    pub(crate) fn serve_with(&self, flags: &[&str]) -> TestStdioClient {
        let mut command = cove().command(TestUser::Root);
        command
            .args(["serve", "--tools", "all", "--backend", self.engine.name(), "--image-dir"])
            .arg(self.folder.path().join("images"))
            .env("TMPDIR", self.folder.path().join("temporary"))
            .env(self.engine.variable(), &self.address);
        // Podman's networks reach the machine, which the operator must allow by name.
        if self.engine == TestEngine::Podman {
            command.args(["--allow-compose", "host-network"]);
        }
        command.args(flags);
        TestStdioClient::start(command, ClientEra::Modern)
    }

    pub(crate) fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.folder.path().join("temporary")).expect("it is there");
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }
}

/// The objects of a process, whose id is in the label.
pub(crate) fn count_of_process(all: &[(String, String)], process: u32) -> usize {
    all.iter().filter(|(_, instance)| instance.split('/').nth(2) == Some(&process.to_string())).count()
}

#[test]
fn next_start_removes_what_a_killed_server_left() {
    let rounds = sample_size(6, 50) as u64;
    for_each_engine("next_start_removes_what_a_killed_server_left", async |engine, address, docker| {
        let foreign = create_foreign_resources(&docker).await;
        let place = KilledServerHome::new(engine, address);
        // One-time work is done first.
        let mut first = place.serve();
        for image in IMAGES {
            let started = first.call("start_session", json!({"image": image}));
            assert!(started.structured()["session_id"].is_string(), "{engine:?}: {started:?}");
        }
        first.close_input();
        first.wait();
        let mut dead = BTreeSet::new();
        let (mut seen, mut files, mut instance) = (0, 0, None);
        for round in 0..rounds {
            let mut server = place.serve();
            for image in IMAGES {
                server.begin_call("start_session", json!({"image": image}));
            }
            server.begin_call("execute_code", json!({"code": "import time; time.sleep(30)"}));
            // From before anything is created to after everything is.
            let pause = (round * 7919) % 5000;
            tokio::time::sleep(Duration::from_millis(pause)).await;
            let process = server.pid();
            // However slow the machine is, at least one server has created something.
            let until = Instant::now() + Duration::from_secs(60);
            while round + 1 == rounds && count_of_process(&labelled(&docker).await, process) == 0 {
                assert!(Instant::now() < until, "{engine:?}: nothing was made");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            let pid = rustix::process::Pid::from_raw(process as i32).expect("a process");
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it can be killed");
            server.wait();
            let all = labelled(&docker).await;
            seen += count_of_process(&all, process);
            let own = all.into_iter().find(|one| count_of_process(std::slice::from_ref(one), process) == 1);
            instance = own.map(|(_, instance)| instance).or(instance);
            files += place.files().len();
            dead.insert(process);
        }
        let figures = format!("{seen} things and {files} folders were there after {rounds} kills");
        assert!(seen > 0, "{engine:?}: no server was killed while it had containers");
        // Few servers are killed while Compose reads their files, so the test creates such a folder itself.
        let folder = format!("cove-compose-{}.one", instance.expect("one was seen").replace('/', "_"));
        std::fs::create_dir(place.folder.path().join("temporary").join(folder)).expect("a folder");
        let mut next = place.serve();
        assert_eq!(next.call("execute_code", json!({"code": "6*7"})).ok(), "42\n");
        // The second or third sweep finds what Compose still created after its parent had died.
        let until = Instant::now() + Duration::from_secs(240);
        loop {
            let all = labelled(&docker).await;
            let left: usize = dead.iter().map(|process| count_of_process(&all, *process)).sum();
            let files = place.files();
            if left == 0 && files.is_empty() {
                break;
            }
            assert!(Instant::now() < until, "{engine:?}: {left} things of the dead and {files:?} are left");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        print_figures(&format!("{engine:?}: {figures} of a server, and nothing after the next start"));
        for id in foreign {
            docker.inspect_container(&id, None).await.expect("a foreign container survives");
            let options = RemoveContainerOptionsBuilder::new().force(true).build();
            docker.remove_container(&id, Some(options)).await.expect("it can be removed");
        }
        drop(next);
    });
}

#[test]
fn interrupted_run_leaves_nothing() {
    for_each_engine("interrupted_run_leaves_nothing", async |engine, address, docker| {
        let place = KilledServerHome::new(engine, address);
        let images = place.folder.path().join("images");
        let (run, repl) = (&["run", "-c", "sleep 60"][..], &["repl"][..]);
        for (image, what) in [("ubuntu", run), ("pair", run), ("ubuntu", repl)] {
            let built = run_sh(engine, address, &images, image, &["--allow-compose", "host-network", "-c", "echo 42"]);
            assert_eq!(built.stdout, "42\n", "{engine:?} {image}: {built:?}");
            let mut command = cove().command(TestUser::Root);
            command.args(what).args(["--backend", engine.name(), "--image", image, "--image-dir"]).arg(&images);
            command.args(["--allow-compose", "host-network", "-l", "sh"]).stdin(std::process::Stdio::piped());
            command.env(engine.variable(), address).env("TMPDIR", place.folder.path().join("temporary"));
            let mut child = command.spawn().expect("the program can be started");
            let until = Instant::now() + Duration::from_secs(60);
            while count_of_process(&labelled(&docker).await, child.id()) == 0 {
                assert!(Instant::now() < until, "{engine:?} {image}: nothing was made");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let pid = rustix::process::Pid::from_raw(child.id() as i32).expect("a process");
            rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it is there");
            let status = child.wait().expect("it ends");
            // A repl that has started already takes the interrupt as the end of a line, and ends with its input.
            let is_expected = status.code() == Some(130) || what == repl && status.success();
            assert!(is_expected, "{engine:?} {image}: {status}");
            assert_eq!(count_of_process(&labelled(&docker).await, child.id()), 0, "{engine:?} {image}");
            assert_eq!(place.files(), [""; 0], "{engine:?} {image}");
        }
    });
}

/// Containers of other programs, whose labels look much like Cove's.
async fn create_foreign_resources(docker: &Docker) -> Vec<String> {
    let instance = "00000000-0000-0000-0000-000000000000/1/1/1";
    let ours = [
        ("cove.kind", "sandbox"),
        ("cove.instance", instance),
        ("cove.session", "s_1"),
        ("cove.principal", "local"),
        ("cove.expires", "1"),
    ];
    let mut ids = Vec::new();
    let random = std::fs::read_to_string("/proc/sys/kernel/random/uuid").expect("it is there");
    for leave_out in ["cove.kind", "cove.session", "cove.expires", "cove.instance"] {
        let name = format!("cove-{}-{leave_out}", random.trim());
        let labels = ours.iter().filter(|(name, _)| *name != leave_out);
        let labels = labels.copied().chain([("cove.name", name.as_str())]);
        let body = ContainerCreateBody {
            image: Some("ubuntu:24.04".into()),
            cmd: Some(vec!["true".into()]),
            labels: Some(labels.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()),
            ..ContainerCreateBody::default()
        };
        let options = CreateContainerOptionsBuilder::new().name(&name).build();
        let made = docker.create_container(Some(options), body).await;
        ids.push(made.expect("a container can be made").id);
    }
    ids
}
