// The Node shim: prints and reports uncaught exceptions. Fetched when there is one. Runs as the body of
// a function with the parameter `shim`.
//
// Whatever a cell throws, and whatever it has done to the builtins, something has to be printed and
// reported. That is why there are so many `try`.
"use strict";
const { Error, Map, Math } = shim.globals;
const { inspect, types } = shim.own("util");
// The longest text that is printed: a message can be as large as memory.
const MAX_TEXT = 64 << 10;
// How much source of the newest cells is kept, and the longest line that an excerpt shows.
const MAX_SOURCES = 8 << 20;
const MAX_LINE = 400;

const sources = new Map();
let size = 0;

shim.remember = (name, code) => {
  const key = shim.label(name);
  size += code.length - (sources.get(key)?.length ?? 0);
  sources.delete(key);
  sources.set(key, code);
  for (const [old, text] of sources) {
    if (size <= MAX_SOURCES || old === key) break;
    size -= text.length;
    sources.delete(old);
  }
};

// `details` is the inspector's report, if the inspector caught the exception.
shim.print = (error, details, name) => {
  let text = "Uncaught exception";
  try {
    text = describe(error, details, name);
  } catch {
    const { name, message } = shim.raised(error);
    text = `Uncaught ${name}: ${message}`;
  }
  if (text.length > MAX_TEXT) text = `${text.slice(0, MAX_TEXT)}\n… cut`;
  const hint = shim.hintFor?.(error);
  shim.put(2, hint ? `${text}\nhint: ${hint}\n` : `${text}\n`);
};

function describe(error, details, name) {
  if (!types.isNativeError(error) && !(error instanceof Error)) return `Uncaught ${inspect(error)}`;
  // For code that does not compile, V8 gives the position only there, and not in the stack.
  if (details?.scriptId && !details.stackTrace && sources.has(shim.label(name))) {
    const url = shim.label(name);
    const lines = sources.get(url).split("\n");
    // The end of an unfinished cell is after the line that the shim has added to it.
    const line = Math.min(details.lineNumber, lines.length - 1);
    const column = line < details.lineNumber ? lines[line].length : details.columnNumber;
    return `${excerpt(url, line, column)}${error.name}: ${error.message}`;
  }
  if (typeof error.stack !== "string") throw error;
  return where(error.stack) + withoutNode(inspect(error));
}

// Returns an excerpt of the line of a cell in which a stack begins, as Node shows it.
function where(stack) {
  for (const line of stack.split("\n")) {
    const found = /^ {4}at (?:.* \()?(.*):(\d+):(\d+)\)?$/.exec(line);
    if (!found) continue;
    const url = shim.label(found[1]);
    if (sources.has(url)) return excerpt(url, found[2] - 1, found[3] - 1);
    if (!/^(?:node|cove):/.test(found[1])) break;
  }
  return "";
}

function excerpt(url, line, column) {
  const name = url.replaceAll("\u2800", " ");
  const text = sources.get(url).split("\n")[line]?.trimEnd() ?? "";
  if (text === "" || text.length > MAX_LINE) return `${name}:${line + 1}\n\n`;
  // Keeps tabs, so that the caret is in the right place.
  const margin = text.slice(0, column).replace(/[^\t]/g, " ");
  return `${name}:${line + 1}\n${text}\n${margin}^\n\n`;
}

// Removes frames of Node itself, which mean nothing to the user, also in the stacks of causes and of
// the errors of an AggregateError. Frames of the shim are there when a cell has replaced
// Error.prepareStackTrace.
function withoutNode(text) {
  return text
    .replaceAll("\u2800", " ")
    .replace(/\n +at (?:[^\n]* \()?(?:node|cove):[^\n]*?:\d+:\d+\)?(?=[\n,{ ]|$)/g, "");
}

shim.raised = (error) => {
  let name = "Error";
  let message = "";
  try {
    if (error !== null && typeof error === "object") {
      name = error.name;
      // A class of the user that does not set `name`.
      if (typeof name !== "string" || name === "" || name === "Error") {
        name = error.constructor?.name || "Error";
      }
      message = types.isNativeError(error) || "message" in error ? error.message : inspect(error);
    } else {
      name = error === null ? "null" : typeof error;
      message = typeof error === "string" ? error : inspect(error);
    }
  } catch {
    // A getter of the user failed.
  }
  return {
    name: typeof name === "string" ? name : "Error",
    message: typeof message === "string" ? message : "",
  };
};
