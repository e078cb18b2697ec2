// What is printed and reported for uncaught exceptions.
import assert from "node:assert/strict";
import { test } from "node:test";
import { MAJOR, sleep, withShim } from "./driver.mjs";

async function check(shim, code, { type, message, err }, options) {
  const done = await shim.run(code, { name: "<cell 1>", ...options });
  assert.equal(done.kind, "r", `${code}: ${JSON.stringify(done)}`);
  if (err instanceof RegExp) assert.match(done.err, err, code);
  else assert.equal(done.err, err, code);
  assert.deepEqual([done.type, done.message], [type, message], code);
}

test(
  "an exception, with its place and only the user's frames",
  withShim(async (shim) => {
    await check(shim, 'const x = 1;\nfunction f() {\n  throw new Error("boom");\n}\nf()', {
      type: "Error",
      message: "boom",
      err: `<cell 1>:3
  throw new Error("boom");
        ^

Error: boom
    at f (<cell 1>:3:9)
    at <cell 1>:5:1
`,
    });
    await check(shim, "[1].map(() => nope)", {
      type: "ReferenceError",
      message: "nope is not defined",
      err: `<cell 1>:1
[1].map(() => nope)
              ^

ReferenceError: nope is not defined
    at <cell 1>:1:15
    at Array.map (<anonymous>)
    at <cell 1>:1:5
`,
    });
    await check(shim, "require('fs').readFileSync('/nope')", {
      type: "Error",
      message: "ENOENT: no such file or directory, open '/nope'",
      // The order of its properties differs between versions.
      err: /^<cell 1>:1\nrequire.*\n {14}\^\n\nError: ENOENT: .*\n {4}at <cell 1>:1:15 \{\n {2}errno/,
    });
  }),
);

test(
  "an exception after await, and a rejection",
  withShim(async (shim) => {
    await check(shim, "await new Promise((r) => setTimeout(r, 5));\nthrow new RangeError('late')", {
      type: "RangeError",
      message: "late",
      err: `<cell 1>:2
throw new RangeError('late')
      ^

RangeError: late
    at <cell 1>:2:7
`,
    });
    const rejected = { type: "TypeError", message: "no", err: /^TypeError: no$/m };
    await check(shim, "await Promise.reject(new TypeError('no'))", rejected);
    await check(shim, "Promise.reject(new TypeError('no'))", rejected);
    await check(shim, "(async () => { await 0; throw new TypeError('no') })()", rejected);
    const wait = "await new Promise((r) => setTimeout(r, 5))";
    const code = `async function g() { ${wait}; throw new Error('g') }\nawait g()`;
    const nested = await shim.run(code, { name: "<cell 9>" });
    assert.match(nested.err, /at g \(<cell 9>:1:\d+\)\n {4}at async <cell 9>:2:1\n$/);
  }),
);

test(
  "causes, aggregates and properties",
  withShim(async (shim) => {
    const code =
      "throw Object.assign(new Error('outer', { cause: new TypeError('inner') }), { code: 'E1' })";
    const err =
      /Error: outer\n {4}at <cell 1>:1:21 \{\n {2}code: 'E1',\n {2}\[cause\]: TypeError: inner\n {6}at <cell 1>:1:49\n\}\n$/;
    await check(shim, code, { type: "Error", message: "outer", err });
    await check(shim, "throw new AggregateError([new Error('e1'), new Error('e2')], 'all')", {
      type: "AggregateError",
      message: "all",
      err: /AggregateError: all\n.*\[errors\]: \[\n {4}Error: e1\n.*\n {4}Error: e2\n/s,
    });
    const ofNode = await shim.run("Buffer.alloc('')");
    assert.match(ofNode.err, /^TypeError \[ERR_INVALID_ARG_TYPE\]: The "size" argument/m);
    await check(shim, "class Mine extends Error {}\nthrow new Mine('own')", {
      type: "Mine",
      message: "own",
      err: /^(Mine|Error|Mine \[Error\]): own$/m,
    });
  }),
);

test(
  "syntax errors show line and caret",
  withShim(async (shim) => {
    await check(shim, "const a = 1;\nlet b = 3 +;\n", {
      type: "SyntaxError",
      message: "Unexpected token ';'",
      err: "<cell 1>:2\nlet b = 3 +;\n           ^\n\nSyntaxError: Unexpected token ';'\n",
    });
    await check(shim, "let y = (1", {
      type: "SyntaxError",
      message: "Unexpected end of input",
      err: "<cell 1>:1\nlet y = (1\n          ^\n\nSyntaxError: Unexpected end of input\n",
    });
    await check(shim, "`open\nand more", {
      type: "SyntaxError",
      message: "Unexpected end of input",
      err: /^<cell 1>:\d\n/,
    });
    const inJson = await shim.run("JSON.parse('{')", { name: "<cell 1>" });
    assert.equal(inJson.type, "SyntaxError");
    assert.match(inJson.err, /^<cell 1>:1\nJSON.parse\('\{'\)\n {5}\^\n/);
    // Nothing of it has run.
    await shim.check("typeof a", "'undefined'\n");
  }),
);

test(
  "lines are right in a cell with imports",
  withShim(async (shim) => {
    const code =
      "import {\n  sep, // one\n  join as put,\n} from 'node:path';\nimport 'fs';\nnull.x";
    await check(shim, code, {
      type: "TypeError",
      message: "Cannot read properties of null (reading 'x')",
      err: /^<cell 1>:6\nnull\.x\n {5}\^\n/,
    });
  }),
);

test(
  "anything can be thrown",
  withShim(async (shim) => {
    for (const [code, type, message, err] of [
      ["throw 1", "number", "1", "Uncaught 1\n"],
      ["throw null", "null", "null", "Uncaught null\n"],
      ["throw undefined", "undefined", "undefined", "Uncaught undefined\n"],
      ["throw 'text'", "string", "text", "Uncaught 'text'\n"],
      ["throw 1n", "bigint", "1n", "Uncaught 1n\n"],
      ["throw Symbol('s')", "symbol", "Symbol(s)", "Uncaught Symbol(s)\n"],
      ["throw { a: 1 }", "Object", "{ a: 1 }", "Uncaught { a: 1 }\n"],
      ["throw Object.create(null)", "Error", "[Object: null prototype] {}", /^Uncaught \[Object/],
      ["throw () => 1", "function", "[Function (anonymous)]", /^Uncaught \[Function/],
      ["throw new Proxy(new Error('p'), {})", "Error", "p", /p/],
      ["throw Object.assign(new Error('s'), { stack: 5 })", "Error", "s", /s/],
      ["throw Object.assign(new Error('m'), { name: 7, message: 8 })", "Error", "", /m/],
      ["throw new (class extends Error { get message() { throw 1 } })()", "Error", "", /./],
      ["throw new Proxy({}, { get() { throw 1 }, has() { throw 1 } })", "Error", "", /./],
    ]) {
      await check(shim, code, { type, message, err }).catch((error) => {
        error.message = `${code}: ${error.message}`;
        throw error;
      });
    }
    await shim.check("1", "1\n");
  }),
);

test(
  "names and messages are cut between characters",
  withShim(async (shim) => {
    const { message, err } = await shim.run("throw new Error('é'.repeat(1e6))");
    assert.equal(message, "é".repeat(2048));
    assert(err.length < 70_000, err.length);
    const odd = await shim.run("throw new Error('x' + 'é'.repeat(1e4))");
    assert.equal(odd.message, `x${"é".repeat(2047)}`);
    const named = await shim.run("throw Object.assign(new Error('m'), { name: 'n'.repeat(1e5) })");
    assert.equal(named.type, "n".repeat(4096));
  }),
);

test(
  "a caught and printed error has no frames of the shim",
  withShim(async (shim) => {
    await shim.check(
      "try { null.x } catch (error) { console.log(error) }",
      "TypeError: Cannot read properties of null (reading 'x')\n    at <cell 1>:1:12\n",
    );
    await shim.check("console.log(new Error('e').stack)", "Error: e\n    at <cell 2>:1:13\n");
    // A package that makes its own stacks.
    await shim.check(
      `const old = Error.prepareStackTrace;
      Error.prepareStackTrace = (_, frames) => frames.length > 0;
      const own = new Error().stack;
      Error.prepareStackTrace = old;
      own`,
      "true\n",
    );
    await shim.check(
      "try { x() } catch ({ stack }) { stack }\nfunction x() { throw new Error('x') }",
      "'Error: x\\n    at x (<cell 4>:2:22)\\n    at <cell 4>:1:7'\n",
    );
  }),
);

test(
  "a stack through a method of console",
  withShim(async (shim) => {
    const custom = "{ [Symbol.for('nodejs.util.inspect.custom')]() { throw new Error('x') } }";
    await shim.out(`const odd = ${custom}; function show() { console.log(odd) }`);
    for (const first of ["", "Error.prepareStackTrace = undefined; "]) {
      const { err } = await shim.run(`${first}show()`, { name: "last" });
      assert.match(err, /at show \(<cell 1>:1:\d+\)\n {4}at last:1:\d+\n$/);
      assert.doesNotMatch(err, /node:|cove:/);
    }
  }),
);

test(
  "an earlier cell in a stack",
  withShim(async (shim) => {
    await shim.check("function old() {\n  return missing;\n}", "");
    const { err } = await shim.run("\n\nold()");
    assert.equal(
      err,
      `<cell 1>:2
  return missing;
  ^

ReferenceError: missing is not defined
    at old (<cell 1>:2:3)
    at <cell 2>:3:1
`,
    );
  }),
);

test(
  "a failure in the background ends the running cell",
  withShim(async (shim) => {
    // Longer than the driver has patience.
    const wait = "await new Promise((r) => setTimeout(r, 1e6))";
    for (const code of [
      `setTimeout(() => { throw new Error("bg") }, 5); ${wait}`,
      `Promise.reject(new Error("bg")); ${wait}`,
      `setTimeout(async () => { await 0; throw new Error("bg") }, 5); ${wait}`,
      'Promise.reject(new Error("bg")); undefined',
      'process.nextTick(() => { throw new Error("bg") }); undefined',
      'queueMicrotask(() => { throw new Error("bg") }); undefined',
      `require("fs").stat("/", () => { throw new Error("bg") }); ${wait}`,
      `new (require("events"))().emit("error", new Error("bg")); ${wait}`,
    ]) {
      const done = await shim.run(code);
      assert.deepEqual([done.kind, done.message], ["r", "bg"], code);
      assert.match(done.err, /^Error: bg\n {4}at .*<cell \d+>:1:/m, code);
      assert.doesNotMatch(done.err, /node:|cove:/, code);
    }
    const odd = await shim.run(`Promise.reject(5); ${wait}`);
    assert.equal(odd.kind, "r");
    assert.match(odd.message, /reason "5"/);
    await shim.check("1", "1\n");
  }),
);

test(
  "a failure between cells is printed with the next one",
  withShim(async (shim) => {
    await shim.check(
      "void setTimeout(() => { throw new Error('between') }, 1000); const kept = 1",
      "",
    );
    await sleep(4000);
    const next = await shim.run("kept");
    assert.deepEqual([next.kind, next.out], ["c", "1\n"]);
    assert.match(next.err, /^Error: between$/m);
    await shim.check("setTimeout(() => Promise.reject(new Error('rejected')), 1000); 1", "1\n");
    await sleep(4000);
    assert.match((await shim.run("2")).err, /^Error: rejected$/m);
    await shim.check("3", "3\n");
  }),
);

test(
  "the user's own handlers come first",
  withShim(async (shim) => {
    await shim
      .check("let seen = []; process.on('uncaughtException', (e) => seen.push(e.message))", /./)
      .catch(() => {});
    await shim.run("setTimeout(() => { throw new Error('mine') }, 1)");
    await sleep(1000);
    await shim.check("seen", "[ 'mine' ]\n");
    await shim.run("process.removeAllListeners('uncaughtException')");
    await shim.run("process.on('unhandledRejection', (e) => seen.push(e.message))");
    await shim.run("Promise.reject(new Error('r')); 1");
    await shim.check("seen", "[ 'mine', 'r' ]\n");
  }),
);

test(
  "a module that fails",
  withShim(
    { files: { "bad.mjs": "\nthrow new Error('in module');", "worse.js": "let x = ;" } },
    async (shim) => {
      const { err, message } = await shim.run("await import('./bad.mjs')");
      assert.equal(message, "in module");
      assert.match(err, /at file:\/\/.*\/bad\.mjs:2:7\n/);
      const worse = await shim.run("require('./worse.js')");
      assert.equal(worse.type, "SyntaxError");
      // Node 24 does not report the position.
      if (MAJOR < 24) assert.match(worse.err, /worse\.js:1\nlet x = ;/);
    },
  ),
);
