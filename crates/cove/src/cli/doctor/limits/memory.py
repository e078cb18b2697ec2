# Uses as many MiB as it is told to. Shared memory: unlike private memory its use can only be ended, not refused.
import mmap
import sys

size = int(sys.argv[1]) << 20
memory = mmap.mmap(-1, size)
for at in range(0, size, mmap.PAGESIZE):
    memory[at] = 1
print(f"used {sys.argv[1]} MiB")
