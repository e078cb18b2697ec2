# The Python shim: errors, exits, `await`, and repairs of what cells have broken. Fetched when first needed.
#
# boot.py runs it in the globals of the shim. It imports heavy modules inside functions, because a cell
# that awaits needs no traceback, and one that fails needs no asyncio.
# ruff: noqa: F821 (the other globals, and the builtins, come from boot.py and cell.py)

errors_and_await = True
loop = None
# The sources that the shim has put into linecache, by name of the cell.
remembered = {}
# The longest piece of a traceback that is printed whole: a message can be as large as memory.
MAX_TEXT = 64 << 10
# Tracebacks do not show a longer line of a cell, because they would repeat it for each frame.
MAX_LINE = 4 << 10
# As many frames as CPython's own printer shows. A raised recursion limit allows millions.
MAX_FRAMES = 1000


# Before a cell


def reopen_streams():
    """Opens standard streams again that a cell has closed, as `exit()` does with stdin."""
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            if not is_closed(sys.__dict__.get(name)):
                continue
            stream = sys.__dict__.get(f"__{name}__")
            if is_closed(stream):
                errors = "backslashreplace" if fd else "surrogateescape"
                stream = open(fd, mode, encoding="utf-8", errors=errors, closefd=False)
                if fd:
                    stream.reconfigure(line_buffering=True)
                setattr(sys, f"__{name}__", stream)
            setattr(sys, name, stream)
        except Exception:
            # The descriptor itself is closed, or the user's own object cannot be examined.
            pass


def is_closed(stream):
    """Returns whether a standard stream is missing or cannot be used."""
    if stream is None:
        return True
    try:
        return stream.closed
    except AttributeError:
        # Not a file: an object that the user put there stays.
        return False
    except ValueError:
        # Detached.
        return True


def dedent(code):
    """Returns the code without a byte order mark, and without the indentation of a cell that is indented as a whole."""
    code = code.lstrip("\ufeff")
    lines = code.split("\n")
    first = next((line for line in lines if line.strip()), "")
    margin = first[: len(first) - len(first.lstrip(" \t"))]
    if not all(line.startswith(margin) for line in lines if line.strip()):
        return code
    return "\n".join(line[len(margin) :] if line.strip() else "" for line in lines)


def remember_sources():
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
                lines = [line + "\n" if len(line) < MAX_LINE else "\n" for line in lines]
                # checkcache() keeps an entry without a modification time.
                cache[name] = (len(source), None, lines, name)
                remembered[name] = source
    except Exception:
        # A cell has changed linecache. Tracebacks then lack source lines.
        pass


# await


def find_entry(body):
    """Returns the name of an `async def main()` or `run()` to run, in a cell of nothing but definitions; else None."""
    found = set()
    for at, node in enumerate(body):
        kind = type(node).__name__
        if kind in ("FunctionDef", "AsyncFunctionDef", "ClassDef"):
            found.discard(node.name)
            if kind == "AsyncFunctionDef" and not node.decorator_list and takes_no_arguments(node.args):
                found.add(node.name)
        elif kind not in ("Import", "ImportFrom"):
            value = getattr(node, "value", None)
            if at or kind != "Expr" or not isinstance(getattr(value, "value", None), str):
                return None
    return next((name for name in ("main", "run") if name in found), None)


def allow_await_of_values(tree):
    """Turns every `await x` of a cell into `await await(x)`, with a function that makes any value awaitable.

    The same for what `await asyncio.gather(…)` waits for: `mcp.SERVER.TOOL(…)` there has its value already."""
    todo = [tree]
    for node in todo:
        # About as many nodes as a cell of 100 kB has. A longer one has to await only awaitables.
        if len(todo) > 100_000:
            return
        for field in node._fields:
            value = getattr(node, field, None)
            for one in value if type(value) is list else (value,):
                if hasattr(type(one), "_fields"):
                    todo.append(one)
    sample = compile("f(x)", "", "eval", 0x400).body

    def apply(function, value):
        place = {"lineno": value.lineno, "col_offset": value.col_offset}
        place.update(end_lineno=value.end_lineno, end_col_offset=value.end_col_offset)
        # A keyword, so that no code can have a variable of that name.
        name = type(sample.func)(id=function, ctx=sample.func.ctx, **place)
        return type(sample)(func=name, args=[value], keywords=[], **place)

    for node in todo:
        if type(node).__name__ == "Await":
            call = node.value
            if is_gather(getattr(call, "func", None)):
                for at, one in enumerate(call.args):
                    if type(one).__name__ == "Starred":
                        one.value = apply("async", one.value)
                    else:
                        call.args[at] = apply("await", one)
            node.value = apply("await", call)
    builtins.__dict__.update({"await": awaitable, "async": lambda values: map(awaitable, values)})


def is_gather(function):
    """Returns whether an expression is `asyncio.gather`."""
    return getattr(function, "attr", None) == "gather" and getattr(function.value, "id", None) == "asyncio"


class AwaitableValue:
    """Makes a plain value awaitable."""

    def __init__(self, value):
        self.value = value

    def __await__(self):
        return self.value
        yield


def awaitable(value):
    """Returns the value if it can be awaited, else something that can."""
    kind = type(value)
    # CO_ITERABLE_COROUTINE: a generator that `types.coroutine` has made a coroutine.
    old = kind.__name__ == "generator" and value.gi_code.co_flags & 0x100
    return value if old or hasattr(kind, "__await__") else AwaitableValue(value)


def takes_no_arguments(args):
    """Returns whether a function can be called without arguments."""
    positional = len(args.posonlyargs) + len(args.args)
    return positional == len(args.defaults) and None not in args.kw_defaults


def run_with_await(body, tail):
    """Runs a cell that uses `await`, as one task, so that it has one context."""

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


def await_and_show(coroutine):
    """Awaits the coroutine that was the value of a cell, and shows the result."""
    show(complete(coroutine))


def complete(coroutine):
    """Runs a coroutine on the session's event loop, whose tasks continue whenever a later cell awaits."""
    global loop
    from asyncio import CancelledError, new_event_loop, set_event_loop

    if loop is None or loop.is_closed():
        loop = new_event_loop()
    set_event_loop(loop)
    task = stopped = None
    hit = False

    def interrupt(number, frame):
        # Raises in user code, but not in the loop's own code, which would break the loop for good. There it
        # cancels the task, which a waiting coroutine notices as well.
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
                # Code that catches an interrupt goes on. An exit in another task stays an exit.
                if stopped is None or isinstance(stopped, KeyboardInterrupt):
                    return value
            except CancelledError as cancelled:
                if stopped is None and not hit:
                    raise
                stopped = stopped or KeyboardInterrupt()
                if isinstance(stopped, KeyboardInterrupt):
                    # Shows where it was waiting. Before 3.11 this is a second exception, whose context
                    # is the first one.
                    first = cancelled.__context__ if sys.version_info < (3, 11) else None
                    stopped = stopped.with_traceback((first or cancelled).__traceback__)
            except BaseException as raised:
                if task.done():
                    # Without retrieving the exception, asyncio complains when the task is collected.
                    task.cancelled() or task.exception()
                    raise
                if stopped is not None:
                    raise
                # An exception of another task left the loop. Cancel ours in an orderly way.
                stopped = raised
                task.cancel()
                continue
            raise stopped from None
    finally:
        stopped = None
        if ours and getsignal(SIGINT) is interrupt:
            signal(SIGINT, default_int_handler)


# After a cell


def report_error(error):
    """Prints an error as Python would, and returns the body of the `D` frame for it."""
    kind = type(error)
    try:
        if not issubclass(kind, SystemExit):
            print_traceback(error)
            if issubclass(kind, KeyboardInterrupt):
                return b"i"
            print_hint(error)
            return b"r" + string(kind_name(kind)) + string(text_of(error))
    except SystemExit as leaving:
        # The user's excepthook raised it.
        error = leaving
    return b"x" + exit_code(error).to_bytes(4, "big")


def print_hint(error):
    """Prints what can be done about an error, if it is one that the sandbox causes."""
    try:
        errors, one = [], error
        while one is not None and len(errors) < 10:
            errors.append(one)
            reason = getattr(one, "reason", None)
            cause = reason if isinstance(reason, OSError) else one.__cause__
            one = cause or (None if one.__suppress_context__ else one.__context__)
        kinds = [type(one).__name__ for one in errors]
        known = "ModuleNotFoundError", "FileNotFoundError", "CalledProcessError", "gaierror"
        # A forked child cannot fetch the part.
        if getpid() != pid or not any(map(known.__contains__, kinds)):
            return
        without_interrupts(need, "hints")
        hint = hint_for(errors)
    except Exception:
        # The user's own class of errors, or a cell has changed modules.
        return
    if hint:
        print_error("hint: " + clip(hint) + "\n")


def failed_report(error, fault):
    """Returns the body of the `D` frame when `fault` stopped `report_error` itself."""
    if isinstance(fault, KeyboardInterrupt):
        return b"i"
    return b"r" + string(kind_name(type(error))) + string("")


def exit_status(error):
    """Returns the exit status of a forked child that has reached the end of the cell."""
    done = b"c" if error is None else guard(report_error, error)[0] or b"r"
    return done[4] if done[:1] == b"x" else {b"c": 0, b"i": 130}.get(done[:1], 1)


def exit_code(error):
    """Returns the exit code of a SystemExit, and prints its message if it has one."""
    code = error.code
    if code is None:
        return 0
    if isinstance(code, int):
        # Python treats a number that does not fit a C long as -1. This ignores methods of a user's subclass.
        code = int.__add__(code, 0)
        return code & 255 if -(1 << 63) <= code < 1 << 63 else 255
    print_error(clip(text_of(code)) + "\n")
    return 1


def print_traceback(error):
    """Prints a traceback, or lets the user's excepthook do it."""
    trim(error)
    remember_sources()
    found = sys.__dict__.get("excepthook", default_excepthook)
    if found is default_excepthook or found is sys.__dict__.get("__excepthook__"):
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
    """Removes frames of the shim, and those of asyncio that run the cell, from a traceback."""
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
        trim_library(error, set())
    return error


def trim_library(error, seen):
    """Removes frames of the library for tools from a traceback, after the user's code that called it."""
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
            trim_library(one, seen)
        trim_library(error.__cause__, seen)
        error = error.__context__


def render(error):
    """Returns the text of a traceback, bounded."""
    try:
        from traceback import TracebackException

        limit = sys.__dict__.get("tracebacklimit")
        limit = min(limit, MAX_FRAMES) if isinstance(limit, int) and limit >= 0 else MAX_FRAMES
        if isinstance(error, SyntaxError) and error.text is None and error.filename in sources:
            # Errors that are found after parsing have no text, because Python looks for it in a file.
            lines = sources[error.filename].split("\n")
            if error.lineno and error.lineno <= len(lines):
                error.text = lines[error.lineno - 1]
        whole = TracebackException(
            type(error), error, error.__traceback__, limit=-limit, lookup_lines=False
        )
        if whole.stack and whole.stack[0].filename == "<string>":
            # The first cell, which boot.py has evaluated. Its frame comes first, and only this way can the
            # first frame have that name.
            whole.stack[0].filename = next(reversed(sources))
        bound_messages(whole)
        return "".join(map(clip, whole.format()))
    except Exception:
        # Not enough memory or stack for that, or a cell has changed modules: say as little as possible.
        return kind_name(type(error)) + ": " + clip(text_of(error)) + "\n"


def bound_messages(whole):
    """Shortens messages before they are formatted, which would copy them."""
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
    """Returns the text, without its middle if it is too long."""
    if len(text) <= MAX_TEXT:
        return text
    half = MAX_TEXT // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


def print_error(text):
    """Writes to sys.stderr, or to descriptor 2 if that does not work."""
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
    """Returns the name of an exception's class, as tracebacks show it."""
    try:
        module, name = kind.__module__, kind.__qualname__
        return name if module in ("builtins", "__main__") else f"{module}.{name}"
    except Exception:
        return "Exception"


def text_of(value):
    try:
        return str(value)
    except Exception:
        return "<exception str() failed>"


def string(text):
    """Returns a text as the channel carries it, cut to 4096 bytes and whole characters."""
    data = text[:4096].encode("utf-8", "backslashreplace")[:4096]
    data = data.decode("utf-8", "ignore").encode()
    return len(data).to_bytes(4, "big") + data


# The runner may send this part before the first cell, to warm up the process. The first compile() is most of that.
compile("", "", "exec")
