//! user_namespaces(7): which user the code is. The parent writes the maps, and the child becomes that user.
//!
//! The child keeps its capabilities over its own namespaces until `caps` drops them: the kernel takes them only from a
//! process that stops being user 0 of its namespace, and this namespace has no user 0.

use std::fs;
use std::os::fd::OwnedFd;

use rustix::fs::{Gid, Uid};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};
use rustix::process::Pid;

use crate::guest::SandboxUser;
use crate::plan::{HostIds, UserMapping};
use crate::report::{JailStep, StepContext, StepFailure};
use crate::steps::random_number;

/// The sandbox's user on the host, claimed until this is dropped.
pub(crate) struct HostUser {
    pub(crate) user: SandboxUser,
    /// Keeps other sandboxes from using the id. See `take`.
    _claim: Option<OwnedFd>,
}

impl HostUser {
    /// Returns the user that stands behind the sandbox's user. Root claims an id that no live sandbox has; fails if
    /// none is free. The claim is a name in the abstract socket namespace: only one process can bind it, it needs no
    /// file, and the kernel releases it however this process ends.
    pub(crate) fn take(identity: &UserMapping) -> Result<Self, StepFailure> {
        let (first, count) = match identity.outside {
            HostIds::Same(user) => return Ok(Self { user, _claim: None }),
            HostIds::OneOf { first, count } => (first, count),
        };
        // A random start, so that many starts at once do not all try the same ids.
        let start = (random_number(JailStep::User)? % u64::from(count)) as u32;
        for offset in 0..count {
            let id = first + (start + offset) % count;
            let name = format!("cove-user-{id}");
            let address = SocketAddrUnix::new_abstract_name(name.as_bytes())
                .during(JailStep::User, || format!("name the claim on user id {id}"))?;
            let claim = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
                .during(JailStep::User, || "open a socket to claim a user id".into())?;
            if bind(&claim, &address).is_ok() {
                return Ok(Self { user: SandboxUser { uid: id, gid: id }, _claim: Some(claim) });
            }
        }
        Err(StepFailure::new(JailStep::User, "find a free user id", rustix::io::Errno::BUSY))
    }
}

/// In the parent: maps one user and one group, and nothing else, into the child's namespace.
pub(crate) fn write_maps(child: Pid, identity: &UserMapping, host: &HostUser) -> Result<(), StepFailure> {
    let write = |file: &str, text: String| {
        let path = format!("/proc/{}/{file}", child.as_raw_nonzero());
        fs::write(&path, text).during(JailStep::User, || format!("write the sandbox's `{file}`"))
    };
    // An ordinary user may map their group only after giving up setgroups(2), which could otherwise leave a group that
    // denies access. Root keeps it, so that the child can leave root's own groups.
    if matches!(identity.outside, HostIds::Same(_)) {
        write("setgroups", "deny".into())?;
    }
    write("uid_map", format!("{} {} 1", identity.inside.uid, host.user.uid))?;
    write("gid_map", format!("{} {} 1", identity.inside.gid, host.user.gid))
}

/// In the child, once the maps are written: becomes the sandbox's user.
pub(crate) fn become_user(identity: &UserMapping) -> Result<(), StepFailure> {
    if matches!(identity.outside, HostIds::OneOf { .. }) {
        rustix::thread::set_thread_groups(&[]).during(JailStep::User, || "leave the groups of this process".into())?;
    }
    let (uid, gid) = (Uid::from_raw(identity.inside.uid), Gid::from_raw(identity.inside.gid));
    rustix::thread::set_thread_res_gid(gid, gid, gid).during(JailStep::User, || format!("become group {gid}"))?;
    rustix::thread::set_thread_res_uid(uid, uid, uid).during(JailStep::User, || format!("become user {uid}"))
}
