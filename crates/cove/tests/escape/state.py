# What the sandbox is, told from inside, one JSON object. `state.rs` compares it with what the host knows.

import json
import resource
import socket
import stat

FIELDS = ("Uid", "Gid", "Groups", "NoNewPrivs", "Seccomp", "TracerPid")
CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


def mounts():
    for line in open("/proc/self/mountinfo"):
        own, _, source = line.partition(" - ")
        parts = own.split()
        yield {
            "target": parts[4],
            "flags": parts[5].split(","),
            # Shared or slave: the optional fields before the dash.
            "propagation": parts[6:],
            "kind": source.split()[0],
            "options": source.split()[2].split(","),
        }


def descriptors():
    for fd in range(1 << 16):
        try:
            found = os.fstat(fd)
        except OSError:
            continue
        is_null = stat.S_ISCHR(found.st_mode) and found.st_rdev == os.makedev(1, 3)
        others = "null" if is_null else "other"
        yield [fd, "pipe" if stat.S_ISFIFO(found.st_mode) else "socket" if stat.S_ISSOCK(found.st_mode) else others]


STATE = {
    "status": {name: status_field(name) for name in FIELDS + CAPABILITIES},
    "uid_map": [int(number) for number in open("/proc/self/uid_map").read().split()],
    "gid_map": [int(number) for number in open("/proc/self/gid_map").read().split()],
    "setgroups": open("/proc/self/setgroups").read().strip(),
    "namespaces": {name: os.stat(f"/proc/self/ns/{name}").st_ino for name in sorted(os.listdir("/proc/self/ns"))},
    "mounts": list(mounts()),
    "descriptors": list(descriptors()),
    "environment": sorted(os.environ),
    "secure_bits": libc.prctl(27, 0, 0, 0, 0),
    "hostname": socket.gethostname(),
    "folder": os.getcwd(),
    "interfaces": sorted(name for _, name in socket.if_nameindex()),
    "core": resource.getrlimit(resource.RLIMIT_CORE),
    "nice": resource.getrlimit(resource.RLIMIT_NICE),
    "realtime": resource.getrlimit(resource.RLIMIT_RTPRIO),
    "own_session": os.getsid(0) in (1, os.getpid()),
}
print("state " + json.dumps(STATE))
