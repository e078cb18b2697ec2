//! The manual of the sandbox for code. It is a resource, and the beginning of the prompt.

use crate::ServerSetup;
use crate::server_config::Toolset;
use cove_core::advice::format_seconds;
use cove_core::error::display_path;
use cove_core::policy::packages::PackageLayer;
use cove_core::policy::{MountAccess, SandboxNetwork};
use cove_core::units::show_size;

pub fn text(config: &ServerSetup) -> String {
    let limits = &config.policy.limits;
    let network = match &config.policy.network {
        SandboxNetwork::None if config.policy.proxy_door => {
            format!("network: {}; nothing else", config.egress.reachable_hosts())
        }
        SandboxNetwork::None => "no network except the sandbox's own loopback".to_owned(),
        SandboxNetwork::Named(name) => format!("the network `{name}`"),
    };
    format!(
        "\
# Cove: code in a sandbox

Send code with {send}. You get back what it prints and the value of a trailing expression.
Images that it shows (matplotlib, PIL, an image file as the trailing value) come back as images.

- Languages: python, node (javascript; typescript if this node is 22.13 or newer), bash, sh. One session has all of them,
  and they share `/workspace`.
- State: variables, imports, functions and files persist between cells of a session, also after an interrupted cell.
- Python: you can send a plain script, use top-level `await`, or only define `async def main()`; all of them run.
- Files: you can write to `/workspace` ({workspace}) and `/tmp` ({tmp}){writable}, nowhere else. You do not see the
  user's files{mounts}.{file_tools}
- Packages: none can be installed in the sandbox. {packages}The operator can add others: `cove packages add NAME`.
- Sessions: omit `session` to go on in your own; pass a name of your choice for another one, or a handle (`s_…`) from an
  earlier answer. A session ends after {idle} without use.
- Calls that you send at the same time may run in any order: if one needs another, wait for the first.
- Limits: {timeout} per cell unless you pass `timeout` (at most {most}); memory {memory}, processors {cpus},
  processes {pids}; {network}.
- Long output is cut in the middle, with a note that has a handle: `mcp.output(\"o_…\")` in a later cell is all of it.
  Print less, or write to a file and look at parts of it.
- Every failure says what happened, what survived, and what to do next.

## Other MCP servers

Code can call every configured MCP server; a server starts on its first call. Results are plain values (structured
content, or parsed JSON, or text), and failures raise. Nothing else leaves the sandbox.

Python:

    mcp.find(\"create issue\")                       # signatures from all servers, ready to paste; mcp.find(): the servers
    mcp.github.list_issues(owner=\"o\", repo=\"r\")    # waits; also github.list_issues(...) if that name is free
    await mcp_github.list_issues(owner=\"o\")        # starts at once; asyncio.gather runs several in parallel
    mcp[\"github\"].list_issues(...)                 # by name; also mcp.call(\"github.list_issues\", {{...}}),
                                                   # mcp_servers[\"github\"], from mcp.servers.github import *
    mcp.help(\"github\")                             # the server's instructions and its tools
    mcp.help(\"github.list_issues\")                 # all about one tool
    from mcp import runtime                        # discovered_servers, list_tools_sync, query_tool_docs_sync, call_tool, ...

Node: `await mcp.github.list_issues({{owner, repo}})`, `await mcp.find(\"create issue\")`, `await mcp.help(\"github\")`.
Shell: `mcp find \"create issue\"`, `mcp call github.list_issues owner=o repo=r`, JSON on standard output; `mcp help github`.

- Signatures: `{{\"id\": int, \"note\": NotRequired[str]}}` is a dict with these keys (in the shell `\"note\"?: TEXT`); an optional
  parameter shows `= ...` if it has no default. A result type that the server does not declare is learned from earlier
  answers; `Any` if there were none. Tables (`text/csv`) arrive as a list of dicts.
- Objects in results allow `x[\"title\"]` and `x.title`, also for keys such as `items`. Text, and results with images, audio
  or resources, have `.text`, `.content`, `.raw`, `.images[0].bytes` and `.save(path)`. An empty result is `None`.
- Arguments: `None` for an optional parameter means that it is not given. Paths, dates, enums, Decimals, dataclasses and sets
  are written as JSON. In node an integer beyond 2^53 is a BigInt, in results and arguments.
- Errors: `mcp.ToolError` (the server's own message); `mcp.MCPError` is the base class of all. For a wrong name the error
  lists the nearest names, for wrong arguments the right ones; the call is not sent. `mcp.ElicitationRequired`: the server
  asks a person for input that it did not get (`.question`, `.schema`).
- Also `mcp.github.resources.list()`, `.read(uri)`, `mcp.github.prompts.list()`, `.get(name, ...)`. Both have
  `.complete(name_or_template, argument, begin)` for values of an argument.
- `s = mcp.github.resources.subscribe(uri)`: `s.wait(seconds)` is the number of changes since the last wait; it ends with the cell.
- `mcp.logs(\"github\")`: the server's latest log messages during calls of this session (`level`, `logger`, `data`).
- A server is missing? `mcp.servers.find(\"postgres\")` lists those that the user approved, and `mcp.servers.request(name, why=\"…\")`
  asks the user to add one (shell: `mcp servers find`, `mcp servers request`). Nothing else adds a server.
- `mcp.output(handle)` is the whole output of an earlier cell whose output was cut.
- A cell may make 1,000 calls, 64 at the same time.

Do the whole job in one cell if you can: loop, filter and join in code, and print only what you need to know.
",
        send = name_code_tools(config),
        file_tools = match config.server.tools.contains(Toolset::Files) {
            true => " `sandbox_write_file`, `sandbox_read_file` and `sandbox_list_files` move files without\n  code.",
            false => "",
        },
        writable = name_mounts(config, MountAccess::ReadWrite, " and to ", " (the user sees what is there)"),
        mounts = name_mounts(config, MountAccess::ReadOnly, ", except ", " (read-only)"),
        packages = name_packages(config),
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

/// Returns the names of the tools that run code, as far as agents see them.
fn name_code_tools(config: &ServerSetup) -> String {
    let mut tools = vec![(Toolset::Code, "`execute_code`"), (Toolset::Python, "`run_python`")];
    tools.retain(|(toolset, _)| config.server.tools.contains(*toolset));
    let names: Vec<&str> = tools.into_iter().map(|(_, name)| name).collect();
    if names.is_empty() { "the tool that runs it".to_owned() } else { names.join(" or ") }
}

/// Returns the mounts with this access, between two texts; empty without any.
fn name_mounts(config: &ServerSetup, access: MountAccess, before: &str, after: &str) -> String {
    let mounts = config.policy.mounts.iter().filter(|mount| mount.access == access);
    let names: Vec<String> = mounts.map(|mount| format!("`{}`", display_path(&mount.target))).collect();
    if names.is_empty() { String::new() } else { format!("{before}{}{after}", names.join(", ")) }
}

/// Returns sentences about the packages that the operator installed.
fn name_packages(config: &ServerSetup) -> String {
    let packages = &config.policy.packages;
    let program = config.policy.python.as_ref().map(|path| path.to_string_lossy());
    let chosen = program.and_then(|program| packages.for_python(&program));
    let sentence = |(language, layer): (&str, Option<&PackageLayer>)| {
        let packages = layer?.packages.iter();
        let names: Vec<String> = packages.map(|package| format!("{} {}", package.name, package.version)).collect();
        Some(format!("For {language} there are {}. ", names.join(", ")))
    };
    let layers = [("python", chosen.or(packages.python.first())), ("node", packages.node.as_ref())];
    layers.into_iter().filter_map(sentence).collect()
}
