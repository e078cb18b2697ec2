# The Python shim, second part: runs cells, one after another.
#
# Run by boot.py in the globals of the shim. What is here is compiled before the first cell of most
# sessions; what a plain cell that succeeds does not need is in late.py.
# ruff: noqa: F821 (the rest of the globals, and builtins, come from boot.py)

modules = sys.modules
main, builtins = modules["__main__"], modules["builtins"]
pid, displayhook, settrace, sources, file = getpid(), sys.displayhook, sys.settrace, {}, None
# The globals of the library for tools, when it is there.
library = store = None
# PyCF_ALLOW_TOP_LEVEL_AWAIT. A cell's `from __future__` is added and lasts, as in a REPL.
flags = 0x2000
# HUP USR1 USR2 ALRM CHLD VTALRM PROF: a cell may leave a handler for these that raises, an alarm
# say. It has to raise in a cell, so they wait while the shim's own lines run.
held = 1, 10, 12, 14, 17, 26, 27
# A cell with one of these may fork, print a traceback of its own, or await.
words = "async", "await", "fork", "inspect", "logging", "thread", "traceback", "warn"
# A cell with one of these may draw, and a value of these types may be an image.
plots = "matplotlib", "pyplot", "plt.", ".plot", ".hist", "seaborn"
pictures = "Figure", "Image", "PngImageFile", "JpegImageFile", "Result", "bytes", "PosixPath"


def forked():
    # A child that goes on as Python must neither hold the socket open nor speak on it.
    try:
        close(3)
    except OSError:
        pass


def free(step, *args):
    pthread_sigmask(SIG_UNBLOCK, held)
    try:
        return step(*args)
    finally:
        settrace(None)
        pthread_sigmask(SIG_BLOCK, held)


def show(value):
    if library is not None and "wait" not in library["parts"]:
        value = library["settled"](value)
    hook = sys.__dict__.get("displayhook", displayhook)
    if hook is not displayhook:
        hook(value)
    elif value is not None:
        kind = type(value)
        if (kind.__name__ in pictures or hasattr(kind, "_repr_png_")) and is_image(value):
            builtins._ = value
            return
        # As the original does, which fails when a cell has emptied sys.modules.
        builtins._ = None
        sys.stdout.write(repr(value) + "\n")
        builtins._ = value


def calmly(step, *args):
    # For the user's phase: an interrupt must not cut an answer on the wire in two.
    before = signal(SIGINT, note)
    try:
        return step(*args)
    finally:
        signal(SIGINT, before)


def is_image(value):
    calmly(need, "draw")
    return show_image(value)


def shelve():
    # Gets the library for tools: all of its text, for later there may be a thread or a child that
    # cannot ask for more.
    global library
    if library is None:
        parts = {part: calmly(fetch, part) for part in ("wire", "tool", "wait", "more")}
        made = {"__name__": "cove_mcp", "__builtins__": __builtins__, "parts": parts}
        exec(compile(parts.pop("wire"), "<mcp>", "exec"), made)
        library = made
    return library


class Finder:
    # The module `mcp`, for code that a cell imports. Found before the package of that name.
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] == "mcp" and (library or (getpid() == pid and get_ident() == first)):
            return shelve()["find_module"](name)


def unknown(code, parts):
    # Names that a cell uses, nobody has defined, and that are asked for a member: servers', perhaps.
    global store
    found, stored, parts = [], set(), [part for part in parts if part]
    for part in parts:
        found += [name for name in part.co_names if name not in names and name not in builtins.__dict__]
        parts += [const for const in part.co_consts if type(const) is type(part)]
        if len(found) > 10000:
            return []
    if not found:
        return found
    if store is None:
        # STORE_NAME, whose number is not the same in every version. It stores `a`, the second name.
        sample = compile("a=b", "", "exec").co_code
        store = sample[sample[1::2].index(1) * 2]
    for part in parts:
        codes, at = part.co_code[::2], -1
        while (at := codes.find(store, at + 1)) >= 0:
            # EXTENDED_ARG for names after the 255th is left out: one more question is no harm.
            stored.update(part.co_names[part.co_code[2 * at + 1] :][:1])
    if len(code) > 100_000:
        return [name for name in found if name not in stored and name[:4] == "mcp_"]
    found = [name for name in found if name not in stored]
    return [name for name in found if name[:4] == "mcp_" or is_asked(name, code)]


def is_asked(name, code):
    at, size = -1, len(name)
    while (at := code.find(name, at + 1)) >= 0:
        # Not the end of another name, and not the `b` of an `a.b.c`.
        begins = not at or not (code[at - 1].isalnum() or code[at - 1] in "_.")
        if begins and code[at + size : at + size + 1] in (".", "["):
            return True


def split(name, code):
    # The cell's code, that of its trailing expression, and the name of an async function to run.
    global flags
    tail = entry = None
    try:
        tree = compile(code, name, "exec", flags | 0x400, True)
        if "late" in globals() and "await" in code:
            tolerate(tree)
        last = tree.body[-1] if tree.body else None
        # A file is a script, and a script shows nothing that it does not print.
        if type(last).__name__ == "Expr" and name[:1] == "<":
            text = code.replace("\r\n", "\n").replace("\r", "\n").split("\n")[last.end_lineno - 1]
            if text.encode()[last.end_col_offset :].lstrip()[:1] != b";":
                del tree.body[-1]
                # ast.Expression, found without an import, which a cell can break.
                kinds = {kind.__name__: kind for kind in type(tree).__base__.__subclasses__()}
                tail = compile(kinds["Expression"](last.value), name, "eval", flags, True)
        elif "late" in globals():
            entry = find_entry(tree.body)
        body = compile(tree, name, "exec", flags, True)
    except (MemoryError, RecursionError):
        # Too much as a tree, perhaps not for the compiler. A trailing value is not shown then.
        tail = tree = last = None
        body = compile(code, name, "exec", flags, True)
    flags |= body.co_flags & 0x1FE0000
    return body, tail, entry


def run(name, code):
    # Runs a cell. Returns a coroutine that is left to await, or None.
    if noted:
        raise KeyboardInterrupt
    body, tail, entry = split(name, code)
    wanted = unknown(code, (body, tail)) if b"COVE_MCP" in environ else ()
    if wanted or "mcp" in code or "MCP" in code:
        shelve()["offer"](wanted)
    # CO_COROUTINE
    if (body.co_flags | (tail.co_flags if tail else 0)) & 0x80:
        return drive(body, tail)
    exec(body, names)
    if entry:
        return names[entry]()
    if tail:
        value = eval(tail, names)
        if type(value).__name__ == "coroutine":
            return value
        show(value)


def begin(frame):
    # Makes the process ready for a cell, whatever the cells before it have done to it.
    global file
    noted.clear()
    (name, code), at = texts(frame, 1, 2)
    sys.argv = [name] + texts(frame, at + 4, int.from_bytes(frame[at : at + 4], "big"))[0]
    for kept in (("sys", sys), ("builtins", builtins), ("__main__", main)):
        modules.setdefault(*kept)
    names["__builtins__"] = builtins
    if name[:1] != "<":
        names["__file__"] = file = name
    elif names.get("__file__") is file:
        names.pop("__file__", None)
    try:
        closed = sys.stdin.closed or sys.stdout.closed or sys.stderr.closed
    except Exception:
        closed = True
    if closed:
        need("late")
        reopen()
    if code.lstrip("\n").startswith((" ", "\t", "\ufeff")):
        need("late")
        code = dedent(code)
    # For tracebacks; about 8 MB are kept, of the newest cells.
    sources.pop(name, None)
    sources[name] = code
    while len(sources) > 1 and sum(map(len, sources.values())) > 8 << 20:
        del sources[next(iter(sources))]
    if "draw" in globals() or any(map(code.__contains__, plots)):
        need("draw")
        guard(draw)
    if "traceback" in modules or "inspect" in modules or any(map(code.__contains__, words)):
        need("late")
        remember()
    return name, code


def cell(frame, error):
    # Serves `frame`, which has ended with `error` when there is one, and all that follow.
    while True:
        value = None
        if error is None:
            value, error = guard(free, run, *begin(frame))
        else:
            begin(frame)
        if getpid() != pid:
            # A child of os.fork() got here. Without late.py, which it cannot fetch, Python ends it.
            if error is not None and "late" not in globals():
                raise error
            leave(0 if error is None else status(error))
        if value is not None:
            need("late")
            error = guard(free, wait, value)[1]
        if library is not None and "wait" not in library["parts"]:
            error = guard(free, library["conclude"], error)[1] or error
        done = b"c"
        if error is not None:
            need("late")
            done, fault = guard(free, settle, error)
            if fault is not None:
                done = failed(error, fault)
        if "draw" in globals():
            guard(free, show_figures)
        frame = value = error = fault = None
        guard(flush)
        done = b"D" + done
        try:
            write(3, len(done).to_bytes(4, "big") + done)
        except OSError as problem:
            leave(0 if problem.errno == 32 else 3)
        frame = receive(b"R")


get_ident = __import__("_thread").get_ident
first = get_ident()
sys.meta_path.insert(0, Finder)
register_at_fork(after_in_child=forked)
pthread_sigmask(SIG_BLOCK, held)
try:
    # Under -I no directory of the user's is searched, but `import helper` has to find a helper.py
    # that a cell wrote. At the end, so that a json.py there hides no module of Python's.
    sys.path.append(getcwd())
except OSError:
    pass
