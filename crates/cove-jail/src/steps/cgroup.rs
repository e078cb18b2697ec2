//! cgroups(7): limits on the sandbox as a whole, where this process may set them. Carried out by the jail process
//! outside the sandbox, which is never under the limits itself.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;

use crate::facts::CgroupFacts;
use crate::plan::Control;
use crate::report::{During, Step, StepFailure};

const PREFIX: &str = "cove-";
/// Of cpu time; short enough that a throttled sandbox still answers.
const PERIOD_MICROS: u64 = 100_000;

/// The cgroups of one sandbox; dropping it removes them, once everything inside is gone.
pub(crate) struct Cgroups {
    folders: Vec<Folder>,
    door: Door,
    /// The file that counts kills for memory.
    kills: Option<PathBuf>,
}

/// How the sandbox's first process gets in. Moving another process makes the kernel wait until every processor has taken
/// a breath, ten milliseconds and more; being born inside, or walking in alone, does not.
enum Door {
    None,
    /// clone3(2) takes a folder of version 2.
    BornInside(OwnedFd),
    /// A thread of version 1 may move itself. Opened by this process, whose rights then count.
    WalkIn(Vec<OwnedFd>),
}

struct Folder {
    path: PathBuf,
    /// Held while the sandbox lives. A folder that can be locked belongs to nobody any more: see `sweep`.
    _lock: OwnedFd,
}

impl Cgroups {
    pub(crate) fn create(control: &Control) -> Result<Self, StepFailure> {
        let mut cgroups = Self { folders: Vec::new(), door: Door::None, kills: None };
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
                let door = open(&folder, OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
                cgroups.door = Door::BornInside(door.during(Step::Cgroup, || "open the cgroup".into())?);
            }
            CgroupFacts::V1 { memory, pids, cpu } => {
                let folder = cgroups.add(memory)?;
                set(&folder, "memory.limit_in_bytes", control.memory)?;
                set_if_there(&folder, "memory.memsw.limit_in_bytes", control.memory)?;
                cgroups.kills = Some(folder.join("memory.oom_control"));
                // Two controllers may share one hierarchy.
                let pids = if pids == memory { folder } else { cgroups.add(pids)? };
                set(&pids, "pids.max", control.pids)?;
                if let Some(cpu) = cpu {
                    let folder = cgroups.add(cpu)?;
                    set(&folder, "cpu.cfs_period_us", PERIOD_MICROS)?;
                    set(&folder, "cpu.cfs_quota_us", cpu_quota)?;
                }
                let open_tasks = |folder: &Folder| {
                    open(folder.path.join("tasks"), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
                        .during(Step::Cgroup, || format!("open `{}/tasks`", folder.path.display()))
                };
                cgroups.door =
                    Door::WalkIn(cgroups.folders.iter().map(open_tasks).collect::<Result<_, _>>()?);
            }
        }
        Ok(cgroups)
    }

    fn add(&mut self, parent: &Path) -> Result<PathBuf, StepFailure> {
        loop {
            let mut random = [0u8; 8];
            rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
                .during(Step::Cgroup, || "get random bytes".into())?;
            let path = parent.join(format!("{PREFIX}{:016x}", u64::from_ne_bytes(random)));
            let action = || format!("create the cgroup `{}`", path.display());
            fs::create_dir(&path).during(Step::Cgroup, action)?;
            match lock(&path) {
                // Or had taken it before, and has removed it by now.
                Ok(_) if !path.exists() => {}
                Ok(lock) => {
                    self.folders.push(Folder { path: path.clone(), _lock: lock });
                    return Ok(path);
                }
                // Another start was sweeping and took it for abandoned, before it was locked.
                Err(Errno::NOENT | Errno::WOULDBLOCK) => {}
                Err(error) => return Err(StepFailure::new(Step::Cgroup, action(), error)),
            }
        }
    }

    /// What clone3(2) is told.
    pub(crate) fn born_inside(&self) -> Option<BorrowedFd<'_>> {
        match &self.door {
            Door::BornInside(folder) => Some(folder.as_fd()),
            Door::WalkIn(_) | Door::None => None,
        }
    }

    /// In the child, before anything else.
    pub(crate) fn walk_in(&self) -> Result<(), StepFailure> {
        let Door::WalkIn(doors) = &self.door else { return Ok(()) };
        doors.iter().try_for_each(|tasks| {
            rustix::io::write(tasks, b"0").during(Step::Cgroup, || "enter the cgroup".into()).map(drop)
        })
    }

    pub(crate) fn killed_for_memory(&self) -> bool {
        let Some(text) = self.kills.as_ref().and_then(|file| fs::read_to_string(file).ok()) else {
            return false;
        };
        text.lines().any(|line| line.strip_prefix("oom_kill ").is_some_and(|count| count.trim() != "0"))
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        for folder in &self.folders {
            // The kernel may still be taking the last process out of its books.
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
    fs::write(&path, value.to_string()).during(Step::Cgroup, || format!("write `{}`", path.display()))
}

/// Kernels without swap accounting lack these files, and then there is no swap to count.
fn set_if_there(folder: &Path, file: &str, value: u64) -> Result<(), StepFailure> {
    if folder.join(file).exists() { set(folder, file, value) } else { Ok(()) }
}

fn lock(folder: &Path) -> rustix::io::Result<OwnedFd> {
    let fd = open(folder, OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    flock(&fd, FlockOperation::NonBlockingLockExclusive)?;
    Ok(fd)
}

/// Removes what a jail left behind that was killed before it could clean up. Returns how many folders that were.
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
            // A live jail holds the lock; a folder with processes in it cannot be removed.
            if ours && lock(&entry.path()).is_ok() && fs::remove_dir(entry.path()).is_ok() {
                removed += 1;
            }
        }
    }
    removed
}
