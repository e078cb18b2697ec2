//! What was written at the prompt, kept between runs in a file of the person's own: one entry a line, `\n` for a line
//! end in it and `\\` for a backslash.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use cove_core::error::{Failure, display_path};
use cove_core::private_file::create_private_folder;
use cove_core::process_env::ProcessEnv;

pub(super) const MAX_ENTRIES: usize = 2_000;
/// A longer cell is not worth keeping, and the file stays within bounds.
pub(super) const MAX_ENTRY: usize = 16 * 1024;
/// All that the entries can take when every byte is escaped.
const MAX_FILE: u64 = (MAX_ENTRIES * (2 * MAX_ENTRY + 1)) as u64;

/// Where the history is kept: in the folder for state, as the XDG specification has it.
pub(in crate::cli) fn path(env: &ProcessEnv) -> Option<PathBuf> {
    let state = env.directory("XDG_STATE_HOME").map(Path::to_path_buf);
    let state = state.or_else(|| Some(env.home()?.join(".local/state")))?;
    Some(state.join("cove/history"))
}

/// The file that keeps what is written. The entries themselves are with the editor.
#[derive(Debug)]
pub(super) struct HistoryFile {
    /// Not set when nothing can be kept.
    path: Option<PathBuf>,
}

impl HistoryFile {
    /// The file, the entries that it has, and why nothing more will be kept, if that is so.
    pub(super) fn open(path: Option<&Path>) -> (Self, Vec<String>, Option<Failure>) {
        let Some(path) = path else {
            let error = Failure::operator("could not keep the history")
                .because("neither `XDG_STATE_HOME` nor `HOME` names a folder")
                .with_hint("set `HOME`");
            return (Self { path: None }, Vec::new(), Some(error));
        };
        match open(path).and_then(|mut file| read(&mut file)) {
            Ok(entries) => (Self { path: Some(path.to_owned()) }, entries, None),
            Err(error) => (Self { path: None }, Vec::new(), Some(not_kept(path, error))),
        }
    }

    /// Adds an entry of at most `MAX_ENTRY` bytes. After an error nothing is kept, so that it is reported once.
    pub(super) fn append(&mut self, text: &str) -> Option<Failure> {
        let path = self.path.take()?;
        match append(&path, text) {
            Ok(()) => {
                self.path = Some(path);
                None
            }
            Err(error) => Some(not_kept(&path, error)),
        }
    }
}

fn not_kept(path: &Path, error: io::Error) -> Failure {
    Failure::operator(format!("could not keep the history in `{}`", display_path(path)))
        .because(error)
        .with_hint("set `XDG_STATE_HOME` to a folder that you can write to")
}

/// For its owner alone: code may hold what others must not read.
fn open(path: &Path) -> io::Result<File> {
    if let Some(folder) = path.parent() {
        create_private_folder(folder)?;
    }
    // Opening anything but a regular file could block.
    if fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        return Err(io::Error::other("it is not a file"));
    }
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    if file.metadata()?.permissions().mode() & 0o077 != 0 {
        file.set_permissions(Permissions::from_mode(0o600))?;
    }
    Ok(file)
}

fn read(file: &mut File) -> io::Result<Vec<String>> {
    let mut bytes = Vec::new();
    file.take(MAX_FILE).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    Ok(lines[lines.len().saturating_sub(MAX_ENTRIES)..].iter().copied().map(unescaped).collect())
}

/// Under a lock, because several may write at once; what another has added is kept.
fn append(path: &Path, text: &str) -> io::Result<()> {
    let mut file = open(path)?;
    file.lock()?;
    let entries = read(&mut file)?;
    if entries.len() < MAX_ENTRIES {
        file.seek(io::SeekFrom::End(0))?;
        return file.write_all(format!("{}\n", escaped(text)).as_bytes());
    }
    let kept = entries[1..].iter().map(String::as_str).chain([text]);
    let whole: String = kept.map(|entry| format!("{}\n", escaped(entry))).collect();
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
        let (_, entries, error) = HistoryFile::open(Some(path));
        assert!(error.is_none());
        entries
    }

    fn add(path: &Path, text: &str) {
        let (mut history, _, error) = HistoryFile::open(Some(path));
        assert!(error.is_none() && history.append(text).is_none());
    }

    #[test]
    fn the_folder_is_the_one_for_state() {
        let check = |env: &[(&str, &str)], expected: Option<&str>| {
            let env: BTreeMap<_, _> = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect();
            let process_env = ProcessEnv { env, cwd: "/".into(), stdin_is_terminal: false };
            assert_eq!(path(&process_env), expected.map(PathBuf::from));
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
        let (mut one, ..) = HistoryFile::open(Some(&path));
        let (mut two, ..) = HistoryFile::open(Some(&path));
        assert!(one.append("a").is_none() && two.append("b").is_none() && one.append("c").is_none());
        assert_eq!(kept(&path), ["a", "b", "c"]);
    }

    #[test]
    fn what_cannot_be_kept_is_said_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        for path in [Some(file.join("history")), Some(folder.path().to_owned()), None] {
            let (mut history, entries, error) = HistoryFile::open(path.as_deref());
            let report = error.unwrap().report().to_string();
            assert!(report.starts_with("could not keep the history") && report.contains("\nhint: "), "{report}");
            assert!(entries.is_empty() && history.append("a").is_none());
        }
        // Lost on the way.
        let path = folder.path().join("later/history");
        let (mut history, ..) = HistoryFile::open(Some(&path));
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path.parent().unwrap(), "").unwrap();
        assert!(history.append("a").is_some());
        assert!(history.append("b").is_none());
    }
}
