# The Python shim, third part: errors, exits, `await`, and repairs. Fetched when first needed.
#
# Run by boot.py in the globals of the shim. Heavy modules are imported inside functions, because a
# cell that awaits needs no traceback and one that fails needs no asyncio.
# ruff: noqa: F821 (the rest of the globals, and builtins, come from boot.py and cell.py)

late = True
loop = None
# What linecache has from us: the name of a cell and its source.
remembered = {}
# No chunk of a traceback is printed longer than this: a message can be as large as memory.
CHUNK = 64 << 10
# A line of a cell longer than this is not shown in tracebacks, which would repeat it per frame.
LINE = 4 << 10
# What CPython's own printer shows at most; a raised recursion limit allows millions of frames.
FRAMES = 1000


# Before a cell


def reopen():
    """Makes standard streams anew that a cell has closed; `exit()` does so with stdin."""
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            if not dead(sys.__dict__.get(name)):
                continue
            stream = sys.__dict__.get(f"__{name}__")
            if dead(stream):
                errors = "backslashreplace" if fd else "surrogateescape"
                stream = open(fd, mode, encoding="utf-8", errors=errors, closefd=False)
                if fd:
                    stream.reconfigure(line_buffering=True)
                setattr(sys, f"__{name}__", stream)
            setattr(sys, name, stream)
        except Exception:
            # The descriptor itself is closed, or the user's own object cannot be asked.
            pass


def dead(stream):
    if stream is None:
        return True
    try:
        return stream.closed
    except AttributeError:
        # Not a file: what a user put there stays there.
        return False
    except ValueError:
        # Detached.
        return True


def dedent(code):
    """Takes off a byte order mark and the indentation of a cell that is indented as a whole."""
    code = code.lstrip("\ufeff")
    lines = code.split("\n")
    first = next((line for line in lines if line.strip()), "")
    margin = first[: len(first) - len(first.lstrip(" \t"))]
    if not all(line.startswith(margin) for line in lines if line.strip()):
        return code
    return "\n".join(line[len(margin) :] if line.strip() else "" for line in lines)


def remember():
    """Gives linecache the sources of all cells, for tracebacks and inspect."""
    try:
        import linecache

        cache = linecache.cache
        for name in remembered.keys() - sources.keys():
            del remembered[name]
            cache.pop(name, None)
        for name, source in sources.items():
            if remembered.get(name) is not source or name not in cache:
                lines = source.replace("\r\n", "\n").replace("\r", "\n").split("\n")
                lines = [line + "\n" if len(line) < LINE else "\n" for line in lines]
                # Without a time of change checkcache() leaves an entry alone.
                cache[name] = (len(source), None, lines, name)
                remembered[name] = source
    except Exception:
        # A user's own linecache. Tracebacks then lack source lines.
        pass


# await


def find_entry(body):
    """The `async def main()` or `run()` that a cell of nothing but definitions wants to be run."""
    found = set()
    for at, node in enumerate(body):
        kind = type(node).__name__
        if kind in ("FunctionDef", "AsyncFunctionDef", "ClassDef"):
            found.discard(node.name)
            if kind == "AsyncFunctionDef" and not node.decorator_list and callable_bare(node.args):
                found.add(node.name)
        elif kind not in ("Import", "ImportFrom"):
            value = getattr(node, "value", None)
            if at or kind != "Expr" or not isinstance(getattr(value, "value", None), str):
                return None
    return next((name for name in ("main", "run") if name in found), None)


def tolerate(tree):
    """Makes every `await x` of a cell an `await await(x)`, with a function that takes what cannot be awaited."""
    todo = [tree]
    for node in todo:
        # As many as a cell of some 100 kB has; a longer one has to be exact.
        if len(todo) > 100_000:
            return
        for field in node._fields:
            value = getattr(node, field, None)
            for one in value if type(value) is list else (value,):
                if hasattr(type(one), "_fields"):
                    todo.append(one)
    sample = compile("f(x)", "", "eval", 0x400).body
    for node in todo:
        if type(node).__name__ == "Await":
            value = node.value
            place = {"lineno": value.lineno, "col_offset": value.col_offset}
            place.update(end_lineno=value.end_lineno, end_col_offset=value.end_col_offset)
            # A keyword, so no code can have a variable of that name.
            name = type(sample.func)(id="await", ctx=sample.func.ctx, **place)
            node.value = type(sample)(func=name, args=[value], keywords=[], **place)
    builtins.__dict__["await"] = awaitable


class Ready:
    """A value as something to await."""

    def __init__(self, value):
        self.value = value

    def __await__(self):
        return self.value
        yield


def awaitable(value):
    kind = type(value)
    # CO_ITERABLE_COROUTINE: a generator that `types.coroutine` has made one.
    old = kind.__name__ == "generator" and value.gi_code.co_flags & 0x100
    return value if old or hasattr(kind, "__await__") else Ready(value)


def callable_bare(args):
    positional = len(args.posonlyargs) + len(args.args)
    return positional == len(args.defaults) and None not in args.kw_defaults


def drive(body, tail):
    """Runs a cell with `await` in it: all of it as one task, so that it has one context."""

    async def whole():
        value = eval(body, names)
        if body.co_flags & 0x80:
            await value
        if tail:
            value = eval(tail, names)
            if tail.co_flags & 0x80:
                value = await value
            if type(value).__name__ == "coroutine":
                value = await value
            show(value)

    complete(whole())


def wait(coroutine):
    """Awaits the coroutine that was the value of a cell, and shows the result."""
    show(complete(coroutine))


def complete(coroutine):
    """Runs a coroutine on the session's loop: its tasks go on whenever a later cell awaits."""
    global loop
    from asyncio import CancelledError, new_event_loop, set_event_loop

    if loop is None or loop.is_closed():
        loop = new_event_loop()
    set_event_loop(loop)
    task = stopped = None
    hit = False

    def interrupt(number, frame):
        # Raises in the user's code, but not in the loop's own: that would break the loop for good.
        # There it cancels, which a coroutine that waits sees as well.
        nonlocal hit
        while frame is not None and frame.f_code is not complete.__code__:
            package = str(frame.f_globals.get("__name__")).partition(".")[0]
            if package not in ("asyncio", "selectors", "cove_mcp"):
                raise KeyboardInterrupt
            frame = frame.f_back
        hit = True
        if task is not None:
            loop.call_soon_threadsafe(task.cancel)

    ours = getsignal(SIGINT) is default_int_handler
    if ours:
        signal(SIGINT, interrupt)
    try:
        task = loop.create_task(coroutine)
        if hit:
            task.cancel()
        while True:
            try:
                value = loop.run_until_complete(task)
                # Code that catches an interrupt goes on; an exit of another task stays one.
                if stopped is None or isinstance(stopped, KeyboardInterrupt):
                    return value
            except CancelledError as cancelled:
                if stopped is None and not hit:
                    raise
                stopped = stopped or KeyboardInterrupt()
                if isinstance(stopped, KeyboardInterrupt):
                    # Where it was waiting. Before 3.11 this is a second exception, and the first
                    # one is its context.
                    first = cancelled.__context__ if sys.version_info < (3, 11) else None
                    stopped = stopped.with_traceback((first or cancelled).__traceback__)
            except BaseException as raised:
                if task.done():
                    # Retrieved, or asyncio complains when the task is collected.
                    task.cancelled() or task.exception()
                    raise
                if stopped is not None:
                    raise
                # It left another task and went through the loop past ours. End ours in order.
                stopped = raised
                task.cancel()
                continue
            raise stopped from None
    finally:
        stopped = None
        if ours and getsignal(SIGINT) is interrupt:
            signal(SIGINT, default_int_handler)


# After a cell


def settle(error):
    """Prints an error as Python would, and returns the body of the `D` frame for it."""
    kind = type(error)
    try:
        if not issubclass(kind, SystemExit):
            report(error)
            if issubclass(kind, KeyboardInterrupt):
                return b"i"
            return b"r" + string(kind_name(kind)) + string(message(error))
    except SystemExit as leaving:
        # The user's excepthook did that.
        error = leaving
    return b"x" + exit_code(error).to_bytes(4, "big")


def failed(error, fault):
    """The `D` frame's body when `settle` itself was stopped by `fault`."""
    if isinstance(fault, KeyboardInterrupt):
        return b"i"
    return b"r" + string(kind_name(type(error))) + string("")


def status(error):
    """The exit status of a forked child that has come to the end of the cell."""
    done = b"c" if error is None else guard(settle, error)[0] or b"r"
    return done[4] if done[:1] == b"x" else {b"c": 0, b"i": 130}.get(done[:1], 1)


def exit_code(error):
    code = error.code
    if code is None:
        return 0
    if isinstance(code, int):
        # What does not fit a C long is -1 to Python. The user's subclass has no say in this.
        code = int.__add__(code, 0)
        return code & 255 if -(1 << 63) <= code < 1 << 63 else 255
    print_error(clip(text_of(code)) + "\n")
    return 1


def report(error):
    trim(error)
    remember()
    found = sys.__dict__.get("excepthook", hook)
    if found is hook or found is sys.__dict__.get("__excepthook__"):
        print_error(render(error))
        return
    try:
        found(type(error), error, error.__traceback__)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as second:
        second = trim(second)
        second.__context__ = None
        text = "Error in sys.excepthook:\n" + render(second) + "\nOriginal exception was:\n"
        print_error(text + render(error))


def trim(error):
    """Takes the shim's frames, and those of asyncio that drive the cell, off a traceback."""
    trace = rest = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals is globals():
            rest = trace.tb_next
        trace = trace.tb_next
    trace = rest
    while trace is not None and trace.tb_frame.f_globals.get("__package__") == "asyncio":
        trace = trace.tb_next
    error = error.with_traceback(trace or rest)
    if library is not None:
        forget_library(error, set())
    return error


def forget_library(error, seen):
    """Takes the frames of the library for tools off a traceback, where user's code ends in them."""
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        trace = error.__traceback__
        if trace is not None and trace.tb_frame.f_globals is library:
            error.__traceback__ = trace = None
        while trace is not None:
            if trace.tb_next is not None and trace.tb_next.tb_frame.f_globals is library:
                trace.tb_next = None
            trace = trace.tb_next
        for one in getattr(error, "exceptions", None) or ():
            forget_library(one, seen)
        forget_library(error.__cause__, seen)
        error = error.__context__


def render(error):
    """The text of a traceback, bounded."""
    try:
        from traceback import TracebackException

        limit = sys.__dict__.get("tracebacklimit")
        limit = min(limit, FRAMES) if isinstance(limit, int) and limit >= 0 else FRAMES
        if isinstance(error, SyntaxError) and error.text is None and error.filename in sources:
            # Errors found after parsing have no text, because Python looks for a file.
            lines = sources[error.filename].split("\n")
            if error.lineno and error.lineno <= len(lines):
                error.text = lines[error.lineno - 1]
        whole = TracebackException(
            type(error), error, error.__traceback__, limit=-limit, lookup_lines=False
        )
        if whole.stack and whole.stack[0].filename == "<string>":
            # The first cell, which boot.py has evaluated. Its frame comes first, and only here can
            # the first frame be called that.
            whole.stack[0].filename = next(reversed(sources))
        bound(whole)
        return "".join(map(clip, whole.format()))
    except Exception:
        # No memory or stack for that, or modules changed by the user: the least there is to say.
        return kind_name(type(error)) + ": " + clip(message(error)) + "\n"


def bound(whole):
    """Cuts messages before they are formatted, which would copy them."""
    todo, seen = [whole], set()
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(getattr(one, "_str", None), str):
            one._str = clip(one._str)
        todo += [one.__cause__, one.__context__, *(getattr(one, "exceptions", None) or ())]


def clip(text):
    if len(text) <= CHUNK:
        return text
    half = CHUNK // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


def print_error(text):
    """Writes to sys.stderr, or to the real one when that is gone."""
    stream = sys.__dict__.get("stderr")
    try:
        stream.write(text)
        stream.flush()
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException:
        rest = text.encode("utf-8", "backslashreplace")
        try:
            while rest:
                rest = rest[write(2, rest) :]
        except OSError:
            pass


def kind_name(kind):
    try:
        module, name = kind.__module__, kind.__qualname__
        return name if module in ("builtins", "__main__") else f"{module}.{name}"
    except Exception:
        return "Exception"


def message(error):
    try:
        return text_of(error)
    except Exception:
        return ""


def text_of(value):
    try:
        return str(value)
    except Exception:
        return "<exception str() failed>"


def string(text):
    """A string of the wire, of at most 4096 bytes and whole characters."""
    data = text[:4096].encode("utf-8", "backslashreplace")[:4096]
    data = data.decode("utf-8", "ignore").encode()
    return len(data).to_bytes(4, "big") + data


# Sent ahead of the first cell this part warms the process up; the first compile() is most of that.
compile("", "", "exec")
