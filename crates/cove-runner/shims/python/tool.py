# The Python library for tools, second part: servers and their tools by name, and the module `mcp`.
#
# A tool is not looked up before it is called: the host knows all names and spellings, and says what is near when
# it knows none. `mcp` is one module with the package of that name from PyPI, if that is installed.
# ruff: noqa: F821 (the rest comes from wire.py and cell.py)

ModuleType, ModuleSpec = type(sys), type(sys.__spec__)
builtins = sys.modules["builtins"]
# What a call gives: a value (`mcp.github`), something to await (`mcp_github`), or that only where a loop runs.
PLAIN, EAGER, EITHER = range(3)
roster = []
# Of what is here, beside servers; and of these what more.py has.
API = {"MCPError", "Record", "call", "runtime", "servers", *(made.__name__ for made in errors.values())}
MORE = {"find", "help", "output", "Result"}


# Servers


def fold(name):
    return "".join(part if part.isalnum() else "_" for part in name.lower())


def known(name, fresh=False):
    """The server of this name or alias, however spelled, or None."""
    if fresh or not roster:
        roster[:] = ask("servers")
    for same in (str, fold):
        for server in roster:
            if same(name) in (same(server["name"]), same(server.get("alias") or "")):
                return server
    return None if fresh or name[:2] == "__" else known(name, fresh=True)


def look_up(name):
    server = known(name)
    if server is None:
        raise unknown_server(name)
    return server


def unknown_server(name):
    names = [server["name"] for server in roster]
    hint = near(name, names) or "see `mcp.servers`, or `mcp.find(\"what you want to do\")`"
    return UnknownServer(f"no server is called `{name}`; there are: {', '.join(names) or 'none'}", hint=hint, server=name)


def near(name, names):
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
        # Others ask for such names to see what this is.
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
        load("more")
        return describe(self._name)

    def __eq__(self, other):
        return isinstance(other, Server) and self._name == other._name

    def __hash__(self):
        return hash(self._name)

    @property
    def resources(self):
        load("more")
        return Resources(self._name)

    @property
    def prompts(self):
        load("more")
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
        """Calls it, and gives the whole result as MCP has it."""
        return self._begin({"arguments": self._collect(positional, arguments), "raw": True})

    def _begin(self, fields):
        fields = {"server": self._server, "tool": self._tool, **fields}
        if self._mode == PLAIN or (self._mode == EITHER and running_loop() is None):
            return value_of(ask("call", **fields))
        load("wait")
        return Pending("call", fields, value_of)

    def _collect(self, positional, arguments):
        given = named(arguments)
        if len(positional) == 1 and isinstance(positional[0], dict):
            return {**positional[0], **given}
        if positional:
            load("more")
            given.update(place(self._server, self._tool, positional))
        return given

    def __repr__(self):
        load("more")
        return describe(self._server, self._tool)

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


def named(arguments):
    """Arguments under the names that a server has for them."""
    # `from_` is how a parameter `from` is written here, and `...` how one is left out.
    given = {}
    for name, value in arguments.items():
        if value is not ...:
            given[name[:-1] if name[-1:] == "_" and name[:-1] in KEYWORDS else name] = value
    return given


def running_loop():
    asyncio = sys.modules.get("_asyncio") or sys.modules.get("asyncio.events")
    return asyncio and asyncio._get_running_loop()


def value_of(answer):
    """The value of a call: what the host found in the result, or all of it if there is more than text."""
    if "value" in answer:
        return answer["value"]
    if isinstance(answer.get("rich"), dict):
        load("more")
        return Result(answer["rich"])
    if "raw" in answer:
        return answer["raw"]
    raise garbage()


def call(server, tool, arguments=None, raw=False, timeout=None):
    """Calls a tool by name. `raw` gives the result as MCP has it, and `timeout` is in seconds."""
    fields = {"server": str(server), "tool": str(tool), "arguments": {} if arguments is None else arguments}
    if isinstance(server, Server):
        fields["server"] = server._name
    if not isinstance(fields["arguments"], dict):
        raise BadArguments("the arguments of a call are a dict", server=fields["server"], tool=fields["tool"])
    if raw:
        fields["raw"] = True
    if timeout is not None:
        fields["timeout"] = timeout
    return value_of(ask("call", **fields))


# Names in cells


def offer(wanted):
    """A cell begins that uses these names, which nobody has defined."""
    for name, value in (("mcp", mcp), ("mcp_servers", servers), ("LOADED_MCP_SERVERS", LOADED)):
        builtins.__dict__.setdefault(name, value)
    # Given as builtins, so that every variable, and what is imported, comes first.
    names = [name for name in wanted if name not in builtins.__dict__ and (name[:4] == "mcp_" or not importable(name))]
    for name in names:
        try:
            server = known(name[4:] if name[:4] == "mcp_" else name)
        except MCPError:
            # Python says that there is no such name, and a call would say why.
            return
        if server is not None and name[:4] == "mcp_":
            builtins.__dict__[name] = Server(server["name"], EAGER)
        elif server is not None and name in (server["alias"], identifier(server["name"])):
            builtins.__dict__[name] = Server(server["name"], PLAIN)


def importable(name):
    if name in getattr(sys, "stdlib_module_names", sys.builtin_module_names) or name in sys.modules:
        return True
    for one in sys.meta_path:
        try:
            found = type(one).__name__ != "Finder" and one.find_spec(name, None)
        except Exception:
            continue
        # A folder is none, though Python would import it.
        if found and found.origin is not None:
            return True
    return False


class Names:
    """The names of all servers there are, each time anew."""

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
        return known(name) is not None

    def keys(self):
        return LOADED

    def __dir__(self):
        return [server["alias"] for server in ask("servers")]

    def __repr__(self):
        load("more")
        return roster_text()


class ServerModule(ModuleType):
    """`mcp.servers.NAME`: its tools are functions, and TOOLS and TOOL_MAP say which there are."""

    def __getattr__(self, name):
        if name == "__all__":
            # What hides a builtin has to be asked for by name, and so has what would be this module's own.
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

    def __getattr__(self, name):
        if name in MORE:
            load("more")
            self.__dict__[name] = globals()[name]
            return self.__dict__[name]
        if name == "__all__":
            return sorted(API | MORE)
        if name == "__path__":
            return real_path()
        if name == "McpError" and name not in (package or ()):
            # As many write it. The package of that name may have another one.
            return MCPError
        if f"mcp.{name}" in sys.modules:
            return sys.modules[f"mcp.{name}"]
        error = AttributeError(name)
        if name[:1] != "_":
            try:
                server = known(name)
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
        return sorted({*API, *MORE, *(server["alias"] for server in ask("servers"))})

    def __repr__(self):
        return "<mcp: tools of other servers; see mcp.help(), mcp.find(\"what to do\"), mcp.servers>"


class Runtime(ModuleType):
    """Servers and tools as plain lists."""

    def __getattr__(self, name):
        load("more")
        if name in RUNTIME:
            return RUNTIME[name]
        if name == "__all__":
            return sorted(RUNTIME)
        raise AttributeError(f"mcp.runtime has no `{name}`; it has {', '.join(sorted(RUNTIME))}")

    def __dir__(self):
        return self.__all__


# The package of PyPI

package = None


def real_path():
    for one in sys.meta_path:
        found = type(one).__name__ != "Finder" and one.find_spec("mcp", None)
        if found and found.submodule_search_locations and found.origin:
            return list(found.submodule_search_locations)
    return []


def from_package(name):
    """What the package of that name from PyPI has, as a tuple of one, or None."""
    global package
    if package is None:
        found = real_path()
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
    """Gives the import system a module that is made already."""

    def __init__(self, module):
        self.module = module

    def create_module(self, spec):
        return self.module

    def exec_module(self, module):
        pass


def find_module(name):
    """What the Finder of cell.py gives the import system for one of our names, or None."""
    made = {"mcp": mcp, "mcp.servers": servers, "mcp.runtime": runtime}.get(name)
    if made is None and name.startswith("mcp.servers.") and name.count(".") == 2:
        server = known(name[12:])
        if server is None:
            error = unknown_server(name[12:])
            raise ModuleNotFoundError(f"{error}", name=name)
        made = ServerModule(name, ServerModule.__doc__)
        made.__dict__["_server"] = server["name"]
    if made is None:
        return None
    return ModuleSpec(name, Loader(made), origin="cove", is_package=name in ("mcp", "mcp.servers"))


LOADED = Names()
mcp, servers, runtime = Mcp("mcp", Mcp.__doc__), Servers("mcp.servers"), Runtime("mcp.runtime")
servers.__dict__["__path__"] = []
for made in (mcp, servers, runtime):
    made.__spec__ = find_module(made.__name__)
    made.__package__ = "mcp"
    sys.modules[made.__name__] = made
mcp.__dict__.update({"MCPError": MCPError, "Record": Record, "call": call, "servers": servers, "runtime": runtime})
mcp.__dict__.update({made.__name__: made for made in errors.values()})
