# 100 processes, each forked from the one before, with 600 mappings: 190 MB of records by which the kernel finds pages.
import ctypes
import mmap
import os
import time

# Most of the limit is used before, so that this takes few of the forks, which are slow.
held = mmap.mmap(-1, 120 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
held.madvise(mmap.MADV_DONTFORK)
for _ in range(120):
    held.write(bytes(1 << 20))
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
for number in range(1200):
    # Neighbours with different rights do not become one mapping.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    at = libc.mmap(None, ctypes.c_size_t(4096), 1 + number % 2 * 2, flags, -1, ctypes.c_long(0))
    if number % 2:
        ctypes.memset(at, 1, 1)
for depth in range(100):
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        break
else:
    time.sleep(8)
if depth:
    os._exit(0)
print("survived")
