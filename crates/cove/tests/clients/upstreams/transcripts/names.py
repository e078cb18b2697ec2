# Reads Python code from standard input and prints which of its names the author must have read somewhere, because
# neither Python, its standard library nor the code itself defines them: the calls of servers with the keys of their
# arguments, and all other names, attributes and keys of dicts.
import ast
import builtins
import importlib
import io
import json
import sys

# What a word of Python may be an attribute of: the builtin types, files, and the modules that the code imports.
vocabulary = {name for kind in (str, bytes, int, float, list, dict, set, tuple, io.TextIOWrapper) for name in dir(kind)}


def learn_module(name):
    """Adds the words of a module of the standard library, and of its classes. Returns whether it is one."""
    if name.partition(".")[0] not in sys.stdlib_module_names:
        return False
    module = importlib.import_module(name)
    vocabulary.update(dir(module))
    for member in vars(module).values():
        if isinstance(member, type):
            vocabulary.update(dir(member))
    return True


def is_server(node):
    """Returns the server that an expression names: `mcp.NAME`, `mcp_NAME`, `mcp["NAME"]`."""
    match node:
        case ast.Attribute(value=ast.Name(id="mcp"), attr=name):
            return name
        case ast.Subscript(value=ast.Name(id="mcp"), slice=ast.Constant(value=name)):
            return name
        case ast.Name(id=name) if name.startswith("mcp_"):
            return name.removeprefix("mcp_")
    return None


tree = ast.parse(sys.stdin.read())
defined, loaded, words, calls = set(dir(builtins)), set(), set(), {}
for node in ast.walk(tree):
    match node:
        case ast.Import(names=names):
            for alias in names:
                defined.add(alias.asname or alias.name.partition(".")[0])
                if not learn_module(alias.name):
                    words.add(alias.name.partition(".")[0])
        case ast.ImportFrom(module=module, names=names):
            if not learn_module(module):
                words.add(module.partition(".")[0])
            defined.update(alias.asname or alias.name for alias in names)
        case ast.Name(id=name, ctx=ast.Store()):
            defined.add(name)
        case ast.Name(id=name):
            loaded.add(name)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            defined.add(name)
        case ast.arg(arg=name):
            defined.add(name)
for node in ast.walk(tree):
    match node:
        case ast.Attribute(value=of, attr=tool) if (server := is_server(of)) is not None:
            calls.setdefault(f"mcp.{server}.{tool}", set())
        case ast.Attribute(attr=word) if is_server(node) is not None or word not in vocabulary:
            words.add(word)
        case ast.Subscript(slice=ast.Constant(value=str(word))):
            words.add(word)
        case ast.Dict(keys=keys):
            words.update(key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str))
    if isinstance(node, ast.Call):
        # A function of `mcp` itself.
        if isinstance(node.func, ast.Attribute) and is_server(node.func) is not None:
            calls.setdefault(f"mcp.{node.func.attr}", set())
        # A tool may also be an argument, as in `pool.submit(mcp.time.convert_time, time="09:00")`.
        for called in [node.func, *node.args]:
            if isinstance(called, ast.Attribute) and (server := is_server(called.value)) is not None:
                keys = {word.arg for word in node.keywords if word.arg}
                calls.setdefault(f"mcp.{server}.{called.attr}", set()).update(keys)
words |= {name.removeprefix("mcp_") for name in loaded - defined}
print(json.dumps({"calls": {call: sorted(keys) for call, keys in calls.items()}, "words": sorted(words)}))
