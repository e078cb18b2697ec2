// Names of JavaScript, of the library and of servers; malformed answers.
import assert from "node:assert/strict";
import { test } from "node:test";
import { withBroker } from "./broker.mjs";

test(
  "servers and tools of any name",
  withBroker(async (shim, broker) => {
    broker.instead.call = ({ server, tool, arguments: args }) => ({ value: [server, tool, args] });
    const names = ["class", "__init__", "mcp", "runtime", "find", "servers", "length", "name", "then", "toString", "constructor"];
    for (const name of names) {
      await shim.check(`await mcp.call("${name}", "${name}", { a: 1 })`, `[ '${name}', '${name}', { a: 1 } ]\n`);
    }
    for (const name of ["class", "__init__", "mcp", "runtime", "find", "length", "name", "default"]) {
      await shim.check(`await mcp.servers["${name}"].act()`, `[ '${name}', 'act', {} ]\n`);
      await shim.check(`await mcp.github["${name}"]()`, `[ 'github', '${name}', {} ]\n`);
    }
    await shim.check("[await mcp_github.echo(), await mcp_servers.my_files.read(), await mcp_servers['a b'].c()]", "[\n  [ 'github', 'echo', {} ],\n  [ 'my_files', 'read', {} ],\n  [ 'a b', 'c', {} ]\n]\n");
    await shim.check("const mcp_mine = 5; mcp_mine", "5\n");
    await shim.check("mcp_servers === mcp.servers", "true\n");
    // What JavaScript does with any object by itself makes no call.
    broker.requests.length = 0;
    await shim.check("[`${mcp}`[0], `${mcp.github}`[0], mcp.servers + '', String(mcp_github)[0]].length", "4\n");
    await shim.check("[mcp.github == 1, mcp == 'x', typeof mcp.github.then, typeof mcp.then, JSON.stringify(mcp.github.echo)]", "[ false, false, 'undefined', 'undefined', undefined ]\n");
    await shim.check("[await mcp, await mcp.github, await mcp_github.echo].length", "3\n");
    await shim.check("[Object.getPrototypeOf(mcp), mcp.__proto__, mcp.github.__proto__ === Object.prototype, mcp.github.constructor === Object]", "[ null, undefined, true, true ]\n");
    await shim.check("structuredClone(JSON.parse(JSON.stringify({ a: 1 }))).a; console.log(mcp.github, mcp, mcp.servers); 1", "[server github: await mcp.help(\"github\") shows its tools] [mcp: await mcp.help(), await mcp.find(\"what to do\"), await mcp.servers] [servers: await mcp.servers lists them]\n1\n");
    assert.deepEqual(broker.requests, []);
  }),
);

test(
  "parameters of any name",
  withBroker(async (shim, broker) => {
    await shim.check('await mcp.github.echo(JSON.parse(\'{"__proto__": 1, "constructor": 2, "then": 3}\'))', "{ ['__proto__']: 1, constructor: 2, then: 3 }\n");
    broker.instead.call = ({ arguments: args }) => ({ value: Object.keys(args) });
    await shim.check('await mcp.github["get-sum"](JSON.parse(\'{"__proto__": 1, "cik-A": 2}\'))', "[ '__proto__', 'cik-A' ]\n");
  }),
);

test(
  "whole results, and the names of other languages",
  withBroker(async (shim) => {
    await shim.check("await mcp.github.echo.raw({ a: 1 })", "{ content: [], isError: false }\n");
    await shim.check("await mcp.runtime.call_tool('github', 'echo', {}, { raw: true })", "{ content: [], isError: false }\n");
    await shim.check("const x = await mcp.github.image(); [x instanceof mcp.Result, x.raw.content.length, 'text' in x.raw]", "[ true, 5, false ]\n");
    await shim.check("[mcp.McpError === mcp.MCPError, mcp.runtime.MCPError === mcp.MCPError]", "[ true, true ]\n");
    await shim.check("const r = mcp.runtime; [await r.list_servers_sync(), (await r.list_tools_sync('github')).length, (await r.query_tool_docs_sync('github', 'echo')).tool, (await r.search_tool_docs_sync('x')).length]", "[ [ 'github', 'my-files' ], 5, 'echo', 1 ]\n");
    await shim.check("(await r.list_loaded_server_metadata()).map((s) => [s.name, s.tools.length])", "[ [ 'github', 5 ], [ 'my-files', 1 ] ]\n");
    for (const [code, pattern] of [
      ["await mcp.help('githup')", /did you mean `github`\?/],
      ["await r.describe_server('zzz')", /await mcp\.find/],
      ["await r.query_tool_docs('github', 'ecko')", /did you mean `echo`\?/],
      ["await r.query_tool_docs('github', 'echo', 'some')", /"summary" or "full"/],
    ]) {
      const done = await shim.run(code);
      assert.equal(done.kind, "r");
      assert.match(done.message, pattern);
    }
  }),
);

test(
  "malformed answers",
  withBroker(async (shim, broker) => {
    const asks = {
      servers: ["await mcp.servers", "await mcp.runtime.discovered_servers()"],
      tools: ["await mcp.runtime.list_tools('github')", "await mcp.github.echo(1, 2)"],
      find: ["await mcp.find('x')"],
      help: ["await mcp.help()", "await mcp.help('github')"],
      call: ["await mcp.github.echo()", "mcp.github.echo()"],
      resources: ["await mcp.github.resources.list()"],
      read_resource: ["await mcp.github.resources.read('x')"],
      prompts: ["await mcp.github.prompts.list()"],
      prompt: ["await mcp.github.prompts.get('x')"],
      output: ["await mcp.output('x')"],
      complete: ["await mcp.github.prompts.complete('x', 'y')", "await mcp.github.resources.complete('x', 'y')"],
      subscribe: ["await mcp.github.resources.subscribe('x')"],
      changes: ["await (await mcp.github.resources.subscribe('x')).wait(0)"],
      logs: ["await mcp.logs('github')"],
    };
    for (const [kind, codes] of Object.entries(asks)) {
      for (const value of [5, null, [1], [{}], {}, { tools: 1, text: 1, contents: {}, rich: 1 }, kind === "help" ? [] : ""]) {
        broker.instead = { [kind]: () => value };
        for (const code of codes) {
          const done = await shim.run(code);
          assert.equal(`${done.kind} ${done.type}`, "r MCPError", JSON.stringify({ kind, value, code, done }));
          assert.match(done.message, /cannot be read/);
        }
      }
    }
    broker.instead = {};
    await shim.check("await mcp.github.echo({ a: 1 })", "{ a: 1 }\n");
    const content = [1, null, {}, { type: "image" }, { type: "image", data: 5 }, { type: "resource", resource: 7 }];
    broker.instead.call = () => ({ rich: { text: 5, content } });
    await shim.check("const y = await mcp.github.image(); [y.text, y.content.length, y.images.length, y.resources]", "[ '5', 6, 2, [ undefined ] ]\n");
  }),
);
