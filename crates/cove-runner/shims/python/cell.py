# The Python shim, second part: runs cells, one after another.
#
# boot.py runs it in the globals of the shim. It is compiled before the first cell of most sessions, so
# everything that a plain cell without an error does not need is in errors_and_await.py.
# ruff: noqa: F821 (the other globals, and the builtins, come from boot.py)

modules = sys.modules
main, builtins = modules["__main__"], modules["builtins"]
pid, displayhook, settrace, sources, file = getpid(), sys.displayhook, sys.settrace, {}, None
# The globals of the library for tools, once it is loaded; and the opcode STORE_NAME, once it is known.
library = store_opcode = None
# PyCF_ALLOW_TOP_LEVEL_AWAIT. A cell's `from __future__` is added and lasts, as in a REPL.
flags = 0x2000
# HUP USR1 USR2 ALRM CHLD VTALRM PROF: a cell may leave a handler for these that raises, such as an
# alarm. It has to raise in a cell, so these signals wait while the shim's own lines run.
held_signals = 1, 10, 12, 14, 17, 26, 27
# A cell with one of these words may fork, print a traceback of its own, or await.
traceback_words = "async", "await", "fork", "inspect", "logging", "thread", "traceback", "warn"
# A cell with one of these is probably more than one expression, may warn while it is compiled, or has to be looked at
# for what it awaits. So is one that begins with one of these words.
statement_signs = "\n", "=", ";", ":", "\\", "await"
statement_words = "import ", "from ", "del ", "raise", "assert", "pass", "global ", "return", "@"
nothing = compile("", "<cell>", "exec", 0, True)
# A cell with one of these words may draw, and a value of one of these types may be an image.
plot_words = "matplotlib", "pyplot", "plt.", ".plot", ".hist", "seaborn"
image_types = "Figure", "Image", "PngImageFile", "JpegImageFile", "Result", "bytes", "PosixPath"


def close_channel():
    # In a forked child: it must neither hold the channel open nor write to it.
    try:
        close(3)
    except OSError:
        pass


def with_signals(step, *args):
    # Runs user code, with the signals that wait elsewhere.
    pthread_sigmask(SIG_UNBLOCK, held_signals)
    try:
        return step(*args)
    finally:
        settrace(None)
        pthread_sigmask(SIG_BLOCK, held_signals)


def show(value):
    # Shows the value of a cell's last expression.
    if library is not None and "pending_calls" not in library["parts"]:
        value = library["resolved"](value)
    hook = sys.__dict__.get("displayhook", displayhook)
    if hook is not displayhook:
        hook(value)
    elif value is not None:
        kind = type(value)
        if (kind.__name__ in image_types or hasattr(kind, "_repr_png_")) and is_image(value):
            builtins._ = value
            return
        # Like the original displayhook, which fails when a cell has emptied sys.modules.
        builtins._ = None
        sys.stdout.write(repr(value) + "\n")
        builtins._ = value


def without_interrupts(step, *args):
    # Runs a step of the shim inside user code, where an interrupt would cut an answer in the channel in two.
    before = signal(SIGINT, note_interrupt)
    try:
        return step(*args)
    finally:
        signal(SIGINT, before)


def is_image(value):
    # Shows the value if it is an image, and returns whether it is.
    without_interrupts(need, "images")
    return show_image(value)


def load_library():
    # Loads the library for tools: the text of all its parts at once, because a thread or a child that
    # needs one later cannot ask for it.
    global library
    if library is None:
        all_parts = "wire", "mcp_module", "pending_calls", "results"
        parts = {part: without_interrupts(fetch, part) for part in all_parts}
        made = {"__name__": "cove_mcp", "__builtins__": __builtins__, "parts": parts}
        exec(compile(parts.pop("wire"), "<mcp>", "exec"), made)
        library = made
    return library


class Finder:
    # Finds the module `mcp` for modules that a cell imports, before the package of that name.
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] == "mcp" and (library or (getpid() == pid and get_ident() == first)):
            return load_library()["find_module"](name)


def undefined_names(code, parts):
    # Returns names that a cell uses like objects and that nothing defines: perhaps servers.
    global store_opcode
    found, stored, parts = [], set(), [part for part in parts if part]
    for part in parts:
        found += [name for name in part.co_names if name not in names and name not in builtins.__dict__]
        parts += [const for const in part.co_consts if type(const) is type(part)]
        if len(found) > 10000:
            return []
    if not found:
        return found
    if store_opcode is None:
        # The number of STORE_NAME differs between versions. In this sample it stores `a`, the second name.
        sample = compile("a=b", "", "exec").co_code
        store_opcode = sample[sample[1::2].index(1) * 2]
    for part in parts:
        codes, at = part.co_code[::2], -1
        while (at := codes.find(store_opcode, at + 1)) >= 0:
            # This ignores EXTENDED_ARG for names after the 255th: one more question to the host does no harm.
            stored.update(part.co_names[part.co_code[2 * at + 1] :][:1])
    found, is_short = [name for name in found if name not in stored], len(code) <= 100_000
    return [name for name in found if name[:4] == "mcp_" or (is_short and is_used_as_object(name, code))]


def is_used_as_object(name, code):
    # Returns whether the code has `name.` or `name[`.
    at, size = -1, len(name)
    while (at := code.find(name, at + 1)) >= 0:
        # Not the end of another name, and not the `b` of an `a.b.c`.
        begins = not at or not (code[at - 1].isalnum() or code[at - 1] in "_.")
        if begins and code[at + size : at + size + 1] in (".", "["):
            return True


def compile_cell(name, code):
    # Returns the cell's code, the code of its trailing expression, and the name of an async function to run.
    global flags
    tail = entry = None
    if name[:1] == "<" and not any(map(code.__contains__, statement_signs)) and not code.startswith(statement_words):
        # Probably one expression. Without a syntax tree this takes a third of the time.
        try:
            return nothing, compile(code, name, "eval", flags, True), None
        except (SyntaxError, MemoryError, RecursionError):
            pass
    try:
        tree = compile(code, name, "exec", flags | 0x400, True)
        if "errors_and_await" in globals() and "await" in code:
            allow_await_of_values(tree)
        last = tree.body[-1] if tree.body else None
        # A file is a script, and a script shows only what it prints.
        if type(last).__name__ == "Expr" and name[:1] == "<":
            text = code.replace("\r\n", "\n").replace("\r", "\n").split("\n")[last.end_lineno - 1]
            if text.encode()[last.end_col_offset :].lstrip()[:1] != b";":
                del tree.body[-1]
                # Finds ast.Expression without an import, which a cell can break.
                kinds = {kind.__name__: kind for kind in type(tree).__base__.__subclasses__()}
                tail = compile(kinds["Expression"](last.value), name, "eval", flags, True)
        elif "errors_and_await" in globals():
            entry = find_entry(tree.body)
        body = compile(tree, name, "exec", flags, True)
    except (MemoryError, RecursionError):
        # Too deep for a syntax tree, but perhaps not for the compiler. Then a trailing value is not shown.
        tail = tree = last = None
        body = compile(code, name, "exec", flags, True)
    flags |= body.co_flags & 0x1FE0000
    return body, tail, entry


def run(name, code):
    # Runs a cell. Returns a coroutine that is still to be awaited, or None.
    if interrupts:
        raise KeyboardInterrupt
    body, tail, entry = compile_cell(name, code)
    wanted = undefined_names(code, (body, tail)) if b"COVE_MCP" in environ else ()
    if wanted or "mcp" in code or "MCP" in code:
        load_library()["define_names"](wanted)
    # CO_COROUTINE
    if (body.co_flags | (tail.co_flags if tail else 0)) & 0x80:
        return run_with_await(body, tail)
    exec(body, names)
    if entry:
        return names[entry]()
    if tail:
        value = eval(tail, names)
        if type(value).__name__ == "coroutine":
            return value
        show(value)


def restore_descriptor(fd):
    # Makes a standard descriptor and its copy what they were at the start, whatever earlier cells have done to one.
    pipe, copy = PIPES[fd - 1], COPIES + fd
    if identify(fd) != pipe:
        if identify(copy) != pipe:
            lose(b"a standard descriptor and its copy")
        guard(dup2, copy, fd)
    elif identify(copy) != pipe:
        guard(dup2, fd, copy, False)


def begin(frame):
    # Prepares the process for a cell, whatever earlier cells have done to it. Returns its name and code.
    global file
    interrupts.clear()
    (name, code), at = read_texts(frame, 1, 2)
    sys.argv = [name] + read_texts(frame, at + 4, int.from_bytes(frame[at : at + 4], "big"))[0]
    for kept in (("sys", sys), ("builtins", builtins), ("__main__", main)):
        modules.setdefault(*kept)
    names["__builtins__"] = builtins
    if name[:1] != "<":
        names["__file__"] = file = name
    elif names.get("__file__") is file:
        names.pop("__file__", None)
    for fd in (1, 2):
        restore_descriptor(fd)
    try:
        closed = sys.stdin.closed or sys.stdout.closed or sys.stderr.closed
    except Exception:
        closed = True
    if closed:
        need("errors_and_await")
        reopen_streams()
    if code.lstrip("\n").startswith((" ", "\t", "\ufeff")):
        need("errors_and_await")
        code = dedent(code)
    # For tracebacks. Keeps about 8 MB, of the newest cells.
    sources.pop(name, None)
    sources[name] = code
    while len(sources) > 1 and sum(map(len, sources.values())) > 8 << 20:
        del sources[next(iter(sources))]
    if "images" in globals() or any(map(code.__contains__, plot_words)):
        need("images")
        guard(begin_images)
    if "traceback" in modules or "inspect" in modules or any(map(code.__contains__, traceback_words)):
        need("errors_and_await")
        remember_sources()
    return name, code


def cell(frame, error):
    # Runs the cell in `frame` and all that follow. If `error` is set, boot.py has run this one already, and it failed.
    while True:
        value = None
        if error is None:
            value, error = guard(with_signals, run, *begin(frame))
        else:
            begin(frame)
        if getpid() != pid:
            # This is a child of os.fork(). It cannot fetch errors_and_await.py; without it, Python ends the child.
            if error is not None and "errors_and_await" not in globals():
                raise error
            leave(0 if error is None else exit_status(error))
        if value is not None:
            need("errors_and_await")
            error = guard(with_signals, await_and_show, value)[1]
        if library is not None and "pending_calls" not in library["parts"]:
            error = guard(with_signals, library["finish_calls"], error)[1] or error
        done = b"c"
        if error is not None:
            need("errors_and_await")
            done, fault = guard(with_signals, report_error, error)
            if fault is not None:
                done = failed_report(error, fault)
        if "images" in globals():
            guard(with_signals, show_figures)
        frame = value = error = fault = None
        guard(flush)
        if identify(3) != PIPES[2]:
            lose(b"descriptor 3")
        send(b"D" + done)
        frame = receive(b"R")


get_ident = __import__("_thread").get_ident
first = get_ident()
sys.meta_path.insert(0, Finder)
register_at_fork(after_in_child=close_channel)
pthread_sigmask(SIG_BLOCK, held_signals)
try:
    # Packages that the session installs, if it has an environment for them. Made now, because Python would remember
    # that there is no such folder.
    if sys.prefix != sys.base_prefix:
        folder = sys.prefix
        for part in ("lib", f"python{sys.version_info[0]}.{sys.version_info[1]}", "site-packages"):
            folder += "/" + part
            try:
                mkdir(folder)
            except FileExistsError:
                pass
        if folder not in sys.path:
            index = [at for at, path in enumerate(sys.path) if path.endswith("-packages")] or [len(sys.path)]
            sys.path.insert(index[0], folder)
except Exception:
    pass
try:
    # Packages that the operator installed. Before those of the system, so that the operator's version
    # counts, and after Python's own modules.
    stat("/.cove/packages")
    index = [at for at, path in enumerate(sys.path) if path.endswith("-packages")] or [len(sys.path)]
    sys.path.insert(index[0], "/.cove/packages")
    # For children, which are not started with -I.
    modules["os"].environ.setdefault("PYTHONPATH", "/.cove/packages")
except Exception:
    pass
try:
    # Under -I Python searches no directory of the user, but `import helper` has to find a helper.py that
    # a cell wrote. At the end of the path, so that a json.py there hides no module of Python.
    sys.path.append(getcwd())
except OSError:
    pass
