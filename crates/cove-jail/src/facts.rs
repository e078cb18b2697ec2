//! What this machine is and allows, as far as a plan depends on it. Plans made from the same facts are the same.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use serde::{Deserialize, Serialize};

/// Where the sandbox's system files come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JailRoot {
    /// The host's own `/usr`.
    Host,
    /// Another tree.
    Tree(PathBuf),
}

impl JailRoot {
    /// Returns the folder on the host that becomes the sandbox's root.
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Host => Path::new("/"),
            Self::Tree(tree) => tree,
        }
    }
}

/// The files of the host's `/etc` that programs need to find their libraries, fonts and certificates. The sandbox sees
/// these as they are; the plan generates the others that it needs.
const SHARED_ETC: &[&str] = &[
    "/etc/alternatives",
    "/etc/fonts",
    "/etc/ld.so.cache",
    "/etc/ssl/certs",
    "/etc/pki/ca-trust/extracted",
    "/etc/pki/tls/certs",
];

/// Everything that a plan needs to know about this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostFacts {
    pub uid: u32,
    pub gid: u32,
    /// The ids that this process may hand out, as `(first, count)`. Outside a container these are all ids.
    pub id_ranges: Vec<(u32, u32)>,
    /// The folders and links at the top of the tree that becomes the sandbox's root.
    pub top: BTreeMap<String, TopEntry>,
    /// Those of `SHARED_ETC` that exist.
    pub etc: Vec<PathBuf>,
    pub cgroup: CgroupFacts,
    /// How many processors this process may use; 0 if that is unknown.
    pub processors: u32,
}

/// One entry at the top of the tree that becomes the sandbox's root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TopEntry {
    Directory,
    Link(PathBuf),
}

/// The cgroups in which this process can limit a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "version", rename_all = "snake_case")]
pub enum CgroupFacts {
    /// A folder in which Cove may make children, and whose children have the memory and pids controllers.
    V2 { parent: PathBuf, cpu: bool },
    /// One folder for each controller.
    V1 { memory: PathBuf, pids: PathBuf, cpu: Option<PathBuf> },
    /// No cgroup, for this reason.
    None { reason: String },
}

impl HostFacts {
    /// Looks at this machine. Fails if the top folder of `root` cannot be read.
    pub fn gather(root: &JailRoot) -> io::Result<Self> {
        let mut top = BTreeMap::new();
        for entry in fs::read_dir(root.path())? {
            let entry = entry?;
            // A name that is not UTF-8 cannot travel in a plan, and no system folder has one.
            let (Ok(name), kind) = (entry.file_name().into_string(), entry.file_type()?) else { continue };
            if kind.is_dir() {
                top.insert(name, TopEntry::Directory);
            } else if kind.is_symlink() {
                top.insert(name, TopEntry::Link(fs::read_link(entry.path())?));
            }
        }
        let etc = SHARED_ETC.iter().map(PathBuf::from).filter(|path| path.exists()).collect();
        Ok(Self {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            id_ranges: parse_id_map(&fs::read_to_string("/proc/self/uid_map").unwrap_or_default()),
            top,
            etc,
            cgroup: CgroupFacts::gather(),
            processors: std::thread::available_parallelism().map_or(0, |count| count.get() as u32),
        })
    }
}

impl CgroupFacts {
    /// Returns what holds a sandbox to its limits here, as `cove explain` and `cove doctor` call it.
    pub fn level(&self) -> &'static str {
        match self {
            Self::V2 { .. } => "cgroup v2",
            Self::V1 { .. } => "cgroup v1",
            Self::None { .. } => "watchdog",
        }
    }

    /// Finds the cgroups that this process may use.
    pub(crate) fn gather() -> Self {
        let (Ok(mounts), Ok(own)) =
            (fs::read_to_string("/proc/self/mountinfo"), fs::read_to_string("/proc/self/cgroup"))
        else {
            return Self::None { reason: "the cgroups of this process cannot be read".into() };
        };
        let hierarchies = parse_hierarchies(&mounts, &own);
        Self::choose(&hierarchies, &writable, &|path| fs::read_to_string(path).unwrap_or_default())
    }

    /// Returns the best kind of cgroup that works here: version 2, then version 1, then none. Memory and pids must both
    /// be limited, or neither is.
    fn choose(
        hierarchies: &BTreeMap<String, CgroupHierarchy>,
        writable: &dyn Fn(&Path) -> bool,
        read: &dyn Fn(&Path) -> String,
    ) -> Self {
        if let Some(unified) = hierarchies.get("") {
            // Look upwards from this process's own folder for the nearest one that gives the controllers to its
            // children, and in which this process may make a child and move processes to it. A folder that holds
            // processes cannot give controllers to its children, unless it is the root, so the own folder rarely
            // qualifies.
            let mut folder = unified.own.as_path();
            while folder.starts_with(&unified.mount) {
                let delegated = read(&folder.join("cgroup.subtree_control"));
                let has = |name: &str| delegated.split_whitespace().any(|controller| controller == name);
                if has("memory") && has("pids") && writable(folder) && writable(&folder.join("cgroup.procs")) {
                    return Self::V2 { parent: folder.to_owned(), cpu: has("cpu") };
                }
                let Some(parent) = folder.parent() else { break };
                folder = parent;
            }
        }
        let v1 = |name: &str| {
            let own = hierarchies.get(name)?.own.clone();
            writable(&own).then_some(own)
        };
        match (v1("memory"), v1("pids")) {
            (Some(memory), Some(pids)) => Self::V1 { memory, pids, cpu: v1("cpu") },
            _ if hierarchies.is_empty() => Self::None { reason: "no cgroup file system is mounted".into() },
            _ => Self::None { reason: "no cgroup with memory and pids limits is delegated to this user".into() },
        }
    }
}

/// One mounted cgroup hierarchy, and this process's own folder in it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct CgroupHierarchy {
    mount: PathBuf,
    own: PathBuf,
}

/// Returns the mounted hierarchies by controller. The unified hierarchy of version 2 has the empty name. See
/// cgroups(7).
fn parse_hierarchies(mountinfo: &str, own_cgroups: &str) -> BTreeMap<String, CgroupHierarchy> {
    let mut own_paths = BTreeMap::new();
    for line in own_cgroups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        if let (Some(controllers), Some(path)) = (parts.next(), parts.next()) {
            for controller in controllers.split(',') {
                own_paths.insert(controller.to_owned(), path.to_owned());
            }
        }
    }
    let mut found = BTreeMap::new();
    for line in mountinfo.lines() {
        let Some((mount, source)) = line.split_once(" - ") else { continue };
        let mount: Vec<&str> = mount.split(' ').collect();
        let source: Vec<&str> = source.split(' ').collect();
        let (Some(&root), Some(&point), Some(&kind)) = (mount.get(3), mount.get(4), source.first()) else {
            continue;
        };
        let controllers: Vec<&str> = match kind {
            "cgroup2" => vec![""],
            "cgroup" => source.get(2).map(|options| options.split(',').collect()).unwrap_or_default(),
            _ => continue,
        };
        for controller in controllers {
            let Some(path) = own_paths.get(controller) else { continue };
            // In a container the mount shows only the part of the hierarchy below `root`.
            let below = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
            let below = below.strip_prefix("/").unwrap_or(below);
            let hierarchy = CgroupHierarchy { mount: point.into(), own: Path::new(point).join(below) };
            found.insert(controller.to_owned(), hierarchy);
        }
    }
    found
}

fn writable(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok()
}

/// Reads `/proc/self/uid_map`, whose lines are: first id inside, first id outside, count. See user_namespaces(7).
fn parse_id_map(text: &str) -> Vec<(u32, u32)> {
    text.lines()
        .filter_map(|line| {
            let mut numbers = line.split_whitespace().map(str::parse::<u32>);
            let (first, _, count) = (numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?);
            Some((first, count))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID_MOUNTS: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
    const UNIFIED_MOUNTS: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

    /// Chooses for a machine with these files. `delegated` has the content of `cgroup.subtree_control` by folder.
    fn choose(mounts: &str, own: &str, writable: &[&str], delegated: &[(&str, &str)]) -> CgroupFacts {
        let hierarchies = parse_hierarchies(mounts, own);
        CgroupFacts::choose(&hierarchies, &|path| writable.iter().any(|w| path == Path::new(w)), &|path| {
            let found = delegated.iter().find(|(folder, _)| path == Path::new(folder).join("cgroup.subtree_control"));
            found.map(|(_, text)| (*text).to_owned()).unwrap_or_default()
        })
    }

    #[test]
    fn root_on_a_hybrid_machine_gets_cgroup_v1() {
        let own = "8:pids:/\n4:memory:/jobs/7\n1:cpu,cpuacct:/\n0::/\n";
        let facts = choose(
            HYBRID_MOUNTS,
            own,
            &["/sys/fs/cgroup/memory/jobs/7", "/sys/fs/cgroup/pids", "/sys/fs/cgroup/cpu,cpuacct"],
            &[],
        );
        assert_eq!(
            facts,
            CgroupFacts::V1 {
                memory: "/sys/fs/cgroup/memory/jobs/7".into(),
                pids: "/sys/fs/cgroup/pids".into(),
                cpu: Some("/sys/fs/cgroup/cpu,cpuacct".into()),
            }
        );
    }

    #[test]
    fn memory_without_pids_is_not_used() {
        let own = "8:pids:/\n4:memory:/\n0::/\n";
        let facts = choose(HYBRID_MOUNTS, own, &["/sys/fs/cgroup/memory"], &[]);
        assert!(matches!(facts, CgroupFacts::None { .. }), "{facts:?}");
    }

    #[test]
    fn a_user_under_a_delegating_service_gets_cgroup_v2_beside_their_own_scope() {
        let own = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/term.scope\n";
        let app = "/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/app.slice";
        let facts = choose(
            UNIFIED_MOUNTS,
            own,
            &[app, &format!("{app}/cgroup.procs"), &format!("{app}/term.scope")],
            &[(app, "cpu memory pids\n")],
        );
        assert_eq!(facts, CgroupFacts::V2 { parent: app.into(), cpu: true });
    }

    #[test]
    fn a_user_without_delegation_gets_no_cgroup() {
        let own = "0::/user.slice/user-1000.slice/session-1.scope\n";
        let facts = choose(UNIFIED_MOUNTS, own, &[], &[("/sys/fs/cgroup/user.slice", "memory pids")]);
        assert!(matches!(facts, CgroupFacts::None { .. }), "{facts:?}");
    }

    #[test]
    fn a_container_sees_its_own_part_of_the_hierarchy() {
        let mounts = "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        let found = parse_hierarchies(mounts, "4:memory:/docker/abc/inner\n");
        assert_eq!(found["memory"].own, Path::new("/sys/fs/cgroup/memory/inner"));
    }

    #[test]
    fn reads_the_id_maps_of_a_machine_and_of_a_container() {
        assert_eq!(parse_id_map("         0          0 4294967295\n"), [(0, u32::MAX)]);
        assert_eq!(parse_id_map("0 1000 1\n1 100000 65536\n"), [(0, 1), (1, 65536)]);
        assert_eq!(parse_id_map("nonsense"), []);
    }
}
