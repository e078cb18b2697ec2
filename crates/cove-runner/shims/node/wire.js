// The Node shim: calls to the host. Fetched before mcp.js. Runs as the body of a function with the parameter `shim`.
//
// All calls share one connection to the runner, which the first call makes. Both directions carry frames of
// `length:u32be` and JSON, and replies come in any order. `ask` adds a call to `open` before it writes the request;
// `settle` removes it, when its reply has arrived or the connection is lost.
"use strict";
const { Error, JSON, Map, Set } = shim.globals;
const { createConnection } = shim.own("net");
const { randomUUID } = shim.own("crypto");
// The longest request that the runner accepts, and the longest reply that it sends, with room for an id.
const MAX_REQUEST = 8 << 20;
const MAX_REPLY = (32 << 20) + 64;
// In milliseconds: longer than an interrupt takes on a busy machine.
const CANCELLATION_DELAY = 1000;

// Errors

class MCPError extends Error {
  constructor(words = "", { kind = "internal", ...fields } = {}) {
    const where = kind === "tool" && fields.server ? `${fields.server}.${fields.tool}: ` : "";
    super(`${where}${words}${fields.hint ? `\nhint: ${fields.hint}` : ""}`);
    const hidden = { value: new.target.name, configurable: true, writable: true };
    Object.defineProperty(this, "name", hidden);
    // Hidden, because otherwise a printed error would show everything twice.
    for (const [name, value] of Object.entries({ words, kind, hint: undefined, ...fields })) {
      if (name === "message" || name === "stack") continue;
      Object.defineProperty(this, name, { ...hidden, value });
    }
  }
}

const errors = { __proto__: null };
const classes = {
  tool: class ToolError extends MCPError {},
  unknown_server: class UnknownServer extends MCPError {},
  unknown_tool: class UnknownTool extends MCPError {},
  bad_arguments: class BadArguments extends MCPError {},
  refused: class Refused extends MCPError {},
  unavailable: class ServerUnavailable extends MCPError {},
  gone: class ServerGone extends MCPError {},
  timeout: class CallTimeout extends MCPError {},
  protocol: class ProtocolError extends MCPError {},
  limit: class LimitExceeded extends MCPError {},
  elicitation_required: class ElicitationRequired extends MCPError {},
  sign_in_needed: class SignInNeeded extends MCPError {},
  tool_changed: class ToolChanged extends MCPError {},
  server_held: class ServerHeld extends MCPError {},
};
for (const one of [MCPError, ...Object.values(classes)]) errors[one.name] = one;
// A common spelling.
errors.McpError = MCPError;
// For each kind of request, the array that its answer must have.
const ANSWER_FORMS = {
  ...{ __proto__: null, find: "tools", resources: "resources", read_resource: "contents" },
  ...{ prompts: "prompts", prompt: "messages", complete: "values", logs: "logs" },
};

function failure(error) {
  if (typeof error?.message !== "string") return unreadableAnswer();
  const { message, kind, ...fields } = error;
  const Kind = Object.hasOwn(classes, kind) ? classes[kind] : MCPError;
  return new Kind(message, { kind: `${kind}`, ...fields });
}

function problem(kind, message, fields) {
  return failure({ kind, message, ...fields });
}

// The error of a reply that is not one.
const UNREADABLE = {
  ...{ kind: "internal", message: "the host's answer cannot be read" },
  hint: "this is a bug in Cove, or code in this sandbox has replaced the socket in `COVE_MCP`",
};
const unreadableAnswer = () => failure(UNREADABLE);

// The connection

const path = process.env.COVE_MCP;
const open = new Map();
let socket = null;
let number = 0;
let chunks = [];
let size = 0;
// Making one for every reply would take longer than the decoding.
const decoder = new TextDecoder("utf-8", { fatal: true });

// Numbers

// JavaScript's numbers are exact up to 2^53. An integer beyond that arrives as a BigInt, and a BigInt leaves as a
// number. In between it is a string with this mark, which no server can guess.
const MARK = `integer ${randomUUID()} `;
const WRITTEN = new RegExp(`"${MARK}(-?\\d+)"`, "g");

function parse(text) {
  const marked = markIntegers(text);
  if (marked === text) return JSON.parse(text);
  if (!Object.hasOwn(BigInt.prototype, "toJSON")) {
    // Without this, `JSON.stringify` refuses a result that has one.
    const value = function toJSON() {
      return JSON.rawJSON ? JSON.rawJSON(`${this}`) : `${this}`;
    };
    Object.defineProperty(BigInt.prototype, "toJSON", { value, configurable: true, writable: true });
  }
  const isMarked = (value) => typeof value === "string" && value.startsWith(MARK);
  return JSON.parse(marked, (key, value) => (isMarked(value) ? BigInt(value.slice(MARK.length)) : value));
}

// Returns JSON with a marked string for each integer that a number cannot hold.
function markIntegers(text) {
  let marked = "";
  let copied = 0;
  let quote = text.indexOf('"');
  let inside = false;
  for (const { 0: digits, index } of text.matchAll(/(?<![\w.+-])-?\d{16,}(?![\d.eE])/g)) {
    for (; quote >= 0 && quote < index; quote = text.indexOf('"', quote + 1)) {
      let slashes = 0;
      while (inside && text[quote - 1 - slashes] === "\\") slashes += 1;
      if (slashes % 2 === 0) inside = !inside;
    }
    if (inside || Number.isSafeInteger(Number(digits))) continue;
    marked += `${text.slice(copied, index)}"${MARK}${digits}"`;
    copied = index + digits.length;
  }
  return marked + text.slice(copied);
}

function frame(request) {
  let text;
  try {
    text = JSON.stringify(request, exact).replace(WRITTEN, "$1");
    // Half of a surrogate pair, which is not valid in JSON.
    if (/(?<!\\)(?:\\\\)*\\ud[89a-f]/.test(text)) throw new Error("a string is not valid Unicode");
  } catch (error) {
    const where = [request.server, request.tool].filter(Boolean).join(".") || request.ask;
    const message = `the arguments of ${where} cannot be written as JSON: ${error.message}`;
    throw problem("bad_arguments", message, { server: request.server, tool: request.tool });
  }
  const length = Buffer.byteLength(text);
  if (length > MAX_REQUEST) {
    const message = `the arguments are ${length} bytes as JSON, at most ${MAX_REQUEST} are allowed`;
    throw problem("limit", message, { hint: "split the data over several calls" });
  }
  const framed = Buffer.alloc(4 + length);
  framed.writeUInt32BE(length);
  framed.write(text, 4);
  return framed;
}

// Refuses values that JSON would change silently, and writes sets and maps as arrays and objects.
function exact(key, value) {
  const original = this[key];
  if (typeof value === "number" && !Number.isFinite(value)) throw new Error(`${value} is not valid JSON`);
  if (ArrayBuffer.isView(original)) {
    throw new Error("JSON has no bytes; use `Buffer.from(x).toString('base64')`");
  }
  if (typeof original === "bigint") return MARK + original;
  if (value instanceof Set) return [...value];
  return value instanceof Map ? Object.fromEntries(value) : value;
}

function connect() {
  const made = createConnection(path ?? "");
  let connected = false;
  made.on("connect", () => {
    connected = true;
  });
  made.on("data", (bytes) => socket === made && receive(bytes));
  made.on("error", (error) => lose(made, connected ? null : error));
  made.on("close", () => lose(made, null));
  return made;
}

// Closes a connection and settles all open calls: with `error` if it could not be made, with `instead` if that is
// given, else as a lost connection.
function lose(which, error, instead = null) {
  if (socket !== which) return;
  socket = null;
  chunks = [];
  size = 0;
  which.destroy();
  const hint = error
    ? "calls work in the cells of a session whose sandbox is Cove's own"
    : "the call may have had effects, so it was not repeated; check before you call again";
  const why = error
    ? { kind: "unavailable", message: `could not reach the host for a call: ${error.message}`, hint }
    : { kind: "gone", message: "the connection to the host was lost during the call", hint };
  for (const call of [...open.values()]) settle(call, { error: instead ?? why });
}

function receive(bytes) {
  chunks.push(bytes);
  size += bytes.length;
  while (size >= 4) {
    if (chunks[0].length < 4) chunks = [Buffer.concat(chunks)];
    const length = chunks[0].readUInt32BE(0);
    if (length > MAX_REPLY) return lose(socket, null, UNREADABLE);
    if (size < 4 + length) return;
    const whole = chunks.length > 1 ? Buffer.concat(chunks) : chunks[0];
    const rest = whole.subarray(4 + length);
    chunks = rest.length ? [rest] : [];
    size = rest.length;
    if (!deal(whole.subarray(4, 4 + length))) return;
  }
}

// Settles the call that a reply belongs to. Returns whether the connection can be used further.
function deal(body) {
  let reply;
  try {
    reply = parse(decoder.decode(body));
  } catch {
    // Reported below.
  }
  const sound = reply && typeof reply === "object" && Object.hasOwn(reply, "ok") !== Object.hasOwn(reply, "error");
  if (sound && reply.id === null) lose(socket, null, reply.error);
  else if (!sound || !Number.isInteger(reply.id)) lose(socket, null, UNREADABLE);
  else {
    // The reply may be for a call that was given up.
    if (open.has(reply.id)) settle(open.get(reply.id), reply);
    return true;
  }
  return false;
}

function settle(call, reply) {
  open.delete(call.number);
  // The connection keeps the process alive only while there is a reply to wait for.
  if (open.size === 0) socket?.unref();
  // The host answers so when it stops the cell. Its interrupt is on the way, and must find this cell, not a later one.
  if (reply.error?.kind === "cancelled") setTimeout(call.settle, CANCELLATION_DELAY, reply);
  else call.settle(reply);
}

// Sends a request and returns the answer. It is an async function and makes the error after the wait, so that V8
// finds the waiting code and shows it in the stack.
async function ask(kind, fields = {}) {
  number += 1;
  const request = frame({ id: number, ask: kind, ...fields });
  const call = { number };
  call.answered = new Promise((resolve) => {
    call.settle = resolve;
  });
  open.set(number, call);
  if (!path) {
    const message = "could not reach the host for a call: `COVE_MCP` is not set";
    settle(call, { error: { kind: "unavailable", message } });
  } else {
    socket ??= connect();
    socket.ref();
    // All requests of one turn leave in one write.
    if (!socket.writableCorked) {
      const corked = socket;
      corked.cork();
      process.nextTick(() => corked.uncork());
    }
    socket.write(request);
  }
  const reply = await call.answered;
  if (Object.hasOwn(reply, "error")) throw failure(reply.error);
  if (!isSound(kind, reply.ok)) throw unreadableAnswer();
  return reply.ok;
}

// Returns whether an answer has the form that this kind of request needs.
function isSound(kind, value) {
  const isRow = (one) => typeof one?.name === "string";
  if (kind === "servers" || kind === "tools") return Array.isArray(value) && value.every(isRow);
  if (kind === "help") return typeof value === "string";
  if (value === null || typeof value !== "object" || Array.isArray(value)) return false;
  if (kind === "output") return typeof value.text === "string";
  if (kind === "subscribe" || kind === "changes") return typeof value.changes === "number";
  return !(kind in ANSWER_FORMS) || Array.isArray(value[ANSWER_FORMS[kind]]);
}

// Waits for calls that a cell has begun and not awaited, then calls `then`. Returns whether there are any.
shim.settleCalls = (then) => {
  const calls = [...open.values()];
  if (calls.length === 0) return false;
  // In a later turn than the one in which the code of these calls continues.
  Promise.all(calls.map((call) => call.answered)).then(() => setImmediate(then));
  return true;
};

// Returns whether an error belongs to a call whose cell ended before the reply came. No code waits for it.
shim.isAbandoned = (error) => error instanceof MCPError && error.kind === "cancelled";
shim.wire = { ask, errors, problem, unreadableAnswer };
