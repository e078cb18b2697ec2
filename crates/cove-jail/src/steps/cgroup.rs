//! cgroups(7): limits on the sandbox as a whole, where this process may set them. The jail process outside the sandbox
//! makes the cgroups, and is never under their limits itself.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;

use crate::facts::CgroupFacts;
use crate::plan::LimitEnforcement;
use crate::report::{JailStep, StepContext, StepFailure};
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
        let mut cgroups = Self { folders: Vec::new(), entrance: CgroupEntrance::None, kills: None };
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
                let fd = open(&folder, OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
                    .during(JailStep::Cgroup, || "open the cgroup".into())?;
                cgroups.entrance = CgroupEntrance::AtClone(fd);
            }
            CgroupFacts::V1 { memory, pids, cpu } => {
                let folder = cgroups.add(memory)?;
                set(&folder, "memory.limit_in_bytes", control.memory)?;
                set_if_there(&folder, "memory.memsw.limit_in_bytes", control.memory)?;
                cgroups.kills = Some(folder.join("memory.oom_control"));
                // Two controllers may share one hierarchy, and then one folder.
                let pids = if pids == memory { folder } else { cgroups.add(pids)? };
                set(&pids, "pids.max", control.pids)?;
                if let Some(cpu) = cpu {
                    let folder = cgroups.add(cpu)?;
                    set(&folder, "cpu.cfs_period_us", PERIOD_MICROS)?;
                    set(&folder, "cpu.cfs_quota_us", cpu_quota)?;
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

    /// Returns whether the kernel has killed anything in these cgroups for memory.
    pub(crate) fn killed_for_memory(&self) -> bool {
        let text = self.kills.as_ref().and_then(|file| fs::read_to_string(file).ok()).unwrap_or_default();
        text.lines().any(|line| line.strip_prefix("oom_kill ").is_some_and(|count| count.trim() != "0"))
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
