# Four processes with full sockets, of which the sending half is closed, and four with full datagram sockets.
import os
import signal
import socket
import time

for number in range(8):
    if os.fork() == 0:
        held = []
        while len(held) < 900:
            if number % 2:
                sender, receiver = socket.socketpair()
                sender.setblocking(False)
                message = b"x"
            else:
                receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
                receiver.bind(("127.0.0.1", 0))
                sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                sender.connect(receiver.getsockname())
                message = b"x" * 30_000
            try:
                for _ in range(400):
                    sender.send(message)
            except BlockingIOError:
                pass
            sender.close()
            held.append(receiver)
        signal.pause()
time.sleep(100)
print("survived")
