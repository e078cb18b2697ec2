//! What descends from the runner, where it is not the first process of its sandbox: there the kernel neither hands it
//! every orphan nor ends everything with it, so it asks for the one and does the other itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, getpgid, getpgrp, getpid, kill_process, kill_process_group, set_child_subreaper,
};

/// How long ending everything may take before it is given up.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the near ones are hunted between two looks at all.
const HUNT: Duration = Duration::from_millis(20);

/// Whether this process is the first of its sandbox, with all that the kernel does for it.
pub(crate) fn is_first() -> bool {
    getpid().is_init()
}

/// From here on orphans come to this process, as they come to the first one of a sandbox.
pub(crate) fn adopt() -> io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// Kills everything that descends from this process, and waits until it is gone. A process number may be reused between
/// a look and a kill; who could arrange that is the same user and could have killed whom it likes.
pub(crate) fn end_all() -> io::Result<()> {
    let until = Instant::now() + PATIENCE;
    loop {
        for pid in all()? {
            kill(pid);
        }
        // Code that forks and exits without end has moved on before such a look is over. Its orphans come here one by one,
        // and to look at only those is quick.
        let hunted = Instant::now() + HUNT;
        while Instant::now() < hunted {
            if reap() == Left::Nothing {
                return Ok(());
            }
            for pid in children() {
                kill(pid);
            }
            std::thread::yield_now();
        }
        if Instant::now() > until {
            return Err(io::Error::other("what it had started could not be ended"));
        }
        std::thread::sleep(HUNT);
    }
}

/// It and its group, which is where a child that it has just forked still is.
fn kill(pid: Pid) {
    let group = getpgid(Some(pid)).ok().filter(|&group| group != getpgrp());
    let _ = kill_process(pid, Signal::KILL);
    if let Some(group) = group {
        let _ = kill_process_group(group, Signal::KILL);
    }
}

#[derive(PartialEq, Eq)]
enum Left {
    Something,
    Nothing,
}

/// As everything that is left without a parent comes to this process, no child is no descendant.
fn reap() -> Left {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => return Left::Something,
            Err(_) => return Left::Nothing,
        }
    }
}

/// The children of this thread, which is the only one. Not every kernel tells them so; then `all` must do.
fn children() -> Vec<Pid> {
    let text = fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
    text.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
}

fn all() -> io::Result<Vec<Pid>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        // One that has ended meanwhile.
        let Ok(stat) = fs::read(format!("/proc/{pid}/stat")) else { continue };
        if let Some(parent) = parent(&stat) {
            found.insert(pid, parent);
        }
    }
    Ok(below(getpid().as_raw_nonzero().get(), &found).into_iter().filter_map(Pid::from_raw).collect())
}

/// The parent that a line of proc_pid_stat(5) tells: the second word after the program's name, which may hold anything.
fn parent(stat: &[u8]) -> Option<i32> {
    let after = &stat[stat.iter().rposition(|&byte| byte == b')')? + 1..];
    std::str::from_utf8(after).ok()?.split_whitespace().nth(1)?.parse().ok()
}

/// Who descends from `first`, by who is whose child. Read piece by piece, this may hold anything, also circles.
fn below(first: i32, parents: &BTreeMap<i32, i32>) -> BTreeSet<i32> {
    let mut known = BTreeSet::from([first]);
    let mut next = vec![first];
    while let Some(parent) = next.pop() {
        let of_it = parents.iter().filter(|(_, its)| **its == parent).map(|(&pid, _)| pid);
        next.extend(of_it.filter(|&pid| known.insert(pid)));
    }
    known.remove(&first);
    known
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parent_is_found_behind_any_name() {
        assert_eq!(parent(b"7 (sleep) S 3 7 7 0 -1"), Some(3));
        assert_eq!(parent(b"7 (a) S 9 (b) \xff) R 4 7"), Some(4));
        for nonsense in [&b""[..], b"7 (", b"7 )", b"7 (a) S", b"7 (a) S x"] {
            assert_eq!(parent(nonsense), None);
        }
    }

    #[test]
    fn descendants_are_all_below_and_nobody_else() {
        let parents =
            BTreeMap::from([(1, 0), (2, 1), (5, 1), (6, 5), (7, 6), (8, 7), (9, 2), (11, 10), (10, 11)]);
        assert_eq!(below(5, &parents), BTreeSet::from([6, 7, 8]));
        assert_eq!(below(10, &parents), BTreeSet::from([11]), "a circle ends");
        assert_eq!(below(9, &parents), BTreeSet::new());
    }
}
