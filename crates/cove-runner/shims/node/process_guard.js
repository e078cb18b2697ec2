// The Node shim: guards the process against cells. Replaces standard streams, the handling of
// exceptions, stack traces, and process.exit(). Fetched before the first cell. Runs as the body of a
// function with the parameter `shim`.
//
// These functions run while cells do, which may have changed every builtin by then. So they use
// functions taken now, as boot.js does.
"use strict";
const { alloc } = Buffer;
const { console, process } = globalThis;
const { apply, ownKeys } = Reflect;
const { defineProperty, getOwnPropertyDescriptor, getPrototypeOf } = Object;
const bind = (method) => (self, a, b) => apply(method, self, [a, b]);
const includes = bind(String.prototype.includes);
const startsWith = bind(String.prototype.startsWith);
const split = bind(String.prototype.split);
const join = bind(Array.prototype.join);
const describe = bind(Error.prototype.toString);
const { EventEmitter } = shim.own("events");
const on = bind(EventEmitter.prototype.on);
const listenerCount = bind(EventEmitter.prototype.listenerCount);
const { _fatalException: fatalException } = process;
const { hasUncaughtExceptionCaptureCallback, setUncaughtExceptionCaptureCallback } = process;

// Streams

// Node makes these streams when they are first used, because it takes a while. This keeps it so.
function standardStream(name) {
  const { standard } = shim;
  const { get } = getOwnPropertyDescriptor(process, name);
  const getter = () => {
    if (!standard[name]) {
      standard[name] = apply(get, process, []);
      // Otherwise the pipe, which other processes share, is non-blocking, and a cell's output waits
      // in memory until the cell ends.
      const handle = standard[name]._handle;
      if (handle && handle.setBlocking) handle.setBlocking(true);
      // Node makes an ended stream look like new, although it is not.
      on(standard[name], "close", () => {
        standard.ended = true;
      });
    }
    return standard[name];
  };
  defineProperty(process, name, { get: getter, configurable: true, enumerable: true });
}

standardStream("stdout");
standardStream("stderr");

// Copies of the two descriptors, for a later cell if this one closes or replaces them. Node cannot copy a descriptor, but
// Linux can open a pipe again by its name in /proc.
const { closeSync, fstatSync, openSync } = shim.own("fs");
const identify = (fd) => {
  try {
    const found = fstatSync(fd);
    return `${found.dev} ${found.ino}`;
  } catch {
    return "";
  }
};
const pipes = ["", identify(1), identify(2), identify(3)];
const copies = [-1, -1, -1];
const copy = (fd) => {
  try {
    copies[fd] = openSync(`/proc/self/fd/${fd}`, "w");
  } catch {
    // Without /proc there is no copy.
  }
};
copy(1);
copy(2);

// Returns whether a standard descriptor, or the channel, is what it was at the start.
shim.isStandard = (fd) => identify(fd) === pipes[fd];

// Makes descriptors 1 and 2 and their copies what they were at the start, whatever earlier cells have done to one.
shim.repairDescriptors = () => {
  for (let fd = 1; fd <= 2; fd += 1) {
    const hasCopy = identify(copies[fd]) === pipes[fd];
    if (shim.isStandard(fd)) {
      if (!hasCopy) copy(fd);
      continue;
    }
    if (hasCopy) reopen(fd);
    if (!shim.isStandard(fd)) shim.lose("a standard descriptor and its copy");
  }
};

// Opens a descriptor again. A new descriptor has the lowest number that is free: this one, if those below are in use.
function reopen(fd) {
  try {
    if (identify(fd)) closeSync(fd);
    const made = openSync(`/proc/self/fd/${copies[fd]}`, "w");
    if (made < fd) reopen(fd);
    else if (made > fd) closeSync(made);
  } catch {
    // The caller looks whether it worked.
  }
}

// While an inspector is connected, V8 keeps the arguments of the last thousand calls of
// console.log() alive. These replace its methods by Node's own.
for (const name of ownKeys(console.Console.prototype)) {
  const method = console.Console.prototype[name];
  if (typeof name !== "string" || typeof method !== "function" || name === "constructor") continue;
  console[name] = (...values) => apply(method, console, values);
  defineProperty(console[name], "name", { value: name });
}

// Exceptions

// Node calls this for an uncaught exception and for an unhandled rejection. Its own function also
// resets internal state, so it has to be called.
process._fatalException = (error, fromPromise) => {
  const mine =
    listenerCount(process, "uncaughtException") === 0 && !hasUncaughtExceptionCaptureCallback();
  if (!mine) return apply(fatalException, process, [error, fromPromise]);
  let reported = false;
  setUncaughtExceptionCaptureCallback((raised) => {
    reported = true;
    if (!shim.isAbandoned || !shim.isAbandoned(raised)) shim.fault(raised);
  });
  try {
    return apply(fatalException, process, [error, fromPromise]);
  } catch {
    // A cell has broken process.emit().
    if (!reported) shim.fault(error);
    return true;
  } finally {
    setUncaughtExceptionCaptureCallback(null);
  }
};

// Makes stacks without the frames of the shim. Those of a cell's first turn are the outermost ones,
// those of its import() the innermost, and a method of console may be anywhere.
function prepareStackTrace(error, frames) {
  let text;
  try {
    text = nodeErrorText(error) || describe(error);
  } catch {
    text = "<error>";
  }
  const kept = [];
  let count = 0;
  for (let index = 0; index < frames.length; index += 1) {
    const frame = `${frames[index]}`;
    // The library for tools, between the code that made a call and the code that woke it.
    if (includes(frame, "cove:wire") || includes(frame, "cove:mcp")) continue;
    if (!includes(frame, "cove:")) {
      kept[count] = frame;
      count += 1;
    } else if (count > 0 && !startsWith(frame, "console.")) {
      while (count > 0 && startsWith(kept[count - 1], "Reflect.apply (")) count -= 1;
      if (count > 0 && startsWith(kept[count - 1], "Session.post (")) count -= 1;
      break;
    }
  }
  for (let index = 0; index < count; index += 1) text += `\n    at ${kept[index]}`;
  // label() in boot.js has replaced spaces.
  return includes(text, "\u2800") ? join(split(text, "\u2800"), " ") : text;
}

// Node's own errors show their code in the stack. A private symbol identifies them.
let nodeError;
function nodeErrorText(error) {
  if (nodeError === undefined) {
    nodeError = null;
    try {
      alloc("");
    } catch (example) {
      for (let object = example; object && !nodeError; object = getPrototypeOf(object)) {
        const keys = ownKeys(object);
        for (let index = 0; index < keys.length; index += 1) {
          const key = keys[index];
          if (typeof key === "symbol" && key.description === "kIsNodeError") nodeError = key;
        }
      }
    }
  }
  return nodeError && nodeError in error && `${error.name} [${error.code}]: ${error.message}`;
}

defineProperty(Error, "prepareStackTrace", {
  value: prepareStackTrace,
  configurable: true,
  writable: true,
});

// The process

process.exit = function exit(code) {
  shim.exitCell(code);
};
// Otherwise children made by fork() would get the flags and the text that started this process.
process.execArgv = [];
delete process._eval;
