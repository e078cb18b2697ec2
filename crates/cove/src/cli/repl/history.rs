//! What was written at the prompt, kept between runs in a file of the person's own: one entry a line, `\n` for a line
//! end in it and `\\` for a backslash.

use std::collections::VecDeque;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::config::Surroundings;
use crate::error::{Error, shown_path};

const MAX_ENTRIES: usize = 2_000;
/// A longer cell is not worth keeping, and the file stays within bounds.
const MAX_ENTRY: usize = 16 * 1024;
/// All that the entries can take when every byte is escaped.
const MAX_FILE: u64 = (MAX_ENTRIES * (2 * MAX_ENTRY + 1)) as u64;

/// Where the history is kept: in the folder for state, as the XDG specification has it.
pub(in crate::cli) fn path(around: &Surroundings) -> Option<PathBuf> {
    let folder = |name: &str| around.env.get(name).map(Path::new).filter(|path| path.is_absolute());
    let state = folder("XDG_STATE_HOME").map(Path::to_path_buf);
    let state = state.or_else(|| folder("HOME").map(|home| home.join(".local/state")))?;
    Some(state.join("cove/history"))
}

#[derive(Debug, Default)]
pub(super) struct History {
    entries: VecDeque<String>,
    /// Not set when it cannot be kept.
    path: Option<PathBuf>,
}

impl History {
    /// What was kept, and why nothing more will be, if that is so.
    pub(super) fn open(path: Option<&Path>) -> (Self, Option<Error>) {
        let mut history = Self::default();
        let Some(path) = path else {
            let error = Error::operator("could not keep the history")
                .because("neither `XDG_STATE_HOME` nor `HOME` names a folder")
                .with_hint("set `HOME`");
            return (history, Some(error));
        };
        match open(path).and_then(|mut file| read(&mut file)) {
            Ok(entries) => {
                history.entries = entries;
                history.path = Some(path.to_owned());
                (history, None)
            }
            Err(error) => (history, Some(not_kept(path, error))),
        }
    }

    pub(super) fn entries(&self) -> &VecDeque<String> {
        &self.entries
    }

    /// Adds what was written, unless it repeats the last or begins with a blank. An error is told once: after it
    /// nothing is kept.
    pub(super) fn add(&mut self, text: &str) -> Option<Error> {
        let text = text.trim_end();
        let is_last = self.entries.back().is_some_and(|last| last == text);
        if text.is_empty() || text.starts_with(' ') || text.len() > MAX_ENTRY || is_last {
            return None;
        }
        push(&mut self.entries, text.to_owned());
        let path = self.path.as_ref()?;
        let error = append(path, text).err()?;
        let error = not_kept(path, error);
        self.path = None;
        Some(error)
    }

    /// The newest entry before `below` that holds this text.
    pub(super) fn search(&self, text: &str, below: usize) -> Option<usize> {
        (0..below.min(self.entries.len())).rev().find(|at| self.entries[*at].contains(text))
    }
}

fn not_kept(path: &Path, error: io::Error) -> Error {
    Error::operator(format!("could not keep the history in `{}`", shown_path(path)))
        .because(error)
        .with_hint("set `XDG_STATE_HOME` to a folder that you can write to")
}

/// For its owner alone: code may hold what others must not read.
fn open(path: &Path) -> io::Result<File> {
    if let Some(folder) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    // Anything but a file could keep us waiting.
    if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        return Err(io::Error::other("it is not a file"));
    }
    let file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    if file.metadata()?.permissions().mode() & 0o077 != 0 {
        file.set_permissions(Permissions::from_mode(0o600))?;
    }
    Ok(file)
}

fn read(file: &mut File) -> io::Result<VecDeque<String>> {
    let mut bytes = Vec::new();
    file.take(MAX_FILE).read_to_end(&mut bytes)?;
    let mut entries = VecDeque::new();
    for line in String::from_utf8_lossy(&bytes).lines().filter(|line| !line.is_empty()) {
        push(&mut entries, unescaped(line));
    }
    Ok(entries)
}

fn push(entries: &mut VecDeque<String>, entry: String) {
    if entries.len() >= MAX_ENTRIES {
        entries.pop_front();
    }
    entries.push_back(entry);
}

/// Under a lock, because several may write at once; what another has added is kept.
fn append(path: &Path, text: &str) -> io::Result<()> {
    let mut file = open(path)?;
    file.lock()?;
    let mut entries = read(&mut file)?;
    if entries.len() < MAX_ENTRIES {
        file.seek(io::SeekFrom::End(0))?;
        return file.write_all(format!("{}\n", escaped(text)).as_bytes());
    }
    push(&mut entries, text.to_owned());
    let whole: String = entries.iter().map(|entry| format!("{}\n", escaped(entry))).collect();
    file.seek(io::SeekFrom::Start(0))?;
    file.write_all(whole.as_bytes())?;
    file.set_len(whole.len() as u64)
}

fn escaped(entry: &str) -> String {
    entry.replace('\\', "\\\\").replace('\n', "\\n")
}

fn unescaped(line: &str) -> String {
    let mut entry = String::with_capacity(line.len());
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('n') => entry.push('\n'),
                Some(other) => entry.push(other),
                None => entry.push('\\'),
            },
            c => entry.push(c),
        }
    }
    entry
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn kept(path: &Path) -> Vec<String> {
        let (history, error) = History::open(Some(path));
        assert!(error.is_none());
        history.entries.into_iter().collect()
    }

    fn add(path: &Path, text: &str) {
        let (mut history, error) = History::open(Some(path));
        assert!(error.is_none() && history.add(text).is_none());
    }

    #[test]
    fn the_folder_is_the_one_for_state() {
        let check = |env: &[(&str, &str)], expected: Option<&str>| {
            let env: BTreeMap<_, _> =
                env.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect();
            let around = Surroundings { env, cwd: "/".into(), stdin_is_terminal: false };
            assert_eq!(path(&around), expected.map(PathBuf::from));
        };
        check(&[("XDG_STATE_HOME", "/s"), ("HOME", "/h")], Some("/s/cove/history"));
        check(&[("HOME", "/h")], Some("/h/.local/state/cove/history"));
        check(&[("XDG_STATE_HOME", "s"), ("HOME", "/h")], Some("/h/.local/state/cove/history"));
        check(&[("XDG_STATE_HOME", ""), ("HOME", "")], None);
    }

    #[test]
    fn entries_come_back_as_they_were() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state/cove/history");
        let entries = ["x = 1", "def f():\n    return '\\n'", "print('\\\\')", "é"];
        for entry in entries {
            add(&path, entry);
        }
        assert_eq!(kept(&path), entries);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o600);
        assert_eq!(mode(path.parent().unwrap()), 0o700);
    }

    #[test]
    fn not_everything_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history");
        for entry in ["a", "a\n", " secret = 1", "", "  \n", &"x".repeat(MAX_ENTRY + 1), "b"] {
            add(&path, entry);
        }
        assert_eq!(kept(&path), ["a", "b"]);
    }

    #[test]
    fn the_newest_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history");
        let lines: String = (0..MAX_ENTRIES + 10).map(|n| format!("{n}\n")).collect();
        fs::write(&path, lines).unwrap();
        add(&path, "last");
        let entries = kept(&path);
        assert_eq!(entries.len(), MAX_ENTRIES);
        assert_eq!((entries[0].as_str(), entries[MAX_ENTRIES - 1].as_str()), ("11", "last"));
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), MAX_ENTRIES);
        // It was written by something else, for all to read.
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn several_may_write_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history");
        let (mut one, _) = History::open(Some(&path));
        let (mut two, _) = History::open(Some(&path));
        assert!(one.add("a").is_none() && two.add("b").is_none() && one.add("c").is_none());
        assert_eq!(kept(&path), ["a", "b", "c"]);
        assert_eq!(one.entries, ["a", "c"]);
    }

    #[test]
    fn what_cannot_be_kept_is_said_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        for path in [Some(file.join("history")), Some(folder.path().to_owned()), None] {
            let (mut history, error) = History::open(path.as_deref());
            let report = error.unwrap().report().to_string();
            assert!(
                report.starts_with("could not keep the history") && report.contains("\nhint: "),
                "{report}"
            );
            assert!(history.add("a").is_none());
            assert_eq!(history.entries(), &["a"]);
        }
        // Lost on the way.
        let path = folder.path().join("later/history");
        let (mut history, _) = History::open(Some(&path));
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path.parent().unwrap(), "").unwrap();
        assert!(history.add("a").is_some());
        assert!(history.add("b").is_none());
    }

    #[test]
    fn searching_goes_back() {
        let mut history = History::default();
        for entry in ["one", "two", "one more"] {
            history.add(entry);
        }
        assert_eq!(history.search("one", 3), Some(2));
        assert_eq!(history.search("one", 2), Some(0));
        assert_eq!(history.search("one", 0), None);
        assert_eq!(history.search("three", 3), None);
    }
}
