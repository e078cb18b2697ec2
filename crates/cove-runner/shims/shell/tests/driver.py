"""Drives a shell shim as the runner does: a real shell, a real socket on descriptor 3.

The shells are those found here; BUSYBOX names a busybox that is not in PATH.
"""

import fcntl
import os
import select
import shutil
import signal
import socket
import struct
import tempfile
import time
import unittest
from pathlib import Path

SHIM = Path(__file__).resolve().parent.parent
BASH = (SHIM / "bash.sh").read_text()
SH = (SHIM / "sh.sh").read_text()
QUESTIONS = (SHIM / "questions.sh").read_text()
START = 'eval "$1";eval "$_cove_main"'
PATIENCE = 60


def commands():
    """Returns the command line of each shell, by the name that tests use for it."""
    found = {}
    bash = shutil.which("bash")
    if bash:
        found["bash"] = [bash, "--norc", "--noprofile", "-c", START, "bash", BASH]
        found["posix"] = [bash, "--posix", "--norc", "--noprofile", "-c", START, "sh", BASH]
    if shutil.which("dash"):
        found["dash"] = [shutil.which("dash"), "-c", START, "sh", SH, BASH]
    busybox = os.environ.get("BUSYBOX") or shutil.which("busybox")
    if busybox:
        found["busybox"] = [busybox, "ash", "-c", START, "sh", SH, BASH]
    return found


COMMANDS = commands()
# Shells with a process for each cell.
FRESH = ("dash", "busybox")
LINKS = tempfile.TemporaryDirectory()


def request(*words, ending=b""):
    """Returns what the runner sends for a cell or, with an ending, for a question."""
    words = [word.encode() for word in words]
    mark = next(
        bytes([c])
        for c in range(0x1E, 0, -1)
        if c not in b"\t\n\r\1" and not any(bytes([c]) in word for word in words)
    )
    body = b" ".join(b"'" + word.replace(b"'", b"'\\''") + b"'" for word in words)
    body = body.replace(b"\n", mark) + b"\n"
    return b"%d %s%s\n" % (len(body), mark, ending) + body


class Ended(Exception):
    """The shell has ended. `status` says how."""

    def __init__(self, status, out, err):
        super().__init__(f"ended with {status}: {out!r} {err!r}")
        self.status = status
        self.out = out.decode()
        self.err = err.decode()


class Done:
    """How one cell ended."""

    def __init__(self, body, out, err):
        self.kind = body[:1].decode()
        self.out = out.decode()
        self.err = err.decode()
        if self.kind == "x":
            (self.code,) = struct.unpack(">i", body[1:])
        else:
            assert len(body) == 1, body
            self.code = 0 if self.kind == "c" else None

    def __repr__(self):
        return f"Done({self.kind} {self.code}, out={self.out[:2000]!r}, err={self.err[:2000]!r})"


class Shell:
    """A session: one process, or one for each cell of a shell that leaves its state as text."""

    def __init__(self, command, cwd="/", env=None):
        self.command, self.cwd = command, cwd
        self.env = env or {"PATH": os.environ["PATH"]}
        self.program = command[0]
        if os.path.basename(self.program) == "busybox":
            # It looks at its name to know that it is a shell.
            self.program = os.path.join(LINKS.name, "sh")
            if not os.path.lexists(self.program):
                os.symlink(command[0], self.program)
        self.moves = 0
        self.count = 0
        # What the last process has left for the next one; and whether this process has left something.
        self.state, self.left = None, False
        self.interrupted = False
        self.child_stdin, self.stdin = os.pipe()
        self.stdout, self.child_stdout = os.pipe()
        self.stderr, self.child_stderr = os.pipe()
        self.socket = None
        self.spawn()

    def spawn(self):
        if self.socket:
            self.socket.close()
        ours, theirs = socket.socketpair()
        self.socket = ours
        self.buffer = b""
        self.left = False
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.chdir(self.cwd)
                os.setpgid(0, 0)
                # As the runner does, because the process that runs these tests may ignore signals.
                for number in (signal.SIGPIPE, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
                    signal.signal(number, signal.SIG_DFL)
                streams = (self.child_stdin, self.child_stdout, self.child_stderr, theirs.fileno())
                high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 300) for fd in streams]
                for target, fd in enumerate(high):
                    os.dup2(fd, target)
                os.closerange(4, 300)
                env = self.env if self.state is None else {}
                os.execve(self.command[0], self.command, env)
            finally:
                os._exit(99)
        self.group = self.pid
        try:
            # Here too, because otherwise the group may not exist yet when a test signals it.
            os.setpgid(self.pid, self.pid)
        except PermissionError:
            pass
        theirs.close()
        if self.state is not None:
            self.send(b"%d %d =\n" % (len(self.state), self.state.count(b"\n")) + self.state)

    def start(self, code, name=None, args=()):
        self.count += 1
        self.interrupted = False
        if self.left:
            self.spawn()
        self.send(request(name or f"<cell {self.count}>", code, *args))

    def send(self, data):
        while data:
            # As the runner does, so that a shell that does not read cannot block it.
            if not select.select([], [self.socket], [], PATIENCE)[1]:
                raise AssertionError("the shell does not read")
            try:
                data = data[self.socket.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) :]
            except BrokenPipeError:
                return

    def ask(self, letter, code):
        """Asks about code between two cells."""
        if self.left:
            self.spawn()
        self.send(request(QUESTIONS, letter, self.program, code, ending=b" ?"))
        while (frame := self.frame()) is None:
            self.socket.settimeout(PATIENCE)
            self.buffer += self.socket.recv(1 << 16)
        self.socket.settimeout(None)
        assert frame[:1] == b"A" and not self.buffer, frame
        return frame[1:].decode()

    def finish(self, patience=PATIENCE, until=None):
        """Waits for the `D` frame, or for `until` to appear in the output."""
        out, err = b"", b""
        fds = {self.socket.fileno(), self.stdout, self.stderr}
        deadline = time.monotonic() + patience
        closed = False
        while True:
            ready = select.select(fds, [], [], 0.02)[0]
            if not ready:
                if (closed or not select.select(fds, [], [], 0)[0]) and self.ended():
                    if self.left and self.status >= 0:
                        return self.done(out, err)
                    raise Ended(self.status, out, err)
                if time.monotonic() > deadline:
                    raise AssertionError(f"nothing came in time: {out[-2000:]!r} {err[-2000:]!r}")
            for fd in {self.stdout, self.stderr} & set(ready):
                data = os.read(fd, 1 << 16)
                if not data:
                    fds.discard(fd)
                if fd == self.stdout:
                    out += data
                else:
                    err += data
            if until is not None and until in out:
                return out
            if set(ready) & {self.stdout, self.stderr} or not ready:
                # All output comes before the frame that ends the cell.
                continue
            try:
                data = os.read(self.socket.fileno(), 1 << 16)
            except ConnectionResetError:
                data = b""
            if not data:
                closed = True
                fds.discard(self.socket.fileno())
            self.buffer += data
            while (frame := self.frame()) is not None:
                if frame[:1] == b"S":
                    self.state, self.left = frame[1:], True
                elif frame[:1] == b"P":
                    (self.pid,) = struct.unpack(">I", frame[1:])
                    self.moves += 1
                elif frame[:1] == b"D":
                    assert self.buffer == b"", self.buffer
                    return Done(frame[1:], out, err)
                else:
                    raise AssertionError(f"unknown frame {frame!r}")

    def done(self, out, err):
        """Returns the end of a cell whose process has ended with it."""
        if self.interrupted and self.status == 130:
            return Done(b"i", out, err)
        return Done(b"x" + struct.pack(">i", self.status) if self.status else b"c", out, err)

    def frame(self):
        if len(self.buffer) < 5:
            return None
        if self.buffer[:5] == b"\0\0\0\0S":
            end = self.buffer.find(b"\0", 5)
            if end < 0:
                return None
            frame, self.buffer = self.buffer[4:end], self.buffer[end + 1 :]
            return frame
        size = 4 + struct.unpack(">I", self.buffer[:4])[0]
        if len(self.buffer) < size:
            return None
        frame, self.buffer = self.buffer[4:size], self.buffer[size:]
        return frame

    def ended(self):
        """Returns whether the process that runs the session has ended. This process adopts those that have moved."""
        if self.pid == 0:
            return True
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                raise AssertionError("another process took the status of the shell") from None
            if pid == 0:
                return False
            if pid == self.pid:
                self.pid = 0
                self.status = os.waitstatus_to_exitcode(status)
                return True

    def run(self, code, name=None, args=(), patience=PATIENCE):
        self.start(code, name, args)
        return self.finish(patience)

    def interrupt(self):
        self.interrupted = True
        try:
            os.killpg(self.group, signal.SIGINT)
        except ProcessLookupError:
            # Between two cells of a shell with a process for each.
            assert self.left

    def close(self):
        try:
            os.killpg(self.group, signal.SIGKILL)
        except ProcessLookupError:
            pass
        deadline = time.monotonic() + PATIENCE
        while self.pid and not self.ended() and time.monotonic() < deadline:
            time.sleep(0.001)
        self.socket.close()
        for fd in (self.stdin, self.stdout, self.stderr, self.child_stdin, self.child_stdout, self.child_stderr):
            os.close(fd)


def adopt():
    """Makes this process the parent of orphans, as the runner is."""
    import ctypes

    assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0


adopt()


class Case(unittest.TestCase):
    """A base class of tests: `each` makes one subclass for each shell."""

    shell = None

    def setUp(self):
        if self.shell not in COMMANDS:
            self.skipTest(f"{self.shell} is not installed")
        self.sh = self.new()

    def new(self, **options):
        shell = Shell(COMMANDS[self.shell], **options)
        self.addCleanup(shell.close)
        return shell

    def check(self, code, out="", err="", status=0, **more):
        """Runs a cell and compares everything. If `err` is None, any message will do."""
        done = self.sh.run(code, **more)
        self.assertEqual((done.code, done.out), (status, out), done)
        if err is None:
            self.assertNotEqual(done.err, "")
        else:
            self.assertEqual(done.err, err)
        self.assertNotIn("_cove", done.out + done.err)
        return done

    def ends(self, code, status, **more):
        """Runs a cell that ends the shell."""
        with self.assertRaises(Ended) as caught:
            self.sh.run(code, **more)
        self.assertEqual(caught.exception.status, status, caught.exception)


def each(namespace, *names):
    """Adds a subclass of each test case of a module for every shell, or for those named."""
    for base in [v for v in namespace.values() if isinstance(v, type) and issubclass(v, Case)]:
        if base.shell is not None or base is Case:
            continue
        for shell in getattr(base, "only", ("bash", "posix", "dash", "busybox")):
            name = f"{base.__name__}_{shell}"
            namespace[name] = type(
                name, (base,), {"shell": shell, "__module__": namespace["__name__"]}
            )
        del namespace[base.__name__]
