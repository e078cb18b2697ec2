//! The manual of the sandbox for code. It is a resource, and the beginning of the prompt.

use crate::ServerSetup;
use cove_core::advice::format_seconds;
use cove_core::policy::SandboxNetwork;
use cove_core::units::show_size;

pub fn text(config: &ServerSetup) -> String {
    let limits = &config.policy.limits;
    let network = match &config.policy.network {
        SandboxNetwork::None => "no network except the sandbox's own loopback".to_owned(),
        SandboxNetwork::Named(name) => format!("the network `{name}`"),
    };
    format!(
        "\
# Cove: code in a sandbox

Send code with `execute_code` (or `run_python`). You get back what it prints and the value of a trailing expression.
Images that it shows (matplotlib, PIL, an image file as the trailing value) come back as images.

- Languages: python, node (javascript), bash, sh. One session has all of them, and they share `/workspace`.
- State: variables, imports, functions and files persist between cells of a session, also after an interrupted cell.
- Python: you can send a plain script, use top-level `await`, or only define `async def main()`; all of them run.
- Files: you can write to `/workspace` ({workspace}) and `/tmp` ({tmp}), nowhere else. If the server offers them,
  `sandbox_write_file`, `sandbox_read_file` and `sandbox_list_files` move files without code.
- Sessions: omit `session` to use your own; pass a name of your choice for another one, or a handle (`s_…`) from an
  earlier answer. A session ends after {idle} without use.
- Calls that you send at the same time may run in any order: if one needs another, wait for the first.
- Limits: {timeout} per cell unless you pass `timeout` (at most {most}); memory {memory}, processors {cpus},
  processes {pids}; {network}.
- Long output is cut in the middle, with a note that says where to read all of it (`cove://outputs/…`). Print less, or
  write to a file and look at parts of it.
- Every failure says what happened, what survived, and what to do next.

## Other MCP servers

Code can call every configured MCP server; a server starts on its first call. Results are plain values (structured
content, or parsed JSON, or text), and failures raise. Nothing else leaves the sandbox.

Python:

    mcp.find(\"create issue\")                       # signatures from all servers, ready to paste
    mcp.github.list_issues(owner=\"o\", repo=\"r\")    # waits; also github.list_issues(...) if that name is free
    await mcp_github.list_issues(owner=\"o\")        # starts at once; asyncio.gather runs several in parallel
    mcp_servers[\"github\"].list_issues(...)         # by name; also: from mcp.servers.github import *
    from mcp import runtime                        # discovered_servers, list_tools_sync, query_tool_docs_sync, call_tool, ...

Node: `await mcp.github.list_issues({{owner, repo}})`, `await mcp.find(\"create issue\")`.
Shell: `mcp find \"create issue\"`, `mcp call github.list_issues owner=o repo=r`, JSON on standard output.

- Objects in results allow `x[\"title\"]` and `x.title`. Results with images, audio or resources are objects with `.text`,
  `.content`, `.images[0].bytes` and `.save(path)`.
- Errors: `mcp.ToolError` (the server's own message); `mcp.MCPError` is the base class of all. For a wrong name the error
  lists the nearest names, for wrong arguments the right ones; the call is not sent.
- Also `mcp.github.resources.list()`, `.read(uri)`, `mcp.github.prompts.list()`, `.get(name, ...)`.
- `mcp.output(handle)` is the whole output of an earlier cell whose output was cut.
- A cell may make 1,000 calls, 64 at the same time.

Do the whole job in one cell if you can: loop, filter and join in code, and print only what you need to know.
",
        workspace = show_size(limits.workspace),
        tmp = show_size(limits.tmp),
        idle = format_seconds(config.server.idle_timeout),
        timeout = format_seconds(config.cell.timeout),
        most = format_seconds(config.cell.max_timeout),
        memory = show_size(limits.memory),
        cpus = limits.cpus,
        pids = limits.pids,
    )
}
