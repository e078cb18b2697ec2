//! What this machine is and what it forbids, as far as a person has to know it when a sandbox does not start. Read from
//! files of the kernel and of container engines. A plan depends on `facts`; this is only what a cause is named by.

use std::fs;
use std::path::{Path, PathBuf};

use crate::sys;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Machine {
    /// As `uname -r` has it.
    pub kernel: String,
    pub architecture: String,
    pub user: u32,
    /// Its name, where `/etc/passwd` has one.
    pub user_name: Option<String>,
    pub container: Option<Container>,
    pub namespaces: Namespaces,
    /// This process is held by a system call filter itself, and so is everything it starts.
    pub filtered: bool,
    /// This process may mount: root outside of containers may, and hardly anybody else.
    pub may_mount: bool,
    /// The AppArmor profile that holds this process; nothing when none does.
    pub apparmor_profile: Option<String>,
    /// What is mounted over parts of `/proc`. As long as it is, the kernel mounts no fresh `/proc` for a sandbox.
    pub masked_proc: Vec<PathBuf>,
    /// The version of the kernel's Landlock; nothing where there is none.
    pub landlock: Option<u32>,
}

/// What the machine says about making namespaces.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Namespaces {
    /// How many user namespaces there may be; nothing when the kernel has none.
    pub most_user: Option<u64>,
    /// The kinds of which none may be made: their limit is 0.
    pub closed: Vec<&'static str>,
    /// `kernel.unprivileged_userns_clone` is there and 0.
    pub root_only: bool,
    /// `kernel.apparmor_restrict_unprivileged_userns` is there and not 0.
    pub apparmor_only: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    pub kind: ContainerKind,
    /// What says so; one piece alone may be left over from the building of an image.
    pub evidence: Vec<&'static str>,
    pub sure: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContainerKind {
    Docker,
    Podman,
    Kubernetes,
    Lxc,
    Other,
}

impl ContainerKind {
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

/// The kinds that a sandbox needs.
const NEEDED: &[&str] = &["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"];

impl Machine {
    pub fn look() -> Self {
        let uname = rustix::system::uname();
        let text = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
        Self {
            kernel: text(uname.release()),
            architecture: text(uname.machine()),
            user: rustix::process::geteuid().as_raw(),
            landlock: sys::landlock_version(),
            ..Self::seen_in(Path::new("/"), Variables::own())
        }
        .with_user_name(&fs::read_to_string("/etc/passwd").unwrap_or_default())
    }

    /// Everything that files tell, with `root` in front of their paths.
    fn seen_in(root: &Path, variables: Variables) -> Self {
        let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let number = |path: &str| read(path).trim().parse::<u64>().ok();
        let most = |kind: &str| number(&format!("proc/sys/user/max_{kind}_namespaces"));
        let mounts = read("proc/self/mountinfo");
        let signs = Signs {
            dockerenv: root.join(".dockerenv").exists(),
            containerenv: root.join("run/.containerenv").exists(),
            cluster_secret: root.join("var/run/secrets/kubernetes.io").exists(),
            variables,
            lxd: root.join("dev/lxd").exists(),
            cgroups: read("proc/self/cgroup"),
            systemd: read("run/systemd/container"),
            mounts: &mounts,
        };
        Self {
            container: signs.container(),
            namespaces: Namespaces {
                most_user: most("user"),
                closed: NEEDED.iter().copied().filter(|kind| most(kind) == Some(0)).collect(),
                root_only: number("proc/sys/kernel/unprivileged_userns_clone") == Some(0),
                apparmor_only: number("proc/sys/kernel/apparmor_restrict_unprivileged_userns")
                    .is_some_and(|value| value != 0),
            },
            filtered: is_filtered(&read("proc/self/status")),
            may_mount: may_mount(&read("proc/self/status")),
            apparmor_profile: profile(&[
                read("proc/self/attr/apparmor/current"),
                read("proc/self/attr/current"),
            ]),
            masked_proc: masked(&mounts),
            ..Self::default()
        }
    }

    fn with_user_name(mut self, passwd: &str) -> Self {
        let uid = self.user.to_string();
        self.user_name = passwd.lines().find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            (fields.nth(1)? == uid).then(|| name.to_owned())
        });
        self
    }
}

/// proc_pid_status(5): `Seccomp` is 2 under a filter.
fn is_filtered(status: &str) -> bool {
    let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:"));
    mode.is_some_and(|mode| mode.trim() == "2")
}

/// proc_pid_status(5): whether `CAP_SYS_ADMIN` is among those in effect.
fn may_mount(status: &str) -> bool {
    const SYS_ADMIN: u32 = 21;
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).is_some_and(|set| set >> SYS_ADMIN & 1 == 1)
}

/// The first that says anything. Without AppArmor the second file may belong to another security module, whose labels
/// do not end with a mode.
fn profile(labels: &[String]) -> Option<String> {
    labels.iter().find_map(|label| {
        let (name, _mode) = label.trim().split_once(" (")?;
        Some(name.to_owned())
    })
}

/// The mount points below `/proc`, and `/proc` itself when it is read-only: see `mount_too_revealing` in the kernel.
/// Over an empty folder, such as that of binfmt_misc, nothing is hidden.
fn masked(mountinfo: &str) -> Vec<PathBuf> {
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

/// What the environment says of a container.
#[derive(Debug, Clone, Default)]
struct Variables {
    /// `KUBERNETES_SERVICE_HOST` is set.
    cluster: bool,
    /// `container`, as systemd and most engines have agreed on it. Of Podman without root, on a root that is read-only,
    /// it is all that there is.
    container: String,
}

impl Variables {
    fn own() -> Self {
        Self {
            cluster: std::env::var_os("KUBERNETES_SERVICE_HOST").is_some(),
            container: std::env::var("container").unwrap_or_default(),
        }
    }
}

/// What speaks for a container. No single place tells all kinds on all kernels.
struct Signs<'a> {
    dockerenv: bool,
    containerenv: bool,
    cluster_secret: bool,
    variables: Variables,
    lxd: bool,
    /// `/proc/self/cgroup`
    cgroups: String,
    /// Written by systemd when it is pid 1 of a container.
    systemd: String,
    mounts: &'a str,
}

impl Signs<'_> {
    fn container(&self) -> Option<Container> {
        let cgroup = |names: &[&str]| {
            let mut paths = self.cgroups.lines().filter_map(|line| line.splitn(3, ':').nth(2));
            paths.any(|path| names.iter().any(|name| path.contains(name)))
        };
        let systemd = self.systemd.trim();
        let variable = self.variables.container.as_str();
        let general = [
            (self.is_mount_point("/etc/hostname"), "`/etc/hostname` is mounted"),
            (self.root_is_overlay(), "the root is an overlay"),
        ];
        // In this order: a pod is run by some engine, and Podman also makes Docker's file.
        let kinds: [(ContainerKind, &[(bool, &'static str)]); 5] = [
            (
                ContainerKind::Kubernetes,
                &[
                    (self.variables.cluster, "`KUBERNETES_SERVICE_HOST` is set"),
                    (self.cluster_secret, "`/var/run/secrets/kubernetes.io` is there"),
                    (cgroup(&["/kubepods"]), "its cgroup"),
                ],
            ),
            (
                ContainerKind::Podman,
                &[
                    (self.containerenv, "`/run/.containerenv` is there"),
                    (cgroup(&["/libpod"]), "its cgroup"),
                    (systemd == "podman", "`/run/systemd/container` says so"),
                    (variable == "podman", "the variable `container` says so"),
                ],
            ),
            (
                ContainerKind::Docker,
                &[
                    (self.dockerenv, "`/.dockerenv` is there"),
                    (cgroup(&["/docker/", "/docker-"]), "its cgroup"),
                    (systemd == "docker", "`/run/systemd/container` says so"),
                ],
            ),
            (
                ContainerKind::Lxc,
                &[
                    (cgroup(&["/lxc/", "/lxc.payload"]), "its cgroup"),
                    (systemd == "lxc", "`/run/systemd/container` says so"),
                    (variable == "lxc", "the variable `container` says so"),
                    (self.lxd, "`/dev/lxd` is there"),
                    (self.mounts.contains(" - fuse.lxcfs "), "lxcfs is mounted"),
                ],
            ),
            (ContainerKind::Other, &[(!systemd.is_empty(), "`/run/systemd/container` says so")]),
        ];
        let held = |signs: &[(bool, &'static str)]| -> Vec<&'static str> {
            signs.iter().filter(|(holds, _)| *holds).map(|(_, what)| *what).collect()
        };
        let general = held(&general);
        for (kind, signs) in kinds {
            let mut evidence = held(signs);
            if !evidence.is_empty() {
                evidence.extend(&general);
                // Docker's file outlives its container when a machine's disk is made from an image.
                let sure = kind != ContainerKind::Docker || evidence.len() > 1;
                return Some(Container { kind, evidence, sure });
            }
        }
        (general.len() == 2).then_some(Container {
            kind: ContainerKind::Other,
            evidence: general,
            sure: false,
        })
    }

    fn is_mount_point(&self, path: &str) -> bool {
        self.mounts.lines().any(|line| line.split(' ').nth(4) == Some(path))
    }

    fn root_is_overlay(&self) -> bool {
        let kind = |line: &str| line.split_once(" - ")?.1.split(' ').next().map(str::to_owned);
        self.mounts
            .lines()
            .filter(|line| line.split(' ').nth(4) == Some("/"))
            .any(|line| kind(line).as_deref() == Some("overlay"))
    }
}

#[cfg(test)]
mod tests;
