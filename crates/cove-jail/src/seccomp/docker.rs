//! Writes the table as a profile for Docker, Podman and Kubernetes: the JSON that moby reads, and containerd in part.
//!
//! The format is weaker than BPF in two ways that shape these profiles. Entries for one call are alternatives without
//! an order, and the engines turn two conditions on one argument into "either" instead of "both"; so "anything but
//! these values" has to be spelled out as a set of bit patterns that covers the rest. And comparisons are on 64 bits,
//! so each of these carries a mask of at most 32 bits, except where a rule compares both halves of an argument.
//!
//! Besides `SERVICE_CALLS`, three differences to the jail's own program remain. Numbers that are not in the table get
//! EPERM, except where the engine itself answers ENOSYS for numbers above the newest one in the profile; a protocol family or protocol
//! above 63, such as MPTCP, gets EPERM where the jail answers EAFNOSUPPORT; and so does a level of socket options,
//! or an option of a level with refused ones, above 511, where the kernel would answer ENOPROTOOPT.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::FilterAction;
use super::rules::{ArgumentCheck, ArgumentRule, HIGH_HALF, RuleCase};
use super::table::{Syscall, SyscallVerdict, syscalls};

/// The profile spells out EAFNOSUPPORT for families and protocols of this many bits. Kernels have fewer than 64 families.
const REFUSAL_BITS: u32 = 6;

/// The profile spells out pairs of allowed values for values of this many bits, because each takes an entry.
const PAIR_BITS: u32 = 9;

/// The calls that making a sandbox needs beyond those that are allowed inside one, and why.
pub(super) const HOST_CALLS: &[(&str, &str)] = &[
    ("clone3", "clones the sandbox's first process into its namespaces and its cgroup"),
    ("fcntl", "claims the user ids of sandboxes by locks of open file descriptions"),
    ("fsconfig", "sets the sizes of the sandbox's tmpfs, and what its /proc shows"),
    ("fsmount", "mounts the sandbox's tmpfs and /proc, not attached yet"),
    ("fsopen", "makes the sandbox's tmpfs and /proc"),
    ("landlock_add_rule", "allows the sandbox its paths in Landlock too"),
    ("landlock_create_ruleset", "asks for Landlock, and begins the sandbox's rules"),
    ("landlock_restrict_self", "puts the sandbox under its rules"),
    ("mount", "keeps the sandbox's mounts from spreading to the host"),
    ("mount_setattr", "makes mounts from outside read-only, nosuid and nodev"),
    ("move_mount", "puts mounts into the new root"),
    ("open_tree", "opens folders from outside, such as /usr, for the new root"),
    ("pivot_root", "makes the new root the root"),
    ("prctl", "sets and locks the secure bits"),
    ("prlimit64", "sets the sandbox's limits, that on core files too"),
    ("sched_setaffinity", "limits a sandbox to its processors where there is no cgroup"),
    ("seccomp", "installs the sandbox's own filter, which forbids all of these"),
    ("sethostname", "sets the sandbox's host name"),
    ("umount2", "unmounts the old root"),
    ("unshare", "makes a cgroup namespace once the process is in its cgroup"),
];

/// The calls that services of images need beyond those that are allowed in the embedded sandbox, and why.
pub(super) const SERVICE_CALLS: &[(&str, &str)] =
    &[("sendfile", "nginx sends files with it unless its configuration says otherwise; a cgroup counts the pages")];

/// Returns the profile of a single container that is a sandbox, as indented JSON.
pub fn sandbox_profile() -> String {
    profile_with(&[])
}

/// Returns the profile of the containers of a Compose file, as indented JSON.
pub fn service_profile() -> String {
    profile_with(&[SERVICE_CALLS])
}

/// Returns the profile of a container in which Cove itself runs and makes sandboxes, as indented JSON.
pub fn host_profile() -> String {
    profile_with(&[SERVICE_CALLS, HOST_CALLS])
}

/// Returns the profile of the table with more calls.
fn profile_with(more: &[&[(&str, &str)]]) -> String {
    profile(|syscall| match more.iter().copied().flatten().any(|(name, _)| *name == syscall.name) {
        true => SyscallVerdict::Allow,
        false => syscall.verdict,
    })
}

fn profile(verdict: impl Fn(&Syscall) -> SyscallVerdict) -> String {
    let names = |wanted: SyscallVerdict| -> Vec<&str> {
        syscalls().iter().filter(|syscall| verdict(syscall) == wanted).map(|syscall| syscall.name).collect()
    };
    let mut entries = vec![
        entry(&names(SyscallVerdict::Allow), FilterAction::Allow, &[]),
        entry(&names(SyscallVerdict::Absent), FilterAction::ENOSYS, &[]),
    ];
    for syscall in syscalls() {
        if let SyscallVerdict::Rule(rule) = verdict(syscall) {
            entries.extend(alternatives(rule).iter().map(|(action, checks)| entry(&[syscall.name], *action, checks)));
        }
    }
    // Without sub-architectures the engine filters native calls, and kills a process that makes others.
    let profile = json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": 1,
        "archMap": [
            { "architecture": "SCMP_ARCH_X86_64", "subArchitectures": [] },
            { "architecture": "SCMP_ARCH_AARCH64", "subArchitectures": [] },
        ],
        "syscalls": entries,
    });
    format!("{profile:#}")
}

fn entry(names: &[&str], action: FilterAction, checks: &[ArgumentCheck]) -> Value {
    let mut entry = json!({ "names": names });
    match action {
        FilterAction::Allow => entry["action"] = json!("SCMP_ACT_ALLOW"),
        FilterAction::KillProcess => entry["action"] = json!("SCMP_ACT_KILL_PROCESS"),
        FilterAction::Errno(number) => {
            entry["action"] = json!("SCMP_ACT_ERRNO");
            entry["errnoRet"] = json!(number);
        }
    }
    if !checks.is_empty() {
        // One condition for both halves of an argument.
        let mut arguments: BTreeMap<u8, (u64, u64)> = BTreeMap::new();
        for check in checks {
            let shift = if check.argument & HIGH_HALF == 0 { 0 } else { u32::BITS };
            let (mask, equals) = arguments.entry(check.argument & !HIGH_HALF).or_default();
            *mask |= u64::from(check.mask) << shift;
            *equals |= u64::from(check.equals) << shift;
        }
        let arguments = arguments.into_iter().map(|(index, (mask, equals))| {
            json!({ "index": index, "op": "SCMP_CMP_MASKED_EQ", "value": mask, "valueTwo": equals })
        });
        entry["args"] = arguments.collect();
    }
    entry
}

/// Returns a rule as alternatives that do not contradict each other. It leaves out those that end with the profile's
/// default.
fn alternatives(rule: &ArgumentRule) -> Vec<(FilterAction, Vec<ArgumentCheck>)> {
    let mut alternatives = Vec::new();
    if rule.then != FilterAction::EPERM {
        for case in rule.cases {
            alternatives.push((rule.then, case.checks.to_vec()));
        }
    }
    if rule.otherwise == FilterAction::EPERM {
        return alternatives;
    }
    match rule.cases {
        [] => return vec![(rule.otherwise, Vec::new())],
        // One bit has one opposite.
        [RuleCase { checks: [check], .. }] if check.mask.is_power_of_two() => {
            alternatives.push((rule.otherwise, vec![ArgumentCheck { equals: check.equals ^ check.mask, ..*check }]));
            return alternatives;
        }
        _ => {}
    }
    // Only one rule compares both halves of an argument, with 0: the rest are the values with any bit set.
    let is_whole = |check: &ArgumentCheck| check.argument & HIGH_HALF != 0;
    if let Some(case) = rule.cases.iter().find(|case| case.checks.iter().any(is_whole)) {
        for half in &case.checks[1..] {
            let bits = (0..u32::BITS).map(|bit| ArgumentCheck { mask: 1 << bit, equals: 1 << bit, ..*half });
            alternatives.extend(bits.map(|check| (rule.otherwise, vec![case.checks[0], check])));
        }
        return alternatives;
    }
    let bits = match (rule.otherwise, rule.cases.iter().all(|case| case.checks.len() == 1)) {
        (FilterAction::Allow, true) => u32::BITS,
        (FilterAction::Allow, false) => PAIR_BITS,
        _ => REFUSAL_BITS,
    };
    // Here cases compare whole values, and the first check of each is on the same argument.
    let mut firsts: Vec<&ArgumentCheck> = rule.cases.iter().filter_map(|case| case.checks.first()).collect();
    firsts.dedup();
    for check in covering_others(&firsts, bits) {
        alternatives.push((rule.otherwise, vec![check]));
    }
    for first in firsts {
        let same_first = rule.cases.iter().filter(|case| case.checks.first() == Some(first));
        // Those that allow a whole range allow all that is spelled out.
        let seconds: Vec<&ArgumentCheck> =
            same_first.filter_map(|case| case.checks.get(1)).filter(|check| check.mask == u32::MAX).collect();
        for check in covering_others(&seconds, bits) {
            alternatives.push((rule.otherwise, vec![*first, check]));
        }
    }
    alternatives
}

/// Returns patterns that cover all values of `bits` bits except those that `checks`, all on one argument, compare with.
fn covering_others(checks: &[&ArgumentCheck], bits: u32) -> Vec<ArgumentCheck> {
    let mut covering = Vec::new();
    if let Some(ArgumentCheck { argument, .. }) = checks.first() {
        let values: Vec<u32> = checks.iter().map(|check| check.equals).collect();
        cover(*argument, &values, 0, bits, &mut covering);
    }
    covering
}

/// Halves the block of `2^bits` values from `start` until no part of it holds one of `values`.
fn cover(argument: u8, values: &[u32], start: u32, bits: u32, covering: &mut Vec<ArgumentCheck>) {
    let mask = u32::MAX.checked_shl(bits).unwrap_or(0);
    if values.iter().all(|value| value & mask != start) {
        covering.push(ArgumentCheck { argument, mask, equals: start });
    } else if let Some(bits) = bits.checked_sub(1) {
        cover(argument, values, start, bits, covering);
        cover(argument, values, start | 1 << bits, bits, covering);
    }
}
