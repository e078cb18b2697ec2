# Every way to find out what there is, while no server runs.
import mcp
from mcp import runtime
from mcp.servers.time import *
from mcp.servers.sequential_thinking import TOOLS, TOOL_MAP, sequentialthinking


def same(found, expected):
    assert found == expected, f"{found!r} is not {expected!r}"


NAMES = ("everything", "filesystem", "fixture", "git", "memory", "sequential-thinking", "sqlite", "time")
SUMMARY = {"name", "alias", "description", "input_schema"}


def names(found):
    return tuple(sorted(found))


# Servers.
same(names(runtime.discovered_servers()), NAMES)
detailed = runtime.discovered_servers(detailed=True)
same(names(one["name"] for one in detailed), NAMES)
same({one.name: one.description for one in detailed}["sqlite"], "A small database")
same(names(runtime.list_servers_sync()), NAMES)
same(names(await runtime.list_servers()), NAMES)
same(names(LOADED_MCP_SERVERS), NAMES)
same(names(mcp_servers.keys()), NAMES)
assert "time" in mcp_servers and "nope" not in mcp_servers

# Tools of one.
tools = runtime.list_tools_sync("time")
same([set(tool) for tool in tools], [SUMMARY] * 2)
same(names(tool.name for tool in tools), ("convert_time", "get_current_time"))
awaited = await runtime.list_tools("time")
same([{key: tool[key] for key in SUMMARY} for tool in awaited], [dict(tool) for tool in tools])
same([tool.inputSchema for tool in awaited], [tool.input_schema for tool in tools])
same(tools[0].input_schema.type, "object")
assert runtime.list_tools_sync("sequential_thinking") == runtime.list_tools_sync("sequential-thinking")
described = runtime.describe_server("sequential-thinking")
same((described.name, described.alias, len(described.tools)), ("sequential-thinking", "sequential_thinking", 1))
metadata = runtime.list_loaded_server_metadata()
same(names(one.name for one in metadata), NAMES)
same({one.name: len(one.tools) for one in metadata}["memory"], 9)
assert not any("error" in one for one in metadata), metadata

# Documents of tools.
summary = runtime.query_tool_docs_sync("git", "git_log")
same(len(summary), 1)
same((summary[0].server, summary[0].tool, summary[0].toolAlias), ("git", "git_log", "git_log"))
assert "inputSchema" not in summary[0] and summary[0].description, summary
full = await runtime.query_tool_docs("git", "git_log", detail="full")
assert "repo_path" in full.inputSchema.properties and "repo_path" in full.signature, full
same(len(runtime.query_tool_docs_sync("git")), len(await runtime.query_tool_docs("git")))
same(runtime.query_tool_docs_sync("everything", "get_sum")[0].tool, "get-sum")
found = runtime.search_tool_docs_sync("convert a time between timezones", limit=2)
same((len(found), found[0].server, found[0].tool), (2, "time", "convert_time"))
found = await runtime.search_tool_docs("commit history", limit=1, detail="full")
same((found[0].tool, "inputSchema" in found[0]), ("git_log", True))
assert "mcp.find" in runtime.capability_summary()

# The same by name.
same(names(tool["name"] for tool in TOOLS), ("sequentialthinking",))
same(TOOL_MAP, {"sequentialthinking": "sequentialthinking"})
assert callable(convert_time) and callable(get_current_time) and callable(sequentialthinking)
assert "convert_time" in dir(mcp_time) and "git_log" in mcp_servers["git"], dir(mcp_time)
assert "git_log(" in repr(mcp.git) and "repo_path" in mcp_git.git_log.__doc__
assert any(tool.tool == "read_query" for tool in mcp.find("run a SELECT query", limit=3))
assert "mcp.find" in mcp.help() and "create_entities(" in mcp.help("memory")
assert sorted(dir(mcp.servers)) == sorted(name.replace("-", "_") for name in NAMES)

for wrong in (
    lambda: runtime.list_tools_sync("nope"),
    lambda: runtime.describe_server("tim"),
    lambda: runtime.query_tool_docs_sync("time", "convert"),
    lambda: runtime.query_tool_docs_sync("time", detail="everything"),
    lambda: runtime.search_tool_docs_sync("x", limit=0),
):
    try:
        wrong()
    except mcp.MCPError as error:
        assert str(error), error
    else:
        raise AssertionError("it should fail")
print("discovered")
