# Starts as many processes as it is told to, and prints the error that stopped it.
import errno
import os
import signal
import sys

children = []
try:
    for _ in range(int(sys.argv[1])):
        child = os.fork()
        if child == 0:
            signal.pause()
            os._exit(0)
        children.append(child)
    print(f"started {len(children)} processes")
except OSError as error:
    print(errno.errorcode[error.errno])
for child in children:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
