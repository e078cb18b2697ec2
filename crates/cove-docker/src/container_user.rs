//! Which user the code of a container is. The kernel counts inotify instances, watched descriptors, descriptors in
//! flight, pipe pages and processes for each user of the machine, and root's engine gives a container no user
//! namespace. So each container has a user of its own, unless the operator chose one.

use super::engine::EngineFacts;
use cove_core::policy::{MountAccess, Policy, SandboxUser};
use cove_core::random::random_bits;

/// The default of `--user`.
const NOBODY: SandboxUser = SandboxUser { uid: 65534, gid: 65534 };
/// First id and count. Above every range that distributions hand out, and that the embedded sandbox uses, and below
/// 2^31, because engines take no larger ids. Large enough that two containers have the same id by chance only in theory.
const OWN_USERS: (u32, u32) = (0x7100_0000, 0x0100_0000);
/// The same in a user namespace, which has 65,536 ids, the users of images among the first of them.
const OWN_MAPPED_USERS: (u32, u32) = (0x8000, 0x7ff0);

/// Returns the ids of which each container gets one, as first id and count. Returns `None` if all containers of the policy
/// have the same: the operator chose it, or files that they write on this machine must have one owner.
pub(super) fn own_users(policy: &Policy, facts: &EngineFacts) -> Option<(u32, u32)> {
    let is_writable = policy.mounts.iter().any(|mount| mount.access == MountAccess::ReadWrite);
    if policy.user != NOBODY || is_writable {
        return None;
    }
    Some(if facts.rootless || facts.maps_users { OWN_MAPPED_USERS } else { OWN_USERS })
}

/// Returns the policy of one container, with a user of its own where it gets one.
pub(super) fn with_own_user(policy: &Policy, facts: &EngineFacts) -> Policy {
    let mut policy = policy.clone();
    if let Some((first, count)) = own_users(&policy, facts) {
        let id = first + (random_bits() % u128::from(count)) as u32;
        policy.user = SandboxUser { uid: id, gid: id };
    }
    policy
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::engine::Engine;
    use super::super::plan::tests::{facts, policy};
    use super::*;
    use cove_core::policy::SandboxMount;

    #[test]
    fn each_container_has_a_user_of_its_own() {
        let facts = facts(Engine::Docker);
        let users: BTreeSet<u32> = (0..100).map(|_| with_own_user(&policy(), &facts).user.uid).collect();
        assert_eq!(users.len(), 100);
        assert!(users.iter().all(|uid| (0x7100_0000..0x7200_0000).contains(uid)), "{users:?}");
        let mapped = EngineFacts { maps_users: true, ..facts };
        assert!((0x8000..0xfff0).contains(&with_own_user(&policy(), &mapped).user.uid));
    }

    #[test]
    fn a_chosen_user_and_writable_mounts_keep_the_user() {
        let facts = facts(Engine::Docker);
        let chosen = Policy { user: SandboxUser { uid: 1000, gid: 100 }, ..policy() };
        assert_eq!(with_own_user(&chosen, &facts), chosen);
        let mount = |access| SandboxMount { source: "/data".into(), target: "/data".into(), access };
        let writable = Policy { mounts: vec![mount(MountAccess::ReadWrite)], ..policy() };
        assert_eq!(with_own_user(&writable, &facts), writable);
        let readable = Policy { mounts: vec![mount(MountAccess::ReadOnly)], ..policy() };
        assert_ne!(with_own_user(&readable, &facts), readable);
    }
}
