"""Measures one way to a server, and prints what it measured as a line of JSON.

Arguments: host, port, the port of a proxy on the loopback or 0, requests, connections, megabytes.
"""

import http.client
import json
import ssl
import sys
import time

HOST = sys.argv[1]
PORT, PROXY, REQUESTS, CONNECTIONS, MEGABYTES = map(int, sys.argv[2:])
REQUEST = f"GET /small HTTP/1.1\r\nHost: {HOST}:{PORT}\r\n\r\n".encode()
TRUSTING = ssl._create_unverified_context()


def connect():
    """Returns an open connection, through the proxy if there is one."""
    if PROXY:
        connection = http.client.HTTPSConnection("127.0.0.1", PROXY, context=TRUSTING, timeout=60)
        connection.set_tunnel(HOST, PORT)
    else:
        connection = http.client.HTTPSConnection("127.0.0.1", PORT, context=TRUSTING, timeout=60)
    connection.connect()
    return connection


def fetch(connection):
    """Makes a request with a small answer, and returns the seconds it took.

    Writes and reads the socket, because `http.client` works for longer than the server between the two.
    """
    begun = time.perf_counter()
    connection.sock.sendall(REQUEST)
    head, answer = b"", b""
    while not head or len(answer) < 1024:
        answer += connection.sock.recv(65536)
        if not head:
            head, _, answer = answer.rpartition(b"\r\n\r\n")
    taken = time.perf_counter() - begun
    assert head.startswith(b"HTTP/1.1 200 ") and len(answer) == 1024, (head, len(answer))
    return taken


def fetch_on_new_connection():
    """Connects and makes one request, and returns the seconds both took."""
    begun = time.perf_counter()
    connection = connect()
    fetch(connection)
    taken = time.perf_counter() - begun
    connection.close()
    return taken


def download():
    """Downloads the megabytes, and returns the seconds that took."""
    connection = connect()
    begun = time.perf_counter()
    connection.request("GET", f"/megabytes/{MEGABYTES}")
    answer = connection.getresponse()
    buffer, total = bytearray(256 * 1024), 0
    while count := answer.readinto(buffer):
        total += count
    taken = time.perf_counter() - begun
    assert total == MEGABYTES << 20, total
    connection.close()
    return taken


lasting = connect()
fetch(lasting)
print(
    json.dumps(
        {
            "requests": [fetch(lasting) for _ in range(REQUESTS)],
            "connections": [fetch_on_new_connection() for _ in range(CONNECTIONS)],
            "download": download() if MEGABYTES else 0,
        }
    )
)
