// The Node shim: interrupts of a cell that waits. Fetched when a cell is not done after its first turn.
// Runs as the body of a function with the parameter `shim`.
//
// Node's event loop calls the rest of such a cell, which the watchdog of the first turn does not
// cover, and an endless loop there would never let a listener for SIGINT run. So a thread waits for
// SIGINT, in the only way that Node offers: a script that runs with `breakOnSigint`. The two threads
// share a state of two numbers:
//
// 1. The thread gets a SIGINT. It sets ASKED to 1, posts a message, and waits on ASKED.
// 2. If the main thread is idle, it handles the message: `forget` sets ASKED to 0, which wakes the
//    thread, and `interrupt` ends the cell.
// 3. If the main thread is busy, the thread's wait times out after 50 ms. Then it has the inspector
//    call `stop` inside whatever runs on the main thread, again and again until ASKED changes.
// 4. GO is 1 while the thread shall run. `release` sets it to 0 before the process exits, and waits
//    until the thread has set ASKED to 2.
"use strict";
const { SHARE_ENV, Worker } = shim.own("worker_threads");
const { Atomics, Error, Int32Array, Reflect, SharedArrayBuffer } = shim.globals;
const { exchange, load, notify, store, wait } = Atomics;
const { captureStackTrace } = Error;
const { startsWith } = shim;
const { terminate } = Worker.prototype;

// Positions in the shared state, see above.
const GO = 0;
const ASKED = 1;
// In microseconds: more than a process uses that does nothing but wait.
const BUSY_TIME = 200_000;

let worker = null;
// Whether a thread is being stopped, and whether a cell waits that needs the next one.
let leaving = false;
let wanted = false;

shim.startWatching = () => {
  wanted = true;
  if (worker || leaving) return;
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
    // A thread cannot be made. A waiting cell can still be interrupted, but not one that loops after
    // waiting.
    return;
  }
  const mine = worker;
  mine.unref();
  mine.on("error", () => {
    if (worker === mine) shim.stopWatching();
  });
  mine.on("exit", () => {
    if (worker === mine) {
      shim.guarded = false;
      worker = null;
    }
    leaving = false;
    shim.armAgain();
    if (wanted) shim.startWatching();
  });
  mine.on("message", () => {
    if (shim.forget()) shim.interrupt();
  });
  // Now, because Node's watchdog of a first turn must not run any more: it restores the signal's
  // default when it ends. Until the thread has started, a looping cell cannot be interrupted.
  shim.guarded = true;
  shim.forget = () => {
    const asked = exchange(state, ASKED, 0) === 1;
    notify(state, ASKED);
    return asked;
  };
  // The inspector calls this while something runs, or when the processor was too busy for the message to
  // arrive. If no cell's code runs, this would terminate Node, the shim, or the next callback, whatever it
  // is; but in a loop of nothing but promises the call may come between two of them every time, so it
  // stops anyway when the process uses the processor. It must be the last call here, because otherwise
  // only the rest of this function would be terminated.
  let used = 0;
  shim.hook.stop = (attempt) => {
    const now = processorTime();
    if (attempt === 1) used = now;
    if (load(state, ASKED) !== 1 || !(interrupting() || now - used > BUSY_TIME)) return;
    used = now;
    shim.stop();
  };
  // Before the process ends, because Node would wait for the thread's inspector and print a message.
  shim.release = () => {
    store(state, ASKED, 0);
    store(state, GO, 0);
    notify(state, GO);
    wait(state, ASKED, 0, 500);
  };
};

// The time that all threads have spent on a processor, in microseconds.
function processorTime() {
  const { user, system } = shim.cpuUsage();
  return user + system;
}

// Returns whether code of a cell is on the stack, below this function, `stop`, and its caller.
function interrupting() {
  const { prepareStackTrace, stackTraceLimit } = Error;
  const holder = {};
  Error.stackTraceLimit = 100;
  Error.prepareStackTrace = (_, frames) => {
    for (let index = 3; index < frames.length; index += 1) {
      // Earlier calls of `stop` have no name.
      const name = frames[index].getScriptNameOrSourceURL();
      if (name && !startsWith(name, "node:") && !startsWith(name, "cove:")) return true;
    }
    return false;
  };
  captureStackTrace(holder);
  const answer = holder.stack;
  Error.prepareStackTrace = prepareStackTrace;
  Error.stackTraceLimit = stackTraceLimit;
  return answer;
}

// Stops the thread, when other code has taken the signal from it.
shim.stopWatching = () => {
  shim.guarded = false;
  leaving = true;
  wanted = false;
  Reflect.apply(terminate, worker, []);
  worker = null;
};

// The thread's code. It is passed as text, so it sees nothing of this file.
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

  // Runs until a signal interrupts it. All of it runs under `breakOnSigint`, because a second signal may
  // come while the first is reported.
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
  // Two scripts, one inside the other, so that one runs while the other restarts. Without any, Node would
  // restore the signal's default, which kills the process.
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
