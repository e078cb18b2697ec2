//! Thin safe wrappers around system calls that no maintained crate wraps. Every unsafe block of the project is here.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use crate::seccomp;

/// From linux/sched.h. In the `libc` crate its type is too small for its value.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Which side of `clone_into_namespaces` this process is on.
pub(crate) enum CloneSide {
    Parent { child: rustix::process::Pid, pidfd: OwnedFd },
    Child,
}

/// clone3(2) without shared memory: like fork(2), but the child is in new namespaces, and in `cgroup` if given.
///
/// Fails if this process has more than one thread, because the child could inherit a lock that no thread of it would
/// ever release.
pub(crate) fn clone_into_namespaces(flags: libc::c_int, cgroup: Option<BorrowedFd<'_>>) -> io::Result<CloneSide> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("the process has more than one thread"));
    }
    let mut pidfd: RawFd = -1;
    let mut args = libc::clone_args {
        flags: flags as u64 | libc::CLONE_PIDFD as u64 | if cgroup.is_some() { CLONE_INTO_CGROUP } else { 0 },
        pidfd: &raw mut pidfd as u64,
        child_tid: 0,
        parent_tid: 0,
        exit_signal: libc::SIGCHLD as u64,
        stack: 0,
        stack_size: 0,
        tls: 0,
        set_tid: 0,
        set_tid_size: 0,
        cgroup: cgroup.map_or(0, |folder| folder.as_raw_fd() as u64),
    };
    // SAFETY: `args` is a whole, initialised `clone_args` of the size given, alive during the call. `pidfd` points to a
    // live integer, and a cgroup's descriptor is open. No stack is given and CLONE_VM is not set, so the child runs on
    // a copy of this stack, and with one thread (checked above) no lock can be held by a thread that the child lacks.
    let result = unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size_of::<libc::clone_args>()) };
    match result {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(CloneSide::Child),
        pid => {
            let child = rustix::process::Pid::from_raw(pid as i32)
                .ok_or_else(|| io::Error::other("the kernel gave no process id"))?;
            // SAFETY: the call succeeded in the parent, so the kernel has stored a new descriptor that nothing else
            // owns.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok(CloneSide::Parent { child, pidfd })
        }
    }
}

/// mount_setattr(2): sets attributes on `tree` and every mount below it.
pub(crate) fn set_mount_attributes(tree: BorrowedFd<'_>, set: u64) -> io::Result<()> {
    mount_setattr(tree, libc::AT_EMPTY_PATH | libc::AT_RECURSIVE, set)
}

/// mount_setattr(2): makes the mount of `root` read-only, but not the mounts inside it, which have flags of their own.
pub(crate) fn set_root_read_only(root: BorrowedFd<'_>) -> io::Result<()> {
    mount_setattr(root, libc::AT_EMPTY_PATH, libc::MOUNT_ATTR_RDONLY)
}

fn mount_setattr(tree: BorrowedFd<'_>, flags: libc::c_int, set: u64) -> io::Result<()> {
    let attr = libc::mount_attr { attr_set: set, attr_clr: 0, propagation: 0, userns_fd: 0 };
    const EMPTY: &CStr = c"";
    // SAFETY: `tree` is an open descriptor, the path is a valid C string, and `attr` is a whole, initialised
    // structure of the size given; the kernel only reads them during the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            EMPTY.as_ptr(),
            flags,
            &raw const attr,
            size_of::<libc::mount_attr>(),
        )
    };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// close_range(2): marks every descriptor from `first` on to be closed at execve(2).
pub(crate) fn close_on_exec_from(first: u32) -> io::Result<()> {
    // SAFETY: passes three integers; no descriptor becomes invalid, they are only marked.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// fcntl(2) F_OFD_SETLK: locks one byte of a file for this open file description. Returns false if another has it.
pub(crate) fn lock_byte(file: BorrowedFd<'_>, offset: i64) -> io::Result<bool> {
    let lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: offset,
        l_len: 1,
        // The kernel wants 0 here: the lock belongs to the description, not to a process.
        l_pid: 0,
    };
    // SAFETY: `file` is open and `lock` is a live, initialised `flock`, which F_OFD_SETLK only reads.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    match (result, io::Error::last_os_error()) {
        (0, _) => Ok(true),
        (_, error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        (_, error) => Err(error),
    }
}

/// seccomp(2): holds this thread and everything that it starts to `program`, from here on.
pub(crate) fn install_filter(program: &seccomp::FilterProgram) -> io::Result<()> {
    let filters: Vec<libc::sock_filter> =
        program.instructions().iter().map(|i| libc::sock_filter { code: i.code, jt: i.jt, jf: i.jf, k: i.k }).collect();
    let length = u16::try_from(filters.len()).map_err(|_| io::Error::other("the filter is too long"))?;
    let fprog = libc::sock_fprog { len: length, filter: filters.as_ptr().cast_mut() };
    // SAFETY: `fprog` points to `length` initialised instructions that live until the call returns; the kernel copies
    // and verifies them and never writes through the pointer.
    let result = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const fprog) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// netdevice(7): brings the loopback of this network namespace up.
pub(crate) fn bring_loopback_up(socket: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: all-zero bytes are a valid `ifreq`: it holds only integers and character arrays.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(*b"lo") {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: `socket` is open and `request` is a live, initialised `ifreq`, which is what SIOCSIFFLAGS reads.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as libc::Ioctl, &raw const request) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// kcmp(2): returns whether two processes share one address space. Also false where the kernel does not say.
pub(crate) fn have_same_memory(one: i32, other: i32) -> bool {
    const KCMP_VM: libc::c_int = 1;
    have_same(one, other, KCMP_VM)
}

/// kcmp(2): returns whether two threads share one table of descriptors. Also false where the kernel does not say.
pub(crate) fn have_same_descriptors(one: i32, other: i32) -> bool {
    const KCMP_FILES: libc::c_int = 2;
    have_same(one, other, KCMP_FILES)
}

fn have_same(one: i32, other: i32, what: libc::c_int) -> bool {
    // SAFETY: passes five integers; the kernel only compares.
    unsafe { libc::syscall(libc::SYS_kcmp, one, other, what, 0, 0) == 0 }
}

/// unshare(2): makes a new cgroup namespace for this process.
pub(crate) fn unshare_cgroup_namespace() -> io::Result<()> {
    // SAFETY: only CLONE_FILES and CLONE_FS style flags can break what safe code relies on; the cgroup namespace
    // changes nothing but how this thread's cgroup paths read.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWCGROUP) }.map_err(Into::into)
}

/// Makes name lookups read `/etc/hosts` and ask the name servers of `/etc/resolv.conf`, whatever `/etc/nsswitch.conf`
/// says. The GNU C library has both built in (since 2.34). For anything else it would load a module of the system,
/// whose version may differ from the library that is linked statically, and that may crash.
///
/// Must be called before another thread looks up a name.
#[cfg(target_env = "gnu")]
pub(crate) fn use_built_in_name_lookups() -> io::Result<()> {
    unsafe extern "C" {
        /// Of nss.h; the `libc` crate does not have it.
        fn __nss_configure_lookup(database: *const libc::c_char, services: *const libc::c_char) -> libc::c_int;
    }
    // SAFETY: the declaration is that of nss.h. Both pointers are to constants that end with a zero byte, and the
    // function reads them only during the call.
    let result = unsafe { __nss_configure_lookup(c"hosts".as_ptr(), c"files dns".as_ptr()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Other C libraries have no modules.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn use_built_in_name_lookups() -> io::Result<()> {
    Ok(())
}

/// landlock_create_ruleset(2): returns the kernel's version of Landlock, or `None` if it has none.
pub(crate) fn landlock_version() -> Option<u32> {
    const VERSION: libc::c_uint = 1;
    // SAFETY: with this flag the kernel wants a null pointer and a size of 0, reads no memory and creates nothing.
    let result =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<libc::c_void>(), 0usize, VERSION) };
    u32::try_from(result).ok()
}
