import base64, binascii, hashlib, json, os, re, select, socket, ssl, struct, threading, time, urllib.parse, zlib

DOOR = int(os.environ["https_proxy"].rsplit(":", 1)[1])


def connect():
    """Returns a connection to the door."""
    return socket.create_connection(("127.0.0.1", DOOR), timeout=30)


def read(door):
    """Returns everything until the other side closes, or the name of the error that ended it."""
    parts = []
    try:
        while part := door.recv(65536):
            parts.append(part)
    except (ConnectionError, TimeoutError) as error:
        parts.append(type(error).__name__.encode())
    return b"".join(parts).decode(errors="surrogateescape")


def ask(request):
    """Sends bytes on a connection of their own, and returns the answer."""
    with connect() as door:
        try:
            door.sendall(request if isinstance(request, bytes) else request.encode())
        except ConnectionError:
            pass
        return read(door)


def reason(answer):
    """Returns the word for a refusal, or else how the answer begins."""
    head = answer.split("\r\n\r\n")[0]
    words = [line.split(": ")[1] for line in head.split("\r\n") if line.startswith("X-Cove-Refused: ")]
    return words[0] if words else answer[:40].split("\r\n")[0]


def plain(target, *fields, body=""):
    """Makes a plain request, and returns what the server got, or why it got nothing."""
    host = target.removeprefix("http://").split("/")[0]
    head = "\r\n".join([f"POST {target} HTTP/1.1", f"Host: {host}", *fields])
    answer = ask(f"{head}\r\n\r\n{body}")
    return answer.split("\r\n\r\n", 1)[1] if answer.startswith("HTTP/1.1 200") else reason(answer)


def tunnel(target):
    """Returns a connection through which the door passes bytes to the target."""
    door = connect()
    door.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        answer += door.recv(1)
    return door, answer.decode()


def by_name(host, port):
    """Connects to a name as programs do that know no proxy, and returns what comes, or the name of the error."""
    try:
        with socket.create_connection((host, port), timeout=30) as door:
            return read(door)
    except OSError as error:
        return type(error).__name__


TRUSTING = ssl._create_unverified_context()


def secure(target, name):
    """Speaks TLS through a tunnel with this server name, and returns the first line of the answer or the error."""
    door, answer = tunnel(target)
    if "200" not in answer.split("\r\n")[0]:
        return reason(answer)
    try:
        with TRUSTING.wrap_socket(door, server_hostname=name) as tls:
            tls.sendall(f"GET / HTTP/1.1\r\nHost: {name}\r\n\r\n".encode())
            return tls.recv(200).decode().split("\r\n")[0]
    except OSError as error:
        return "broken off"


def secure_at_last(target, name):
    """Does the same, again while the host has not yet seen that connections were closed: it refuses more than it may have."""
    for _ in range(100):
        try:
            return secure(target, name)
        except ConnectionError:
            time.sleep(0.1)


# The certificate is checked as the session says.
TRUSTED = ssl.create_default_context()
PLACEHOLDER = os.environ["FORGE_TOKEN"]


def inside(host="api.test", server_name=None):
    """Returns a TLS connection to an inspected host."""
    door, answer = tunnel(f"{host}:API_PORT")
    return TRUSTED.wrap_socket(door, server_hostname=server_name or host)


def ask_inside(head, body="", host="api.test"):
    """Sends the lines of a request on a connection of its own to an inspected host, and returns the whole answer."""
    with inside(host) as api:
        api.sendall((head + "\r\nConnection: close\r\n\r\n").encode() + (body if isinstance(body, bytes) else body.encode()))
        return read(api)


def judged(answer):
    """Returns the status of an answer of an inspected host, and the word for a refusal."""
    head = answer.lower().split("\r\n\r\n")[0]
    refused = [line.split(": ")[1] for line in head.split("\r\n") if line.startswith("x-cove-refused: ")]
    return " ".join([answer.split(" ")[1] if " " in answer else answer, *refused])


def get(path, *fields, method="GET", body="", host="api.test"):
    """Makes an ordinary request to an inspected host, and returns the whole answer."""
    length = [f"Content-Length: {len(body)}"] if body else []
    return ask_inside("\r\n".join([f"{method} {path} HTTP/1.1", f"Host: {host}:API_PORT", *length, *fields]), body, host)


def readings(loot):
    """Returns bytes in each form in which a program could take a secret out of them."""
    found = [loot, urllib.parse.unquote_to_bytes(loot)]
    unpack = lambda piece: zlib.decompressobj(31).decompress(piece)
    decode = lambda piece: base64.b64decode(piece.translate(bytes.maketrans(b"-_", b"+/")) + b"==")
    pieces = [(form, piece) for piece in re.split(rb'[ "\r\n]+', loot) for form in (decode, binascii.unhexlify)]
    for form, piece in [*pieces, (unpack, loot[loot.find(b"\x1f\x8b") :])]:
        try:
            found.append(form(piece))
        except (ValueError, zlib.error):
            pass
    return found


def has_secret(loot, digest="TOKEN_DIGEST", length=TOKEN_LENGTH):
    """True if the bytes give the secret away. Knows of it only what cannot be turned back."""
    loot = loot if isinstance(loot, bytes) else loot.encode(errors="surrogateescape")
    windows = (text[at : at + length] for text in readings(loot) for at in range(len(text) - length + 1))
    return any(hashlib.sha256(window).hexdigest() == digest for window in windows)
