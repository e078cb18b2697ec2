"""An MCP server that records how it was started: its arguments, its folder, and the variables whose names begin with `X_`."""

import json
import os
import sys

record = {
    "args": sys.argv[2:],
    "env": {name: value for name, value in os.environ.items() if name.startswith("X_")},
    "cwd": os.getcwd(),
}
with open(sys.argv[1], "w") as file:
    json.dump(record, file)

for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message or "method" not in message:
        continue
    answer = {"jsonrpc": "2.0", "id": message["id"]}
    if message["method"] == "initialize":
        version = message["params"]["protocolVersion"]
        info = {"name": "recorder", "version": "1"}
        answer["result"] = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
    elif message["method"] == "tools/list":
        tool = {"name": "nothing", "inputSchema": {"type": "object"}}
        answer["result"] = {"tools": [tool]}
    elif message["method"] == "ping":
        answer["result"] = {}
    else:
        answer["error"] = {"code": -32601, "message": "no such method"}
    print(json.dumps(answer), flush=True)
