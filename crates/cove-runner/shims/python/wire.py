# The Python library for tools, first part: values, errors, and calls that block.
#
# cell.py runs it, with the other parts (mcp_module.py, pending_calls.py, results.py), in globals of their own,
# because tracebacks have to distinguish their frames from those of the shim. Fetched when a cell may need it.
# `load` compiles what a plain call does not need later. The json module is not used, because importing it takes
# longer than a call.
# ruff: noqa: F821 (`parts` and the builtins, posix among them, come from cell.py; other parts from `load`)
import sys
import _socket
import _thread
from itertools import count
from time import sleep

# The longest request that the runner accepts, and the longest reply that it sends, with room for an id.
MAX_REQUEST, MAX_REPLY = 8 << 20, (32 << 20) + 64
# Connections for calls that block, of all threads. The runner has 64 for all processes.
MAX_CONNECTIONS = 32
KEYWORDS = frozenset(
    "False None True and as assert async await break class continue def del elif else except finally for from "
    "global if import in is lambda nonlocal not or pass raise return try while with yield".split()
)
# The methods of dict that can hide a key of the same name.
METHOD_NAMES = "clear", "copy", "get", "items", "keys", "pop", "popitem", "setdefault", "update", "values"
VIEWS = type({}.keys()), type({}.values()), type({}.items())
# The globals of all cells.
cell_names = sys.modules["__main__"].__dict__
numbers = count(1)
idle, busy = [], set()
PendingCall = None
loading = _thread.RLock()


def load(part):
    """Compiles a part when it is first needed. After an interrupt the next call starts again."""
    if part in parts:
        with loading:
            if part in parts:
                exec(compile(parts[part], "<mcp>", "exec"), globals())
                del parts[part]


# Values


class KeyOrMethod:
    """A name that both dict and data use, such as `items`: the key's value for cells, the method for libraries.

    A library, and C code that it calls, must find the methods of a dict: `json.dumps` calls `items()`. A cell that
    writes `x.items` means the data if there is such a key. A cell that writes `x.items()` means the method, so the value
    can be called where its type allows that.
    """

    __slots__ = "name", "method"

    def __init__(self, name):
        self.name, self.method = name, getattr(dict, name)

    def __get__(self, record, kind=None):
        if record is None:
            return self.method
        if dict.__contains__(record, self.name) and sys._getframe(1).f_globals is cell_names:
            return self.value(record)
        return self.method.__get__(record)

    def value(self, record):
        load("results")
        return with_method(record, self.name, self.method.__get__(record))


class Record(dict):
    """An object of a result: `x["title"]` or `x.title`."""

    __slots__ = ()
    __module__ = "mcp"
    locals().update({name: KeyOrMethod(name) for name in METHOD_NAMES})

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

    def __reduce__(self):
        return Record, (dict(self),)


class TextResult(str):
    """The text of a result. It has the members of a `Result` too."""

    __module__ = "mcp"
    images = audio = resources = ()

    def __new__(cls, text, content=None, meta=None):
        made = str.__new__(cls, text)
        made._content, made._meta = content, meta
        return made

    @property
    def text(self):
        return str(self)

    @property
    def content(self):
        # The host sends the content only if it is more than this.
        return self._content or [Record(type="text", text=str(self))]

    @property
    def raw(self):
        meta = {} if self._meta is None else {"_meta": self._meta}
        return Record(content=self.content, isError=False, **meta)

    def save(self, path):
        with open(path, "w", encoding="utf-8") as file:
            file.write(self)
        return path

    def __reduce__(self):
        return str, (str(self),)


def identifier(name):
    """Returns the name of a server, tool or parameter as Python can write it."""
    name = "".join(part if part.isascii() and (part.isalnum() or part == "_") else "_" for part in name)
    if name[:1].isdigit():
        name = "_" + name
    return name + "_" if name in KEYWORDS else name


def to_json_value(value):
    """Returns a value that JSON can write, for one that it cannot. Fails if there is no obvious one."""
    if PendingCall is not None and isinstance(value, PendingCall):
        return value._resolve()
    kind = type(value)
    if isinstance(value, (set, frozenset, range, *VIEWS)):
        return list(value)
    for method in ("__fspath__", "isoformat", "tolist", "model_dump", "total_seconds"):
        if hasattr(kind, method):
            return getattr(value, method)()
    if hasattr(kind, "__dataclass_fields__"):
        return {name: getattr(value, name) for name in kind.__dataclass_fields__}
    if hasattr(kind, "__members__") and hasattr(value, "value"):
        # A member of an enum.
        return value.value
    if hasattr(kind, "to_dict") and hasattr(kind, "columns"):
        # A table, such as those of pandas: its rows.
        return value.to_dict("records")
    if kind.__name__ == "Decimal" and value.is_finite():
        # A whole number is exact. JSON's readers have no other exact numbers than these.
        return int(value) if value == value.to_integral_value() else float(value)
    if kind.__name__ == "UUID":
        return str(value)
    hint = "; use `base64.b64encode(x).decode()`" if isinstance(value, (bytes, bytearray)) else ""
    raise TypeError(f"{type(value).__name__} cannot be written as JSON{hint}")


try:
    from _json import encode_basestring, make_encoder, make_scanner

    class ScannerOptions:
        strict, object_hook, object_pairs_hook = False, Record, None
        parse_float, parse_int, parse_constant = float, int, float
        memo = {}

    scan = make_scanner(ScannerOptions)

    def write_json(value):
        # A new encoder each time: after an error one keeps its state.
        return "".join(make_encoder({}, to_json_value, encode_basestring, None, ":", ",", False, False, False)(value, 0))

except ImportError:
    import json

    scan = json.JSONDecoder(object_hook=Record, strict=False).raw_decode

    def write_json(value):
        return json.dumps(value, default=to_json_value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


# Errors


class MCPError(RuntimeError):
    """A call that failed. `kind` says why, `hint` what to do; `server` and `tool` say what was called."""

    __module__ = "mcp"
    kind = "internal"
    hint = server = tool = content = structured = code = data = question = schema = url = command = None

    def __init__(self, message="", **fields):
        super().__init__(message)
        self.message = message
        self.__dict__.update(fields)

    def __str__(self):
        text = str(self.message)
        if self.kind == "tool" and self.server:
            text = f"{self.server}.{self.tool}: {text}"
        return f"{text}\nhint: {self.hint}" if self.hint else text


def make_error_class(name, kind, doc, *bases):
    made = type(name, (MCPError, *bases), {"__module__": "mcp", "__doc__": doc, "kind": kind})
    return kind, made


errors = dict(
    (
        make_error_class("ToolError", "tool", "The tool reports a failure: see `content` and `structured`."),
        # Also an AttributeError, so that hasattr() works.
        make_error_class("UnknownServer", "unknown_server", "No server has this name.", AttributeError),
        make_error_class("UnknownTool", "unknown_tool", "The server has no such tool.", AttributeError),
        make_error_class("BadArguments", "bad_arguments", "The tool does not take these arguments; nothing was sent."),
        make_error_class("Refused", "refused", "This session may not call that."),
        make_error_class("ServerUnavailable", "unavailable", "The server could not be started or reached."),
        make_error_class("ServerGone", "gone", "The server died during the call, which may have had effects."),
        make_error_class("CallTimeout", "timeout", "The server did not answer in time."),
        make_error_class("ProtocolError", "protocol", "The server answered with a protocol error: see `code` and `data`."),
        make_error_class("LimitExceeded", "limit", "Too many calls, or one that is too large."),
        make_error_class(
            "ElicitationRequired",
            "elicitation_required",
            "The server asks a person for input that it did not get: see `question`, `schema` and `url`.",
        ),
        make_error_class(
            "SignInNeeded", "sign_in_needed", "A person must sign in to the server first, with `command`; nothing was done."
        ),
        make_error_class("ToolChanged", "tool_changed", "The tool is not as a person accepted it; nothing was sent."),
        make_error_class("ServerHeld", "server_held", "No person has accepted the server; nothing was sent."),
    )
)
# For each kind of request, the member that its answer must have, and that member's type.
ANSWER_FORMS = {
    **{"find": ("tools", list), "resources": ("resources", list), "read_resource": ("contents", list)},
    **{"prompts": ("prompts", list), "prompt": ("messages", list), "output": ("text", str)},
    **{"complete": ("values", list), "logs": ("logs", list), "subscribe": ("subscription", int), "changes": ("changes", int)},
}
ToolError, UnknownServer, UnknownTool, BadArguments, Refused = list(errors.values())[:5]
ServerUnavailable, ServerGone, CallTimeout, ProtocolError, LimitExceeded = list(errors.values())[5:10]
ElicitationRequired, SignInNeeded, ToolChanged, ServerHeld = list(errors.values())[10:]


def failure(error):
    """Returns the exception for the `error` of a reply."""
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        raise unreadable_answer()
    fields = dict(error)
    kind = str(fields.get("kind"))
    return errors.get(kind, MCPError)(fields.pop("message"), **{**fields, "kind": kind})


def unreadable_answer():
    hint = "this is a bug in Cove, or code in this sandbox has replaced the socket in `COVE_MCP`"
    return MCPError("the host's answer cannot be read", hint=hint)


def lost_connection():
    hint = "the call may have had effects, so it was not repeated; check before you call again"
    return ServerGone("the connection to the host was lost during the call", hint=hint)


# The wire


def connect():
    path = environ.get(b"COVE_MCP")
    try:
        if path is None:
            raise OSError("`COVE_MCP` is not set")
        line = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        # A cell may have set another default.
        line.setblocking(True)
        line.connect(path)
        return line
    except OSError as problem:
        message = f"could not reach the host for a call: {problem}"
        error = ServerUnavailable(message, hint="calls work in the cells of a session whose sandbox is Cove's own")
    raise error


def request(number, ask, fields):
    """Returns the frame of a request. Fails if the arguments are no JSON or too long."""
    try:
        data = write_json({"id": number, "ask": ask, **fields}).encode()
    except (TypeError, ValueError, RecursionError) as problem:
        where = {name: fields[name] for name in ("server", "tool") if name in fields}
        what = ".".join(where.values()) or f"`{ask}`"
        raise BadArguments(f"the arguments of {what} cannot be written as JSON: {problem}", **where) from None
    if len(data) > MAX_REQUEST:
        message = f"the arguments are {len(data)} bytes as JSON, at most {MAX_REQUEST} are allowed"
        raise LimitExceeded(message, hint="split the data over several calls")
    return len(data).to_bytes(4, "big") + data


def parse(data):
    """Returns the id of a reply, its value, and its error."""
    try:
        text = str(data, "utf-8")
        reply, end = scan(text, 0)
        if end == len(text) and ("ok" in reply) != ("error" in reply):
            return reply["id"], reply.get("ok"), failure(reply["error"]) if "error" in reply else None
    except (ValueError, TypeError, KeyError, StopIteration, RecursionError):
        pass
    raise unreadable_answer()


def check_answer(kind, value):
    """Returns an answer. Fails unless it has the form that this kind of request needs."""
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
        part, form = ANSWER_FORMS.get(kind, (None, None))
        fine = isinstance(value, dict) and (part is None or isinstance(value.get(part), form))
    if not fine:
        raise unreadable_answer()
    return value


def receive(line):
    """Returns the bytes of the next frame, of a connection on which nothing else can arrive."""
    data = b""
    while len(data) < 4:
        more = line.recv(1 << 16)
        if not more:
            raise lost_connection()
        data += more
    size = int.from_bytes(data[:4], "big")
    if size > MAX_REPLY or len(data) > size + 4:
        raise unreadable_answer()
    if len(data) == size + 4:
        return data[4:]
    whole, at = bytearray(size), len(data) - 4
    whole[:at] = data[4:]
    view = memoryview(whole)
    while at < size:
        got = line.recv_into(view[at:])
        if not got:
            raise lost_connection()
        at += got
    return whole


def send(frame):
    """Sends a request on an idle connection, or a new one, and returns that connection."""
    while len(busy) >= MAX_CONNECTIONS:
        sleep(0.001)
    while True:
        try:
            line, is_new = idle.pop(), False
        except IndexError:
            line, is_new = None, True
        line = line or connect()
        busy.add(line)
        try:
            line.sendall(frame)
            return line
        except BaseException as problem:
            drop(line)
            if not isinstance(problem, OSError):
                raise
            # An idle one was closed meanwhile. The runner ignores half a request, so another can be tried.
            if is_new:
                raise ServerUnavailable(f"could not reach the host for a call: {problem}") from None


def drop(line):
    busy.discard(line)
    line.close()


def ask(kind, **fields):
    """Sends a request to the host, waits, and returns the answer. Fails with an MCPError."""
    number = next(numbers)
    line = send(request(number, kind, fields))
    try:
        found, value, error = parse(receive(line))
        if found is not None and found != number:
            raise unreadable_answer()
    except OSError:
        drop(line)
        raise lost_connection() from None
    except BaseException:
        # After an interrupt or a bad reply, a late reply must not be taken for the answer to another call.
        drop(line)
        raise
    busy.discard(line)
    if found is None:
        line.close()
    else:
        idle.append(line)
    if error is not None:
        raise error
    return check_answer(kind, value)


def reset_in_child():
    # In a forked child: the connections belong to the parent, and a thread of the parent may hold the lock.
    global loading
    for line in [*idle, *busy]:
        line.close()
    idle.clear()
    busy.clear()
    loading = _thread.RLock()
    if "pending_calls" not in parts:
        forget_channels()


register_at_fork(after_in_child=reset_in_child)
load("mcp_module")
