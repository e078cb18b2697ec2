# The Python library for tools, first part: values, errors, and the plain way to ask.
#
# Run by cell.py, with the parts that follow (tool.py, wait.py, more.py), in globals of their own: a traceback
# has to tell their frames from those of the shim. Fetched when a cell may need it. What a plain call does not
# need is compiled later, see `load`, and the json module, which takes longer to import than a call, never is.
# ruff: noqa: F821 (`parts` and the builtins, posix among them, come from cell.py; later parts from `load`)
import sys
import _socket
import _thread
from itertools import count
from time import sleep

# What the runner takes and sends at most, the latter with an id besides.
REQUEST, REPLY = 8 << 20, (32 << 20) + 64
# Connections for calls that block, of all threads: the runner has 64 for all processes.
LINES = 32
KEYWORDS = frozenset(
    "False None True and as assert async await break class continue def del elif else except finally for from "
    "global if import in is lambda nonlocal not or pass raise return try while with yield".split()
)
numbers = count(1)
idle, busy = [], set()
Pending = None
loading = _thread.RLock()


def load(part):
    """Compiles a later part when it is first needed. An interrupt may end that; then the next one begins anew."""
    if part in parts:
        with loading:
            if part in parts:
                exec(compile(parts[part], "<mcp>", "exec"), globals())
                del parts[part]


# Values


class Record(dict):
    """An object of a result: `x["title"]` and `x.title`. The methods of dict come first: `x["items"]`."""

    __slots__ = ()
    __module__ = "mcp"

    def __getattr__(self, name):
        if name in self:
            return self[name]
        if name[:2] != "__" and len(self) < 1000:
            for key in self:
                if identifier(str(key)) == name:
                    return self[key]
        known = ", ".join(map(str, list(self)[:20])) or "nothing"
        raise AttributeError(f"this object has no `{name}`; it has {known}")

    def __setattr__(self, name, value):
        self[name] = value

    def __delattr__(self, name):
        if name not in self:
            raise AttributeError(name)
        del self[name]

    def __dir__(self):
        return sorted({*dict.__dir__(self), *(key for key in self if isinstance(key, str))})


def identifier(name):
    """How a name of a server, tool or parameter is written in Python."""
    name = "".join(part if part.isascii() and (part.isalnum() or part == "_") else "_" for part in name)
    if name[:1].isdigit():
        name = "_" + name
    return name + "_" if name in KEYWORDS else name


def plain(value):
    """What is no JSON, as JSON if there is one way to see it so."""
    if Pending is not None and isinstance(value, Pending):
        return value._resolve()
    if isinstance(value, (set, frozenset)):
        return list(value)
    for method in ("__fspath__", "isoformat", "tolist", "model_dump"):
        if hasattr(type(value), method):
            return getattr(value, method)()
    hint = "; use `base64.b64encode(x).decode()`" if isinstance(value, (bytes, bytearray)) else ""
    raise TypeError(f"{type(value).__name__} cannot be written as JSON{hint}")


try:
    from _json import encode_basestring, make_encoder, make_scanner

    class Form:
        strict, object_hook, object_pairs_hook = False, Record, None
        parse_float, parse_int, parse_constant = float, int, float
        memo = {}

    scan = make_scanner(Form)

    def write_json(value):
        # Anew each time: it keeps what it was in when an error left it.
        return "".join(make_encoder({}, plain, encode_basestring, None, ":", ",", False, False, False)(value, 0))

except ImportError:
    import json

    scan = json.JSONDecoder(object_hook=Record, strict=False).raw_decode

    def write_json(value):
        return json.dumps(value, default=plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


# Errors


class MCPError(RuntimeError):
    """A call that did not work. `kind` says why, `hint` what to do; `server` and `tool` are what was called."""

    __module__ = "mcp"
    kind = "internal"
    hint = server = tool = content = structured = code = data = None

    def __init__(self, message="", **fields):
        super().__init__(message)
        self.message = message
        self.__dict__.update(fields)

    def __str__(self):
        text = str(self.message)
        if self.kind == "tool" and self.server:
            text = f"{self.server}.{self.tool}: {text}"
        return f"{text}\nhint: {self.hint}" if self.hint else text


def error_class(name, kind, doc, *bases):
    made = type(name, (MCPError, *bases), {"__module__": "mcp", "__doc__": doc, "kind": kind})
    return kind, made


errors = dict(
    (
        error_class("ToolError", "tool", "The tool itself says that it failed: see `content` and `structured`."),
        # Also what Python expects of an attribute that is not there, so that hasattr() works.
        error_class("UnknownServer", "unknown_server", "No server has this name.", AttributeError),
        error_class("UnknownTool", "unknown_tool", "The server has no such tool.", AttributeError),
        error_class("BadArguments", "bad_arguments", "The tool does not take these arguments; nothing was sent."),
        error_class("Refused", "refused", "This session may not call that."),
        error_class("ServerUnavailable", "unavailable", "The server could not be started or reached."),
        error_class("ServerGone", "gone", "The server died in the call, which may have had effects."),
        error_class("CallTimeout", "timeout", "The server did not answer in time."),
        error_class("ProtocolError", "protocol", "The server's error of the protocol: see `code` and `data`."),
        error_class("LimitExceeded", "limit", "Too many calls, or too large."),
    )
)
# What a question's answer has at least.
FORMS = {
    **{"find": ("tools", list), "resources": ("resources", list), "read_resource": ("contents", list)},
    **{"prompts": ("prompts", list), "prompt": ("messages", list), "output": ("text", str)},
}
ToolError, UnknownServer, UnknownTool, BadArguments, Refused = list(errors.values())[:5]
ServerUnavailable, ServerGone, CallTimeout, ProtocolError, LimitExceeded = list(errors.values())[5:]


def failure(error):
    """The exception for the `error` of a reply."""
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        raise garbage()
    fields = dict(error)
    kind = str(fields.get("kind"))
    return errors.get(kind, MCPError)(fields.pop("message"), **{**fields, "kind": kind})


def garbage():
    hint = "this is a fault of Cove's, or code in this sandbox has replaced the socket in `COVE_MCP`"
    return MCPError("the host's answer cannot be read", hint=hint)


def lost():
    hint = "it may have had effects, so it was not repeated; look before you call again"
    return ServerGone("the connection to the host was lost during the call", hint=hint)


# The wire


def connect():
    path = environ.get(b"COVE_MCP")
    try:
        if path is None:
            raise OSError("`COVE_MCP` is not set")
        line = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        # Whatever default a cell has set.
        line.setblocking(True)
        line.connect(path)
        return line
    except OSError as problem:
        message = f"could not reach the host for a call: {problem}"
        error = ServerUnavailable(message, hint="calls work in the cells of a session whose sandbox is Cove's own")
    raise error


def request(number, ask, fields):
    """The frame of a request."""
    try:
        data = write_json({"id": number, "ask": ask, **fields}).encode()
    except (TypeError, ValueError, RecursionError) as problem:
        where = {name: fields[name] for name in ("server", "tool") if name in fields}
        what = ".".join(where.values()) or f"`{ask}`"
        raise BadArguments(f"the arguments of {what} cannot be written as JSON: {problem}", **where) from None
    if len(data) > REQUEST:
        message = f"the arguments are {len(data)} bytes as JSON, and a call takes {REQUEST} at most"
        raise LimitExceeded(message, hint="pass less in a call, for example in several calls")
    return len(data).to_bytes(4, "big") + data


def parse(data):
    """The id of a reply, its value, and its error."""
    try:
        text = str(data, "utf-8")
        reply, end = scan(text, 0)
        if end == len(text) and ("ok" in reply) != ("error" in reply):
            return reply["id"], reply.get("ok"), failure(reply["error"]) if "error" in reply else None
    except (ValueError, TypeError, KeyError, StopIteration, RecursionError):
        pass
    raise garbage()


def sound(kind, value):
    """An answer that has the form which this kind of question wants."""
    if kind in ("servers", "tools"):
        fine = isinstance(value, list) and all(isinstance(one, dict) and isinstance(one.get("name"), str) for one in value)
        for one in value if fine else ():
            if not isinstance(one.get("alias"), str):
                one["alias"] = identifier(one["name"])
            if kind == "tools" and not isinstance(one.get("input_schema"), dict):
                one["input_schema"] = Record()
    elif kind == "help":
        fine = isinstance(value, str)
    else:
        part, form = FORMS.get(kind, (None, None))
        fine = isinstance(value, dict) and (part is None or isinstance(value.get(part), form))
    if not fine:
        raise garbage()
    return value


def receive(line):
    """The next frame's bytes, of a connection on which nothing else can come."""
    data = line.recv(1 << 16)
    while 0 < len(data) < 4:
        more = line.recv(1 << 16)
        if not more:
            raise lost()
        data += more
    if not data:
        raise lost()
    size = int.from_bytes(data[:4], "big")
    if size > REPLY or len(data) > size + 4:
        raise garbage()
    if len(data) == size + 4:
        return data[4:]
    whole, at = bytearray(size), len(data) - 4
    whole[:at] = data[4:]
    view = memoryview(whole)
    while at < size:
        got = line.recv_into(view[at:])
        if not got:
            raise lost()
        at += got
    return whole


def send(frame):
    """Sends a request on a connection that is free, or a new one, and returns that connection."""
    while len(busy) >= LINES:
        sleep(0.001)
    while idle:
        try:
            line = idle.pop()
        except IndexError:
            break
        busy.add(line)
        try:
            line.sendall(frame)
            return line
        except OSError:
            # It was closed since. Half a request is none, so this can be tried again.
            drop(line)
        except BaseException:
            drop(line)
            raise
    line = connect()
    busy.add(line)
    try:
        line.sendall(frame)
    except OSError as problem:
        drop(line)
        raise ServerUnavailable(f"could not reach the host for a call: {problem}") from None
    except BaseException:
        drop(line)
        raise
    return line


def drop(line):
    busy.discard(line)
    line.close()


def ask(kind, **fields):
    """Asks the host and waits for the answer."""
    number = next(numbers)
    line = send(request(number, kind, fields))
    try:
        found, value, error = parse(receive(line))
        if found is not None and found != number:
            raise garbage()
    except OSError:
        drop(line)
        raise lost() from None
    except BaseException:
        # An interrupt, or nonsense: what comes late on it must not be taken for the answer of another call.
        drop(line)
        raise
    busy.discard(line)
    if found is None:
        line.close()
    else:
        idle.append(line)
    if error is not None:
        raise error
    return sound(kind, value)


def forked():
    # The connections are the parent's, and so may be the lock.
    global loading
    for line in [*idle, *busy]:
        line.close()
    idle.clear()
    busy.clear()
    loading = _thread.RLock()
    if "wait" not in parts:
        forget()


register_at_fork(after_in_child=forked)
load("tool")
