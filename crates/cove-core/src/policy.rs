//! What a sandbox may do, as plain data: Cove computes it once from the configuration, a backend enforces it, and `cove
//! explain` shows it. A policy never contains a secret.

pub mod grants;
pub mod mounts;
pub mod packages;
pub mod readiness;

use std::path::PathBuf;
use std::time::Duration;

use cove_protocol::{Language, NetworkSetup, ReachableName};
use serde::Serialize;

use crate::keyword::keywords;
use crate::output::OutputLimit;
use packages::PackageLayers;
use readiness::SessionReadiness;

pub use cove_jail::guest::{MountAccess, SandboxLimits, SandboxMount, SandboxUser};
pub use mounts::{AllowedMount, requested as requested_mount};

/// Everything a backend must enforce. A backend refuses a policy that it cannot enforce. The default allows nothing,
/// because its limits are zero.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Policy {
    pub root: SandboxRoot,
    /// The name of the image, for rules about some images only. A backend neither enforces nor shows it.
    #[serde(skip)]
    pub image: Option<String>,
    /// The python that the operator chose; None for the first one on the search path.
    pub python: Option<PathBuf>,
    pub mounts: Vec<SandboxMount>,
    /// Packages that the operator installed for every session.
    pub packages: PackageLayers,
    pub network: SandboxNetwork,
    /// The runner opens a proxy on the sandbox's loopback, and the host decides what it reaches. The sandbox itself has no
    /// more network than without.
    pub proxy_door: bool,
    /// The names that the runner answers beside it, for programs that know no proxy.
    pub door_names: Vec<DoorName>,
    /// The container runtime to use instead of the default, by its name in Docker or Podman.
    pub runtime: Option<String>,
    pub user: SandboxUser,
    pub limits: SandboxLimits,
    /// What a session has done before it is handed out. A backend neither enforces nor shows it.
    #[serde(skip)]
    pub readiness: SessionReadiness,
}

/// A name that the runner answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DoorName {
    pub name: ReachableName,
    /// In sessions of these images; of every image if empty.
    pub images: Vec<String>,
}

impl Policy {
    /// True if programs in the sandbox are to ask the runner for names.
    pub fn answers_names(&self) -> bool {
        // The names of a Compose file's services are answered by the engine, and only one can answer.
        let source = match &self.root {
            SandboxRoot::Image(recipe) => Some(&recipe.source),
            SandboxRoot::Host | SandboxRoot::Tree(_) => None,
        };
        self.reachable_names().next().is_some() && !matches!(source, Some(ImageSource::Compose { .. }))
    }

    /// Returns the names that sessions of this image can reach.
    pub fn reachable_names(&self) -> impl Iterator<Item = &ReachableName> {
        let is_here =
            |name: &&DoorName| name.images.is_empty() || self.image.iter().any(|own| name.images.contains(own));
        self.door_names.iter().filter(is_here).map(|name| &name.name)
    }

    /// Returns what the runner opens on the sandbox's loopback, if anything.
    pub fn network_setup(&self) -> Option<NetworkSetup> {
        let names = if self.answers_names() { self.reachable_names().cloned().collect() } else { Vec::new() };
        self.proxy_door.then_some(NetworkSetup { names, ..NetworkSetup::default() })
    }
}

/// Where the sandbox's system files come from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SandboxRoot {
    /// This machine's own `/usr`, read-only.
    #[default]
    Host,
    /// Another directory tree, read-only. Use it for untrusted tenants.
    Tree(PathBuf),
    /// A container of an image that the operator approved.
    Image(ImageRecipe),
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SandboxNetwork {
    /// The sandbox's own loopback and nothing else.
    #[default]
    None,
    /// A network of Docker or Podman that the operator chose by name.
    Named(String),
}

/// Bounds on one cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct CellLimits {
    pub timeout: Duration,
    pub max_timeout: Duration,
    /// The time between the interrupt at the deadline and the kill.
    pub grace: Duration,
    /// How much of each output stream a result has.
    pub max_output: OutputLimit,
}

/// The limits that a cell ran under.
#[derive(Debug, Clone, Copy)]
pub struct EffectiveLimits {
    pub timeout: Duration,
    pub max_timeout: Duration,
    pub memory: u64,
    pub workspace: u64,
    pub tmp: u64,
    /// True if a later cell can use the variables and files of this one.
    pub session_persists: bool,
}

/// How a container of an image is made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ImageRecipe {
    /// The image's name, as agents know it.
    pub name: String,
    pub source: ImageSource,
    /// The languages that its containers offer. If empty, every language found inside.
    pub languages: Vec<Language>,
}

/// Where the files of a container come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ImageSource {
    /// `name:tag` or a digest.
    Reference(String),
    /// The Dockerfile of a built-in definition.
    BuiltIn(&'static str),
    /// A folder with a Dockerfile.
    Folder(PathBuf),
    /// A folder with a Compose file. `main` names the service whose container runs the runner.
    Compose { folder: PathBuf, main: Option<String> },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionLifetime {
    /// One sandbox from the first call to the end of the session.
    Persistent,
    /// A new sandbox for each call.
    Oneshot,
}

impl SessionLifetime {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Persistent => "persistent",
            Self::Oneshot => "oneshot",
        }
    }
}

keywords!(
    /// A part of a Compose file that Cove refuses unless the operator allows it.
    #[derive(Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub ComposeRisk, "RISK", "a risk that can be allowed":
    Privileged = "privileged",
    HostNetwork = "host-network",
    Ports = "ports",
    Capabilities = "capabilities",
    Devices = "devices",
);
