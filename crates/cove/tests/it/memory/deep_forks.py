# What ordinary programs do: 40 workers of a program with 2,000 mappings, 30 shells in each other, and 30 daemons.
import ctypes
import mmap
import os
import subprocess
import time

script = "if [ $1 -gt 0 ]; then (set -- $(($1 - 1)); . /tmp/levels); else sleep 1; fi\n"
with open("/tmp/levels", "w") as file:
    file.write(script)
levels = subprocess.Popen(["sh", "-c", "set -- 30; . /tmp/levels; exit 0"])
daemons = subprocess.Popen(["sh", "-c", "for i in $(seq 30); do ( (sleep 1; :) & ); done"])
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
for number in range(2000):
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    libc.mmap(None, ctypes.c_size_t(4096), 1 + number % 2 * 2, flags, -1, ctypes.c_long(0))
workers = []
for _ in range(40):
    if (child := os.fork()) == 0:
        time.sleep(2)
        os._exit(0)
    workers.append(child)
assert {os.waitpid(child, 0)[1] for child in workers} == {0}
assert (levels.wait(), daemons.wait()) == (0, 0)
print("40 workers, 30 levels, 30 daemons")
