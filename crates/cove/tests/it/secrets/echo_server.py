"""An MCP server that repeats its environment in every encoding: in results, errors, logs, progress and on standard error."""

import base64
import json
import os
import sys
import urllib.parse


def encodings(value):
    raw = value.encode()
    yield value
    for before in ("", "u", "us", "user:"):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            yield encode((before + value).encode()).decode()
            yield encode((before + value + "@host").encode()).decode()
    yield raw.hex()
    yield raw.hex().upper()
    yield value[::-1]
    yield urllib.parse.quote(value)
    yield urllib.parse.quote(value, safe="")
    yield urllib.parse.quote_plus(value)
    yield json.dumps(value)
    yield json.dumps(json.dumps(value))


def everything():
    # The test names them; other variables of this process are no secrets.
    names = os.environ["ECHOED"].split(",")
    return {name: list(encodings(os.environ[name])) for name in names}


def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def notify(method, params):
    send({"method": method, "params": params})


def call(name, params):
    text = json.dumps(everything())
    token = params.get("_meta", {}).get("progressToken")
    if token is not None:
        notify("notifications/progress", {"progressToken": token, "progress": 1, "message": text[:4000]})
    notify("notifications/message", {"level": "error", "data": everything()})
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
    if name == "die":
        sys.stdout.write("no message: " + os.environ[os.environ["ECHOED"].split(",")[0]] + "\n")
        sys.stdout.flush()
        os._exit(3)
    if name == "error":
        return {"error": {"code": -32000, "message": text, "data": everything()}}
    content = {"content": [{"type": "text", "text": text}], "structuredContent": everything()}
    return {"result": {**content, "isError": name == "fail"}}


def tool(name):
    return {"name": name, "description": "Repeats " + json.dumps(everything()), "inputSchema": {"type": "object"}}


for line in sys.stdin:
    message = json.loads(line)
    method, params = message.get("method"), message.get("params") or {}
    if "id" not in message:
        continue
    if method == "initialize":
        capabilities = {"tools": {}, "logging": {}}
        server = {"name": "echo", "version": "1"}
        version = params["protocolVersion"]
        greeting = {"protocolVersion": version, "capabilities": capabilities, "serverInfo": server}
        answer = {"result": {**greeting, "instructions": json.dumps(everything())}}
    elif method == "tools/list":
        answer = {"result": {"tools": [tool(name) for name in ("result", "fail", "error", "die")]}}
    elif method == "tools/call":
        answer = call(params["name"], params)
    elif method in ("ping", "logging/setLevel"):
        answer = {"result": {}}
    else:
        answer = {"error": {"code": -32601, "message": "unknown method"}}
    send({"id": message["id"], **answer})
