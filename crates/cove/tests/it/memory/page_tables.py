# Twelve processes that read one byte in every 2 MiB of 64 GiB: 1.5 GiB of page tables.
import mmap
import os
import signal
import time

SIZE = 64 << 30
PROT_READ, MAP_NORESERVE = 1, 0x4000
for _ in range(12):
    if os.fork() == 0:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        ranges = mmap.mmap(-1, SIZE, flags, PROT_READ)
        for at in range(0, SIZE, 2 << 20):
            ranges[at]
        signal.pause()
time.sleep(100)
print("survived")
