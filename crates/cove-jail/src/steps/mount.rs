//! mount_namespaces(7): builds the sandbox's root with the descriptor-based calls (fsopen(2), open_tree(2),
//! mount_setattr(2), move_mount(2)), so that no path is looked up twice and nothing is mounted writable even for a
//! moment.

use std::ffi::CString;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_set_string, fsmount, fsopen, mount_change, move_mount, open_tree,
};

use crate::guest::SandboxUser;
use crate::plan::{BindAccess, JailPlan, PlanEntry, TmpfsOptions};
use crate::report::{JailStep, StepContext, StepFailure};
use crate::sys;

/// A detached copy of the source of each bind mount, in the plan's order.
pub(crate) struct BindSources(Vec<OwnedFd>);

/// Opens the sources of all bind mounts, and restricts them.
///
/// Root does this in the jail process, before it gives up its rights, because the sandbox's user may not be able to
/// reach them. An ordinary user may copy mounts only inside a mount namespace of their own, so the child does it there,
/// before it becomes the sandbox's user.
pub(crate) fn open_sources(plan: &JailPlan) -> Result<BindSources, StepFailure> {
    let mut sources = Vec::new();
    for entry in &plan.entries {
        let PlanEntry::Bind(bind) = entry else { continue };
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
        let tree = open_tree(CWD, &bind.source, flags)
            .during(JailStep::Mounts, || format!("open `{}` to mount it", bind.source.display()))?;
        let attributes = match bind.access {
            BindAccess::ReadOnly => libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV,
            BindAccess::ReadWrite => libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV,
            BindAccess::Device => libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOEXEC,
        };
        sys::set_mount_attributes(tree.as_fd(), attributes)
            .during(JailStep::Mounts, || format!("restrict the mount of `{}`", bind.source.display()))?;
        sources.push(tree);
    }
    Ok(BindSources(sources))
}

/// Stops mounts from spreading from this namespace to the host's, and back.
pub(crate) fn make_private() -> Result<(), StepFailure> {
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)
        .during(JailStep::Mounts, || "make the mounts private".into())
}

/// Builds the new root and attaches it over `/tmp`, a folder that every machine has. `pivot` then makes it the root.
pub(crate) fn build_root(plan: &JailPlan, sources: BindSources) -> Result<OwnedFd, StepFailure> {
    let root = new_tmpfs(&plan.root, plan.identity.inside, Path::new("/"))?;
    attach(root.as_fd(), CWD, c"/tmp", Path::new("/"))?;
    let mut sources = sources.0.into_iter();
    for entry in &plan.entries {
        match entry {
            PlanEntry::Directory { path } => make_folders(root.as_fd(), path)?,
            PlanEntry::Link { path, target } => {
                make_parent(root.as_fd(), path)?;
                rustix::fs::symlinkat(target, root.as_fd(), relative(path))
                    .during(JailStep::Mounts, || format!("link `{}`", path.display()))?;
            }
            PlanEntry::File { path, content } => {
                let file = make_file(root.as_fd(), path)?;
                rustix::io::write(&file, content.as_bytes())
                    .during(JailStep::Mounts, || format!("write `{}`", path.display()))?;
            }
            PlanEntry::Bind(bind) => {
                let missing = || StepFailure::new(JailStep::Mounts, "find a mount's source", Errno::BADF);
                let source = sources.next().ok_or_else(missing)?;
                let kind = rustix::fs::fstat(&source)
                    .during(JailStep::Mounts, || format!("look at `{}`", bind.source.display()))?;
                if FileType::from_raw_mode(kind.st_mode) == FileType::Directory {
                    make_folders(root.as_fd(), &bind.target)?;
                } else {
                    make_file(root.as_fd(), &bind.target)?;
                }
                attach_below(source.as_fd(), root.as_fd(), &bind.target)?;
            }
            PlanEntry::Tmpfs { path, tmpfs } => {
                make_folders(root.as_fd(), path)?;
                let mount = new_tmpfs(tmpfs, plan.identity.inside, path)?;
                attach_below(mount.as_fd(), root.as_fd(), path)?;
            }
            PlanEntry::Proc { path } => {
                make_folders(root.as_fd(), path)?;
                let mount = new_proc(path)?;
                attach_below(mount.as_fd(), root.as_fd(), path)?;
            }
        }
    }
    Ok(root)
}

fn new_tmpfs(tmpfs: &TmpfsOptions, owner: SandboxUser, path: &Path) -> Result<OwnedFd, StepFailure> {
    let action = || format!("make the tmpfs of `{}`", path.display());
    let options = [
        ("size", tmpfs.size.to_string()),
        ("nr_inodes", tmpfs.inodes.to_string()),
        ("mode", format!("{:o}", tmpfs.mode)),
        ("uid", owner.uid.to_string()),
        ("gid", owner.gid.to_string()),
    ];
    new_filesystem("tmpfs", &options, MountAttrFlags::empty()).during(JailStep::Mounts, action)
}

/// Makes a new proc(5). With `subset=pid` it shows nothing but processes, so there is nothing to mask, and with
/// `hidepid=invisible` it hides every process that code may not trace, such as the runner. It is read-only, so that code
/// cannot change how the kernel treats it, such as its place among the processes to kill when memory runs out.
fn new_proc(path: &Path) -> Result<OwnedFd, StepFailure> {
    let options = [("subset", "pid".to_owned()), ("hidepid", "invisible".to_owned())];
    new_filesystem("proc", &options, MountAttrFlags::MOUNT_ATTR_NOEXEC | MountAttrFlags::MOUNT_ATTR_RDONLY)
        .during(JailStep::Mounts, || format!("mount `{}`", path.display()))
}

/// Makes a file system and mounts it without attaching it, always without setuid programs and devices.
pub(crate) fn new_filesystem(
    kind: &str,
    options: &[(&str, String)],
    more_attributes: MountAttrFlags,
) -> rustix::io::Result<OwnedFd> {
    let filesystem = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        fsconfig_set_string(&filesystem, *key, value)?;
    }
    fsconfig_create(&filesystem)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | more_attributes;
    fsmount(&filesystem, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// Attaches a mount at the path `target` of the new root.
fn attach_below(mount: BorrowedFd<'_>, root: BorrowedFd<'_>, target: &Path) -> Result<(), StepFailure> {
    let path = CString::new(relative(target).as_os_str().as_bytes())
        .map_err(|_| StepFailure::new(JailStep::Mounts, "name a mount point", Errno::INVAL))?;
    attach(mount, root, &path, target)
}

fn attach(mount: BorrowedFd<'_>, at: BorrowedFd<'_>, path: &std::ffi::CStr, target: &Path) -> Result<(), StepFailure> {
    move_mount(mount, c"", at, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .during(JailStep::Mounts, || format!("mount `{}`", target.display()))
}

/// Returns a path of the plan relative to the new root. Plans hold absolute paths without `..`.
fn relative(path: &Path) -> PathBuf {
    path.components().filter(|part| matches!(part, Component::Normal(_))).collect()
}

fn make_parent(root: BorrowedFd<'_>, path: &Path) -> Result<(), StepFailure> {
    path.parent().map_or(Ok(()), |parent| make_folders(root, parent))
}

fn make_folders(root: BorrowedFd<'_>, path: &Path) -> Result<(), StepFailure> {
    let mut so_far = PathBuf::new();
    for part in relative(path).components() {
        so_far.push(part);
        match rustix::fs::mkdirat(root, &so_far, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => {
                // On a read-only mount the kernel answers EROFS before it looks whether the folder exists.
                let exists = rustix::fs::statat(root, &so_far, AtFlags::empty())
                    .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory);
                if !exists {
                    let action = format!("make the folder `{}`", path.display());
                    return Err(StepFailure::new(JailStep::Mounts, action, error));
                }
            }
        }
    }
    Ok(())
}

fn make_file(root: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, StepFailure> {
    make_parent(root, path)?;
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::openat(root, relative(path), flags, Mode::from_raw_mode(0o444))
        .during(JailStep::Mounts, || format!("make the file `{}`", path.display()))
}

/// What the kernel needs for a file of a tmpfs beside its content: its inode and its name.
const INODE_BYTES: u64 = 1024;

/// Returns how many bytes the files in the sandbox's own file systems take, for the watchdog. It looks through the root
/// of a process inside.
pub(crate) fn tmpfs_use(plan: &JailPlan, process: i32) -> u64 {
    plan.entries
        .iter()
        .filter_map(|entry| {
            let PlanEntry::Tmpfs { path, .. } = entry else { return None };
            let seen = format!("/proc/{process}/root{}", path.display());
            let stat = rustix::fs::statvfs(seen.as_str()).ok()?;
            let files = stat.f_files.saturating_sub(stat.f_ffree);
            Some(stat.f_blocks.saturating_sub(stat.f_bfree) * stat.f_frsize + files * INODE_BYTES)
        })
        .sum()
}

/// Returns whether the host has `/tmp`, over which the new root is attached.
pub(crate) fn has_mount_point() -> bool {
    fs::metadata("/tmp").is_ok_and(|found| found.is_dir())
}
