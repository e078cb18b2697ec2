// The Node shim: interrupts while a cell waits. Fetched when a cell is not done after its first
// turn. Run as the body of a function of `shim`.
//
// What such a cell does next is called by Node's event loop, out of reach of the watchdog of its
// first turn, and a loop without end there would never let a listener for SIGINT run. So a thread
// waits for SIGINT, in the one way Node has: a script that runs with `breakOnSigint`. It asks the
// main thread to end the cell, and if that doesn't answer, has the inspector call `stop` in the
// midst of whatever runs there.
"use strict";
const { SHARE_ENV, Worker } = shim.own("worker_threads");
const { Atomics, Error, Int32Array, Reflect, SharedArrayBuffer } = shim.globals;
const { exchange, load, notify, store, wait } = Atomics;
const { captureStackTrace } = Error;
const { terminate } = Worker.prototype;

// Places in the shared state. GO: whether the thread shall wait for signals. ASKED: whether it has
// asked for an interrupt that the main thread has not seen yet.
const GO = 0;
const ASKED = 1;

let worker = null;

shim.watch = () => {
  if (worker) return;
  const state = new Int32Array(new SharedArrayBuffer(8));
  store(state, GO, 1);
  try {
    worker = new Worker(`(${shim.functionText(watcher)})()`, {
      __proto__: null,
      eval: true,
      workerData: { state, hook: shim.HOOK },
      execArgv: [],
      env: SHARE_ENV,
      stdout: true,
      stderr: true,
      resourceLimits: { maxOldGenerationSizeMb: 16, maxYoungGenerationSizeMb: 2 },
    });
  } catch {
    // No thread to be had. What waits can still be interrupted, what spins after waiting cannot.
    return;
  }
  const mine = worker;
  mine.unref();
  mine.on("error", () => {
    if (worker === mine) shim.unwatch();
  });
  mine.on("message", () => {
    if (shim.forget()) shim.interrupt();
  });
  // At once: a watchdog of a first turn, which gives the signal back when it ends, must not run any
  // more. Until the thread is up, what spins cannot be interrupted.
  shim.guarded = true;
  shim.asked = () => load(state, ASKED) === 1;
  shim.forget = () => {
    const asked = exchange(state, ASKED, 0) === 1;
    notify(state, ASKED);
    return asked;
  };
  // Called by the inspector in the midst of whatever runs. There should be something, or the next
  // callback to run, any at all, would be ended in its place; but a loop of nothing but promises may
  // be between two of them each time. Nothing may come after it here, or that is all that is ended.
  shim.hook.stop = (attempt) => {
    if (load(state, ASKED) === 1 && (interrupting() || attempt > 2)) shim.stop();
  };
  // Before the process ends: Node would wait for the thread's inspector, and say so.
  shim.release = () => {
    store(state, ASKED, 0);
    store(state, GO, 0);
    notify(state, GO);
    wait(state, ASKED, 0, 500);
  };
};

// Whether there is more on the stack than this function, `stop`, and what called it.
function interrupting() {
  const { prepareStackTrace, stackTraceLimit } = Error;
  const holder = {};
  Error.stackTraceLimit = 10;
  Error.prepareStackTrace = (_, frames) => frames.length > 3;
  captureStackTrace(holder);
  const answer = holder.stack;
  Error.prepareStackTrace = prepareStackTrace;
  Error.stackTraceLimit = stackTraceLimit;
  return answer;
}

// When somebody else has taken the signal from the thread.
shim.unwatch = () => {
  shim.guarded = false;
  Reflect.apply(terminate, worker, []);
  worker = null;
};

// The thread. Its text is all that gets there.
function watcher() {
  const { parentPort, workerData } = require("worker_threads");
  const { Script } = require("vm");
  const { Session } = require("inspector");
  const { state, hook } = workerData;
  const session = new Session();
  session.connectToMainThread();

  const run = (script) => {
    try {
      script.runInThisContext({ breakOnSigint: true });
    } catch (error) {
      if (error.code !== "ERR_SCRIPT_EXECUTION_INTERRUPTED") throw error;
      asks = true;
    }
  };
  let asks = false;

  // Until it is interrupted: all of it, for a second signal may come while the first is told.
  globalThis.pause = () => {
    if (asks) {
      asks = false;
      Atomics.store(state, 1, 1);
      parentPort.postMessage(null);
      for (let attempt = 1; Atomics.wait(state, 1, 1, 50) === "timed-out"; attempt += 1) {
        session.post("Runtime.evaluate", { expression: `${hook}.stop(${attempt})`, silent: true });
      }
    }
    Atomics.wait(state, 0, 1);
  };
  // One inside the other, so that there is one between two of the other: without any, Node would
  // give the signal its deadly default back.
  const pause = new Script("pause()");
  globalThis.watch = () => {
    while (Atomics.load(state, 0) === 1) run(pause);
  };
  const watch = new Script("watch()");

  while (Atomics.load(state, 0) === 1) run(watch);
  session.disconnect();
  Atomics.store(state, 1, 2);
  Atomics.notify(state, 1);
}
