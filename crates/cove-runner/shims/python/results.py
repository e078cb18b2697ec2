# The Python library for tools, fourth part: search, results that are more than text, resources, prompts, log
# messages, and `mcp.runtime`.
# ruff: noqa: F821 (other globals come from wire.py, mcp_module.py and cell.py)

from binascii import Error as NotBase64
from binascii import a2b_base64

# How many tools a list shows as text.
MAX_LISTED = 50


class Text(str):
    """A text that is shown without quotes."""

    __slots__ = ()

    def __repr__(self):
        return str(self)


# Search


class SearchResult:
    """The tools that a search found: a list of objects, which shows signatures to paste."""

    __module__ = "mcp"

    def __init__(self, answer):
        self.tools, self.total, self.hint = answer["tools"], answer.get("total"), answer.get("hint")
        self.also, self.servers = answer.get("also") or [], answer.get("servers") or []

    def __iter__(self):
        return iter(self.tools)

    def __len__(self):
        return len(self.tools)

    def __getitem__(self, at):
        return self.tools[at]

    def __repr__(self):
        lines = self.servers or [entry(tool) for tool in self.tools] or ["nothing found"]
        if self.also:
            lines = lines + ["# also: " + ", ".join(self.also)]
        if isinstance(self.total, int) and self.total > len(self.tools):
            lines = lines + [f"# {len(self.tools)} of {self.total} matches"]
        return "\n".join(lines + ([f"# {self.hint}"] if self.hint else []))


def entry(tool):
    """Returns the signature of a tool with the comment that belongs below it."""
    comment = tool.get("comment")
    signature = tool.get("signature") or tool.get("tool")
    return f"{signature}\n{comment}" if comment else signature


def first_sentence(text):
    line = text.strip().partition("\n")[0]
    end = line.find(". ")
    line = line[: end + 1] if end > 0 else line
    return line if len(line) <= 200 else line[:199] + "…"


def find(query="", limit=5):
    """Searches the tools of all servers. Returns a list of objects, which shows signatures to paste, or the servers."""
    return SearchResult(ask("find", query=query, limit=limit, language="python"))


def help(topic=None):
    """Returns the manual, or the description of a server, or everything about a tool: `mcp.help("server.tool")`."""
    if topic is None:
        return Text(ask("help"))
    if isinstance(topic, Tool):
        topic = f"{topic._server}.{topic._tool}"
    elif isinstance(topic, Server):
        topic = topic._name
    return Text(ask("help", topic=f"{topic}", language="python"))


def output(handle):
    """Returns the whole output of an earlier cell that was too long to show, by its handle."""
    return ask("output", handle=handle)["text"]


class ApprovedServers(list):
    """Servers that the operator approved and that are not configured."""

    __module__ = "mcp"

    def __init__(self, answer):
        super().__init__(answer["servers"])
        self.total, self.hint = answer["total"], answer["hint"]

    def __repr__(self):
        lines = []
        for server in self:
            needs = "".join(f", needs {need}" for need in server["needs"])
            about = f": {server['description']}" if server["description"] else ""
            lines.append(f"{server['name']} {server['version']} ({server['kinds']}{needs}){about}")
        return "\n".join(lines + ([f"# {self.hint}"] if self.hint else []))


class LogMessages(list):
    """Log messages, oldest first. `dropped` older ones were not kept."""

    dropped = 0


def logs(server):
    """Returns the latest log messages of a server during calls of this session: `level`, `logger`, `data`."""
    answer = ask("logs", server=name_of(server))
    found = LogMessages(answer["logs"])
    found.dropped = answer.get("dropped", 0)
    return found


def describe(topic):
    """Returns the text that shows a server or a tool. It never fails for a name that does not exist."""
    try:
        return help(topic)
    except (UnknownServer, UnknownTool) as error:
        return f"{error}"


def count_tools(count):
    return "1 tool" if count == 1 else f"{count} tools"


def roster_text():
    """Returns the text that shows all servers."""
    lines = []
    for server in ask("servers"):
        tools = "" if server.get("tools") is None else f"{count_tools(server['tools'])}, "
        about = first_sentence(server.get("description") or "")
        lines.append(f"{server['name']} ({tools}{server['state']})" + (f": {about}" if about else ""))
    return "\n".join(lines) or "no servers are configured"


# Spelling


def find_tool(name, tools):
    """Returns the tool with this name: the server's name, the alias in Python, or another spelling. Else None."""
    for same in (lambda tool: tool["name"] == name, lambda tool: tool["alias"] == name):
        found = [tool for tool in tools if same(tool)]
        if found:
            return found[0]
    found = [tool for tool in tools if fold(tool["name"]) == fold(name)]
    return found[0] if len(found) == 1 else None


def name_positional(server, name, positional):
    """Returns arguments without names under the only name they can have. Fails if that is not clear."""
    tool = find_tool(name, ask("tools", server=server))
    if tool is None:
        # The call itself will report that there is no such tool.
        return {}
    known = tool["input_schema"].get("properties") or {}
    required = [one for one in tool["input_schema"].get("required") or () if one in known]
    for only in (required, list(known)):
        if len(positional) == len(only) == 1:
            return {only[0]: positional[0]}
    hint = f"give parameters by name, or one dict of them: {tool.get('python') or ', '.join(known)}"
    count = "an argument without a name" if len(positional) == 1 else f"{len(positional)} arguments without names"
    message = f"{server}.{tool['name']} was called with {count}"
    raise BadArguments(message, hint=hint, server=server, tool=tool["name"])


# Results


def with_method(record, name, method):
    """Returns the value of a key that is named like a method. Where its type allows that, calling it calls the method."""
    value = dict.__getitem__(record, name)
    base = type(value)
    if base not in (Record, list, str, int, float):
        return value
    if base not in callable_kinds:
        members = {
            "__call__": lambda self, *args, **named: self._method(*args, **named),
            "__reduce__": lambda self: (base, (base(self),)),
            "__module__": base.__module__,
        }
        callable_kinds[base] = type(base.__name__, (base,), members)
    made = callable_kinds[base](value)
    object.__setattr__(made, "_method", method)
    if base in (Record, list):
        # `x.items.append(1)` has to change `x["items"]`.
        dict.__setitem__(record, name, made)
    return made


callable_kinds = {}


class Blob:
    """Bytes of a result: an image, a sound, a file."""

    __module__ = "mcp"

    def __init__(self, text, mime, uri=None):
        self.mime, self.uri = mime, uri
        try:
            self.bytes = a2b_base64(text or "")
        except (NotBase64, TypeError, ValueError):
            self.bytes = b""

    def save(self, path):
        with open(path, "wb") as file:
            file.write(self.bytes)
        return path

    def _repr_png_(self):
        return self.bytes if str(self.mime).startswith("image/") else None

    def __len__(self):
        return len(self.bytes)

    def __bytes__(self):
        return self.bytes

    def __repr__(self):
        return f"<{self.mime or 'bytes'}, {len(self.bytes)} bytes>"


class Result:
    """A result that is more than text: `text`, `images`, `audio`, `resources`; `content` and `raw` are as in MCP."""

    __module__ = "mcp"

    def __init__(self, answer):
        content = answer.get("content")
        self.text, self.content = str(answer.get("text") or ""), content if isinstance(content, list) else []
        self.raw = Record({**answer, "content": self.content})
        self.raw.pop("text", None)
        self.images = [Blob(one.get("data"), one.get("mimeType")) for one in self._of("image")]
        self.audio = [Blob(one.get("data"), one.get("mimeType")) for one in self._of("audio")]
        self.resources = [content_of(one.get("resource")) for one in self._of("resource")] + self._of("resource_link")

    def _of(self, kind):
        return [one for one in self.content if isinstance(one, dict) and one.get("type") == kind]

    def save(self, path):
        """Writes the first image, sound or file of the result to a path; if there is none, the text."""
        blobs = [*self.images, *self.audio, *(one for one in self.resources if isinstance(one, Blob))]
        if blobs:
            return blobs[0].save(path)
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.text)
        return path

    def _show_(self):
        """Returns the text and the images to show when it is the value of a cell."""
        return self._lines(self.audio), [image.bytes for image in self.images]

    def _lines(self, blobs):
        return "\n".join([*filter(None, [self.text]), *map(repr, blobs), *map(repr, self.resources)])

    def __repr__(self):
        return self._lines([*self.images, *self.audio])


def content_of(content):
    """Returns the content of a resource: text, a value if its type is JSON, or bytes."""
    if not isinstance(content, dict):
        return None
    if isinstance(content.get("blob"), str):
        return Blob(content["blob"], content.get("mimeType"), content.get("uri"))
    text = content.get("text")
    if str(content.get("mimeType")).partition(";")[0].endswith("json"):
        try:
            return scan(text.strip(), 0)[0]
        except (ValueError, StopIteration, RecursionError, AttributeError):
            pass
    return text


class Listing(list):
    """A list of resources, with `templates` for those that are made when they are read."""

    templates = ()


def as_texts(arguments):
    """Returns arguments of a prompt or a template as MCP has them: all are strings."""
    return {key: one if isinstance(one, str) else write_json(one) for key, one in arguments.items()}


class Completions(list):
    """Values for an argument, with `has_more` and `total` as the server says."""

    has_more, total = False, None


def complete(server, reference, argument, value, context):
    """Asks a server which values an argument may have."""
    given = {"argument": argument, "value": f"{value}", "context": as_texts(context)}
    answer = ask("complete", server=server, **reference, **given)
    found = Completions(answer["values"])
    found.has_more, found.total = answer.get("has_more", False), answer.get("total")
    return found


class Subscription:
    """Changes of a resource. It ends with the cell, or with `close()`."""

    __module__ = "mcp"

    def __init__(self, server, uri):
        answer = ask("subscribe", server=server, uri=uri)
        self.uri, self._number, self._seen = uri, answer["subscription"], answer.get("changes") or 0

    def wait(self, timeout=60):
        """Waits for a change. Returns how many there were since the last wait, 0 if none came in `timeout` seconds."""
        count = ask("changes", subscription=self._number, seen=self._seen, timeout=timeout)["changes"]
        found, self._seen = count - self._seen, count
        return found

    def close(self):
        if self._number is not None:
            number, self._number = self._number, None
            ask("unsubscribe", subscription=number)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __repr__(self):
        return f"<subscription to {self.uri}>"


class Resources:
    def __init__(self, server):
        self._server = server

    def subscribe(self, uri):
        """Returns the changes of a resource, to `wait` for."""
        return Subscription(self._server, uri)

    def complete(self, template, argument, value="", /, **context):
        """Returns values for an argument of a template that begin with `value`."""
        return complete(self._server, {"resource": template}, argument, value, context)

    def list(self):
        answer = ask("resources", server=self._server)
        found = Listing(answer["resources"])
        found.templates = answer.get("templates") or []
        return found

    def read(self, uri):
        """Returns the text of a resource, its value if it is JSON, or its bytes; a list if there are several."""
        contents = [content_of(one) for one in ask("read_resource", server=self._server, uri=uri)["contents"]]
        return contents[0] if len(contents) == 1 else contents

    __call__ = list


class Prompts:
    def __init__(self, server):
        self._server = server

    def complete(self, name, argument, value="", /, **context):
        """Returns values for an argument of a prompt that begin with `value`. `context` has other arguments."""
        return complete(self._server, {"prompt": name}, argument, value, context)

    def list(self):
        return ask("prompts", server=self._server)["prompts"]

    def get(self, name, /, *positional, **arguments):
        if len(positional) > 1 or not isinstance([*positional, {}][0], dict):
            raise BadArguments("the arguments of a prompt must be given by name, or as one dict", server=self._server)
        arguments = {**(positional[0] if positional else {}), **rename_arguments(arguments)}
        return ask("prompt", server=self._server, name=name, arguments=as_texts(arguments))

    __call__ = list


# mcp.runtime: the functions that similar MCP servers offer, for all servers, started or not


def server_name(name):
    return look_up(name)["name"]


def summary(tools):
    wanted = "name", "alias", "description", "input_schema"
    return tuple(Record({key: tool.get(key) for key in wanted}) for tool in tools)


def document(server, tool, detail):
    found = Record(server=server["name"], serverAlias=server["alias"], tool=tool["name"], toolAlias=tool["alias"])
    if tool.get("description"):
        found["description"] = tool["description"]
    if tool.get("python"):
        found["signature"] = tool["python"]
    if detail == "full":
        found["inputSchema"] = tool.get("input_schema")
        if tool.get("output_schema") is not None:
            found["outputSchema"] = tool["output_schema"]
    return found


def check_detail(detail):
    if detail not in ("summary", "full"):
        raise BadArguments(f'`detail` must be "summary" or "full", not {detail!r}')


def discovered_servers(detailed=False):
    """Returns the names of all servers, or objects with their descriptions."""
    found = ask("servers")
    if not detailed:
        return tuple(server["name"] for server in found)
    return tuple(Record(name=server["name"], description=server.get("description")) for server in found)


def list_servers_sync():
    """Returns the names of all servers."""
    return discovered_servers()


def list_tools_sync(server):
    """Returns the tools of a server, with their schemas."""
    return summary(ask("tools", server=server_name(server)))


def describe_server(name):
    """Returns a server and its tools."""
    server = look_up(name)
    return Record(
        name=server["name"],
        alias=server["alias"],
        description=server.get("description"),
        state=server.get("state"),
        tools=list(summary(ask("tools", server=server["name"]))),
        cwd=None,
    )


def list_loaded_server_metadata():
    """Returns all servers and their tools. A server whose tools are unknown has none here."""
    found = []
    for name in discovered_servers():
        try:
            found.append(describe_server(name))
        except MCPError as error:
            server = look_up(name)
            found.append(Record(name=name, alias=server["alias"], tools=[], cwd=None, error=str(error)))
    return tuple(found)


def documents(server, tools, tool, detail):
    """Returns the descriptions of all tools of a server, or of one of them."""
    if tool is None:
        return [document(server, one, detail) for one in tools]
    wanted = find_tool(tool, tools)
    if wanted is None:
        names = [one["alias"] for one in tools]
        message = f"{server['name']} has no tool `{tool}`; available: {', '.join(names[:MAX_LISTED]) or 'none'}"
        raise UnknownTool(message, hint=suggest(tool, names), server=server["name"], tool=tool)
    return [document(server, wanted, detail)]


def query_tool_docs_sync(server, tool=None, detail="summary"):
    """Returns a list of descriptions: of all tools of a server, or of one."""
    check_detail(detail)
    server = look_up(server)
    return documents(server, ask("tools", server=server["name"]), tool, detail)


def search_tool_docs_sync(query, *, limit=5, detail="summary"):
    """Returns descriptions of the tools that a search finds."""
    check_detail(detail)
    found = []
    for one in ask("find", query=query, limit=limit, language="python")["tools"]:
        server = look_up(one["server"])
        if detail == "full":
            found += documents(server, ask("tools", server=server["name"]), one["tool"], detail)
        else:
            alias = identifier(one["tool"])
            if alias != one["tool"]:
                # Two names may have the same identifier, and then different aliases.
                alias = find_tool(one["tool"], ask("tools", server=server["name"]))["alias"]
            tool = {"name": one["tool"], "alias": alias, "description": one.get("description")}
            found.append(document(server, {**tool, "python": one.get("signature")}, detail))
    return found


def capability_summary():
    """Returns the manual."""
    return Text(ask("help"))


# The same functions, to be awaited. Those that need several answers ask for them one after another.


async def list_servers():
    """Returns the names of all servers."""
    load("pending_calls")
    found = await PendingCall("servers", {}, list)
    return tuple(server["name"] for server in found)


async def list_tools(server):
    """Returns the tools of a server, with their schemas, also under MCP's names for them."""
    load("pending_calls")
    tools = await PendingCall("tools", {"server": server_name(server)}, list)
    found = []
    for tool, one in zip(tools, summary(tools)):
        one["inputSchema"] = tool["input_schema"]
        if tool.get("output_schema") is not None:
            one["outputSchema"] = tool["output_schema"]
        found.append(one)
    return tuple(found)


async def query_tool_docs(server, tool=None, detail="summary"):
    """Returns a list of descriptions of all tools of a server, or one description."""
    load("pending_calls")
    check_detail(detail)
    server = look_up(server)
    tools = await PendingCall("tools", {"server": server["name"]}, list)
    found = documents(server, tools, tool, detail)
    return found if tool is None else found[0]


async def search_tool_docs(query, *, limit=5, detail="summary"):
    """Returns descriptions of the tools that a search finds."""
    return search_tool_docs_sync(query, limit=limit, detail=detail)


def call_tool(server, tool, arguments=None, raw=False):
    """Calls a tool by name, to be awaited. With `raw` it returns the result as MCP defines it."""
    load("pending_calls")
    fields = {"server": server_name(server), "tool": tool, "arguments": dict(arguments or {})}
    return PendingCall("call", {**fields, "raw": True} if raw else fields, value_of)


RUNTIME = {
    made.__name__: made
    for made in (
        *(discovered_servers, list_servers, list_servers_sync, list_tools, list_tools_sync, describe_server),
        *(list_loaded_server_metadata, query_tool_docs, query_tool_docs_sync, search_tool_docs),
        *(search_tool_docs_sync, call_tool, capability_summary, MCPError),
    )
}
