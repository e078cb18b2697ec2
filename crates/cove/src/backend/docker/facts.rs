//! What Docker or Podman says of itself, as far as a plan depends on it.

use bollard::models::{SystemInfo, SystemInfoCgroupVersionEnum, SystemVersion};
use serde::Serialize;

use super::libpod::Told;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Facts {
    pub(super) maker: Maker,
    pub(super) version: String,
    /// Where it listens.
    pub(super) address: String,
    pub(super) rootless: bool,
    pub(super) cgroup: u8,
    /// Whether it can keep a container from using swap.
    pub(super) limits_swap: bool,
    /// Those whose limits it cannot enforce, by its own word.
    pub(super) unlimited: Vec<&'static str>,
    pub(super) processors: u32,
    /// Most processes that a user may have on this machine.
    pub(super) user_processes: u64,
    pub(super) runtimes: Vec<String>,
    pub(super) default_runtime: String,
    pub(super) seccomp: bool,
    pub(super) apparmor: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Maker {
    Docker,
    Podman,
}

impl Maker {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Docker => "Docker",
            Self::Podman => "Podman",
        }
    }

    /// As `--backend` has it.
    pub(super) fn backend(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Podman => "podman",
        }
    }
}

impl Facts {
    pub(super) fn of(address: &str, version: &SystemVersion, found: &SystemInfo) -> Self {
        let components = version.components.iter().flatten();
        let podman = components.into_iter().any(|part| part.name.contains("Podman"));
        let options = || found.security_options.iter().flatten();
        let has =
            |name: &str| options().any(|option| option.split(',').any(|part| part == format!("name={name}")));
        // What is not said is taken for there: only Docker says it, and it does.
        let missing = |said: Option<bool>| said == Some(false);
        let limits =
            [("memory", found.memory_limit), ("pids", found.pids_limit), ("cpus", found.cpu_cfs_quota)];
        let mut runtimes: Vec<String> = found.runtimes.iter().flat_map(|all| all.keys().cloned()).collect();
        runtimes.sort_unstable();
        Self {
            maker: if podman { Maker::Podman } else { Maker::Docker },
            version: version.version.clone().unwrap_or_default(),
            address: address.to_owned(),
            rootless: has("rootless"),
            cgroup: match found.cgroup_version {
                Some(SystemInfoCgroupVersionEnum::_2) => 2,
                _ => 1,
            },
            limits_swap: !missing(found.swap_limit),
            unlimited: limits.into_iter().filter(|(_, said)| missing(*said)).map(|(name, _)| name).collect(),
            processors: found.ncpu.and_then(|count| u32::try_from(count).ok()).unwrap_or(0),
            user_processes: rustix::process::getrlimit(rustix::process::Resource::Nproc)
                .maximum
                .unwrap_or(u64::MAX),
            runtimes,
            default_runtime: found.default_runtime.clone().unwrap_or_default(),
            seccomp: has("seccomp") || options().any(|option| option.starts_with("name=seccomp")),
            apparmor: has("apparmor"),
        }
    }

    /// What Podman tells in its own interface. Of all the runtimes that it knows, only the one that it was started with
    /// can be had through Docker's.
    pub(super) fn add(&mut self, told: Told) {
        (self.rootless, self.cgroup) = (told.rootless, told.cgroup);
        self.runtimes = vec![told.runtime.clone()];
        self.default_runtime = told.runtime;
    }

    /// Whether a container that was killed for want of memory can be told from one that somebody killed.
    pub(super) fn tells_want_of_memory(&self) -> bool {
        self.maker == Maker::Docker || self.cgroup == 2
    }

    /// Whether it runs on this machine, so that paths mean the same to it.
    pub(super) fn is_local(&self) -> bool {
        self.address.starts_with("unix://")
    }

    /// As in "Docker 20.10.24".
    pub(super) fn name(&self) -> String {
        format!("{} {}", self.maker.name(), self.version)
    }
}
