//! What this machine is and what it forbids, for people: hints and `cove doctor` name the cause from it when a sandbox
//! does not start. It is read from files of the kernel and of container engines. No plan depends on it; for plans there
//! is `facts`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::facts::{SubordinateIds, user_name};
use crate::sys;

/// What could be found out about this machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MachineProbe {
    /// The kernel's release, as `uname -r` prints it.
    pub kernel: String,
    pub architecture: String,
    /// The user id of this process.
    pub user: u32,
    /// The user's name, if `/etc/passwd` has one.
    pub user_name: Option<String>,
    pub container: Option<DetectedContainer>,
    pub namespaces: NamespaceLimits,
    /// This process is under a system call filter itself, and so is everything that it starts.
    pub filtered: bool,
    /// This process may mount file systems, which usually only root outside of containers may.
    pub may_mount: bool,
    /// The AppArmor profile of this process, if it has one.
    pub apparmor_profile: Option<String>,
    /// Mount points that hide parts of `/proc`. While there are any, the kernel mounts no new `/proc` for a sandbox.
    pub masked_proc: Vec<PathBuf>,
    /// The version of the kernel's Landlock, if it has one.
    pub landlock: Option<u32>,
    /// What the kernel does with the memory of a process that crashes: `kernel.core_pattern`.
    pub core_pattern: String,
    /// The hard limit on core files; `None` if there is none.
    pub core_limit: Option<u64>,
    /// Why the sandboxes of an ordinary user share that user's id, if they do.
    pub shared_id: Option<String>,
    pub manager: CgroupManager,
}

/// What manages the machine's cgroups, and could give one to this user.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CgroupManager {
    /// systemd, with a manager for this user.
    UserSystemd,
    /// systemd, without a manager for this user: there is one only while the user is logged in, or lingers.
    Systemd,
    /// No systemd; all controllers are in the hierarchy of version 2.
    Unified,
    /// No systemd; at least some controllers are in hierarchies of version 1.
    #[default]
    Legacy,
}

/// What the kernel's settings say about making namespaces.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NamespaceLimits {
    /// How many user namespaces there may be; `None` if the kernel has no such setting.
    pub most_user: Option<u64>,
    /// The kinds of namespaces whose limit is 0.
    pub closed: Vec<&'static str>,
    /// `kernel.unprivileged_userns_clone` exists and is 0.
    pub root_only: bool,
    /// `kernel.apparmor_restrict_unprivileged_userns` exists and is not 0.
    pub apparmor_only: bool,
}

/// The container that this process seems to run in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DetectedContainer {
    pub kind: ContainerKind,
    /// What points to it, for people.
    pub evidence: Vec<&'static str>,
    /// False if the evidence may be left over from building an image that is now a machine's disk.
    pub sure: bool,
}

/// The kinds of containers that the probe distinguishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContainerKind {
    Docker,
    Podman,
    Kubernetes,
    Lxc,
    Other,
}

impl ContainerKind {
    /// Returns the kind's name, for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Docker => "Docker",
            Self::Podman => "Podman",
            Self::Kubernetes => "Kubernetes",
            Self::Lxc => "LXC",
            Self::Other => "a container",
        }
    }
}

/// The kinds of namespaces that a sandbox needs.
const NEEDED_NAMESPACES: &[&str] = &["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"];

impl MachineProbe {
    /// Looks at this machine. What cannot be read stays empty.
    pub fn gather() -> Self {
        let uname = rustix::system::uname();
        let text = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
        Self {
            kernel: text(uname.release()),
            architecture: text(uname.machine()),
            user: rustix::process::geteuid().as_raw(),
            landlock: sys::landlock_version(),
            core_limit: rustix::process::getrlimit(rustix::process::Resource::Core).maximum,
            shared_id: shared_id(rustix::process::geteuid().as_raw()),
            manager: detect_manager(Path::new("/"), rustix::process::geteuid().as_raw()),
            ..Self::from_files(Path::new("/"), ContainerVariables::from_environment())
        }
        .with_user_name(&fs::read_to_string("/etc/passwd").unwrap_or_default())
    }

    /// Returns everything that can be read from files below `root`.
    fn from_files(root: &Path, variables: ContainerVariables) -> Self {
        let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let number = |path: &str| read(path).trim().parse::<u64>().ok();
        let most = |kind: &str| number(&format!("proc/sys/user/max_{kind}_namespaces"));
        let mounts = read("proc/self/mountinfo");
        Self {
            container: detect_container(root, &variables, &mounts),
            namespaces: NamespaceLimits {
                most_user: most("user"),
                closed: NEEDED_NAMESPACES.iter().copied().filter(|kind| most(kind) == Some(0)).collect(),
                root_only: number("proc/sys/kernel/unprivileged_userns_clone") == Some(0),
                apparmor_only: number("proc/sys/kernel/apparmor_restrict_unprivileged_userns")
                    .is_some_and(|value| value != 0),
            },
            filtered: is_filtered(&read("proc/self/status")),
            may_mount: may_mount(&read("proc/self/status")),
            apparmor_profile: apparmor_profile(&[
                read("proc/self/attr/apparmor/current"),
                read("proc/self/attr/current"),
            ]),
            masked_proc: masks_over_proc(&mounts),
            core_pattern: read("proc/sys/kernel/core_pattern").trim().to_owned(),
            ..Self::default()
        }
    }

    fn with_user_name(mut self, passwd: &str) -> Self {
        self.user_name = user_name(passwd, self.user);
        self
    }
}

fn shared_id(uid: u32) -> Option<String> {
    if uid == 0 { None } else { SubordinateIds::gather(uid).err() }
}

/// Returns what manages cgroups, from files below `root`.
fn detect_manager(root: &Path, user: u32) -> CgroupManager {
    let exists = |path: String| root.join(path).exists();
    if exists("run/systemd/system".into()) {
        let has_own = exists(format!("run/user/{user}/systemd"));
        return if has_own { CgroupManager::UserSystemd } else { CgroupManager::Systemd };
    }
    if exists("sys/fs/cgroup/cgroup.controllers".into()) { CgroupManager::Unified } else { CgroupManager::Legacy }
}

/// proc_pid_status(5): `Seccomp` is 2 under a filter.
fn is_filtered(status: &str) -> bool {
    let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:"));
    mode.is_some_and(|mode| mode.trim() == "2")
}

/// proc_pid_status(5): returns whether `CAP_SYS_ADMIN` is among the effective capabilities.
fn may_mount(status: &str) -> bool {
    const SYS_ADMIN: u32 = 21;
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).is_some_and(|set| set >> SYS_ADMIN & 1 == 1)
}

/// Returns the name in the first label that has one. Without AppArmor the second file may belong to another security
/// module, whose labels do not end with a mode.
fn apparmor_profile(labels: &[String]) -> Option<String> {
    labels.iter().find_map(|label| {
        let (name, _mode) = label.trim().split_once(" (")?;
        Some(name.to_owned())
    })
}

/// Returns the mount points below `/proc`, and `/proc` itself if it is read-only: see `mount_too_revealing` in the
/// kernel. A mount over an empty folder, such as that of binfmt_misc, hides nothing and does not count.
fn masks_over_proc(mountinfo: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for line in mountinfo.lines() {
        let mut fields = line.split(' ').skip(4);
        let (Some(point), Some(options)) = (fields.next(), fields.next()) else { continue };
        let below = point.starts_with("/proc/") && point != "/proc/sys/fs/binfmt_misc";
        let read_only = point == "/proc" && options.split(',').any(|option| option == "ro");
        if below || read_only {
            found.push(PathBuf::from(point));
        }
    }
    found.dedup();
    found
}

/// The environment variables that point to a container.
#[derive(Debug, Clone, Default)]
struct ContainerVariables {
    /// `KUBERNETES_SERVICE_HOST` is set.
    cluster: bool,
    /// The variable `container`, on which systemd and most engines have agreed. For rootless Podman with a read-only
    /// root it is the only sign.
    container: String,
}

impl ContainerVariables {
    fn from_environment() -> Self {
        Self {
            cluster: std::env::var_os("KUBERNETES_SERVICE_HOST").is_some(),
            container: std::env::var("container").unwrap_or_default(),
        }
    }
}

/// Returns the container that files below `root`, the environment and the mounts of this process point to, if any do.
/// No single sign covers all kinds on all kernels.
fn detect_container(root: &Path, variables: &ContainerVariables, mountinfo: &str) -> Option<DetectedContainer> {
    let exists = |path: &str| root.join(path).exists();
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let cgroups = read("proc/self/cgroup");
    let cgroup = |names: &[&str]| {
        let mut paths = cgroups.lines().filter_map(|line| line.splitn(3, ':').nth(2));
        paths.any(|path| names.iter().any(|name| path.contains(name)))
    };
    // systemd writes this file when it is pid 1 of a container.
    let systemd = read("run/systemd/container");
    let systemd = systemd.trim();
    let variable = variables.container.as_str();
    let signs = [
        (ContainerKind::Kubernetes, variables.cluster, "`KUBERNETES_SERVICE_HOST` is set"),
        (ContainerKind::Kubernetes, exists("var/run/secrets/kubernetes.io"), "`/var/run/secrets/kubernetes.io` exists"),
        (ContainerKind::Kubernetes, cgroup(&["/kubepods"]), "its cgroup"),
        (ContainerKind::Podman, exists("run/.containerenv"), "`/run/.containerenv` exists"),
        (ContainerKind::Podman, cgroup(&["/libpod"]), "its cgroup"),
        (ContainerKind::Podman, systemd == "podman", "`/run/systemd/container` says so"),
        (ContainerKind::Podman, variable == "podman", "the variable `container` says so"),
        (ContainerKind::Docker, exists(".dockerenv"), "`/.dockerenv` exists"),
        (ContainerKind::Docker, cgroup(&["/docker/", "/docker-"]), "its cgroup"),
        (ContainerKind::Docker, systemd == "docker", "`/run/systemd/container` says so"),
        (ContainerKind::Lxc, cgroup(&["/lxc/", "/lxc.payload"]), "its cgroup"),
        (ContainerKind::Lxc, systemd == "lxc", "`/run/systemd/container` says so"),
        (ContainerKind::Lxc, variable == "lxc", "the variable `container` says so"),
        (ContainerKind::Lxc, exists("dev/lxd"), "`/dev/lxd` exists"),
        (ContainerKind::Lxc, mountinfo.contains(" - fuse.lxcfs "), "lxcfs is mounted"),
        (ContainerKind::Other, !systemd.is_empty(), "`/run/systemd/container` says so"),
    ];
    let general: Vec<&str> = [
        (is_mount_point(mountinfo, "/etc/hostname"), "`/etc/hostname` is mounted"),
        (root_is_overlay(mountinfo), "the root is an overlay"),
    ]
    .into_iter()
    .filter_map(|(is_present, sign)| is_present.then_some(sign))
    .collect();
    // The order matters: some engine runs each pod, and Podman also makes Docker's file.
    let Some(&(kind, ..)) = signs.iter().find(|(_, is_present, _)| *is_present) else {
        let kind = ContainerKind::Other;
        return (general.len() == 2).then_some(DetectedContainer { kind, evidence: general, sure: false });
    };
    let own = signs.iter().filter(|(owner, is_present, _)| *owner == kind && *is_present).map(|(_, _, sign)| *sign);
    let evidence: Vec<_> = own.chain(general).collect();
    // Docker's file alone proves nothing: it outlives its container if a machine's disk is made from an image.
    let sure = kind != ContainerKind::Docker || evidence.len() > 1;
    Some(DetectedContainer { kind, evidence, sure })
}

fn is_mount_point(mountinfo: &str, path: &str) -> bool {
    mountinfo.lines().any(|line| line.split(' ').nth(4) == Some(path))
}

fn root_is_overlay(mountinfo: &str) -> bool {
    let kind = |line: &str| line.split_once(" - ")?.1.split(' ').next().map(str::to_owned);
    mountinfo
        .lines()
        .filter(|line| line.split(' ').nth(4) == Some("/"))
        .any(|line| kind(line).as_deref() == Some("overlay"))
}

#[cfg(test)]
mod tests;
