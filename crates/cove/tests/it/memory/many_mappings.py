# Twelve processes with as many mappings as the kernel allows, then four with 200 MiB each.
import ctypes
import mmap
import os
import signal
import time

libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
ours, theirs = os.pipe()
for _ in range(12):
    if os.fork() == 0:
        anonymous = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        # Neighbours with different rights do not become one mapping.
        for number in range(65_000):
            libc.mmap(None, ctypes.c_size_t(4096), 1 + number % 2 * 2, anonymous, -1, ctypes.c_long(0))
        os.write(theirs, b"x")
        signal.pause()
for _ in range(12):
    os.read(ours, 1)
for _ in range(4):
    if os.fork() == 0:
        held = bytearray(b"x") * (200 << 20)
        signal.pause()
time.sleep(100)
print("survived")
