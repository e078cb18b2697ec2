//! What the engine reports about itself, as far as a plan depends on it.

use bollard::models::{SystemInfo, SystemInfoCgroupVersionEnum, SystemVersion};
use serde::Serialize;

use super::libpod::PodmanFacts;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct EngineFacts {
    pub(super) engine: Engine,
    pub(super) version: String,
    /// The URL that the engine listens at.
    pub(super) address: String,
    /// The URL that programs of this machine connect to: the address itself, or the socket of a tunnel to it.
    #[serde(skip)]
    pub(super) endpoint: String,
    pub(super) rootless: bool,
    /// True if containers run in a user namespace (`userns-remap`).
    pub(super) maps_users: bool,
    pub(super) cgroup: u8,
    /// True if the engine can limit a container's swap.
    pub(super) limits_swap: bool,
    /// The limits that the engine says it cannot enforce.
    pub(super) unenforced_limits: Vec<&'static str>,
    pub(super) processors: u32,
    /// The hard limit of processes per user on this machine.
    pub(super) user_processes: u64,
    pub(super) runtimes: Vec<String>,
    pub(super) default_runtime: String,
    pub(super) seccomp: bool,
    pub(super) apparmor: bool,
    pub(super) selinux: bool,
}

/// The container engine that Cove talks to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Engine {
    Docker,
    Podman,
}

/// How the engines differ, a column for each. Code that depends on the engine reads a row of this table.
#[derive(Debug)]
pub(super) struct EngineTraits {
    pub(super) name: &'static str,
    /// The value of `--backend` that selects this engine.
    pub(super) backend_name: &'static str,
    /// Takes a system call filter with the request. Otherwise the runner installs it.
    pub(super) takes_filter: bool,
    /// Takes an owner and a limit of inodes for a tmpfs; masked paths, volumes without a copy, and binds without what is
    /// mounted below them.
    pub(super) takes_docker_options: bool,
    /// Takes networks in which the host has no address. Otherwise its programs that listen on all addresses answer there.
    pub(super) closes_networks: bool,
    /// Adds its own default rlimits to those of a request, which may exceed what it is permitted to set.
    pub(super) adds_default_rlimits: bool,
    /// Starts a timer for a health check that is only switched off.
    pub(super) times_disabled_health_checks: bool,
    /// Reports a container's runtime. Otherwise `libpod::runtime_difference` asks for it.
    pub(super) reports_runtime: bool,
    /// Reports every mount as a bind too.
    pub(super) reports_mounts_as_binds: bool,
    /// Distinguishes an out-of-memory kill from any other kill, on cgroup v1 too.
    pub(super) reports_oom_kills: bool,
    /// Completes "its container was killed", where the engine reports no lack of memory.
    pub(super) kill_cause: &'static str,
    /// Reported in place of an exit code that the engine does not know, because the container ended while the engine did
    /// not run. No runner ends with it.
    pub(super) unknown_exit_code: Option<i64>,
    /// Finishes a build after its client has disconnected.
    pub(super) finishes_aborted_builds: bool,
    /// Runs `ONBUILD` triggers but does not report them.
    pub(super) hides_build_triggers: bool,
    /// Variables that it sets in every container.
    pub(super) own_variables: &'static [&'static str],
    pub(super) log_driver: &'static str,
    /// They bound the logs. Of Podman's drivers only `k8s-file` is bounded.
    pub(super) log_options: &'static [(&'static str, &'static str)],
    /// The Compose programs to try, each with its first arguments.
    pub(super) compose_programs: &'static [(&'static str, &'static [&'static str])],
}

const DOCKER: EngineTraits = EngineTraits {
    name: "Docker",
    backend_name: "docker",
    takes_filter: true,
    takes_docker_options: true,
    closes_networks: true,
    adds_default_rlimits: false,
    times_disabled_health_checks: false,
    reports_runtime: true,
    reports_mounts_as_binds: false,
    reports_oom_kills: true,
    kill_cause: " from outside",
    unknown_exit_code: Some(255),
    finishes_aborted_builds: false,
    hides_build_triggers: false,
    own_variables: &[],
    log_driver: "json-file",
    log_options: &[("max-size", "1m"), ("max-file", "1")],
    compose_programs: &[("docker", &["compose"]), ("docker-compose", &[])],
};

const PODMAN: EngineTraits = EngineTraits {
    name: "Podman",
    backend_name: "podman",
    takes_filter: false,
    takes_docker_options: false,
    closes_networks: false,
    adds_default_rlimits: true,
    times_disabled_health_checks: true,
    reports_runtime: false,
    reports_mounts_as_binds: true,
    reports_oom_kills: false,
    kill_cause: ", from outside or for lack of memory; Podman does not say which",
    unknown_exit_code: None,
    finishes_aborted_builds: true,
    hides_build_triggers: true,
    own_variables: &["HOME", "HOSTNAME", "PATH", "TERM", "container"],
    log_driver: "k8s-file",
    log_options: &[("max-size", "1m")],
    // `podman compose` only calls one of the others, and prints a notice each time.
    compose_programs: &[("docker-compose", &[]), ("docker", &["compose"]), ("podman", &["compose"])],
};

impl Engine {
    pub(super) fn traits(self) -> &'static EngineTraits {
        match self {
            Self::Docker => &DOCKER,
            Self::Podman => &PODMAN,
        }
    }

    /// Recognises the engine by the components that it reports.
    pub(super) fn from_version(version: &SystemVersion) -> Self {
        let mut components = version.components.iter().flatten();
        if components.any(|part| part.name.contains("Podman")) { Self::Podman } else { Self::Docker }
    }
}

impl EngineFacts {
    /// Reads the facts from the engine's answers to `version` and `info`.
    pub(super) fn from_info(address: &str, version: &SystemVersion, found: &SystemInfo) -> Self {
        let options = || found.security_options.iter().flatten();
        let has = |name: &str| options().any(|option| option.split(',').any(|part| part == format!("name={name}")));
        // A missing field counts as supported: only Docker sends these fields, and it always does.
        let missing = |said: Option<bool>| said == Some(false);
        let limits = [("memory", found.memory_limit), ("pids", found.pids_limit), ("cpus", found.cpu_cfs_quota)];
        let mut runtimes: Vec<String> = found.runtimes.iter().flat_map(|all| all.keys().cloned()).collect();
        runtimes.sort_unstable();
        Self {
            engine: Engine::from_version(version),
            version: version.version.clone().unwrap_or_default(),
            address: address.to_owned(),
            endpoint: address.to_owned(),
            rootless: has("rootless"),
            maps_users: has("userns"),
            cgroup: match found.cgroup_version {
                Some(SystemInfoCgroupVersionEnum::_2) => 2,
                _ => 1,
            },
            limits_swap: !missing(found.swap_limit),
            unenforced_limits: limits.into_iter().filter(|(_, said)| missing(*said)).map(|(name, _)| name).collect(),
            processors: found.ncpu.and_then(|count| u32::try_from(count).ok()).unwrap_or(0),
            user_processes: rustix::process::getrlimit(rustix::process::Resource::Nproc).maximum.unwrap_or(u64::MAX),
            runtimes,
            default_runtime: found.default_runtime.clone().unwrap_or_default(),
            seccomp: has("seccomp") || options().any(|option| option.starts_with("name=seccomp")),
            apparmor: has("apparmor"),
            selinux: has("selinux"),
        }
    }

    /// Replaces facts with those from Podman's own API. Podman knows several runtimes, but through the Docker API a
    /// container gets only the one that the service was started with.
    pub(super) fn add_podman_facts(&mut self, facts: PodmanFacts) {
        (self.rootless, self.cgroup) = (facts.rootless, facts.cgroup);
        // On cgroup v2 Podman's Docker API looks for files of cgroup v1, and reports limits as missing that it enforces.
        if let (2, Some(controllers)) = (facts.cgroup, facts.controllers) {
            let misses = |name: &str| controllers.iter().all(|one| one != name);
            let limits = [("memory", "memory"), ("pids", "pids"), ("cpus", "cpu")].into_iter();
            self.unenforced_limits = limits.filter(|(_, name)| misses(name)).map(|(limit, _)| limit).collect();
            self.limits_swap = !misses("memory");
        }
        self.runtimes = vec![facts.runtime.clone()];
        self.default_runtime = facts.runtime;
    }

    /// Returns true if the engine can start a container whose whole `/proc` is read-only. Runtimes write a label of SELinux
    /// there after that, and a profile of AppArmor after Podman's options for `/proc` but before Docker's read-only paths.
    pub(super) fn closes_proc(&self) -> bool {
        !self.selinux && (self.engine.traits().takes_docker_options || !self.apparmor)
    }

    /// Returns true if the engine sets the rlimits of a request. A rootless Podman leaves them out without a word.
    pub(super) fn takes_rlimits(&self) -> bool {
        !(self.rootless && self.engine == Engine::Podman)
    }

    /// Returns true if the engine distinguishes an out-of-memory kill from any other kill.
    pub(super) fn reports_oom_kills(&self) -> bool {
        self.engine.traits().reports_oom_kills || self.cgroup == 2
    }

    /// Returns the number of processors for a limit. An engine refuses more than the machine has, so such a limit means
    /// all of them.
    pub(super) fn usable_cpus(&self, limit: f64) -> f64 {
        if self.processors == 0 { limit } else { limit.min(f64::from(self.processors)) }
    }

    /// Returns true if the engine runs on this machine, so that host paths mean the same to it.
    pub(super) fn is_local(&self) -> bool {
        self.address.starts_with("unix://")
    }

    /// As in "Docker 20.10.24".
    pub(super) fn name(&self) -> String {
        format!("{} {}", self.engine.traits().name, self.version)
    }
}
