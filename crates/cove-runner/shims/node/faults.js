// The Node shim: what is printed and reported of an exception that nobody caught. Fetched when
// there is one. Run as the body of a function of `shim`.
//
// Whatever a cell throws, or has done to the builtins, something has to be printed and reported:
// hence the many `try`.
"use strict";
const { Error, Map, Math } = shim.globals;
const { inspect, types } = shim.own("util");
// A message can be as large as memory.
const LONGEST = 64 << 10;
// Sources are kept of the newest cells up to this size, and lines shown up to that one.
const SOURCES = 8 << 20;
const LINE = 400;

const sources = new Map();
let size = 0;

shim.remember = (name, code) => {
  const key = shim.label(name);
  size += code.length - (sources.get(key)?.length ?? 0);
  sources.delete(key);
  sources.set(key, code);
  for (const [old, text] of sources) {
    if (size <= SOURCES || old === key) break;
    size -= text.length;
    sources.delete(old);
  }
};

// `details` is what the inspector said of it, if it was the inspector who caught it.
shim.print = (error, details, name) => {
  let text = "Uncaught exception";
  try {
    text = describe(error, details, name);
  } catch {
    const { name, message } = shim.raised(error);
    text = `Uncaught ${name}: ${message}`;
  }
  if (text.length > LONGEST) text = `${text.slice(0, LONGEST)}\n… cut`;
  shim.put(2, `${text}\n`);
};

function describe(error, details, name) {
  if (!types.isNativeError(error) && !(error instanceof Error)) return `Uncaught ${inspect(error)}`;
  // Of code that did not compile, V8 tells the position there, and nothing in the stack.
  if (details?.scriptId && !details.stackTrace && sources.has(shim.label(name))) {
    const url = shim.label(name);
    const lines = sources.get(url).split("\n");
    // The end of an unfinished cell is behind the line that we have added to it.
    const line = Math.min(details.lineNumber, lines.length - 1);
    const column = line < details.lineNumber ? lines[line].length : details.columnNumber;
    return `${excerpt(url, line, column)}${error.name}: ${error.message}`;
  }
  if (typeof error.stack !== "string") throw error;
  return where(error.stack) + withoutNode(inspect(error));
}

// The line of a cell that a stack begins in, as Node shows it.
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
  if (text === "" || text.length > LINE) return `${name}:${line + 1}\n\n`;
  // Tabs stay, so that the caret stands where it should.
  const margin = text.slice(0, column).replace(/[^\t]/g, " ");
  return `${name}:${line + 1}\n${text}\n${margin}^\n\n`;
}

// Frames of Node itself say nothing to the user, also in the stacks of causes and of the errors of an
// AggregateError. Ours are there when a cell has put its own function for stacks in our place.
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
      // A class of the user's that does not care for `name`.
      if (typeof name !== "string" || name === "" || name === "Error") {
        name = error.constructor?.name || "Error";
      }
      message = types.isNativeError(error) || "message" in error ? error.message : inspect(error);
    } else {
      name = error === null ? "null" : typeof error;
      message = typeof error === "string" ? error : inspect(error);
    }
  } catch {
    // A getter of the user's.
  }
  return {
    name: typeof name === "string" ? name : "Error",
    message: typeof message === "string" ? message : "",
  };
};
