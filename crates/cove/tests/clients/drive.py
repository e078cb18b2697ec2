"""The official Python SDK as a client that is steered from outside.

    drive.py TARGET

TARGET is a JSON object: `era` ("legacy" or a revision), and `command` (a list) or `url` with an optional `token`.
With `elicit`, the client takes questions and answers each with that value; the answer to a call has them as `asked`.
One request a line on standard input, one answer a line on standard output, both JSON; the first answer says what was
negotiated. Results come back as they are on the wire. What they should be is the caller's to say.
"""

import asyncio
import contextlib
import json
import sys
import time

import anyio
import httpx2
import mcp
from mcp import Client, StdioServerParameters
from mcp.types import ElicitResult
from mcp.client.streamable_http import streamable_http_client


asked = []


def wire(model):
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


@contextlib.asynccontextmanager
async def connected(target):
    async with contextlib.AsyncExitStack() as stack:
        if "command" in target:
            # The SDK hands a server only a few variables; what the caller set for us is meant for the server.
            place = StdioServerParameters(command=target["command"][0], args=target["command"][1:], cwd="/")
        else:
            headers = {"Authorization": f"Bearer {target['token']}"} if target.get("token") else {}
            http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=120))
            place = streamable_http_client(target["url"], http_client=http)
        person = None
        if "elicit" in target:

            async def person(_, params):
                asked.append(wire(params))
                return ElicitResult.model_validate(target["elicit"])

        # A pinned revision would be believed without asking, so the modern era is left to be discovered.
        mode = "legacy" if target["era"] == "legacy" else "auto"
        # Without the cache, for a second list must be asked for.
        options = {"mode": mode, "read_timeout_seconds": 120, "cache": None, "elicitation_callback": person}
        yield await stack.enter_async_context(Client(place, **options))


async def pages(method, key):
    found, cursor = [], None
    while True:
        page = await (method(cursor=cursor) if cursor else method())
        found += [wire(one) for one in getattr(page, key)]
        cursor = page.next_cursor
        if not cursor:
            return found


async def answer(client, ask):
    lists = {
        "tools": (client.list_tools, "tools"),
        "resources": (client.list_resources, "resources"),
        "templates": (client.list_resource_templates, "resource_templates"),
        "prompts": (client.list_prompts, "prompts"),
    }
    match ask["do"]:
        case "list":
            return {"result": await pages(*lists[ask["what"]])}
        case "read":
            return {"result": wire(await client.read_resource(ask["uri"]))}
        case "prompt":
            return {"result": wire(await client.get_prompt(ask["name"], ask.get("arguments")))}
        case "call":
            return await call(client, ask)


async def call(client, ask):
    progress = []

    async def note(value, total, message):
        progress.append({"progress": value, "total": total, "message": message})

    callback = note if ask.get("progress") else None
    found = {"abandoned": True}
    with anyio.move_on_after(ask.get("abandon_after")):
        result = await client.call_tool(ask["tool"], ask["arguments"], progress_callback=callback)
        found = {"result": wire(result)}
    questions, asked[:] = asked[:], []
    return found | {"progress": progress, "asked": questions}


async def main():
    lines = asyncio.StreamReader(limit=1 << 26)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)

    def say(found):
        print(json.dumps(found), flush=True)

    async with connected(json.loads(sys.argv[1])) as client:
        say({
            "result": {
                "protocol": client.protocol_version,
                "server": wire(client.server_info),
                "capabilities": wire(client.server_capabilities),
                "instructions": client.instructions,
            }
        })
        while line := await lines.readline():
            start = time.monotonic()
            try:
                found = await answer(client, json.loads(line))
            except mcp.MCPError as error:
                found = {"error": {"code": error.code, "message": error.message}}
            except Exception as error:  # noqa: BLE001: whatever the SDK refuses is part of its verdict
                found = {"refused": f"{type(error).__name__}: {error}"}
            say(found | {"ms": round((time.monotonic() - start) * 1000)})


asyncio.run(main())
