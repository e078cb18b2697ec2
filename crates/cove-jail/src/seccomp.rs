//! The system call filter, as data: seccomp(2), and what Docker and Kubernetes call a seccomp profile.
//!
//! `seccomp/syscalls.txt` says for every system call what the guest may do with it, and why. From that one table come
//! the BPF program of the jail (`compile`), the profile of sandboxes that are containers (`sandbox_profile`), and the
//! profile of a container in which Cove itself runs (`host_profile`), so that they cannot drift apart. Nothing here has
//! an effect: installing a program is a step of the jail.
//!
//! The abilities of a filter decide its shape. It sees six integers, never what a pointer points to, so it refuses a
//! call whose meaning lies behind a pointer (`clone3`) whole. And it sees 64-bit registers where the kernel often reads
//! only 32 bits: every comparison is on the low half, or garbage in the high half would be a way around it.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

mod compile;
mod docker;
mod rules;
mod table;
#[cfg(test)]
mod tests;

pub use compile::compile;
pub use docker::{host_profile, sandbox_profile, service_profile};
pub use rules::{ArgumentCheck, ArgumentRule, RuleCase, rules};
pub use table::{Syscall, SyscallVerdict, syscalls};

/// The architectures that the table has numbers for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arch {
    X86_64,
    Aarch64,
}

impl Arch {
    /// The architecture that this program was built for.
    #[cfg(target_arch = "x86_64")]
    pub const NATIVE: Arch = Arch::X86_64;
    /// The architecture that this program was built for.
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

/// What the filter does with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilterAction {
    /// The kernel carries out the call, or refuses it for reasons of its own.
    Allow,
    /// The call fails with this error number and has no effect.
    Errno(u16),
    /// The kernel kills the whole process with `SIGSYS`.
    KillProcess,
}

impl FilterAction {
    /// The call returns 0 and does nothing.
    pub const DONE: FilterAction = FilterAction::Errno(0);
    pub const EPERM: FilterAction = FilterAction::Errno(1);
    pub const EINVAL: FilterAction = FilterAction::Errno(22);
    pub const ENOSYS: FilterAction = FilterAction::Errno(38);
    pub const EOPNOTSUPP: FilterAction = FilterAction::Errno(95);
    pub const EAFNOSUPPORT: FilterAction = FilterAction::Errno(97);

    /// `SECCOMP_RET_*` of linux/seccomp.h: what a program returns.
    fn code(self) -> u32 {
        match self {
            FilterAction::Allow => 0x7fff_0000,
            FilterAction::Errno(number) => 0x0005_0000 | u32::from(number),
            FilterAction::KillProcess => 0x8000_0000,
        }
    }
}

/// One instruction of classic BPF: `struct sock_filter` of linux/filter.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BpfInstruction {
    pub code: u16,
    pub jt: u8,
    pub jf: u8,
    pub k: u32,
}

/// A compiled filter, ready to install.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilterProgram {
    arch: Arch,
    instructions: Vec<BpfInstruction>,
    depth: usize,
}

impl FilterProgram {
    /// Returns the program.
    pub fn instructions(&self) -> &[BpfInstruction] {
        &self.instructions
    }

    /// Returns how many comparisons it takes at most to find the verdict on a call, before any look at its arguments.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Counts the table's verdicts for the program's architecture: what this filter does, in numbers.
    pub fn summary(&self) -> FilterSummary {
        let mut summary = FilterSummary::default();
        for syscall in syscalls().iter().filter(|syscall| syscall.number(self.arch).is_some()) {
            match syscall.verdict {
                SyscallVerdict::Allow => summary.allowed += 1,
                SyscallVerdict::Deny => summary.denied += 1,
                SyscallVerdict::Absent => summary.absent += 1,
                SyscallVerdict::Rule(rule) => {
                    summary.by_rule += 1;
                    summary.rules.insert(rule.name);
                }
            }
        }
        summary
    }
}

/// What the filter of one architecture does, in numbers. Displays as one line for `cove explain`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct FilterSummary {
    /// Calls that are always allowed.
    pub allowed: usize,
    /// Names of the rules in effect.
    pub rules: BTreeSet<&'static str>,
    /// Calls that those rules decide.
    pub by_rule: usize,
    /// Calls answered with `ENOSYS`, like every number that is not in the table.
    pub absent: usize,
    /// Calls answered with `EPERM`.
    pub denied: usize,
}

impl fmt::Display for FilterSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { allowed, by_rule, absent, .. } = self;
        let rules = Vec::from_iter(self.rules.iter().copied()).join(", ");
        write!(
            f,
            "{allowed} allowed, {by_rule} by rule ({rules}), {absent} as if the kernel were older, the rest EPERM"
        )
    }
}
