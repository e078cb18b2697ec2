# Run by `cove doctor` inside a sandbox: tries what must not work, and prints a line of JSON for each check. The one
# argument says where on the host there is something to reach. Whether it was reached is also seen from outside.

import errno
import json
import os
import signal
import socket
import stat
import sys

try:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
except ImportError:
    libc = None

HOST = json.loads(sys.argv[1])

# By number, because libc has no functions for many of them: x86_64, aarch64.
CALLS = {
    "add_key": (248, 217),
    "bpf": (321, 280),
    "clone": (56, 220),
    "io_uring_setup": (425, 425),
    "keyctl": (250, 219),
    "mount": (165, 40),
    "open_by_handle_at": (304, 265),
    "perf_event_open": (298, 241),
    "ptrace": (101, 117),
    "setns": (308, 268),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
}
ABI = {"x86_64": 0, "aarch64": 1}.get(os.uname().machine)
FORBIDDEN = ("EPERM", "EACCES", "ENOSYS")
ABSENT = ("ENOENT", "EACCES", "EPERM")


class Untried(Exception):
    """The act could not be tried, which proves nothing."""


class Held:
    """A state that is as it should be."""

    def __init__(self, state):
        self.state = state


def call(name, *arguments):
    if libc is None:
        raise Untried("this python has no ctypes")
    if ABI is None:
        raise Untried("the numbers of this architecture are not known")
    result = libc.syscall(ctypes.c_long(CALLS[name][ABI]), *(ctypes.c_long(argument) for argument in arguments))
    if result == -1:
        raise OSError(ctypes.get_errno(), name)
    return result


def check(name, **acts):
    """An act is a function and the errors that mean it was denied. One that goes through is a failure."""
    denied, allowed, untried = [], [], []
    for act, (expected, function) in acts.items():
        act = act.replace("_", " ")
        try:
            result = function()
            if isinstance(result, Held):
                denied.append(result.state)
            else:
                allowed.append(f"{act} was allowed" + ("" if result is None else f": {result!r}"[:200]))
        except Untried as reason:
            untried.append(f"{act} could not be tried: {reason}")
        except OSError as error:
            code = errno.errorcode.get(error.errno, str(error))
            # Another error than a refusal means that the kernel has begun to do it.
            if code in expected:
                denied.append(f"{act} {code}")
            else:
                allowed.append(f"{act} was not refused: {code}")
        except Exception as error:
            untried.append(f"{act} could not be tried: {type(error).__name__}: {error}"[:200])
    result = "allowed" if allowed else "untried" if untried else "held"
    print(json.dumps({"check": name, "result": result, "detail": ", ".join(allowed + untried or denied)}), flush=True)


def read(path):
    with open(path, "rb") as file:
        return file.read(100)


def write(path):
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))


def status(*fields):
    with open("/proc/self/status") as file:
        found = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    return [found[field].strip() for field in fields]


def expect(expected, found):
    return Held(found) if found == expected else found


check(
    "host files",
    read=(ABSENT, lambda: read(HOST["file"])),
    list=(ABSENT, lambda: os.listdir(HOST["folder"])),
    read_by_pid_1=(ABSENT, lambda: read("/proc/1/root" + HOST["file"])),
)


def host_processes():
    seen = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                seen.append(file.read().decode(errors="replace").split("\0"))
        except OSError:
            pass
    strangers = [line for line in seen if HOST["command"] == line[: len(HOST["command"])]]
    return strangers or Held(f"{len(seen)} seen, all of the sandbox")


check("host processes", see=((), host_processes))


def signal_host():
    # A process in here that happens to have the number ignores it, because it has not asked for it.
    os.kill(HOST["pid"], signal.SIGURG)
    # The first process of the sandbox is always there and never seen; in a container the host's may be the first too.
    if HOST["pid"] == 1 or os.path.exists(f"/proc/{HOST['pid']}"):
        return Held("the number is one of the sandbox's own")
    raise Untried("it went somewhere")


check("host signals", signal=(("ESRCH", "EPERM"), signal_host))
check(
    "system files",
    write_usr=(("EROFS", "EACCES"), lambda: write("/usr/cove-doctor")),
    write_etc=(("EROFS", "EACCES"), lambda: write("/etc/passwd")),
    write_root=(("EROFS", "EACCES"), lambda: write("/cove-doctor")),
    write_own_program=(("EROFS", "EACCES", "ETXTBSY"), lambda: write("/.cove/cove")),
)


def mount():
    text = ctypes.create_string_buffer(b"tmpfs") if libc else None
    where = ctypes.create_string_buffer(b"/workspace") if libc else None
    address = ctypes.addressof if libc else id
    call("mount", address(text), address(where), address(text), 0, 0)


check("mounts", mount=(FORBIDDEN, mount))

NO_WAY = ("ECONNREFUSED", "ENETUNREACH", "EHOSTUNREACH", "ENETDOWN", "EPERM", "EACCES")


def connect(family, kind, address):
    with socket.socket(family, kind) as tried:
        tried.settimeout(3)
        tried.connect(address)
        tried.send(b"x")


check(
    "network",
    host_loopback=(NO_WAY, lambda: connect(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", HOST["port"]))),
    host_socket=(NO_WAY, lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, "\0" + HOST["socket"])),
    internet=(NO_WAY, lambda: connect(socket.AF_INET, socket.SOCK_DGRAM, ("192.0.2.1", 9))),
    interfaces=((), lambda: expect("lo alone", " ".join(name for _, name in socket.if_nameindex()) + " alone")),
)

FAMILIES = {
    "key": 15,
    "packet": 17,
    "rds": 21,
    "can": 29,
    "tipc": 30,
    "bluetooth": 31,
    "rxrpc": 33,
    "alg": 38,
    "vsock": 40,
    "xdp": 44,
}


def families():
    opened = []
    for name, number in FAMILIES.items():
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
            try:
                socket.socket(number, kind).close()
                opened.append(name)
                break
            except OSError:
                pass
    return opened or Held("none of " + " ".join(FAMILIES))


def netlink(protocol):
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol).close()


REFUSED = ("EAFNOSUPPORT", "EPROTONOSUPPORT", "EPERM", "EACCES")
check(
    "socket families",
    open=((), families),
    raw=(REFUSED, lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).close()),
    netlink_xfrm=(REFUSED, lambda: netlink(6)),
    netlink_audit=(REFUSED, lambda: netlink(9)),
)
check(
    "tracing",
    attach_pid_1=(FORBIDDEN, lambda: call("ptrace", 16, 1, 0, 0)),
    traced_by_parent=(FORBIDDEN, lambda: call("ptrace", 0, 0, 0, 0)),
)
check("io_uring", setup=(FORBIDDEN, lambda: call("io_uring_setup", 1, 0)))
check(
    "keyrings",
    add_key=(FORBIDDEN, lambda: call("add_key", 0, 0, 0, 0, 0)),
    keyctl=(FORBIDDEN, lambda: call("keyctl", 0, -3, 0, 0, 0)),
)
check(
    "kernel interfaces",
    bpf=(FORBIDDEN, lambda: call("bpf", 0, 0, 0)),
    perf=(FORBIDDEN, lambda: call("perf_event_open", 0, 0, -1, -1, 0)),
    userfaultfd=(FORBIDDEN, lambda: call("userfaultfd", 1)),
    file_handles=(FORBIDDEN, lambda: call("open_by_handle_at", -100, 0, 0)),
    setns=(FORBIDDEN, lambda: call("setns", 0, 0)),
)
def sysfs():
    found = os.listdir("/sys/kernel")
    return found or Held("sysfs empty")


def cgroups():
    found = os.listdir("/sys/fs/cgroup")
    if not HOST["container"]:
        return found
    # They are shown in there, and must not be writable.
    write("/sys/fs/cgroup/cove-doctor")


check(
    "kernel settings",
    core_pattern=(ABSENT + ("EROFS",), lambda: write("/proc/sys/kernel/core_pattern")),
    sysfs=(ABSENT, sysfs),
    cgroups=(ABSENT + ("EROFS",), cgroups),
)


def host_user():
    with open("/proc/self/uid_map") as file:
        inside, outside, count = file.read().split()
    mapped = f"user {inside} is {outside} on the machine"
    if HOST["container"]:
        # Most have no user namespace of their own; then the number is that of nobody.
        return Held(f"user {os.getuid()}, {mapped}") if os.getuid() != 0 else mapped
    return Held(mapped) if outside != "0" and count == "1" else mapped


check(
    "privileges",
    setuid=(("EPERM", "EINVAL"), lambda: os.setuid(0)),
    setgid=(("EPERM", "EINVAL"), lambda: os.setgid(0)),
    no_new_privileges=((), lambda: expect("NoNewPrivs 1", "NoNewPrivs " + status("NoNewPrivs")[0])),
    user=((), host_user),
)
SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
check("capabilities", sets=((), lambda: Held("none") if not any(int(s, 16) for s in status(*SETS)) else status(*SETS)))
check("system calls", mode=((), lambda: expect("filtered (Seccomp 2)", f"filtered (Seccomp {status('Seccomp')[0]})")))


def variables():
    strange = sorted(name for name, value in os.environ.items() if value not in HOST["variables"].get(name, []))
    return strange or Held(f"{len(os.environ)} variables, all made for it")


check("environment", variables=((), variables))
check(
    "runner",
    environment=(ABSENT, lambda: read("/proc/1/environ")),
    memory=(ABSENT, lambda: os.close(os.open("/proc/1/mem", os.O_RDWR))),
    descriptors=(ABSENT, lambda: os.listdir("/proc/1/fd")),
    root=(ABSENT, lambda: os.listdir("/proc/1/root")),
)


def devices():
    kinds = {name: stat.S_IFMT(os.lstat("/dev/" + name).st_mode) for name in os.listdir("/dev")}
    found = sorted(name for name, kind in kinds.items() if kind in (stat.S_IFCHR, stat.S_IFBLK))
    # A container has a name for the terminal that it does not have.
    if HOST["container"] and "tty" in found:
        found.remove("tty")
    return expect("full null random urandom zero", " ".join(found))


check(
    "devices",
    make=(("EPERM", "EACCES"), lambda: os.mknod("/workspace/doctor", stat.S_IFBLK | 0o600, os.makedev(254, 0))),
    list=((), devices),
)


def descriptors():
    """The standard streams, copies of them, and the socket to the runner; nothing that leads into a file system."""
    strange, known = [], 0
    streams = [os.fstat(fd)[:3] for fd in range(3)]
    for fd in range(1024):
        try:
            found = os.fstat(fd)
        except OSError:
            continue
        known += 1
        harmless = stat.S_ISFIFO(found.st_mode) or stat.S_ISSOCK(found.st_mode)
        null = stat.S_ISCHR(found.st_mode) and found.st_rdev == os.makedev(1, 3)
        if fd > 3 and found[:3] not in streams or not (harmless or null):
            strange.append(fd)
    return [f"{fd} {os.readlink(f'/proc/self/fd/{fd}')}" for fd in strange] or Held(f"{known}, none of a file")


check("descriptors", open=((), descriptors))

# Last: one that is made would hide the host from what is tried after it.
NEWUSER, NEWNS, NEWNET, NEWPID = 0x10000000, 0x20000, 0x40000000, 0x20000000


def clone():
    if call("clone", NEWUSER | signal.SIGCHLD, 0, 0, 0, 0) == 0:
        os._exit(0)


check(
    "namespaces",
    user=(FORBIDDEN + ("ENOSPC",), lambda: call("unshare", NEWUSER)),
    mount=(FORBIDDEN + ("ENOSPC",), lambda: call("unshare", NEWNS)),
    net=(FORBIDDEN + ("ENOSPC",), lambda: call("unshare", NEWNET)),
    pid=(FORBIDDEN + ("ENOSPC",), lambda: call("unshare", NEWPID)),
    clone=(FORBIDDEN + ("ENOSPC",), clone),
)
