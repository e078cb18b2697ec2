// What cells see of each other and of Node, and how their values are shown.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { test } from "node:test";
import { MAJOR, NODE, sleep, withShim } from "./driver.mjs";

test(
  "declarations last and may be made again",
  withShim(async (shim) => {
    await shim.check("const a = 1; let b = 2; var c = 3; class D {} function e() { return a }", "");
    await shim.check("[a, b, c, typeof D, e()]", "[ 1, 2, 3, 'function', 1 ]\n");
    await shim.check("const a = 10; let b = 20; var c = 30; class D { x = 1 }", "");
    await shim.check("[a, b, c, new D().x, e()]", "[ 10, 20, 30, 1, 10 ]\n");
    await shim.check("const { x, ...rest } = { x: 1, y: 2 }", "");
    await shim.check("[x, rest]", "[ 1, { y: 2 } ]\n");
    await shim.check("b += 1; undeclared = 5; b", "21\n");
    await shim.check("undeclared", "5\n");
  }),
);

test(
  "a name may be declared again in another way",
  withShim(async (shim) => {
    const ways = {
      let: (name) => `let ${name} = "let"`,
      const: (name) => `const ${name} = "const";`,
      var: (name) => `var ${name} = "var"`,
      pattern: (name) => `const { a: [${name}] } = { a: ["pattern"] }`,
      class: (name) => `class ${name} { method() { return "${name} {" } }`,
      function: (name) => `async function ${name}(a = {}) { return /[}]/.test(a) }`,
    };
    for (const [first, declare] of Object.entries(ways)) {
      for (const [second, again] of Object.entries(ways)) {
        const name = `${first}_${second}`;
        await shim.check(declare(name), "");
        const expected = { class: `[class ${name}]`, function: `[AsyncFunction: ${name}]` };
        await shim.check(`${again(name)}\nconsole.log(${name})`, `${expected[second] ?? second}\n`);
      }
    }
    // A constant stays a constant.
    assert.equal((await shim.run("let const_const = 1; const_const = 2")).type, "SyntaxError");
    assert.equal((await shim.run("let twice = 1; let twice = 2")).type, "SyntaxError");
  }),
);

test(
  "a declaration that failed can be made again",
  withShim(async (shim) => {
    assert.equal((await shim.run("let q = nope()")).kind, "r");
    assert.equal((await shim.run("q")).type, "ReferenceError");
    await shim.check("let q = 1; q", "1\n");
  }),
);

test(
  "top-level await",
  withShim(async (shim) => {
    const wait = "new Promise((resolve) => setTimeout(resolve, 20, 7))";
    await shim.check(`const z = await ${wait}; class K {}`, "");
    await shim.check("z * 6", "42\n");
    await shim.check("const z = await 1; for await (const y of [2]) z; typeof K", "'function'\n");
    // boot.js alone runs a plain cell, and one whose await ends at once.
    assert.deepEqual(shim.loads, ["process_guard", "interrupts"]);
  }),
);

test(
  "values are shown as in Node's REPL",
  withShim(async (shim) => {
    for (const [code, shown] of [
      ["1 + 1", "2\n"],
      ["'text'", "'text'\n"],
      ["5;", "5\n"],
      ["const k = 9", ""],
      ["undefined", ""],
      ["void 0;", ""],
      ["null", "null\n"],
      ["-0", "-0\n"],
      ["NaN", "NaN\n"],
      ["12n", "12n\n"],
      ["Symbol('s')", "Symbol(s)\n"],
      ["({ a: 1 })", "{ a: 1 }\n"],
      ["{ a: 1 }", "{ a: 1 }\n"],
      ["{ let v = 1; v + 1 }", "2\n"],
      ["{}", "{}\n"],
      ["new Map([[1, { a: { b: { c: 1 } } }]])", "Map(1) { 1 => { a: { b: [Object] } } }\n"],
      ["[1, 2].map((x) => x * 2)", "[ 2, 4 ]\n"],
      ["(function named() {})", "[Function: named]\n"],
      ["Promise.resolve(3)", "3\n"],
      ["(async () => { await 0; return { done: true } })()", "{ done: true }\n"],
      ["Promise.resolve()", ""],
      ["({ then: 1 })", "{ then: 1 }\n"],
      ["", ""],
      [" \n ", ""],
      ["// nothing", ""],
      ["/* open", null],
      ["'\\u00e9\\u{1f600}'", "'é😀'\n"],
      ["process.stdout.write('no newline'); 1", "no newline1\n"],
    ]) {
      const { kind, out } = await shim.run(code);
      assert.deepEqual([kind, out], shown === null ? ["r", ""] : ["c", shown], code);
    }
    const { out } = await shim.run("Array.from({ length: 1000 }, (_, i) => i)");
    assert.match(out, /900 more items/);
    assert((await shim.out("'x'.repeat(50000)")).length < 10100);
  }),
);

test(
  "output of children comes in order",
  withShim(async (shim) => {
    await shim.check(
      `console.log("1");
      require("child_process").execSync("echo 2", { stdio: "inherit" });
      console.log("3");
      require("child_process").spawnSync("sh", ["-c", "echo 4"], { stdio: "inherit" });
      5`,
      "1\n2\n3\n4\n5\n",
    );
    const { out, err } = await shim.run("console.error('e'); console.log('o'); console.warn('w')");
    assert.deepEqual([out, err], ["o\n", "e\nw\n"]);
  }),
);

test(
  "all of a large output comes before the end",
  withShim(async (shim) => {
    assert.equal((await shim.out("void process.stdout.write('x'.repeat(3e6))")).length, 3e6);
    const { out } = await shim.run("for (let i = 0; i < 20000; i++) console.log('line ' + i)");
    assert.equal(out.split("\n").length, 20001);
    // Nothing waits in memory.
    await shim.check("process.stdout.writableLength", "0\n");
  }),
);

const files = {
  "local.js": "exports.local = 1; exports.where = __dirname;",
  "module.mjs": "export default 77; export const a = 5;",
  "data.json": '{ "j": 1 }',
  "node_modules/common/index.js": "module.exports = { v: 3 };",
  "node_modules/modern/package.json": '{ "type": "module", "exports": "./i.js" }',
  "node_modules/modern/i.js": "export const e = 9; export default () => 10;",
};

test(
  "require and import, from the working directory",
  withShim({ files }, async (shim) => {
    await shim.check("require('fs') === require('node:fs')", "true\n");
    await shim.check(
      "const { local, where } = require('./local.js'); [local, where]",
      `[ 1, '${shim.cwd}' ]\n`,
    );
    await shim.check("require('common').v", "3\n");
    await shim.check("(await import('./module.mjs')).default", "77\n");
    await shim.check("import('modern').then((m) => m.e)", "9\n");
    await shim.check(
      "const late = () => import('node:os'); typeof (await late()).cpus",
      "'function'\n",
    );
    await shim.check(
      `import fs from "node:fs";
      import { a as b } from "./module.mjs"
      import * as all from './module.mjs';
      import ten, { e } from "modern"; import "./module.mjs";
      [typeof fs.readFileSync, b, all.default, ten(), e]`,
      "[ 'function', 5, 77, 10, 9 ]\n",
    );
    await shim.check("[b, e]", "[ 5, 9 ]\n");
    await shim
      .check("import j from './data.json' with { type: 'json' }; j", "{ j: 1 }\n", {
        // Node 18 and 20 warn that it is experimental.
      })
      .catch((error) => MAJOR < 22 || Promise.reject(error));
    const missing = await shim.run("import { nope } from './module.mjs'");
    assert.equal(missing.type, "SyntaxError");
    assert.match(missing.message, /does not provide an export named 'nope'/);
    assert.equal((await shim.run("import x from 'no-such-package'")).kind, "r");
    assert.equal((await shim.run("require('no-such-package')")).kind, "r");
    const url = `file://${shim.cwd}/module.mjs`;
    await shim.check("import.meta.resolve('./module.mjs')", `'${url}'\n`);
    await shim.check("import.meta.dirname", `'${shim.cwd}'\n`);
    await shim.check(
      "import { createRequire } from 'module'; createRequire(import.meta.url)('common')",
      "{ v: 3 }\n",
    );
    await shim.check("export const x = 1; export default { x }; export { x as y };\nx", "1\n");
  }),
);

test(
  "variables that a script expects",
  withShim(async (shim) => {
    await shim.check("require.main === module", "true\n");
    await shim.check("[__dirname, __filename]", `[ '${shim.cwd}', '${shim.cwd}/<cell 2>' ]\n`);
    await shim.check("__filename", "'/elsewhere/a.js'\n", { name: "/elsewhere/a.js" });
    await shim.check("exports === module.exports", "true\n");
    await shim.check("process.argv.slice(1)", "[ '<cell 5>', '-x', 'ü' ]\n", { args: ["-x", "ü"] });
    await shim.check("process.argv[0] === process.execPath", "true\n");
    await shim.check("[process.execArgv, process._eval]", "[ [], undefined ]\n");
    await shim.check("process.cwd()", `'${shim.cwd}'\n`);
    await shim.check("this === globalThis", "true\n");
    await shim.check("require('fs').readFileSync(0, 'utf8')", "''\n");
  }),
);

test(
  "the shim leaves nothing in globalThis",
  withShim(async (shim) => {
    const list = "console.log(Reflect.ownKeys(globalThis).map(String).sort().join())";
    const bare = execFileSync(NODE, ["-e", `setImmediate(() => ${list})`], { encoding: "utf8" });
    await shim.check(list, bare);
    await shim.check(
      "[process.listenerCount('uncaughtException'), process.listenerCount('exit')]",
      "[ 0, 0 ]\n",
    );
    await shim.check("Object.keys(Error)", "[ 'stackTraceLimit' ]\n");
  }),
);

test(
  "background work goes on between cells",
  withShim(async (shim) => {
    await shim.check("let ticks = 0; const timer = setInterval(() => ticks++, 5); 'on'", "'on'\n");
    await sleep(1000);
    await shim.check("ticks > 3", "true\n");
    await shim.check("clearInterval(timer); setTimeout(() => console.log('late'), 30); 1", "1\n");
    await sleep(1000);
    // Its output comes with the next cell.
    await shim.check("2", "late\n2\n");
  }),
);

test(
  "a cell does not wait for timers and servers",
  withShim(async (shim) => {
    const code = `const http = require("http");
      const server = http.createServer((request, response) => response.end("hello"));
      await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
      const url = "http://127.0.0.1:" + server.address().port;`;
    await shim.check(code, "");
    await shim.check("await (await fetch(url)).text()", "'hello'\n", {}).catch((error) => {
      // Node 18 warns that fetch is experimental.
      if (MAJOR > 18) throw error;
    });
    await shim.check("server.close(); setTimeout(() => {}, 1e6); 1", "1\n");
  }),
);

test(
  "children, forks and threads",
  withShim({ files: { "child.js": "process.send(process.execArgv)" } }, async (shim) => {
    await shim.check(
      `const { fork, spawn } = require("child_process");
      await new Promise((resolve) => fork("./child.js").on("message", resolve))`,
      "[]\n",
    );
    // They do not get the shim's socket.
    const code = `const socket = require("fs").readlinkSync("/proc/self/fd/3");
      const theirs = String(require("child_process").execSync("ls -l /proc/self/fd"));
      [socket.startsWith("socket:"), theirs.includes(socket)]`;
    await shim.check(code, "[ true, false ]\n");
    await shim.check(
      `const { Worker } = require("worker_threads");
      const thread = new Worker("require('worker_threads').parentPort.postMessage(6 * 7)", { eval: true });
      await new Promise((resolve) => thread.on("message", resolve))`,
      "42\n",
    );
  }),
);

test(
  "code of a megabyte",
  withShim(async (shim) => {
    await shim.check(`const big = "${"x".repeat(1 << 20)}"; big.length`, `${1 << 20}\n`);
    await shim.check(`${"1 +\n".repeat(20000)}1`, "20001\n");
  }),
);

test(
  "printed output does not stay in memory",
  withShim(async (shim) => {
    const code = `const { write } = process.stdout;
      process.stdout.write = () => true;
      for (let i = 0; i < 600; i++) console.log({ a: new Uint8Array(1e6) });
      process.stdout.write = write;
      process.memoryUsage().arrayBuffers < 300e6`;
    await shim.check(code, "true\n");
    await shim.check("console.log.name", "'log'\n");
  }),
);

test(
  "memory of abandoned results is freed",
  withShim(async (shim) => {
    for (let index = 0; index < 40; index += 1) await shim.out("new Uint8Array(20e6)");
    const used = await shim.out("console.log(process.memoryUsage().arrayBuffers / 1e6)");
    assert(Number(used) < 500, used);
  }),
);

test(
  "typescript",
  withShim(async (shim) => {
    const options = { name: "<cell.ts>" };
    if (MAJOR < 22) {
      const done = await shim.run("const a: number = 1", options);
      assert.equal(done.kind, "r");
      assert.match(done.message, /TypeScript needs Node 22.13 or newer, and this is v/);
      // A cell that is not TypeScript is not touched.
      await shim.check("1 + 1", "2\n");
      // As a newer Node would.
      const strip = (code, { mode }) => {
        const isUnsupported = code.includes("enum") && mode === "strip";
        if (isUnsupported) throw Object.assign(new Error("no"), { code: "ERR_UNSUPPORTED_TYPESCRIPT_SYNTAX" });
        if (code.includes("<<<")) throw new SyntaxError("Expression expected");
        process.emitWarning("it is experimental", "ExperimentalWarning");
        return code.replace(": number", "        ").replace("enum A { B = 7 }", "var A = { B: 7 };");
      };
      await shim.check(`require("module").stripTypeScriptTypes = ${strip}; undefined`, "");
    }
    await shim.check("const a: number = 40;\na + 2", "42\n", options);
    await shim.check("a + (await Promise.resolve(1))", "41\n", { name: "x.ts" });
    await shim.check("enum A { B = 7 }\nA.B", "7\n", options);
    assert.equal((await shim.run("let x = <<<", options)).type, "SyntaxError");
    await shim.check("a", "40\n");
  }),
);
