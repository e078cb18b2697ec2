//! Finds out whether the kernel has killed anything in this sandbox for memory. A container can read the counter of its
//! own cgroup. The jail hides its cgroup from the inside; its host asks the jail process instead.

use std::fs;
use std::path::{Path, PathBuf};

/// The counters of cgroup v2 and of v1, where a container sees them.
const COUNTER_FILES: [&str; 2] = ["/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"];

/// Reads the kernel's counter, and remembers what it has read.
pub(crate) struct OomCounter {
    /// The file with the counter, if there is one.
    file: Option<PathBuf>,
    seen: u64,
}

impl OomCounter {
    pub(crate) fn new() -> Self {
        Self::from_files(&COUNTER_FILES)
    }

    /// Uses the first of these files that has a counter.
    fn from_files(files: &[impl AsRef<Path>]) -> Self {
        let found = files.iter().map(AsRef::as_ref).find_map(|path| Some((path, read(path)?)));
        Self { file: found.map(|(path, _)| path.to_owned()), seen: found.map_or(0, |(_, kills)| kills) }
    }

    /// Forgets all kills so far. A cell calls it at its beginning, because earlier kills are not its own.
    pub(crate) fn reset(&mut self) {
        self.has_killed();
    }

    /// Returns whether the kernel has killed anything since the last call, or `None` if there is no counter.
    pub(crate) fn has_killed(&mut self) -> Option<bool> {
        let kills = read(self.file.as_deref()?)?;
        // The counter never falls, so any difference is new.
        let before = std::mem::replace(&mut self.seen, kills);
        Some(kills > before)
    }
}

fn read(path: &Path) -> Option<u64> {
    parse(&fs::read_to_string(path).ok()?)
}

/// Returns the counter in the text of a file. Both files have lines of a name and a number, and use the same name for
/// it.
fn parse(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_counter_of_either_version() {
        let v2 = "low 0\nhigh 0\nmax 412\noom 3\noom_kill 2\noom_group_kill 1\n";
        assert_eq!(parse(v2), Some(2));
        assert_eq!(parse("oom_kill_disable 0\nunder_oom 0\noom_kill 17\n"), Some(17));
        // Kernels before 4.13 have no counter.
        assert_eq!(parse("oom_kill_disable 0\nunder_oom 0\n"), None);
        for nonsense in ["", "oom_kill", "oom_kill \n", "oom_kill x\n", "oom_kill -1\n", "oom_kill2\n"] {
            assert_eq!(parse(nonsense), None, "{nonsense:?}");
        }
    }

    #[test]
    fn reports_each_kill_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("memory.events");
        let count = |kills: u64| fs::write(&file, format!("oom 0\noom_kill {kills}\n")).unwrap();
        let missing = folder.path().join("missing");
        assert_eq!(OomCounter::from_files(&[&missing]).has_killed(), None, "there is no counter");
        count(4);
        let mut counter = OomCounter::from_files(&[&missing, &file]);
        assert_eq!(counter.has_killed(), Some(false), "earlier kills do not count");
        count(6);
        assert_eq!(counter.has_killed(), Some(true));
        assert_eq!(counter.has_killed(), Some(false), "reported once");
        fs::remove_file(&file).unwrap();
        assert_eq!(counter.has_killed(), None);
    }
}
