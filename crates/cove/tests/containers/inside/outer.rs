//! Docker and Podman around Cove: an image made of the program under test by the Dockerfile that users have, and
//! containers that go when their test does. Through the command lines that the guide shows, not through our own client.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cove_testkit::containers::Maker;
use cove_testkit::program::Finished;
use cove_testkit::skip::skip;
use serde_json::Value;
use tempfile::TempDir;

/// For anything that is asked, in seconds.
const PATIENCE: &str = "180";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Docker,
    Podman,
    /// Podman as an ordinary user.
    Rootless,
}

/// One of them with Cove's image in it.
pub(super) struct Outer {
    pub(super) kind: Kind,
    pub(super) address: String,
    image: String,
    folder: TempDir,
}

impl Kind {
    fn address(self, test: &str) -> Option<String> {
        match self {
            Self::Docker => Maker::Docker.address(test),
            Self::Podman => Maker::Podman.address(test),
            Self::Rootless => {
                let address = std::env::var("COVE_TEST_PODMAN_ROOTLESS").ok().filter(|url| !url.is_empty());
                if address.is_none() {
                    let reason = "no rootless Podman was started for tests; `cargo xtask test` as root does";
                    skip(test, reason);
                }
                address
            }
        }
    }

    /// What shows the whole of `/proc` to a container.
    pub(super) fn whole_proc(self) -> &'static str {
        match self {
            Self::Docker => "systempaths=unconfined",
            Self::Podman | Self::Rootless => "unmask=/proc/*",
        }
    }

    /// What the tests' own one needs, and users' ones do not.
    fn needs(self) -> &'static [&'static str] {
        match self {
            Self::Docker | Self::Podman => &[],
            // No device for its network; and what it takes by itself may be more than it has.
            Self::Rootless => &["--network=none", "--ulimit=nofile=4096:4096", "--ulimit=nproc=4096:4096"],
        }
    }
}

impl Outer {
    /// Tests that run side by side share one. Without Docker or Podman the test is skipped by name.
    pub(super) fn get(kind: Kind, test: &str) -> Option<Arc<Self>> {
        static SHARED: Mutex<[Weak<Outer>; 3]> = Mutex::new([Weak::new(), Weak::new(), Weak::new()]);
        let address = kind.address(test)?;
        // Rootless it has too few images to make one of.
        let source = match kind {
            Kind::Rootless => Some(Self::get(Kind::Podman, test)?),
            Kind::Docker | Kind::Podman => None,
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

    fn new(kind: Kind, address: String) -> Self {
        let folder = tempfile::Builder::new().prefix("cove-inside-").tempdir().unwrap();
        // The rootless one reads the profile as somebody else.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::create_dir(folder.path().join("program")).unwrap();
        let image = format!("localhost/cove-tests/inside:{}", std::process::id());
        let outer = Self { kind, address, image, folder };
        fs::copy(packaging("seccomp.json"), outer.profile()).unwrap();
        outer
    }

    /// Where the profile is that the guide gives.
    pub(super) fn profile(&self) -> PathBuf {
        self.file("seccomp.json")
    }

    /// A path of ours that Docker and Podman see too.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The command line of it, with nothing of this process's environment.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", PATIENCE]);
        command.env_clear();
        match self.kind {
            Kind::Docker => command.arg("docker").env("DOCKER_HOST", &self.address),
            Kind::Podman | Kind::Rootless => command.args(["podman", "--remote", "--url", &self.address]),
        };
        command
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", self.folder.path())
            .current_dir(self.folder.path())
            .stdin(Stdio::null());
        command
    }

    #[track_caller]
    pub(super) fn ask(&self, args: &[&str]) -> String {
        let finished = Finished::of(self.command().args(args).output().unwrap());
        assert_eq!(finished.code, Some(0), "{args:?}: {finished:#?}");
        finished.stdout.trim().to_owned()
    }

    fn build(&self) {
        let program = self.file("program/cove");
        // What is for debuggers is most of it, and would be copied again and again.
        strip(Path::new(env!("CARGO_BIN_EXE_cove")), &program);
        let dockerfile = packaging("Dockerfile");
        let mut args = vec!["build", "--quiet", "--target=built", "--build-arg=BASE=ubuntu:24.04"];
        // The rest of what users get is not among the tests' packages.
        args.extend(["--build-arg=PACKAGES=python3 nodejs", "--tag", &self.image, "--file", &dockerfile]);
        if self.kind == Kind::Podman {
            // The rootless one copies every layer whole; and without its own format there is no health check.
            args.extend(["--squash-all", "--format=docker"]);
        }
        let folder = self.file("program");
        args.push(folder.to_str().unwrap());
        self.ask(&args);
    }

    fn copy_from(&self, other: &Self) {
        let archive = self.file("image.tar");
        let archive = archive.to_str().unwrap();
        other.ask(&["save", "--output", archive, &other.image]);
        self.ask(&["load", "--input", archive]);
        fs::remove_file(archive).unwrap();
    }

    /// The options of the guide, with which the embedded sandbox works.
    pub(super) fn options(&self) -> Vec<String> {
        let profile = format!("--security-opt=seccomp={}", self.profile().display());
        let proc = format!("--security-opt={}", self.kind.whole_proc());
        ["--cap-drop=ALL".into(), "--security-opt=no-new-privileges".into(), profile, proc].to_vec()
    }

    /// A command in a container of its own, to its end.
    pub(super) fn run(&self, options: &[impl AsRef<str>], args: &[&str]) -> Finished {
        let (mut command, container) = self.starting(options);
        let finished = Finished::of(command.arg(&self.image).args(args).output().unwrap());
        drop(container);
        finished
    }

    /// A container that stays until it is dropped.
    #[track_caller]
    pub(super) fn start(&self, options: &[impl AsRef<str>], args: &[&str]) -> Container<'_> {
        let (mut command, container) = self.starting(options);
        let finished = Finished::of(command.arg("--detach").arg(&self.image).args(args).output().unwrap());
        assert_eq!(finished.code, Some(0), "{finished:#?}");
        container
    }

    /// `run` with everything up to the image.
    pub(super) fn starting(&self, options: &[impl AsRef<str>]) -> (Command, Container<'_>) {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("cove-inside-{}-{number}", std::process::id());
        let mut command = self.command();
        command.args(["run", "--name", &name]).args(self.kind.needs());
        command.args(options.iter().map(AsRef::as_ref));
        (command, Container { outer: self, name })
    }

    pub(super) fn image(&self) -> &str {
        &self.image
    }
}

impl Drop for Outer {
    fn drop(&mut self) {
        let _ = self.command().args(["rmi", "--force", &self.image]).output();
    }
}

pub(super) struct Container<'a> {
    outer: &'a Outer,
    pub(super) name: String,
}

impl Container<'_> {
    pub(super) fn exec(&self, args: &[&str]) -> Finished {
        let mut command = self.outer.command();
        Finished::of(command.args(["exec", &self.name]).args(args).output().unwrap())
    }

    /// Standard output and standard error so far.
    pub(super) fn said(&self) -> String {
        let output = self.outer.command().args(["logs", &self.name]).output().unwrap();
        let finished = Finished::of(output);
        finished.stdout + &finished.stderr
    }

    pub(super) fn state(&self) -> Value {
        let found: Value = serde_json::from_str(&self.outer.ask(&["inspect", &self.name])).unwrap();
        found[0]["State"].clone()
    }
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        // With the volume that the image asks for.
        let _ = self.outer.command().args(["rm", "--force", "--volumes", &self.name]).output();
    }
}

/// A copy without what is for debuggers.
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
