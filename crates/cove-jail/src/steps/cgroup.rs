//! cgroups(7): limits on the sandbox as a whole, where this process may set them. The jail process outside the sandbox
//! makes the cgroups, and is never under their limits itself.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;

use crate::facts::CgroupFacts;
use crate::plan::LimitEnforcement;
use crate::report::{JailStep, StepContext, StepFailure, read_kill_counter};
use crate::steps::random_number;

const PREFIX: &str = "cove-";
/// The period over which processor time is accounted: short enough that a throttled sandbox still answers.
const PERIOD_MICROS: u64 = 100_000;

/// The cgroups of one sandbox. Dropping it removes them; everything inside must be gone by then.
pub(crate) struct SandboxCgroups {
    folders: Vec<CgroupFolder>,
    entrance: CgroupEntrance,
    /// The file that counts processes killed for memory.
    kills: Option<PathBuf>,
    /// A file that changes whenever a process in the cgroup has run.
    activity: Option<fs::File>,
    /// The folder of version 1 that counts what TCP connections hold apart from memory.
    counts_tcp: Option<PathBuf>,
}

/// How the sandbox's first process gets into the cgroups. If this process moved it there, the kernel would wait for an
/// RCU grace period, ten milliseconds and more. A process that is cloned into a cgroup, or moves itself, need not wait.
enum CgroupEntrance {
    /// There is no cgroup.
    None,
    /// Version 2: clone3(2) takes the folder.
    AtClone(OwnedFd),
    /// Version 1: the child writes to these `tasks` files. This process opens them, and the kernel checks the rights of
    /// the process that opened them.
    ByChild(Vec<OwnedFd>),
}

struct CgroupFolder {
    path: PathBuf,
    /// Held while the sandbox lives. A folder that another process can lock is abandoned: see `sweep`.
    _lock: OwnedFd,
}

impl SandboxCgroups {
    /// Makes the cgroups and sets their limits. If it fails, it removes those that it has made.
    pub(crate) fn create(control: &LimitEnforcement) -> Result<Self, StepFailure> {
        let mut cgroups =
            Self { folders: Vec::new(), entrance: CgroupEntrance::None, kills: None, activity: None, counts_tcp: None };
        let cpu_quota = (control.cpus * PERIOD_MICROS as f64) as u64;
        match &control.place {
            CgroupFacts::None { .. } => {}
            CgroupFacts::V2 { parent, cpu } => {
                let folder = cgroups.add(parent)?;
                set(&folder, "memory.max", control.memory)?;
                set_if_there(&folder, "memory.swap.max", 0)?;
                set(&folder, "pids.max", control.pids)?;
                if *cpu {
                    set(&folder, "cpu.max", format!("{cpu_quota} {PERIOD_MICROS}"))?;
                }
                cgroups.kills = Some(folder.join("memory.events"));
                cgroups.activity = fs::File::open(folder.join("cpu.stat")).ok();
                let fd = open(&folder, OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
                    .during(JailStep::Cgroup, || "open the cgroup".into())?;
                cgroups.entrance = CgroupEntrance::AtClone(fd);
            }
            CgroupFacts::V1 { memory, pids, cpu } => {
                let folder = cgroups.add(memory)?;
                set(&folder, "memory.limit_in_bytes", control.memory)?;
                set_if_there(&folder, "memory.memsw.limit_in_bytes", control.memory)?;
                // The kernel lets every connection have a little more. `exceeds_with_tcp` finds that.
                set_if_there(&folder, "memory.kmem.tcp.limit_in_bytes", control.memory)?;
                cgroups.counts_tcp = Some(folder.clone());
                cgroups.kills = Some(folder.join("memory.oom_control"));
                // Two controllers may share one hierarchy, and then one folder.
                let pids = if pids == memory { folder } else { cgroups.add(pids)? };
                set(&pids, "pids.max", control.pids)?;
                if let Some(cpu) = cpu {
                    let folder = cgroups.add(cpu)?;
                    set(&folder, "cpu.cfs_period_us", PERIOD_MICROS)?;
                    match set(&folder, "cpu.cfs_quota_us", cpu_quota) {
                        // A cgroup above permits less, which holds for this one too. The kernel then refuses more.
                        Err(failure) if failure.errno == Some(Errno::INVAL.raw_os_error()) => {}
                        Err(failure) => return Err(failure),
                        // With a quota it counts the periods in which a process ran.
                        Ok(()) => cgroups.activity = fs::File::open(folder.join("cpu.stat")).ok(),
                    }
                }
                let open_tasks = |folder: &CgroupFolder| {
                    open(folder.path.join("tasks"), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
                        .during(JailStep::Cgroup, || format!("open `{}/tasks`", folder.path.display()))
                };
                let tasks = cgroups.folders.iter().map(open_tasks).collect::<Result<_, _>>()?;
                cgroups.entrance = CgroupEntrance::ByChild(tasks);
            }
        }
        Ok(cgroups)
    }

    /// Makes and locks a folder with a random name, and returns its path.
    fn add(&mut self, parent: &Path) -> Result<PathBuf, StepFailure> {
        loop {
            let path = parent.join(format!("{PREFIX}{:016x}", random_number(JailStep::Cgroup)?));
            let action = || format!("create the cgroup `{}`", path.display());
            fs::create_dir(&path).during(JailStep::Cgroup, action)?;
            match lock(&path) {
                // A sweep in another process had locked it between `create_dir` and `lock`, and has removed it by now.
                Ok(_) if !path.exists() => {}
                Ok(lock) => {
                    self.folders.push(CgroupFolder { path: path.clone(), _lock: lock });
                    return Ok(path);
                }
                // A sweep in another process took it for abandoned before `lock` was called.
                Err(Errno::NOENT | Errno::WOULDBLOCK) => {}
                Err(error) => return Err(StepFailure::new(JailStep::Cgroup, action(), error)),
            }
        }
    }

    /// Returns the cgroup folder for clone3(2), if the child is to be cloned into one.
    pub(crate) fn clone_target(&self) -> Option<BorrowedFd<'_>> {
        match &self.entrance {
            CgroupEntrance::AtClone(folder) => Some(folder.as_fd()),
            CgroupEntrance::ByChild(_) | CgroupEntrance::None => None,
        }
    }

    /// In the child, before anything else: moves this process into the cgroups, unless it was cloned into one.
    pub(crate) fn join(&self) -> Result<(), StepFailure> {
        let CgroupEntrance::ByChild(files) = &self.entrance else { return Ok(()) };
        files.iter().try_for_each(|tasks| {
            rustix::io::write(tasks, b"0").during(JailStep::Cgroup, || "enter the cgroup".into()).map(drop)
        })
    }

    /// Returns the file that counts processes killed for memory.
    pub(crate) fn kill_counter(&self) -> Option<&Path> {
        self.kills.as_deref()
    }

    /// Returns text that changes whenever a process in these cgroups has run, or `None` if they do not say. It takes one
    /// system call.
    pub(crate) fn read_activity(&self) -> Option<[u8; 128]> {
        let mut text = [0; 128];
        self.activity.as_ref()?.read_at(&mut text, 0).ok().filter(|length| *length > 0)?;
        Some(text)
    }

    /// Returns whether a sandbox uses more than `limit` together with what its TCP connections hold, which version 1 does
    /// not count as memory. It need not look at the rest before they hold a part that ordinary programs do not reach:
    /// what the kernel could free is only partly known.
    pub(crate) fn exceeds_with_tcp(&self, limit: u64) -> bool {
        let Some(folder) = &self.counts_tcp else { return false };
        let read = |file: &str| fs::read_to_string(folder.join(file)).unwrap_or_default();
        let number = |file: &str| read(file).trim().parse::<u64>().unwrap_or(0);
        let tcp = number("memory.kmem.tcp.usage_in_bytes");
        if tcp <= limit / 4 {
            return false;
        }
        let stat = read("memory.stat");
        let files = stat.lines().filter_map(|line| {
            let (key, bytes) = line.split_once(' ')?;
            matches!(key, "inactive_file" | "active_file").then(|| bytes.parse::<u64>().ok())?
        });
        number("memory.usage_in_bytes").saturating_sub(files.sum()) + tcp > limit
    }

    /// Returns whether the kernel has killed anything in these cgroups for memory.
    pub(crate) fn killed_for_memory(&self) -> bool {
        self.kills.as_deref().and_then(read_kill_counter).is_some_and(|kills| kills > 0)
    }
}

impl Drop for SandboxCgroups {
    fn drop(&mut self) {
        for folder in &self.folders {
            // After the last process has been reaped, the kernel may need a moment to empty the cgroup.
            for _ in 0..50 {
                if fs::remove_dir(&folder.path).is_ok() || !folder.path.exists() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }
}

fn set(folder: &Path, file: &str, value: impl ToString) -> Result<(), StepFailure> {
    let path = folder.join(file);
    fs::write(&path, value.to_string()).during(JailStep::Cgroup, || format!("write `{}`", path.display()))
}

/// Sets a limit on swap. Kernels without swap accounting lack these files.
fn set_if_there(folder: &Path, file: &str, value: u64) -> Result<(), StepFailure> {
    if folder.join(file).exists() { set(folder, file, value) } else { Ok(()) }
}

/// Locks a folder without waiting. Fails if another process holds the lock.
fn lock(folder: &Path) -> rustix::io::Result<OwnedFd> {
    let fd = open(folder, OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    flock(&fd, FlockOperation::NonBlockingLockExclusive)?;
    Ok(fd)
}

/// The child of a delegated cgroup that Cove's own processes move to.
const OWN_CHILD: &str = "cove.self";

/// Prepares a cgroup of version 2 that was delegated to this user for sandboxes. The kernel gives controllers only to the
/// children of a cgroup without processes, so everything in it moves to a child of its own first. Fails, and undoes that,
/// if the kernel refuses.
pub(crate) fn divide(delegated: &Path) -> std::io::Result<()> {
    let child = delegated.join(OWN_CHILD);
    if let Err(error) = fs::create_dir(&child)
        && error.kind() != std::io::ErrorKind::AlreadyExists
    {
        return Err(error);
    }
    let divided = move_processes(delegated, &child).and_then(|()| {
        let controllers = fs::read_to_string(delegated.join("cgroup.controllers"))?;
        let cpu = if controllers.split_whitespace().any(|name| name == "cpu") { " +cpu" } else { "" };
        fs::write(delegated.join("cgroup.subtree_control"), format!("+memory +pids{cpu}"))
    });
    if divided.is_err() {
        let _ = move_processes(&child, delegated);
        let _ = fs::remove_dir(&child);
    }
    divided
}

/// Moves all processes of a cgroup to another. A process that has ended meanwhile does not matter.
fn move_processes(from: &Path, to: &Path) -> std::io::Result<()> {
    for process in fs::read_to_string(from.join("cgroup.procs"))?.lines() {
        match fs::write(to.join("cgroup.procs"), process) {
            Err(error) if error.raw_os_error() != Some(Errno::SRCH.raw_os_error()) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Removes the cgroups of jail processes that were killed before they could clean up. Returns how many folders it
/// removed.
pub(crate) fn sweep(place: &CgroupFacts) -> usize {
    let parents: Vec<&PathBuf> = match place {
        CgroupFacts::None { .. } => vec![],
        CgroupFacts::V2 { parent, .. } => vec![parent],
        CgroupFacts::V1 { memory, pids, cpu } => {
            [Some(memory), Some(pids), cpu.as_ref()].into_iter().flatten().collect()
        }
    };
    let mut removed = 0;
    for parent in parents {
        let Ok(entries) = fs::read_dir(parent) else { continue };
        for entry in entries.flatten() {
            let ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
            // A live jail process holds the lock, and the kernel refuses to remove a folder with processes in it.
            if ours && lock(&entry.path()).is_ok() && fs::remove_dir(entry.path()).is_ok() {
                removed += 1;
            }
        }
    }
    removed
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with the files of a cgroup. In a real one, the kernel makes them and moves the processes.
    fn fake_cgroup(parent: &Path, name: &str, processes: &str) -> PathBuf {
        let folder = parent.join(name);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("cgroup.procs"), processes).unwrap();
        fs::write(folder.join("cgroup.controllers"), "cpuset cpu io memory pids\n").unwrap();
        folder
    }

    #[test]
    fn tcp_connections_count_where_they_hold_much() {
        let tree = tempfile::tempdir().unwrap();
        let cgroups = SandboxCgroups {
            folders: Vec::new(),
            entrance: CgroupEntrance::None,
            kills: None,
            activity: None,
            counts_tcp: Some(tree.path().into()),
        };
        assert!(!cgroups.exceeds_with_tcp(100), "without these files");
        fs::write(tree.path().join("memory.stat"), "cache 50\ninactive_file 20\nactive_file 10\n").unwrap();
        fs::write(tree.path().join("memory.usage_in_bytes"), "99\n").unwrap();
        for (tcp, exceeds) in [(25, false), (31, false), (32, true)] {
            fs::write(tree.path().join("memory.kmem.tcp.usage_in_bytes"), format!("{tcp}\n")).unwrap();
            assert_eq!(cgroups.exceeds_with_tcp(100), exceeds, "{tcp}");
        }
        fs::write(tree.path().join("memory.usage_in_bytes"), "130\n").unwrap();
        fs::write(tree.path().join("memory.kmem.tcp.usage_in_bytes"), "25\n").unwrap();
        assert!(!cgroups.exceeds_with_tcp(100), "too little to say so");
    }

    #[test]
    fn divides_a_delegated_cgroup() {
        let tree = tempfile::tempdir().unwrap();
        let service = fake_cgroup(tree.path(), "cove.service", "4711\n");
        divide(&service).unwrap();
        let read = |file: &str| fs::read_to_string(service.join(file)).unwrap();
        assert_eq!(read("cove.self/cgroup.procs"), "4711");
        assert_eq!(read("cgroup.subtree_control"), "+memory +pids +cpu");
        // Another Cove in the same cgroup finds it divided already.
        divide(&service).unwrap();
        fs::write(service.join("cgroup.controllers"), "memory pids\n").unwrap();
        divide(&service).unwrap();
        assert_eq!(read("cgroup.subtree_control"), "+memory +pids");
    }

    #[test]
    fn moves_back_if_a_cgroup_cannot_be_divided() {
        let tree = tempfile::tempdir().unwrap();
        let service = fake_cgroup(tree.path(), "cove.service", "4711\n");
        // The kernel answers EBUSY while there are processes; a folder answers EISDIR.
        fs::create_dir(service.join("cgroup.subtree_control")).unwrap();
        assert!(divide(&service).is_err());
        assert_eq!(fs::read_to_string(service.join("cgroup.procs")).unwrap(), "4711");
        assert!(divide(&tree.path().join("missing")).is_err());
    }

    /// The real kernel, where root can make a cgroup of version 2. Its controllers may all belong to version 1 here, so
    /// this shows only that processes move and move back.
    #[test]
    fn a_real_cgroup_without_controllers_is_left_as_it_was() {
        let Some(top) = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"]
            .map(Path::new)
            .into_iter()
            .find(|top| top.join("cgroup.procs").exists() && rustix::process::geteuid().is_root())
        else {
            return;
        };
        let service = top.join(format!("cove.test.{}", std::process::id()));
        if fs::create_dir(&service).is_err() {
            return;
        }
        let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        fs::write(service.join("cgroup.procs"), sleeper.id().to_string()).unwrap();
        let is_divided = divide(&service).is_ok();
        let own = if is_divided { service.join(OWN_CHILD) } else { service.clone() };
        assert_eq!(fs::read_to_string(own.join("cgroup.procs")).unwrap().trim(), sleeper.id().to_string());
        assert_eq!(service.join(OWN_CHILD).exists(), is_divided);
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        let _ = fs::remove_dir(service.join(OWN_CHILD));
        for _ in 0..100 {
            if fs::remove_dir(&service).is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
