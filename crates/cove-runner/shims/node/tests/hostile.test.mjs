// Cells that damage everything they can reach. Later cells have to work all the same.
import assert from "node:assert/strict";
import { test } from "node:test";
import { MAJOR, Shim, sleep, withShim } from "./driver.mjs";

// Checks that plain cells, errors, output and waiting still work.
async function check(shim, code) {
  try {
    const { kind, out } = await shim.run("6 * 7");
    assert.deepEqual([kind, out], ["c", "42\n"]);
    const failed = await shim.run("missing");
    assert.deepEqual([failed.kind, failed.type], ["r", "ReferenceError"]);
    assert.match(failed.err, /missing is not defined/);
    assert.equal((await shim.run("await undefined; 1")).kind, "c");
    assert.equal((await shim.run("process.exit(3)")).code, 3);
    assert.equal((await shim.run("for (;;);", { interrupt: 150 })).kind, "i");
  } catch (error) {
    error.message = `after ${code}: ${error.message}`;
    throw error;
  }
}

const GLOBALS =
  "JSON Buffer Promise Array Object Function String Symbol Map Set Error TypeError SyntaxError " +
  "Reflect Proxy Number Math Atomics SharedArrayBuffer Int32Array Uint8Array console process " +
  "require module setTimeout setImmediate queueMicrotask globalThis performance URL";

test("globals set to null", async () => {
  // All in one cell, because each would need a process of its own.
  const shim = new Shim();
  const code = GLOBALS.split(" ")
    .filter((name) => name !== "process" && name !== "globalThis")
    .map((name) => `${name} = null;`)
    .join(" ");
  await shim.run(`${code} undefined`);
  const { kind, out } = await shim.run("6 * 7");
  assert.deepEqual([kind, out], ["c", "42\n"]);
  assert.equal((await shim.run("missing")).type, "ReferenceError");
  assert.equal((await shim.run("process.exit(3)")).code, 3);
  assert.equal((await shim.run("for (;;);", { interrupt: 60 })).kind, "i");
  assert.equal(await shim.close(), 3);
});

for (const [group, codes] of Object.entries({
  "builtins of arrays and strings": [
    "Array.prototype.push = null; Array.prototype.shift = null",
    "Array.prototype[Symbol.iterator] = null",
    "Array.prototype.join = Array.prototype.map = Array.prototype.filter = () => { throw 1 }",
    "String.prototype.split = String.prototype.includes = String.prototype.trim = null",
    "RegExp.prototype.exec = () => { throw new Error('exec') }; RegExp.prototype.test = null",
  ],
  "builtins of functions and objects": [
    "Function.prototype.bind = null",
    "Function.prototype.toString = () => { throw 1 }",
    "Object.prototype.x = 1; Object.prototype.timeout = 1",
    "Object.defineProperty(Object.prototype, 'cell', { set() { throw 1 }, get() { throw 1 } })",
    "Object.keys = Object.defineProperty = Object.getOwnPropertyDescriptor = null",
    "Object.prototype.toString = null; Error.prototype.toString = null",
  ],
  "builtins of promises, maps and buffers": [
    // V8 itself needs it in Node 18.
    ...(MAJOR > 18 ? ["Promise.prototype.then = () => { throw new Error('then') }"] : []),
    "Promise.resolve = Promise.all = Promise.race = null",
    "Map.prototype.get = Map.prototype.set = Map.prototype.delete = null",
    "Uint8Array.prototype.subarray = Buffer.prototype.utf8Slice = Buffer.prototype.toString = null",
    "Buffer.from = Buffer.alloc = Buffer.concat = null",
    "JSON.parse = JSON.stringify = null; Reflect.apply = null; Atomics.wait = null",
  ],
  "modules of Node": [
    "require('fs').writeSync = require('fs').readSync = null",
    "require('util').inspect = null; require('util').types.isPromise = null",
    "require('vm').Script.prototype.runInThisContext = null; require('vm').compileFunction = null",
    "require('inspector').Session.prototype.post = null",
    "require('events').prototype.on = null",
    "require('net').Socket.prototype.on = null; require('stream').Readable.prototype.push = null",
    "require('v8').promiseHooks.onInit = null",
    "Error.prepareStackTrace = () => { throw new Error('prepare') }",
    "Error.prepareStackTrace = () => 5",
    "Error.stackTraceLimit = 0",
    "Object.freeze(Error); Object.freeze(Object.prototype)",
  ],
  "the process": [
    "process.stdout.write = null; process.stderr.write = null",
    "Object.defineProperty(process, 'stdout', { value: null })",
    "process.once = process.off = null",
    "process._tickCallback = null; process.nextTick = null",
    "process.removeAllListeners()",
    "process.binding = process.kill = process.cwd = null",
    "process.chdir('/')",
    "process.argv = null; process.execPath = null",
    "delete globalThis.require; delete globalThis.module; delete globalThis.__filename",
    "console.log = console.error = null; delete globalThis.console",
  ],
})) {
  test(`damaged: ${group}`, async () => {
    const damage = async (code) => {
      const shim = new Shim();
      try {
        await shim.run(`${code}; undefined`);
        await check(shim, code);
      } finally {
        shim.child.kill("SIGKILL");
        await shim.close();
      }
    };
    await Promise.all(codes.map(damage));
  });
}

test(
  "standard streams that a cell has ended or corked",
  withShim(async (shim) => {
    await shim.run("console.log(1); process.stdout.end(); 1");
    await shim.check("console.log('back'); 2", "back\n2\n");
    await shim.run("process.stdout.destroy(); process.stderr.destroy()");
    const both = await shim.run("console.log('out'); console.error('err')");
    assert.deepEqual([both.out, both.err], ["out\n", "err\n"]);
    await shim.run("process.stdout.cork(); process.stdout.write('corked'); undefined");
    await shim.check("process.stdout.uncork(); undefined", "corked");
  }),
);

test(
  "descriptors that a cell has closed before their first use",
  withShim(async (shim) => {
    await shim.run("require('fs').closeSync(1); require('fs').closeSync(2); undefined");
    await shim.check("console.log('back'); 2", "back\n2\n");
    assert.equal((await shim.run("console.error('err')")).err, "err\n");
  }),
);

test(
  "descriptors that a cell has closed",
  withShim(async (shim) => {
    await shim.check("console.log('open'); const { closeSync } = require('fs'); closeSync(1); undefined", "open\n");
    await shim.check("console.log('back'); 2", "back\n2\n");
    await shim.run("closeSync(1); closeSync(2)");
    const both = await shim.run("console.log('out'); console.error('err'); require('child_process').execSync('echo child >&2')");
    assert.deepEqual([both.out.split("\n")[0], both.err], ["out", "err\nchild\n"]);
    // A write fails at once, and the next cell writes again.
    await shim.run("closeSync(1); console.log('nowhere')");
    await shim.check("console.log('back')", "back\n");
    await shim.run("closeSync(0); closeSync(1)");
    await shim.check("console.log('back')", "back\n");
    // Children do not inherit the shim's copies.
    await shim.check("`${require('child_process').execSync('ls -l /proc/self/fd')}`.includes(require('fs').readlinkSync('/proc/self/fd/1'))", "false\n");
  }),
);

test(
  "a flood between cells waits for the next one",
  withShim(async (shim) => {
    await shim.check("setTimeout(() => console.log('x'.repeat(1e6)), 5); 1", "1\n");
    await sleep(1000);
    assert.equal((await shim.out("2")).length, 1e6 + 3);
  }),
);

test(
  "names that would break a comment, and other unusual names",
  withShim(async (shim) => {
    for (const name of [
      "a b.js",
      "it's",
      '"quoted"',
      "tab\there",
      "new\nline",
      "ü",
      "",
      "<eval>",
    ]) {
      const done = await shim.run("throw new Error('x')", { name });
      assert.deepEqual([done.kind, done.message], ["r", "x"], name);
      await shim.check("1", "1\n", { name });
    }
    await shim.check("1 //# sourceURL=mine", "1\n");
    const tricked = await shim.run("throw new Error('x')\n//# sourceURL=mine", { name: "real" });
    assert.match(tricked.err, /at real:1:7/);
  }),
);

test(
  "deep recursion and large values",
  withShim(async (shim) => {
    assert.equal((await shim.run("(function f() { f() })()")).type, "RangeError");
    assert.equal((await shim.run(`${"[".repeat(20000)}`)).kind, "r");
    await shim
      .check("const deep = []; let at = deep; for (let i = 0; i < 1e5; i++) at = at[0] = []", /./)
      .catch(() => {});
    assert.equal((await shim.run("deep")).kind, "c");
    assert.equal((await shim.run("'x'.repeat(2 ** 23)")).kind, "c");
    await shim.check("1", "1\n");
  }),
);

test(
  "a cell that looks like a thenable, a proxy or a getter",
  withShim(async (shim) => {
    await shim.check(
      "({ then() { throw new Error('not called') } })",
      "{ then: [Function: then] }\n",
    );
    assert.equal((await shim.run("new Proxy({}, { get() { throw 1 } })")).kind, "c");
    const custom = "({ [Symbol.for('nodejs.util.inspect.custom')]() { throw new Error('own') } })";
    assert.equal((await shim.run(custom)).message, "own");
    await shim.check("1", "1\n");
  }),
);
