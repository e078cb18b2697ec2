// The library for tools, with a fake host.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { PNG, withBroker } from "./broker.mjs";
import { Shim, sleep } from "./driver.mjs";

const raises = async (shim, code, type) => {
  const done = await shim.run(code);
  assert.equal(done.kind, "r", JSON.stringify({ code, ...done }));
  assert.equal(done.type, type, JSON.stringify({ code, ...done }));
  assert(!done.err.includes("cove:"), done.err);
  return done;
};

test(
  "a cell without tools sends no request",
  withBroker(async (shim, broker) => {
    await shim.check("const a = [1]; a.length", "1\n");
    assert.equal(broker.lines, 0);
    assert(!shim.loads.includes("mcp"));
    await shim.check("typeof globalThis['m' + 'cp']", "'undefined'\n");
  }),
);

test(
  "calls by name",
  withBroker(async (shim, broker) => {
    await shim.check("await mcp.github.echo({ a: 1, b: null, c: undefined })", "{ a: 1, b: null }\n");
    assert.deepEqual(broker.calls()[0].arguments, { a: 1, b: null });
    await shim.check("mcp.github.echo()", "{}\n");
    await shim.check("(await mcp.github.list_issues({ owner: 'o' }))[0].user.login", "'é'\n");
    await shim.check("await mcp.call('github', 'echo', { a: 1 })", "{ a: 1 }\n");
    await shim.check("await mcp.call('github', 'echo', {}, { raw: true })", "{ content: [], isError: false }\n");
    await shim.check("await mcp.servers.github.echo({ a: 1 })", "{ a: 1 }\n");
    await shim.check("const { github } = mcp; const { echo } = github; await echo({ a: 2 })", "{ a: 2 }\n");
    await shim.check("await mcp.github.null()", "null\n");
    await shim.check("await mcp.call('github', 'echo', {}, { timeout: 1.5 })", "{}\n");
    assert.equal(broker.calls().at(-1).timeout, 1.5);
    await shim.check("[await mcp.call('github.echo', { a: 1 }), await mcp.call('my_files.read', { path: 'x' }), await mcp.call('github.echo')]", "[ { a: 1 }, { path: 'x' }, {} ]\n");
    await shim.check("await mcp.call('github.echo', {}, { raw: true })", "{ content: [], isError: false }\n");
    await shim.check("await mcp['my-files'].read({ path: 'x' })", "{ path: 'x' }\n");
    assert.match((await raises(shim, "await mcp.call('githup.echo')", "UnknownServer")).message, /did you mean `github`/);
    await raises(shim, "await mcp.call('../../etc.passwd')", "UnknownServer");
    await raises(shim, "await mcp.call('github')", "BadArguments");
  }),
);

test(
  "integers beyond 2^53 stay exact",
  withBroker(async (shim, broker) => {
    const code = "await mcp.github.echo({ a: 9007199254740993n, b: [-(2n ** 70n)], c: 5n, d: 2 ** 53, e: '1234567890123456789' })";
    assert.equal((await shim.run(code)).kind, "c");
    const whole = '{"a":9007199254740993,"b":[-1180591620717411303424],"c":5,"d":9007199254740992,"e":"1234567890123456789"}';
    assert.equal(broker.texts.at(-1).match(/"arguments":(.*})}$/)[1], whole);
    broker.literal = whole;
    await shim.check("const big = await mcp.github.literal(); big", "{\n  a: 9007199254740993n,\n  b: [ -1180591620717411303424n ],\n  c: 5,\n  d: 9007199254740992n,\n  e: '1234567890123456789'\n}\n");
    // `JSON.stringify` works with them, and so does passing them on.
    await shim.check("JSON.parse(JSON.stringify(big)).e.length && JSON.stringify(big).includes('9007199254740993')", "true\n");
    await shim.check("await mcp.github.echo(big); big.a === 9007199254740993n", "true\n");
    // Digits in strings and keys, fractions and exponents are no integers.
    for (const text of ['"\\\\\\"12345678901234567890"', '{"12345678901234567890":1}', "0.1234567890123456789", "1234567890123456789.5", "1e1234567890123456789", '"a\\\\"']) {
      broker.literal = text;
      await shim.check(`JSON.stringify(await mcp.github.literal()) === JSON.stringify(JSON.parse(${JSON.stringify(text)}))`, "true\n");
    }
    broker.literal = '[12345678901234567890,"x\\\\",-12345678901234567890]';
    await shim.check("await mcp.github.literal()", "[ 12345678901234567890n, 'x\\\\', -12345678901234567890n ]\n");
  }),
);

test(
  "spellings",
  withBroker(async (shim) => {
    await shim.check("await mcp.github.get_sum({ cik_A: 1, from: 2 })", "{ 'cik-A': 1, from: 2 }\n");
    await shim.check("await mcp.github['get-sum']({ 'cik-A': 1, from_: 2 })", "{ 'cik-A': 1, from: 2 }\n");
    await shim.check("[await mcp.github['a-b'](), await mcp.github.a_b(), await mcp.github.a_b_2()]", "[ 'dash', 'underscore', 'dash' ]\n");
    await shim.check("[await mcp.my_files.read({ path: 'x' }), await mcp['my-files'].read('y')]", "[ { path: 'x' }, { path: 'y' } ]\n");
    const done = await raises(shim, "await mcp.github.list_issues('o', 'r')", "BadArguments");
    assert.match(done.message, /hint: give one object/);
  }),
);

test(
  "errors",
  withBroker(async (shim) => {
    const done = await raises(shim, "async function f() {\n  return await mcp.github.fail();\n}\nawait f()", "ToolError");
    assert.equal(done.message, "github.fail: no such repo\nhint: check the name");
    assert.match(done.err, /at async f \(<cell 1>:2:10\)/);
    await shim.check(
      "try { await mcp.github.fail() } catch (e) { console.log(e instanceof mcp.ToolError, e instanceof mcp.MCPError, e instanceof Error, e.name, e.kind, e.words, e.hint, e.server, e.tool, e.structured.code, e.content[0].text) }",
      "true true true ToolError tool no such repo check the name github fail 5 no such repo\n",
    );
    const kinds = {
      ...{ tool: "ToolError", unknown_server: "UnknownServer", unknown_tool: "UnknownTool" },
      ...{ bad_arguments: "BadArguments", refused: "Refused", unavailable: "ServerUnavailable" },
      ...{ gone: "ServerGone", timeout: "CallTimeout", protocol: "ProtocolError", limit: "LimitExceeded" },
      ...{ elicitation_required: "ElicitationRequired", sign_in_needed: "SignInNeeded" },
      ...{ tool_changed: "ToolChanged", server_held: "ServerHeld" },
      ...{ internal: "MCPError", brand_new: "MCPError", constructor: "MCPError" },
    };
    for (const [kind, name] of Object.entries(kinds)) {
      const code = `try { await mcp.github.error({ kind: "${kind}" }) } catch (e) { console.log(e.constructor === mcp.${name}, e.kind, e.code, e.data.a) }`;
      await shim.check(code, `true ${kind} -32000 1\n`);
    }
    const unknown = await raises(shim, "await mcp.github.list_isues({})", "UnknownTool");
    assert.match(unknown.message, /did you mean `list_issues`/);
    await raises(shim, "await mcp.nope.echo()", "UnknownServer");
    await raises(shim, "await mcp.help('nope')", "UnknownServer");
    for (const value of ["NaN", "Buffer.from('x')", "'\\ud800'", "(() => { const a = []; a.push(a); return a })()"]) {
      await raises(shim, `await mcp.github.echo({ a: ${value} })`, "BadArguments");
    }
    await shim.check("await mcp.github.echo({ a: '\\\\ud800 \\u{1f600}', s: new Set([1]) })", "{ a: '\\\\ud800 \u{1f600}', s: [ 1 ] }\n");
  }),
);

test(
  "search",
  withBroker(async (shim) => {
    const text = "node\n// Lists. Really.\n// also: github.a, time.b\n// 1 of 7 matches\n// for issues\n";
    await shim.check("await mcp.find('issues')", text);
    await shim.check("await mcp.find()", "github (2 tools): Code\ntime (1 tool)\n// search\n");
    await shim.check("const f = await mcp.find('issues', { limit: 1 }); console.log(f); [f.length, f[0].tool, f.map((t) => t.server), f.total]", `${text}[ 1, 'list_issues', [ 'github' ], 7 ]\n`);
    await shim.check("mcp.help()", "the manual\nof two lines\n");
    assert.match(await shim.out("await mcp.help('github')"), /^mcp\.github\.list_issues/);
    for (const topic of ["'github.echo'", "mcp.github.echo"]) {
      await shim.check(`await mcp.help(${topic})`, "mcp.github.echo({  })\n");
    }
    await raises(shim, "await mcp.help('github.nope')", "UnknownTool");
    await shim.check("(await mcp.servers).map((s) => s.name)", "[ 'github', 'my-files' ]\n");
    await shim.check("(await mcp.servers()).length", "2\n");
    await shim.check("await mcp.output('o_1')", "'all of it'\n");
    await raises(shim, "await mcp.output('o_2')", "MCPError");
    await shim.check("const r = await mcp.github.resources.list(); [r[0].uri, r.templates.length]", "[ 'a://1', 1 ]\n");
    await shim.check("const c = await mcp.github.prompts.complete('greet', 'who', 'a', { n: 1 }); [c.join(), c.hasMore, c.total]", "[ 'greet,who,a,{\"n\":\"1\"}', true, 9 ]\n");
    await shim.check("(await mcp.github.resources.complete('a://{n}', 'n')).join()", "'a://{n},n,,{}'\n");
    await shim.check("const s = await mcp.github.resources.subscribe('a://1'); const w = [s.uri, await s.wait(0), await s.wait(), await s.wait(1)]; await s.close(); await s.close(); w", "[ 'a://1', 0, 3, 3 ]\n");
    await shim.check("const l = await mcp.logs(mcp.github); [l[0].data, l.dropped]", "[ 'github', 4 ]\n");
    await shim.check("[await mcp.github.resources.read('a://1'), (await mcp.github.resources.read('a://2')).bytes]", "[ { a: [ 1 ] }, <Buffer 00 ff> ]\n");
    await shim.check("[(await mcp.github.prompts.list())[0].name, (await mcp.github.prompts.get('greet', { n: 1 })).messages[0].content]", "[ 'greet', { n: '1' } ]\n");
    await shim.check("(await mcp.runtime.query_tool_docs('github', 'get_sum', 'full')).inputSchema.properties", "{ 'cik-A': {}, from: {} }\n");
    await shim.check("[await mcp.runtime.list_servers(), (await mcp.runtime.search_tool_docs('x'))[0].tool]", "[ [ 'github', 'my-files' ], 'list_issues' ]\n");
    // Showing these makes no call.
    await shim.check("[mcp, mcp.github, mcp.servers].map((x) => require('util').inspect(x)[0])", "[ '[', '[', '[' ]\n");
    await shim.check("await mcp === mcp && await mcp.github !== undefined", "true\n");
  }),
);

test(
  "results that are more than text",
  withBroker(async (shim) => {
    const done = await shim.run("const x = await mcp.github.image(); x");
    assert.equal(done.out, "see\n<audio/wav, 3 bytes>\n<x/y, 2 bytes>\n{ type: 'resource_link', uri: 'a://1' }\n");
    assert.deepEqual(shim.images, [Buffer.concat([Buffer.from("p"), PNG])]);
    await shim.check("[x.text, x.content.length, x.images[0].mime, x.audio[0].bytes, x.resources[1].uri]", "[ 'see', 5, 'image/png', <Buffer 00 01 02>, 'a://1' ]\n");
    await shim.check("x.save('a.png')", "'a.png'\n");
    assert.deepEqual(readFileSync(join(shim.cwd, "a.png")), PNG);
    await shim.run("x.images[0]");
    assert.equal(shim.images.length, 1);
    await shim.check("console.log(`${x}`.split('\\n')[1])", "<image/png, 12 bytes>\n");
  }),
);

test(
  "many calls at once, large ones, and replies out of order",
  withBroker(async (shim, broker) => {
    const code =
      "(await Promise.all(Array.from({ length: 100 }, (_, n) => mcp.github.slow({ n, ms: 200 - n * 2 })))).every((x, n) => x.n === n)";
    await shim.check(code, "true\n");
    assert(broker.most > 50);
    assert.equal(broker.lines, 1);
    await shim.check("(await mcp.github.big()).length", `${5 << 20}\n`);
    await shim.check("(await mcp.github.echo({ a: 'é'.repeat(500_000) })).a.length", "500000\n");
    await shim.check("await mcp.github.garbage({ how: 'bytes' })", "'slowly'\n");
    await raises(shim, "await mcp.github.echo({ a: 'x'.repeat(9_000_000) })", "LimitExceeded");
    await shim.check("(await Promise.all(Array.from({ length: 2000 }, (_, n) => mcp.github.echo({ n })))).length", "2000\n");
  }),
);

test(
  "a host that breaks",
  withBroker(async (shim, broker) => {
    for (const how of ["text", "length", "shape", "utf8", "no id", "both", "error"]) {
      const done = await raises(shim, `await mcp.github.garbage({ how: "${how}" })`, "MCPError");
      assert.match(done.message, /cannot be read/);
    }
    assert.equal((await raises(shim, "await mcp.github.garbage({ how: 'refused' })", "LimitExceeded")).message, "too long");
    await shim.check("await mcp.github.garbage({ how: 'two' })", "1\n");
    broker.requests.length = 0;
    await raises(shim, "await mcp.github.hang_up()", "ServerGone");
    assert.equal(broker.calls().length, 1);
    await shim.check("await mcp.github.echo({ a: 1 })", "{ a: 1 }\n");
    for (const socket of broker.sockets) socket.destroy();
    await sleep(1000);
    await shim.check("await mcp.github.echo({ a: 1 })", "{ a: 1 }\n");
    broker.close();
    await sleep(1000);
    assert.match((await raises(shim, "await mcp.github.echo()", "ServerUnavailable")).message, /ENOENT/);
  }),
);

test(
  "calls that a cell does not wait for, and interrupts",
  withBroker(async (shim, broker) => {
    await shim.check("for (let n = 0; n < 3; n += 1) mcp.github.slow({ n }); 1", "1\n");
    assert.equal(broker.now, 0);
    assert.equal((await raises(shim, "mcp.github.fail(); 1", "ToolError")).out, "1\n");
    await shim.check("mcp.github.echo().then(() => mcp.github.echo()); 1", "1\n");
    for (const code of ["await mcp.github.slow({ ms: 5000 })", "mcp.github.slow({ ms: 5000 }); 1"]) {
      const done = await shim.run(code, { interrupt: 150 });
      assert.equal(done.kind, "i", JSON.stringify(done));
      broker.cancelAll();
      // It must not fail the next cell.
      await shim.check("await mcp.github.slow({ n: 2, ms: 50 })", "{ n: 2, ms: 50 }\n");
    }
    // The host answers before its interrupt arrives, which must not meet the next cell.
    setTimeout(() => broker.cancelAll(), 150);
    const done = await shim.run("await mcp.github.slow({ ms: 60000 })", { interrupt: 400 });
    assert.equal(done.kind, "i", JSON.stringify(done));
  }),
);

test(
  "a cell may use the name mcp itself",
  withBroker(async (shim) => {
    await shim.check("const mcp = 3; mcp", "3\n");
    await shim.check("globalThis.mcp.github.echo({ a: 1 })", "{ a: 1 }\n");
  }),
);

test("without a host", async () => {
  const shim = new Shim();
  assert.match((await raises(shim, "await mcp.github.echo()", "ServerUnavailable")).message, /COVE_MCP/);
  assert.equal(await shim.close(), 3);
});
