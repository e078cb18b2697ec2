//! Files for the host, read and written from inside the sandbox, as its user and under its limits: whatever a path leads
//! to, it leads to nothing that the code could not reach itself. Only regular files and folders below the workspace; a
//! named pipe, a socket or a device could make the runner wait for ever.
//!
//! The code may change the tree while we walk it. Every path is resolved by the kernel in one call, openat2(2), below a
//! folder that is held open, and what was opened is looked at before it is used.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use cove_protocol::limits::{MAX_ENTRIES, MAX_FILE_WRITE, MAX_META, MAX_PATH};
use cove_protocol::{Entry, FileKind, Problem};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

/// The folder that requests are about.
pub(crate) struct Files {
    root: PathBuf,
    folder: OwnedFd,
}

/// A folder's entries, and how many more there are.
pub(crate) struct Listed {
    pub(crate) entries: Vec<Entry>,
    pub(crate) left_out: u64,
}

impl Files {
    pub(crate) fn open(root: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(root, flags, Mode::empty())?;
        Ok(Self { root: root.to_owned(), folder })
    }

    /// The file appears whole under its name, or not at all. Folders on the way are made.
    pub(crate) fn put(&self, path: &str, content: &[u8]) -> Result<u64, Problem> {
        if content.len() > MAX_FILE_WRITE {
            return Err(Problem::TooLarge { size: content.len() as u64, most: MAX_FILE_WRITE as u64 });
        }
        let below = self.below(path)?;
        let Some(name) = below.file_name() else {
            return Err(Problem::NotAFile { kind: FileKind::Folder });
        };
        let parent = self.make_folders(below.parent().unwrap_or(Path::new("")))?;
        // What stands there is replaced if it is a file, or a link, which is replaced itself and not followed.
        match rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => match kind_of(FileType::from_raw_mode(found.st_mode)) {
                FileKind::File | FileKind::Link => {}
                kind => return Err(Problem::NotAFile { kind }),
            },
            Err(Errno::NOENT) => {}
            Err(error) => return Err(problem(error)),
        }
        let (temporary, file) = create_beside(&parent)?;
        let stored =
            write_all(&file, content).and_then(|()| rustix::fs::renameat(&parent, &temporary, &parent, name));
        if let Err(error) = stored {
            let _ = rustix::fs::unlinkat(&parent, &temporary, AtFlags::empty());
            return Err(problem(error));
        }
        Ok(content.len() as u64)
    }

    pub(crate) fn get(&self, path: &str, most: u64) -> Result<Vec<u8>, Problem> {
        // Without waiting, in case it is a named pipe.
        let file = self.resolve(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
        let found = rustix::fs::fstat(&file).map_err(problem)?;
        match kind_of(FileType::from_raw_mode(found.st_mode)) {
            FileKind::File => {}
            kind => return Err(Problem::NotAFile { kind }),
        }
        let size = found.st_size.max(0) as u64;
        if size > most {
            return Err(Problem::TooLarge { size, most });
        }
        // It may have grown since; one byte more than allowed is enough to know.
        let mut content = Vec::with_capacity(size as usize);
        let mut buffer = [0u8; 64 * 1024];
        loop {
            let count =
                rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut buffer)).map_err(problem)?;
            if count == 0 {
                return Ok(content);
            }
            content.extend_from_slice(&buffer[..count]);
            if content.len() as u64 > most {
                return Err(Problem::TooLarge { size: content.len() as u64, most });
            }
        }
    }

    pub(crate) fn list(&self, path: &str) -> Result<Listed, Problem> {
        let folder = match self.resolve(path, OFlags::RDONLY | OFlags::DIRECTORY) {
            Err(Problem::NotAFile { .. }) => return Err(Problem::NotAFolder {}),
            other => other?,
        };
        let mut entries = Vec::new();
        for entry in Dir::read_from(&folder).map_err(problem)? {
            let entry = entry.map_err(problem)?;
            let name = entry.file_name();
            if name.to_bytes() == b"." || name.to_bytes() == b".." {
                continue;
            }
            // It may be gone by now.
            let Ok(found) = rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            entries.push(Entry {
                name: String::from_utf8_lossy(name.to_bytes()).into_owned(),
                kind: kind_of(FileType::from_raw_mode(found.st_mode)),
                size: found.st_size.max(0) as u64,
            });
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        let fits = fitting(&entries);
        let left_out = (entries.len() - fits) as u64;
        entries.truncate(fits);
        Ok(Listed { entries, left_out })
    }

    /// The part of a path below the workspace, without `.` and `..`.
    fn below(&self, path: &str) -> Result<PathBuf, Problem> {
        let bad = |reason: &str| Problem::BadPath { reason: reason.into() };
        if path.is_empty() {
            return Err(bad("it is empty"));
        }
        if path.contains('\0') {
            return Err(bad("it has a NUL byte"));
        }
        if path.len() > MAX_PATH {
            return Err(bad("it is too long"));
        }
        let path = Path::new(path);
        let path = if path.is_absolute() {
            path.strip_prefix(&self.root).map_err(|_| Problem::Outside {})?
        } else {
            path
        };
        let mut below = PathBuf::new();
        for part in path.components() {
            match part {
                Component::Normal(name) if name.len() > 255 => return Err(bad("a name in it is too long")),
                Component::Normal(name) => below.push(name),
                Component::CurDir => {}
                // By its text alone it would be wrong behind a link; nobody needs it here.
                Component::ParentDir => return Err(bad("it has a `..`")),
                Component::RootDir | Component::Prefix(_) => return Err(Problem::Outside {}),
            }
        }
        Ok(below)
    }

    /// Opens what a path leads to. Links are followed as long as they stay below the workspace.
    fn resolve(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Problem> {
        let below = self.below(path)?;
        let below = if below.as_os_str().is_empty() { Path::new(".") } else { &below };
        self.open_below(below, flags)
    }

    fn open_below(&self, below: &Path, flags: OFlags) -> Result<OwnedFd, Problem> {
        let flags = flags | OFlags::CLOEXEC;
        let confined = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let opened = match openat2(&self.folder, below, flags, Mode::empty(), confined) {
            // A link with an absolute target may still lead back below the workspace.
            Err(Errno::XDEV) => return self.open_by_name(below, flags),
            opened => opened,
        };
        opened.map_err(|error| match error {
            // Opening a socket or a device without its driver.
            Errno::NXIO | Errno::NODEV => Problem::NotAFile { kind: FileKind::Socket },
            Errno::NOTDIR if flags.contains(OFlags::DIRECTORY) => Problem::NotAFolder {},
            other => problem(other),
        })
    }

    /// Wherever links lead, and then a look at where that is.
    fn open_by_name(&self, below: &Path, flags: OFlags) -> Result<OwnedFd, Problem> {
        let opened =
            openat2(CWD, self.root.join(below), flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS)
                .map_err(|error| if error == Errno::LOOP { Problem::Outside {} } else { problem(error) })?;
        let name = format!("/proc/self/fd/{}", opened.as_raw_fd());
        match std::fs::read_link(name) {
            Ok(real) if real.starts_with(&self.root) => Ok(opened),
            _ => Err(Problem::Outside {}),
        }
    }

    fn make_folders(&self, below: &Path) -> Result<OwnedFd, Problem> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let mut so_far = PathBuf::new();
        let mut folder = self.open_below(Path::new("."), flags)?;
        for part in below.components() {
            match rustix::fs::mkdirat(&folder, Path::new(part.as_os_str()), Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(problem(error)),
            }
            so_far.push(part);
            folder = self.open_below(&so_far, flags)?;
        }
        Ok(folder)
    }
}

/// How many entries fit into one answer.
fn fitting(entries: &[Entry]) -> usize {
    let mut room = MAX_META / 2;
    let mut count = 0;
    for entry in entries.iter().take(MAX_ENTRIES) {
        // JSON may write six characters for one byte.
        let cost = entry.name.len() * 6 + 64;
        if cost > room {
            break;
        }
        room -= cost;
        count += 1;
    }
    count
}

fn create_beside(folder: &OwnedFd) -> Result<(String, OwnedFd), Problem> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    // The code may have put files of these names there: then the next one is tried.
    for attempt in 0..64 {
        let name = format!(".cove-{}-{attempt}.part", std::process::id());
        match rustix::fs::openat(folder, &name, flags, Mode::from_raw_mode(0o644)) {
            Ok(file) => return Ok((name, file)),
            Err(Errno::EXIST) => {}
            Err(error) => return Err(problem(error)),
        }
    }
    Err(Problem::Other { message: "there is no free name for a temporary file".into() })
}

fn write_all(file: &OwnedFd, mut rest: &[u8]) -> rustix::io::Result<()> {
    while !rest.is_empty() {
        let count = rustix::io::retry_on_intr(|| rustix::io::write(file.as_fd(), rest))?;
        rest = &rest[count..];
    }
    Ok(())
}

fn kind_of(kind: FileType) -> FileKind {
    match kind {
        FileType::Directory => FileKind::Folder,
        FileType::Symlink => FileKind::Link,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::CharacterDevice | FileType::BlockDevice => FileKind::Device,
        _ => FileKind::File,
    }
}

fn problem(error: Errno) -> Problem {
    match error {
        Errno::NOENT => Problem::NotFound {},
        Errno::NOTDIR => Problem::NotAFolder {},
        Errno::ISDIR => Problem::NotAFile { kind: FileKind::Folder },
        Errno::XDEV => Problem::Outside {},
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => Problem::NoSpace {},
        Errno::ACCESS | Errno::PERM | Errno::ROFS => Problem::Denied {},
        Errno::NAMETOOLONG => Problem::BadPath { reason: "it is too long".into() },
        Errno::LOOP => Problem::BadPath { reason: "its links lead in a circle".into() },
        other => Problem::Other { message: io::Error::from(other).to_string() },
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    fn workspace() -> (tempfile::TempDir, Files) {
        let outer = tempfile::tempdir().unwrap();
        fs::create_dir(outer.path().join("workspace")).unwrap();
        fs::write(outer.path().join("outside"), "secret").unwrap();
        fs::create_dir(outer.path().join("workspace_evil")).unwrap();
        let files = Files::open(&outer.path().join("workspace")).unwrap();
        (outer, files)
    }

    #[test]
    fn a_file_goes_in_and_comes_out() {
        let (outer, files) = workspace();
        assert_eq!(files.put("a/b/c.bin", b"\0\xff"), Ok(2));
        assert_eq!(files.get("a/b/c.bin", 10), Ok(b"\0\xff".to_vec()));
        let absolute = outer.path().join("workspace/a/b/c.bin");
        assert_eq!(files.get(absolute.to_str().unwrap(), 10), Ok(b"\0\xff".to_vec()));
        assert_eq!(files.put("a/b/c.bin", b"new"), Ok(3));
        assert_eq!(files.get("./a//b/c.bin", 3), Ok(b"new".to_vec()));
        let names: Vec<String> =
            files.list("a/b").unwrap().entries.into_iter().map(|entry| entry.name).collect();
        assert_eq!(names, ["c.bin"], "no temporary file is left");
    }

    #[test]
    fn paths_stay_below_the_workspace() {
        let (outer, files) = workspace();
        let check = |path: &str| {
            for result in [files.get(path, 10).err(), files.put(path, b"x").err(), files.list(path).err()] {
                assert!(
                    matches!(result, Some(Problem::BadPath { .. } | Problem::Outside {})),
                    "{path:?}: {result:?}"
                );
            }
        };
        for path in ["", "..", "../outside", "a/../../outside", "/etc/passwd", "a\0b", &"x".repeat(5000)] {
            check(path);
        }
        check(&"x/".repeat(3000));
        check(&format!("{}/workspace_evil/x", outer.path().display()));
        check(&format!("a/{}", "n".repeat(300)));
        assert_eq!(fs::read_to_string(outer.path().join("outside")).unwrap(), "secret");
    }

    #[test]
    fn links_are_followed_inside_and_nowhere_else() {
        let (outer, files) = workspace();
        let inside = outer.path().join("workspace");
        files.put("real", b"here").unwrap();
        symlink("real", inside.join("relative")).unwrap();
        symlink(outer.path().join("outside"), inside.join("absolute")).unwrap();
        symlink("../outside", inside.join("climbing")).unwrap();
        symlink("..", inside.join("up")).unwrap();
        symlink("loop", inside.join("loop")).unwrap();
        symlink("/proc/self/root", inside.join("magic")).unwrap();
        symlink(inside.join("real"), inside.join("back")).unwrap();
        assert_eq!(files.get("relative", 10), Ok(b"here".to_vec()));
        assert_eq!(files.get("back", 10), Ok(b"here".to_vec()), "an absolute link that stays inside");
        for path in ["absolute", "climbing", "up/outside", "magic/etc/passwd"] {
            assert!(
                matches!(files.get(path, 100), Err(Problem::Outside {} | Problem::BadPath { .. })),
                "{path}"
            );
        }
        assert!(matches!(files.get("loop", 10), Err(Problem::BadPath { .. })));
        assert!(matches!(files.put("up/new", b"x"), Err(Problem::Outside {})));
        // A link at the target is replaced, not written through.
        assert_eq!(files.put("absolute", b"mine"), Ok(4));
        assert_eq!(fs::read_to_string(outer.path().join("outside")).unwrap(), "secret");
        assert_eq!(files.get("absolute", 10), Ok(b"mine".to_vec()));
    }

    #[test]
    fn what_is_not_a_file_is_refused_at_once() {
        let (outer, files) = workspace();
        let inside = outer.path().join("workspace");
        fs::create_dir(inside.join("folder")).unwrap();
        let made = std::process::Command::new("mkfifo").arg(inside.join("pipe")).status().unwrap();
        assert!(made.success());
        let _socket = UnixListener::bind(inside.join("socket")).unwrap();
        for (path, kind) in
            [("folder", FileKind::Folder), ("pipe", FileKind::Fifo), ("socket", FileKind::Socket)]
        {
            assert_eq!(files.get(path, 10), Err(Problem::NotAFile { kind }), "{path}");
            assert_eq!(files.put(path, b"x"), Err(Problem::NotAFile { kind }), "{path}");
        }
        assert_eq!(files.put(".", b"x"), Err(Problem::NotAFile { kind: FileKind::Folder }));
        files.put("file", b"x").unwrap();
        assert!(matches!(files.list("file"), Err(Problem::NotAFolder {})));
        assert!(matches!(files.put("file/below", b"x"), Err(Problem::NotAFolder {})));
        assert!(matches!(files.get("missing", 10), Err(Problem::NotFound {})));
        assert!(matches!(files.list("missing"), Err(Problem::NotFound {})));
    }

    #[test]
    fn sizes_are_bounded() {
        let (_outer, files) = workspace();
        let large = vec![0; MAX_FILE_WRITE + 1];
        assert!(matches!(files.put("large", &large), Err(Problem::TooLarge { .. })));
        assert!(matches!(files.get("large", 10), Err(Problem::NotFound {})));
        files.put("eleven", b"01234567890").unwrap();
        assert_eq!(files.get("eleven", 10), Err(Problem::TooLarge { size: 11, most: 10 }));
    }

    #[test]
    fn long_folders_are_cut_and_counted() {
        let (outer, files) = workspace();
        let inside = outer.path().join("workspace");
        for n in 0..MAX_ENTRIES + 5 {
            fs::write(inside.join(format!("f{n:05}")), "").unwrap();
        }
        fs::write(inside.join(OsStr::from_bytes(b"\xff")), "").unwrap();
        let listed = files.list(".").unwrap();
        assert_eq!((listed.entries.len(), listed.left_out), (MAX_ENTRIES, 6));
        assert_eq!(listed.entries[0].name, "f00000");
    }
}
