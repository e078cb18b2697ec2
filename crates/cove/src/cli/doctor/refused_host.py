# Run by `cove doctor` inside a sandbox whose rules open hosts: asks for one that no rule names, through both doors, and
# prints what came of each as a line of JSON. The arguments are the host and its port.

import json
import os
import socket
import sys

HOST, PORT = sys.argv[1], int(sys.argv[2])


def ask_proxy():
    address = os.environ["https_proxy"].removeprefix("http://").rstrip("/").rsplit(":", 1)
    with socket.create_connection((address[0], int(address[1])), 10) as door:
        door.sendall(f"CONNECT {HOST}:{PORT} HTTP/1.1\r\n\r\n".encode())
        return door.makefile().readline().strip()


def connect():
    with socket.create_connection((HOST, PORT), 10):
        return "connected"


for name, attempt in (("proxy", ask_proxy), ("direct", connect)):
    try:
        result = attempt()
    except OSError as error:
        result = type(error).__name__
    print(json.dumps({"door": name, "result": result}))
