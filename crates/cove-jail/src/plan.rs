//! Turns a specification and the facts about this machine into exactly what the jail will do: pure data, no input or
//! output, no clock. `cove explain` prints this plan, and `enter` does nothing that is not in it.

mod text;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::facts::{CgroupFacts, HostFacts, JailRoot, REPLACED_FOLDERS, SubordinateIds, TopEntry};
use crate::guest::{
    COMMAND_FOLDER, HOST_NAME, INSTALLER_COMMANDS, MountAccess, RUNNER_PROGRAM, Rlimit, RlimitResource, SHM_SIZE,
    SandboxLimits, SandboxMount, SandboxUser, TMP, WORKSPACE, environment, inode_limit, rlimits,
};
use crate::seccomp;

/// What a sandbox shall be.
#[derive(Debug, Clone, PartialEq)]
pub struct JailSpec {
    pub root: JailRoot,
    /// Interpreters outside the root, and what the operator mounts.
    pub mounts: Vec<SandboxMount>,
    pub user: SandboxUser,
    pub limits: SandboxLimits,
    pub filter: FilterMode,
    pub names: NameLookup,
    /// Variables for all code, beside those that every sandbox has.
    pub environment: BTreeMap<String, String>,
    /// Our own program on the host. It becomes the first process of the sandbox, in the role of runner.
    pub runner: PathBuf,
}

/// Whether system calls are filtered. Only tests of the layers behind the filter turn it off; no setting does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilterMode {
    On,
    OffToTestTheOtherLayers,
}

/// Who answers programs that look up a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NameLookup {
    /// The sandbox's own `/etc/hosts` and nothing else.
    FilesOnly,
    /// The runner too, on the sandbox's loopback. It and the code may use every port there.
    Runner,
}

/// Everything that `enter` does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JailPlan {
    pub identity: UserMapping,
    pub hostname: String,
    pub names: NameLookup,
    /// Set in the new user namespace.
    pub user_limits: Vec<UserLimit>,
    /// The sandbox's root: an empty tmpfs of this size, which becomes read-only once the entries are in it.
    pub root: TmpfsOptions,
    /// What the root holds, made in this order.
    pub entries: Vec<PlanEntry>,
    pub working_directory: PathBuf,
    pub rlimits: Vec<Rlimit>,
    pub control: LimitEnforcement,
    pub landlock: LandlockRules,
    pub seccomp: Option<seccomp::FilterProgram>,
    pub environment: BTreeMap<String, String>,
    pub command: Vec<String>,
}

/// Which user the code is, inside the sandbox and on the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserMapping {
    pub inside: SandboxUser,
    pub outside: HostIds,
}

/// Which user id of the host stands behind the sandbox's user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostIds {
    /// The user who started Cove, for this reason: what the kernel counts for each user, the sandbox shares with that
    /// user's own programs.
    Same { user: SandboxUser, reason: String },
    /// An id that an ordinary user may map beside their own and that no other live sandbox has. If newuidmap(1) refuses
    /// it, the sandbox has the user's own id.
    Subordinate { user: SandboxUser, ids: SubordinateIds },
    /// An id out of this range that no other live sandbox has. Root must do this: the kernel does not hold host root to
    /// a process limit, and only namespaces would keep sandboxes with the same id from signalling each other.
    OneOf { first: u32, count: u32 },
}

/// A file of `/proc/sys/user` and the value to write to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserLimit {
    pub name: String,
    pub value: u64,
}

/// The bounds and the mode of a tmpfs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TmpfsOptions {
    pub size: u64,
    pub inodes: u64,
    pub mode: u32,
}

/// One entry of the new root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "entry", rename_all = "snake_case")]
pub enum PlanEntry {
    Directory { path: PathBuf },
    Link { path: PathBuf, target: PathBuf },
    File { path: PathBuf, content: String },
    Bind(BindMount),
    Tmpfs { path: PathBuf, tmpfs: TmpfsOptions },
    Proc { path: PathBuf },
}

/// A file or folder of the host, mounted into the new root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BindMount {
    pub source: PathBuf,
    pub target: PathBuf,
    pub access: BindAccess,
}

/// How a bind mount may be used: like a `SandboxMount`, or as a device, which only the plan itself adds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BindAccess {
    ReadOnly,
    ReadWrite,
    /// A device node: usable, but nothing to execute.
    Device,
}

impl From<SandboxMount> for BindMount {
    fn from(mount: SandboxMount) -> Self {
        let access = match mount.access {
            MountAccess::ReadOnly => BindAccess::ReadOnly,
            MountAccess::ReadWrite => BindAccess::ReadWrite,
        };
        Self { source: mount.source, target: mount.target, access }
    }
}

/// How the sandbox as a whole is held to its limits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LimitEnforcement {
    pub memory: u64,
    /// Processes and threads, the runner included.
    pub pids: u32,
    pub cpus: f64,
    /// The cgroups to use, if any.
    pub place: CgroupFacts,
    /// Set if no cgroup limits memory: how often the jail process measures it.
    pub watchdog_millis: Option<u64>,
    /// Set if no cgroup limits processor time: on how many processors the sandbox may run.
    pub affinity: Option<u32>,
    /// Those processors. Empty in a plan that is not started yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processors: Vec<u32>,
}

/// What the sandbox may access, as paths inside it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LandlockRules {
    pub read: Vec<PathBuf>,
    pub write: Vec<PathBuf>,
    pub devices: Vec<PathBuf>,
}

/// A specification that this machine cannot enforce. The jail refuses it, and never weakens it silently.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    #[error("could not give the sandbox a user of its own")]
    NoIds,
    #[error("could not run code as user {0} inside the sandbox")]
    Superuser(u32),
    #[error("could not limit the sandbox to {cpus} CPUs")]
    FractionOfACpu { cpus: String, reason: String },
    #[error("could not use `{0}` as the root of a sandbox")]
    NotARoot(PathBuf),
}

impl PlanError {
    /// Returns what the operator can do about it.
    pub fn hint(&self) -> String {
        match self {
            Self::NoIds => "this process is root with too few user ids to give one to each sandbox; run it as an \
                            ordinary user, or in a user namespace with at least 1024 ids"
                .into(),
            Self::Superuser(_) => "code never runs as root; choose another `--user`, such as `65534:65534`".into(),
            Self::FractionOfACpu { reason, .. } => {
                format!("{reason}, so only whole CPUs can be given; use `--cpus 1`")
            }
            Self::NotARoot(_) => "a root needs a `usr` or a `bin` folder".into(),
        }
    }
}

/// Folders of the host's root that hold programs and libraries.
const SYSTEM_FOLDERS: &[&str] = &["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"];
const DEVICES: &[&str] = &["null", "zero", "full", "random", "urandom"];
/// First id and count. Above every range that distributions hand out to people, services and containers, and below
/// 2^31, because some programs read larger user ids as negative numbers.
const HOST_ID_RANGE: (u32, u32) = (0x7000_0000, 0x1_0000);
/// The kinds of namespaces that code inside could try to make. It may make none.
const NAMESPACE_KINDS: &[&str] = &["user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time"];
/// How many inotify instances and watches a sandbox has at most. A watcher of files needs one instance for each event
/// loop, and a watch for each folder.
const INOTIFY_LIMITS: &[(&str, u64)] = &[("max_inotify_instances", 16), ("max_inotify_watches", 4096)];
/// Which part of an ordinary user's own inotify limits a sandbox has at most: 16 sandboxes leave that person half.
const SHARE_OF_USER: u64 = 32;
/// How many descriptors a process has at most in a sandbox whose user has other programs too, which have 1024 by custom,
/// or that has no cgroup.
const FEWER_FILES: u64 = 512;
/// fanotify(7) is not for code in a sandbox. Older kernels do not have these limits.
const FANOTIFY_LIMITS: &[&str] = &["max_fanotify_groups", "max_fanotify_marks"];
const MIB: u64 = 1024 * 1024;
/// The `resolv.conf` of a sandbox whose runner answers names.
const RESOLVER: &str = "nameserver 127.0.0.1\n";

/// Returns the plan for a sandbox. Fails if this machine cannot enforce what `spec` asks for.
pub fn plan(spec: &JailSpec, facts: &HostFacts) -> Result<JailPlan, PlanError> {
    // At each execve(2) the kernel gives user 0 of a namespace capabilities over it, and the jail wants none.
    if spec.user.uid == 0 || spec.user.gid == 0 {
        return Err(PlanError::Superuser(0));
    }
    let entries = entries(spec, facts)?;
    let outside = host_ids(facts)?;
    Ok(JailPlan {
        user_limits: user_limits(&outside, facts),
        rlimits: process_limits(&outside, facts, &spec.limits),
        identity: UserMapping { inside: spec.user, outside },
        hostname: HOST_NAME.into(),
        names: spec.names,
        root: TmpfsOptions { size: 4 * MIB, inodes: 1024, mode: 0o755 },
        landlock: landlock_rules(&entries),
        entries,
        working_directory: WORKSPACE.into(),
        control: limit_enforcement(&spec.limits, facts)?,
        seccomp: match spec.filter {
            FilterMode::On => Some(seccomp::compile(seccomp::Arch::NATIVE)),
            FilterMode::OffToTestTheOtherLayers => None,
        },
        environment: environment(&spec.limits, facts.processors).into_iter().chain(spec.environment.clone()).collect(),
        command: vec![RUNNER_PROGRAM.into(), "runner".into()],
    })
}

/// Returns the limits on what the kernel counts in the sandbox's user namespace. It counts each instance and watch for
/// the user who made the namespace too, so that the sandboxes of an ordinary user share that user's limits.
fn user_limits(outside: &HostIds, facts: &HostFacts) -> Vec<UserLimit> {
    let setting = |name: &str, value| UserLimit { name: name.to_owned(), value };
    let namespaces = NAMESPACE_KINDS.iter().map(|kind| setting(&format!("max_{kind}_namespaces"), 0));
    let inotify = INOTIFY_LIMITS.iter().filter_map(|&(name, most)| {
        let of_user = *facts.user_limits.get(name)?;
        let value = match outside {
            HostIds::Same { .. } | HostIds::Subordinate { .. } => most.min(of_user / SHARE_OF_USER).max(1),
            HostIds::OneOf { .. } => most,
        };
        Some(setting(name, value))
    });
    let fanotify = FANOTIFY_LIMITS.iter().filter(|name| facts.user_limits.contains_key(**name));
    namespaces.chain(inotify).chain(fanotify.map(|name| setting(name, 0))).collect()
}

/// Returns the limits on each process. The kernel refuses to send more descriptors over sockets than a process may have
/// open, and counts those of all processes of a user. So a sandbox that shares its user has fewer; and so has one without
/// a cgroup, because the watchdog does not see what descriptors on their way hold.
fn process_limits(outside: &HostIds, facts: &HostFacts, limits: &SandboxLimits) -> Vec<Rlimit> {
    let mut all = rlimits(limits);
    if matches!(outside, HostIds::Same { .. }) || matches!(facts.cgroup, CgroupFacts::None { .. }) {
        let files = all.iter_mut().filter(|limit| limit.resource == RlimitResource::Nofile);
        files.for_each(|limit| (limit.soft, limit.hard) = (FEWER_FILES, FEWER_FILES));
    }
    all
}

fn host_ids(facts: &HostFacts) -> Result<HostIds, PlanError> {
    if facts.uid != 0 {
        let user = SandboxUser { uid: facts.uid, gid: facts.gid };
        return Ok(match (&facts.subordinate, &facts.needs_own_id) {
            (Ok(ids), None) => HostIds::Subordinate { user, ids: ids.clone() },
            (Ok(_), Some(reason)) | (Err(reason), _) => HostIds::Same { user, reason: reason.clone() },
        });
    }
    let has = |first: u32, count: u32| {
        facts.id_ranges.iter().any(|&(start, length)| {
            start <= first && u64::from(first) + u64::from(count) <= u64::from(start) + u64::from(length)
        })
    };
    if has(HOST_ID_RANGE.0, HOST_ID_RANGE.1) {
        return Ok(HostIds::OneOf { first: HOST_ID_RANGE.0, count: HOST_ID_RANGE.1 });
    }
    // Root of a container has few ids: take the upper half of the largest range, away from the container's own users,
    // without the last two, which are the user `nobody` and its group by custom.
    let (start, length) = facts.id_ranges.iter().copied().max_by_key(|&(_, length)| length).ok_or(PlanError::NoIds)?;
    if length < 1024 {
        return Err(PlanError::NoIds);
    }
    Ok(HostIds::OneOf { first: start + length / 2, count: length / 2 - 2 })
}

fn entries(spec: &JailSpec, facts: &HostFacts) -> Result<Vec<PlanEntry>, PlanError> {
    let mut entries = Vec::new();
    let tree = spec.root.path();
    if !facts.top.contains_key("usr") && !facts.top.contains_key("bin") {
        return Err(PlanError::NotARoot(tree.to_owned()));
    }
    for (name, kind) in &facts.top {
        let wanted = match spec.root {
            JailRoot::Host => SYSTEM_FOLDERS.contains(&name.as_str()),
            JailRoot::Tree(_) => !REPLACED_FOLDERS.contains(&name.as_str()),
        };
        let path = Path::new("/").join(name);
        match kind {
            _ if !wanted => {}
            TopEntry::Directory => entries.push(read_only(&tree.join(name), &path)),
            TopEntry::Link(target) => entries.push(PlanEntry::Link { path, target: target.clone() }),
        }
    }
    if spec.root == JailRoot::Host {
        entries.extend(generated_etc(spec));
        entries.extend(facts.etc.iter().map(|path| read_only(path, path)));
    }
    entries.push(read_only(&spec.runner, Path::new(RUNNER_PROGRAM)));
    for name in ["mcp"].iter().chain(INSTALLER_COMMANDS) {
        entries.push(PlanEntry::Link { path: Path::new(COMMAND_FOLDER).join(name), target: "../cove".into() });
    }
    entries.push(PlanEntry::Proc { path: "/proc".into() });
    for device in DEVICES {
        let path = Path::new("/dev").join(device);
        let bind = BindMount { source: path.clone(), target: path, access: BindAccess::Device };
        entries.push(PlanEntry::Bind(bind));
    }
    for (name, target) in [("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")] {
        let target = format!("/proc/self/fd{target}").into();
        entries.push(PlanEntry::Link { path: Path::new("/dev").join(name), target });
    }
    entries.push(tmpfs("/dev/shm", SHM_SIZE, 0o1777));
    entries.push(tmpfs(TMP, spec.limits.tmp, 0o1777));
    entries.push(tmpfs(WORKSPACE, spec.limits.workspace, 0o700));
    entries.push(PlanEntry::Directory { path: "/run".into() });
    // Last, so that a mount may lie inside any of the above.
    entries.extend(spec.mounts.iter().cloned().map(|mount| PlanEntry::Bind(mount.into())));
    Ok(entries)
}

fn read_only(source: &Path, target: &Path) -> PlanEntry {
    let (source, target) = (source.to_owned(), target.to_owned());
    PlanEntry::Bind(BindMount { source, target, access: BindAccess::ReadOnly })
}

fn tmpfs(path: &str, size: u64, mode: u32) -> PlanEntry {
    PlanEntry::Tmpfs { path: path.into(), tmpfs: TmpfsOptions { size, inodes: inode_limit(size), mode } }
}

/// Returns the files of `/etc` that name the sandbox's own user and host, in place of the host's.
fn generated_etc(spec: &JailSpec) -> Vec<PlanEntry> {
    let SandboxUser { uid, gid } = spec.user;
    let (lookup, resolver) = match spec.names {
        NameLookup::FilesOnly => ("files", ""),
        NameLookup::Runner => ("files dns", RESOLVER),
    };
    let file = |name: &str, content: String| PlanEntry::File { path: Path::new("/etc").join(name), content };
    vec![
        file("group", format!("sandbox:x:{gid}:\n")),
        file("hostname", format!("{HOST_NAME}\n")),
        file("hosts", format!("127.0.0.1 localhost {HOST_NAME}\n::1 localhost {HOST_NAME}\n")),
        file("nsswitch.conf", format!("passwd: files\ngroup: files\nhosts: {lookup}\n")),
        file("passwd", format!("sandbox:x:{uid}:{gid}:sandbox:{WORKSPACE}:/bin/sh\n")),
        file("resolv.conf", resolver.into()),
    ]
}

fn landlock_rules(entries: &[PlanEntry]) -> LandlockRules {
    let mut rules = LandlockRules { read: vec!["/etc".into(), "/run".into()], write: vec![], devices: vec![] };
    for entry in entries {
        match entry {
            PlanEntry::Bind(bind) => match bind.access {
                BindAccess::ReadOnly => rules.read.push(bind.target.clone()),
                BindAccess::ReadWrite => rules.write.push(bind.target.clone()),
                BindAccess::Device => rules.devices.push(bind.target.clone()),
            },
            PlanEntry::Tmpfs { path, .. } => rules.write.push(path.clone()),
            // Links of `/proc`, such as `/proc/self/fd`, lead to files that may be written. The mount itself is read-only.
            PlanEntry::Proc { path } => rules.write.push(path.clone()),
            PlanEntry::Directory { .. } | PlanEntry::Link { .. } | PlanEntry::File { .. } => {}
        }
    }
    rules
}

fn limit_enforcement(limits: &SandboxLimits, facts: &HostFacts) -> Result<LimitEnforcement, PlanError> {
    let (watchdog, cpu) = match &facts.cgroup {
        CgroupFacts::V2 { cpu, .. } => (None, *cpu),
        CgroupFacts::V1 { cpu, .. } => (None, cpu.is_some()),
        CgroupFacts::None { .. } => (Some(100), false),
    };
    // Without a cpu controller there is only affinity, which knows whole processors.
    if !cpu && limits.cpus.fract() != 0.0 {
        let reason = match &facts.cgroup {
            CgroupFacts::None { reason } => reason.clone(),
            _ => "there is no cpu controller".into(),
        };
        return Err(PlanError::FractionOfACpu { cpus: limits.cpus.to_string(), reason });
    }
    Ok(LimitEnforcement {
        memory: limits.memory,
        pids: limits.pids + 1,
        cpus: limits.cpus,
        place: facts.cgroup.clone(),
        watchdog_millis: watchdog,
        affinity: (!cpu).then_some(limits.cpus as u32),
        processors: Vec::new(),
    })
}

#[cfg(test)]
mod tests;
