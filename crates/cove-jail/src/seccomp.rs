//! The system call filter, as data: seccomp(2), and what Docker and Kubernetes call a seccomp profile.
//!
//! `seccomp/syscalls.txt` says for every system call what the guest may do with it, and why. From that one table come
//! the BPF program of the jail (`compile`), the profile of the container backends (`docker_json`) and that of a container
//! around Cove itself (`around_json`), so that they cannot drift apart. Nothing here has an effect: installing a program is a step of the jail.
//!
//! What a filter can and cannot do decides its shape. It sees six integers, never what a pointer points to, so a call
//! whose meaning lies behind a pointer (`clone3`) is refused whole. And it sees 64-bit registers where the kernel often
//! reads only 32 bits: every comparison is on the low half, or garbage in the high half would be a way around it.

use std::fmt;

use serde::{Deserialize, Serialize};

mod compile;
mod docker;
mod rules;
mod table;
#[cfg(test)]
mod tests;

pub use compile::compile;
pub use docker::{around_json, docker_json};
pub use rules::{Case, Check, Rule, rules};
pub use table::{Syscall, Verdict, syscalls};

/// The architectures that the table has numbers for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arch {
    X86_64,
    Aarch64,
}

impl Arch {
    /// The one that this program was built for.
    #[cfg(target_arch = "x86_64")]
    pub const NATIVE: Arch = Arch::X86_64;
    /// The one that this program was built for.
    #[cfg(target_arch = "aarch64")]
    pub const NATIVE: Arch = Arch::Aarch64;

    /// `AUDIT_ARCH_*` of linux/audit.h: what the kernel puts into `seccomp_data.arch`.
    fn audit(self) -> u32 {
        match self {
            Arch::X86_64 => 0xc000_003e,
            Arch::Aarch64 => 0xc000_00b7,
        }
    }
}

/// How a call ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The kernel carries it out, or refuses it for reasons of its own.
    Allow,
    /// It fails with this number and has no effect.
    Errno(u16),
    /// The whole process ends with `SIGSYS`.
    KillProcess,
}

impl Action {
    pub const EPERM: Action = Action::Errno(1);
    pub const ENOSYS: Action = Action::Errno(38);
    pub const EAFNOSUPPORT: Action = Action::Errno(97);

    /// `SECCOMP_RET_*` of linux/seccomp.h: what a program returns.
    fn code(self) -> u32 {
        match self {
            Action::Allow => 0x7fff_0000,
            Action::Errno(number) => 0x0005_0000 | u32::from(number),
            Action::KillProcess => 0x8000_0000,
        }
    }
}

/// One instruction of classic BPF: `struct sock_filter` of linux/filter.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instruction {
    pub code: u16,
    pub jt: u8,
    pub jf: u8,
    pub k: u32,
}

/// A filter that is ready to be installed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    arch: Arch,
    instructions: Vec<Instruction>,
    depth: usize,
}

impl Program {
    pub fn arch(&self) -> Arch {
        self.arch
    }

    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    /// How many comparisons at most find the verdict on a call, before any look at its arguments.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// The instructions as the kernel reads them: an array of `struct sock_filter`, in this machine's byte order.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.instructions.len() * 8);
        for instruction in &self.instructions {
            bytes.extend(instruction.code.to_ne_bytes());
            bytes.extend([instruction.jt, instruction.jf]);
            bytes.extend(instruction.k.to_ne_bytes());
        }
        bytes
    }

    /// What this filter does, in numbers and in one line.
    pub fn summary(&self) -> Summary {
        summary(self.arch)
    }
}

/// What the filter of one architecture does, in numbers; displays as one line for `cove explain`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Summary {
    pub allowed: usize,
    /// Names of the rules in effect, sorted.
    pub rules: Vec<&'static str>,
    /// How many calls those rules decide.
    pub by_rule: usize,
    /// Answered with `ENOSYS`, like every number that the table does not know.
    pub absent: usize,
    /// Answered with `EPERM`.
    pub denied: usize,
}

/// Counts the table's verdicts for `arch`.
pub fn summary(arch: Arch) -> Summary {
    let mut summary = Summary { allowed: 0, rules: Vec::new(), by_rule: 0, absent: 0, denied: 0 };
    for syscall in syscalls().iter().filter(|syscall| syscall.number(arch).is_some()) {
        match syscall.verdict {
            Verdict::Allow => summary.allowed += 1,
            Verdict::Deny => summary.denied += 1,
            Verdict::Absent => summary.absent += 1,
            Verdict::Rule(rule) => {
                summary.by_rule += 1;
                summary.rules.push(rule.name);
            }
        }
    }
    summary.rules.sort_unstable();
    summary.rules.dedup();
    summary
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} allowed, {} by rule ({}), {} as if the kernel were older, the rest EPERM",
            self.allowed,
            self.by_rule,
            self.rules.join(", "),
            self.absent
        )
    }
}
