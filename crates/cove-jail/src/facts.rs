//! What this machine is and allows, as far as a plan depends on it. Read once; a plan made from the same facts is the
//! same plan.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use serde::{Deserialize, Serialize};

use crate::plan::Root;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostFacts {
    pub uid: u32,
    pub gid: u32,
    /// The ids this process may hand out, as `(first, count)`: all of them outside a container.
    pub id_ranges: Vec<(u32, u32)>,
    /// The top folder of the tree that becomes the sandbox's root.
    pub top: BTreeMap<String, TopEntry>,
    /// Which of `plan::SHARED_ETC` exist.
    pub etc: Vec<PathBuf>,
    pub cgroup: CgroupFacts,
    /// Those that this process may use; 0 where nobody knows.
    pub processors: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TopEntry {
    Directory,
    Link(PathBuf),
}

/// Where limits can be hung up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "version", rename_all = "snake_case")]
pub enum CgroupFacts {
    /// A folder whose children get the memory and pids controllers, and may be ours.
    V2 {
        parent: PathBuf,
        cpu: bool,
    },
    /// One folder a controller.
    V1 {
        memory: PathBuf,
        pids: PathBuf,
        cpu: Option<PathBuf>,
    },
    None {
        reason: String,
    },
}

impl HostFacts {
    pub fn gather(root: &Root) -> io::Result<Self> {
        let top_of = match root {
            Root::Host => Path::new("/"),
            Root::Tree(tree) => tree,
        };
        let mut top = BTreeMap::new();
        for entry in fs::read_dir(top_of)? {
            let entry = entry?;
            let (Ok(name), kind) = (entry.file_name().into_string(), entry.file_type()?) else { continue };
            if kind.is_dir() {
                top.insert(name, TopEntry::Directory);
            } else if kind.is_symlink() {
                top.insert(name, TopEntry::Link(fs::read_link(entry.path())?));
            }
        }
        let etc = crate::plan::SHARED_ETC.iter().map(PathBuf::from).filter(|path| path.exists()).collect();
        Ok(Self {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            id_ranges: parse_id_map(&fs::read_to_string("/proc/self/uid_map").unwrap_or_default()),
            top,
            etc,
            cgroup: CgroupFacts::gather(),
            processors: std::thread::available_parallelism()
                .map_or(0, |count| u32::try_from(count.get()).unwrap_or(u32::MAX)),
        })
    }
}

impl CgroupFacts {
    /// What holds a sandbox to its limits here, in the words of `cove explain` and `cove doctor`.
    pub fn level(&self) -> &'static str {
        match self {
            Self::V2 { .. } => "cgroup v2",
            Self::V1 { .. } => "cgroup v1",
            Self::None { .. } => "watchdog",
        }
    }

    pub(crate) fn gather() -> Self {
        let (Ok(mounts), Ok(own)) =
            (fs::read_to_string("/proc/self/mountinfo"), fs::read_to_string("/proc/self/cgroup"))
        else {
            return Self::None { reason: "this process's cgroups cannot be read".into() };
        };
        let hierarchies = parse_hierarchies(&mounts, &own);
        Self::choose(&hierarchies, &writable, &|path| fs::read_to_string(path).unwrap_or_default())
    }

    /// The highest rung of the ladder that really works here; memory and pids both, or none.
    fn choose(
        hierarchies: &BTreeMap<String, Hierarchy>,
        writable: &dyn Fn(&Path) -> bool,
        read: &dyn Fn(&Path) -> String,
    ) -> Self {
        if let Some(unified) = hierarchies.get("") {
            // The nearest folder above us that hands the controllers to its children, and lets us add one and move
            // processes into it. Our own folder comes last: it holds processes, so only the top may hand down.
            let mut folder = unified.own.as_path();
            while folder.starts_with(&unified.mount) {
                let handed = read(&folder.join("cgroup.subtree_control"));
                let has = |name: &str| handed.split_whitespace().any(|controller| controller == name);
                if has("memory") && has("pids") && writable(folder) && writable(&folder.join("cgroup.procs"))
                {
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
            _ => Self::None {
                reason: "no cgroup with memory and pids limits is delegated to this user".into(),
            },
        }
    }
}

/// One mounted cgroup hierarchy, and this process's own place in it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Hierarchy {
    mount: PathBuf,
    own: PathBuf,
}

/// By controller; the unified hierarchy of version 2 has the empty name. See cgroups(7).
fn parse_hierarchies(mountinfo: &str, own_cgroups: &str) -> BTreeMap<String, Hierarchy> {
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
            let hierarchy = Hierarchy { mount: point.into(), own: Path::new(point).join(below) };
            found.insert(controller.to_owned(), hierarchy);
        }
    }
    found
}

fn writable(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok()
}

/// `/proc/self/uid_map`: inside first, outside first, count. See user_namespaces(7).
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

    fn check(mounts: &str, own: &str, writable: &[&str], handed: &[(&str, &str)]) -> CgroupFacts {
        let hierarchies = parse_hierarchies(mounts, own);
        CgroupFacts::choose(&hierarchies, &|path| writable.iter().any(|w| path == Path::new(w)), &|path| {
            let found =
                handed.iter().find(|(folder, _)| path == Path::new(folder).join("cgroup.subtree_control"));
            found.map(|(_, text)| (*text).to_owned()).unwrap_or_default()
        })
    }

    #[test]
    fn root_on_a_hybrid_machine_gets_version_1() {
        let own = "8:pids:/\n4:memory:/jobs/7\n1:cpu,cpuacct:/\n0::/\n";
        let facts = check(
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
    fn memory_without_pids_is_none() {
        let own = "8:pids:/\n4:memory:/\n0::/\n";
        let facts = check(HYBRID_MOUNTS, own, &["/sys/fs/cgroup/memory"], &[]);
        assert!(matches!(facts, CgroupFacts::None { .. }), "{facts:?}");
    }

    #[test]
    fn a_user_under_a_delegating_service_gets_version_2_beside_their_own_scope() {
        let own = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/term.scope\n";
        let app = "/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/app.slice";
        let facts = check(
            UNIFIED_MOUNTS,
            own,
            &[app, &format!("{app}/cgroup.procs"), &format!("{app}/term.scope")],
            &[(app, "cpu memory pids\n")],
        );
        assert_eq!(facts, CgroupFacts::V2 { parent: app.into(), cpu: true });
    }

    #[test]
    fn a_user_without_delegation_gets_none() {
        let own = "0::/user.slice/user-1000.slice/session-1.scope\n";
        let facts = check(UNIFIED_MOUNTS, own, &[], &[("/sys/fs/cgroup/user.slice", "memory pids")]);
        assert!(matches!(facts, CgroupFacts::None { .. }), "{facts:?}");
    }

    #[test]
    fn a_container_sees_its_own_part_of_the_hierarchy() {
        let mounts = "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        let found = parse_hierarchies(mounts, "4:memory:/docker/abc/inner\n");
        assert_eq!(found["memory"].own, Path::new("/sys/fs/cgroup/memory/inner"));
    }

    #[test]
    fn id_maps_of_a_machine_and_of_a_container() {
        assert_eq!(parse_id_map("         0          0 4294967295\n"), [(0, u32::MAX)]);
        assert_eq!(parse_id_map("0 1000 1\n1 100000 65536\n"), [(0, 1), (1, 65536)]);
        assert_eq!(parse_id_map("nonsense"), []);
    }
}
