//! What a sandbox may do, as plain data: computed once from the configuration, enforced by a backend, shown by
//! `cove explain`. No secret is ever part of a policy.

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use crate::image::Recipe;

/// Everything a backend must enforce. A backend refuses a policy that it cannot enforce.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Policy {
    pub root: Root,
    /// The python to use, when the operator chose one; else the first on the search path.
    pub python: Option<PathBuf>,
    pub mounts: Vec<Mount>,
    pub network: Network,
    /// What runs the containers of an image instead of the default, by the name that Docker or Podman knows it by.
    pub runtime: Option<String>,
    pub user: User,
    pub limits: Limits,
}

/// Where the sandbox's system files come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Root {
    /// This machine's own `/usr`, read-only.
    Host,
    /// Another tree, read-only; what untrusted tenants should get.
    Tree(PathBuf),
    /// A container of an image that the operator approved.
    Image(Recipe),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mount {
    pub source: PathBuf,
    pub target: PathBuf,
    pub access: Access,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    ReadOnly,
    ReadWrite,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// The sandbox's own loopback and nothing else.
    None,
    /// A network of Docker or Podman that the operator chose by name.
    Named(String),
}

/// Who the code is inside the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
}

/// Bounds on the whole sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Limits {
    /// Bytes.
    pub memory: u64,
    pub cpus: f64,
    pub pids: u32,
    /// Bytes of `/workspace`.
    pub workspace: u64,
    /// Bytes of `/tmp`.
    pub tmp: u64,
}

/// Bounds on one cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct CellLimits {
    pub timeout: Duration,
    pub max_timeout: Duration,
    /// Between the interrupt at the deadline and the kill.
    pub grace: Duration,
    /// Characters of output kept for a result.
    pub max_output: usize,
}
