//! What this machine is and allows, as far as a plan depends on it. Plans made from the same facts are the same.

mod subordinate_ids;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use serde::{Deserialize, Serialize};

use crate::guest::{MountAccess, SandboxMount};
pub use subordinate_ids::SubordinateIds;
use subordinate_ids::find_closed;
pub(crate) use subordinate_ids::user_name;

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

/// Folders of another tree that the sandbox replaces with its own.
pub(crate) const REPLACED_FOLDERS: &[&str] =
    &["proc", "sys", "dev", "tmp", "run", "workspace", ".cove", "root", "home", "lost+found"];

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
    /// The ids that an ordinary user may give to sandboxes, or the reason why there are none.
    pub subordinate: Result<SubordinateIds, String>,
    /// Why a sandbox needs the id of the user, if it does: with another it could not use all that it is given.
    pub needs_own_id: Option<String>,
    /// The folders and links at the top of the tree that becomes the sandbox's root.
    pub top: BTreeMap<String, TopEntry>,
    /// Those of `SHARED_ETC` that exist.
    pub etc: Vec<PathBuf>,
    pub cgroup: CgroupFacts,
    /// The kernel's limits on what it counts for each user in each user namespace: the files of `/proc/sys/user`.
    pub user_limits: BTreeMap<String, u64>,
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
        let uid = rustix::process::geteuid().as_raw();
        Ok(Self {
            uid,
            gid: rustix::process::getegid().as_raw(),
            id_ranges: parse_id_map(&fs::read_to_string("/proc/self/uid_map").unwrap_or_default()),
            subordinate: SubordinateIds::gather(uid),
            needs_own_id: None,
            top,
            etc,
            cgroup: CgroupFacts::gather(),
            user_limits: read_user_limits(),
            processors: std::thread::available_parallelism().map_or(0, |count| count.get() as u32),
        })
    }

    /// Looks at what an ordinary user's sandbox is given: with a subordinate id it could not write to the user's files,
    /// nor read those that are closed to others.
    pub fn look_at_files(&mut self, root: &JailRoot, runner: &Path, mounts: &[SandboxMount]) {
        if self.uid == 0 || self.subordinate.is_err() {
            return;
        }
        let writable = mounts.iter().find(|mount| mount.access == MountAccess::ReadWrite);
        let mut sources = vec![runner.to_owned()];
        sources.extend(mounts.iter().map(|mount| mount.source.clone()));
        if let JailRoot::Tree(tree) = root {
            let shown = self.top.keys().filter(|name| !REPLACED_FOLDERS.contains(&name.as_str()));
            sources.extend(shown.map(|name| tree.join(name)));
        }
        self.needs_own_id = match writable {
            Some(mount) => Some(format!("`{}` is mounted writable", mount.source.display())),
            None => find_closed(&sources),
        };
    }
}

/// Returns whether a sandbox with a subordinate id could use all that this user can in these mounts. It may change while
/// a host lives.
pub fn are_open_to_others(mounts: &[SandboxMount]) -> bool {
    let sources: Vec<PathBuf> = mounts.iter().map(|mount| mount.source.clone()).collect();
    find_closed(&sources).is_none()
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
        let Some(hierarchies) = own_hierarchies() else {
            return Self::None { reason: "the cgroups of this process cannot be read".into() };
        };
        Self::choose(&hierarchies, &writable, &|path| fs::read_to_string(path).unwrap_or_default())
    }

    /// Returns this process's own cgroup of version 2 if it is delegated to this user with the controllers that a
    /// sandbox needs, and nothing but the processes in it keeps Cove from dividing it.
    pub(crate) fn undivided() -> Option<PathBuf> {
        if !matches!(Self::gather(), Self::None { .. }) {
            return None;
        }
        let own = own_hierarchies()?.remove("")?.own;
        can_be_divided(&own).then_some(own)
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
            for folder in unified.up_to_the_mount() {
                let delegated = read(&folder.join("cgroup.subtree_control"));
                let has = |name: &str| delegated.split_whitespace().any(|controller| controller == name);
                if has("memory") && has("pids") && writable(folder) && writable(&folder.join("cgroup.procs")) {
                    return Self::V2 { parent: folder.to_owned(), cpu: has("cpu") };
                }
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

/// Returns whether this user may divide a cgroup of version 2 among sandboxes. The cgroup at the top of the machine, which
/// has no `cgroup.type`, belongs to the machine's own manager.
fn can_be_divided(folder: &Path) -> bool {
    let controllers = fs::read_to_string(folder.join("cgroup.controllers")).unwrap_or_default();
    let has = |name: &str| controllers.split_whitespace().any(|controller| controller == name);
    let files = ["", "cgroup.procs", "cgroup.subtree_control"];
    folder.join("cgroup.type").exists()
        && has("memory")
        && has("pids")
        && files.iter().all(|file| writable(&folder.join(file)))
}

/// Returns the folders of the cgroups that may limit the memory of this process: its own, and those above it as far as
/// they are mounted here.
pub fn own_memory_cgroups() -> Vec<PathBuf> {
    let hierarchies = own_hierarchies().unwrap_or_default();
    // Version 2, and the controller of version 1.
    let found = ["", "memory"].into_iter().filter_map(|controller| hierarchies.get(controller));
    found.flat_map(CgroupHierarchy::up_to_the_mount).map(Path::to_owned).collect()
}

fn own_hierarchies() -> Option<BTreeMap<String, CgroupHierarchy>> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    Some(parse_hierarchies(&mounts, &fs::read_to_string("/proc/self/cgroup").ok()?))
}

/// One mounted cgroup hierarchy, and this process's own folder in it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct CgroupHierarchy {
    mount: PathBuf,
    own: PathBuf,
}

impl CgroupHierarchy {
    fn up_to_the_mount(&self) -> impl Iterator<Item = &Path> {
        self.own.ancestors().take_while(|folder| folder.starts_with(&self.mount))
    }
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

/// Reads the files of `/proc/sys/user`. Older kernels have fewer.
fn read_user_limits() -> BTreeMap<String, u64> {
    let files = fs::read_dir("/proc/sys/user").into_iter().flatten().flatten();
    let limit = |file: fs::DirEntry| {
        let value = fs::read_to_string(file.path()).ok()?.trim().parse().ok()?;
        Some((file.file_name().into_string().ok()?, value))
    };
    files.filter_map(limit).collect()
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
    fn a_delegated_cgroup_can_be_divided() {
        let tree = tempfile::tempdir().unwrap();
        let service = tree.path();
        assert!(!can_be_divided(service), "it has no files");
        for (file, text) in [
            ("cgroup.type", "domain\n"),
            ("cgroup.procs", "1\n"),
            ("cgroup.subtree_control", "\n"),
            ("cgroup.controllers", "cpu memory pids\n"),
        ] {
            assert!(!can_be_divided(service), "`{file}` is missing");
            fs::write(service.join(file), text).unwrap();
        }
        assert!(can_be_divided(service));
        fs::write(service.join("cgroup.controllers"), "cpu memory\n").unwrap();
        assert!(!can_be_divided(service), "there is no pids controller");
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
        let folders: Vec<&Path> = found["memory"].up_to_the_mount().collect();
        assert_eq!(folders, ["/sys/fs/cgroup/memory/inner", "/sys/fs/cgroup/memory"].map(Path::new));
    }

    #[test]
    fn reads_the_id_maps_of_a_machine_and_of_a_container() {
        assert_eq!(parse_id_map("         0          0 4294967295\n"), [(0, u32::MAX)]);
        assert_eq!(parse_id_map("0 1000 1\n1 100000 65536\n"), [(0, 1), (1, 65536)]);
        assert_eq!(parse_id_map("nonsense"), []);
    }
}
