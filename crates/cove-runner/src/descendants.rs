//! The descendants of a runner that is not the first process of its sandbox. The kernel neither gives orphans to such a
//! process nor kills everything with it, so the runner asks for orphans and kills its descendants itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, getpgid, getpgrp, getpid, kill_process, kill_process_group, set_child_subreaper,
};

/// How long killing everything may take.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// How long `kill_all` kills only children between two searches for all descendants.
const CHILDREN_ROUND: Duration = Duration::from_millis(20);

/// Returns whether this process is pid 1 of its sandbox, with all that the kernel does for that process.
pub(crate) fn is_first() -> bool {
    getpid().is_init()
}

/// Makes orphans below this process its children from here on, as they become children of pid 1.
pub(crate) fn adopt_orphans() -> io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// Kills all descendants of this process, and waits until they are gone. Fails if that takes too long.
///
/// A process number may come to mean another process between the search and the kill. Only code of the same user could
/// arrange that, and it could kill that process itself.
pub(crate) fn kill_all() -> io::Result<()> {
    let until = Instant::now() + KILL_TIMEOUT;
    loop {
        for pid in find_all()? {
            kill(pid);
        }
        // Code that forks and exits without end has moved on before a search of `/proc` is over. Its orphans become
        // children of this process one by one, and finding those is quick.
        let round_end = Instant::now() + CHILDREN_ROUND;
        while Instant::now() < round_end {
            if !reap() {
                return Ok(());
            }
            for pid in children() {
                kill(pid);
            }
            std::thread::yield_now();
        }
        if Instant::now() > until {
            return Err(io::Error::other("could not kill all processes that the runner had started"));
        }
        std::thread::sleep(CHILDREN_ROUND);
    }
}

/// Kills a process and its group, in which a child that it has just forked still is.
fn kill(pid: Pid) {
    let group = getpgid(Some(pid)).ok().filter(|&group| group != getpgrp());
    let _ = kill_process(pid, Signal::KILL);
    if let Some(group) = group {
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// Reaps all children that have ended. Returns whether descendants are left: every orphan becomes a child of this
/// process, so without a child there is no descendant either.
fn reap() -> bool {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}

/// Returns the children of this thread, which is the only one. Some kernels lack this file; then only `find_all` finds
/// them.
fn children() -> Vec<Pid> {
    let text = fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
    text.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
}

/// Returns all descendants of this process, by a search of `/proc`.
fn find_all() -> io::Result<Vec<Pid>> {
    let mut parents = BTreeMap::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        // It may have ended meanwhile.
        let Ok(stat) = fs::read(format!("/proc/{pid}/stat")) else { continue };
        if let Some(parent) = parse_parent(&stat) {
            parents.insert(pid, parent);
        }
    }
    Ok(descendants_of(getpid().as_raw_nonzero().get(), &parents).into_iter().filter_map(Pid::from_raw).collect())
}

/// Returns the parent in a line of proc_pid_stat(5): the second word after the program's name, which may hold anything.
fn parse_parent(stat: &[u8]) -> Option<i32> {
    let after = &stat[stat.iter().rposition(|&byte| byte == b')')? + 1..];
    std::str::from_utf8(after).ok()?.split_whitespace().nth(1)?.parse().ok()
}

/// Returns the descendants of `first`, given the parent of each process. These were read one by one while processes
/// came and went, so they may hold anything, even circles.
fn descendants_of(first: i32, parents: &BTreeMap<i32, i32>) -> BTreeSet<i32> {
    let mut known = BTreeSet::from([first]);
    let mut next = vec![first];
    while let Some(parent) = next.pop() {
        let children = parents.iter().filter(|(_, its)| **its == parent).map(|(&pid, _)| pid);
        next.extend(children.filter(|&pid| known.insert(pid)));
    }
    known.remove(&first);
    known
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_parent_after_any_program_name() {
        assert_eq!(parse_parent(b"7 (sleep) S 3 7 7 0 -1"), Some(3));
        assert_eq!(parse_parent(b"7 (a) S 9 (b) \xff) R 4 7"), Some(4));
        for nonsense in [&b""[..], b"7 (", b"7 )", b"7 (a) S", b"7 (a) S x"] {
            assert_eq!(parse_parent(nonsense), None);
        }
    }

    #[test]
    fn finds_all_descendants_and_no_other_process() {
        let parents = BTreeMap::from([(1, 0), (2, 1), (5, 1), (6, 5), (7, 6), (8, 7), (9, 2), (11, 10), (10, 11)]);
        assert_eq!(descendants_of(5, &parents), BTreeSet::from([6, 7, 8]));
        assert_eq!(descendants_of(10, &parents), BTreeSet::from([11]), "a circle ends");
        assert_eq!(descendants_of(9, &parents), BTreeSet::new());
    }
}
