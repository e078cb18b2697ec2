//! mount_namespaces(7): builds the sandbox's root with the descriptor-based calls (fsopen(2), open_tree(2),
//! mount_setattr(2), move_mount(2)), so that no path is looked up twice and nothing is ever mounted writable first.

use std::ffi::CString;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags,
    fsconfig_create, fsconfig_set_string, fsmount, fsopen, mount_change, move_mount, open_tree,
};

use crate::plan::{Access, Entry, Plan, Tmpfs, User};
use crate::report::{During, Step, StepFailure};
use crate::sys;

/// A detached copy of each source that the plan binds, in the plan's order.
pub(crate) struct Sources(Vec<OwnedFd>);

/// Root opens the sources before it gives up its rights, since the sandbox's user may not be able to reach them. An
/// ordinary user may only copy mounts inside a mount namespace of their own, so the child does it there.
pub(crate) fn open_sources(plan: &Plan) -> Result<Sources, StepFailure> {
    let mut sources = Vec::new();
    for entry in &plan.entries {
        let Entry::Bind(bind) = entry else { continue };
        let flags =
            OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
        let tree = open_tree(CWD, &bind.source, flags)
            .during(Step::Mounts, || format!("open `{}` to mount it", bind.source.display()))?;
        let attributes = match bind.access {
            Access::ReadOnly => libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV,
            Access::ReadWrite => libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV,
            Access::Device => libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOEXEC,
        };
        sys::set_mount_attributes(tree.as_fd(), attributes)
            .during(Step::Mounts, || format!("restrict the mount of `{}`", bind.source.display()))?;
        sources.push(tree);
    }
    Ok(Sources(sources))
}

/// Nothing that is mounted here may reach the host's mounts, nor the other way round.
pub(crate) fn make_private() -> Result<(), StepFailure> {
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)
        .during(Step::Mounts, || "make the mounts private".into())
}

/// Builds the new root and attaches it over `/tmp`, of all folders, because it is there; `pivot` makes it the root.
pub(crate) fn build_root(plan: &Plan, sources: Sources) -> Result<OwnedFd, StepFailure> {
    let root = new_tmpfs(&plan.root, plan.identity.inside, Path::new("/"))?;
    attach(root.as_fd(), CWD, c"/tmp", Path::new("/"))?;
    let mut sources = sources.0.into_iter();
    for entry in &plan.entries {
        match entry {
            Entry::Directory { path } => make_folders(root.as_fd(), path)?,
            Entry::Link { path, target } => {
                make_parent(root.as_fd(), path)?;
                rustix::fs::symlinkat(target, root.as_fd(), below(path))
                    .during(Step::Mounts, || format!("link `{}`", path.display()))?;
            }
            Entry::File { path, content } => {
                let file = make_file(root.as_fd(), path)?;
                rustix::io::write(&file, content.as_bytes())
                    .during(Step::Mounts, || format!("write `{}`", path.display()))?;
            }
            Entry::Bind(bind) => {
                let missing = || StepFailure::new(Step::Mounts, "find a mount's source", Errno::BADF);
                let source = sources.next().ok_or_else(missing)?;
                let kind = rustix::fs::fstat(&source)
                    .during(Step::Mounts, || format!("look at `{}`", bind.source.display()))?;
                if FileType::from_raw_mode(kind.st_mode) == FileType::Directory {
                    make_folders(root.as_fd(), &bind.target)?;
                } else {
                    make_file(root.as_fd(), &bind.target)?;
                }
                attach_below(source.as_fd(), root.as_fd(), &bind.target)?;
            }
            Entry::Tmpfs { path, tmpfs } => {
                make_folders(root.as_fd(), path)?;
                let mount = new_tmpfs(tmpfs, plan.identity.inside, path)?;
                attach_below(mount.as_fd(), root.as_fd(), path)?;
            }
            Entry::Proc { path } => {
                make_folders(root.as_fd(), path)?;
                let mount = new_proc(path)?;
                attach_below(mount.as_fd(), root.as_fd(), path)?;
            }
        }
    }
    // Not recursive: what is mounted inside has its own flags already.
    Ok(root)
}

fn new_tmpfs(tmpfs: &Tmpfs, owner: User, path: &Path) -> Result<OwnedFd, StepFailure> {
    let action = || format!("make the tmpfs of `{}`", path.display());
    let filesystem = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).during(Step::Mounts, action)?;
    let options = [
        ("size", tmpfs.size.to_string()),
        ("nr_inodes", tmpfs.inodes.to_string()),
        ("mode", format!("{:o}", tmpfs.mode)),
        ("uid", owner.uid.to_string()),
        ("gid", owner.gid.to_string()),
    ];
    for (key, value) in options {
        fsconfig_set_string(&filesystem, key, value).during(Step::Mounts, action)?;
    }
    fsconfig_create(&filesystem).during(Step::Mounts, action)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    fsmount(&filesystem, FsMountFlags::FSMOUNT_CLOEXEC, attributes).during(Step::Mounts, action)
}

/// proc(5) with `subset=pid` has nothing but processes, so there is nothing to mask, and with `hidepid=invisible` a
/// process that may not be traced, such as the runner, is not there at all.
fn new_proc(path: &Path) -> Result<OwnedFd, StepFailure> {
    let action = || format!("mount `{}`", path.display());
    let filesystem = fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC).during(Step::Mounts, action)?;
    fsconfig_set_string(&filesystem, "subset", "pid").during(Step::Mounts, action)?;
    fsconfig_set_string(&filesystem, "hidepid", "invisible").during(Step::Mounts, action)?;
    fsconfig_create(&filesystem).during(Step::Mounts, action)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    fsmount(&filesystem, FsMountFlags::FSMOUNT_CLOEXEC, attributes).during(Step::Mounts, action)
}

fn attach_below(mount: BorrowedFd<'_>, root: BorrowedFd<'_>, target: &Path) -> Result<(), StepFailure> {
    let path = CString::new(below(target).as_os_str().as_bytes())
        .map_err(|_| StepFailure::new(Step::Mounts, "name a mount point", Errno::INVAL))?;
    attach(mount, root, &path, target)
}

fn attach(
    mount: BorrowedFd<'_>,
    at: BorrowedFd<'_>,
    path: &std::ffi::CStr,
    shown: &Path,
) -> Result<(), StepFailure> {
    move_mount(mount, c"", at, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .during(Step::Mounts, || format!("mount `{}`", shown.display()))
}

/// A path of the plan, seen from the new root. Plans hold absolute paths without `..`.
fn below(path: &Path) -> PathBuf {
    path.components().filter(|part| matches!(part, Component::Normal(_))).collect()
}

fn make_parent(root: BorrowedFd<'_>, path: &Path) -> Result<(), StepFailure> {
    path.parent().map_or(Ok(()), |parent| make_folders(root, parent))
}

fn make_folders(root: BorrowedFd<'_>, path: &Path) -> Result<(), StepFailure> {
    let mut so_far = PathBuf::new();
    for part in below(path).components() {
        so_far.push(part);
        match rustix::fs::mkdirat(root, &so_far, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => {
                // A read-only mount answers EROFS before it looks whether the folder exists.
                let exists = rustix::fs::statat(root, &so_far, AtFlags::empty())
                    .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory);
                if !exists {
                    let action = format!("make the folder `{}`", path.display());
                    return Err(StepFailure::new(Step::Mounts, action, error));
                }
            }
        }
    }
    Ok(())
}

fn make_file(root: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, StepFailure> {
    make_parent(root, path)?;
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::openat(root, below(path), flags, Mode::from_raw_mode(0o444))
        .during(Step::Mounts, || format!("make the file `{}`", path.display()))
}

/// How much memory the files in the sandbox's own file systems take, for the watchdog: seen through the root of a
/// process inside.
pub(crate) fn tmpfs_use(plan: &Plan, process: i32) -> u64 {
    plan.entries
        .iter()
        .filter_map(|entry| match entry {
            Entry::Tmpfs { path, .. } => Some(path),
            _ => None,
        })
        .filter_map(|path| {
            let seen = format!("/proc/{process}/root{}", path.display());
            let stat = rustix::fs::statvfs(seen.as_str()).ok()?;
            Some((stat.f_blocks - stat.f_bfree) * stat.f_frsize)
        })
        .sum()
}

/// Whether the host's `/tmp`, over which the new root is attached, is there.
pub(crate) fn has_mount_point() -> bool {
    fs::metadata("/tmp").is_ok_and(|found| found.is_dir())
}
