//! The inside of a sandbox, the same whichever backend makes it: paths, host name, environment and the limits of each
//! process, and the data that describes a sandbox's user, mounts and limits.
//!
//! The jail plans with these values, and so do Docker, Podman and Compose, so that code finds the same place
//! everywhere. Nothing here has an effect, and nothing here knows which backend uses it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

/// The folder that holds Cove's own program inside a sandbox. Images and mounts must leave it alone.
pub const COVE_FOLDER: &str = "/.cove";
/// Cove's own program inside a sandbox, which runs there in the role of runner.
pub const RUNNER_PROGRAM: &str = "/.cove/cove";
/// The folder with links to the same program under the names of commands: `main` chooses a role by that name.
pub const COMMAND_FOLDER: &str = "/.cove/bin";
/// The commands that Cove's own program answers in a sandbox that never has a network to fetch packages from. What they
/// do without a network is left to the programs of these names.
pub const INSTALLER_COMMANDS: &[&str] = &["apt", "apt-get", "npm", "pip", "pip3"];
/// The working directory and home of the code, and the only folder whose files the host reads and writes.
pub const WORKSPACE: &str = "/workspace";
/// The folder for temporary files.
pub const TMP: &str = "/tmp";
/// The host name of a sandbox.
pub const HOST_NAME: &str = "cove";
/// The size of `/dev/shm` in bytes.
pub const SHM_SIZE: u64 = 64 * MIB;
/// How many file locks a sandbox may have in all its processes. The kernel needs memory for each that no cgroup counts.
pub const MAX_LOCKS: u64 = 16_384;
/// How many descriptors a sandbox may have in all its processes, those of files that several share more than once: as
/// many as can be looked through for locks.
pub const MAX_DESCRIPTORS: u64 = 32_768;
/// Where programs are looked for, after `COMMAND_FOLDER`, if an image does not say.
pub const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The user and group that code has inside the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxUser {
    pub uid: u32,
    pub gid: u32,
}

impl Default for SandboxUser {
    /// `nobody`: never root.
    fn default() -> Self {
        Self { uid: 65534, gid: 65534 }
    }
}

/// Bounds on the whole sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct SandboxLimits {
    /// Bytes.
    pub memory: u64,
    pub cpus: f64,
    /// Processes and threads, without the runner.
    pub pids: u32,
    /// Bytes of `/workspace`.
    pub workspace: u64,
    /// Bytes of `/tmp`.
    pub tmp: u64,
}

/// A file or folder of the host that the sandbox sees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxMount {
    /// The path on the host.
    pub source: PathBuf,
    /// The path inside the sandbox.
    pub target: PathBuf,
    pub access: MountAccess,
}

/// What code may do with a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MountAccess {
    ReadOnly,
    ReadWrite,
}

/// A limit on each process: see setrlimit(2).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rlimit {
    pub resource: RlimitResource,
    pub soft: u64,
    pub hard: u64,
}

/// The resources that a sandbox limits for each process. The names are those of setrlimit(2) without `RLIMIT_`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RlimitResource {
    Core,
    Data,
    Fsize,
    Memlock,
    Msgqueue,
    Nice,
    Nofile,
    Nproc,
    Rtprio,
    Sigpending,
    Stack,
}

/// What Node reserves for compiled code since version 24. It never fills it, but all of it counts as data. The runner gives
/// it to Node and to shells, which start Node; the limit on the sandbox as a whole does not depend on it.
pub const NODE_CODE_RANGE: u64 = 512 * MIB;

/// Returns the limits on each process, which hold beside the limits on the sandbox as a whole.
pub fn rlimits(limits: &SandboxLimits) -> Vec<Rlimit> {
    let both = |resource, value| Rlimit { resource, soft: value, hard: value };
    vec![
        // Not 0: with that limit the kernel still starts a `core_pattern` that is a program, outside and as root. With 1
        // it starts none, and writes no file either.
        both(RlimitResource::Core, 1),
        // An allocation beyond the memory limit fails as an ordinary exception that code can survive. The limit on the
        // sandbox could only kill.
        Rlimit { resource: RlimitResource::Data, soft: limits.memory, hard: limits.memory + NODE_CODE_RANGE },
        both(RlimitResource::Fsize, limits.workspace.max(limits.tmp)),
        both(RlimitResource::Memlock, 64 * KIB),
        both(RlimitResource::Msgqueue, 0),
        // No higher priority than the machine's other programs, and none of real time, also where its user may have them.
        both(RlimitResource::Nice, 0),
        both(RlimitResource::Nofile, 1024),
        // One more than the limit, for the runner.
        both(RlimitResource::Nproc, u64::from(limits.pids) + 1),
        both(RlimitResource::Rtprio, 0),
        both(RlimitResource::Sigpending, 256),
        // Each thread's stack counts against `Data` in full: 4 MiB allow twice as many threads as the usual 8 MiB.
        Rlimit { resource: RlimitResource::Stack, soft: 4 * MIB, hard: 8 * MIB },
    ]
}

/// Returns how many files a file system of `size` bytes may hold. Each file costs kernel memory of its own, so their
/// number is bounded as well as their size.
pub fn inode_limit(size: u64) -> u64 {
    (size / (16 * KIB)).max(64)
}

/// Returns the environment of all code in a sandbox, which has no variable of the host's. `processors` is how many
/// processors the machine has, or 0 if that is unknown.
pub fn environment(limits: &SandboxLimits, processors: u32) -> BTreeMap<String, String> {
    // Our commands come first, because some Python packages install another program called `mcp`.
    let path = format!("{COMMAND_FOLDER}:{SEARCH_PATH}");
    let most = if processors == 0 { f64::INFINITY } else { f64::from(processors) };
    let threads = limits.cpus.min(most).ceil().max(1.0).to_string();
    [
        // Tables for a model may be wider than a terminal's 80 columns. Pandas would leave out columns.
        ("COLUMNS", "200"),
        ("HOME", WORKSPACE),
        ("LANG", "C.UTF-8"),
        ("LOGNAME", "sandbox"),
        // Figures are drawn into files. The cache must be writable, or each import of matplotlib rebuilds it.
        ("MPLBACKEND", "agg"),
        ("MPLCONFIGDIR", "/tmp/matplotlib"),
        // Numeric libraries start a thread for every processor they see, each with its own stack.
        ("OMP_NUM_THREADS", &threads),
        ("OPENBLAS_NUM_THREADS", &threads),
        ("PATH", &path),
        ("TMPDIR", TMP),
        ("TZ", "UTC"),
        ("USER", "sandbox"),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numeric_libraries_start_no_more_threads_than_there_are_processors() {
        let threads = |cpus: f64, processors: u32| {
            let limits = SandboxLimits { memory: 0, cpus, pids: 0, workspace: 0, tmp: 0 };
            environment(&limits, processors)["OMP_NUM_THREADS"].clone()
        };
        for (cpus, processors, expected) in
            [(64.0, 2, "2"), (1.5, 4, "2"), (0.5, 4, "1"), (64.0, 0, "64"), (2.0, 1, "1")]
        {
            assert_eq!(threads(cpus, processors), expected, "{cpus} of {processors}");
        }
    }

    #[test]
    fn the_runner_and_the_commands_are_in_the_folder_of_cove() {
        for path in [RUNNER_PROGRAM, COMMAND_FOLDER] {
            assert!(path.strip_prefix(COVE_FOLDER).is_some_and(|rest| rest.starts_with('/')), "{path}");
        }
    }
}
