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
    """Makes a request with a small answer, and returns the seconds it took."""
    begun = time.perf_counter()
    connection.request("GET", "/small")
    answer = connection.getresponse().read()
    taken = time.perf_counter() - begun
    assert len(answer) == 1024, len(answer)
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
