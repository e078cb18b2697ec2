"""FastMCP's code mode over MCP on stdio, as its documentation shows it. The argument is the upstream servers as JSON."""

import json
import sys

from fastmcp import FastMCP
from fastmcp.experimental.transforms.code_mode import CodeMode
from fastmcp.server import create_proxy

servers = json.loads(sys.argv[1])
server = create_proxy({"mcpServers": servers}, name="peer") if servers else FastMCP("peer")
server.add_transform(CodeMode())
server.run(show_banner=False)
