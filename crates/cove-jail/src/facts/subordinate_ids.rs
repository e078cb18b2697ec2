//! subuid(5), newuidmap(1): the ids that an ordinary user may give to sandboxes, and which files a sandbox with such an
//! id could not read.

use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::StatVfsMountFlags;
use serde::{Deserialize, Serialize};

/// Ids beside their own that the user of this process may map, and the programs that do it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubordinateIds {
    pub first_user: u32,
    pub first_group: u32,
    pub count: u32,
    pub newuidmap: PathBuf,
    pub newgidmap: PathBuf,
    /// The folders for claims on ids, the best first.
    pub claims: Vec<PathBuf>,
}

/// Where distributions install newuidmap. It is not looked for on the search path, which could lead to another program.
const PROGRAM_FOLDERS: &[&str] = &["/usr/bin", "/bin", "/usr/local/bin", "/run/wrappers/bin"];
/// Fewer are not worth their trouble: engines of the same user use the lower half.
const MIN_RANGE: u32 = 1024;
/// How many files of mounts are looked at before a sandbox keeps the user's own id.
const MAX_CHECKED_FILES: usize = 20_000;
/// File systems that decide by more than mode and owner who may read, so that another user often may not: those of
/// programs of this user (FUSE) and of other machines. From linux/magic.h and statfs(2).
const FOREIGN_FILE_SYSTEMS: &[(u32, &str)] = &[
    (0x6573_5546, "FUSE"),
    (0x0000_6969, "NFS"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB"),
    (0x5346_414f, "AFS"),
    (0x6b41_4653, "AFS"),
    (0x0102_1997, "9P"),
    (0x00c3_6400, "Ceph"),
    (0x0bd0_0bd0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x7375_7245, "Coda"),
];

impl SubordinateIds {
    /// Finds the ids of an ordinary user. Fails with the reason why there are none.
    pub fn gather(uid: u32) -> Result<Self, String> {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        // A user of a directory service is in no file. If the environment names another one, newuidmap refuses.
        let named = || ["LOGNAME", "USER"].iter().find_map(|variable| std::env::var(variable).ok());
        let name = user_name(&read("/etc/passwd"), uid).or_else(named).unwrap_or_else(|| uid.to_string());
        let find = |program: &str| {
            let found = PROGRAM_FOLDERS.iter().map(|folder| Path::new(folder).join(program)).find(|path| path.exists());
            let found = found.ok_or_else(|| format!("`{program}` is not installed"))?;
            check_privileges(&found).map(|()| found)
        };
        let (newuidmap, newgidmap) = (find("newuidmap")?, find("newgidmap")?);
        let range = |file: &str| {
            let range = largest_range(&read(file), &name, uid).filter(|(_, count)| *count >= MIN_RANGE);
            range.ok_or_else(|| format!("`{file}` gives `{name}` fewer than {MIN_RANGE} ids"))
        };
        let ((first_user, users), (first_group, groups)) = (range("/etc/subuid")?, range("/etc/subgid")?);
        if read("/proc/self/status")
            .lines()
            .any(|line| line.strip_prefix("NoNewPrivs:").is_some_and(|on| on.trim() == "1"))
        {
            return Err("this process may start no setuid program such as `newuidmap` (`no_new_privs`)".into());
        }
        // Without the last two, which are `nobody` and its group in containers of the same range.
        let (half, count) = (users.min(groups) / 2, users.min(groups) / 2 - 2);
        let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
        let state = home.map(|home| home.join(".local/state/cove-user-ids"));
        // The home comes last: running code leaves nothing there unless another user holds the name in `/tmp`.
        let claims =
            [Some(format!("/run/user/{uid}/cove").into()), Some(format!("/tmp/cove-user-ids-{uid}").into()), state];
        Ok(Self {
            first_user: first_user + half,
            first_group: first_group + half,
            count,
            newuidmap,
            newgidmap,
            claims: claims.into_iter().flatten().collect(),
        })
    }
}

/// Fails if the kernel would start a program without the privileges that its file should give it. Such a newuidmap maps
/// nothing.
fn check_privileges(program: &Path) -> Result<(), String> {
    let is_setuid = fs::metadata(program).is_ok_and(|found| found.mode() & 0o4000 != 0);
    let has_capability = rustix::fs::getxattr(program, "security.capability", &mut [0u8; 0]).is_ok();
    if !is_setuid && !has_capability {
        return Err(format!("`{}` has neither a set-user-id bit nor a capability", program.display()));
    }
    if is_nosuid(program) {
        return Err(format!("`{}` is on a file system that is mounted with `nosuid`", program.display()));
    }
    Ok(())
}

fn is_nosuid(path: &Path) -> bool {
    rustix::fs::statvfs(path).is_ok_and(|mount| mount.f_flag.contains(StatVfsMountFlags::NOSUID))
}

/// Returns the name of a user in the text of passwd(5).
pub(crate) fn user_name(passwd: &str, uid: u32) -> Option<String> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == uid.to_string()).then(|| name.to_owned())
    })
}

/// Returns the largest range of a user as first id and count. The lines are: name or number, first id, count.
fn largest_range(text: &str, name: &str, uid: u32) -> Option<(u32, u32)> {
    let ranges = text.lines().filter_map(|line| {
        let mut fields = line.trim().split(':');
        let owner = fields.next()?;
        let (first, count) = (fields.next()?.parse::<u32>().ok()?, fields.next()?.parse::<u32>().ok()?);
        let is_theirs = owner == name || owner == uid.to_string();
        (is_theirs && first > 0 && first.checked_add(count)? < u32::MAX).then_some((first, count))
    });
    ranges.max_by_key(|&(_, count)| count)
}

/// Returns the name of the foreign file system with this number, if it is one.
fn foreign_file_system(magic: u32) -> Option<&'static str> {
    FOREIGN_FILE_SYSTEMS.iter().find(|(known, _)| *known == magic).map(|(_, name)| *name)
}

/// Returns a reason why a sandbox that is another user could not use what this user can in these files and folders, if
/// there is one: a file that is closed to others, a foreign file system, or too many files to look at.
pub(super) fn find_closed(sources: &[PathBuf]) -> Option<String> {
    let person = PersonIds {
        uid: rustix::process::geteuid().as_raw(),
        groups: rustix::process::getgroups().unwrap_or_default().iter().map(|group| group.as_raw()).collect(),
        gid: rustix::process::getegid().as_raw(),
    };
    let mut left = MAX_CHECKED_FILES;
    sources.iter().find_map(|source| {
        // A source that cannot be looked at is reported when it is mounted.
        let found = fs::metadata(source).ok()?;
        person.find_closed(source, &found, None, &mut left)
    })
}

/// The ids by which the kernel decides what this user may read.
struct PersonIds {
    uid: u32,
    gid: u32,
    groups: BTreeSet<u32>,
}

impl PersonIds {
    /// `device` is that of the folder above, if it was looked at.
    fn find_closed(&self, path: &Path, found: &Metadata, device: Option<u64>, left: &mut usize) -> Option<String> {
        if *left == 0 {
            return Some(format!(
                "there are more than {MAX_CHECKED_FILES} files to look at, up to `{}`",
                path.display()
            ));
        }
        *left -= 1;
        if device != Some(found.dev()) {
            let magic = rustix::fs::statfs(path).map_or(0, |system| system.f_type as u32);
            if let Some(name) = foreign_file_system(magic) {
                return Some(format!("`{}` is on {name}, which may refuse others", path.display()));
            }
        }
        let rights = match found {
            _ if found.uid() == self.uid => found.mode() >> 6,
            _ if found.gid() == self.gid || self.groups.contains(&found.gid()) => found.mode() >> 3,
            _ => found.mode(),
        };
        // What this user may read or execute, and others may not.
        if rights & !found.mode() & 0o5 != 0 {
            return Some(format!("`{}` is closed to others", path.display()));
        }
        if !found.is_dir() || rights & 0o5 != 0o5 {
            return None;
        }
        let device_of_folder = found.dev();
        fs::read_dir(path).ok()?.flatten().find_map(|entry| {
            // Not following links: what they lead to is mounted or not for itself.
            let found = entry.metadata().ok().filter(|found| !found.is_symlink())?;
            self.find_closed(&entry.path(), &found, Some(device_of_folder), left)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn reads_the_largest_range_of_a_user() {
        let text = "other:1:9999\nme:100000:1000\nme:300000:65536\n1000:5:7\nme:4294967290:100\nme:x:y\n";
        assert_eq!(largest_range(text, "me", 1000), Some((300_000, 65536)));
        assert_eq!(largest_range(text, "you", 1000), Some((5, 7)));
        assert_eq!(largest_range(text, "you", 1001), None);
    }

    #[test]
    fn a_program_without_privileges_maps_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("newuidmap");
        fs::write(&program, "").unwrap();
        let set = |mode| fs::set_permissions(&program, fs::Permissions::from_mode(mode)).unwrap();
        set(0o755);
        let reason = check_privileges(&program).unwrap_err();
        assert!(reason.ends_with("has neither a set-user-id bit nor a capability"), "{reason}");
        set(0o4755);
        assert_eq!(check_privileges(&program).is_ok(), !is_nosuid(&program));
        assert!(check_privileges(&folder.path().join("missing")).is_err());
    }

    #[test]
    fn knows_foreign_file_systems() {
        assert_eq!(foreign_file_system(libc::FUSE_SUPER_MAGIC as u32), Some("FUSE"));
        assert_eq!(foreign_file_system(libc::NFS_SUPER_MAGIC as u32), Some("NFS"));
        assert_eq!(foreign_file_system(libc::TMPFS_MAGIC as u32), None);
        assert_eq!(foreign_file_system(libc::EXT4_SUPER_MAGIC as u32), None);
    }

    #[test]
    fn finds_files_that_are_closed_to_others() {
        let folder = tempfile::tempdir().unwrap();
        let (open, below) = (folder.path().join("open"), folder.path().join("open/below"));
        fs::create_dir_all(&below).unwrap();
        let file = below.join("file");
        fs::write(&file, "").unwrap();
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        set(&open, 0o755);
        set(&below, 0o755);
        set(&file, 0o644);
        assert_eq!(find_closed(std::slice::from_ref(&open)), None);
        for (path, mode) in [(&file, 0o600), (&file, 0o744), (&below, 0o700), (&open, 0o750)] {
            set(path, mode);
            let reason = find_closed(std::slice::from_ref(&open)).unwrap();
            assert_eq!(reason, format!("`{}` is closed to others", path.display()));
            set(path, if path.is_dir() { 0o755 } else { 0o644 });
        }
        // Nor can this user read it.
        set(&file, 0o000);
        assert_eq!(find_closed(&[open]), None);
    }
}
