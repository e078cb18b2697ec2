# The Python shim, first part: the start, the channel to the runner, and a first cell that is one expression.
#
# The runner starts `python -I -c <this text>` with its socket on descriptor 3. Python compiles every
# line here at each start, so the shim asks for its other parts over the socket when it needs them:
# cell.py for any other cell, errors_and_await.py for errors, `await` and everything rare, images.py for
# images. It imports only modules that the interpreter has loaded already. This text runs in the real
# `__main__`, which belongs to the cells: it has no docstring and leaves no name there.
# ruff: noqa: F821 (the last lines give this code its builtins)


def boot():
    # The globals of all parts of the shim. The last lines of this file say where they live.
    global sys, names, default_excepthook, interrupts, handler
    global COPIES, PIPES, note_interrupt, flush, leave, lose, identify, send, read_exactly, receive, fetch, need
    global guard, read_texts
    import sys

    interrupts, COPIES = [], 231

    def note_interrupt(number, frame):
        # Handles SIGINT while the shim's own lines run. Not SIG_IGN, which children of threads would inherit.
        interrupts.append(number)

    def flush():
        for stream in ("stdout", "stderr", "__stdout__", "__stderr__"):
            try:
                getattr(sys, stream).flush()
            except Exception:
                pass

    def leave(status):
        guard(flush)
        _exit(status)

    def lose(what):
        # Ends the interpreter, because the runner is gone or the user's code did something to a descriptor.
        if what == b"descriptor 3" and identify(3) == PIPES[2]:
            # The runner has closed its end.
            leave(3)
        message = b"a cell has closed or replaced " + what + b", which this interpreter needs\n"
        try:
            # One of them may be a file of the code.
            write(2 if identify(2) == PIPES[1] else COPIES + 2 if identify(COPIES + 2) == PIPES[1] else -1, message)
        except OSError:
            pass
        leave(3)

    def identify(fd):
        # Returns what the descriptor refers to, or None if it is closed.
        try:
            found = fstat(fd)
            return found.st_dev, found.st_ino
        except OSError:
            return None

    def send(body):
        # Sends a frame to the runner.
        data = len(body).to_bytes(4, "big") + body
        try:
            while data:
                data = data[write(3, data) :]
        except OSError:
            lose(b"descriptor 3")

    def read_exactly(size):
        data = b""
        while len(data) < size:
            try:
                part = read(3, size - len(data))
            except OSError:
                part = b""
            if not part:
                lose(b"descriptor 3")
            data += part
        return data

    def receive(tag):
        # Returns the next frame with this tag. Runs an `L` that comes without a request: a warm-up.
        while True:
            frame = read_exactly(int.from_bytes(read_exactly(4), "big"))
            if frame[:1] == tag:
                return frame
            if frame[:1] == b"L":
                exec(frame[5:].decode(), globals())
            elif frame[:1] == b"Q":
                # The runner has sent questions.py before.
                question(frame)

    def fetch(part):
        # Returns the text of a part. Never call it while an interrupt can raise: half an answer would
        # stay in the channel.
        name = part.encode()
        send(b"L" + len(name).to_bytes(4, "big") + name)
        return receive(b"L")[5:].decode()

    def need(part):
        # Loads a part unless it is there. Each part defines a global of its own name.
        if part not in globals():
            exec(fetch(part), globals())

    def guard(step, *args):
        # Runs code in which an interrupt may raise. Returns its value and its error. The outer `try` is
        # for an interrupt that comes after the last line of the user's code and before the handler is
        # the shim's again.
        global handler
        value = error = None
        try:
            try:
                signal(SIGINT, handler)
                value = step(*args)
            except BaseException as raised:
                error = raised
            handler = signal(SIGINT, note_interrupt) or default_int_handler
        except BaseException as raised:
            error = raised
            signal(SIGINT, note_interrupt)
        try:
            return value, error
        finally:
            # Breaks a cycle: the error's traceback holds this frame, and this frame holds the error.
            value = error = None

    def read_texts(frame, at, count):
        # Returns this many texts of a frame, and where they end.
        found = []
        for _ in range(count):
            end = at + 4 + int.from_bytes(frame[at : at + 4], "big")
            found.append(frame[at + 4 : end].decode("utf-8", "replace"))
            at = end
        return found, at

    def may_use_server(code):
        # Returns whether the code uses a member of a name that Python does not define: perhaps a server's.
        if "{" not in code:
            code = "'".join(code.replace('"', "'").split("'")[::2])
        word, builtins = "", sys.modules["builtins"].__dict__
        for letter in code:
            if letter in ".[" and word.isidentifier() and word not in builtins:
                return True
            word = word + letter if letter.isalnum() or letter == "_" else ""

    signal(SIGINT, note_interrupt)
    handler = default_int_handler
    set_inheritable(3, False)
    PIPES = identify(1), identify(2), identify(3)
    for fd in (1, 2):
        try:
            # A copy that children do not inherit, for a later cell if this one closes the descriptor.
            dup2(fd, COPIES + fd, False)
        except OSError:
            pass
    names, default_excepthook = sys.modules["__main__"].__dict__, sys.excepthook
    for stream in (sys.stdout, sys.stderr):
        if stream:
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)

    frame, error = receive(b"R"), None
    (name, code), at = read_texts(frame, 1, 2)
    # Is it one expression? The first compile() costs 1 to 2 ms, because it makes the classes of all
    # syntax nodes; eval of a string does not. But eval names the code `<string>`, which
    # errors_and_await.py corrects in tracebacks. So this takes no code that makes code, may warn, or
    # needs cell.py.
    excluded = "\n", "\\", "lambda", "for", "async", "await", "import", "warn", " is ", "mcp", "MCP"
    plain = name[:1] == "<" and len(code) < 1000
    if plain and not any(map(code.rstrip("\n").__contains__, excluded)) and not may_use_server(code):
        interrupts.clear()
        sys.argv = [name] + read_texts(frame, at + 4, int.from_bytes(frame[at : at + 4], "big"))[0]
        error = guard(lambda: sys.displayhook(eval(code, names)))[1]
        if error is None:
            guard(flush)
            send(b"Dc")
            frame = receive(b"R")
        elif isinstance(error, SyntaxError) and not error.__traceback__.tb_next.tb_next:
            # The code did not compile, so nothing of it has run.
            error = None
    need("cell")
    cell(frame, error)


# The shim has a dictionary of its own for its globals, with copies of all functions that it uses as builtins. So
# `len = None`, `os.read = None` or `del __builtins__` in a cell do not affect it.
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
