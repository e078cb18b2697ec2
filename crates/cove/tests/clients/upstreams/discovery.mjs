// Every way to find out what there is, while no server runs.
import assert from "node:assert/strict";

const { runtime } = mcp;
const NAMES = ["everything", "filesystem", "fixture", "git", "memory", "sequential-thinking", "sqlite", "time"];
const same = assert.deepEqual;
const names = (found) => [...found].sort();

same(names(await runtime.discovered_servers()), NAMES);
same((await runtime.discovered_servers(true)).find(({ name }) => name === "sqlite").description, "A small database");
same(names(await runtime.list_servers()), NAMES);
same(names((await mcp.servers).map(({ name }) => name)), NAMES);
same(names((await runtime.list_tools("time")).map(({ name }) => name)), ["convert_time", "get_current_time"]);
same((await runtime.describe_server("sequential_thinking")).tools.length, 1);
same((await runtime.list_loaded_server_metadata()).find(({ name }) => name === "memory").tools.length, 9);
const full = await runtime.query_tool_docs("git", "git_log", "full");
assert.ok(full.inputSchema.properties.repo_path && full.signature.includes("repo_path"), full);
same((await runtime.search_tool_docs("commit history", { limit: 1 }))[0].tool, "git_log");
assert.ok(`${await runtime.capability_summary()}`.includes("mcp.find"));
assert.ok((await mcp.find("run a SELECT query", 3)).some(({ tool }) => tool === "read_query"));
assert.ok(`${await mcp.help("memory")}`.includes("create_entities("));
await assert.rejects(runtime.list_tools("nope"), mcp.UnknownServer);
await assert.rejects(runtime.query_tool_docs("time", "convert"), mcp.UnknownTool);
console.log("discovered");
