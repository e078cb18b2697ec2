# The Python shim, first part: start, the wire, and a first cell that is one expression.
#
# The runner starts `python -I -c <this text>` with its socket on descriptor 3. Every line here is
# compiled at each start, so the rest is asked for over the socket when it is needed: cell.py by any
# other cell, late.py by errors, `await` and whatever is rare. Nothing may be imported that the
# interpreter has not loaded already. This text runs in the real `__main__`, which belongs to the
# cells: it has no docstring and leaves no name there.
# ruff: noqa: F821 (the builtins of this code are those given in the last lines)


def boot():
    # The globals of all three parts; the last lines of this file say where they live.
    global sys, names, hook, noted, handler
    global note, flush, leave, take, receive, fetch, need, guard, texts
    import sys

    noted = []

    def note(number, frame):
        # SIGINT while the shim's own lines run. Not SIG_IGN: children of threads would inherit it.
        noted.append(number)

    def flush():
        for stream in ("stdout", "stderr", "__stdout__", "__stderr__"):
            try:
                getattr(sys, stream).flush()
            except Exception:
                pass

    def leave(status):
        guard(flush)
        _exit(status)

    def take(size):
        data = b""
        while len(data) < size:
            try:
                part = read(3, size - len(data))
            except OSError as error:
                # ECONNRESET: the runner is gone. Else the user's code did something to the socket.
                leave(0 if error.errno == 104 else 3)
            if not part:
                leave(0)
            data += part
        return data

    def receive(tag):
        # The next frame of this kind. An `L` that nobody asked for is a warm-up.
        while True:
            frame = take(int.from_bytes(take(4), "big"))
            if frame[:1] == tag:
                return frame
            if frame[:1] == b"L":
                exec(frame[5:].decode(), globals())

    def fetch(part):
        # The text of a part. Never called while an interrupt can raise: half an answer would stay
        # on the wire.
        try:
            write(3, b"\0\0\0\x09L\0\0\0\4" + part.encode())
        except OSError as error:
            leave(0 if error.errno == 32 else 3)
        return receive(b"L")[5:].decode()

    def need(part):
        # Each part of the shim defines a global of its own name.
        if part not in globals():
            exec(fetch(part), globals())

    def guard(step, *args):
        # Runs what an interrupt may raise in. The outer `try` is for one that comes after the last
        # line of the user's code and before the handler is ours again.
        global handler
        value = error = None
        try:
            try:
                signal(SIGINT, handler)
                value = step(*args)
            except BaseException as raised:
                error = raised
            handler = signal(SIGINT, note) or default_int_handler
        except BaseException as raised:
            error = raised
            signal(SIGINT, note)
        try:
            return value, error
        finally:
            # Or the error's traceback holds this frame, and this frame holds the error.
            value = error = None

    def texts(frame, at, count):
        found = []
        for _ in range(count):
            end = at + 4 + int.from_bytes(frame[at : at + 4], "big")
            found.append(frame[at + 4 : end].decode("utf-8", "replace"))
            at = end
        return found, at

    def strange(code):
        # Whether a member is asked of a name that Python does not have: a server's, perhaps.
        if "{" not in code:
            code = "'".join(code.replace('"', "'").split("'")[::2])
        word, builtins = "", sys.modules["builtins"].__dict__
        for letter in code:
            if letter in ".[" and word.isidentifier() and word not in builtins:
                return True
            word = word + letter if letter.isalnum() or letter == "_" else ""

    signal(SIGINT, note)
    handler = default_int_handler
    set_inheritable(3, False)
    names, hook = sys.modules["__main__"].__dict__, sys.excepthook
    for stream in (sys.stdout, sys.stderr):
        if stream:
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)

    frame, error = receive(b"R"), None
    (name, code), at = texts(frame, 1, 2)
    # Is it one expression? The first compile() costs 1 to 2 ms, for it makes the classes of all
    # syntax nodes, and eval of a string does not. It names the code `<string>`: late.py puts that
    # right in a traceback, so nothing is taken here that makes code, may warn, or needs cell.py.
    odd = "\n", "\\", "lambda", "for", "async", "await", "import", "warn", " is ", "mcp", "MCP"
    plain = name[:1] == "<" and len(code) < 1000
    if plain and not any(map(code.rstrip("\n").__contains__, odd)) and not strange(code):
        noted.clear()
        sys.argv = [name] + texts(frame, at + 4, int.from_bytes(frame[at : at + 4], "big"))[0]
        error = guard(lambda: sys.displayhook(eval(code, names)))[1]
        if error is None:
            guard(flush)
            write(3, b"\0\0\0\2Dc")
            frame = receive(b"R")
        elif isinstance(error, SyntaxError) and not error.__traceback__.tb_next.tb_next:
            # It did not compile, so nothing has run.
            error = None
    need("cell")
    cell(frame, error)


# The shim's globals are a dictionary of its own, with copies of all functions it uses as builtins:
# `len = None`, `os.read = None` or `del __builtins__` in a cell are the cell's own affair.
exec(
    globals().pop("boot").__code__,
    {
        "__builtins__": {
            **__import__("_signal").__dict__,
            **__import__("posix").__dict__,
            **__builtins__.__dict__,
        }
    },
)
