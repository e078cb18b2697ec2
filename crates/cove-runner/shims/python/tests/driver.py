"""Drives the shim as the runner does: a real interpreter, a real socket on descriptor 3.

The interpreter is the one named by the environment variable PYTHON, or the one that runs this file.
"""

import fcntl
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import textwrap
import time
import unittest
from pathlib import Path

SHIM = Path(__file__).resolve().parent.parent
BOOT = (SHIM / "boot.py").read_text()
PYTHON = os.environ.get("PYTHON") or sys.executable
VERSION = tuple(
    map(int, subprocess.check_output([PYTHON, "-IV"], text=True).split()[1].split(".")[:2])
)
PATIENCE = 60


def string(text):
    data = text.encode()
    return struct.pack(">I", len(data)) + data


class Ended(Exception):
    """The shim closed its end of the socket. `status` says how the process ended."""

    def __init__(self, status, out, err):
        super().__init__(f"ended with {status}: {out!r} {err!r}")
        self.status = status
        self.out = out
        self.err = err


class Done:
    """How one cell ended."""

    def __init__(self, body, out, err):
        self.kind = body[:1].decode()
        self.out = out.decode()
        self.err = err.decode()
        self.raw = body
        if self.kind == "r":
            size = struct.unpack(">I", body[1:5])[0]
            self.type = body[5 : 5 + size].decode()
            rest = body[5 + size :]
            assert struct.unpack(">I", rest[:4])[0] == len(rest) - 4
            self.message = rest[4:].decode()
        elif self.kind == "x":
            (self.code,) = struct.unpack(">i", body[1:])
        else:
            assert len(body) == 1, body

    def __repr__(self):
        return f"Done({self.raw[:200]!r}, out={self.out[:2000]!r}, err={self.err[:2000]!r})"


class Shim:
    def __init__(self, cwd="/", python=PYTHON, options=(), env=None):
        ours, theirs = socket.socketpair()
        self.socket = ours
        self.loads = []
        self.count = 0
        self.buffer = b""
        stdin, self.stdin = os.pipe()
        self.stdout, stdout = os.pipe()
        self.stderr, stderr = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.chdir(cwd)
                # To high numbers first, because any of these may be descriptor 3 already.
                high = [
                    fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 100)
                    for fd in (stdin, stdout, stderr, theirs.fileno())
                ]
                for target, fd in enumerate(high):
                    os.dup2(fd, target)
                os.execve(python, [python, "-I", *options, "-c", BOOT], env or {})
            finally:
                os._exit(99)
        theirs.close()
        for fd in (stdin, stdout, stderr):
            os.close(fd)

    def send(self, frame):
        self.socket.sendall(struct.pack(">I", len(frame)) + frame)

    def load(self, part):
        self.send(b"L" + string((SHIM / f"{part}.py").read_text()))

    def start(self, code, name=None, args=()):
        self.count += 1
        name = name or f"<cell {self.count}>"
        frame = b"R" + string(name) + string(textwrap.dedent(code)) + struct.pack(">I", len(args))
        self.send(frame + b"".join(map(string, args)))

    def finish(self, patience=PATIENCE, until=None):
        """Waits for the `D` frame, or for `until` to appear in the output."""
        out, err, images = b"", b"", []
        open_fds = {self.socket.fileno(), self.stdout, self.stderr}
        deadline = time.monotonic() + patience
        while True:
            ready = select.select(open_fds, [], [], max(0, deadline - time.monotonic()))[0]
            if not ready:
                raise AssertionError(f"nothing came in time: {out[-2000:]!r} {err[-2000:]!r}")
            if self.stdout in ready:
                data = os.read(self.stdout, 1 << 16)
                out += data
                if not data:
                    open_fds.discard(self.stdout)
            if self.stderr in ready:
                data = os.read(self.stderr, 1 << 16)
                err += data
                if not data:
                    open_fds.discard(self.stderr)
            if until is not None and until in out:
                return out
            if set(ready) & {self.stdout, self.stderr}:
                # All output comes before the frame that ends the cell.
                continue
            try:
                data = os.read(self.socket.fileno(), 1 << 16)
            except ConnectionResetError:
                data = b""
            if not data:
                out += self.drain(self.stdout)
                err += self.drain(self.stderr)
                raise Ended(self.wait(), out, err)
            self.buffer += data
            frame = self.frame()
            while frame is not None:
                if frame[:1] == b"L":
                    part = frame[5:].decode()
                    self.loads.append(part)
                    self.load(part)
                elif frame[:1] == b"I":
                    images.append(frame[1:])
                elif frame[:1] == b"D":
                    assert self.buffer == b"", self.buffer
                    done = Done(frame[1:], out, err)
                    done.images = images
                    return done
                else:
                    raise AssertionError(f"unknown frame {frame!r}")
                frame = self.frame()

    def frame(self):
        if len(self.buffer) < 4:
            return None
        size = 4 + struct.unpack(">I", self.buffer[:4])[0]
        if len(self.buffer) < size:
            return None
        frame, self.buffer = self.buffer[4:size], self.buffer[size:]
        return frame

    def drain(self, fd):
        data = b""
        while select.select([fd], [], [], 0.2)[0]:
            part = os.read(fd, 1 << 16)
            if not part:
                break
            data += part
        return data

    def run(self, code, name=None, args=(), patience=PATIENCE):
        self.start(code, name, args)
        return self.finish(patience)

    def ask(self, letter, code):
        """Asks about code between two cells. The runner sends the part that answers before the first question."""
        if "questions" not in self.loads:
            self.loads.append("questions")
            self.load("questions")
        self.send(b"Q" + letter.encode() + code.encode())
        while (frame := self.frame()) is None:
            self.socket.settimeout(PATIENCE)
            self.buffer += self.socket.recv(1 << 16)
        self.socket.settimeout(None)
        assert frame[:1] == b"A" and not self.buffer, frame
        return frame[1:].decode()

    def interrupt(self):
        os.kill(self.pid, signal.SIGINT)

    def wait(self):
        if self.pid:
            deadline = time.monotonic() + PATIENCE
            while time.monotonic() < deadline:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.pid = 0
                    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
                time.sleep(0.001)
            raise AssertionError("the shim did not end")

    def close(self):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0
        self.socket.close()
        for fd in (self.stdin, self.stdout, self.stderr):
            os.close(fd)


class Case(unittest.TestCase):
    def setUp(self):
        self.shim = self.new()

    def new(self, **options):
        shim = Shim(**options)
        self.addCleanup(shim.close)
        return shim

    def check(self, code, out="", err="", kind="c", shim=None, **more):
        """Runs a cell and compares everything."""
        done = (shim or self.shim).run(code, **more)
        self.assertEqual((done.kind, done.out, done.err), (kind, out, err), done)
        return done

    def raises(self, code, type, message=None, shim=None, **more):
        done = (shim or self.shim).run(code, **more)
        self.assertEqual(done.kind, "r", done)
        self.assertEqual(done.type, type, done)
        if message is not None:
            self.assertEqual(done.message, message)
        self.assertNotIn("boot", done.err)
        self.assertNotIn("<errors_and_await>", done.err)
        self.assertNotIn("in guard", done.err)
        return done
