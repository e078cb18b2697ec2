//! user_namespaces(7): who the code is. The parent writes the maps, the child becomes that user.
//!
//! The child keeps its capabilities over its own namespaces until `caps` drops them: the kernel only takes them from
//! a process that stops being user 0 of its namespace, and there is no user 0 in this one.

use std::fs;
use std::os::fd::OwnedFd;

use rustix::fs::{Gid, Uid};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};
use rustix::process::Pid;

use crate::plan::{Identity, Outside, User};
use crate::report::{During, Step, StepFailure};

/// The user that the sandbox is on the host, for as long as this lives.
pub(crate) struct HostUser {
    pub(crate) user: User,
    /// Holds the id for this sandbox alone. See `take`.
    _claim: Option<OwnedFd>,
}

impl HostUser {
    /// Root takes an id that no live sandbox has. The claim is a name in the abstract socket namespace: it can be
    /// had once, needs no file, and is given back by the kernel however this process ends.
    pub(crate) fn take(identity: &Identity) -> Result<Self, StepFailure> {
        let (first, count) = match identity.outside {
            Outside::Same(user) => return Ok(Self { user, _claim: None }),
            Outside::OneOf { first, count } => (first, count),
        };
        let socket = || {
            socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
                .during(Step::User, || "open a socket to claim a user id".into())
        };
        let start = random_below(count)?;
        for offset in 0..count {
            let id = first + (start + offset) % count;
            let name = format!("cove-user-{id}");
            let address = SocketAddrUnix::new_abstract_name(name.as_bytes())
                .during(Step::User, || format!("name the claim on user id {id}"))?;
            let claim = socket()?;
            if bind(&claim, &address).is_ok() {
                return Ok(Self { user: User { uid: id, gid: id }, _claim: Some(claim) });
            }
        }
        Err(StepFailure::new(Step::User, "find a free user id", rustix::io::Errno::BUSY))
    }
}

fn random_below(bound: u32) -> Result<u32, StepFailure> {
    let mut bytes = [0u8; 4];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .during(Step::User, || "get random bytes".into())?;
    Ok(u32::from_ne_bytes(bytes) % bound)
}

/// In the parent: maps one user and one group, and nothing else, into the child's namespace.
pub(crate) fn write_maps(child: Pid, identity: &Identity, host: &HostUser) -> Result<(), StepFailure> {
    let write = |file: &str, text: String| {
        let path = format!("/proc/{}/{file}", child.as_raw_nonzero());
        fs::write(&path, text).during(Step::User, || format!("write the sandbox's `{file}`"))
    };
    // An ordinary user may only map their group after giving up setgroups(2), which could otherwise shed a group
    // that denies access. Root keeps it, so that the child can shed root's own groups.
    if matches!(identity.outside, Outside::Same(_)) {
        write("setgroups", "deny".into())?;
    }
    write("uid_map", format!("{} {} 1", identity.inside.uid, host.user.uid))?;
    write("gid_map", format!("{} {} 1", identity.inside.gid, host.user.gid))
}

/// In the child, once the maps are written.
pub(crate) fn become_user(identity: &Identity) -> Result<(), StepFailure> {
    if matches!(identity.outside, Outside::OneOf { .. }) {
        rustix::thread::set_thread_groups(&[])
            .during(Step::User, || "leave the groups of this process".into())?;
    }
    let (uid, gid) = (Uid::from_raw(identity.inside.uid), Gid::from_raw(identity.inside.gid));
    rustix::thread::set_thread_res_gid(gid, gid, gid).during(Step::User, || format!("become group {gid}"))?;
    rustix::thread::set_thread_res_uid(uid, uid, uid).during(Step::User, || format!("become user {uid}"))
}
