//! Compares the table with the lists of Docker, systemd and Chromium: every difference has an explanation in the table,
//! and every explanation a difference.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use crate::seccomp::{Syscall, SyscallVerdict, syscalls};

/// How much of a call a list lets through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum CallStrictness {
    Refused,
    ByArguments,
    Allowed,
}

/// The calls that another project's filter lets through.
struct ReviewedList {
    /// Its letter in the table's column.
    letter: char,
    /// Its name in `docs/security.md`.
    name: &'static str,
    calls: BTreeMap<&'static str, CallStrictness>,
}

fn lists() -> [ReviewedList; 3] {
    [
        ReviewedList::read('D', "Docker's default profile", include_str!("lists/docker.txt")),
        ReviewedList::read('S', "systemd's `@system-service`", include_str!("lists/systemd.txt")),
        ReviewedList::read('C', "Chromium's baseline policy", include_str!("lists/chromium.txt")),
    ]
}

impl ReviewedList {
    fn read(letter: char, name: &'static str, text: &'static str) -> Self {
        let mut calls = BTreeMap::new();
        let mut part = None;
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            match line {
                "allow:" => part = Some(CallStrictness::Allowed),
                "rule:" => part = Some(CallStrictness::ByArguments),
                _ => {
                    for call in line.split_whitespace() {
                        assert!(calls.insert(call, part.unwrap()).is_none(), "{name} has {call} twice");
                    }
                }
            }
        }
        Self { letter, name, calls }
    }

    /// Returns the sign for this list: how the table's verdict differs, or nothing.
    fn sign(&self, syscall: &Syscall) -> Option<char> {
        let ours = match syscall.verdict {
            SyscallVerdict::Allow => CallStrictness::Allowed,
            SyscallVerdict::Rule(rule) if !rule.cases.is_empty() => CallStrictness::ByArguments,
            SyscallVerdict::Rule(_) | SyscallVerdict::Deny | SyscallVerdict::Absent => CallStrictness::Refused,
        };
        let theirs = self.calls.get(syscall.name).copied().unwrap_or(CallStrictness::Refused);
        match ours.cmp(&theirs) {
            std::cmp::Ordering::Less => Some('-'),
            std::cmp::Ordering::Greater => Some('+'),
            std::cmp::Ordering::Equal => (ours == CallStrictness::ByArguments).then_some('~'),
        }
    }
}

/// Returns the notes that the head of the table defines, with their texts.
fn notes() -> BTreeMap<&'static str, &'static str> {
    let lines = include_str!("../syscalls.txt").lines().filter_map(|line| line.strip_prefix("# note "));
    lines.map(|line| line.split_once(' ').unwrap()).collect()
}

#[test]
fn every_departure_from_other_lists_is_explained() {
    let (lists, notes) = (lists(), notes());
    let mut used = BTreeSet::new();
    let mut wrong = Vec::new();
    for syscall in syscalls() {
        let found: String =
            lists.iter().filter_map(|list| Some([list.sign(syscall)?, list.letter])).flatten().collect();
        let mut explained = String::new();
        for part in syscall.departs.split(',').filter(|part| *part != "=") {
            let (departure, note) = part.split_once(':').map_or((part, None), |(part, note)| (part, Some(note)));
            // The reason of the line explains why it is stricter. Why it is less strict takes a note.
            if departure.starts_with('+') != note.is_some() || note.is_some_and(|note| !notes.contains_key(note)) {
                wrong.push(format!("{}: `{part}` has no note of the head, or needs none", syscall.name));
            }
            used.extend(note);
            explained.push_str(departure);
        }
        if found != explained {
            wrong
                .push(format!("{}: the lists differ by `{found}`, the table says `{}`", syscall.name, syscall.departs));
        }
    }
    wrong.extend(notes.keys().filter(|note| !used.contains(*note)).map(|note| format!("no call has the note {note}")));
    for list in &lists {
        let unknown = list.calls.keys().filter(|call| !syscalls().iter().any(|syscall| syscall.name == **call));
        wrong.extend(unknown.map(|call| format!("{} has {call}, which the table has not", list.name)));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The page for readers quotes the result, so that it cannot be older than the table.
#[test]
fn the_security_page_quotes_the_review() {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/security.md")).unwrap();
    for list in lists() {
        let count = |sign| syscalls().iter().filter(|syscall| list.sign(syscall) == sign).count();
        let counts = [None, Some('-'), Some('~'), Some('+')].map(|sign| count(sign).to_string());
        let line = format!("| {} | {} |", list.name, counts.join(" | "));
        assert!(page.contains(&line), "docs/security.md does not have this line:\n{line}");
    }
}
