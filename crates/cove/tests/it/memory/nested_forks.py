# 130 processes, each forked from the one before, with 800 mappings: 430 MB of records by which the kernel finds pages.
import ctypes
import mmap
import os
import sys
import time

libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
for number in range(1600):
    # Neighbours with different rights do not become one mapping.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    at = libc.mmap(None, ctypes.c_size_t(4096), 1 + number % 2 * 2, flags, -1, ctypes.c_long(0))
    if number % 2:
        ctypes.memset(at, 1, 1)
for depth in range(130):
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        break
else:
    time.sleep(8)
if depth:
    os._exit(0)
print("survived")
