//! From what is wanted and what the machine allows to exactly what will be done: pure data, no input or output, no
//! clock. What `cove explain` prints is this plan, and `enter` does nothing that is not in it.

mod text;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::facts::{CgroupFacts, HostFacts, TopEntry};
use crate::seccomp;

/// What is wanted of a sandbox.
#[derive(Debug, Clone, PartialEq)]
pub struct Spec {
    pub root: Root,
    /// Interpreters outside the root, and what the operator mounts.
    pub binds: Vec<Bind>,
    pub user: User,
    pub limits: Limits,
    pub filter: Filter,
    /// Our own program on the host; it becomes the first process of the sandbox, in the role of runner.
    pub runner: PathBuf,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Root {
    /// The machine's own `/usr`.
    Host,
    /// Another tree.
    Tree(PathBuf),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    pub memory: u64,
    pub cpus: f64,
    pub pids: u32,
    pub workspace: u64,
    pub tmp: u64,
}

/// Whether system calls are filtered. Only tests that prove the layers behind the filter may turn it off; nothing
/// that a person or an agent can set does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filter {
    On,
    OffToTestTheOtherLayers,
}

/// Everything that `enter` does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub identity: Identity,
    pub hostname: String,
    /// Written in the new namespaces, in this order.
    pub sysctls: Vec<Sysctl>,
    /// The sandbox's root: an empty tmpfs of this size that becomes read-only.
    pub root: Tmpfs,
    /// Made in this order.
    pub entries: Vec<Entry>,
    pub working_directory: PathBuf,
    pub rlimits: Vec<Rlimit>,
    pub control: Control,
    pub landlock: Landlock,
    pub seccomp: Option<seccomp::Program>,
    pub environment: BTreeMap<String, String>,
    pub command: Vec<String>,
}

/// Who the code is, inside and outside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub inside: User,
    pub outside: Outside,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outside {
    /// The person who started us: all that an ordinary user may map.
    Same(User),
    /// An id that no other sandbox has, out of this range: what root must do, since the kernel does not hold host
    /// root to a process limit, and sandboxes of one id could signal each other but for their namespaces.
    OneOf { first: u32, count: u32 },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sysctl {
    pub path: String,
    pub value: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tmpfs {
    pub size: u64,
    pub inodes: u64,
    pub mode: u32,
}

/// One thing inside the new root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "entry", rename_all = "snake_case")]
pub enum Entry {
    Directory { path: PathBuf },
    Link { path: PathBuf, target: PathBuf },
    File { path: PathBuf, content: String },
    Bind(Bind),
    Tmpfs { path: PathBuf, tmpfs: Tmpfs },
    Proc { path: PathBuf },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bind {
    pub source: PathBuf,
    pub target: PathBuf,
    pub access: Access,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    ReadOnly,
    ReadWrite,
    /// A device node: usable, but nothing to execute.
    Device,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rlimit {
    pub resource: Resource,
    pub soft: u64,
    pub hard: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resource {
    Core,
    Data,
    Fsize,
    Memlock,
    Msgqueue,
    Nofile,
    Nproc,
    Sigpending,
    Stack,
}

/// How the sandbox as a whole is held to its limits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Control {
    pub memory: u64,
    pub pids: u32,
    pub cpus: f64,
    pub place: CgroupFacts,
    /// Where no cgroup holds the memory: how often we look for ourselves.
    pub watchdog_millis: Option<u64>,
    /// Where no cgroup holds the processors: on how many the sandbox may run.
    pub affinity: Option<u32>,
}

/// Paths as the sandbox sees them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Landlock {
    pub read: Vec<PathBuf>,
    pub write: Vec<PathBuf>,
    pub devices: Vec<PathBuf>,
}

/// A wish that this machine cannot hold anybody to. Never weakened in silence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CannotEnforce {
    #[error("could not give the sandbox a user of its own")]
    NoIds,
    #[error("could not run code as user {0} inside the sandbox")]
    Superuser(u32),
    #[error("could not hold the sandbox to {cpus} processors")]
    FractionOfACpu { cpus: String, reason: String },
    #[error("could not use `{0}` as the root of a sandbox")]
    NotARoot(PathBuf),
}

impl CannotEnforce {
    pub fn hint(&self) -> String {
        match self {
            Self::NoIds => {
                "this process is root with too few user ids to give one to each sandbox; run it as an \
                            ordinary user, or in a user namespace with at least 1024 ids"
                    .into()
            }
            Self::Superuser(_) => {
                "code never runs as root; choose another `--user`, such as `65534:65534`".into()
            }
            Self::FractionOfACpu { reason, .. } => {
                format!("{reason}, so only whole processors can be given; use `--cpus 1`")
            }
            Self::NotARoot(_) => "a root needs a `usr` or a `bin` folder".into(),
        }
    }
}

/// Of the machine's `/etc`, only what programs need to find their libraries, fonts and certificates. The rest is made up.
pub const SHARED_ETC: &[&str] = &[
    "/etc/alternatives",
    "/etc/fonts",
    "/etc/ld.so.cache",
    "/etc/ssl/certs",
    "/etc/pki/ca-trust/extracted",
    "/etc/pki/tls/certs",
];

/// Folders of the machine's root that hold programs and libraries.
const SYSTEM: &[&str] = &["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"];
/// Folders of another tree that the sandbox has its own of.
const OWN: &[&str] =
    &["proc", "sys", "dev", "tmp", "run", "workspace", ".cove", "root", "home", "lost+found"];
const DEVICES: &[&str] = &["null", "zero", "full", "random", "urandom"];
/// Where the sandbox finds our program.
pub const RUNNER: &str = "/.cove/cove";
/// The same program as a command for the code, which its name makes it: see `main`.
pub const COMMANDS: &str = "/.cove/bin";
/// Above every range that distributions hand out to people, services and containers, and below 2^31, from where on
/// some programs take a user id for a negative number.
const HOST_IDS: (u32, u32) = (0x7000_0000, 0x1_0000);
/// Namespaces that code inside might want to make: none of each kind.
const NESTED: &[&str] = &["user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time"];
/// Room in `/dev/shm`.
pub const SHM: u64 = 64 * MIB;
/// What the sandbox calls itself.
pub const HOSTNAME: &str = "cove";
const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

pub fn plan(spec: &Spec, facts: &HostFacts) -> Result<Plan, CannotEnforce> {
    if spec.user.uid == 0 || spec.user.gid == 0 {
        return Err(CannotEnforce::Superuser(0));
    }
    let entries = entries(spec, facts)?;
    Ok(Plan {
        identity: Identity { inside: spec.user, outside: outside(facts)? },
        hostname: HOSTNAME.into(),
        sysctls: NESTED
            .iter()
            .map(|kind| Sysctl { path: format!("/proc/sys/user/max_{kind}_namespaces"), value: 0 })
            .collect(),
        root: Tmpfs { size: 4 * MIB, inodes: 1024, mode: 0o755 },
        landlock: landlock(&entries),
        entries,
        working_directory: "/workspace".into(),
        rlimits: rlimits(&spec.limits),
        control: control(&spec.limits, facts)?,
        seccomp: match spec.filter {
            Filter::On => Some(seccomp::compile(seccomp::Arch::NATIVE)),
            Filter::OffToTestTheOtherLayers => None,
        },
        environment: environment(&spec.limits, facts.processors),
        command: vec![RUNNER.into(), "runner".into()],
    })
}

fn outside(facts: &HostFacts) -> Result<Outside, CannotEnforce> {
    if facts.uid != 0 {
        return Ok(Outside::Same(User { uid: facts.uid, gid: facts.gid }));
    }
    let has = |first: u32, count: u32| {
        facts.id_ranges.iter().any(|&(start, length)| {
            start <= first && u64::from(first) + u64::from(count) <= u64::from(start) + u64::from(length)
        })
    };
    if has(HOST_IDS.0, HOST_IDS.1) {
        return Ok(Outside::OneOf { first: HOST_IDS.0, count: HOST_IDS.1 });
    }
    // Root of a container has few ids: take the upper half of the largest range, away from the container's own users,
    // and without its last two, which are "nobody" by custom.
    let (start, length) =
        facts.id_ranges.iter().copied().max_by_key(|&(_, length)| length).ok_or(CannotEnforce::NoIds)?;
    if length < 1024 {
        return Err(CannotEnforce::NoIds);
    }
    Ok(Outside::OneOf { first: start + length / 2, count: length / 2 - 2 })
}

fn entries(spec: &Spec, facts: &HostFacts) -> Result<Vec<Entry>, CannotEnforce> {
    let mut entries = Vec::new();
    let tree = match &spec.root {
        Root::Host => Path::new("/"),
        Root::Tree(tree) => tree,
    };
    if !facts.top.contains_key("usr") && !facts.top.contains_key("bin") {
        return Err(CannotEnforce::NotARoot(tree.to_owned()));
    }
    for (name, kind) in &facts.top {
        let wanted = match spec.root {
            Root::Host => SYSTEM.contains(&name.as_str()),
            Root::Tree(_) => !OWN.contains(&name.as_str()),
        };
        let path = Path::new("/").join(name);
        match kind {
            _ if !wanted => {}
            TopEntry::Directory => entries.push(read_only(&tree.join(name), &path)),
            TopEntry::Link(target) => entries.push(Entry::Link { path, target: target.clone() }),
        }
    }
    if spec.root == Root::Host {
        entries.extend(made_up_etc(spec.user));
        entries.extend(facts.etc.iter().map(|path| read_only(path, path)));
    }
    entries.push(read_only(&spec.runner, Path::new(RUNNER)));
    entries.push(Entry::Link { path: Path::new(COMMANDS).join("mcp"), target: "../cove".into() });
    entries.push(Entry::Proc { path: "/proc".into() });
    for device in DEVICES {
        let path = Path::new("/dev").join(device);
        entries.push(Entry::Bind(Bind { source: path.clone(), target: path, access: Access::Device }));
    }
    for (name, target) in [("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")] {
        let target = format!("/proc/self/fd{target}").into();
        entries.push(Entry::Link { path: Path::new("/dev").join(name), target });
    }
    entries.push(tmpfs("/dev/shm", SHM, 0o1777));
    entries.push(tmpfs("/tmp", spec.limits.tmp, 0o1777));
    entries.push(tmpfs("/workspace", spec.limits.workspace, 0o700));
    entries.push(Entry::Directory { path: "/run".into() });
    // Last, so that they may lie inside what was made before.
    entries.extend(spec.binds.iter().cloned().map(Entry::Bind));
    Ok(entries)
}

fn read_only(source: &Path, target: &Path) -> Entry {
    Entry::Bind(Bind { source: source.to_owned(), target: target.to_owned(), access: Access::ReadOnly })
}

fn tmpfs(path: &str, size: u64, mode: u32) -> Entry {
    Entry::Tmpfs { path: path.into(), tmpfs: Tmpfs { size, inodes: inodes(size), mode } }
}

/// How many files there may be in so much room. A file costs kernel memory of its own, so their number is bounded as well
/// as their size.
pub fn inodes(size: u64) -> u64 {
    (size / (16 * KIB)).max(64)
}

fn made_up_etc(user: User) -> Vec<Entry> {
    let User { uid, gid } = user;
    let file = |name: &str, content: String| Entry::File { path: Path::new("/etc").join(name), content };
    vec![
        file("group", format!("sandbox:x:{gid}:\n")),
        file("hostname", "cove\n".into()),
        file("hosts", "127.0.0.1 localhost cove\n::1 localhost cove\n".into()),
        file("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n".into()),
        file("passwd", format!("sandbox:x:{uid}:{gid}:sandbox:/workspace:/bin/sh\n")),
        file("resolv.conf", String::new()),
    ]
}

fn landlock(entries: &[Entry]) -> Landlock {
    let mut rules = Landlock { read: vec!["/etc".into(), "/run".into()], write: vec![], devices: vec![] };
    for entry in entries {
        match entry {
            Entry::Bind(bind) => match bind.access {
                Access::ReadOnly => rules.read.push(bind.target.clone()),
                Access::ReadWrite => rules.write.push(bind.target.clone()),
                Access::Device => rules.devices.push(bind.target.clone()),
            },
            Entry::Tmpfs { path, .. } => rules.write.push(path.clone()),
            // A process may write to its own files there, such as its name; the rest is closed by owner and mode.
            Entry::Proc { path } => rules.write.push(path.clone()),
            Entry::Directory { .. } | Entry::Link { .. } | Entry::File { .. } => {}
        }
    }
    rules
}

/// What each process is held to, besides what the sandbox is held to as a whole.
pub fn rlimits(limits: &Limits) -> Vec<Rlimit> {
    let same = |resource, value| Rlimit { resource, soft: value, hard: value };
    vec![
        same(Resource::Core, 0),
        // An allocation beyond the memory limit fails as an ordinary exception that code can survive, where the
        // limit itself could only kill.
        same(Resource::Data, limits.memory),
        same(Resource::Fsize, limits.workspace.max(limits.tmp)),
        same(Resource::Memlock, 64 * KIB),
        same(Resource::Msgqueue, 0),
        same(Resource::Nofile, 1024),
        // One more than asked for: the runner is one.
        same(Resource::Nproc, u64::from(limits.pids) + 1),
        same(Resource::Sigpending, 256),
        // Each thread's stack counts against `Data` in full: 4 MiB allow twice as many threads as the usual 8.
        Rlimit { resource: Resource::Stack, soft: 4 * MIB, hard: 8 * MIB },
    ]
}

fn control(limits: &Limits, facts: &HostFacts) -> Result<Control, CannotEnforce> {
    let (watchdog, cpu) = match &facts.cgroup {
        CgroupFacts::V2 { cpu, .. } => (None, *cpu),
        CgroupFacts::V1 { cpu, .. } => (None, cpu.is_some()),
        CgroupFacts::None { .. } => (Some(100), false),
    };
    if !cpu && limits.cpus.fract() != 0.0 {
        let reason = match &facts.cgroup {
            CgroupFacts::None { reason } => reason.clone(),
            _ => "no cpu controller is there".into(),
        };
        return Err(CannotEnforce::FractionOfACpu { cpus: limits.cpus.to_string(), reason });
    }
    Ok(Control {
        memory: limits.memory,
        pids: limits.pids + 1,
        cpus: limits.cpus,
        place: facts.cgroup.clone(),
        watchdog_millis: watchdog,
        affinity: (!cpu).then_some(limits.cpus as u32),
    })
}

/// Built from nothing: no variable of the host's reaches the sandbox. `processors` are those that there are, or 0 where
/// nobody knows.
pub fn environment(limits: &Limits, processors: u32) -> BTreeMap<String, String> {
    // First, since some python packages bring a program `mcp` that is another.
    let path = format!("{COMMANDS}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    let most = if processors == 0 { f64::INFINITY } else { f64::from(processors) };
    let threads = limits.cpus.min(most).ceil().max(1.0).to_string();
    [
        ("HOME", "/workspace"),
        ("LANG", "C.UTF-8"),
        ("LOGNAME", "sandbox"),
        // Figures are drawn into files; the cache must be writable or each import rebuilds it.
        ("MPLBACKEND", "agg"),
        ("MPLCONFIGDIR", "/tmp/matplotlib"),
        // Number libraries start a thread for every processor they see, each with its own stack.
        ("OMP_NUM_THREADS", &threads),
        ("OPENBLAS_NUM_THREADS", &threads),
        ("PATH", &path),
        ("TMPDIR", "/tmp"),
        ("TZ", "UTC"),
        ("USER", "sandbox"),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .collect()
}

#[cfg(test)]
mod tests;
