// The Node shim, first part: the channel to the runner, and a cell from its beginning to its end.
//
// The runner starts `node --no-force-async-hooks-checks -e <this text>` with its socket on
// descriptor 3. The shim asks for its other parts over that socket: process_guard.js at once, and
// the others when needed: imports.js for a cell with the word `import` or `export`, faults.js and
// hints.js for errors, interrupts.js for a cell that waits for something, redeclarations.js for a cell that
// declares a name in another way than before, stream_repair.js for a cell after one that ended a
// standard stream, wire.js and mcp.js for a cell with the word `mcp`, typescript.js for a cell whose
// name ends in `.ts`, questions.js for the first question about code.
//
// V8's own console mode (`Runtime.evaluate` with `replMode`) evaluates a cell. It is the only mode
// in which a later cell may declare a `const` again, and in which declarations survive a top-level
// `await`. The shim adds two things to it: `import`, and a way to interrupt.
//
// Cells can change every builtin. So code that runs for each cell uses functions taken before the
// first one, and no iteration over arrays, no spread and no regular expression, because these all
// look things up on prototypes.
(() => {
  "use strict";
  const { Error, Int32Array, Number, SharedArrayBuffer } = globalThis;
  const { process, setImmediate, setTimeout } = globalThis;
  const { apply } = Reflect;
  const bind = (method) => (self, a, b, c) => apply(method, self, [a, b, c]);
  const has = bind(Object.prototype.hasOwnProperty);
  const includes = bind(String.prototype.includes);
  const startsWith = bind(String.prototype.startsWith);
  const endsWith = bind(String.prototype.endsWith);
  const trim = bind(String.prototype.trim);
  const functionText = bind(Function.prototype.toString);
  const subarray = bind(Uint8Array.prototype.subarray);
  const decode = bind(Buffer.prototype.utf8Slice);
  const { alloc, concat, from } = Buffer;
  const { wait } = Atomics;
  const own = require;
  const main = module;
  const { readSync, writeSync } = own("fs");
  const { resolve } = own("path");
  const { inspect, types } = own("util");
  const { isPromise } = types;
  const { Script, compileFunction } = own("vm");
  const runScript = bind(Script.prototype.runInThisContext);
  const { EventEmitter } = own("events");
  const on = bind(EventEmitter.prototype.on);
  const removeAllListeners = bind(EventEmitter.prototype.removeAllListeners);
  const listeners = bind(EventEmitter.prototype.rawListeners);
  const { _tickCallback: tick, _fatalException: fatalException } = process;
  const { hasUncaughtExceptionCaptureCallback, setUncaughtExceptionCaptureCallback } = process;
  const { cpuUsage } = process;
  const exit = bind(process.exit);
  const cwd = process.cwd();

  const { Session } = own("inspector");
  const session = new Session();
  const dispatch = bind(Session.prototype.post);
  session.connect();

  // Other scripts of this context reach this function through the hidden name below: the script that
  // runs a cell under a watchdog, the thread of interrupts.js, and the code that imports.js makes of
  // `import`. A name declared in console mode is not a property of globalThis. It has as many
  // characters as `import`, so that columns in errors stay right.
  const hook = (specifier, options) => import(specifier, options);
  const HOOK = "\u0131mport";

  // The cell that runs now.
  let current = null;
  // Whether its first turn runs now, inside enter().
  let turn = false;
  let begun = false;
  let socket = null;
  let onInit = null;
  let pending = alloc(0);
  // A cell that arrived before process_guard.js.
  let early = null;
  const cells = [];
  const standard = { stdout: null, stderr: null, ended: false };
  const parts = { __proto__: null };
  // The parts that were asked for, in this order, and how many of them have arrived.
  const asked = [];
  let arrived = 0;

  // What the other parts use, and where they put what they define.
  const shim = {
    __proto__: null,
    // The globals as they are now, for parts that load after cells have changed them.
    globals: {
      ...{ Atomics, Error, Int32Array, JSON, Map, Math, Reflect, Set },
      ...{ SharedArrayBuffer, SyntaxError },
    },
    ...{
      HOOK,
      armAgain,
      cpuUsage,
      cwd,
      exitCell,
      fault,
      fetch,
      functionText,
      hook,
      interrupt,
      label,
      lose,
      own,
      post,
      put,
      send,
      standard,
      startsWith,
      stop,
    },
    // Set by interrupts.js while its thread receives every SIGINT.
    guarded: false,
  };

  // The channel

  function put(fd, text) {
    const data = typeof text === "string" ? from(text, "utf8") : text;
    let at = 0;
    while (at < data.length) {
      try {
        at += writeSync(fd, data, at, data.length - at);
      } catch (error) {
        if (error.code === "EAGAIN") pause(1);
        else if (fd !== 3) return;
        else lose("descriptor 3");
      }
    }
  }

  function pause(milliseconds) {
    wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, milliseconds);
  }

  // Ends the interpreter, because the runner is gone or the user's code did something to a descriptor.
  function lose(what) {
    const text = `a cell has closed or replaced ${what}, which this interpreter needs\n`;
    // If the channel is what it was, the runner has closed its end.
    const isCell = shim.isStandard && !(what === "descriptor 3" && shim.isStandard(3));
    if (isCell && shim.isStandard(2)) put(2, text);
    leave(3);
  }

  function leave(status) {
    if (shim.guarded) shim.release();
    exit(process, status);
  }

  function u32(bytes, at) {
    return bytes[at] * 0x1000000 + (bytes[at + 1] << 16) + (bytes[at + 2] << 8) + bytes[at + 3];
  }

  function number(value) {
    return from([value >>> 24, value >>> 16, value >>> 8, value]);
  }

  // A text as the channel carries it, cut between characters: a `D` frame must stay short.
  function string(text) {
    let bytes = from(text, "utf8");
    if (bytes.length > 4096) {
      let end = 4096;
      while ((bytes[end] & 0xc0) === 0x80) end -= 1;
      bytes = subarray(bytes, 0, end);
    }
    return concat([number(bytes.length), bytes]);
  }

  function send(tag, body) {
    put(3, concat([number(body.length + 1), from(tag), body]));
  }

  function feed(bytes) {
    pending = concat([pending, bytes]);
    while (pending.length >= 4) {
      const end = 4 + u32(pending, 0);
      if (pending.length < end) return;
      const frame = subarray(pending, 4, end);
      pending = subarray(pending, end);
      if (frame[0] === 0x52 && parts.process_guard.loaded) begin(frame);
      else if (frame[0] === 0x52) early = frame;
      else if (frame[0] === 0x4c) load(decode(frame, 5, frame.length));
      else if (frame[0] === 0x51) answer(frame[1], decode(frame, 2, frame.length));
    }
  }

  // Blocks, so it is used only until the first cell is done: after that, timers and servers of cells
  // have to go on.
  function readMore() {
    // feed() may be the caller: more frames may have arrived together with its current one.
    if (pending.length >= 4 && pending.length >= 4 + u32(pending, 0)) return feed(alloc(0));
    const buffer = alloc(65536);
    let count = 0;
    try {
      count = readSync(3, buffer, 0, buffer.length);
    } catch (error) {
      if (error.code === "EAGAIN") return pause(1);
      lose("descriptor 3");
    }
    if (count === 0) lose("descriptor 3");
    feed(subarray(buffer, 0, count));
  }

  function connect() {
    if (socket) return;
    const { Socket } = own("net");
    const buffer = alloc(65536);
    const callback = (count, bytes) => {
      feed(subarray(bytes, 0, count));
      return true;
    };
    const made = new Socket({ fd: 3, onread: { buffer, callback } });
    const gone = () => lose("descriptor 3");
    on(made, "end", gone);
    on(made, "error", gone);
    on(made, "close", gone);
    made.read(0);
    socket = made;
  }

  // Waits for a cell: from the second one on without blocking the event loop, unless cells have
  // damaged what Node needs to make a socket.
  function listen() {
    try {
      if (begun) connect();
    } catch {
      begun = false;
    }
    while (!begun) readMore();
  }

  // Calls `then` as soon as the part with this name is loaded. Answers come in the order of requests.
  function need(name, then) {
    let part = parts[name];
    if (part && part.loaded) return then();
    if (!part) {
      part = parts[name] = { loaded: false, name, waiting: null };
      asked[asked.length] = part;
      send("L", string(name));
    }
    const { waiting } = part;
    part.waiting = () => {
      if (waiting) waiting();
      then();
    };
    while (!socket && !part.loaded) readMore();
  }

  function load(text) {
    const part = asked[arrived];
    if (!part) return;
    arrived += 1;
    part.loaded = true;
    try {
      const options = { __proto__: null, filename: `cove:${part.name}` };
      compileFunction(text, ["shim"], options)(shim);
    } catch {
      // Cells have damaged what this needs. The shim does without the part.
    }
    // Nothing waits if an interrupt has ended need() half-way.
    if (part.waiting) part.waiting();
  }

  // Answers a question about code that a person is writing.
  function answer(letter, code) {
    need("questions", () => send("A", from(shim.ask ? shim.ask(letter, code) : "", "utf8")));
  }

  function post(method, parameters, then) {
    dispatch(session, method, parameters, then || (() => {}));
  }

  // The beginning of a cell

  function begin(frame) {
    let at = 1;
    const next = () => {
      const end = at + 4 + u32(frame, at);
      const text = decode(frame, at + 4, end);
      at = end;
      return text;
    };
    const name = next();
    const code = next();
    const count = u32(frame, at);
    at += 4;
    const argv = [process.execPath, name];
    for (let index = 0; index < count; index += 1) argv[index + 2] = next();
    process.argv = argv;
    const cell = {
      ...{ __proto__: null, name, code, source: code },
      // How it ended: an exception, the status given to process.exit(), an interrupt.
      ...{ fault: null, exit: null, interrupted: false },
      // The inspector's error, if it refused the cell or was interrupted; whether the cell has a result;
      // whether its end is being sent.
      ...{ lost: null, ready: false, ending: false },
      // The cell was refused and is tried again; why; whether its calls have been waited for.
      ...{ again: false, refusal: null, waited: false },
      // Whether its types are gone, if it is TypeScript.
      stripped: false,
      promise: null,
    };
    current = cell;
    begun = true;
    globalThis.__filename = resolve(cwd, name);
    arm();
    // An interrupt that came before this cell is not meant for it.
    if (shim.guarded) shim.forget();
    remember(cell);
    shim.repairDescriptors();
    if (standard.ended) {
      return need("stream_repair", () => {
        if (shim.repairStreams) shim.repairStreams();
        prepare(cell);
      });
    }
    prepare(cell);
  }

  // Keeps the source for excerpts in errors. faults.js keeps sources, but loads only at the first error.
  function remember(cell) {
    if (!shim.remember) {
      cells[cells.length] = { name: cell.name, code: cell.code };
      if (cells.length === 64) need("faults", () => shim.remember && remember(null));
      return;
    }
    try {
      for (let index = 0; index < cells.length; index += 1) {
        shim.remember(cells[index].name, cells[index].code);
      }
      cells.length = 0;
      if (cell) shim.remember(cell.name, cell.code);
    } catch {
      // A cell has broken a builtin that this needs. Errors then have no excerpts.
    }
  }

  function prepare(cell) {
    if (!cell.stripped && (endsWith(cell.name, ".ts") || endsWith(cell.name, ".ts>"))) {
      return need("typescript", () => {
        cell.stripped = true;
        try {
          cell.code = cell.source = shim.stripTypes(cell.code);
        } catch (error) {
          return fault(error);
        }
        prepare(cell);
      });
    }
    if (includes(cell.code, "mcp")) {
      if (!(parts.mcp && parts.mcp.loaded)) return need("wire", () => need("mcp", () => prepare(cell)));
      try {
        if (shim.defineNames) shim.defineNames(cell.code);
      } catch {
        // A cell has broken a builtin that this needs. Names that were defined before stay.
      }
    }
    if (includes(cell.code, "import") || includes(cell.code, "export")) {
      return need("imports", () => {
        if (shim.rewrite) cell.source = shim.rewrite(cell.code, cell.name);
        run(cell, cell.source);
      });
    }
    run(cell, cell.source);
  }

  function run(cell, code) {
    // The cell may have been interrupted while a part was on its way.
    if (cell !== current || cell.ending) return;
    cell.again = false;
    turn = true;
    enter(cell, () => {
      evaluate(cell, asObject(code));
      tick();
    });
    turn = false;
    if (cell !== current) return;
    const stopped = cell.interrupted || cell.exit !== null;
    if (cell.lost && !stopped) fault(new Error(cell.lost.message));
    if (cell.ready || stopped) return finish(cell);
    if (cell.again) return;
    // The cell waits for something. From here on its code runs as callbacks of the event loop.
    need("interrupts", () => shim.startWatching && shim.startWatching());
    // To notice the end of the socket meanwhile.
    setImmediate(() => {
      try {
        connect();
      } catch {
        // See listen().
      }
    });
  }

  // Like Node's own REPL, reads `{ a: 1 }` as an object if it can be one.
  function asObject(code) {
    const text = trim(code);
    if (!startsWith(text, "{") || endsWith(text, ";")) return code;
    const wrapped = `(${code}\n)`;
    try {
      new Script(wrapped);
      return wrapped;
    } catch {
      return code;
    }
  }

  // Runs the first turn of a cell so that SIGINT ends it: under Node's watchdog, unless the thread of
  // interrupts.js runs.
  function enter(cell, step) {
    let started = false;
    hook.job = () => {
      started = true;
      step();
    };
    try {
      if (shim.guarded) hook.job();
      else runScript(watched, { __proto__: null, breakOnSigint: true });
    } catch (error) {
      // Node throws this for a process.exit() in a callback of a promise.
      if (cell.exit !== null || cell.interrupted) return;
      if (error && error.code === "ERR_SCRIPT_EXECUTION_INTERRUPTED") {
        cell.interrupted = true;
        balance();
      }
      // A cell has broken something that the watchdog needs.
      else if (!started) step();
      // Thrown by a callback of process.nextTick().
      else apply(process._fatalException, process, [error, false]);
    }
  }

  function evaluate(cell, code) {
    const expression = `${code}\n//# sourceURL=${label(cell.name)}`;
    const parameters = { expression, replMode: true, silent: true, objectGroup: "cell" };
    if (includes(code, "await")) keep(cell);
    post("Runtime.evaluate", parameters, (error, reply) => {
      if (cell !== current || cell.ending) return;
      // The evaluation was interrupted, or something worse happened.
      if (!reply) cell.lost = error;
      else if (has(reply, "exceptionDetails")) {
        refuse(cell, reply.exceptionDetails);
      } else {
        const value = fetch(reply.result);
        if (isPromise(value)) settle(cell, value);
        else show(cell, value);
      }
    });
  }

  // The cell failed. If it failed before it began, because of how it declares a name, it can be
  // rewritten and tried again.
  function refuse(cell, details) {
    const error = fetch(details.exception);
    const { description } = details.exception;
    const declared =
      has(details, "scriptId") && includes(`${description}`, "already been declared");
    if (!declared || has(details, "stackTrace")) return fault(error, details);
    cell.refusal = cell.refusal || { error, details };
    cell.again = true;
    need("imports", () =>
      need("redeclarations", () => setImmediate(retry, cell, error.message)),
    );
  }

  function retry(cell, message) {
    const code = shim.redeclare ? shim.redeclare(cell, message) : null;
    if (code !== null) run(cell, code);
    else if (cell === current) fault(cell.refusal.error, cell.refusal.details);
  }

  // Holds the promise that the inspector waits for, the first one made in an evaluation. When a cell
  // awaits something that can no longer be resolved, that promise is garbage, and Node 22 crashes when
  // it reports that during a collection.
  function keep(cell) {
    try {
      onInit = onInit || own("v8").promiseHooks.onInit;
      const off = onInit((promise) => {
        cell.promise = promise;
        off();
      });
    } catch {
      // A cell has broken that module.
    }
  }

  // Returns a name that V8 accepts in a sourceURL: without spaces and quotes. U+2800 looks like a
  // space and becomes one again in stacks.
  function label(name) {
    let text = "";
    for (let index = 0; index < name.length; index += 1) {
      const odd = trim(name[index]) === "" || name[index] === '"' || name[index] === "'";
      text += odd ? "\u2800" : name[index];
    }
    return text;
  }

  // Returns the value itself, for which the inspector has given only an id.
  function fetch(remote) {
    if (!remote || remote.type === "undefined") return undefined;
    if (has(remote, "value")) return remote.value;
    const { objectId, unserializableValue } = remote;
    post("Runtime.callFunctionOn", {
      objectId: hook.id,
      functionDeclaration: "function (value) { this.value = value; }",
      arguments: [{ objectId, unserializableValue }],
      silent: true,
    });
    const { value } = hook;
    hook.value = undefined;
    return value;
  }

  async function settle(cell, promise) {
    let value;
    try {
      value = await promise;
    } catch (error) {
      if (cell === current) fault(error);
      return;
    }
    if (cell === current) show(cell, value);
  }

  function show(cell, value) {
    try {
      const shown = shim.showImages && shim.showImages(value);
      if (value !== undefined && !shown) put(1, `${inspect(value)}\n`);
    } catch (error) {
      return fault(error);
    }
    done(cell);
  }

  // The end of a cell

  function done(cell) {
    cell.ready = true;
    // Not at once, because promises that this turn has rejected are found at the end of the turn.
    if (!turn) setImmediate(finish, cell);
  }

  // Handles an uncaught exception, of the cell or of callbacks that earlier cells have left behind.
  function fault(error, details) {
    const cell = current;
    const print = () => {
      if (shim.remember) remember(null);
      if (shim.print) shim.print(error, details, cell && cell.name);
      else put(2, "Uncaught exception\n");
    };
    // Parts arrive in the order of requests.
    need("faults", () => {});
    need("hints", print);
    if (cell && !cell.fault) {
      cell.fault = { error };
      done(cell);
    }
  }

  function interrupt() {
    if (!current) return;
    current.interrupted = true;
    finish(current);
  }

  // The same while the user's code runs, which this terminates.
  function stop() {
    if (current) current.interrupted = true;
    terminate();
  }

  // Ends the cell, and terminates the user's code that runs now. The shim may have called that code while it
  // reported the cell's end, and then reports again.
  function terminate() {
    setImmediate(current && current.ending ? report : finish, current);
    balance();
    post("Runtime.terminateExecution");
  }

  // Node counts the callbacks that it is in, and crashes when one does not return normally. Its
  // function for fatal exceptions resets the count.
  function balance() {
    if (hasUncaughtExceptionCaptureCallback()) return;
    setUncaughtExceptionCaptureCallback(() => {});
    try {
      apply(fatalException, process, [new Error("interrupted"), false]);
    } catch {
      // A cell has broken process.emit().
    } finally {
      setUncaughtExceptionCaptureCallback(null);
    }
  }

  function finish(cell) {
    // process.exit() may have left it true.
    turn = false;
    if (!cell || cell !== current || cell.ending) return;
    // The thread of interrupts.js would stop whatever runs next, which is the shim itself.
    if (shim.guarded && shim.forget()) cell.interrupted = true;
    // At once, because the next file that Node opens for itself would get the number of a closed one.
    shim.repairDescriptors();
    // Waits for calls that the cell has made and not awaited.
    const stopped = cell.fault || cell.interrupted || cell.exit !== null;
    if (shim.settleCalls && !stopped && !cell.waited) {
      cell.waited = true;
      if (shim.settleCalls(() => finish(cell))) return;
    }
    cell.ending = true;
    report(cell);
  }

  // Reports the cell's end. The printed error comes first.
  function report(cell) {
    if (cell.fault) need("hints", () => conclude(cell));
    else conclude(cell);
  }

  function ending(cell) {
    if (cell.exit !== null) return concat([from("x"), number(cell.exit)]);
    if (cell.interrupted) return from("i");
    if (!cell.fault) return from("c");
    const unknown = { name: "Error", message: "" };
    const { name, message } = shim.raised ? shim.raised(cell.fault.error) : unknown;
    return concat([from("r"), string(name), string(message)]);
  }

  function conclude(cell, attempts = 50) {
    if (cell !== current) return;
    // Writes to standard streams block, but a cell may have left one corked or made it non-blocking.
    if (attempts > 0 && (unwritten(standard.stdout) || unwritten(standard.stderr))) {
      setTimeout(conclude, 10, cell, attempts - 1);
      return;
    }
    const body = ending(cell);
    post("Runtime.releaseObjectGroup", { objectGroup: "cell" });
    arm();
    current = null;
    if (shim.isStandard && !shim.isStandard(3)) lose("descriptor 3");
    send("D", body);
    setImmediate(listen);
  }

  // process.exit(): ends the cell, not the process. No user code runs after it, no catch and no
  // finally.
  function exitCell(code) {
    if (code !== undefined) process.exitCode = code;
    const status = Number(process.exitCode) & 255;
    process.exitCode = undefined;
    if (!current) put(2, `process.exit(${status}) between cells was ignored\n`);
    else if (current.exit === null) current.exit = status;
    terminate();
    for (;;);
  }

  // What cells may have changed

  // Adds the listener for SIGINT again: a cell may have removed it, and Node removes it while its
  // watchdog runs.
  function arm() {
    try {
      const found = listeners(process, "SIGINT");
      for (let index = 0; index < found.length; index += 1) if (found[index] === interrupt) return;
      if (shim.guarded) shim.stopWatching();
      on(process, "SIGINT", interrupt);
    } catch {
      // A cell has broken process.emit().
    }
  }

  // Has Node set the signal's action again, when the thread of interrupts.js has ended and restored its default.
  function armAgain() {
    try {
      const found = listeners(process, "SIGINT");
      removeAllListeners(process, "SIGINT");
      for (let index = 0; index < found.length; index += 1) on(process, "SIGINT", found[index]);
    } catch {
      // A cell has broken process.emit().
    }
    arm();
  }

  function unwritten(stream) {
    try {
      return stream && !stream.destroyed && stream.writableLength > 0;
    } catch {
      return false;
    }
  }

  globalThis.__dirname = cwd;
  globalThis[HOOK] = hook;
  const declare = `const ${HOOK} = globalThis.${HOOK}; delete globalThis.${HOOK}; ${HOOK};`;
  post("Runtime.evaluate", { expression: declare }, (error, reply) => {
    hook.id = reply.result.objectId;
  });
  const watched = new Script(`${HOOK}.job()`, { filename: "cove:watched" });

  on(process, "SIGINT", interrupt);
  // Not from here, because terminating the main script would end the process.
  setImmediate(() => {
    // Node has just put its module named `module` there. In a cell `require.main === module` holds.
    globalThis.module = process.mainModule = globalThis.require.main = main;
    need("process_guard", () => {
      if (early) begin(early);
      else listen();
    });
  });
})();
//# sourceURL=cove:boot
