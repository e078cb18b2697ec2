# The Python shim, on demand: questions about code that a person is writing.
#
# The runner sends this part before the first question, and it runs in the globals of the shim. It compiles the code and
# never runs it, and looks up attributes in dictionaries, which runs no user code.
# ruff: noqa: F821 (the globals and builtins come from boot.py)

# As many names as fit into one answer.
names_most, name_longest = 500, 60


def question(frame):
    step = completeness if frame[1:2] == b"c" else completions
    answer = guard(step, frame[2:].decode("utf-8", "replace"))[0] or ""
    send(b"A" + answer.encode("utf-8", "replace"))


def completeness(code):
    import codeop
    import warnings

    # PyCF_ALLOW_TOP_LEVEL_AWAIT, as cells have it, and PyCF_ONLY_AST.
    compiler = codeop.CommandCompiler()
    compiler.compiler.flags |= 0x2000
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if compiler(code, "<question>", "exec") is None:
                return "open"
            body = compile(code, "<question>", "exec", 0x2000 | 0x400, True).body
        except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError):
            # The cell itself shows the error.
            return "complete"
    # `else:` may follow, or one more line of a function: a blank line ends it, as at Python's own prompt.
    is_block = body and (hasattr(body[-1], "body") or hasattr(body[-1], "cases"))
    return "block" if is_block and code.rpartition("\n")[2].strip() else "complete"


def completions(code):
    chain, word = [], ""
    for letter in reversed(code):
        if letter == ".":
            chain.insert(0, word)
            word = ""
        elif letter.isalnum() or letter == "_":
            word = letter + word
        else:
            break
    chain.insert(0, word)
    word = chain.pop()
    if chain:
        found = members(*chain)
    else:
        import keyword

        found = {*keyword.kwlist, *names, *sys.modules["builtins"].__dict__}
    shown = (name for name in found if isinstance(name, str) and name.startswith(word))
    shown = (name for name in shown if word or not name.startswith("_"))
    return "\n".join(sorted(name for name in shown if len(name) <= name_longest)[:names_most])


def members(name, *rest):
    """The names of the attributes of a variable, or of an attribute of it."""
    spaces = [names, sys.modules["builtins"].__dict__]
    for depth, name in enumerate((name, *rest)):
        space = next((space for space in spaces if name in space), None)
        if space is None:
            return ()
        value = space[name]
        # A property, or another descriptor: its value is known only to code.
        if depth and space is not spaces[0] and hasattr(type(value), "__get__"):
            return ()
        spaces = dictionaries(value)
    return (name for space in spaces for name in space)


def dictionaries(value):
    """Where the attributes of a value are: its own dictionary, then those of its classes."""
    own, order = type.__dict__["__dict__"].__get__, type.__dict__["__mro__"].__get__
    if isinstance(value, type):
        return [*map(own, order(value)), *map(own, order(type(value)))]
    try:
        mine = object.__getattribute__(value, "__dict__")
    except AttributeError:
        mine = {}
    return [mine if isinstance(mine, dict) else {}, *map(own, order(type(value)))]
