# Writes as many MiB as it is told to, and prints the error that stopped it.
import errno
import os
import sys

PATH = "/workspace/doctor"
file = os.open(PATH, os.O_CREAT | os.O_WRONLY)
try:
    for _ in range(int(sys.argv[1])):
        left = memoryview(bytes(1 << 20))
        while left:
            left = left[os.write(file, left) :]
    print(f"wrote {sys.argv[1]} MiB")
except OSError as error:
    print(errno.errorcode[error.errno])
os.close(file)
os.unlink(PATH)
