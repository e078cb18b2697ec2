//! What the tests of Compose files stand on: a folder, an engine, and a volume with a shell for a runner.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use bollard::Docker;
use bollard::models::{ContainerCreateBody, HostConfig, VolumeCreateRequest};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, RemoveContainerOptionsBuilder, UploadToContainerOptionsBuilder,
};
use cove::backend::docker::Maker;
use cove::backend::docker::compose::{Asked, Compose, Environment, PROJECT, Up};
use cove::backend::{Ending, StartError};
use cove::config::ComposeRisk;
use cove::policy::{Limits, Network, Policy, Root, User};
use cove_testkit::skip::skip;
use futures_util::StreamExt;
use tokio::io::AsyncWriteExt;

use crate::{daemons, marked, remove_volume};

pub(super) const MIB: u64 = 1024 * 1024;

pub(super) struct Bench {
    pub(super) kind: Maker,
    pub(super) host: String,
    pub(super) api: Docker,
    pub(super) compose: Compose,
    pub(super) folder: tempfile::TempDir,
    pub(super) project: String,
    pub(super) labels: BTreeMap<String, String>,
    volume: String,
    pub(super) policy: Policy,
    pub(super) allowed: Vec<ComposeRisk>,
}

/// Every engine that there is here.
pub(super) async fn each(test: &str, check: impl AsyncFn(Bench)) {
    for (maker, host) in daemons(&format!("compose::{test}")) {
        let kind = maker.kind();
        let compose = match Compose::find(kind, &host, Environment::of_this_process()).await {
            Ok(compose) => compose,
            Err(error) => {
                skip(&format!("compose::{test}"), &format!("{error}: {:?}", error.cause));
                continue;
            }
        };
        eprintln!("{kind:?} with Compose {}", compose.version());
        check(Bench::new(kind, host, compose, test).await).await;
    }
}

impl Bench {
    async fn new(kind: Maker, host: String, compose: Compose, test: &str) -> Self {
        let api = Docker::connect_with_host(&host).unwrap().negotiate_version().await.unwrap();
        let name: String = test.chars().filter(char::is_ascii_lowercase).take(12).collect();
        let project = format!("cove-compose-{name}-{}", std::process::id());
        let volume = format!("{project}-runner");
        let bench = Self {
            kind,
            host,
            api,
            compose,
            folder: tempfile::tempdir().unwrap(),
            labels: BTreeMap::from([("cove.instance".to_owned(), project.clone())]),
            project,
            volume,
            policy: Policy {
                root: Root::Host,
                python: None,
                mounts: Vec::new(),
                network: Network::None,
                runtime: None,
                user: User { uid: 65534, gid: 65534 },
                limits: Limits { memory: 256 * MIB, cpus: 1.0, pids: 64, workspace: 8 * MIB, tmp: 4 * MIB },
            },
            allowed: Vec::new(),
        };
        bench.fill_volume().await;
        bench
    }

    pub(super) fn file(self, name: &str, text: &str) -> Self {
        std::fs::write(self.folder.path().join(name), text).unwrap();
        self
    }

    pub(super) fn asked(&self) -> Asked<'_> {
        Asked {
            name: "test",
            folder: self.folder.path(),
            main: None,
            policy: &self.policy,
            project: &self.project,
            labels: &self.labels,
            runner_volume: &self.volume,
            env: &[],
            allowed: &self.allowed,
            mounts: &[],
            pull: false,
        }
    }

    pub(super) async fn up(&self) -> Result<Up, StartError> {
        let told = |line: &str| eprintln!("told: {line}");
        self.compose.up(&self.api, &self.asked(), &told).await
    }

    /// A volume whose `cove` is a shell that says `ready`.
    async fn fill_volume(&self) {
        let request = VolumeCreateRequest { name: Some(self.volume.clone()), ..Default::default() };
        self.api.create_volume(request).await.unwrap();
        let body = ContainerCreateBody {
            image: Some("nginx:1.28".into()),
            host_config: Some(HostConfig {
                binds: Some(vec![format!("{}:/v", self.volume)]),
                ..Default::default()
            }),
            ..Default::default()
        };
        let options = CreateContainerOptionsBuilder::default().name(&self.volume).build();
        let made = self.api.create_container(Some(options), body).await.unwrap();
        let mut tar = tar::Builder::new(Vec::new());
        let script = b"#!/bin/sh\necho ready $1\nexec /bin/sh\n";
        let mut header = tar::Header::new_gnu();
        header.set_size(script.len() as u64);
        header.set_mode(0o755);
        header.set_cksum();
        tar.append_data(&mut header, "cove", script.as_slice()).unwrap();
        let body = bollard::body_full(tar.into_inner().unwrap().into());
        let options = UploadToContainerOptionsBuilder::default().path("/v").build();
        self.api.upload_to_container(&made.id, Some(options), body).await.unwrap();
        let options = RemoveContainerOptionsBuilder::default().force(true).build();
        self.api.remove_container(&made.id, Some(options)).await.unwrap();
    }

    /// Containers, networks and volumes with the project's name, each with its labels.
    pub(super) async fn left(&self) -> Vec<(String, HashMap<String, String>)> {
        marked(&self.api, &format!("{PROJECT}={}", self.project)).await
    }

    pub(super) async fn until_nothing_is_left(&self) {
        for _ in 0..300 {
            if self.left().await.is_empty() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        panic!("left: {:?}", self.left().await);
    }

    pub(super) async fn end(self) {
        remove_volume(&self.api, &self.volume).await;
    }
}

/// What the shell that is the runner answers, without the line that ends it.
pub(super) async fn ask(up: &mut Up, command: &str) -> String {
    up.input.write_all(format!("{{ {command}\n}} 2>&1; echo \"[done]\"\n").as_bytes()).await.unwrap();
    up.input.flush().await.unwrap();
    let mut text = String::new();
    let listening = async {
        while !text.ends_with("[done]\n") {
            match up.output.next().await {
                Some(Ok(piece)) => text.push_str(&String::from_utf8_lossy(&piece.into_bytes())),
                other => panic!("{other:?} after {text}"),
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(120), listening).await.expect(command);
    text.trim_end_matches("[done]\n").trim_start_matches("ready runner\n").trim().to_owned()
}

pub(super) fn whole(error: StartError) -> String {
    let cause = error.cause.as_ref().map_or(String::new(), ToString::to_string);
    format!("{error}: {cause}; {}", error.hint.as_deref().unwrap_or_default())
}

/// Docker may be late to tell why.
pub(super) async fn until_ended_as(up: &Up, expected: Ending) {
    let mut told = None;
    for _ in 0..300 {
        told = up.project.ending().await;
        if told.as_ref() == Some(&expected) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{told:?} in place of {expected:?}");
}

/// Compose goes on when whoever started it is killed, and the project's name is among its arguments.
pub(super) async fn until_compose_has_ended(project: &str) {
    let commands = || {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        processes.filter_map(|process| std::fs::read_to_string(process.path().join("cmdline")).ok())
    };
    for _ in 0..600 {
        if !commands().any(|command| command.split('\0').any(|word| word == project)) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("Compose goes on");
}
