//! Who may change or replace a file: every user who may write to it, or rename an entry of its folder, of a folder on the
//! way to it, or of one that a link on the way leads through.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::process::geteuid;

use super::UnsafeFileError;
use crate::link_path::resolve_links;

const STICKY: u32 = 0o1000;
/// Root may replace every file, so a folder that only root can change is as good as one's own.
const ROOT: u32 = 0;

/// Fails if another user could change or replace the file or folder that a path leads to. Looks at every folder on the
/// way. A part of the path that does not exist yet is not looked at: Cove creates it for this user alone.
pub fn check_path(path: &Path) -> Result<(), UnsafeFileError> {
    resolve_links(path, check_entry).map(drop)
}

/// Fails if another user owns a file, folder or link, may write to the file, or may rename what is in the folder.
fn check_entry(path: &Path, found: &Metadata) -> Result<(), UnsafeFileError> {
    let (owner, user, mode) = (found.uid(), geteuid().as_raw(), found.mode() & 0o7777);
    if ![ROOT, user].contains(&owner) && !is_unmapped(owner) {
        return Err(UnsafeFileError::OtherFolderOwner { folder: path.to_owned(), owner, user });
    }
    let is_open = mode & 0o002 != 0 || mode & 0o020 != 0 && !is_own_group(path, found.gid());
    // In a sticky folder such as `/tmp`, only the owner of an entry can rename it. Kubernetes shows its configuration in
    // folders that are open to all, and mounted read-only.
    let is_harmless = || found.is_dir() && mode & STICKY != 0 || is_read_only(path);
    match found.is_dir() {
        _ if found.is_symlink() || !is_open || is_harmless() => Ok(()),
        true => Err(UnsafeFileError::SharedFolder { folder: path.to_owned(), owner, mode }),
        false => Err(UnsafeFileError::OpenToOthers { mode }),
    }
}

fn is_read_only(path: &Path) -> bool {
    rustix::fs::statvfs(path).is_ok_and(|mount| mount.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY))
}

/// True if a user namespace without this id shows it for users that it does not have, such as the machine's root.
fn is_unmapped(id: u32) -> bool {
    let overflow = fs::read_to_string("/proc/sys/kernel/overflowuid").ok().and_then(|text| text.trim().parse().ok());
    if overflow != Some(id) {
        return false;
    }
    let has_id = |line: &str| {
        let mut fields = line.split_whitespace().filter_map(|field| field.parse::<u64>().ok());
        let (first, _, count) = (fields.next()?, fields.next()?, fields.next()?);
        (first..first + count).contains(&u64::from(id)).then_some(())
    };
    fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| !map.lines().any(|line| has_id(line).is_some()))
}

/// True if only this user is in the group, as on systems where every user has a group. Then new folders are often
/// writable for the group. Asks the lists of users and not this process, whose group may be another one (`newgrp docker`). An access control list shows the most that it grants as the rights of the group.
fn is_own_group(folder: &Path, group: u32) -> bool {
    let has_list = rustix::fs::getxattr(folder, "system.posix_acl_access", &mut [0u8; 0]).is_ok();
    if has_list {
        return false;
    }
    if group == ROOT {
        return true;
    }
    let [Ok(users), Ok(groups)] = ["/etc/passwd", "/etc/group"].map(fs::read_to_string) else { return false };
    is_alone_in_group(&users, &groups, geteuid().as_raw(), group)
}

fn is_alone_in_group(users: &str, groups: &str, user: u32, group: u32) -> bool {
    let id = |field: Option<&str>| field.and_then(|field| field.parse::<u32>().ok());
    let (mut own_name, mut is_member) = (None, false);
    for line in users.lines() {
        let fields: Vec<&str> = line.split(':').collect();
        let (its_user, its_group) = (id(fields.get(2).copied()), id(fields.get(3).copied()));
        if its_user == Some(user) {
            own_name = fields.first().copied();
            is_member |= its_group == Some(group);
        } else if its_group == Some(group) {
            return false;
        }
    }
    let lines = groups.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let members = lines
        .filter(|fields| id(fields.get(2).copied()) == Some(group))
        .flat_map(|fields| fields.get(3).map_or(Vec::new(), |names| names.split(',').collect()))
        .filter(|name| !name.is_empty());
    for member in members {
        if Some(member) != own_name {
            return false;
        }
        is_member = true;
    }
    // A group without members may belong to a program, such as Debian's `staff` and `mail`.
    own_name.is_some() && is_member
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn refuses_folders_that_others_can_change() {
        let dir = tempfile::tempdir().unwrap();
        let [outer, inner] = ["outer", "outer/inner"].map(|name| dir.path().join(name));
        fs::create_dir_all(&inner).unwrap();
        check_path(&inner).unwrap();
        check_path(&inner.join("missing/more")).unwrap();
        for mode in [0o777, 0o757, 0o702] {
            set_mode(&outer, mode);
            let error = check_path(&inner).unwrap_err();
            assert!(matches!(&error, UnsafeFileError::SharedFolder { folder, .. } if *folder == outer), "{error}");
            assert!(check_path(&outer.join("missing/more")).is_err());
        }
        // As `/tmp`: entries cannot be renamed by other users.
        set_mode(&outer, 0o1777);
        check_path(&inner).unwrap();
    }

    #[test]
    fn looks_at_every_folder_that_links_lead_through() {
        let dir = tempfile::tempdir().unwrap();
        let [own, shared] = ["own", "shared"].map(|name| dir.path().join(name));
        fs::create_dir(&own).unwrap();
        fs::create_dir(&shared).unwrap();
        // The second link could be replaced, although both ends are safe.
        symlink("../shared/second", own.join("first")).unwrap();
        symlink(&own, shared.join("second")).unwrap();
        check_path(&own.join("first")).unwrap();
        set_mode(&shared, 0o777);
        assert!(matches!(check_path(&own.join("first/below")), Err(UnsafeFileError::SharedFolder { .. })));
        check_path(&own).unwrap();
        symlink("loop", own.join("loop")).unwrap();
        assert!(matches!(check_path(&own.join("loop")), Err(UnsafeFileError::Io(_))));
    }

    #[test]
    fn refuses_folders_and_links_of_other_users() {
        if !geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let [own, link] = ["own", "link"].map(|name| dir.path().join(name));
        fs::create_dir(&own).unwrap();
        symlink(&own, &link).unwrap();
        check_path(&link).unwrap();
        std::os::unix::fs::lchown(&link, Some(4321), None).unwrap();
        assert!(matches!(check_path(&link), Err(UnsafeFileError::OtherFolderOwner { owner: 4321, .. })));
        chown(&own, Some(4321), None).unwrap();
        assert!(matches!(check_path(&own.join("x")), Err(UnsafeFileError::OtherFolderOwner { owner: 4321, .. })));
    }

    #[test]
    fn a_group_is_own_if_no_other_user_is_in_it() {
        let users = "root:x:0:0::/root:/bin/sh\nme:x:1000:1000::/home/me:/bin/sh\nyou:x:1001:1001::/:/bin/sh\n";
        let check = |groups: &str, group| is_alone_in_group(users, groups, 1000, group);
        assert!(check("me:x:1000:\n", 1000) && check("me:x:1000:me\n", 1000) && check("", 1000));
        assert!(!check("me:x:1000:me,you\n", 1000) && !check("staff:x:50:you\n", 50) && !check("", 1001));
        assert!(check("mine:x:50:me\n", 50) && !check("staff:x:50:\n", 50) && !check("", 50), "not a member");
        assert!(!is_alone_in_group(users, "", 1234, 1234), "a user of another source of names");
    }
}
