//! The manual of what code can use in a sandbox: a resource, and what the prompt begins with.

use crate::config::Config;
use crate::config::value::show_size;
use crate::ending::seconds;
use crate::policy::Network;

pub(crate) fn text(config: &Config) -> String {
    let limits = &config.policy.limits;
    let network = match &config.policy.network {
        Network::None => "no network but the sandbox's own loopback".to_owned(),
        Network::Named(name) => format!("the network `{name}`"),
    };
    format!(
        "\
# Cove: code in a sandbox

Send code with `execute_code` (or `run_python`). What it prints comes back, and so does the value of a trailing
expression; images that it shows (matplotlib, PIL, an image file as the trailing value) come back as images.

- Languages: python, node (javascript), bash, sh. In one session all of them live side by side and share `/workspace`.
- State: variables, imports, functions and files stay from cell to cell of a session. Interrupted cells keep them too.
- Python: a bare script, top-level `await`, an `async def main()` that is only defined: all of them run.
- Files: `/workspace` ({workspace}) and `/tmp` ({tmp}) can be written, nothing else. `sandbox_write_file`,
  `sandbox_read_file` and `sandbox_list_files` move files without code, if the server offers them.
- Sessions: leave `session` out for your own; pass a name of your choice to have another, or a handle (`s_…`) that an
  answer named. A session ends after {idle} without use.
- Calls that are sent at once may run in any order: wait for one before sending another that needs it.
- Limits: {timeout} for a cell unless `timeout` says otherwise (at most {most}), {memory} memory, {cpus} processors,
  {pids} processes, {network}.
- Long output is cut in the middle, with a note where all of it can be read (`cove://outputs/…`): print less, or
  write to a file and look at parts of it.
- A failure says what happened, what survived, and what to do next.

## Other MCP servers

Code can call every MCP server that is configured, without naming it before: it starts when it is first called. Results
are plain values (structured content, or parsed JSON, or text), and failures raise. Nothing else leaves the sandbox.

Python:

    mcp.find(\"create issue\")                       # signatures, ready to paste, from all servers
    mcp.github.list_issues(owner=\"o\", repo=\"r\")    # waits; also github.list_issues(...) if that name is free
    await mcp_github.list_issues(owner=\"o\")        # starts at once; asyncio.gather runs several together
    mcp_servers[\"github\"].list_issues(...)         # by name; also: from mcp.servers.github import *
    from mcp import runtime                        # discovered_servers, list_tools_sync, query_tool_docs_sync, call_tool, ...

Node: `await mcp.github.list_issues({{owner, repo}})`, `await mcp.find(\"create issue\")`.
Shell: `mcp find \"create issue\"`, `mcp call github.list_issues owner=o repo=r`, JSON on standard output.

- Objects in results allow `x[\"title\"]` and `x.title`. Results with images, audio or resources are objects with `.text`,
  `.content`, `.images[0].bytes` and `.save(path)`.
- Errors: `mcp.ToolError` (the server's own words), `mcp.MCPError` above all of them. A wrong name is answered with the nearest
  ones, wrong arguments with the right ones, before anything is sent.
- Also `mcp.github.resources.list()`, `.read(uri)`, `mcp.github.prompts.list()`, `.get(name, ...)`.
- `mcp.output(handle)` is the whole output of an earlier cell that was cut.
- A cell may make 1,000 calls, 64 at the same time.

Do the whole job in one cell where you can: loop, filter and join in code, and print only what you need to know.
",
        workspace = show_size(limits.workspace),
        tmp = show_size(limits.tmp),
        idle = seconds(config.server.idle_timeout),
        timeout = seconds(config.cell.timeout),
        most = seconds(config.cell.max_timeout),
        memory = show_size(limits.memory),
        cpus = limits.cpus,
        pids = limits.pids,
    )
}
