//! A server that is killed at any moment leaves nothing that the next one does not remove, and the next one removes
//! nothing else.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use bollard::Docker;
use bollard::models::ContainerCreateBody;
use bollard::query_parameters::{CreateContainerOptionsBuilder, RemoveContainerOptionsBuilder};
use cove_testkit::Who;
use cove_testkit::containers::Maker;
use cove_testkit::mcp::{Era, Stdio};
use serde_json::json;

use crate::{cove, each, marked, run_sh};

/// All that has any label of ours: containers, networks and volumes, each with its instance.
async fn labelled(docker: &Docker) -> Vec<(String, String)> {
    let found = marked(docker, "cove.instance").await;
    let row =
        |(name, mut labels): (String, HashMap<String, String>)| Some((name, labels.remove("cove.instance")?));
    found.into_iter().filter_map(row).collect()
}

/// Images of all three kinds: oneshot, persistent, and of several containers with a volume.
const IMAGES: [&str; 3] = ["python", "ubuntu", "pair"];
const PAIR: &str = "\
services:
  main: {image: \"ubuntu:24.04\", command: [sleep, infinity], volumes: [\"kept:/kept\"]}
  other: {image: \"ubuntu:24.04\", command: [sleep, infinity]}
volumes: {kept: {}}
";

/// What a server needs around it, and what it may leave there.
struct Place {
    maker: Maker,
    address: String,
    folder: tempfile::TempDir,
}

impl Place {
    fn new(maker: Maker, address: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("temporary")).expect("a folder");
        let images = folder.path().join("images");
        let exported = cove().command(Who::Root).args(["images", "export"]).arg(&images).output();
        assert!(exported.expect("it runs").status.success());
        std::fs::create_dir(images.join("pair")).expect("a folder");
        std::fs::write(images.join("pair/compose.yaml"), PAIR).expect("a file");
        Self { maker, address: address.to_owned(), folder }
    }

    fn serve(&self) -> Stdio {
        let mut command = cove().command(Who::Root);
        command
            .args(["serve", "--tools", "all", "--backend", self.maker.name(), "--image-dir"])
            .arg(self.folder.path().join("images"))
            .env("TMPDIR", self.folder.path().join("temporary"))
            .env(self.maker.variable(), &self.address);
        // Podman's networks reach the machine, which must be allowed by name.
        if self.maker == Maker::Podman {
            command.args(["--allow-compose", "host-network"]);
        }
        Stdio::start(command, Era::Modern)
    }

    fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.folder.path().join("temporary")).expect("it is there");
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }
}

/// Those of a process, by its number in the label.
fn of_process(all: &[(String, String)], process: u32) -> usize {
    all.iter().filter(|(_, instance)| instance.split('/').nth(2) == Some(&process.to_string())).count()
}

#[test]
fn a_killed_server_leaves_nothing_after_the_next_start() {
    let rounds = if std::env::var_os("COVE_TEST_FULL").is_some() { 50 } else { 6 };
    each("a_killed_server_leaves_nothing_after_the_next_start", async |maker, address, docker| {
        let foreign = foreign(&docker).await;
        let place = Place::new(maker, address);
        // What is done once is done before.
        let mut first = place.serve();
        for image in IMAGES {
            let started = first.call("start_session", json!({"image": image}));
            assert!(started.structured()["session_id"].is_string(), "{maker:?}: {started:?}");
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
            // From before anything is made to after all is.
            let pause = (round * 7919) % 5000;
            tokio::time::sleep(Duration::from_millis(pause)).await;
            let process = server.pid();
            // However slow the machine is, one at least has made something.
            let until = Instant::now() + Duration::from_secs(60);
            while round + 1 == rounds && of_process(&labelled(&docker).await, process) == 0 {
                assert!(Instant::now() < until, "{maker:?}: nothing was made");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            let pid = rustix::process::Pid::from_raw(process as i32).expect("a process");
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it can be killed");
            server.wait();
            let all = labelled(&docker).await;
            seen += of_process(&all, process);
            let own = all.into_iter().find(|one| of_process(std::slice::from_ref(one), process) == 1);
            instance = own.map(|(_, instance)| instance).or(instance);
            files += place.files().len();
            dead.insert(process);
        }
        eprintln!("{maker:?}: {seen} things and {files} folders were there after a kill");
        assert!(seen > 0, "{maker:?}: no server was killed while it had containers");
        // Few are killed while Compose reads their files.
        let folder = format!("cove-compose-{}.one", instance.expect("one was seen").replace('/', "_"));
        std::fs::create_dir(place.folder.path().join("temporary").join(folder)).expect("a folder");
        let mut next = place.serve();
        assert_eq!(next.call("execute_code", json!({"code": "6*7"})).ok(), "42\n");
        // What Compose went on making when its master was dead is found at the second or third look.
        let until = Instant::now() + Duration::from_secs(240);
        loop {
            let all = labelled(&docker).await;
            let left: usize = dead.iter().map(|process| of_process(&all, *process)).sum();
            let files = place.files();
            if left == 0 && files.is_empty() {
                break;
            }
            assert!(Instant::now() < until, "{maker:?}: {left} things of the dead and {files:?} are left");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        for id in foreign {
            docker.inspect_container(&id, None).await.expect("a foreign container survives");
            let options = RemoveContainerOptionsBuilder::new().force(true).build();
            docker.remove_container(&id, Some(options)).await.expect("it can be removed");
        }
        drop(next);
    });
}

#[test]
fn whoever_interrupts_a_start_leaves_nothing() {
    each("whoever_interrupts_a_start_leaves_nothing", async |maker, address, docker| {
        let place = Place::new(maker, address);
        let images = place.folder.path().join("images");
        for image in ["ubuntu", "pair"] {
            let built =
                run_sh(maker, address, &images, image, &["--allow-compose", "host-network", "-c", "echo 42"]);
            assert_eq!(built.stdout, "42\n", "{maker:?} {image}: {built:?}");
            let mut command = cove().command(Who::Root);
            command.args(["run", "--backend", maker.name(), "--image", image, "--image-dir"]).arg(&images);
            command.args(["--allow-compose", "host-network", "-l", "sh", "-c", "sleep 60"]);
            command.env(maker.variable(), address).env("TMPDIR", place.folder.path().join("temporary"));
            let mut child = command.spawn().expect("the program can be started");
            let until = Instant::now() + Duration::from_secs(60);
            while of_process(&labelled(&docker).await, child.id()) == 0 {
                assert!(Instant::now() < until, "{maker:?} {image}: nothing was made");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let pid = rustix::process::Pid::from_raw(child.id() as i32).expect("a process");
            rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it is there");
            let status = child.wait().expect("it ends");
            assert_eq!(status.code(), Some(130), "{maker:?} {image}: {status}");
            assert_eq!(of_process(&labelled(&docker).await, child.id()), 0, "{maker:?} {image}");
            assert_eq!(place.files(), [""; 0], "{maker:?} {image}");
        }
    });
}

/// Containers of others, whose labels look much like ours.
async fn foreign(docker: &Docker) -> Vec<String> {
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
