# The Python library for tools, fourth part: finding tools, results that are more than text, and what is rare.
# ruff: noqa: F821 (the rest comes from wire.py, tool.py and cell.py)

from binascii import Error as NotBase64
from binascii import a2b_base64

# Lines of a list of tools that is shown as text.
SHOWN = 50


class Text(str):
    """A text that is shown as it is."""

    __slots__ = ()

    def __repr__(self):
        return str(self)


# Finding


class Found:
    """What a search found: shown as signatures to paste, and a list of objects."""

    __module__ = "mcp"

    def __init__(self, answer):
        self.tools, self.total, self.hint = answer["tools"], answer.get("total"), answer.get("hint")

    def __iter__(self):
        return iter(self.tools)

    def __len__(self):
        return len(self.tools)

    def __getitem__(self, at):
        return self.tools[at]

    def __repr__(self):
        lines = [entry(tool) for tool in self.tools] or ["nothing was found"]
        if isinstance(self.total, int) and self.total > len(self.tools):
            lines.append(f"# {len(self.tools)} of {self.total} tools that match")
        return "\n".join(lines + ([f"# {self.hint}"] if self.hint else []))


def entry(tool):
    signature = tool.get("signature") or tool.get("python") or tool.get("name") or tool.get("tool")
    about = first_sentence(tool.get("description") or "")
    return f"{signature}\n    # {about}" if about else signature


def first_sentence(text):
    line = text.strip().partition("\n")[0]
    end = line.find(". ")
    line = line[: end + 1] if end > 0 else line
    return line if len(line) <= 200 else line[:199] + "…"


def find(query, limit=5):
    """Searches the tools of all servers. The result shows signatures to paste, and is a list of objects."""
    return Found(ask("find", query=query, limit=limit, language="python"))


def help(topic=None):
    """The manual; or what there is to know of a server, or of a tool of it."""
    if topic is None:
        return Text(ask("help"))
    return Text(repr(topic if isinstance(topic, (Server, Tool)) else Server(look_up(topic)["name"], PLAIN)))


def output(handle):
    """The whole output of an earlier cell that was too long to be shown, by the handle that was shown."""
    return ask("output", handle=handle)["text"]


def describe(server, tool=None):
    tools = ask("tools", server=server)
    if tool is not None:
        wanted = spelled(tool, tools)
        return entry(wanted) if wanted else f"{server} has no tool `{tool}`"
    lines = [f"# {server}: {len(tools)} tools"] + [entry(one) for one in tools[:SHOWN]]
    return "\n".join(lines + ([f"# … and {len(tools) - SHOWN} more"] if len(tools) > SHOWN else []))


def roster_text():
    lines = []
    for server in ask("servers"):
        tools = "" if server.get("tools") is None else f"{server['tools']} tools, "
        about = first_sentence(server.get("description") or "")
        lines.append(f"{server['name']} ({tools}{server['state']})" + (f": {about}" if about else ""))
    return "\n".join(lines) or "no servers are configured"


# Spelling


def spelled(name, tools):
    """The tool of this name: as the server writes it, or as it is written here, or with other dashes."""
    for same in (lambda tool: tool["name"] == name, lambda tool: tool["alias"] == name):
        found = [tool for tool in tools if same(tool)]
        if found:
            return found[0]
    found = [tool for tool in tools if fold(tool["name"]) == fold(name)]
    return found[0] if len(found) == 1 else None


def place(server, name, positional):
    """Arguments that were given without names, where there is one way to understand them."""
    tool = spelled(name, ask("tools", server=server))
    if tool is None:
        # The call itself says what there is.
        return {}
    known = tool["input_schema"].get("properties") or {}
    required = [one for one in tool["input_schema"].get("required") or () if one in known]
    for only in (required, list(known)):
        if len(positional) == len(only) == 1:
            return {only[0]: positional[0]}
    hint = f"give parameters by name, or one dict of them: {tool.get('python') or ', '.join(known)}"
    message = f"{server}.{tool['name']} was given {len(positional)} arguments without names"
    raise BadArguments(message, hint=hint, server=server, tool=tool["name"])


# Results


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
    """A result that is more than text: `text`, `images`, `audio`, `resources`; `content` and `raw` as MCP has it."""

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
        """Writes the first image, or sound, or file of the result; else its text."""
        blobs = [*self.images, *self.audio, *(one for one in self.resources if isinstance(one, Blob))]
        if blobs:
            return blobs[0].save(path)
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.text)
        return path

    def _show_(self):
        """What to show when it is the value of a cell: a text, and images."""
        return self._lines(self.audio), [image.bytes for image in self.images]

    def _lines(self, blobs):
        return "\n".join([*filter(None, [self.text]), *map(repr, blobs), *map(repr, self.resources)])

    def __repr__(self):
        return self._lines([*self.images, *self.audio])


def content_of(content):
    """What a resource holds: text, JSON if it says so, or bytes."""
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
    """A list that also has `templates`, of resources that are made when they are read."""

    templates = ()


class Resources:
    def __init__(self, server):
        self._server = server

    def list(self):
        answer = ask("resources", server=self._server)
        found = Listing(answer["resources"])
        found.templates = answer.get("templates") or []
        return found

    def read(self, uri):
        """The text of a resource, or the value if it is JSON, or `.bytes`; a list if there are several."""
        contents = [content_of(one) for one in ask("read_resource", server=self._server, uri=uri)["contents"]]
        return contents[0] if len(contents) == 1 else contents

    __call__ = list


class Prompts:
    def __init__(self, server):
        self._server = server

    def list(self):
        return ask("prompts", server=self._server)["prompts"]

    def get(self, name, /, *positional, **arguments):
        if len(positional) > 1 or not isinstance([*positional, {}][0], dict):
            raise BadArguments("the arguments of a prompt are given by name, or as one dict", server=self._server)
        arguments = {**(positional[0] if positional else {}), **named(arguments)}
        # In MCP all of them are strings.
        texts = {key: one if isinstance(one, str) else write_json(one) for key, one in arguments.items()}
        return ask("prompt", server=self._server, name=name, arguments=texts)

    __call__ = list


# mcp.runtime: the names that other servers of this kind have, of all servers, started or not


def check(name):
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
        raise BadArguments(f'`detail` is {detail!r}, and must be "summary" or "full"')


def discovered_servers(detailed=False):
    """The names of all servers; or objects with their descriptions."""
    found = ask("servers")
    if not detailed:
        return tuple(server["name"] for server in found)
    return tuple(Record(name=server["name"], description=server.get("description")) for server in found)


def list_servers_sync():
    """The names of all servers."""
    return discovered_servers()


def list_tools_sync(server):
    """The tools of a server, with their schemas."""
    return summary(ask("tools", server=check(server)))


def describe_server(name):
    """A server and its tools."""
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
    """All servers and their tools. One whose tools are not known yet has none here."""
    found = []
    for name in discovered_servers():
        try:
            found.append(describe_server(name))
        except MCPError as error:
            server = look_up(name)
            found.append(Record(name=name, alias=server["alias"], tools=[], cwd=None, error=str(error)))
    return tuple(found)


def documents(server, tools, tool, detail):
    if tool is None:
        return [document(server, one, detail) for one in tools]
    wanted = spelled(tool, tools)
    if wanted is None:
        names = [one["alias"] for one in tools]
        message = f"{server['name']} has no tool `{tool}`; it has {', '.join(names[:SHOWN]) or 'none'}"
        raise UnknownTool(message, hint=near(tool, names), server=server["name"], tool=tool)
    return [document(server, wanted, detail)]


def query_tool_docs_sync(server, tool=None, detail="summary"):
    """What is known of a server's tools, or of one of them; a list in any case."""
    check_detail(detail)
    server = look_up(server)
    return documents(server, ask("tools", server=server["name"]), tool, detail)


def search_tool_docs_sync(query, *, limit=5, detail="summary"):
    """What is known of the tools that a search finds."""
    check_detail(detail)
    found = []
    for one in ask("find", query=query, limit=limit, language="python")["tools"]:
        server = look_up(one["server"])
        if detail == "full":
            found += documents(server, ask("tools", server=server["name"]), one["tool"], detail)
        else:
            alias = identifier(one["tool"])
            if alias != one["tool"]:
                # Two names may come to the same.
                alias = spelled(one["tool"], ask("tools", server=server["name"]))["alias"]
            tool = {"name": one["tool"], "alias": alias, "description": one.get("description")}
            found.append(document(server, {**tool, "python": one.get("signature")}, detail))
    return found


def capability_summary():
    """The manual."""
    return Text(ask("help"))


# Their twins to be awaited. Those that need several answers ask for them one after another.


async def list_servers():
    """The names of all servers."""
    load("wait")
    found = await Pending("servers", {}, list)
    return tuple(server["name"] for server in found)


async def list_tools(server):
    """The tools of a server, with their schemas, and these also under the names that MCP has for them."""
    load("wait")
    tools = await Pending("tools", {"server": check(server)}, list)
    found = []
    for tool, one in zip(tools, summary(tools)):
        one["inputSchema"] = tool["input_schema"]
        if tool.get("output_schema") is not None:
            one["outputSchema"] = tool["output_schema"]
        found.append(one)
    return tuple(found)


async def query_tool_docs(server, tool=None, detail="summary"):
    """What is known of a server's tools: a list; or of one of them: an object."""
    load("wait")
    check_detail(detail)
    server = look_up(server)
    tools = await Pending("tools", {"server": server["name"]}, list)
    found = documents(server, tools, tool, detail)
    return found if tool is None else found[0]


async def search_tool_docs(query, *, limit=5, detail="summary"):
    """What is known of the tools that a search finds."""
    return search_tool_docs_sync(query, limit=limit, detail=detail)


def call_tool(server, tool, arguments=None, raw=False):
    """Calls a tool by name; to be awaited. `raw` gives the result as MCP has it."""
    load("wait")
    fields = {"server": check(server), "tool": tool, "arguments": dict(arguments or {})}
    return Pending("call", {**fields, "raw": True} if raw else fields, value_of)


RUNTIME = {
    made.__name__: made
    for made in (
        *(discovered_servers, list_servers, list_servers_sync, list_tools, list_tools_sync, describe_server),
        *(list_loaded_server_metadata, query_tool_docs, query_tool_docs_sync, search_tool_docs),
        *(search_tool_docs_sync, call_tool, capability_summary, MCPError),
    )
}
