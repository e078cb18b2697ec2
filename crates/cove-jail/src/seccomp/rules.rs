//! The rules that look at arguments, as data.
//!
//! If any case of a rule holds, the call ends with `then`, else with `otherwise`. Comparisons are on the low 32 bits of
//! a register: all arguments named here are `int` or `unsigned int` in the kernel, except clone's flags, of which the
//! kernel too reads only the low half.

use super::FilterAction;

/// Decides a call by its arguments.
#[derive(Debug, PartialEq, Eq)]
pub struct ArgumentRule {
    pub name: &'static str,
    pub cases: &'static [RuleCase],
    /// How the call ends if any case holds.
    pub then: FilterAction,
    /// How it ends if none does.
    pub otherwise: FilterAction,
}

/// Holds if all of its checks hold.
#[derive(Debug, PartialEq, Eq)]
pub struct RuleCase {
    /// The constant's name in the kernel's headers.
    pub name: &'static str,
    pub checks: &'static [ArgumentCheck],
    pub reason: &'static str,
}

/// Holds if the argument, cut to 32 bits and masked, equals a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArgumentCheck {
    pub argument: u8,
    pub mask: u32,
    pub equals: u32,
}

/// Returns all rules that a line of `syscalls.txt` may name.
pub fn rules() -> &'static [ArgumentRule] {
    RULES
}

/// A check that the whole argument has this value.
const fn is(argument: u8, equals: u32) -> ArgumentCheck {
    ArgumentCheck { argument, mask: u32::MAX, equals }
}

const fn case(name: &'static str, checks: &'static [ArgumentCheck], reason: &'static str) -> RuleCase {
    RuleCase { name, checks, reason }
}

/// `CLONE_NEWNS`, `NEWCGROUP`, `NEWUTS`, `NEWIPC`, `NEWUSER`, `NEWPID` and `NEWNET`. `CLONE_NEWTIME` (0x80) is not
/// among them and cannot be: in clone(2) the low byte is the exit signal, so only clone3(2) and unshare(2) take it.
const NEW_NAMESPACES: u32 = 0x7e02_0000;

/// The part of a mode that says what kind of file it is: `S_IFMT`.
const FILE_KIND: u32 = 0o170_000;

/// A check of the kind of file in the mode of mknod(2), its second argument, or of mknodat(2), its third.
const fn is_file(argument: u8, kind: u32) -> ArgumentCheck {
    ArgumentCheck { argument, mask: FILE_KIND, equals: kind }
}

/// Cases for mknod(2), and `FIFO_AT` for mknodat(2).
static FIFO: &[RuleCase] = &[
    case("S_IFIFO", &[is_file(1, 0o010_000)], "named pipes of shells and make"),
    case("S_IFREG", &[is_file(1, 0o100_000)], "no more than open with O_CREAT"),
];
static FIFO_AT: &[RuleCase] = &[
    case("S_IFIFO", &[is_file(2, 0o010_000)], "named pipes of shells and make"),
    case("S_IFREG", &[is_file(2, 0o100_000)], "no more than open with O_CREAT"),
];

static RULES: &[ArgumentRule] = &[
    ArgumentRule {
        name: "clone",
        cases: &[case(
            "no CLONE_NEW*",
            &[ArgumentCheck { argument: 0, mask: NEW_NAMESPACES, equals: 0 }],
            "threads and processes, but no namespace in which the guest would hold capabilities",
        )],
        then: FilterAction::Allow,
        otherwise: FilterAction::EPERM,
    },
    ArgumentRule { name: "fifo", cases: FIFO, then: FilterAction::Allow, otherwise: FilterAction::EPERM },
    ArgumentRule { name: "fifo-at", cases: FIFO_AT, then: FilterAction::Allow, otherwise: FilterAction::EPERM },
    ArgumentRule {
        name: "families",
        cases: &[
            case("AF_UNIX", &[is(0, 1)], "local channels of every runtime"),
            case("AF_INET", &[is(0, 2)], "local servers, and egress where it is granted"),
            case("AF_INET6", &[is(0, 10)], "local servers, and egress where it is granted"),
            case(
                "AF_NETLINK with NETLINK_ROUTE",
                &[is(0, 16), is(2, 0)],
                "getifaddrs in libc; other protocols speak to xfrm, audit and netfilter",
            ),
        ],
        then: FilterAction::Allow,
        // Not EPERM: programs probe for AF_VSOCK, AF_ALG and the like, and expect this answer of kernels without them.
        otherwise: FilterAction::EAFNOSUPPORT,
    },
    ArgumentRule {
        name: "ioctl",
        cases: &[
            case("TIOCSTI", &[is(1, 0x5412)], "types into the terminal that the jail runs on"),
            case("TIOCLINUX", &[is(1, 0x541c)], "pastes into a virtual console of the machine"),
        ],
        then: FilterAction::EPERM,
        otherwise: FilterAction::Allow,
    },
    ArgumentRule {
        name: "personality",
        cases: &[
            case("PER_LINUX", &[is(0, 0)], "the personality that every process here has"),
            case(
                "a query",
                &[is(0, u32::MAX)],
                "changes nothing; the others turn off randomised or non-executable memory",
            ),
        ],
        then: FilterAction::Allow,
        otherwise: FilterAction::EPERM,
    },
    ArgumentRule { name: "prctl", cases: PRCTL, then: FilterAction::EPERM, otherwise: FilterAction::Allow },
    ArgumentRule {
        name: "unix-family",
        cases: &[case("AF_UNIX", &[is(0, 1)], "the only family whose pairs are in use; AF_TIPC is the other")],
        then: FilterAction::Allow,
        otherwise: FilterAction::EAFNOSUPPORT,
    },
];

/// Options of prctl(2) that change what the jail has set up, or affect more than the process. The others name threads,
/// set death signals, drop privileges and harden the caller.
static PRCTL: &[RuleCase] = &[
    case("PR_SET_TIMING", &[is(0, 14)], "timing toggle; chooses how the kernel accounts time"),
    case("PR_SET_SECCOMP", &[is(0, 22)], "further filters slow every call; a listener could answer for others"),
    case("PR_SET_TSC", &[is(0, 26)], "timing toggle; makes the time stamp counter trap"),
    case("PR_SET_SECUREBITS", &[is(0, 28)], "the jail has set and locked them"),
    case("PR_TASK_PERF_EVENTS_DISABLE", &[is(0, 31)], "performance counters are not the guest's"),
    case("PR_TASK_PERF_EVENTS_ENABLE", &[is(0, 32)], "performance counters are not the guest's"),
    case("PR_MCE_KILL", &[is(0, 33)], "how the machine treats broken memory is the host's matter"),
    case("PR_SET_MM", &[is(0, 35)], "forges what /proc says of the process, its program file too"),
    case("PR_SET_SPECULATION_CTRL", &[is(0, 53)], "speculation toggle; could take mitigations off"),
    case("PR_SET_IO_FLUSHER", &[is(0, 57)], "lets allocations dig into the host's last reserves"),
    case("PR_SET_SYSCALL_USER_DISPATCH", &[is(0, 59)], "diverts calls before this filter sees them"),
    case("PR_SCHED_CORE", &[is(0, 62)], "a private cookie keeps the core's other thread from every neighbour"),
    case("PR_SET_MEMORY_MERGE", &[is(0, 67)], "merged pages tell by timing what a neighbour holds"),
    case("PR_FUTEX_HASH", &[is(0, 78)], "a kernel table as large as the guest asks for"),
    case("PR_RSEQ_SLICE_EXTENSION", &[is(0, 79)], "timing toggle; longer slices than the neighbours get"),
];
