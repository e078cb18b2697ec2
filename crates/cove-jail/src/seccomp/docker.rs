//! The table as a profile for Docker, Podman and Kubernetes: the JSON that moby reads, and containerd in part.
//!
//! The format is weaker than BPF in two ways that shape what is written here. Entries for one call are alternatives
//! without an order, and the engines turn two conditions on one argument into "either" instead of "both"; so "anything
//! but these values" has to be spelled out as a set of bit patterns that covers the rest. And comparisons are on 64
//! bits, so each of ours carries a mask of at most 32.
//!
//! Two differences to the jail's own program remain. Numbers that the table does not know get EPERM, save where the
//! engine itself answers ENOSYS for those above the newest it was told of; and a protocol family or netlink protocol
//! above 63, which no kernel has, gets EPERM where the jail says EAFNOSUPPORT.

use serde_json::{Value, json};

use super::Action;
use super::rules::{Check, Rule};
use super::table::{Syscall, Verdict, syscalls};

/// EAFNOSUPPORT is spelled out for families and netlink protocols of so many bits; kernels have fewer than 64.
const REFUSAL_BITS: u32 = 6;

/// What the making of a sandbox takes beyond what is allowed inside one, and why.
pub(super) const AROUND: &[(&str, &str)] = &[
    ("clone3", "the sandbox's first process, in its namespaces and its cgroup from birth"),
    ("fsconfig", "sizes of the sandbox's tmpfs, and what its /proc shows"),
    ("fsmount", "the sandbox's tmpfs and /proc, attached nowhere yet"),
    ("fsopen", "the sandbox's tmpfs and /proc"),
    ("mount", "no mount of the sandbox may spread to where it came from"),
    ("mount_setattr", "what is shown from outside is read-only, nosuid and nodev"),
    ("move_mount", "mounts are put into the new root"),
    ("open_tree", "folders from outside, such as /usr, for the new root"),
    ("pivot_root", "the new root becomes the root"),
    ("prctl", "the secure bits are set and locked"),
    ("sched_setaffinity", "holds a sandbox to its processors where there is no cgroup to do it"),
    ("seccomp", "the sandbox's own filter, which forbids all of these"),
    ("sethostname", "the sandbox has a name of its own"),
    ("umount2", "the old root goes out of sight"),
    ("unshare", "a cgroup namespace, once the process is in its cgroup"),
];

/// The profile of a container that is a sandbox, as indented JSON.
pub fn docker_json() -> String {
    profile(|syscall| syscall.verdict)
}

/// The profile of a container in which Cove itself runs and makes sandboxes, as indented JSON.
pub fn around_json() -> String {
    profile(|syscall| match AROUND.iter().any(|(name, _)| *name == syscall.name) {
        true => Verdict::Allow,
        false => syscall.verdict,
    })
}

fn profile(verdict: impl Fn(&Syscall) -> Verdict) -> String {
    let names = |wanted: Verdict| -> Vec<&str> {
        syscalls().iter().filter(|syscall| verdict(syscall) == wanted).map(|syscall| syscall.name).collect()
    };
    let mut entries = vec![
        entry(&names(Verdict::Allow), Action::Allow, &[]),
        entry(&names(Verdict::Absent), Action::ENOSYS, &[]),
    ];
    for syscall in syscalls() {
        if let Verdict::Rule(rule) = verdict(syscall) {
            entries.extend(
                alternatives(rule).iter().map(|(action, checks)| entry(&[syscall.name], *action, checks)),
            );
        }
    }
    // Without sub-architectures the engine filters the native calls and ends a process that makes others.
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

fn entry(names: &[&str], action: Action, checks: &[Check]) -> Value {
    let mut entry = json!({ "names": names });
    match action {
        Action::Allow => entry["action"] = json!("SCMP_ACT_ALLOW"),
        Action::KillProcess => entry["action"] = json!("SCMP_ACT_KILL_PROCESS"),
        Action::Errno(number) => {
            entry["action"] = json!("SCMP_ACT_ERRNO");
            entry["errnoRet"] = json!(number);
        }
    }
    if !checks.is_empty() {
        let arguments = checks.iter().map(|check| {
            json!({
                "index": check.argument,
                "op": "SCMP_CMP_MASKED_EQ",
                "value": check.mask,
                "valueTwo": check.equals,
            })
        });
        entry["args"] = arguments.collect();
    }
    entry
}

/// A rule as alternatives that no call matches two of. What ends with the profile's default is left out.
fn alternatives(rule: &Rule) -> Vec<(Action, Vec<Check>)> {
    let mut alternatives = Vec::new();
    if rule.then != Action::EPERM {
        for case in rule.cases {
            alternatives.push((rule.then, case.checks.to_vec()));
        }
    }
    if rule.otherwise == Action::EPERM {
        return alternatives;
    }
    let bits = if rule.otherwise == Action::Allow { u32::BITS } else { REFUSAL_BITS };
    let firsts: Vec<&Check> = rule.cases.iter().filter_map(|case| case.checks.first()).collect();
    for check in others(&firsts, bits) {
        alternatives.push((rule.otherwise, vec![check]));
    }
    for case in rule.cases {
        if let [first, second] = case.checks {
            for check in others(&[second], bits) {
                alternatives.push((rule.otherwise, vec![*first, check]));
            }
        }
    }
    alternatives
}

/// Patterns that cover all values of `bits` bits but those that `checks`, all on one argument, compare with.
fn others(checks: &[&Check], bits: u32) -> Vec<Check> {
    let mut covering = Vec::new();
    if let Some(Check { argument, .. }) = checks.first() {
        let values: Vec<u32> = checks.iter().map(|check| check.equals).collect();
        cover(*argument, &values, 0, bits, &mut covering);
    }
    covering
}

/// Halves the block of `2^bits` values from `start` until no part of it holds one of `values`.
fn cover(argument: u8, values: &[u32], start: u32, bits: u32, covering: &mut Vec<Check>) {
    let mask = u32::MAX.checked_shl(bits).unwrap_or(0);
    if values.iter().all(|value| value & mask != start) {
        covering.push(Check { argument, mask, equals: start });
    } else if let Some(bits) = bits.checked_sub(1) {
        cover(argument, values, start, bits, covering);
        cover(argument, values, start | 1 << bits, bits, covering);
    }
}
