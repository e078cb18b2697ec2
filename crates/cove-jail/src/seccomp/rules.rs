//! The rules that look at arguments, as data.
//!
//! If any case of a rule holds, the call ends with `then`, else with `otherwise`. A rule without cases gives every call an
//! error number that no verdict of the table stands for. Comparisons are on the low 32 bits of a register: all arguments
//! named here are `int` or `unsigned int` in the kernel, except clone's flags, of which the kernel too reads only the low
//! half, and the pointers of prlimit64(2), of which `HIGH_HALF` reads the rest.

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

/// Added to the number of an argument: the high 32 bits of its register.
pub(super) const HIGH_HALF: u8 = 0x80;

/// Holds if the argument, cut to 32 bits and masked, equals a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArgumentCheck {
    /// From 0 on; with `HIGH_HALF` for the other half.
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

/// `S_ISUID` and `S_ISGID`: in a writable mount, another user of the machine could run the guest's program as the user
/// whose sandbox it is. Nothing inside needs them, because no mount there honours them.
const SET_ID_BITS: u32 = 0o6000;

/// `O_CREAT` and the bit of `O_TMPFILE` that is its own: without them open(2) does not look at its mode.
const CREATES: u32 = 0o100 | 0o20_000_000;

/// A check that a mode has neither set-id bit.
const fn has_plain_mode(argument: u8) -> ArgumentCheck {
    ArgumentCheck { argument, mask: SET_ID_BITS, equals: 0 }
}

/// A check that the flags of an open create no file.
const fn creates_nothing(argument: u8) -> ArgumentCheck {
    ArgumentCheck { argument, mask: CREATES, equals: 0 }
}

/// A check of the kind of file in the mode of mknod(2), its second argument, or of mknodat(2), its third. It fails on a
/// set-id bit.
const fn is_plain_file(argument: u8, kind: u32) -> ArgumentCheck {
    ArgumentCheck { argument, mask: FILE_KIND | SET_ID_BITS, equals: kind }
}

/// A check that an argument is one of the values from `first`, as many as `count`: a power of two that divides `first`.
const fn is_among(argument: u8, first: u32, count: u32) -> ArgumentCheck {
    ArgumentCheck { argument, mask: !(count - 1), equals: first }
}

/// A rule that allows what its cases name and answers EPERM to the rest.
const fn allow_only(name: &'static str, cases: &'static [RuleCase]) -> ArgumentRule {
    ArgumentRule { name, cases, then: FilterAction::Allow, otherwise: FilterAction::EPERM }
}

const NO_SET_ID_BIT: &str = "no S_ISUID, no S_ISGID";
const PLAIN_MODE: &str = "read, write, execute and the sticky bit are all that a mode is for in here";
const CREATES_NOTHING: &str = "the mode is not looked at";
const NAMED_PIPE: &str = "named pipes of shells and make";
/// A check that the protocol of socket(2) is below 64. Not MPTCP, whose data is in no report that the watchdog reads, and not
/// SCTP, SMC, L2TP and UDP-Lite: for each of them the kernel has code, or loads a module, that few programs use.
const HAS_OLD_PROTOCOL: ArgumentCheck = is_among(2, 0, 64);
const SERVERS: &str = "local servers, and egress where it is granted";
const PLAIN_FILE: &str = "no more than open with O_CREAT";

/// The case of setrlimit(2), whose first argument is the resource; `CORE_OF_TASK` is for prlimit64(2), whose second is.
/// The kernel starts a `core_pattern` program for a limit of 0, but not for the jail's limit of 1: the guest may not
/// lower it. It gets the answer that it did, because programs with secrets, such as gpg(1), end if they cannot forbid
/// core files, and there are none here.
static CORE_LIMIT: &[RuleCase] = &[case(
    "RLIMIT_CORE",
    &[is(0, 4)],
    "a limit of 0 would let the host's core handler run; there are no core files here",
)];
static CORE_OF_TASK: &[RuleCase] = &[
    case("CPU to STACK", &[is_among(1, 0, 4)], "limits of every libc; soft limits move below the jail's hard ones"),
    case("RSS", &[is_among(1, 5, 1)], "limits of every libc; soft limits move below the jail's hard ones"),
    case("NPROC and NOFILE", &[is_among(1, 6, 2)], "limits of every libc; soft limits move below the jail's"),
    case("MEMLOCK to RTTIME", &[is_among(1, 8, 8)], "limits of every libc; soft limits move below the jail's"),
    case("a query", &[is(1, 4), is(2, 0), is(2 | HIGH_HALF, 0)], "reads the limit on core files, changes nothing"),
];

/// `POSIX_FADV_DONTNEED` of posix_fadvise(2). The guest gets the answer that it is done: it is advice.
static CACHE_ADVICE: &[RuleCase] =
    &[case("POSIX_FADV_DONTNEED", &[is(3, 4)], "takes files that the whole machine reads out of its page cache")];

/// The opposite of `RWF_NOWAIT`, a flag of preadv2(2).
static READ_FLAGS: &[RuleCase] = &[case(
    "no RWF_NOWAIT",
    &[ArgumentCheck { argument: 5, mask: 8, equals: 0 }],
    "with it a read tells which pages of a shared file others have touched, as cachestat does",
)];

static RULES: &[ArgumentRule] = &[
    ArgumentRule {
        name: "cache-advice",
        cases: CACHE_ADVICE,
        then: FilterAction::DONE,
        otherwise: FilterAction::Allow,
    },
    allow_only(
        "clone",
        &[case(
            "no CLONE_NEW*",
            &[ArgumentCheck { argument: 0, mask: NEW_NAMESPACES, equals: 0 }],
            "threads and processes, but no namespace in which the guest would hold capabilities",
        )],
    ),
    ArgumentRule { name: "core-limit", cases: CORE_LIMIT, then: FilterAction::DONE, otherwise: FilterAction::Allow },
    ArgumentRule {
        name: "core-of-task",
        cases: CORE_OF_TASK,
        then: FilterAction::Allow,
        otherwise: FilterAction::DONE,
    },
    allow_only("fcntl", FCNTL),
    allow_only(
        "fifo",
        &[
            case("S_IFIFO", &[is_plain_file(1, 0o010_000)], NAMED_PIPE),
            case("S_IFREG", &[is_plain_file(1, 0o100_000)], PLAIN_FILE),
        ],
    ),
    allow_only(
        "fifo-at",
        &[
            case("S_IFIFO", &[is_plain_file(2, 0o010_000)], NAMED_PIPE),
            case("S_IFREG", &[is_plain_file(2, 0o100_000)], PLAIN_FILE),
        ],
    ),
    ArgumentRule {
        name: "families",
        cases: &[
            case("AF_UNIX", &[is(0, 1)], "local channels of every runtime"),
            case("AF_INET with TCP, UDP or ICMP", &[is(0, 2), HAS_OLD_PROTOCOL], SERVERS),
            case("AF_INET6 with TCP, UDP or ICMP", &[is(0, 10), HAS_OLD_PROTOCOL], SERVERS),
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
        name: "madvise",
        cases: &[
            case("MADV_MERGEABLE", &[is(2, 12)], "merged pages tell by timing what a neighbour holds"),
            case(
                "MADV_PAGEOUT",
                &[is(2, 21)],
                "fills the machine's swap, and hides shared pages from the watchdog there",
            ),
        ],
        then: FilterAction::EPERM,
        otherwise: FilterAction::Allow,
    },
    allow_only("mode", &[case(NO_SET_ID_BIT, &[has_plain_mode(1)], PLAIN_MODE)]),
    allow_only("mode-at", &[case(NO_SET_ID_BIT, &[has_plain_mode(2)], PLAIN_MODE)]),
    allow_only(
        "open",
        &[
            case("no O_CREAT, no O_TMPFILE", &[creates_nothing(1)], CREATES_NOTHING),
            case(NO_SET_ID_BIT, &[has_plain_mode(2)], PLAIN_MODE),
        ],
    ),
    allow_only(
        "open-at",
        &[
            case("no O_CREAT, no O_TMPFILE", &[creates_nothing(2)], CREATES_NOTHING),
            case(NO_SET_ID_BIT, &[has_plain_mode(3)], PLAIN_MODE),
        ],
    ),
    allow_only(
        "personality",
        &[
            case("PER_LINUX", &[is(0, 0)], "the personality that every process here has"),
            case(
                "a query",
                &[is(0, u32::MAX)],
                "changes nothing; the others turn off randomised or non-executable memory",
            ),
        ],
    ),
    allow_only(
        "pipe",
        &[case(
            "no O_NOTIFICATION_PIPE",
            &[ArgumentCheck { argument: 1, mask: 0o200, equals: 0 }],
            "pipes of every program; the kernel's own messages in one are a past hole that nothing here needs",
        )],
    ),
    ArgumentRule { name: "prctl", cases: PRCTL, then: FilterAction::EPERM, otherwise: FilterAction::Allow },
    ArgumentRule {
        name: "read-flags",
        cases: READ_FLAGS,
        then: FilterAction::Allow,
        otherwise: FilterAction::EOPNOTSUPP,
    },
    // The answer for a file of a kind that sendfile(2) does not know: python, node, Go, Rust and busybox then copy.
    ArgumentRule { name: "send-file", cases: &[], then: FilterAction::Allow, otherwise: FilterAction::EINVAL },
    ArgumentRule { name: "setsockopt", cases: SETSOCKOPT, then: FilterAction::EPERM, otherwise: FilterAction::Allow },
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
    case("PR_SET_KEEPCAPS", &[is(0, 8)], "the jail has locked it; in a container there are no capabilities to keep"),
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

/// Commands of fcntl(2). The kernel may get others, so those that are known to be harmless are listed. Not among them:
/// `F_SETLEASE` and `F_SETDELEG`, which make every program outside that opens the file wait for the guest; `F_NOTIFY`,
/// which tells the guest of what the host does in a folder; and `F_OFD_SETLK` and its kin: no limit counts their locks,
/// and a mapping or a socket can hold them where the watchdog does not see them. Programs use `F_SETLK` instead. Nor
/// `F_SETPIPE_SZ`: a pipe of a megabyte looks like one of 64 KiB, and 64 of them are all that the kernel gives to a user.
static FCNTL: &[RuleCase] = &[
    case("F_DUPFD to F_SETLKW", &[is_among(1, 0, 8)], "descriptors, their flags, and locks of every runtime"),
    case("F_SETOWN to F_GETSIG", &[is_among(1, 8, 4)], "signals for input, to processes inside alone"),
    case("F_SETOWN_EX", &[is(1, 15)], "signals for input, to processes inside alone"),
    case("F_GETOWN_EX, F_GETOWNER_UIDS", &[is_among(1, 16, 2)], "they read what the guest has set"),
    case("F_GETLEASE", &[is(1, 1025)], "reads only"),
    case("F_DUPFD_QUERY", &[is(1, 1027)], "reads only"),
    case("F_CREATED_QUERY, F_CANCELLK", &[is_among(1, 1028, 2)], "reads only, and takes back the guest's own wait"),
    case("F_DUPFD_CLOEXEC", &[is(1, 1030)], "copies of descriptors that no other program gets"),
    case(
        "F_GETPIPE_SZ to F_GET_RW_HINT",
        &[is_among(1, 1032, 4)],
        "the size of pipes, seals on the guest's own memory",
    ),
    case("F_SET_RW_HINT, F_GET_FILE_RW_HINT", &[is_among(1, 1036, 2)], "hints of databases about their own files"),
    case("F_SET_FILE_RW_HINT", &[is(1, 1038)], "hints of databases about their own files"),
];

/// `SOL_SOCKET`, `SOL_TCP`, `SOL_UDP` and `SOL_IPV6`, as levels of setsockopt(2).
const SOCKET_LEVEL: ArgumentCheck = is(1, 1);
const TCP_LEVEL: ArgumentCheck = is(1, 6);
const UDP_LEVEL: ArgumentCheck = is(1, 17);
const IPV6_LEVEL: ArgumentCheck = is(1, 41);

/// Options of setsockopt(2) that load programs into the kernel, or take from what the whole machine shares. The first
/// check of a case is the level.
static SETSOCKOPT: &[RuleCase] = &[
    // Data that a closed Unix socket has sent is in no report. The watchdog counts each of these sockets as full.
    case("SO_SNDBUF", &[SOCKET_LEVEL, is(2, 7)], "without it the most that a socket may send is known"),
    case("SO_ATTACH_FILTER", &[SOCKET_LEVEL, is(2, 26)], "uses up the machine's memory for compiled filters"),
    case("SO_ATTACH_BPF", &[SOCKET_LEVEL, is(2, 50)], "as SO_ATTACH_FILTER, with a program of bpf(2)"),
    case("SO_ATTACH_REUSEPORT_CBPF", &[SOCKET_LEVEL, is(2, 51)], "as SO_ATTACH_FILTER, for a group of sockets"),
    case("SO_ATTACH_REUSEPORT_EBPF", &[SOCKET_LEVEL, is(2, 52)], "as SO_ATTACH_BPF, for a group of sockets"),
    case("SO_ZEROCOPY", &[SOCKET_LEVEL, is(2, 60)], "sends pages of files by reference, as splice would"),
    case("TCP_ULP", &[TCP_LEVEL, is(2, 31)], "puts TLS or IPsec code of the kernel into a connection"),
    case("UDP_ENCAP", &[UDP_LEVEL, is(2, 100)], "hands datagrams to IPsec code of the kernel"),
    case("IPV6_FLOWLABEL_MGR", &[IPV6_LEVEL, is(2, 32)], "the whole machine shares 4096 labels"),
];
