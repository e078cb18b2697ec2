# Sixteen processes that share 100 MiB, and then write to them.
import os
import signal
import time

held = bytearray(b"x") * (100 << 20)
ours, theirs = os.pipe()
for _ in range(16):
    if os.fork() == 0:
        os.read(ours, 1)
        for at in range(0, len(held), 4096):
            held[at] = 1
        signal.pause()
time.sleep(1)
os.write(theirs, b"x" * 16)
time.sleep(100)
print("survived")
