"""UTCP's code mode from PyPI over MCP on stdio. The package is a library without a server: this adds one with one tool,
which answers as UTCP's own server for npm does. The argument is the upstream servers as JSON."""

import asyncio
import json
import logging
import sys

from mcp.server.fastmcp import FastMCP
from utcp_code_mode import CodeModeUtcpClient
from utcp_mcp import McpCallTemplate

# Otherwise it would write lines to standard error for every call.
logging.disable(logging.CRITICAL)
servers = json.loads(sys.argv[1])
server = FastMCP("peer")


async def main():
    client = await CodeModeUtcpClient.create()
    if servers:
        manual = McpCallTemplate(name="peer", config={"mcpServers": servers})
        registered = await client.register_manual(manual)
        if not registered.success:
            sys.exit(" ".join(registered.errors).replace("\n", " "))

    @server.tool(structured_output=False)
    async def call_tool_chain(code: str) -> str:
        return json.dumps(await client.call_tool_chain(code))

    await server.run_stdio_async()


asyncio.run(main())
