"""A fake host: answers the library's requests over a Unix socket, and misbehaves when a test asks for it."""

import base64
import json
import os
import socket
import struct
import tempfile
import threading
import time

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(32))


def tool(name, properties=None, required=(), alias=None):
    schema = {"type": "object", "properties": properties or {}, "required": list(required)}
    alias = alias or name.replace("-", "_")
    return {
        "name": name,
        "alias": alias,
        "description": f"Does {name}. And more.",
        "input_schema": schema,
        "output_schema": None,
        "python": f"{alias}(*, {', '.join(properties or {})})",
        "node": f"{alias}({{ {', '.join(properties or {})} }})",
    }


TOOLS = {
    "github": [
        tool("list_issues", {"owner": {}, "repo": {}}, ["owner"]),
        tool("echo"),
        # As the catalog does: a name that is an identifier already stays as it is.
        tool("a-b", alias="a_b_2"),
        tool("a_b"),
        tool("get-sum", {"cik-A": {}, "from": {}, "from_date": {}}),
        tool("print"),
        tool("resources", alias="resources_"),
    ],
    "time": [tool("now")],
    "my-files": [tool("read", {"path": {}, "encoding": {}}, ["path"])],
}
SERVERS = [
    {"name": "github", "alias": "github", "description": "Issues. And pulls.", "tools": 7, "state": "ready"},
    {"name": "time", "alias": "time", "description": "", "tools": 1, "state": "idle"},
    {"name": "my-files", "alias": "my_files", "description": "Files", "tools": None, "state": "needs npx"},
]


def respelled(server, name, arguments):
    """A tool and its parameters as their server writes them."""
    tools = self_or_alias(TOOLS[server], name)
    if not tools:
        return name, arguments
    known = tools[0]["input_schema"]["properties"]
    plain = {one.replace("-", "_"): one for one in known}
    right = {one: one if one in known else plain.get(one, plain.get(one.rstrip("_"), one)) for one in arguments}
    return tools[0]["name"], {right[one]: value for one, value in arguments.items()}


def self_or_alias(tools, name):
    exact = [tool for tool in tools if tool["name"] == name]
    return exact or [tool for tool in tools if tool["alias"] == name]


class Problem(Exception):
    def __init__(self, kind, message, **more):
        super().__init__(message)
        self.error = {"kind": kind, "message": message, **more}


class Broker:
    """Accepts names in any spelling, as the real host does. Each connection has a thread, and so has each slow call."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.folder.name, "mcp")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen(64)
        self.requests, self.lines, self.most, self.now = [], 0, 0, 0
        self.servers = [dict(server) for server in SERVERS]
        self.tools = dict(TOOLS)
        # Wrong answers to give, by kind of request.
        self.instead = {}
        self.lock = threading.Lock()
        threading.Thread(target=self.accept, daemon=True).start()

    def close(self):
        self.listener.close()
        self.folder.cleanup()

    def accept(self):
        while True:
            try:
                line, _ = self.listener.accept()
            except OSError:
                return
            self.lines += 1
            threading.Thread(target=self.serve, args=(line,), daemon=True).start()

    def serve(self, line):
        lock = threading.Lock()
        reader = line.makefile("rb")
        with line:
            while True:
                try:
                    head = reader.read(4)
                except OSError:
                    return
                if len(head) < 4:
                    return
                body = reader.read(struct.unpack(">I", head)[0])
                request = json.loads(body)
                with self.lock:
                    self.requests.append(request)
                if request.get("tool") == "slow":
                    threading.Thread(target=self.answer, args=(line, lock, request), daemon=True).start()
                elif not self.answer(line, lock, request):
                    line.shutdown(socket.SHUT_RDWR)
                    return

    def answer(self, line, lock, request):
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        try:
            reply = {"ok": self.reply(request)}
        except Problem as problem:
            reply = {"error": problem.error}
        finally:
            with self.lock:
                self.now -= 1
        value = reply.get("ok", "")
        if value is None:
            return False
        broken = request.get("tool") == "garbage"
        if broken and isinstance(value, list):
            number = str(request["id"]).encode()
            data = b"".join(frame(body.replace(b"ID", number)) for body in value)
        elif broken:
            data = value
        else:
            data = frame(json.dumps({"id": request["id"], **reply}, ensure_ascii=False).encode())
        with lock:
            try:
                line.sendall(data)
            except OSError:
                return False
        return not broken

    def add(self, name, *tools, alias=None):
        """Adds a server."""
        self.servers.append({"name": name, "alias": alias or name, "state": "idle"})
        self.tools[name] = [tool(one) for one in tools]

    def reply(self, request):
        if request["ask"] in self.instead:
            return self.instead[request["ask"]]
        return getattr(self, "on_" + request["ask"])(request)

    def on_servers(self, request):
        return self.servers

    def on_tools(self, request):
        return self.tools[request["server"]]

    def on_help(self, request):
        if "topic" not in request:
            return "the manual\nof two lines"
        server, _, name = request["topic"].partition(".")
        if server not in self.tools:
            raise Problem("unknown_server", f"there is no server `{server}`", hint="did you mean `github`?", server=server)
        tools = self_or_alias(self.tools[server], name) if name else self.tools[server]
        if not tools:
            raise Problem("unknown_tool", f"server `{server}` has no tool `{name}`", server=server, tool=name)
        return "\n".join(tool[request["language"]] for tool in tools)

    def on_find(self, request):
        found = {"server": "github", "tool": "list_issues", "description": "Lists.", "comment": "# Lists. Really."}
        found["signature"] = {"python": "mcp.github.list_issues(owner, repo)"}.get(request["language"], "other")
        if not request["query"]:
            return {"tools": [], "servers": ["github (2 tools): Code", "time (1 tool)"], "total": 0, "hint": "search"}
        also = ["github.a", "time.b"]
        return {"tools": [found][: request["limit"]], "also": also, "total": 7, "hint": f"for {request['query']}"}

    def on_output(self, request):
        if request["handle"] != "o_1":
            raise Problem("not_found", f"no output `{request['handle']}`")
        return {"text": "all of it"}

    def on_resources(self, request):
        return {"resources": [{"uri": "a://1", "name": "one"}], "templates": [{"uriTemplate": "a://{n}"}]}

    def on_read_resource(self, request):
        one = {"uri": request["uri"], "mimeType": "application/json", "text": '{"a": [1]}'}
        two = {"uri": request["uri"], "blob": base64.b64encode(b"\0\xff").decode()}
        return {"contents": {"a://1": [one], "a://2": [two], "a://3": [one, two]}[request["uri"]]}

    def on_prompts(self, request):
        return {"prompts": [{"name": "greet"}]}

    def on_prompt(self, request):
        return {"messages": [{"role": "user", "content": request["arguments"]}], "description": request["name"]}

    def on_complete(self, request):
        given = {key: request[key] for key in ("prompt", "resource") if key in request}
        values = [f"{given}", request["argument"], request["value"], f"{request['context']}"]
        return {"values": values, "has_more": True, "total": 9}

    def on_subscribe(self, request):
        return {"subscription": 5, "changes": 2}

    def on_changes(self, request):
        return {"changes": request["seen"] + (3 if request["timeout"] else 0)}

    def on_unsubscribe(self, request):
        return {}

    def on_logs(self, request):
        return {"logs": [{"level": "info", "data": request["server"]}], "dropped": 4}

    def on_call(self, request):
        server, name, arguments = request["server"], request["tool"], request["arguments"]
        if request.get("raw"):
            return {"raw": {"content": [], "isError": False}}
        if server not in self.tools:
            raise Problem("unknown_server", f"no server `{server}`", server=server)
        if server not in TOOLS:
            return {"value": [server, name, arguments]}
        name, arguments = respelled(server, name, arguments)
        act = getattr(self, "tool_" + name.replace("-", "_dash_"), None)
        if act is None:
            near = "did you mean `list_issues`?"
            raise Problem("unknown_tool", f"github has no tool `{name}`", hint=near, server=server, tool=name)
        return act(arguments)

    def tool_list_issues(self, arguments):
        unknown = set(arguments) - {"owner", "repo"}
        if unknown:
            raise Problem("bad_arguments", f"no parameter {unknown}", server="github", tool="list_issues")
        return {"value": [{"title": "first", "items": 3, "html-url": "u", "user": {"login": "é"}}]}

    def tool_echo(self, arguments):
        return {"value": arguments}

    def tool_a_b(self, arguments):
        return {"value": "underscore"}

    def tool_a_dash_b(self, arguments):
        return {"value": "dash"}

    def tool_get_dash_sum(self, arguments):
        if set(arguments) - {"cik-A", "from", "from_date"}:
            raise Problem("bad_arguments", "wrong names")
        return {"value": arguments}

    def tool_read(self, arguments):
        return {"value": arguments}

    tool_print = tool_resources = tool_now = tool_echo

    def tool_null(self, arguments):
        return {"value": None}

    def tool_big(self, arguments):
        return {"value": "é" * (5 << 20)}

    def tool_slow(self, arguments):
        time.sleep(arguments.get("seconds", 0.2))
        return {"value": arguments}

    def tool_fail(self, arguments):
        more = {"content": [{"type": "text", "text": "no such repo"}], "structured": {"code": 5}}
        raise Problem("tool", "no such repo", hint="check the name", server="github", tool="fail", **more)

    def tool_error(self, arguments):
        raise Problem(arguments["kind"], "words", code=-32000, data={"a": 1}, server="github", tool="error")

    def tool_image(self, arguments):
        image = {"type": "image", "mimeType": "image/png", "data": base64.b64encode(PNG).decode()}
        link = {"type": "resource_link", "uri": "a://1", "name": "one"}
        text = {"type": "text", "text": "see"}
        blob = {"type": "resource", "resource": {"uri": "a://2", "blob": "AAE=", "mimeType": "x/y"}}
        sound = {"type": "audio", "mimeType": "audio/wav", "data": "AAEC"}
        return {"rich": {"text": "see", "content": [text, image, sound, blob, link]}}

    # What a broken host sends. None means that it closes the connection.

    def tool_hang_up(self, arguments):
        return None

    def tool_garbage(self, arguments):
        """Returns the bodies of frames, with the request's id for `ID`, or bytes to send as they are."""
        return {
            "text": [b"hello"],
            "length": b"\xff\xff\xff\xff",
            "cut": b"\0\0\0\x64{",
            "other id": [b'{"id":99999999,"ok":1}'],
            "no id": [b'{"ok":{"value":1}}'],
            "two": [b'{"id":ID,"ok":{"value":1}}'] * 2,
            "both": [b'{"id":ID,"ok":{"value":1},"error":{}}'],
            "error": [b'{"id":ID,"error":"words"}'],
            "shape": [b"[]"],
            "trailing": [b'{"id":ID,"ok":{"value":1}} x'],
            "utf8": [b"\xff\xfe"],
            "deep": [b'{"id":ID,"ok":{"value":' + b"[" * 100_000 + b"]" * 100_000 + b"}}"],
            # What the runner sends before it closes a connection.
            "refused": [b'{"id":null,"error":{"kind":"limit","message":"too long"}}'],
        }[arguments["how"]]


def frame(data):
    return struct.pack(">I", len(data)) + data
