//! Runs the compiled programs in a small interpreter, and compares them with verdicts that are written down here a
//! second time.

use std::collections::{BTreeMap, BTreeSet};

use super::compile::{SyscallRange, assemble};
use super::table::{TableError, parse};
use super::{
    Arch, ArgumentCheck, ArgumentRule, BpfInstruction, FilterAction, FilterProgram, RuleCase, SyscallVerdict, compile,
    rules, syscalls,
};

mod docker;
mod headers;
mod interpreter;
mod review;

use interpreter::{SimulatedCall, run};

const ARCHES: [Arch; 2] = [Arch::X86_64, Arch::Aarch64];
const NEWEST: u32 = 471;

/// Patterns for the half of a register that the kernel does not look at.
const HIGH_HALVES: [u64; 4] = [0, 1, 0x8000_0000, 0xffff_ffff];

fn number(arch: Arch, name: &str) -> Option<u32> {
    syscalls().iter().find(|syscall| syscall.name == name)?.number(arch)
}

/// Returns what each rule should decide, written independently of the rule.
fn judge(rule: &str, arguments: [u64; 6]) -> FilterAction {
    let low = arguments.map(|argument| argument as u32);
    match rule {
        "clone" => {
            let namespaces = [
                libc::CLONE_NEWNS,
                libc::CLONE_NEWCGROUP,
                libc::CLONE_NEWUTS,
                libc::CLONE_NEWIPC,
                libc::CLONE_NEWUSER,
                libc::CLONE_NEWPID,
                libc::CLONE_NEWNET,
            ];
            if namespaces.iter().any(|flag| low[0] & *flag as u32 != 0) {
                FilterAction::EPERM
            } else {
                FilterAction::Allow
            }
        }
        // `new` is null for a query: nothing but a whole null pointer is.
        "core-of-task" if low[1] == libc::RLIMIT_CORE && arguments[2] == 0 => FilterAction::Allow,
        "core-limit" if low[0] == libc::RLIMIT_CORE => FilterAction::DONE,
        "core-limit" => FilterAction::Allow,
        // No kernel has resources from 16 on.
        "core-of-task" if low[1] == libc::RLIMIT_CORE || low[1] >= 16 => FilterAction::DONE,
        "core-of-task" => FilterAction::Allow,
        "families" => match low[0] as i32 {
            libc::AF_UNIX => FilterAction::Allow,
            libc::AF_INET | libc::AF_INET6 if low[2] < 64 => FilterAction::Allow,
            libc::AF_NETLINK if low[2] as i32 == libc::NETLINK_ROUTE => FilterAction::Allow,
            _ => FilterAction::EAFNOSUPPORT,
        },
        "unix-family" if low[0] as i32 == libc::AF_UNIX => FilterAction::Allow,
        "unix-family" => FilterAction::EAFNOSUPPORT,
        "fifo" | "fifo-at" => {
            let mode = if rule == "fifo" { low[1] } else { low[2] };
            match mode & libc::S_IFMT {
                libc::S_IFIFO | libc::S_IFREG => judge_mode(mode),
                _ => FilterAction::EPERM,
            }
        }
        "cache-advice" if low[3] as i32 == libc::POSIX_FADV_DONTNEED => FilterAction::DONE,
        "cache-advice" => FilterAction::Allow,
        "read-flags" if low[5] as i32 & libc::RWF_NOWAIT != 0 => FilterAction::EOPNOTSUPP,
        "read-flags" => FilterAction::Allow,
        "send-file" => FilterAction::EINVAL,
        "madvise" if matches!(low[2] as i32, libc::MADV_MERGEABLE | libc::MADV_PAGEOUT) => FilterAction::EPERM,
        "madvise" => FilterAction::Allow,
        "pipe" if low[1] as i32 & libc::O_EXCL != 0 => FilterAction::EPERM,
        "pipe" => FilterAction::Allow,
        "mode" => judge_mode(low[1]),
        "mode-at" => judge_mode(low[2]),
        "open" => judge_open(low[1], low[2]),
        "open-at" => judge_open(low[2], low[3]),
        "fcntl" => match low[1] as i32 {
            0..=11 | 15..=17 | 1025 | 1027..=1030 | 1032..=1038 => FilterAction::Allow,
            _ => FilterAction::EPERM,
        },
        "setsockopt" => match (low[1] as i32, low[2] as i32) {
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => FilterAction::EPERM,
            (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER | libc::SO_ATTACH_BPF | libc::SO_ZEROCOPY) => FilterAction::EPERM,
            (libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF | libc::SO_ATTACH_REUSEPORT_EBPF) => FilterAction::EPERM,
            (libc::SOL_TCP, libc::TCP_ULP) | (libc::SOL_UDP, 100) | (libc::SOL_IPV6, 32) => FilterAction::EPERM,
            _ => FilterAction::Allow,
        },
        "ioctl" if low[1] == 0x5412 || low[1] == 0x541c => FilterAction::EPERM,
        "ioctl" => FilterAction::Allow,
        "personality" if low[0] == 0 || low[0] == 0xffff_ffff => FilterAction::Allow,
        "personality" => FilterAction::EPERM,
        "prctl" => match low[0] {
            8 | 14 | 22 | 26 | 28 | 31..=33 | 35 | 53 | 57 | 59 | 62 | 67 | 78 | 79 => FilterAction::EPERM,
            _ => FilterAction::Allow,
        },
        other => panic!("no test covers the rule {other}"),
    }
}

fn judge_mode(mode: u32) -> FilterAction {
    if mode & (libc::S_ISUID | libc::S_ISGID) == 0 { FilterAction::Allow } else { FilterAction::EPERM }
}

/// `O_TMPFILE` has the bit of `O_DIRECTORY` too, which creates nothing.
fn judge_open(flags: u32, mode: u32) -> FilterAction {
    let creates = libc::O_CREAT | libc::O_TMPFILE & !libc::O_DIRECTORY;
    if flags as i32 & creates == 0 { FilterAction::Allow } else { judge_mode(mode) }
}

fn expected(verdict: SyscallVerdict, arguments: [u64; 6]) -> FilterAction {
    match verdict {
        SyscallVerdict::Allow => FilterAction::Allow,
        SyscallVerdict::Deny => FilterAction::EPERM,
        SyscallVerdict::Absent => FilterAction::ENOSYS,
        SyscallVerdict::Rule(rule) => judge(rule.name, arguments),
    }
}

fn verdicts(arch: Arch) -> BTreeMap<u32, SyscallVerdict> {
    syscalls().iter().filter_map(|syscall| Some((syscall.number(arch)?, syscall.verdict))).collect()
}

/// Returns argument lists that a rule may distinguish: each interesting value in each of the first four places.
fn argument_lists() -> Vec<[u64; 6]> {
    let mut values: BTreeSet<u32> = (0..=130).collect();
    values.extend((0..32).map(|bit| 1 << bit));
    values.extend((0..32).map(|bit| (1_u32 << bit) - 1));
    values.extend([0x5411, 0x5412, 0x5413, 0x541b, 0x541c, 0x541d, 0x5401, 0x8004_5430, u32::MAX - 1, u32::MAX]);
    values.extend([
        0x7e02_0000,
        0x003d_0f00,
        0x0120_0011,
        0x4111,
        0x5356_4d41,
        0x5961_6d61,
        0x0004_0000,
        0x0002_0008,
        libc::S_IFCHR | 0o666,
        libc::S_IFBLK | 0o666,
        libc::S_IFIFO | 0o666,
        libc::S_IFREG | 0o666,
        libc::S_IFSOCK | 0o666,
        libc::S_IFREG | 0o4755,
        libc::S_IFIFO | 0o2666,
        0o1777,
        0o2755,
        0o6755,
        0o10_4755,
        (libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL) as u32,
        (libc::O_RDWR | libc::O_TMPFILE) as u32,
        (libc::O_RDONLY | libc::O_DIRECTORY) as u32,
    ]);
    values.extend(500..=520);
    values.extend(1020..=1045);
    let mut lists = Vec::new();
    for value in values {
        for high in HIGH_HALVES {
            let wide = high << 32 | u64::from(value);
            lists.push([wide, 0, 0, 0, 0, 0]);
            lists.push([wide, 0, high << 32, 0, 0, 0]);
            lists.push([wide, 0, 9, 0, 0, 0]);
            lists.push([0, wide, 0, 0, 0, 0]);
            lists.push([0, high << 32 | 4, wide, 0, 0, 0]);
            lists.push([3, wide, wide, wide, wide, wide]);
            lists.push([high << 32 | 16, 3, wide, 0, 0, 0]);
            lists.push([high << 32 | 2, 1, wide, 0, 0, 0]);
            lists.push([high << 32 | 10, 1, wide, 0, 0, 0]);
            for level in [6, 17, 41] {
                lists.push([3, high << 32 | level, wide, 0, 0, 0]);
            }
            for flags in [libc::O_CREAT, libc::O_TMPFILE, libc::O_CREAT | libc::O_WRONLY, libc::O_DIRECTORY] {
                lists.push([0, high << 32 | flags as u64, wide, high, 0, 0]);
                lists.push([0, 0, high << 32 | flags as u64, wide, 0, 0]);
            }
        }
    }
    lists
}

#[test]
fn every_number_has_the_verdict_of_the_table() {
    for arch in ARCHES {
        let program = compile(arch);
        let verdicts = verdicts(arch);
        for number in 0..=1023 {
            let verdict = verdicts.get(&number).copied().unwrap_or(SyscallVerdict::Absent);
            for arguments in [[0; 6], [1; 6], [u64::MAX; 6]] {
                let found = run(&program, &SimulatedCall { number, arch: arch.audit(), arguments }).code;
                assert_eq!(found, expected(verdict, arguments).code(), "{arch:?} {number} {arguments:?}");
            }
        }
    }
}

#[test]
fn rules_look_at_the_low_half_of_arguments_only() {
    let lists = argument_lists();
    for arch in ARCHES {
        let program = compile(arch);
        for (number, verdict) in verdicts(arch) {
            let SyscallVerdict::Rule(rule) = verdict else { continue };
            for arguments in &lists {
                let found = run(&program, &SimulatedCall { number, arch: arch.audit(), arguments: *arguments }).code;
                assert_eq!(found, judge(rule.name, *arguments).code(), "{arch:?} {} {arguments:x?}", rule.name);
            }
        }
    }
}

#[test]
fn calls_of_other_architectures_and_x32_kill_the_process() {
    let kill = FilterAction::KillProcess.code();
    for arch in ARCHES {
        let program = compile(arch);
        // i386, ARM, the other supported one, x86_64 without its 64-bit mark, and nonsense.
        let foreign = [0x4000_0003, 0x4000_0028, 0xc000_003e, 0xc000_00b7, 0x8000_003e, 0, u32::MAX];
        for foreign in foreign.into_iter().filter(|audit| *audit != arch.audit()) {
            for number in (0..=500).chain([0x4000_0027, u32::MAX]) {
                assert_eq!(run(&program, &SimulatedCall { number, arch: foreign, arguments: [0; 6] }).code, kill);
            }
        }
    }
    let check =
        |number: u32| run(&compile(Arch::X86_64), &SimulatedCall { number, arch: 0xc000_003e, arguments: [0; 6] }).code;
    for number in (0x4000_0000..0x4000_0400).chain([0x7fff_ffff, 0xc000_0027, 0xffff_fffe]) {
        assert_eq!(check(number), kill, "{number:x}");
    }
    // Not x32: a library that does not know a number, and numbers past the end of the table.
    for number in [u32::MAX, NEWEST + 1, 512, 547, 0x3fff_ffff, 0x8000_0000] {
        assert_eq!(check(number), FilterAction::ENOSYS.code(), "{number:x}");
    }
}

#[test]
fn the_program_is_short_and_shallow() {
    let mut lines = String::new();
    for arch in ARCHES {
        let program = compile(arch);
        // The search has ended where a rule begins, with the load of an argument.
        let longest = (0..=1023)
            .map(|number| {
                run(&program, &SimulatedCall { number, arch: arch.audit(), arguments: [0; 6] }).steps_to_verdict
            })
            .max();
        let longest = longest.unwrap_or_default();
        assert!(longest <= 20, "{longest} instructions before the verdict");
        assert!(program.instructions().len() <= 340, "the specification's limit: {}", program.instructions().len());
        assert_eq!(compile(arch), program, "the same table gives the same program");
        lines += &format!(
            "{arch:?}: {} instructions, depth {}, {longest} executed at most\n  {}\n",
            program.instructions().len(),
            program.depth(),
            program.summary()
        );
    }
    insta::assert_snapshot!(lines, @r"
    X86_64: 334 instructions, depth 7, 13 executed at most
      238 allowed, 26 by rule (cache-advice, clone, core-limit, core-of-task, families, fcntl, fifo, fifo-at, ioctl, madvise, mode, mode-at, open, open-at, personality, pipe, prctl, read-flags, send-file, setsockopt, unix-family), 21 as if the kernel were older, the rest EPERM
    Aarch64: 289 instructions, depth 7, 12 executed at most
      203 allowed, 21 by rule (cache-advice, clone, core-limit, core-of-task, families, fcntl, fifo-at, ioctl, madvise, mode, mode-at, open-at, personality, pipe, prctl, read-flags, send-file, setsockopt, unix-family), 21 as if the kernel were older, the rest EPERM
    ");
}

/// A program so large that shared blocks are out of a conditional jump's reach.
#[test]
fn far_jumps_reach_their_targets() {
    let rule = |name: &str| rules().iter().find(|rule| rule.name == name).map(SyscallVerdict::Rule).unwrap();
    let cycle = [
        SyscallVerdict::Allow,
        rule("prctl"),
        SyscallVerdict::Deny,
        rule("families"),
        SyscallVerdict::Absent,
        rule("clone"),
    ];
    for count in [1, 2, 3, 254, 255, 256, 257, 511, 513, 1200] {
        let ranges: Vec<SyscallRange> =
            (0..count).map(|n| SyscallRange { first: n * 3, verdict: cycle[n as usize % cycle.len()] }).collect();
        for arch in ARCHES {
            let program = assemble(arch, &ranges);
            assert!(program.instructions().len() <= 4096, "the kernel's limit");
            assert!(count < 511 || program.instructions().iter().any(|i| i.code == 0x05), "no far jump was tried");
            assert!(program.depth() <= count.next_power_of_two().ilog2() as usize);
            for number in 0..count * 3 + 3 {
                let range = &ranges[(number / 3).min(count - 1) as usize];
                for arguments in [[0; 6], [22, 0, 0, 0, 0, 0], [16, 0, 1, 0, 0, 0], [0x1000_0000, 0, 0, 0, 0, 0]] {
                    let found = run(&program, &SimulatedCall { number, arch: arch.audit(), arguments }).code;
                    assert_eq!(found, expected(range.verdict, arguments).code(), "{count} {number} {arguments:?}");
                }
            }
            assert_eq!(
                run(&program, &SimulatedCall { number: 0, arch: 1, arguments: [0; 6] }).code,
                FilterAction::KillProcess.code()
            );
        }
    }
}

/// The real rules do not mix arguments, so only this test covers the reuse of a loaded argument.
#[test]
fn a_rule_may_mix_arguments_and_masks() {
    const fn is(argument: u8, equals: u32) -> ArgumentCheck {
        ArgumentCheck { argument, mask: u32::MAX, equals }
    }
    const fn case(checks: &'static [ArgumentCheck]) -> RuleCase {
        RuleCase { name: "", checks, reason: "" }
    }
    static MIXED: ArgumentRule = ArgumentRule {
        name: "mixed",
        cases: &[
            case(&[is(0, 5)]),
            case(&[is(1, 7), is(0, 1)]),
            case(&[is(1, 6)]),
            case(&[ArgumentCheck { argument: 1, mask: 0xf0, equals: 0x20 }]),
            case(&[is(1, 8)]),
            case(&[is(2, 9)]),
            case(&[ArgumentCheck { argument: 2, mask: 0x0f, equals: 3 }, is(0, 2)]),
        ],
        then: FilterAction::EPERM,
        otherwise: FilterAction::Allow,
    };
    let program = assemble(Arch::NATIVE, &[SyscallRange { first: 0, verdict: SyscallVerdict::Rule(&MIXED) }]);
    for n in 0..12 * 48 * 20 {
        let (first, second, third) = (n % 12, n / 12 % 48, n / (12 * 48));
        let hit = first == 5
            || second == 6
            || second & 0xf0 == 0x20
            || (second == 7 && first == 1)
            || second == 8
            || third == 9
            || (third & 0x0f == 3 && first == 2);
        let arguments = [first, second, third, 0, 0, 0];
        let found = run(&program, &SimulatedCall { number: 0, arch: Arch::NATIVE.audit(), arguments }).code;
        assert_eq!(found, if hit { MIXED.then } else { MIXED.otherwise }.code(), "{arguments:?}");
    }
}

#[test]
fn a_program_survives_its_encoding_for_the_jail() {
    let program = compile(Arch::NATIVE);
    let text = serde_json::to_string(&program).unwrap();
    assert_eq!(serde_json::from_str::<FilterProgram>(&text).unwrap(), program);
    let first = BpfInstruction { code: 0x20, jt: 0, jf: 0, k: 4 };
    assert_eq!(program.instructions()[0], first);
}

#[test]
fn the_table_is_sorted_and_unique_and_gives_reasons() {
    assert!(syscalls().is_sorted_by(|a, b| a.name < b.name));
    for arch in ARCHES {
        let numbers: Vec<u32> = syscalls().iter().filter_map(|syscall| syscall.number(arch)).collect();
        assert_eq!(numbers.iter().collect::<BTreeSet<_>>().len(), numbers.len(), "{arch:?} has a number twice");
        assert_eq!(numbers.iter().max(), Some(&NEWEST));
    }
    for syscall in syscalls() {
        assert!(syscall.reason.split_whitespace().count() >= 2, "{} has no reason", syscall.name);
        assert!(syscall.x86_64.or(syscall.aarch64).is_some(), "{} has no number", syscall.name);
    }
    for rule in rules() {
        assert!(
            syscalls().iter().any(|syscall| syscall.verdict == SyscallVerdict::Rule(rule)),
            "{} is unused",
            rule.name
        );
        assert!(rule.cases.iter().all(|case| case.reason.split_whitespace().count() >= 2), "{}", rule.name);
    }
}

#[test]
fn errors_name_the_bad_line() {
    let check = |text, fault| assert_eq!(parse(text), Err(fault));
    check("read 0 63 allow =", TableError::Columns { line: 1 });
    check("# x\nread zero 63 allow = every program", TableError::Number { line: 2, word: "zero".into() });
    check("read 0 63 permit = every program", TableError::Verdict { line: 1, word: "permit".into() });
    check("b 0 0 deny = no reason\na 1 1 deny = no reason", TableError::Order { line: 2, name: "a".into() });
    check("a 0 0 deny = no reason\na 1 1 deny = no reason", TableError::Order { line: 2, name: "a".into() });
}

/// Calls that no future table may allow.
const NEVER: &str = "
    acct add_key adjtimex bpf cachestat chroot clock_adjtime clock_settime create_module delete_module fanotify_init
    fanotify_mark finit_module fsconfig fsmount fsopen fspick get_kernel_syms get_mempolicy init_module io_cancel
    io_destroy io_getevents io_pgetevents io_setup io_submit io_uring_enter io_uring_register io_uring_setup ioperm iopl
    ioprio_set kcmp kexec_file_load kexec_load keyctl listmount listns lookup_dcookie mbind memfd_secret migrate_pages
    modify_ldt mount mount_setattr move_mount move_pages name_to_handle_at open_by_handle_at open_tree
    open_tree_attr perf_event_open pidfd_getfd pivot_root process_madvise process_mrelease process_vm_readv
    process_vm_writev ptrace query_module quotactl quotactl_fd reboot remap_file_pages request_key seccomp set_mempolicy
    set_mempolicy_home_node setdomainname sethostname setns settimeofday splice statmount swapoff swapon sysfs syslog tee
    umount2 unshare uprobe uretprobe uselib userfaultfd ustat vhangup vmsplice";

#[test]
fn denies_calls_that_must_never_be_allowed() {
    for name in NEVER.split_whitespace() {
        let syscall = syscalls().iter().find(|syscall| syscall.name == name);
        assert_eq!(syscall.map(|syscall| syscall.verdict), Some(SyscallVerdict::Deny), "{name}");
        for arch in ARCHES {
            if let Some(number) = number(arch, name) {
                let call = SimulatedCall { number, arch: arch.audit(), arguments: [0; 6] };
                assert_eq!(run(&compile(arch), &call).code, FilterAction::EPERM.code(), "{arch:?} {name}");
            }
        }
    }
    let clone3 = SimulatedCall { number: 435, arch: Arch::NATIVE.audit(), arguments: [0; 6] };
    assert_eq!(run(&compile(Arch::NATIVE), &clone3).code, FilterAction::ENOSYS.code());
}

/// The rules spell constants as numbers, because the table serves two architectures. libc knows those of this one.
#[test]
fn constants_agree_with_libc() {
    assert_eq!(FilterAction::EPERM, FilterAction::Errno(libc::EPERM as u16));
    assert_eq!(FilterAction::ENOSYS, FilterAction::Errno(libc::ENOSYS as u16));
    assert_eq!(FilterAction::EINVAL, FilterAction::Errno(libc::EINVAL as u16));
    assert_eq!(FilterAction::EOPNOTSUPP, FilterAction::Errno(libc::EOPNOTSUPP as u16));
    assert_eq!(FilterAction::EAFNOSUPPORT, FilterAction::Errno(libc::EAFNOSUPPORT as u16));
    assert_eq!(FilterAction::Allow.code(), libc::SECCOMP_RET_ALLOW);
    assert_eq!(FilterAction::Errno(0).code(), libc::SECCOMP_RET_ERRNO);
    assert_eq!(FilterAction::KillProcess.code(), libc::SECCOMP_RET_KILL_PROCESS);
    let check = |rule: &str, case: &str, value: i64| {
        let rule = rules().iter().find(|known| known.name == rule).unwrap();
        let case = rule.cases.iter().find(|known| known.name == case).unwrap();
        assert_eq!(i64::from(case.checks[0].equals), value, "{}", case.name);
    };
    check("ioctl", "TIOCSTI", libc::TIOCSTI as i64);
    check("ioctl", "TIOCLINUX", libc::TIOCLINUX as i64);
    for (case, level, option) in [
        ("SO_ATTACH_FILTER", libc::SOL_SOCKET, libc::SO_ATTACH_FILTER),
        ("SO_ATTACH_BPF", libc::SOL_SOCKET, libc::SO_ATTACH_BPF),
        ("SO_ATTACH_REUSEPORT_CBPF", libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF),
        ("SO_ATTACH_REUSEPORT_EBPF", libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_EBPF),
        ("SO_ZEROCOPY", libc::SOL_SOCKET, libc::SO_ZEROCOPY),
        ("TCP_ULP", libc::SOL_TCP, libc::TCP_ULP),
    ] {
        check("setsockopt", case, level.into());
        let rule = rules().iter().find(|rule| rule.name == "setsockopt").unwrap();
        let case = rule.cases.iter().find(|known| known.name == case).unwrap();
        assert_eq!(case.checks[1].equals as i32, option, "{}", case.name);
    }
    for refused in [libc::F_SETLEASE, libc::F_NOTIFY, libc::F_OFD_GETLK, libc::F_OFD_SETLK, libc::F_OFD_SETLKW] {
        assert_eq!(judge("fcntl", [3, refused as u64, 0, 0, 0, 0]), FilterAction::EPERM);
    }
    check("prctl", "PR_SET_KEEPCAPS", libc::PR_SET_KEEPCAPS.into());
    check("prctl", "PR_SET_TIMING", libc::PR_SET_TIMING.into());
    check("prctl", "PR_SET_SECCOMP", libc::PR_SET_SECCOMP.into());
    check("prctl", "PR_SET_TSC", libc::PR_SET_TSC.into());
    check("prctl", "PR_SET_SECUREBITS", libc::PR_SET_SECUREBITS.into());
    check("prctl", "PR_TASK_PERF_EVENTS_DISABLE", libc::PR_TASK_PERF_EVENTS_DISABLE.into());
    check("prctl", "PR_TASK_PERF_EVENTS_ENABLE", libc::PR_TASK_PERF_EVENTS_ENABLE.into());
    check("prctl", "PR_MCE_KILL", libc::PR_MCE_KILL.into());
    check("prctl", "PR_SET_MM", libc::PR_SET_MM.into());
    check("prctl", "PR_SCHED_CORE", libc::PR_SCHED_CORE.into());
}
