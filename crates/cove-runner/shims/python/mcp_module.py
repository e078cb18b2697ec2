# The Python library for tools, second part: servers and their tools by name, and the module `mcp`.
#
# A tool is not looked up before the call: the host knows all names and spellings, and suggests others for an unknown
# one. If the package `mcp` from PyPI is installed, this module and the package appear as one module.
# ruff: noqa: F821 (other globals come from wire.py and cell.py)

ModuleType, ModuleSpec = type(sys), type(sys.__spec__)
builtins = sys.modules["builtins"]
# What a call returns: a value (`mcp.github`), something to await (`mcp_github`), or that only while a loop runs.
PLAIN, EAGER, EITHER = range(3)
# The servers, as the host listed them last.
roster = []
# The names in `mcp` beside servers, and those of them that are in results.py.
API = {"MCPError", "Record", "call", "runtime", "servers", *(made.__name__ for made in errors.values())}
API_IN_RESULTS = {"find", "help", "logs", "output", "Result"}


# Servers


def fold(name):
    """Returns a name in lower case with `_` for punctuation, to compare spellings."""
    return "".join(part if part.isalnum() else "_" for part in name.lower())


def find_server(name, fresh=False):
    """Returns the server with this name or alias, however spelled, or None."""
    if fresh or not roster:
        roster[:] = ask("servers")
    for same in (str, fold):
        for server in roster:
            if same(name) in (same(server["name"]), same(server.get("alias") or "")):
                return server
    return None if fresh or name[:2] == "__" else find_server(name, fresh=True)


def look_up(name):
    """Returns the server with this name. Fails if there is none."""
    server = find_server(name)
    if server is None:
        raise unknown_server(name)
    return server


def unknown_server(name):
    names = [server["name"] for server in roster]
    hint = suggest(name, names) or "see `mcp.servers`, or `mcp.find(\"what you want to do\")`"
    return UnknownServer(f"there is no server `{name}`; available: {', '.join(names) or 'none'}", hint=hint, server=name)


def suggest(name, names):
    """Returns a hint with similar names, or None."""
    from difflib import get_close_matches

    folded = {fold(one): one for one in names}
    found = [folded[one] for one in get_close_matches(fold(name), folded, 3, 0.6)]
    return "did you mean " + " or ".join(f"`{one}`" for one in found) + "?" if found else None


class Server:
    """The tools of a server, as attributes or by `[name]`; and its `resources` and `prompts`."""

    __slots__ = "_name", "_mode"
    __module__ = "mcp"

    def __init__(self, name, mode):
        self._name, self._mode = name, mode

    def __getattr__(self, name):
        # Libraries ask for such names to find out what an object is.
        if name[:2] == "__" or name.startswith(("_repr_", "_ipython_")):
            raise AttributeError(name)
        return Tool(self._name, name, self._mode)

    def __getitem__(self, name):
        return Tool(self._name, name, self._mode)

    def __iter__(self):
        return (Tool(self._name, tool["name"], self._mode) for tool in ask("tools", server=self._name))

    def __contains__(self, name):
        return any(name in (tool["name"], tool["alias"]) for tool in ask("tools", server=self._name))

    def __dir__(self):
        return ["resources", "prompts", *(tool["alias"] for tool in ask("tools", server=self._name))]

    def __repr__(self):
        load("results")
        return str(describe(self))

    def __eq__(self, other):
        return isinstance(other, Server) and self._name == other._name

    def __hash__(self):
        return hash(self._name)

    @property
    def resources(self):
        load("results")
        return Resources(self._name)

    @property
    def prompts(self):
        load("results")
        return Prompts(self._name)


class Tool:
    """A tool, to be called with its parameters by name, or with one dict of them."""

    __slots__ = "_server", "_tool", "_mode"
    __module__ = "mcp"

    def __init__(self, server, tool, mode):
        self._server, self._tool, self._mode = server, tool, mode

    def __call__(self, /, *positional, **arguments):
        return self._begin({"arguments": self._collect(positional, arguments)})

    def raw(self, /, *positional, **arguments):
        """Calls the tool and returns the whole result as MCP defines it."""
        return self._begin({"arguments": self._collect(positional, arguments), "raw": True})

    def _begin(self, fields):
        fields = {"server": self._server, "tool": self._tool, **fields}
        if self._mode == PLAIN or (self._mode == EITHER and running_loop() is None):
            return value_of(ask("call", **fields))
        load("pending_calls")
        return PendingCall("call", fields, value_of)

    def _collect(self, positional, arguments):
        given = rename_arguments(arguments)
        if len(positional) == 1 and isinstance(positional[0], dict):
            return {**positional[0], **given}
        if positional:
            load("results")
            given.update(name_positional(self._server, self._tool, positional))
        return given

    def __repr__(self):
        load("results")
        return str(describe(self))

    @property
    def __name__(self):
        return identifier(self._tool)

    @property
    def __doc__(self):
        return repr(self)

    def __eq__(self, other):
        return isinstance(other, Tool) and (self._server, self._tool) == (other._server, other._tool)

    def __hash__(self):
        return hash((self._server, self._tool))


# Calls


def rename_arguments(arguments):
    """Returns the arguments under the server's names for them."""
    # Python code writes a parameter `from` as `from_`, and passes `...` to leave one out.
    given = {}
    for name, value in arguments.items():
        if value is not ...:
            given[name[:-1] if name[-1:] == "_" and name[:-1] in KEYWORDS else name] = value
    return given


def running_loop():
    asyncio = sys.modules.get("_asyncio") or sys.modules.get("asyncio.events")
    return asyncio and asyncio._get_running_loop()


def value_of(answer):
    """Returns the value of a call: what the host found in the result, or a Result if it is more than text."""
    if "value" in answer:
        value = answer["value"]
        return TextResult(value, answer.get("content"), answer.get("_meta")) if type(value) is str else value
    if isinstance(answer.get("rich"), dict):
        load("results")
        return Result(answer["rich"])
    if "raw" in answer:
        return answer["raw"]
    raise unreadable_answer()


def call(server, tool=None, arguments=None, raw=False, timeout=None, **named):
    """Calls `"server.tool"`, or a tool of a server. `raw` returns the result as MCP defines it, `timeout` is in seconds."""
    if isinstance(server, Tool):
        server, tool, arguments = server._server, server._tool, tool if arguments is None else arguments
    elif tool is None or isinstance(tool, dict):
        arguments = tool if arguments is None else arguments
        server, tool = split_name(server)
    fields = {"server": name_of(server), "tool": str(tool)}
    if arguments is not None and not isinstance(arguments, dict):
        raise BadArguments("the arguments of a call must be a dict", **fields)
    fields["arguments"] = {**(arguments or {}), **rename_arguments(named)}
    if raw:
        fields["raw"] = True
    if timeout is not None:
        fields["timeout"] = timeout
    return value_of(ask("call", **fields))


def name_of(server):
    """Returns the name of a server that code passed by name or as `mcp.SERVER`."""
    return server._name if isinstance(server, Server) else str(server)


def split_name(name):
    """Returns the server and the tool of `server.tool`. Both names may have dots themselves."""
    parts = str(name).split(".")
    for at in range(len(parts) - 1, 0, -1):
        server = find_server(".".join(parts[:at]))
        if server is not None:
            return server["name"], ".".join(parts[at:])
    if len(parts) > 1:
        raise unknown_server(parts[0])
    raise BadArguments('a call needs a tool: `mcp.call("server.tool", {...})`', server=parts[0])


# Names in cells


def define_names(wanted):
    """Defines those of these names that are servers, for a cell that uses them and does not define them."""
    for name, value in (("mcp", mcp), ("mcp_servers", servers), ("LOADED_MCP_SERVERS", LOADED)):
        builtins.__dict__.setdefault(name, value)
    # They become builtins, so that every variable and every import comes first.
    names = [name for name in wanted if name not in builtins.__dict__ and (name[:4] == "mcp_" or not importable(name))]
    for name in names:
        try:
            server = find_server(name[4:] if name[:4] == "mcp_" else name)
        except MCPError:
            # Python will report an undefined name. A call through `mcp` would report this error.
            return
        if server is not None and name[:4] == "mcp_":
            builtins.__dict__[name] = Server(server["name"], EAGER)
        elif server is not None and name in (server["alias"], identifier(server["name"])):
            builtins.__dict__[name] = Server(server["name"], PLAIN)


def importable(name):
    """Returns whether `import name` would find a module."""
    if name in getattr(sys, "stdlib_module_names", sys.builtin_module_names) or name in sys.modules:
        return True
    for one in sys.meta_path:
        try:
            found = type(one).__name__ != "Finder" and one.find_spec(name, None)
        except Exception:
            continue
        # A plain folder does not count, although Python would import it.
        if found and found.origin is not None:
            return True
    return False


class ServerNames:
    """The names of all servers, asked from the host at each use."""

    def _all(self):
        roster[:] = ask("servers")
        return tuple(server["name"] for server in roster)

    def __iter__(self):
        return iter(self._all())

    def __len__(self):
        return len(self._all())

    def __getitem__(self, at):
        return self._all()[at]

    def __eq__(self, other):
        return self._all() == tuple(other)

    __hash__ = None

    def __repr__(self):
        return repr(self._all())


# The modules


class Servers(ModuleType):
    """All servers: by `[name]`, as attributes, as modules to import from, and one after another."""

    __path__ = ()

    def find(self, query="", limit=20):
        """Returns approved servers that are not configured, those with any of these words."""
        load("results")
        return ApprovedServers(ask("find_servers", query=query, limit=limit))

    def request(self, name, why=""):
        """Asks the person to add an approved server. Installs nothing. Returns `status`: `added` or `asked`."""
        return ask("request_server", name=f"{name}", why=f"{why}")

    def __getitem__(self, name):
        return Server(look_up(name)["name"], EITHER)

    def __getattr__(self, name):
        if name[:2] == "__" or name.startswith(("_repr_", "_ipython_")):
            raise AttributeError(name)
        return self[name]

    def __iter__(self):
        return iter(LOADED)

    def __len__(self):
        return len(LOADED)

    def __contains__(self, name):
        return find_server(name) is not None

    def keys(self):
        return LOADED

    def __dir__(self):
        return [server["alias"] for server in ask("servers")]

    def __repr__(self):
        load("results")
        return roster_text()


class ServerModule(ModuleType):
    """`mcp.servers.NAME`: its tools are functions, and TOOLS and TOOL_MAP say which there are."""

    def __getattr__(self, name):
        if name == "__all__":
            # A tool that would hide a builtin or a member of this module has to be imported by name.
            names = [alias for alias in self.TOOL_MAP if alias[:2] != "__" and not hasattr(builtins, alias)]
            return names + ["TOOLS", "TOOL_MAP"]
        if name in ("TOOLS", "TOOL_MAP"):
            tools = ask("tools", server=self.__dict__["_server"])
            return tools if name == "TOOLS" else {tool["alias"]: tool["name"] for tool in tools}
        return getattr(Server(self.__dict__["_server"], EITHER), name)

    def __dir__(self):
        return self.__getattr__("__all__")


class Mcp(ModuleType):
    """Tools of other servers. See `mcp.help()`."""

    def __getitem__(self, name):
        return Server(look_up(name)["name"], PLAIN)

    def __getattr__(self, name):
        if name in API_IN_RESULTS:
            load("results")
            self.__dict__[name] = globals()[name]
            return self.__dict__[name]
        if name == "__all__":
            return sorted(API | API_IN_RESULTS)
        if name == "__path__":
            return package_path()
        if name == "McpError" and name not in (package or ()):
            # A common spelling. The package from PyPI may have a class of its own with this name.
            return MCPError
        if f"mcp.{name}" in sys.modules:
            return sys.modules[f"mcp.{name}"]
        error = AttributeError(name)
        if name[:1] != "_":
            try:
                server = find_server(name)
                if server is not None:
                    return Server(server["name"], PLAIN)
                error = unknown_server(name)
            except MCPError as problem:
                error = problem
        found = from_package(name)
        if found is not None:
            return found[0]
        raise error.with_traceback(None)

    def __dir__(self):
        return sorted({*API, *API_IN_RESULTS, *(server["alias"] for server in ask("servers"))})

    def __repr__(self):
        return "<mcp: tools of other servers; see mcp.help(), mcp.find(\"what to do\"), mcp.servers>"


class Runtime(ModuleType):
    """Servers and tools as plain lists."""

    def __getattr__(self, name):
        load("results")
        if name in RUNTIME:
            return RUNTIME[name]
        if name == "__all__":
            return sorted(RUNTIME)
        raise AttributeError(f"mcp.runtime has no `{name}`; it has {', '.join(sorted(RUNTIME))}")

    def __dir__(self):
        return self.__all__


# The package from PyPI

package = None


def package_path():
    """Returns the search path of the package `mcp` from PyPI, empty if it is not installed."""
    for one in sys.meta_path:
        found = type(one).__name__ != "Finder" and one.find_spec("mcp", None)
        if found and found.submodule_search_locations and found.origin:
            return list(found.submodule_search_locations)
    return []


def from_package(name):
    """Returns a member of the package `mcp` from PyPI as a tuple of one, or None."""
    global package
    if package is None:
        found = package_path()
        if not found or name[:2] == "__":
            return None
        path = found[0] + "/__init__.py"
        with open(path, "rb") as file:
            text = file.read()
        package = {"__name__": "mcp", "__package__": "mcp", "__path__": found, "__file__": path, "__spec__": mcp.__spec__}
        package["__builtins__"] = builtins
        try:
            exec(compile(text, path, "exec"), package)
        except BaseException:
            package = None
            raise
    if name in package:
        return (package[name],)
    if name[:1] != "_":
        try:
            __import__("mcp." + name)
            return (sys.modules["mcp." + name],)
        except ModuleNotFoundError as problem:
            if problem.name != "mcp." + name:
                raise
    return None


class Loader:
    """Gives the import system a module that already exists."""

    def __init__(self, module):
        self.module = module

    def create_module(self, spec):
        return self.module

    def exec_module(self, module):
        pass


def find_module(name):
    """Returns what the Finder of cell.py gives the import system for one of our modules, or None."""
    made = {"mcp": mcp, "mcp.servers": servers, "mcp.runtime": runtime}.get(name)
    if made is None and name.startswith("mcp.servers.") and name.count(".") == 2:
        server = find_server(name[12:])
        if server is None:
            error = unknown_server(name[12:])
            raise ModuleNotFoundError(f"{error}", name=name)
        made = ServerModule(name, ServerModule.__doc__)
        made.__dict__["_server"] = server["name"]
    if made is None:
        return None
    return ModuleSpec(name, Loader(made), origin="cove", is_package=name in ("mcp", "mcp.servers"))


LOADED = ServerNames()
mcp, servers, runtime = Mcp("mcp", Mcp.__doc__), Servers("mcp.servers"), Runtime("mcp.runtime")
servers.__dict__["__path__"] = []
for made in (mcp, servers, runtime):
    made.__spec__ = find_module(made.__name__)
    made.__package__ = "mcp"
    sys.modules[made.__name__] = made
mcp.__dict__.update({"MCPError": MCPError, "Record": Record, "call": call, "servers": servers, "runtime": runtime})
mcp.__dict__.update({made.__name__: made for made in errors.values()})
