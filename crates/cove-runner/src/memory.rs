//! Whether the kernel has killed anything in this sandbox for memory: a container can read the counter of its own
//! cgroup. The jail shows none inside, and has its own way to know.

use std::fs;
use std::path::{Path, PathBuf};

/// Of cgroup v2 and of v1, where a container sees them.
const COUNTERS: [&str; 2] = ["/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"];

pub(crate) struct Memory {
    /// The file that counts, if there is one.
    counter: Option<PathBuf>,
    seen: u64,
}

impl Memory {
    pub(crate) fn new() -> Self {
        Self::of(&COUNTERS)
    }

    fn of(counters: &[impl AsRef<Path>]) -> Self {
        let found = counters.iter().map(AsRef::as_ref).find_map(|path| Some((path, read(path)?)));
        Self { counter: found.map(|(path, _)| path.to_owned()), seen: found.map_or(0, |(_, kills)| kills) }
    }

    /// Whether there were any since this was asked last; nothing where that cannot be known.
    pub(crate) fn has_killed(&mut self) -> Option<bool> {
        let kills = read(self.counter.as_deref()?)?;
        let before = std::mem::replace(&mut self.seen, kills);
        Some(kills > before)
    }
}

fn read(path: &Path) -> Option<u64> {
    kills(&fs::read_to_string(path).ok()?)
}

/// Both files have lines of a name and a number, and name this one alike.
fn kills(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_found_in_either_file() {
        let second = "low 0\nhigh 0\nmax 412\noom 3\noom_kill 2\noom_group_kill 1\n";
        assert_eq!(kills(second), Some(2));
        assert_eq!(kills("oom_kill_disable 0\nunder_oom 0\noom_kill 17\n"), Some(17));
        // Kernels before 4.13 do not count.
        assert_eq!(kills("oom_kill_disable 0\nunder_oom 0\n"), None);
        for nonsense in ["", "oom_kill", "oom_kill \n", "oom_kill x\n", "oom_kill -1\n", "oom_kill2\n"] {
            assert_eq!(kills(nonsense), None, "{nonsense:?}");
        }
    }

    #[test]
    fn only_what_is_new_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("memory.events");
        let count = |kills: u64| fs::write(&file, format!("oom 0\noom_kill {kills}\n")).unwrap();
        let missing = folder.path().join("missing");
        assert_eq!(Memory::of(&[&missing]).has_killed(), None, "nobody counts");
        count(4);
        let mut memory = Memory::of(&[&missing, &file]);
        assert_eq!(memory.has_killed(), Some(false), "what was before is not ours");
        count(6);
        assert_eq!(memory.has_killed(), Some(true));
        assert_eq!(memory.has_killed(), Some(false), "told once");
        fs::remove_file(&file).unwrap();
        assert_eq!(memory.has_killed(), None);
    }
}
