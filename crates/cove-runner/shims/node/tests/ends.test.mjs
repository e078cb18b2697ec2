// Cells that do not complete: process.exit(), interrupts, and the end of the process.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { Shim, sleep, withShim } from "./driver.mjs";

const never = "await new Promise(() => {})";
// Long enough for the thread of interrupts.js to start, even on a busy machine.
const LONG = 600;
const pause = (milliseconds) => `await new Promise((r) => setTimeout(r, ${milliseconds}))`;

// Runs a cell that one interrupt must end. On a busy machine it may come before the cell has begun: then again.
async function interruptOnce(shim, code) {
  for (let attempt = 1; ; attempt += 1) {
    const done = await shim.run(code, { interrupt: 1000 });
    assert.equal(done.kind, "i", code);
    if (done.interrupts === 1) return done;
    assert(attempt < 5, `${code}: ${done.interrupts} interrupts`);
  }
}

test(
  "process.exit() ends the cell and keeps the state",
  withShim(async (shim) => {
    await shim.check("const kept = 1", "");
    for (const [code, status] of [
      ["process.exit(3)", 3],
      ["process.exit()", 0],
      ["process.exit(-1)", 255],
      ["process.exit('7')", 7],
      ["process.exitCode = 5; process.exit()", 5],
      ["process.exit()", 0],
      [
        "(() => { try { process.exit(4) } catch { console.log('c') } finally { console.log('f') } })()",
        4,
      ],
      ["try { process.exit(0) } catch { process.exit(1) }; console.log('after')", 0],
      ["await 0; process.exit(5)", 5],
      [`${pause(5)}; process.exit(6)`, 6],
      [`setTimeout(() => process.exit(7), 5); ${never}`, 7],
      [`setImmediate(() => process.exit(8)); ${never}`, 8],
      [`process.nextTick(() => process.exit(9)); ${never}`, 9],
      [`require("fs").stat("/", () => process.exit(10)); ${never}`, 10],
      ["Promise.resolve().then(() => process.exit(11)); 1", 11],
      ["const { exit } = process; exit(12)", 12],
    ]) {
      const done = await shim.run(code);
      assert.deepEqual([done.kind, done.code, done.err], ["x", status, ""], code);
      assert.doesNotMatch(done.out, /[a-z]/, code);
      await shim.check("kept", "1\n");
    }
    await shim.check("process.exitCode = 3; 1", "1\n");
  }),
);

test(
  "process.exit() between cells only prints a message",
  withShim(async (shim) => {
    await shim.check("void process.on('SIGUSR2', () => process.exit(1)); const kept = 1", "");
    shim.child.kill("SIGUSR2");
    for (let tries = 0; tries < 1000 && shim.output[1].length === 0; tries += 1) {
      await sleep(10);
      shim.drain();
    }
    assert.equal(Buffer.concat(shim.output[1]).toString(), "process.exit(1) between cells was ignored\n");
    await shim.check("kept", "1\n");
  }),
);

for (const [what, first] of [
  ["before any cell has waited", "0"],
  ["after a cell has waited", pause(LONG)],
]) {
  test(
    `an interrupt ends whatever runs, ${what}`,
    withShim(async (shim) => {
      await shim.out(`const kept = 1; ${first}; undefined`);
      for (const code of [
        "for (;;);",
        "let n = 0; while (true) n++;",
        "for (;;) await 0",
        "await (async () => { for (;;) await null })()",
        "try { for (;;); } catch { console.log('caught') } finally { console.log('finally') }",
        "process.nextTick(() => { for (;;); }); 1",
        "Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)",
        "/(a*)*b/.test('a'.repeat(40))",
        "for (;;) console.log('x')",
        "({ [Symbol.for('nodejs.util.inspect.custom')]() { for (;;); } })",
      ]) {
        const done = await interruptOnce(shim, code);
        assert.doesNotMatch(done.out, /caught|finally/, code);
        await shim.check("kept", "1\n");
      }
    }),
  );
}

test(
  "an interrupt reaches a child that the cell waits for",
  withShim(async (shim) => {
    const code = "require('child_process').execSync('sleep 10')";
    await shim.check("0", "0\n");
    // The child may have ended, and the cell thrown, before Node noticed the signal. The runner knows that it was sent.
    assert.match((await shim.run(code, { interrupt: 1000 })).kind, /[ir]/);
    // Then Node may keep the signal for the next script that it watches long enough.
    await shim.run(`Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ${LONG})`);
    await shim.out(pause(LONG));
    assert.match((await shim.run(code, { interrupt: 1000 })).kind, /[ir]/);
    await sleep(LONG);
    await shim.check(`${pause(100)}; 1`, "1\n");
  }),
);

test(
  "an interrupt ends a cell that waits, and one that loops after waiting",
  withShim(async (shim) => {
    await shim.check(`const kept = 1; ${pause(LONG)}; undefined`, "");
    for (const code of [
      never,
      "new Promise(() => {})",
      pause(1e6),
      `${pause(10)}; for (;;);`,
      `${pause(10)}; for (;;) await 0`,
      `setTimeout(() => { for (;;); }, 10); ${never}`,
      `setTimeout(new Function("for (;;);"), 10); ${never}`,
      `${pause(10)}; throw { [Symbol.for("nodejs.util.inspect.custom")]() { for (;;); } }`,
      `setTimeout(() => { process.nextTick(() => {}); for (;;); }, 10); ${never}`,
      `setImmediate(() => { for (;;); }); ${never}`,
      `require("fs").stat("/", () => { for (;;); }); ${never}`,
      `require("net").createServer(() => { for (;;); }).listen(0, function () {
        require("net").connect(this.address().port);
      }); ${never}`,
    ]) {
      const done = await interruptOnce(shim, code);
      assert.equal(done.err, "", code);
      await shim.check("kept", "1\n");
    }
    await shim.check(`${pause(20)}; "timers still work"`, "'timers still work'\n");
  }),
);

test(
  "an interrupt does not stop the shim while it prints an error",
  withShim(async (shim) => {
    await shim.check(`const kept = 1; ${pause(LONG)}; undefined`, "");
    const code = `${pause(10)}; throw new Error("x".repeat(300_000))`;
    const done = await shim.run(code, { interrupt: 200, hold: 800 });
    assert.match(done.kind, /[ir]/);
    assert.match(done.err, /Error: x{60000,}/);
    await shim.check("kept", "1\n");
  }),
);

test(
  "interrupts with async hooks in use",
  withShim(async (shim) => {
    await shim.check(
      `const { AsyncLocalStorage, createHook } = require("async_hooks");
      const storage = new AsyncLocalStorage();
      createHook({ init() {}, before() {}, after() {}, destroy() {} }).enable();
      storage.run(1, () => storage.getStore())`,
      "1\n",
    );
    await shim.out(pause(LONG));
    // Not a loop of nothing but promises, in which Node may crash because it miscounts callbacks.
    for (const code of [
      "for (;;);",
      `storage.run(2, () => setTimeout(() => { for (;;); }, 10)); ${never}`,
      `storage.run(3, async () => { ${pause(10)}; for (;;); }); ${never}`,
    ]) {
      assert.equal((await shim.run(code, { interrupt: 1000 })).kind, "i", code);
      assert.equal((await shim.run("storage.run(4, () => process.exit(1))")).kind, "x");
      await shim.check(pause(5), "");
    }
  }),
);

test(
  "interrupts between cells have no effect",
  withShim(async (shim) => {
    await shim.check("1", "1\n");
    for (const first of ["2", pause(LONG)]) {
      await shim.out(`${first}; undefined`);
      for (let count = 0; count < 5; count += 1) {
        shim.interrupt();
        await sleep(20);
      }
      await shim.check(`${pause(30)}; 3`, "3\n");
      await shim.check("let i = 0; while (i < 1e6) i++; i", "1000000\n");
    }
  }),
);

test(
  "several interrupts at once",
  withShim(async (shim) => {
    await shim.out(pause(LONG));
    for (const code of ["for (;;);", `${pause(10)}; for (;;);`, never, "for (;;) await 0"]) {
      const done = await shim.run(code, { interrupt: [1000, 1001, 1010, 1040] });
      assert.equal(done.kind, "i", code);
      await sleep(100);
      await shim.check("4", "4\n");
    }
  }),
);

test(
  "a cell's own handler for SIGINT does not keep it running",
  withShim(async (shim) => {
    await shim.out("process.on('SIGINT', () => console.log('mine')); undefined");
    for (const code of ["for (;;);", pause(LONG), never, `${pause(10)}; for (;;);`, "for (;;);"]) {
      if (code === pause(LONG)) await shim.out(code);
      else assert.equal((await shim.run(code, { interrupt: 1000 })).kind, "i", code);
    }
    // After it is removed, the next cell has the shim's handler again.
    await shim.out("process.removeAllListeners('SIGINT'); undefined");
    assert.equal((await shim.run(never, { interrupt: 1000 })).kind, "i");
    await shim.out(pause(LONG));
    assert.equal((await shim.run(`${pause(5)}; for (;;);`, { interrupt: 1000 })).kind, "i");
  }),
);

test(
  "garbage that the inspector waits for",
  withShim(async (shim) => {
    await shim.out(
      `require("v8").setFlagsFromString("--expose-gc");
      const gc = require("vm").runInNewContext("gc");`,
    );
    const collect = `setTimeout(() => { gc(); gc(); }, 20); ${never}`;
    assert.equal((await shim.run(collect, { interrupt: 1000 })).kind, "i");
    await shim.check("gc(); gc(); 1", "1\n");
  }),
);

test("the end of the socket is the end of the process", async () => {
  for (const code of ["1", "setInterval(() => {}, 1); undefined", `${pause(100)}`]) {
    const shim = new Shim();
    await shim.out(code);
    const began = performance.now();
    assert.equal(await shim.close(), 3);
    assert(performance.now() - began < 30_000, code);
  }
  assert.equal(await new Shim().close(), 3);
  // Also while a cell waits, and during the first cell.
  const waiting = new Shim();
  const done = waiting.run(never);
  await sleep(LONG);
  assert.equal(await waiting.close(), 3);
  assert.equal((await done).kind, "gone");
});

test("cells that end the process", async () => {
  for (const [code, status] of [
    ["process.abort()", "SIGABRT"],
    ["process.kill(process.pid, 'SIGKILL')", "SIGKILL"],
    ["process.reallyExit(9)", 9],
  ]) {
    const shim = new Shim();
    assert.deepEqual((await shim.run(code)).status, status, code);
    await shim.close();
  }
});

test("a closed descriptor 3 causes no busy loop", async () => {
  const shim = new Shim();
  const done = await shim.run("require('fs').closeSync(3)");
  assert.equal(done.kind, "gone");
  await shim.close();
  const later = new Shim();
  // A signal, not a timer: the descriptor stays open until the cell has ended.
  await later.out("process.on('SIGUSR2', () => require('fs').closeSync(3)); undefined");
  later.child.kill("SIGUSR2");
  await sleep(300);
  if (later.status === null) {
    const ticks = () => {
      const fields = readFileSync(`/proc/${later.child.pid}/stat`, "utf8").split(" ");
      return Number(fields[13]) + Number(fields[14]);
    };
    const before = ticks();
    await sleep(300);
    assert(ticks() - before < 10, `${ticks() - before} ticks`);
    // As the runner does when it sees the socket closed.
    later.child.kill("SIGKILL");
  }
  await later.close();
});
