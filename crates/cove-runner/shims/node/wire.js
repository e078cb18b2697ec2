// The Node shim: how code asks the host. Fetched before mcp.js. Run as the body of a function of `shim`.
//
// All calls share one connection to the runner, made by the first one; frames of `length:u32be` and JSON go both
// ways, and answers come in any order.
"use strict";
const { Error, JSON, Map, Set } = shim.globals;
const { createConnection } = shim.own("net");
// What the runner takes and sends at most, the latter with an id besides.
const REQUEST = 8 << 20;
const REPLY = (32 << 20) + 64;

// Errors

class MCPError extends Error {
  constructor(words = "", { kind = "internal", ...fields } = {}) {
    const where = kind === "tool" && fields.server ? `${fields.server}.${fields.tool}: ` : "";
    super(`${where}${words}${fields.hint ? `\nhint: ${fields.hint}` : ""}`);
    const hidden = { value: new.target.name, configurable: true, writable: true };
    Object.defineProperty(this, "name", hidden);
    // Without these, what is printed of it would say everything twice.
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
};
for (const one of [MCPError, ...Object.values(classes)]) errors[one.name] = one;
// As many write it.
errors.McpError = MCPError;
// What the answer to a question has at least.
const FORMS = {
  ...{ __proto__: null, find: "tools", resources: "resources", read_resource: "contents" },
  ...{ prompts: "prompts", prompt: "messages" },
};

function failure(error) {
  if (typeof error?.message !== "string") return garbage();
  const { message, kind, ...fields } = error;
  const Kind = Object.hasOwn(classes, kind) ? classes[kind] : MCPError;
  return new Kind(message, { kind: `${kind}`, ...fields });
}

function problem(kind, message, fields) {
  return failure({ kind, message, ...fields });
}

function garbage() {
  const hint =
    "this is a fault of Cove's, or code in this sandbox has replaced the socket in `COVE_MCP`";
  return problem("internal", "the host's answer cannot be read", { hint });
}

// The wire

const path = process.env.COVE_MCP;
const open = new Map();
let socket = null;
let number = 0;
let chunks = [];
let size = 0;

function frame(request) {
  let text;
  try {
    text = JSON.stringify(request, exact);
    // Half of a character, which no JSON may have.
    if (/(?<!\\)(?:\\\\)*\\ud[89a-f]/.test(text)) throw new Error("a string is not valid Unicode");
  } catch (error) {
    const where = [request.server, request.tool].filter(Boolean).join(".") || request.ask;
    const message = `the arguments of ${where} cannot be written as JSON: ${error.message}`;
    throw problem("bad_arguments", message, { server: request.server, tool: request.tool });
  }
  const body = Buffer.from(text);
  if (body.length > REQUEST) {
    const message = `the arguments are ${body.length} bytes as JSON, and a call takes ${REQUEST} at most`;
    throw problem("limit", message, { hint: "pass less in a call, for example in several calls" });
  }
  const head = Buffer.alloc(4);
  head.writeUInt32BE(body.length);
  return [head, body];
}

// What JSON would change without a word is refused, and sets and maps are what they look like.
function exact(key, value) {
  const original = this[key];
  if (typeof value === "number" && !Number.isFinite(value)) throw new Error(`${value} is no JSON`);
  if (ArrayBuffer.isView(original)) {
    throw new Error("bytes are no JSON; use `Buffer.from(x).toString('base64')`");
  }
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

function lose(which, error, instead = null) {
  if (socket !== which) return;
  socket = null;
  chunks = [];
  size = 0;
  which.destroy();
  const hint = error
    ? "calls work in the cells of a session whose sandbox is Cove's own"
    : "it may have had effects, so it was not repeated; look before you call again";
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
    if (length > REPLY) return lose(socket, null, nonsense());
    if (size < 4 + length) return;
    const whole = chunks.length > 1 ? Buffer.concat(chunks) : chunks[0];
    const rest = whole.subarray(4 + length);
    chunks = rest.length ? [rest] : [];
    size = rest.length;
    if (!deal(whole.subarray(4, 4 + length))) return;
  }
}

function deal(body) {
  let reply;
  try {
    reply = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(body));
  } catch {
    // Said below.
  }
  const sound = reply && typeof reply === "object" && Object.hasOwn(reply, "ok") !== Object.hasOwn(reply, "error");
  if (sound && reply.id === null) lose(socket, null, reply.error);
  else if (!sound || !Number.isInteger(reply.id)) lose(socket, null, nonsense());
  else {
    // One that was given up may still be answered.
    if (open.has(reply.id)) settle(open.get(reply.id), reply);
    return true;
  }
  return false;
}

function nonsense() {
  const { kind, words: message, hint } = garbage();
  return { kind, message, hint };
}

function settle(call, reply) {
  open.delete(call.number);
  // Only while there is something to wait for does it keep the process, whatever else there is.
  if (open.size === 0) socket?.unref();
  call.settle(reply);
}

// The answer to a question. It is an async function, and the error is made in it after the wait, so that V8 finds
// the code that waits and shows it in the stack.
async function ask(kind, fields = {}) {
  number += 1;
  const request = frame({ id: number, ask: kind, ...fields });
  const call = { number };
  const answered = new Promise((resolve) => {
    call.settle = resolve;
  });
  call.answered = answered;
  open.set(number, call);
  if (!path) {
    const message = "could not reach the host for a call: `COVE_MCP` is not set";
    settle(call, { error: { kind: "unavailable", message } });
  } else {
    socket ??= connect();
    socket.ref();
    // What is asked in one turn leaves in one write.
    if (!socket.writableCorked) {
      const corked = socket;
      corked.cork();
      process.nextTick(() => corked.uncork());
    }
    for (const part of request) socket.write(part);
  }
  const reply = await answered;
  if (Object.hasOwn(reply, "error")) throw failure(reply.error);
  if (!isSound(kind, reply.ok)) throw garbage();
  return reply.ok;
}

// Whether an answer has the form that this kind of question wants.
function isSound(kind, value) {
  const isRow = (one) => typeof one?.name === "string";
  if (kind === "servers" || kind === "tools") return Array.isArray(value) && value.every(isRow);
  if (kind === "help") return typeof value === "string";
  if (value === null || typeof value !== "object" || Array.isArray(value)) return false;
  if (kind === "output") return typeof value.text === "string";
  return !(kind in FORMS) || Array.isArray(value[FORMS[kind]]);
}

// Calls that a cell has begun and not waited for: it ends after them. Whether there are any.
shim.settleCalls = (then) => {
  const calls = [...open.values()];
  if (calls.length === 0) return false;
  // In a turn after the one in which their own code goes on.
  Promise.all(calls.map((call) => call.answered)).then(() => setImmediate(then));
  return true;
};

// Of a call whose cell ended before the answer came, and which nobody waits for any more.
shim.isAbandoned = (error) => error instanceof MCPError && error.kind === "cancelled";
shim.wire = { ask, errors, garbage, problem };
