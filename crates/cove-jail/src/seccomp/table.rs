//! Reads `syscalls.txt`. This file knows the format of a line, and nothing about BPF or Docker.

use std::sync::LazyLock;

use thiserror::Error;

use super::Arch;
use super::rules::{self, ArgumentRule};

/// One line of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Syscall {
    pub name: &'static str,
    pub x86_64: Option<u32>,
    pub aarch64: Option<u32>,
    pub verdict: SyscallVerdict,
    /// How the verdict differs from other projects' lists. Only the review reads it.
    pub departs: &'static str,
    /// Which programs need it, or what its absence prevents.
    pub reason: &'static str,
}

impl Syscall {
    /// Returns the call's number on `arch`, or `None` if it has none there.
    pub fn number(&self, arch: Arch) -> Option<u32> {
        match arch {
            Arch::X86_64 => self.x86_64,
            Arch::Aarch64 => self.aarch64,
        }
    }
}

/// What the guest may do with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyscallVerdict {
    Allow,
    /// `EPERM`, as if a privilege were missing.
    Deny,
    /// `ENOSYS`, as if the kernel were older.
    Absent,
    /// It depends on the arguments.
    Rule(&'static ArgumentRule),
}

static SYSCALLS: LazyLock<Vec<Syscall>> = LazyLock::new(|| match parse(include_str!("syscalls.txt")) {
    Ok(syscalls) => syscalls,
    // The text is part of the program and every test reads it, so this cannot happen in a release.
    Err(fault) => panic!("syscalls.txt: {fault}"),
});

/// Returns every system call in the table, sorted by name.
pub fn syscalls() -> &'static [Syscall] {
    &SYSCALLS
}

/// What is wrong with a line of the table.
#[derive(Debug, Error, PartialEq, Eq)]
pub(super) enum TableError {
    #[error("line {line}: could not find six columns (name, x86_64, aarch64, verdict, departs, reason)")]
    Columns { line: usize },
    #[error("line {line}: could not read `{word}` as a number or `-`")]
    Number { line: usize, word: String },
    #[error("line {line}: there is no verdict or rule `{word}`")]
    Verdict { line: usize, word: String },
    #[error("line {line}: `{name}` is not sorted after the line before it")]
    Order { line: usize, name: String },
}

/// Reads the whole table. Fails at the first bad line.
pub(super) fn parse(text: &'static str) -> Result<Vec<Syscall>, TableError> {
    let mut syscalls: Vec<Syscall> = Vec::new();
    for (index, text) in text.lines().enumerate() {
        let line = index + 1;
        if text.trim().is_empty() || text.starts_with('#') {
            continue;
        }
        let (name, rest) = word(text);
        let (x86_64, rest) = word(rest);
        let (aarch64, rest) = word(rest);
        let (verdict, rest) = word(rest);
        let (departs, rest) = word(rest);
        let reason = rest.trim();
        if reason.is_empty() {
            return Err(TableError::Columns { line });
        }
        if syscalls.last().is_some_and(|before| before.name >= name) {
            return Err(TableError::Order { line, name: name.into() });
        }
        syscalls.push(Syscall {
            name,
            x86_64: number(line, x86_64)?,
            aarch64: number(line, aarch64)?,
            verdict: verdict_named(line, verdict)?,
            departs,
            reason,
        });
    }
    Ok(syscalls)
}

/// Splits `text` after its first word.
fn word(text: &str) -> (&str, &str) {
    let text = text.trim_start();
    text.split_at(text.find(char::is_whitespace).unwrap_or(text.len()))
}

fn number(line: usize, word: &str) -> Result<Option<u32>, TableError> {
    if word == "-" {
        return Ok(None);
    }
    word.parse().map(Some).map_err(|_| TableError::Number { line, word: word.into() })
}

fn verdict_named(line: usize, word: &str) -> Result<SyscallVerdict, TableError> {
    match word {
        "allow" => Ok(SyscallVerdict::Allow),
        "deny" => Ok(SyscallVerdict::Deny),
        "absent" => Ok(SyscallVerdict::Absent),
        name => rules::rules()
            .iter()
            .find(|rule| rule.name == name)
            .map(SyscallVerdict::Rule)
            .ok_or_else(|| TableError::Verdict { line, word: name.into() }),
    }
}
