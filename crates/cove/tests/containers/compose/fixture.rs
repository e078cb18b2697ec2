//! The fixture for tests of Compose files: a folder, an engine, and a volume whose runner is a shell.

use cove_core::error::Failure;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use bollard::Docker;
use bollard::models::{ContainerCreateBody, HostConfig, VolumeCreateRequest};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, RemoveContainerOptionsBuilder, UploadToContainerOptionsBuilder,
};
use cove_core::backend::SandboxEnd;
use cove_core::policy::ComposeRisk;
use cove_core::policy::{Policy, SandboxLimits};
use cove_docker::compose::{ComposeClient, ComposeEnv, ComposeRequest, LABEL_PROJECT, RunningProject};
use cove_docker::{ContainerPermissions, Engine};
use cove_testkit::skip::skip;
use futures_util::StreamExt;
use tokio::io::AsyncWriteExt;

use crate::{available_engines, list_labelled, remove_volume};

pub(super) const MIB: u64 = 1024 * 1024;

pub(super) struct ComposeFixture {
    pub(super) kind: Engine,
    pub(super) host: String,
    pub(super) api: Docker,
    pub(super) compose: ComposeClient,
    pub(super) folder: tempfile::TempDir,
    pub(super) project: String,
    pub(super) labels: BTreeMap<String, String>,
    volume: String,
    pub(super) policy: Policy,
    pub(super) allowed: Vec<ComposeRisk>,
}

/// Runs a check against every engine that is available here.
pub(super) async fn each(test: &str, check: impl AsyncFn(ComposeFixture)) {
    for (engine, host) in available_engines(&format!("compose::{test}")) {
        let kind = engine.kind();
        let compose = match ComposeClient::find(kind, &host, ComposeEnv::from_process()).await {
            Ok(compose) => compose,
            Err(error) => {
                skip(&format!("compose::{test}"), &format!("{error}: {:?}", error.cause));
                continue;
            }
        };
        eprintln!("{kind:?} with Compose {}", compose.version());
        check(ComposeFixture::new(kind, host, compose, test).await).await;
    }
}

impl ComposeFixture {
    async fn new(kind: Engine, host: String, compose: ComposeClient, test: &str) -> Self {
        let api = Docker::connect_with_host(&host).unwrap().negotiate_version().await.unwrap();
        let name: String = test.chars().filter(char::is_ascii_lowercase).take(12).collect();
        let project = format!("cove-compose-{name}-{}", std::process::id());
        let volume = format!("{project}-runner");
        let fixture = Self {
            kind,
            host,
            api,
            compose,
            folder: tempfile::tempdir().unwrap(),
            labels: BTreeMap::from([("cove.instance".to_owned(), project.clone())]),
            project,
            volume,
            policy: Policy {
                limits: SandboxLimits { memory: 256 * MIB, cpus: 1.0, pids: 64, workspace: 8 * MIB, tmp: 4 * MIB },
                ..Policy::default()
            },
            allowed: Vec::new(),
        };
        fixture.fill_volume().await;
        fixture
    }

    pub(super) fn file(self, name: &str, text: &str) -> Self {
        std::fs::write(self.folder.path().join(name), text).unwrap();
        self
    }

    pub(super) fn request(&self) -> ComposeRequest {
        ComposeRequest {
            name: "test".into(),
            folder: self.folder.path().to_owned(),
            main: None,
            policy: self.policy.clone(),
            project: self.project.clone(),
            labels: self.labels.clone(),
            runner_volume: self.volume.clone(),
            env: Vec::new(),
            permissions: ContainerPermissions { pull: false, compose: self.allowed.clone(), mounts: Vec::new() },
        }
    }

    pub(super) async fn up(&self) -> Result<RunningProject, Failure> {
        let reported = |line: &str| eprintln!("told: {line}");
        self.compose.start_project(&self.api, &self.request(), &reported).await
    }

    /// A volume whose `cove` is a shell that says `ready`.
    async fn fill_volume(&self) {
        let request = VolumeCreateRequest { name: Some(self.volume.clone()), ..Default::default() };
        self.api.create_volume(request).await.unwrap();
        let body = ContainerCreateBody {
            image: Some("nginx:1.28".into()),
            host_config: Some(HostConfig { binds: Some(vec![format!("{}:/v", self.volume)]), ..Default::default() }),
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
    pub(super) async fn leftovers(&self) -> Vec<(String, HashMap<String, String>)> {
        list_labelled(&self.api, &format!("{LABEL_PROJECT}={}", self.project)).await
    }

    pub(super) async fn wait_until_clean(&self) {
        for _ in 0..300 {
            if self.leftovers().await.is_empty() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        panic!("left: {:?}", self.leftovers().await);
    }

    pub(super) async fn end(self) {
        remove_volume(&self.api, &self.volume).await;
    }
}

/// The answer of the shell that serves as the runner, without the line that marks its end.
pub(super) async fn run_in_runner(up: &mut RunningProject, command: &str) -> String {
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

pub(super) fn full_message(error: Failure) -> String {
    let cause = error.cause.as_ref().map_or(String::new(), ToString::to_string);
    format!("{error}: {cause}; {}", error.hint.as_deref().unwrap_or_default())
}

/// Waits for this ending: Docker may report the cause late.
pub(super) async fn wait_for_ending(up: &RunningProject, expected: SandboxEnd) {
    let mut reported = None;
    for _ in 0..600 {
        reported = up.project.runner_end().await;
        if reported.as_ref() == Some(&expected) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{reported:?} in place of {expected:?}");
}

/// Compose keeps running when its parent is killed; the project's name is among its arguments.
pub(super) async fn wait_for_compose_to_exit(project: &str) {
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
