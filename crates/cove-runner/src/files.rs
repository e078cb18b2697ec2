//! Reads and writes files for the host from inside the sandbox, as its user and under its limits: wherever a path
//! leads, the code itself could reach the same file. Only regular files and folders below the workspace are allowed; a
//! named pipe, a socket or a device could make the runner wait forever.
//!
//! The code may change the tree at the same time. So the runner takes every path step by step from a folder that it
//! holds open, never lets the kernel follow a link, and checks what it has opened before it uses it. openat2(2) would do
//! this in one call, but the filter refuses it to every process of the sandbox.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use cove_protocol::limits::{MAX_ENTRIES, MAX_FILE_WRITE, MAX_META, MAX_PATH};
use cove_protocol::{FileEntry, FileKind, FileProblem, escape_name, unescape_path};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

/// The kernel's own limit of links in one path.
const MAX_LINKS: usize = 40;
/// The most steps that one path may take, with its links: a hostile tree could make each link as long as a path.
const MAX_STEPS: usize = 8192;

/// The workspace, held open.
pub(crate) struct WorkspaceFiles {
    root: PathBuf,
    folder: OwnedFd,
}

/// The entries of a folder, and how many more it has.
pub(crate) struct FolderListing {
    pub(crate) entries: Vec<FileEntry>,
    pub(crate) left_out: u64,
}

impl WorkspaceFiles {
    /// Opens the workspace. Fails if it is not a folder.
    pub(crate) fn open(root: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(root, flags, Mode::empty())?;
        Ok(Self { root: root.to_owned(), folder })
    }

    /// Writes a file and returns its size. The file appears whole under its name, or not at all. Missing folders are
    /// made.
    pub(crate) fn put(&self, path: &str, content: &[u8]) -> Result<u64, FileProblem> {
        if content.len() > MAX_FILE_WRITE {
            return Err(FileProblem::TooLarge { size: content.len() as u64, most: MAX_FILE_WRITE as u64 });
        }
        let below = self.relative(path)?;
        let Some(name) = below.file_name() else {
            return Err(FileProblem::NotAFile { kind: FileKind::Folder });
        };
        let parent = self.make_folders(below.parent().unwrap_or(Path::new("")))?;
        // An existing file is replaced. A link is replaced too, and not followed.
        match rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(existing) => match kind_of(&existing) {
                FileKind::File | FileKind::Link => {}
                kind => return Err(FileProblem::NotAFile { kind }),
            },
            Err(Errno::NOENT) => {}
            Err(error) => return Err(problem(error)),
        }
        // Written under another name and renamed, so that the code never sees half a file.
        let (temporary, mut file) = create_temporary(&parent)?;
        let stored =
            file.write_all(content).and_then(|()| Ok(rustix::fs::renameat(&parent, &temporary, &parent, name)?));
        if let Err(error) = stored {
            let _ = rustix::fs::unlinkat(&parent, &temporary, AtFlags::empty());
            return Err(problem(error));
        }
        Ok(content.len() as u64)
    }

    /// Returns the content of a file of at most `most` bytes.
    pub(crate) fn get(&self, path: &str, most: u64) -> Result<Vec<u8>, FileProblem> {
        // NONBLOCK, because opening a named pipe would wait for a writer.
        let file = File::from(self.resolve(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?);
        let stat = rustix::fs::fstat(&file).map_err(problem)?;
        match kind_of(&stat) {
            FileKind::File => {}
            kind => return Err(FileProblem::NotAFile { kind }),
        }
        let size = stat.st_size.max(0) as u64;
        if size > most {
            return Err(FileProblem::TooLarge { size, most });
        }
        // The file may have grown since, so one byte too many is read to check the size again.
        let mut content = Vec::with_capacity(size as usize);
        file.take(most.saturating_add(1)).read_to_end(&mut content).map_err(problem)?;
        match content.len() as u64 {
            size if size > most => Err(FileProblem::TooLarge { size, most }),
            _ => Ok(content),
        }
    }

    /// Returns the entries of a folder, sorted by name, as many as fit into one answer.
    pub(crate) fn list(&self, path: &str) -> Result<FolderListing, FileProblem> {
        let folder = match self.resolve(path, OFlags::RDONLY | OFlags::DIRECTORY) {
            Err(FileProblem::NotAFile { .. }) => return Err(FileProblem::NotAFolder {}),
            other => other?,
        };
        let mut entries = Vec::new();
        for entry in Dir::read_from(&folder).map_err(problem)? {
            let entry = entry.map_err(problem)?;
            let name = entry.file_name();
            if name.to_bytes() == b"." || name.to_bytes() == b".." {
                continue;
            }
            // The code may have removed it by now.
            let Ok(stat) = rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            entries.push(FileEntry {
                // The host decides which characters a person does not see.
                name: escape_name(name.to_bytes(), |_, _| false),
                kind: kind_of(&stat),
                size: stat.st_size.max(0) as u64,
            });
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        let count = count_fitting(&entries);
        let left_out = (entries.len() - count) as u64;
        entries.truncate(count);
        Ok(FolderListing { entries, left_out })
    }

    /// Returns a path relative to the workspace, without `.`. Fails if the path leads outside or is not valid.
    fn relative(&self, path: &str) -> Result<PathBuf, FileProblem> {
        let bad = |reason: &str| FileProblem::BadPath { reason: reason.into() };
        if path.is_empty() {
            return Err(bad("it is empty"));
        }
        // From here on only what the escapes stand for counts: one may stand for `/`, for `.` or for NUL.
        let path = unescape_path(path);
        if path.contains(&0) {
            return Err(bad("it has a NUL byte"));
        }
        if path.len() > MAX_PATH {
            return Err(bad("it is too long"));
        }
        let path = Path::new(OsStr::from_bytes(&path));
        let path =
            if path.is_absolute() { path.strip_prefix(&self.root).map_err(|_| FileProblem::Outside {})? } else { path };
        let mut below = PathBuf::new();
        for part in path.components() {
            match part {
                Component::Normal(name) if name.len() > 255 => return Err(bad("a name in it is too long")),
                Component::Normal(name) => below.push(name),
                Component::CurDir => {}
                // After a link, `..` does not lead back to where the link is, so it cannot be resolved by text alone.
                Component::ParentDir => return Err(bad("it has a `..`")),
                Component::RootDir | Component::Prefix(_) => return Err(FileProblem::Outside {}),
            }
        }
        Ok(below)
    }

    /// Opens the file that a path leads to. Follows links as long as they stay below the workspace.
    fn resolve(&self, path: &str, flags: OFlags) -> Result<OwnedFd, FileProblem> {
        let below = self.relative(path)?;
        let below = if below.as_os_str().is_empty() { Path::new(".") } else { &below };
        self.open_below(below, flags)
    }

    fn open_below(&self, below: &Path, flags: OFlags) -> Result<OwnedFd, FileProblem> {
        self.walk(below, flags | OFlags::CLOEXEC).map_err(|error| match error {
            // The kernel's answer for a socket, or a device without a driver.
            Errno::NXIO | Errno::NODEV => FileProblem::NotAFile { kind: FileKind::Socket },
            Errno::NOTDIR if flags.contains(OFlags::DIRECTORY) => FileProblem::NotAFolder {},
            other => problem(other),
        })
    }

    /// Opens a path step by step. Reads links instead of following them, and ends with `EXDEV` where one leads out of
    /// the workspace. Each step opens a name that is no link, in a folder that is open.
    fn walk(&self, below: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let folder_flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // The names still to go, the next one last; and those of the folders that lead to `folder`.
        let mut ahead = reversed_names(below);
        let mut behind: Vec<OsString> = Vec::new();
        let mut folder: Option<OwnedFd> = None;
        let mut links = 0;
        for _ in 0..MAX_STEPS {
            let here = folder.as_ref().map_or(self.folder.as_fd(), AsFd::as_fd);
            let Some(name) = ahead.pop() else {
                return rustix::fs::openat(here, ".", flags, Mode::empty());
            };
            if name == OsStr::new("..") {
                // From the top again, because the code may have moved the folder elsewhere.
                behind.pop().ok_or(Errno::XDEV)?;
                ahead.extend(behind.drain(..).rev());
                folder = None;
                continue;
            }
            let is_last = ahead.is_empty();
            let step_flags = if is_last { flags | OFlags::NOFOLLOW } else { folder_flags };
            let refused = match rustix::fs::openat(here, &name, step_flags, Mode::empty()) {
                Ok(opened) if is_last => return Ok(opened),
                Ok(opened) => {
                    behind.push(name);
                    folder = Some(opened);
                    continue;
                }
                Err(error @ (Errno::LOOP | Errno::NOTDIR)) => error,
                Err(error) => return Err(error),
            };
            // A link, or a file where a folder should be.
            let target = rustix::fs::readlinkat(here, &name, Vec::new()).map_err(|_| refused)?;
            let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
            links += 1;
            if links > MAX_LINKS {
                return Err(Errno::LOOP);
            }
            if target.is_absolute() {
                ahead.extend(reversed_names(target.strip_prefix(&self.root).map_err(|_| Errno::XDEV)?));
                behind.clear();
                folder = None;
            } else {
                ahead.extend(reversed_names(&target));
            }
        }
        Err(Errno::LOOP)
    }

    /// Makes the missing folders of a path, and returns the last one, open.
    fn make_folders(&self, below: &Path) -> Result<OwnedFd, FileProblem> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let mut so_far = PathBuf::new();
        let mut folder = self.open_below(Path::new("."), flags)?;
        for part in below.components() {
            match rustix::fs::mkdirat(&folder, Path::new(part.as_os_str()), Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(problem(error)),
            }
            so_far.push(part);
            let step_flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            folder = match rustix::fs::openat(&folder, Path::new(part.as_os_str()), step_flags, Mode::empty()) {
                // A link, which may lead anywhere.
                Err(Errno::LOOP | Errno::NOTDIR) => self.open_below(&so_far, flags)?,
                opened => opened.map_err(problem)?,
            };
        }
        Ok(folder)
    }
}

/// Returns the names in a relative path, the last one first. `..` stays.
fn reversed_names(path: &Path) -> Vec<OsString> {
    let names = path.components().filter(|part| *part != Component::CurDir);
    names.map(|part| part.as_os_str().to_owned()).rev().collect()
}

/// Returns how many entries fit into one answer.
fn count_fitting(entries: &[FileEntry]) -> usize {
    let sums = entries.iter().take(MAX_ENTRIES).scan(0, |sum, entry| {
        // JSON may need six characters for one byte.
        *sum += entry.name.len() * 6 + 64;
        Some(*sum)
    });
    sums.take_while(|sum| *sum <= MAX_META / 2).count()
}

/// Creates a temporary file in a folder. Returns its name and the open file.
fn create_temporary(folder: &OwnedFd) -> Result<(String, File), FileProblem> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    // The code may have made files with these names: then the next name is tried.
    for attempt in 0..64 {
        let name = format!(".cove-{}-{attempt}.part", std::process::id());
        match rustix::fs::openat(folder, &name, flags, Mode::from_raw_mode(0o644)) {
            Ok(file) => return Ok((name, file.into())),
            Err(Errno::EXIST) => {}
            Err(error) => return Err(problem(error)),
        }
    }
    Err(FileProblem::Other { message: "there is no free name for a temporary file".into() })
}

fn kind_of(stat: &Stat) -> FileKind {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => FileKind::Folder,
        FileType::Symlink => FileKind::Link,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::CharacterDevice | FileType::BlockDevice => FileKind::Device,
        _ => FileKind::File,
    }
}

/// Returns the problem that an error of the kernel means for the host.
fn problem(error: impl Into<io::Error>) -> FileProblem {
    let error = error.into();
    match Errno::from_io_error(&error) {
        Some(Errno::NOENT) => FileProblem::NotFound {},
        Some(Errno::NOTDIR) => FileProblem::NotAFolder {},
        Some(Errno::ISDIR) => FileProblem::NotAFile { kind: FileKind::Folder },
        Some(Errno::XDEV) => FileProblem::Outside {},
        Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => FileProblem::NoSpace {},
        Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => FileProblem::Denied {},
        Some(Errno::NAMETOOLONG) => FileProblem::BadPath { reason: "it is too long".into() },
        Some(Errno::LOOP) => FileProblem::BadPath { reason: "its links lead in a circle".into() },
        _ => FileProblem::Other { message: error.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    fn workspace() -> (tempfile::TempDir, WorkspaceFiles) {
        let outer = tempfile::tempdir().unwrap();
        fs::create_dir(outer.path().join("workspace")).unwrap();
        fs::write(outer.path().join("outside"), "secret").unwrap();
        fs::create_dir(outer.path().join("workspace_evil")).unwrap();
        let files = WorkspaceFiles::open(&outer.path().join("workspace")).unwrap();
        (outer, files)
    }

    #[test]
    fn writes_and_reads_files() {
        let (outer, files) = workspace();
        assert_eq!(files.put("a/b/c.bin", b"\0\xff"), Ok(2));
        assert_eq!(files.get("a/b/c.bin", 10), Ok(b"\0\xff".to_vec()));
        let absolute = outer.path().join("workspace/a/b/c.bin");
        assert_eq!(files.get(absolute.to_str().unwrap(), 10), Ok(b"\0\xff".to_vec()));
        assert_eq!(files.put("a/b/c.bin", b"new"), Ok(3));
        assert_eq!(files.get("./a//b/c.bin", 3), Ok(b"new".to_vec()));
        let names: Vec<String> = files.list("a/b").unwrap().entries.into_iter().map(|entry| entry.name).collect();
        assert_eq!(names, ["c.bin"], "no temporary file is left");
    }

    #[test]
    fn paths_stay_below_the_workspace() {
        let (outer, files) = workspace();
        let check = |path: &str| {
            for result in [files.get(path, 10).err(), files.put(path, b"x").err(), files.list(path).err()] {
                assert!(
                    matches!(result, Some(FileProblem::BadPath { .. } | FileProblem::Outside {})),
                    "{path:?}: {result:?}"
                );
            }
        };
        for path in ["", "..", "../outside", "a/../../outside", "/etc/passwd", "a\0b", &"x".repeat(5000)] {
            check(path);
        }
        for path in ["\\x2e\\x2e/outside", "a\\x2f..\\x2f../outside", "\\x2fetc\\x2fpasswd", "a\\x00b", "\\x2e."] {
            check(path);
        }
        check(&"x/".repeat(3000));
        check(&format!("{}/workspace_evil/x", outer.path().display()));
        check(&format!("a/{}", "n".repeat(300)));
        assert_eq!(fs::read_to_string(outer.path().join("outside")).unwrap(), "secret");
    }

    #[test]
    fn follows_links_only_inside_the_workspace() {
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
                matches!(files.get(path, 100), Err(FileProblem::Outside {} | FileProblem::BadPath { .. })),
                "{path}"
            );
        }
        assert!(matches!(files.get("loop", 10), Err(FileProblem::BadPath { .. })));
        assert!(matches!(files.put("up/new", b"x"), Err(FileProblem::Outside {})));
        // A link at the target is replaced, not written through.
        assert_eq!(files.put("absolute", b"mine"), Ok(4));
        assert_eq!(fs::read_to_string(outer.path().join("outside")).unwrap(), "secret");
        assert_eq!(files.get("absolute", 10), Ok(b"mine".to_vec()));
    }

    #[test]
    fn takes_links_step_by_step() {
        let (outer, files) = workspace();
        let inside = outer.path().join("workspace");
        files.put("a/b/c/real", b"here").unwrap();
        let link = |target: &str, name: &str| symlink(target, inside.join(name)).unwrap();
        link("../b/c", "a/b/sideways");
        link("../../../a/b/sideways", "a/b/c/around");
        link("a/b/c/around/../c/./real", "winding");
        link("a/b/c", "short");
        // After a link, `..` leads to where the link's target is, and not to where the link is.
        link("short/../c/real", "after");
        link(&format!("{}/a/../a/b/c/real", inside.display()), "absolute");
        link(&format!("{}/../outside", inside.display()), "climbing");
        link("a/b/c/../../../../outside", "far");
        link("a/b/c/../../..", "top");
        for path in ["a/b/sideways/real", "a/b/c/around/real", "winding", "after", "absolute", "top/a/b/c/real"] {
            assert_eq!(files.get(path, 10), Ok(b"here".to_vec()), "{path}");
        }
        for path in ["climbing", "far", "top/../outside"] {
            let found = files.get(path, 10);
            assert!(matches!(found, Err(FileProblem::Outside {} | FileProblem::BadPath { .. })), "{path}: {found:?}");
        }
        assert!(matches!(files.get("a/b/c/real/below", 10), Err(FileProblem::NotAFolder {})));
        assert_eq!(files.put("short/new/file", b"x"), Ok(1));
        assert_eq!(files.get("a/b/c/new/file", 10), Ok(b"x".to_vec()));
        for n in 0..MAX_LINKS + 1 {
            link(&if n == 0 { "winding".into() } else { format!("chain{}", n - 1) }, &format!("chain{n}"));
        }
        assert_eq!(files.get("chain30", 10), Ok(b"here".to_vec()));
        assert!(matches!(files.get("chain40", 10), Err(FileProblem::BadPath { .. })), "the kernel's limit");
        // Each step of this link goes back to the top: the number of steps is bounded, not only that of links.
        let deep = "d/".repeat(100);
        files.put(&format!("{deep}end"), b"x").unwrap();
        link(&format!("{deep}{}{deep}end", "../".repeat(100)), "restless");
        assert_eq!(files.get("restless", 10), Ok(b"x".to_vec()));
        link(&format!("{deep}{}", "../d/".repeat(700)), "endless");
        assert!(matches!(files.list("endless"), Err(FileProblem::BadPath { .. })));
    }

    #[test]
    fn refuses_pipes_sockets_and_folders_without_waiting() {
        let (outer, files) = workspace();
        let inside = outer.path().join("workspace");
        fs::create_dir(inside.join("folder")).unwrap();
        let made = std::process::Command::new("mkfifo").arg(inside.join("pipe")).status().unwrap();
        assert!(made.success());
        let _socket = UnixListener::bind(inside.join("socket")).unwrap();
        for (path, kind) in [("folder", FileKind::Folder), ("pipe", FileKind::Fifo), ("socket", FileKind::Socket)] {
            assert_eq!(files.get(path, 10), Err(FileProblem::NotAFile { kind }), "{path}");
            assert_eq!(files.put(path, b"x"), Err(FileProblem::NotAFile { kind }), "{path}");
        }
        assert_eq!(files.put(".", b"x"), Err(FileProblem::NotAFile { kind: FileKind::Folder }));
        files.put("file", b"x").unwrap();
        assert!(matches!(files.list("file"), Err(FileProblem::NotAFolder {})));
        assert!(matches!(files.put("file/below", b"x"), Err(FileProblem::NotAFolder {})));
        assert!(matches!(files.get("missing", 10), Err(FileProblem::NotFound {})));
        assert!(matches!(files.list("missing"), Err(FileProblem::NotFound {})));
    }

    #[test]
    fn bounds_the_size_of_files() {
        let (_outer, files) = workspace();
        let large = vec![0; MAX_FILE_WRITE + 1];
        assert!(matches!(files.put("large", &large), Err(FileProblem::TooLarge { .. })));
        assert!(matches!(files.get("large", 10), Err(FileProblem::NotFound {})));
        files.put("eleven", b"01234567890").unwrap();
        assert_eq!(files.get("eleven", 10), Err(FileProblem::TooLarge { size: 11, most: 10 }));
    }

    #[test]
    fn cuts_long_listings_and_counts_the_rest() {
        let (outer, files) = workspace();
        let inside = outer.path().join("workspace");
        for n in 0..MAX_ENTRIES + 5 {
            fs::write(inside.join(format!("f{n:05}")), "").unwrap();
        }
        fs::write(inside.join(OsStr::from_bytes(b"\xff")), "").unwrap();
        let listed = files.list(".").unwrap();
        assert_eq!((listed.entries.len(), listed.left_out), (MAX_ENTRIES, 6));
        assert_eq!((&*listed.entries[0].name, &*listed.entries[1].name), ("\\xff", "f00000"));
    }
}
