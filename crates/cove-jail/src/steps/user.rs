//! user_namespaces(7): which user the code is. The parent writes the maps, and the child becomes that user.
//!
//! The child keeps its capabilities over its own namespaces until `caps` drops them: the kernel takes them only from a
//! process that stops being user 0 of its namespace, and this namespace has no user 0.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Gid, Uid};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::{capabilities, set_capabilities, set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use rustix::time::Timespec;

use crate::guest::SandboxUser;
use crate::plan::{HostIds, UserMapping};
use crate::report::{JailStep, StepContext, StepFailure};
use crate::steps::id_claims::{self, ROOTS_FOLDERS};

/// How long newuidmap(1) and newgidmap(1) may take. They take milliseconds; with a directory of users on the network
/// they may have to ask it.
const TIME_TO_MAP: Duration = Duration::from_secs(5);

/// The sandbox's user on the host, claimed until this is dropped.
pub(crate) struct HostUser {
    pub(crate) user: SandboxUser,
    pub(crate) kind: HostUserKind,
    /// Keeps other sandboxes from using the id.
    _claim: Option<OwnedFd>,
}

/// How the sandbox's user relates to the user of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HostUserKind {
    /// The same.
    Person,
    /// One that the person may map, with newuidmap(1).
    Subordinate,
    /// Any, because this process is root.
    OfRoot,
}

impl HostUserKind {
    /// The byte that releases the child, which tells it what the maps contain.
    pub(crate) fn byte(self) -> u8 {
        match self {
            Self::Person => b'p',
            Self::Subordinate => b's',
            Self::OfRoot => b'r',
        }
    }

    /// Returns whether the maps let the child leave the groups of this process.
    pub(crate) fn may_leave_groups(byte: u8) -> bool {
        byte != Self::Person.byte()
    }
}

impl HostUser {
    /// Returns the user that stands behind the sandbox's user. Claims an id that no live sandbox has, unless it is the
    /// person's own. Fails if root finds none that is free; an ordinary user's sandbox then has the person's.
    pub(crate) fn take(identity: &UserMapping) -> Result<Self, StepFailure> {
        match &identity.outside {
            HostIds::Same { user, .. } => Ok(Self::person(*user)),
            HostIds::Subordinate { user, ids } => Ok(id_claims::claim(&ids.claims, ids.first_user, ids.count)
                .map_or_else(
                    |failure| {
                        eprintln!("{failure}\ncaused by: {}\nthe sandbox has your own user id", failure.cause);
                        Self::person(*user)
                    },
                    |(uid, claim)| Self {
                        user: SandboxUser { uid, gid: ids.first_group + (uid - ids.first_user) },
                        kind: HostUserKind::Subordinate,
                        _claim: Some(claim),
                    },
                )),
            HostIds::OneOf { first, count } => {
                let folders: Vec<_> = ROOTS_FOLDERS.iter().map(PathBuf::from).collect();
                let (id, claim) = id_claims::claim(&folders, *first, *count)?;
                Ok(Self { user: SandboxUser { uid: id, gid: id }, kind: HostUserKind::OfRoot, _claim: Some(claim) })
            }
        }
    }

    fn person(user: SandboxUser) -> Self {
        Self { user, kind: HostUserKind::Person, _claim: None }
    }

    /// As root, before the clone: makes the sandbox's user the effective one of this process. The kernel counts what
    /// it counts for each user namespace, such as inotify instances, for the user who made the namespace too. That
    /// must not be root.
    pub(crate) fn own_new_namespaces(&self) -> Result<(), StepFailure> {
        if self.kind != HostUserKind::OfRoot {
            return Ok(());
        }
        let action = || format!("become user {} for a moment", self.user.uid);
        let all = capabilities(None).during(JailStep::User, action)?;
        let (root, user) = (Uid::ROOT, Uid::from_raw(self.user.uid));
        set_thread_res_uid(root, user, root).during(JailStep::User, action)?;
        // The change took the effective capabilities, which the clone into a cgroup needs.
        set_capabilities(None, all).during(JailStep::User, action)
    }

    /// After the clone, in the parent: takes root back as the effective user.
    pub(crate) fn stop_owning(&self) -> Result<(), StepFailure> {
        if self.kind != HostUserKind::OfRoot {
            return Ok(());
        }
        let root = Uid::ROOT;
        set_thread_res_uid(root, root, root).during(JailStep::User, || "become root again".into())
    }

    /// In the parent: maps one user and one group, and nothing else, into the child's namespace. If newgidmap(1) or
    /// newuidmap(1) refuses the subordinate ids, the sandbox has the person's own user.
    pub(crate) fn write_maps(&mut self, child: Pid, identity: &UserMapping) -> Result<(), StepFailure> {
        let inside = identity.inside;
        let mut has_group = false;
        if let (HostUserKind::Subordinate, HostIds::Subordinate { user, ids }) = (self.kind, &identity.outside) {
            // The group first: a map that is written stays, and with the person's user any group will do.
            let group = map_with(&ids.newgidmap, child, inside.gid, self.user.gid);
            has_group = group.is_ok();
            let Err(error) = group.and_then(|()| map_with(&ids.newuidmap, child, inside.uid, self.user.uid)) else {
                return Ok(());
            };
            eprintln!("could not map a subordinate user\ncaused by: {error}\nthe sandbox has your own user id");
            *self = Self::person(SandboxUser { gid: if has_group { self.user.gid } else { user.gid }, ..*user });
        }
        let write = |file: &str, text: String| {
            let path = format!("/proc/{}/{file}", child.as_raw_nonzero());
            fs::write(&path, text).during(JailStep::User, || format!("write the sandbox's `{file}`"))
        };
        // An ordinary user may map their group only after giving up setgroups(2), which could otherwise leave a group
        // that denies access. Root keeps it, so that the child can leave root's own groups.
        if self.kind == HostUserKind::Person && !has_group {
            write("setgroups", "deny".into())?;
        }
        write("uid_map", format!("{} {} 1", inside.uid, self.user.uid))?;
        if has_group {
            return Ok(());
        }
        write("gid_map", format!("{} {} 1", inside.gid, self.user.gid))
    }
}

/// Runs newuidmap(1) or newgidmap(1). Fails with what it says, or after `TIME_TO_MAP`.
fn map_with(program: &Path, child: Pid, inside: u32, outside: u32) -> io::Result<()> {
    let numbers = [child.as_raw_nonzero().get().to_string(), inside.to_string(), outside.to_string(), "1".into()];
    run_with_deadline(Command::new(program).args(numbers).env_clear(), TIME_TO_MAP)
}

/// Runs a program to its end, and kills it if it takes longer than `most`. Fails with the first line that it writes to
/// standard error.
fn run_with_deadline(command: &mut Command, most: Duration) -> io::Result<()> {
    let name = command.get_program().display().to_string();
    let mut running = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let pidfd = pidfd_open(Pid::from_child(&running), PidfdFlags::empty())?;
    let mut ends = [PollFd::new(&pidfd, PollFlags::IN)];
    let deadline = Instant::now() + most;
    while poll(&mut ends, Timespec::try_from(deadline.saturating_duration_since(Instant::now())).ok().as_ref())
        == Err(Errno::INTR)
    {}
    if ends[0].revents().is_empty() {
        // It may be setuid: its real user is still that of this process, which may kill it.
        running.kill()?;
        running.wait()?;
        return Err(io::Error::other(format!("`{name}` did not end within {} s", most.as_secs_f32())));
    }
    if running.wait()?.success() {
        return Ok(());
    }
    let mut said = [0u8; 1024];
    let mut length = 0;
    if let Some(errors) = &running.stderr
        && ioctl_fionbio(errors, true).is_ok()
    {
        length = rustix::io::read(errors, &mut said).unwrap_or(0);
    }
    let said = String::from_utf8_lossy(&said[..length]).into_owned();
    Err(io::Error::other(format!("`{name}` failed: {}", said.lines().next().unwrap_or("no reason given"))))
}

/// In the child, once the maps are written: becomes the sandbox's user. `released_by` is the parent's byte.
pub(crate) fn become_user(inside: SandboxUser, released_by: u8) -> Result<(), StepFailure> {
    if HostUserKind::may_leave_groups(released_by) {
        set_thread_groups(&[]).during(JailStep::User, || "leave the groups of this process".into())?;
    }
    let (uid, gid) = (Uid::from_raw(inside.uid), Gid::from_raw(inside.gid));
    set_thread_res_gid(gid, gid, gid).during(JailStep::User, || format!("become group {gid}"))?;
    set_thread_res_uid(uid, uid, uid).during(JailStep::User, || format!("become user {uid}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_program_that_hangs_is_ended() {
        let begun = Instant::now();
        let failure = run_with_deadline(Command::new("sleep").arg("600"), Duration::from_millis(200)).unwrap_err();
        assert_eq!(failure.to_string(), "`sleep` did not end within 0.2 s");
        assert!(begun.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn a_mapping_program_is_quoted_with_its_first_line() {
        let run = |script: &str| run_with_deadline(Command::new("sh").args(["-c", script]), Duration::from_secs(60));
        run("exit 0").unwrap();
        let failure = run("echo 'uid range is not allowed' >&2; echo more >&2; exit 1").unwrap_err();
        assert_eq!(failure.to_string(), "`sh` failed: uid range is not allowed");
        // A child that it leaves behind holds the pipe, and is not waited for.
        assert_eq!(run("sleep 60 & exit 1").unwrap_err().to_string(), "`sh` failed: no reason given");
    }
}
