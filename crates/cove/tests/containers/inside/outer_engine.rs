//! Docker and Podman around Cove: an image of the program under test, built with the Dockerfile that users have, and
//! containers that end with their test. The tests use the command lines that the guide shows, not Cove's own client.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cove_testkit::containers::TestEngine;
use cove_testkit::program::FinishedProgram;
use cove_testkit::skip::skip_without_all;
use serde_json::Value;
use tempfile::TempDir;

/// The limit for any command, in seconds.
const PATIENCE: &str = "180";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OuterEngineKind {
    Docker,
    Podman,
    /// Podman as an ordinary user.
    Rootless,
}

/// An engine that has Cove's image.
pub(super) struct OuterEngine {
    pub(super) kind: OuterEngineKind,
    pub(super) address: String,
    image: String,
    folder: TempDir,
}

impl OuterEngineKind {
    fn address(self, test: &str) -> Option<String> {
        match self {
            Self::Docker => TestEngine::Docker.address(test),
            Self::Podman => TestEngine::Podman.address(test),
            Self::Rootless => {
                let address = std::env::var("COVE_TEST_PODMAN_ROOTLESS").ok().filter(|url| !url.is_empty());
                if address.is_none() {
                    skip_without_all(test, "only root starts the rootless Podman of the tests");
                }
                address
            }
        }
    }

    /// The option that shows all of `/proc` to a container.
    pub(super) fn full_proc_option(self) -> &'static str {
        match self {
            Self::Docker => "systempaths=unconfined",
            Self::Podman | Self::Rootless => "unmask=/proc/*",
        }
    }

    /// Options that the tests' own engine needs, and users' engines do not.
    fn needs(self) -> &'static [&'static str] {
        match self {
            Self::Docker | Self::Podman => &[],
            // It has no device for a network, and its default limits may exceed its own.
            Self::Rootless => &["--network=none", "--ulimit=nofile=4096:4096", "--ulimit=nproc=4096:4096"],
        }
    }
}

impl OuterEngine {
    /// Tests that run in parallel share one engine. Without it the test is skipped by name.
    pub(super) fn get(kind: OuterEngineKind, test: &str) -> Option<Arc<Self>> {
        static SHARED: Mutex<[Weak<OuterEngine>; 3]> = Mutex::new([Weak::new(), Weak::new(), Weak::new()]);
        let address = kind.address(test)?;
        // Rootless Podman has too few images here to build one.
        let source = match kind {
            OuterEngineKind::Rootless => Some(Self::get(OuterEngineKind::Podman, test)?),
            OuterEngineKind::Docker | OuterEngineKind::Podman => None,
        };
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(outer) = shared[kind as usize].upgrade() {
            return Some(outer);
        }
        let outer = Arc::new(Self::new(kind, address));
        match source {
            Some(source) => outer.copy_from(&source),
            None => outer.build(),
        }
        shared[kind as usize] = Arc::downgrade(&outer);
        Some(outer)
    }

    fn new(kind: OuterEngineKind, address: String) -> Self {
        let folder = tempfile::Builder::new().prefix("cove-inside-").tempdir().unwrap();
        // The rootless engine reads the profile as another user.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::create_dir(folder.path().join("program")).unwrap();
        let image = format!("localhost/cove-tests/inside:{}", std::process::id());
        let outer = Self { kind, address, image, folder };
        fs::copy(packaging("seccomp.json"), outer.profile()).unwrap();
        outer
    }

    /// The path of the profile that the guide provides.
    pub(super) fn profile(&self) -> PathBuf {
        self.file("seccomp.json")
    }

    /// A path of the test that Docker and Podman see too.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The engine's command line, without this process's environment.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", PATIENCE]);
        command.env_clear();
        match self.kind {
            OuterEngineKind::Docker => command.arg("docker").env("DOCKER_HOST", &self.address),
            OuterEngineKind::Podman | OuterEngineKind::Rootless => {
                command.args(["podman", "--remote", "--url", &self.address])
            }
        };
        command
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", self.folder.path())
            .current_dir(self.folder.path())
            .stdin(Stdio::null());
        command
    }

    #[track_caller]
    pub(super) fn run_checked(&self, args: &[&str]) -> String {
        let finished = FinishedProgram::from_output(self.command().args(args).output().unwrap());
        assert_eq!(finished.code, Some(0), "{args:?}: {finished:#?}");
        finished.stdout.trim().to_owned()
    }

    fn build(&self) {
        let program = self.file("program/cove");
        // Debug information is most of the file, and would be copied again and again.
        strip(Path::new(env!("CARGO_BIN_EXE_cove")), &program);
        let dockerfile = packaging("Dockerfile");
        let mut args = vec!["build", "--quiet", "--target=built", "--build-arg=BASE=ubuntu:24.04"];
        // The other packages that users get are not available in the tests.
        args.extend(["--build-arg=PACKAGES=python3 nodejs", "--tag", &self.image, "--file", &dockerfile]);
        if self.kind == OuterEngineKind::Podman {
            // The rootless engine copies every layer whole, and only Docker's format has health checks.
            args.extend(["--squash-all", "--format=docker"]);
        }
        let folder = self.file("program");
        args.push(folder.to_str().unwrap());
        self.run_checked(&args);
    }

    fn copy_from(&self, other: &Self) {
        let archive = self.file("image.tar");
        let archive = archive.to_str().unwrap();
        other.run_checked(&["save", "--output", archive, &other.image]);
        self.run_checked(&["load", "--input", archive]);
        fs::remove_file(archive).unwrap();
    }

    /// The options of the guide, with which the embedded sandbox works.
    pub(super) fn options(&self) -> Vec<String> {
        let profile = format!("--security-opt=seccomp={}", self.profile().display());
        let proc = format!("--security-opt={}", self.kind.full_proc_option());
        ["--cap-drop=ALL".into(), "--security-opt=no-new-privileges".into(), profile, proc].to_vec()
    }

    /// Runs a command in a new container to its end.
    pub(super) fn run(&self, options: &[impl AsRef<str>], args: &[&str]) -> FinishedProgram {
        let (mut command, container) = self.start_command(options);
        let finished = FinishedProgram::from_output(command.arg(&self.image).args(args).output().unwrap());
        drop(container);
        finished
    }

    /// Starts a container that stays until it is dropped.
    #[track_caller]
    pub(super) fn start(&self, options: &[impl AsRef<str>], args: &[&str]) -> CoveContainer<'_> {
        let (mut command, container) = self.start_command(options);
        let finished =
            FinishedProgram::from_output(command.arg("--detach").arg(&self.image).args(args).output().unwrap());
        assert_eq!(finished.code, Some(0), "{finished:#?}");
        container
    }

    /// `run` with all arguments up to the image.
    pub(super) fn start_command(&self, options: &[impl AsRef<str>]) -> (Command, CoveContainer<'_>) {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("cove-inside-{}-{number}", std::process::id());
        let mut command = self.command();
        command.args(["run", "--name", &name]).args(self.kind.needs());
        command.args(options.iter().map(AsRef::as_ref));
        (command, CoveContainer { outer: self, name })
    }

    pub(super) fn image(&self) -> &str {
        &self.image
    }
}

impl Drop for OuterEngine {
    fn drop(&mut self) {
        let _ = self.command().args(["rmi", "--force", &self.image]).output();
    }
}

pub(super) struct CoveContainer<'a> {
    outer: &'a OuterEngine,
    pub(super) name: String,
}

impl CoveContainer<'_> {
    pub(super) fn exec(&self, args: &[&str]) -> FinishedProgram {
        let mut command = self.outer.command();
        FinishedProgram::from_output(command.args(["exec", &self.name]).args(args).output().unwrap())
    }

    /// Standard output and standard error so far.
    pub(super) fn logs(&self) -> String {
        let output = self.outer.command().args(["logs", &self.name]).output().unwrap();
        let finished = FinishedProgram::from_output(output);
        finished.stdout + &finished.stderr
    }

    pub(super) fn state(&self) -> Value {
        let found: Value = serde_json::from_str(&self.outer.run_checked(&["inspect", &self.name])).unwrap();
        found[0]["State"].clone()
    }
}

impl Drop for CoveContainer<'_> {
    fn drop(&mut self) {
        // Also removes the volume that the image declares.
        let _ = self.outer.command().args(["rm", "--force", "--volumes", &self.name]).output();
    }
}

/// Copies a program without its debug information.
fn strip(program: &Path, to: &Path) {
    let stripped = Command::new("strip").arg("-o").arg(to).arg(program).status();
    if !stripped.is_ok_and(|status| status.success()) {
        fs::copy(program, to).unwrap();
    }
    fs::set_permissions(to, fs::Permissions::from_mode(0o755)).unwrap();
}

fn packaging(file: &str) -> String {
    format!("{}/../../packaging/container/{file}", env!("CARGO_MANIFEST_DIR"))
}
