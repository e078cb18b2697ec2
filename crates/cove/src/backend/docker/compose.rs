//! Compose files as sandboxes: one container of the file holds the runner, the others are there for it.
//!
//! The way of a file: we parse it (`read`), look at it (`check`), let Compose resolve what we wrote of it, look at that
//! too, and write one document with our own limits in it (`document`), which is what is run. Compose makes its
//! containers, we compare them with what must hold (`verify`), and only then they start (`project`). Each container has
//! the policy's limits to itself; there are at most eight.

mod build;
mod check;
mod command;
mod document;
mod environment;
mod home;
pub(super) mod place;
mod project;
mod read;
mod verify;

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bollard::Docker;
use serde_json::Value;

use self::check::{Checked, Mounted, Reach, Rules, Wrong};
pub use self::command::Environment;
use self::command::{Call, Program};
use self::document::Terms;
pub use self::project::{PROJECT, Project, Up, is_abandoned, take_down};
use super::facts::Maker;
use crate::backend::{StartError, Tell};
use crate::config::{AllowedMount, ComposeRisk};
use crate::error::{shown, shown_path};
use crate::policy::{Network, Policy};

/// For one call of Compose, which builds and fetches nothing.
const PATIENCE: Duration = Duration::from_secs(60);

/// A session in an image whose folder has a Compose file.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// The image's name, as agents know it.
    pub name: &'a str,
    pub folder: &'a Path,
    /// The container that holds the runner, if the operator named one.
    pub main: Option<&'a str>,
    pub policy: &'a Policy,
    /// Lower-case letters, digits, `-` and `_`; of this session alone.
    pub project: &'a str,
    /// On every container, network and volume that is made.
    pub labels: &'a BTreeMap<String, String>,
    /// A volume with our program as `cove` at its top.
    pub runner_volume: &'a str,
    /// Of the runner, as `NAME=VALUE`.
    pub env: &'a [String],
    pub allowed: &'a [ComposeRisk],
    pub mounts: &'a [AllowedMount],
    /// Whether images that are not there may be fetched.
    pub pull: bool,
}

/// Compose as it is on this machine, and whom it talks to.
#[derive(Debug, Clone)]
pub struct Compose {
    kind: Maker,
    program: Program,
    /// Of Docker or Podman, where it is on this machine.
    socket: Option<PathBuf>,
}

/// A file that was looked at, and the private place that its document is written to.
struct Ready {
    checked: Checked,
    /// The images of what is built, by name of the container; empty until they are there.
    built: BTreeMap<String, String>,
    folder: PathBuf,
    place: tempfile::TempDir,
}

impl Compose {
    /// `host` is the address of Docker or Podman that our own connection has, such as `unix:///run/docker.sock`.
    pub async fn find(kind: Maker, host: &str, environment: Environment) -> Result<Self, StartError> {
        let program = Program::find(kind, host, environment).await?;
        let socket = host.strip_prefix("unix://").map(PathBuf::from);
        Ok(Self { kind, program, socket })
    }

    /// As in `2.26`.
    pub fn version(&self) -> String {
        let (major, minor) = self.program.version();
        format!("{major}.{minor}")
    }

    /// What cannot be held here that is held elsewhere, in words.
    pub fn gaps(&self) -> &'static [&'static str] {
        verify::gaps(self.kind)
    }

    /// The document that would be run.
    pub async fn explain(&self, asked: &Asked<'_>) -> Result<Value, StartError> {
        let mut ready = self.ready(asked).await?;
        for (name, member) in &ready.checked.members {
            if let Some(build) = &member.build {
                let image = super::build::named(asked.name, &build::files(name, build)).await?;
                ready.built.insert(name.clone(), image);
            }
        }
        let profile = self.profile(&ready);
        Ok(document::document(&ready.checked, &self.terms(asked, &ready, profile.as_deref())))
    }

    /// Builds and fetches what is not there yet. What was done, in words; nothing if nothing was.
    pub async fn prepare(
        &self,
        api: &Docker,
        asked: &Asked<'_>,
        tell: Tell<'_>,
    ) -> Result<Option<String>, StartError> {
        let mut ready = self.ready(asked).await?;
        images(api, asked, &mut ready, tell).await
    }

    /// The digests of what is built for the file as it is now.
    pub async fn digests(&self, asked: &Asked<'_>) -> Result<Vec<String>, StartError> {
        let mut digests = Vec::new();
        for (name, member) in &self.ready(asked).await?.checked.members {
            if let Some(build) = &member.build {
                digests.push(super::build::digest(&build::files(name, build)).await?);
            }
        }
        Ok(digests)
    }

    /// Everything up to a running runner. Should it fail, or should nobody wait for it any longer, nothing is left.
    pub async fn up(&self, api: &Docker, asked: &Asked<'_>, tell: Tell<'_>) -> Result<Up, StartError> {
        let mut ready = self.ready(asked).await?;
        images(api, asked, &mut ready, tell).await?;
        self.write(asked, &ready)?;
        project::up(self, api, asked, &ready).await
    }

    /// Reads the file, has Compose resolve it, and looks at both.
    async fn ready(&self, asked: &Asked<'_>) -> Result<Ready, StartError> {
        let wrong = |wrong: Wrong| cannot(asked, wrong);
        if !is_project(asked.project) {
            return Err(StartError::new(format!("`{}` is not a project's name", shown(asked.project))));
        }
        let folder = asked.folder.canonicalize().map_err(|error| {
            StartError::new(format!("could not find `{}`", shown_path(asked.folder))).because(error)
        })?;
        let original = read::read(&folder)?;
        let document = check::before(&original, &folder).map_err(wrong)?;
        let place = place::make()?;
        put(&place.path().join("written.yaml"), &read::write(&document))?;
        put(&place.path().join("empty.env"), "")?;
        let resolved = self
            .compose(asked, &folder, &place, "written.yaml", Variables::Folder, &["config"])
            .await
            .map_err(|failure| {
                failure
                    .into_error(format!("could not read the Compose file of `{}`", shown(asked.name)))
                    .with_hint("correct the file")
            })?;
        let mut resolved = read::value(&resolved, read::MAX_RESOLVED).map_err(|cause| {
            StartError::new("could not read what Compose made of the file").because(cause)
        })?;
        read::decode_dollars(&mut resolved);
        let rules = Rules {
            folder: &folder,
            project: asked.project,
            main: asked.main,
            allowed: asked.allowed,
            mounts: asked.mounts,
            kind: self.kind,
            reach: match asked.policy.network {
                Network::None => Reach::Nothing,
                Network::Named(_) => Reach::Network,
            },
            socket: self.socket.as_deref(),
        };
        let checked = check::after(&resolved, &original.order, &rules).map_err(wrong)?;
        if let Some(twice) = checked.members[&checked.main]
            .mounts
            .iter()
            .find(|mount| asked.policy.mounts.iter().any(|other| other.target.as_os_str() == mount.target()))
        {
            let what = format!("`{}` already shows a mount of the operator's", shown(twice.target()));
            return Err(wrong(Wrong::new(what, "choose another target")));
        }
        for mount in &asked.policy.mounts {
            if let Some(below) = check::mounts::mounted_below(&mount.source) {
                return Err(StartError::new(format!("could not mount `{}`", shown_path(&mount.source)))
                    .because(format!(
                        "`{}` is mounted below it, and Compose would show that too, writable",
                        shown_path(&below)
                    ))
                    .with_hint("mount a directory without another in it"));
            }
        }
        self.see_binds(&checked).map_err(wrong)?;
        Ok(Ready { checked, built: BTreeMap::new(), folder, place })
    }

    /// A path that was looked at here is another one on another machine.
    fn see_binds(&self, checked: &Checked) -> Result<(), Wrong> {
        let is_bind = |mount: &&Mounted| matches!(mount, Mounted::Bind { .. });
        let mut all = checked.members.values().flat_map(|member| &member.mounts);
        match all.find(is_bind) {
            Some(bind) if self.socket.is_none() => Err(Wrong::new(
                format!(
                    "`{}` shows files of this machine, and paths mean something else where {} runs",
                    shown(bind.target()),
                    self.kind.name()
                ),
                "put the files into the image with `COPY`, or use a volume",
            )),
            _ => Ok(()),
        }
    }

    /// Where our filter of system calls is written. Podman takes none from Compose.
    fn profile(&self, ready: &Ready) -> Option<PathBuf> {
        (self.kind == Maker::Docker).then(|| ready.place.path().join("seccomp.json"))
    }

    fn terms<'a>(&self, asked: &Asked<'a>, ready: &'a Ready, profile: Option<&'a Path>) -> Terms<'a> {
        Terms {
            kind: self.kind,
            policy: asked.policy,
            labels: asked.labels,
            runner_volume: asked.runner_volume,
            profile,
            built: &ready.built,
        }
    }

    fn write(&self, asked: &Asked<'_>, ready: &Ready) -> Result<(), StartError> {
        let profile = self.profile(ready);
        if let Some(path) = &profile {
            put(path, &cove_jail::seccomp::docker_json())?;
        }
        let mut document = document::document(&ready.checked, &self.terms(asked, ready, profile.as_deref()));
        read::encode_dollars(&mut document);
        put(&ready.place.path().join("checked.yaml"), &read::write(&document))
    }

    /// Runs Compose on what was checked, with no variable from anywhere.
    async fn run(&self, asked: &Asked<'_>, ready: &Ready, args: &[&str]) -> Result<String, command::Failure> {
        self.compose(asked, &ready.folder, &ready.place, "checked.yaml", Variables::None, args).await
    }

    async fn compose(
        &self,
        asked: &Asked<'_>,
        folder: &Path,
        place: &tempfile::TempDir,
        file: &str,
        variables: Variables,
        args: &[&str],
    ) -> Result<String, command::Failure> {
        let file = place.path().join(file).to_string_lossy().into_owned();
        let none = place.path().join("empty.env").to_string_lossy().into_owned();
        let directory = folder.to_string_lossy();
        let mut all = vec!["-p", asked.project, "-f", &file, "--project-directory", &directory];
        let call = match variables {
            Variables::Folder => Call::Reading,
            Variables::None => Call::Making,
        };
        if variables == Variables::None {
            all.extend(["--env-file", &none]);
        }
        all.extend(args);
        self.program.run(call, &all, folder, PATIENCE, read::MAX_RESOLVED).await
    }
}

/// What is wrong with a file, as far as it can be told without Docker, Podman and Compose. `folder` is the image's, with
/// links followed.
pub fn first_look(
    text: &str,
    folder: &Path,
    main: Option<&str>,
    allowed: &[ComposeRisk],
) -> Result<(), Wrong> {
    let original = read::parse(text).map_err(|cause| Wrong::new(cause, "correct the file"))?;
    check::written(&original, folder, main, allowed)
}

/// Sees to it that every image is there, so that Compose neither fetches nor builds anything.
async fn images(
    api: &Docker,
    asked: &Asked<'_>,
    ready: &mut Ready,
    tell: Tell<'_>,
) -> Result<Option<String>, StartError> {
    let mut all = Vec::new();
    for (name, member) in &ready.checked.members {
        all.extend(match (&member.build, &member.image) {
            (Some(build), _) => {
                let files = build::files(name, build);
                let image = super::build::built(api, asked.name, files, asked.pull, tell).await?;
                ready.built.insert(name.clone(), image.reference);
                image.done
            }
            (None, Some(image)) => super::build::present(api, image, asked.pull, tell).await?.done,
            (None, None) => None,
        });
    }
    Ok((!all.is_empty()).then(|| all.join(", ")))
}

/// Which variables Compose puts into a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variables {
    /// Those of `.env` in the image's folder.
    Folder,
    None,
}

fn cannot(asked: &Asked<'_>, wrong: Wrong) -> StartError {
    StartError::new(format!("could not use the Compose file of `{}`", shown(asked.name)))
        .because(wrong.cause)
        .with_hint(wrong.hint)
}

fn is_project(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    name.starts_with(|c: char| c.is_ascii_lowercase()) && name.len() <= 63 && name.chars().all(plain)
}

/// Writes a file that nobody else reads.
fn put(path: &Path, text: &str) -> Result<(), StartError> {
    let mut options = std::fs::OpenOptions::new();
    options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|error| StartError::new(format!("could not write `{}`", shown_path(path))).because(error))
}

/// A Compose file that is not run as it stands.
fn refused(message: impl Into<String>, hint: impl Into<String>) -> StartError {
    StartError::new(message).with_hint(hint)
}
