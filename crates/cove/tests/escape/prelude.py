# Runs ahead of every hostile program of `cases/`, in the same namespace. A program tries acts by `attempt`, which
# prints one line for each; the case's file says which results hold its claim. Nothing here protects anything.

import ctypes
import errno
import os
import signal

# By number, because libc has no functions for many of them and would choose others for some: x86_64, aarch64.
CALLS = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "cachestat": (451, 451),
    "capset": (126, 91),
    "chmod": (90, None),
    "chroot": (161, 51),
    "clock_settime": (227, 112),
    "clone": (56, 220),
    "clone3": (435, 435),
    "close_range": (436, 436),
    "creat": (85, None),
    "delete_module": (176, 106),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "fcntl": (72, 25),
    "exit": (60, 93),
    "fadvise64": (221, 223),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_setup": (206, 0),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioctl": (16, 29),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "landlock_add_rule": (445, 445),
    "landlock_create_ruleset": (444, 444),
    "landlock_restrict_self": (446, 446),
    "madvise": (28, 233),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "msgget": (68, 186),
    "msgrcv": (70, 188),
    "msgsnd": (69, 189),
    "name_to_handle_at": (303, 264),
    "open": (2, None),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "openat": (257, 56),
    "openat2": (437, 437),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "pipe2": (293, 59),
    "pivot_root": (155, 41),
    "prctl": (157, 167),
    "preadv2": (327, 286),
    "prlimit64": (302, 261),
    "process_madvise": (440, 440),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "rt_sigqueueinfo": (129, 138),
    "seccomp": (317, 277),
    "semctl": (66, 191),
    "semget": (64, 190),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "sendfile": (40, 71),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "setsockopt": (54, 208),
    "setrlimit": (160, 164),
    "settimeofday": (164, 170),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "shmget": (29, 194),
    "socket": (41, 198),
    "splice": (275, 76),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "tee": (276, 77),
    "tgkill": (234, 131),
    "timer_create": (222, 107),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
    "vmsplice": (278, 75),
}

ARCH = os.uname().machine
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


class Absent(Exception):
    """This machine does not have what the attack needs, so there is nothing to deny."""


class Held(str):
    """A result that is no error and yet holds: `attempt` prints it as it is, and not as allowed."""


def call(name, *args):
    """A raw system call. Integers go as whole registers."""
    number = CALLS[name][1 if ARCH == "aarch64" else 0]
    if number is None:
        raise Absent
    whole = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    result = libc.syscall(ctypes.c_long(number), *whole)
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def attempt(name, act, *args):
    """Does one act and says how it ended."""
    try:
        got = act(*args)
    except Absent:
        result = "absent"
    except OSError as error:
        result = "denied " + errno.errorcode.get(error.errno, f"errno {error.errno}")
    else:
        # What is covered, and not absent, is there and has nothing in it.
        result = str(got) if isinstance(got, Held) else "empty" if got in (b"", []) else "allowed " + ascii(got)[:200]
    say(name, result)


def say(name, result):
    # One write, whatever threads and children do meanwhile.
    os.write(1, f"attempt {name} -> {result}\n".encode())


def read(path):
    with open(path, "rb") as file:
        return file.read(100)


def overwrite(path, flags=0):
    # Not `open`, which hides what fails only at the end behind a buffer.
    fd = os.open(path, os.O_WRONLY | flags, 0o600)
    try:
        return os.write(fd, b"taken over")
    finally:
        os.close(fd)


def fork_by(clone):
    """For acts that return twice when they succeed: the child ends at once, the parent learns of it."""
    pid = clone()
    if pid == 0:
        os._exit(0)
    return pid


def in_child(act):
    """Runs `act` in a child. Its exit code or the signal that killed it is the result; an error goes on in here."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            got = act()
            os.write(theirs, b"0 " + ascii(got).encode()[:100])
        except OSError as error:
            os.write(theirs, b"%d" % error.errno)
        finally:
            os._exit(0)
    os.close(theirs)
    said = os.read(ours, 200)
    os.close(ours)
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        return Held("killed " + signal.Signals(os.WTERMSIG(status)).name)
    number, _, rest = said.decode().partition(" ")
    if number != "0":
        raise OSError(int(number), os.strerror(int(number)))
    return rest


def execute(code):
    """Runs machine code of x86_64 in a child, and returns what it leaves in the first register."""
    if ARCH != "x86_64":
        raise Absent
    import mmap
    rights = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
    memory = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, rights)
    memory.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    return in_child(lambda: ctypes.CFUNCTYPE(ctypes.c_long)(address)())


def call_32(number):
    """A system call of 32-bit programs: mov eax, number; int 0x80; ret."""
    return execute(b"\xb8" + number.to_bytes(4, "little") + b"\xcd\x80\xc3")


def call_x32(number):
    """A system call of x32: mov eax, number with the mark; syscall; ret."""
    return execute(b"\xb8" + (0x40000000 | number).to_bytes(4, "little") + b"\x0f\x05\xc3")


def system_folder():
    """`/sys`, where it is there at all: held if nothing can be seen in it but the sandbox's own cgroups."""
    seen = [name for name in os.listdir("/sys") if name != "fs" and os.listdir("/sys/" + name)]
    seen += [name for name in os.listdir("/sys/fs") if name != "cgroup" and os.listdir("/sys/fs/" + name)]
    return seen or Held("covered")


def status_field(name, pid="self"):
    for line in open(f"/proc/{pid}/status"):
        if line.startswith(name + ":"):
            return line.split(":", 1)[1].strip()
    raise Absent


os.write(1, f"seccomp {status_field('Seccomp')}\n".encode())
