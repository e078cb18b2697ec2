//! Compose files as sandboxes: one container of the file, the main one, holds the runner; the others serve it.
//!
//! A file passes these steps. Cove parses it (`file`) and checks it (`check`). Compose resolves the copy that Cove
//! writes, and Cove checks the result too. Cove then writes one document with its own limits (`document`); only that
//! document is run. Compose creates the containers, Cove compares them with the document (`read_back`, `environment`),
//! and only then Compose starts them (`project`). Each container has the policy's limits to itself; a file has at most
//! eight.

mod check;
mod command;
mod document;
mod environment;
#[cfg(any(test, fuzzing))]
#[path = "../tests/exercise/compose.rs"]
pub mod exercise;
mod file;
mod home;
pub(super) mod private_dir;
mod project;
mod read_back;

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bollard::Docker;
use serde_json::Value;

use self::check::{CheckedCompose, ComposeRules, ServiceMount};
pub use self::command::ComposeEnv;
use self::command::{CommandFailure, ComposeCall, ComposeProgram};
use self::document::DocumentSettings;
pub(super) use self::project::take_down_or_warn;
pub use self::project::{ComposeProject, LABEL_PROJECT, RunningProject, is_abandoned, take_down};
use super::ContainerPermissions;
use super::build::{BuildSource, ImageProvider};
use super::engine::Engine;
use cove_core::backend::ProgressCallback;
use cove_core::error::{Failure, Refusal, display_path, display_value};
use cove_core::policy::{ComposeRisk, Policy};

/// The time limit for one call of Compose. Compose itself neither builds nor pulls.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);

/// A request for a session in an image whose folder has a Compose file.
#[derive(Debug, Clone)]
pub struct ComposeRequest {
    /// The image's name, as agents know it.
    pub name: String,
    pub folder: PathBuf,
    /// The service that holds the runner, if the operator named one.
    pub main: Option<String>,
    /// The policy as the engine can apply it.
    pub policy: Policy,
    /// The project name, unique to this session: lower-case letters, digits, `-` and `_`.
    pub project: String,
    /// The labels of every container, network and volume that Compose creates.
    pub labels: BTreeMap<String, String>,
    /// The volume with the runner program as `cove` at its top.
    pub runner_volume: String,
    /// The runner's environment, as `NAME=VALUE`.
    pub env: Vec<String>,
    pub permissions: ContainerPermissions,
}

/// The Compose program of this machine and the engine that it talks to.
#[derive(Debug, Clone)]
pub struct ComposeClient {
    engine: Engine,
    program: ComposeProgram,
    /// The engine's socket, if the engine is on this machine.
    socket: Option<PathBuf>,
}

/// A request whose file is checked, and the private folder for the documents that Cove writes for Compose.
struct PreparedProject<'a> {
    client: &'a ComposeClient,
    request: &'a ComposeRequest,
    checked: CheckedCompose,
    /// The references of built images by service name. Empty until `ensure_images` has filled it.
    built: BTreeMap<String, String>,
    /// The image's folder, with links resolved.
    folder: PathBuf,
    private_dir: tempfile::TempDir,
    /// The path of the seccomp profile that Cove writes. `None` for Podman, which does not accept one from Compose.
    profile: Option<PathBuf>,
}

impl ComposeClient {
    /// Finds Compose. `host` is the engine's address in Cove's own connection, such as `unix:///run/docker.sock`. Fails
    /// if no usable Compose is installed.
    pub async fn find(engine: Engine, host: &str, environment: ComposeEnv) -> Result<Self, Failure> {
        let program = ComposeProgram::find(engine, host, environment).await?;
        let socket = host.strip_prefix("unix://").map(PathBuf::from);
        Ok(Self { engine, program, socket })
    }

    /// Returns the version, such as `2.26`.
    pub fn version(&self) -> String {
        let (major, minor) = self.program.version();
        format!("{major}.{minor}")
    }

    /// Returns the document that would be run. Builds and pulls nothing. Fails if the file is refused.
    pub async fn explain(&self, request: &ComposeRequest) -> Result<Value, Failure> {
        let mut ready = self.check_file(request).await?;
        for (name, member) in &ready.checked.services {
            if let Some(build) = &member.build {
                let files = BuildSource::Service(build.clone());
                ready.built.insert(name.clone(), super::build::reference_for(&request.name, &files).await?);
            }
        }
        Ok(document::build_document(&ready.checked, &ready.settings()))
    }

    /// Builds and pulls missing images. Returns what was done, or `None` if nothing was missing. Fails if the file is
    /// refused or an image cannot be had.
    pub async fn prepare(
        &self,
        api: &Docker,
        request: &ComposeRequest,
        tell: ProgressCallback<'_>,
    ) -> Result<Option<String>, Failure> {
        self.check_file(request).await?.ensure_images(api, tell).await
    }

    /// Returns the digests of the images that are built for the file in its present state. Fails if the file is
    /// refused.
    pub async fn digests(&self, request: &ComposeRequest) -> Result<Vec<String>, Failure> {
        let mut digests = Vec::new();
        for member in self.check_file(request).await?.checked.services.into_values() {
            if let Some(build) = member.build {
                digests.push(super::build::source_digest(&BuildSource::Service(build)).await?);
            }
        }
        Ok(digests)
    }

    /// Prepares and starts the whole project, up to a running runner. If it fails, or if the caller drops the future,
    /// everything that was created is removed.
    pub async fn start_project(
        &self,
        api: &Docker,
        request: &ComposeRequest,
        tell: ProgressCallback<'_>,
    ) -> Result<RunningProject, Failure> {
        let mut ready = self.check_file(request).await?;
        ready.ensure_images(api, tell).await?;
        ready.write_document()?;
        project::start_project(api, &ready).await
    }

    /// Reads the file, lets Compose resolve it, and checks both forms. Fails if either is refused.
    async fn check_file<'a>(&'a self, request: &'a ComposeRequest) -> Result<PreparedProject<'a>, Failure> {
        let name = display_value(&request.name);
        let refused = |refusal: Refusal| {
            let failure = Failure::operator(format!("could not use the Compose file of `{name}`"));
            failure.because(refusal.cause).with_hint(refusal.hint)
        };
        if !is_valid_project_name(&request.project) {
            return Err(Failure::operator(format!("`{}` is not a project's name", display_value(&request.project))));
        }
        let folder = request.folder.canonicalize().map_err(|error| {
            Failure::operator(format!("could not find `{}`", display_path(&request.folder))).because(error)
        })?;
        let original = file::read_file(&folder)?;
        let document = check::check_original(&original, &folder).map_err(refused)?;
        let private_dir = private_dir::create()?;
        write_private_file(&private_dir.path().join("written.yaml"), &file::write_document(&document))?;
        write_private_file(&private_dir.path().join("empty.env"), "")?;
        let resolved = self
            .run_compose(ComposeCall::Inspect, &request.project, &folder, private_dir.path(), &["config"])
            .await
            .map_err(|failure| {
                let message = format!("could not read the Compose file of `{name}`");
                failure.into_error(message).with_hint("correct the file")
            })?;
        let mut resolved = file::parse_value(&resolved, file::MAX_RESOLVED_BYTES)
            .map_err(|cause| Failure::operator("could not read what Compose made of the file").because(cause))?;
        file::decode_dollars(&mut resolved);
        let rules = ComposeRules { request, folder: &folder, engine: self.engine, socket: self.socket.as_deref() };
        let checked = check::check_resolved(&resolved, &original.order, &rules).map_err(refused)?;
        let is_mounted = |target: &Path| request.policy.mounts.iter().any(|mount| mount.target == target);
        let mut targets = checked.services[&checked.main].mounts.iter().map(ServiceMount::target);
        if let Some(twice) = targets.find(|target| is_mounted(target)) {
            let what = format!("`{}` already shows a mount of the operator's", display_path(twice));
            return Err(refused(Refusal::new(what, "choose another target")));
        }
        for mount in &request.policy.mounts {
            if let Some(below) = check::mounts::mounted_below(&mount.source) {
                return Err(Failure::operator(format!("could not mount `{}`", display_path(&mount.source)))
                    .because(format!(
                        "`{}` is mounted below it, and Compose would show that too, writable",
                        display_path(&below)
                    ))
                    .with_hint("mount a directory without another in it"));
            }
        }
        self.check_binds(&checked).map_err(refused)?;
        let profile = self.engine.traits().takes_filter.then(|| private_dir.path().join("seccomp.json"));
        Ok(PreparedProject { client: self, request, checked, built: BTreeMap::new(), folder, private_dir, profile })
    }

    /// Fails if a bind mount is used with an engine on another machine, where the checked path means something else.
    fn check_binds(&self, checked: &CheckedCompose) -> Result<(), Refusal> {
        let is_bind = |mount: &&ServiceMount| matches!(mount, ServiceMount::Bind(_));
        let mut all = checked.services.values().flat_map(|member| &member.mounts);
        match all.find(is_bind) {
            Some(bind) if self.socket.is_none() => Err(Refusal::new(
                format!(
                    "`{}` shows files of this machine, and paths mean something else where {} runs",
                    display_path(bind.target()),
                    self.engine.traits().name
                ),
                "put the files into the image with `COPY`, or use a volume",
            )),
            _ => Ok(()),
        }
    }

    /// Runs Compose on a document in the private folder: `Inspect` on the copy of the file, with the variables of
    /// `.env` in the image's folder, and `Create` on the checked document, without any variables.
    async fn run_compose(
        &self,
        call: ComposeCall,
        project: &str,
        folder: &Path,
        private_dir: &Path,
        args: &[&str],
    ) -> Result<String, CommandFailure> {
        let path = |name: &str| private_dir.join(name).to_string_lossy().into_owned();
        let (file, variables) = match call {
            ComposeCall::Inspect => (path("written.yaml"), None),
            ComposeCall::Create => (path("checked.yaml"), Some(path("empty.env"))),
        };
        let directory = folder.to_string_lossy();
        let mut all = vec!["-p", project, "-f", &file, "--project-directory", &directory];
        all.extend(variables.iter().flat_map(|file| ["--env-file", file]));
        all.extend(args);
        self.program.run(call, &all, folder, COMMAND_TIMEOUT, file::MAX_RESOLVED_BYTES).await
    }
}

impl PreparedProject<'_> {
    fn settings(&self) -> DocumentSettings<'_> {
        DocumentSettings {
            engine: self.client.engine,
            request: self.request,
            profile: self.profile.as_deref(),
            built_images: &self.built,
        }
    }

    /// Makes sure that every image is present, so that Compose neither pulls nor builds. Returns what was done, if
    /// anything.
    async fn ensure_images(&mut self, api: &Docker, tell: ProgressCallback<'_>) -> Result<Option<String>, Failure> {
        let images = ImageProvider { docker: api, pull: self.request.permissions.pull, tell };
        let mut all = Vec::new();
        for (name, member) in &self.checked.services {
            all.extend(match (&member.build, &member.image) {
                (Some(build), _) => {
                    let files = BuildSource::Service(build.clone());
                    let image = images.find_or_build(&self.request.name, files).await?;
                    self.built.insert(name.clone(), image.reference);
                    image.summary
                }
                (None, Some(image)) => images.find_or_fetch(image).await?.summary,
                (None, None) => None,
            });
        }
        Ok((!all.is_empty()).then(|| all.join(", ")))
    }

    fn write_document(&self) -> Result<(), Failure> {
        if let Some(path) = &self.profile {
            write_private_file(path, &cove_jail::seccomp::service_profile())?;
        }
        let mut document = document::build_document(&self.checked, &self.settings());
        file::encode_dollars(&mut document);
        write_private_file(&self.private_dir.path().join("checked.yaml"), &file::write_document(&document))
    }

    /// Runs Compose on the checked document.
    async fn run(&self, args: &[&str]) -> Result<String, CommandFailure> {
        let project = &self.request.project;
        self.client.run_compose(ComposeCall::Create, project, &self.folder, self.private_dir.path(), args).await
    }
}

/// Checks a file without an engine or Compose. `folder` is the image's folder, with links resolved. Fails if the file
/// is refused for any reason that its text alone shows.
pub fn check_unresolved_text(
    text: &str,
    folder: &Path,
    main: Option<&str>,
    allowed: &[ComposeRisk],
) -> Result<(), Refusal> {
    let original = file::parse(text).map_err(|cause| Refusal::new(cause, "correct the file"))?;
    check::check_unresolved(&original, folder, main, allowed)
}

fn is_valid_project_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    name.starts_with(|c: char| c.is_ascii_lowercase()) && name.len() <= 63 && name.chars().all(plain)
}

/// Writes a new file that only this user can read. Fails if the file exists.
fn write_private_file(path: &Path, text: &str) -> Result<(), Failure> {
    let mut options = std::fs::OpenOptions::new();
    options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|error| Failure::operator(format!("could not write `{}`", display_path(path))).because(error))
}

#[cfg(test)]
mod tests;
