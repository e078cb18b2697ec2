// The Node shim: `mcp`, the tools of other servers. Fetched for a cell with that word. Runs as the body of a
// function with the parameter `shim`.
//
// A tool is not looked up before the call: the host knows all names and spellings, and suggests others for an unknown
// one.
"use strict";
const { JSON } = shim.globals;
const { inspect } = shim.own("util");
const { writeFileSync } = shim.own("fs");
const { ask, errors, problem, unreadableAnswer } = shim.wire;
// How many tools a list shows as text.
const MAX_LISTED = 50;

// Calls

function valueOf(answer) {
  if (Object.hasOwn(answer, "value")) return answer.value;
  if (answer.rich !== null && typeof answer.rich === "object") return new Result(answer.rich);
  if (Object.hasOwn(answer, "raw")) return answer.raw;
  throw unreadableAnswer();
}

// Calls `mcp.call("server.tool", args, options)`, or `mcp.call(server, tool, args, options)`.
async function call(server, tool, args, options) {
  if (typeof tool === "string") return callTool(server, tool, args, options);
  const [name, rest] = await splitName(`${server}`);
  return callTool(name, rest, tool, args);
}

// Returns the server and the tool of `server.tool`. Both names may have dots themselves.
async function splitName(name) {
  const parts = name.split(".");
  const all = await ask("servers");
  for (let at = parts.length - 1; at > 0; at -= 1) {
    const server = findByName(parts.slice(0, at).join("."), all);
    if (server) return [server.name, parts.slice(at).join(".")];
  }
  if (parts.length > 1) await lookUpServer(parts[0]);
  throw problem("bad_arguments", "a call needs a tool: `await mcp.call(\"server.tool\", {...})`", { server: name });
}

async function callTool(server, tool, args = {}, options = {}) {
  const { raw = false, timeout } = options === true ? { raw: true } : options;
  const fields = { server: nameOf(server), tool: `${tool}`, arguments: checked(server, tool, args) };
  const more = { ...(raw && { raw }), ...(timeout !== undefined && { timeout }) };
  return valueOf(await ask("call", { ...fields, ...more }));
}

function checked(server, tool, args) {
  if (args !== null && typeof args === "object" && !Array.isArray(args)) return args;
  const fields = { server: nameOf(server), tool, hint: `for example {"name": value}` };
  throw problem("bad_arguments", `the arguments of ${server}.${tool} must be one object`, fields);
}

const fold = (name) => `${name}`.toLowerCase().replace(/[^\p{L}\p{N}]/gu, "_");
const NAME = Symbol("name");
const nameOf = (server) => server?.[NAME] ?? `${server}`;

// Returns the entry with this name or alias, or with another spelling of its name.
function findByName(name, list, keys = ["name", "alias"]) {
  for (const key of keys) {
    const found = list.find((one) => one[key] === name);
    if (found) return found;
  }
  const found = list.filter((one) => fold(one.name) === fold(name));
  return found.length === 1 ? found[0] : undefined;
}

// Returns an argument without a name under the only name it can have. Fails if that is not clear.
async function namePositional(server, name, positional) {
  const tool = findByName(name, await ask("tools", { server }));
  const known = Object.keys(tool?.input_schema?.properties ?? {});
  const required = (tool?.input_schema?.required ?? []).filter((one) => known.includes(one));
  const only = required.length === 1 ? required : known;
  if (positional.length === 1 && only.length === 1) return { [only[0]]: positional[0] };
  const hint = `give one object of parameters: ${tool?.node ?? known.join(", ")}`;
  const message = `${server}.${name} was not called with one object of parameters`;
  throw problem("bad_arguments", message, { hint, server, tool: name });
}

// Names

// Members that libraries ask any object for, to find out what it is or to make a text of it. A tool with such a name
// has another alias.
const RESERVED = ["then", "toJSON", "constructor", "toString", "valueOf", "__proto__", "__esModule"];
const isReserved = (name) => typeof name === "symbol" || RESERVED.includes(name);

function toolOf(server, name) {
  const begin = async (args, more) => {
    const [given] = args;
    const isObject = given !== null && typeof given === "object" && !Array.isArray(given);
    const named = args.length === 0 || (args.length === 1 && (isObject || given === undefined));
    const fields = { server, tool: name, arguments: named ? (given ?? {}) : await namePositional(server, name, args) };
    return valueOf(await ask("call", { ...fields, ...more }));
  };
  const made = async (...args) => begin(args);
  // Returns the whole result, as MCP defines it.
  made.raw = async (...args) => begin(args, { raw: true });
  return Object.defineProperties(made, { name: { value: name }, [NAME]: { value: `${server}.${name}` } });
}

// In MCP all arguments of a prompt or a template are strings.
function asTexts(args) {
  const text = ([key, value]) => [key, typeof value === "string" ? value : JSON.stringify(value)];
  return Object.fromEntries(Object.entries(args).map(text));
}

// Returns an array with further members that are not shown.
function withMembers(array, members) {
  for (const [name, value] of Object.entries(members)) Object.defineProperty(array, name, { value });
  return array;
}

// Returns values for an argument that begin with `value`. `context` has other arguments.
async function complete(server, reference, argument, value = "", context = {}) {
  const given = { argument, value: `${value}`, context: asTexts(context) };
  const { values, has_more: hasMore, total } = await ask("complete", { server, ...reference, ...given });
  return withMembers(values, { hasMore, total });
}

// Returns the changes of a resource, which end with the cell or with `close()`.
async function subscribe(server, uri) {
  let { subscription, changes: seen } = await ask("subscribe", { server, uri });
  return {
    uri,
    // Waits for a change. Returns how many there were since the last wait, 0 if none came in `timeout` seconds.
    async wait(timeout = 60) {
      const { changes } = await ask("changes", { subscription, seen, timeout });
      const found = changes - seen;
      seen = changes;
      return found;
    },
    async close() {
      const number = subscription;
      subscription = undefined;
      if (number !== undefined) await ask("unsubscribe", { subscription: number });
    },
  };
}

function serverOf(name) {
  const text = () => `[server ${name}: await mcp.help("${name}") shows its tools]`;
  const members = {
    [NAME]: name,
    [inspect.custom]: text,
    [Symbol.toPrimitive]: text,
    resources: {
      async list() {
        const { resources, templates } = await ask("resources", { server: name });
        return Object.defineProperty(resources, "templates", { value: templates ?? [] });
      },
      async read(uri) {
        const contents = (await ask("read_resource", { server: name, uri })).contents.map(contentOf);
        return contents.length === 1 ? contents[0] : contents;
      },
      subscribe: (uri) => subscribe(name, uri),
      complete: (resource, argument, value, context) => complete(name, { resource }, argument, value, context),
    },
    prompts: {
      list: async () => (await ask("prompts", { server: name })).prompts,
      get: (prompt, args = {}) => ask("prompt", { server: name, name: prompt, arguments: asTexts(args) }),
      complete: (prompt, argument, value, context) => complete(name, { prompt }, argument, value, context),
    },
  };
  return new Proxy(members, {
    get: (target, key) =>
      Object.hasOwn(target, key) || isReserved(key) ? target[key] : toolOf(name, key),
  });
}

// Results

class Blob {
  constructor(text, mime, uri) {
    this.mime = mime;
    if (uri !== undefined) this.uri = uri;
    this.bytes = Buffer.from(`${text ?? ""}`, "base64");
  }

  save(file) {
    writeFileSync(file, this.bytes);
    return file;
  }

  [inspect.custom]() {
    return `<${this.mime ?? "bytes"}, ${this.bytes.length} bytes>`;
  }
}

function contentOf(content) {
  if (content === null || typeof content !== "object") return undefined;
  if (typeof content.blob === "string") return new Blob(content.blob, content.mimeType, content.uri);
  if (/json(;|$)/.test(content.mimeType ?? "")) {
    try {
      return JSON.parse(content.text);
    } catch {
      // Then it is text.
    }
  }
  return content.text;
}

class Result {
  constructor({ text, ...raw }) {
    const content = Array.isArray(raw.content) ? raw.content : [];
    const of = (kind) => content.filter((one) => one?.type === kind);
    const blob = ({ data, mimeType }) => new Blob(data, mimeType);
    this.text = `${text ?? ""}`;
    this.images = of("image").map(blob);
    this.audio = of("audio").map(blob);
    const embedded = of("resource").map((one) => contentOf(one.resource));
    this.resources = [...embedded, ...of("resource_link")];
    Object.defineProperty(this, "content", { value: content });
    Object.defineProperty(this, "raw", { value: { ...raw, content } });
  }

  // Writes the first image, sound or file to a path; if there is none, the text.
  save(file) {
    const blobs = [...this.images, ...this.audio, ...this.resources].filter((one) => one instanceof Blob);
    if (blobs.length) return blobs[0].save(file);
    writeFileSync(file, this.text);
    return file;
  }

  toString() {
    const rest = [...this.images, ...this.audio, ...this.resources].map((one) => inspect(one));
    return [this.text, ...rest].filter(Boolean).join("\n");
  }

  [inspect.custom]() {
    return this.toString();
  }
}

// Shows a cell's value if it has images: the images that are within the limits, and everything else as text. Returns
// whether it has images.
shim.showImages = (value) => {
  const isImage = value instanceof Blob && `${value.mime}`.startsWith("image/");
  const images = isImage ? [value] : value instanceof Result ? value.images : [];
  if (images.length === 0) return false;
  const rest = isImage ? [] : [...value.audio, ...value.resources].map((one) => inspect(one));
  const text = [isImage ? "" : value.text, ...rest].filter(Boolean).join("\n");
  if (text) shim.put(1, `${text}\n`);
  images.forEach(({ bytes }, index) => {
    const kind = kindOf(bytes);
    const fits = kind && bytes.length <= 4 << 20 && index < 16;
    if (fits) shim.send("I", Buffer.concat([Buffer.from(kind), bytes]));
    else shim.put(2, `[an image of ${bytes.length} bytes was not shown]\n`);
  });
  return true;
};

function kindOf(bytes) {
  const start = bytes.toString("latin1", 0, 12);
  if (start.startsWith("\x89PNG\r\n")) return "p";
  if (start.startsWith("\xff\xd8\xff")) return "j";
  if (start.startsWith("GIF8")) return "g";
  return start.startsWith("RIFF") && start.endsWith("WEBP") ? "w" : null;
}

// Search

class Text extends String {
  [inspect.custom]() {
    return `${this}`;
  }
}

class SearchResult extends Array {
  static get [Symbol.species]() {
    return Array;
  }

  toString() {
    const lines = this.length ? this.map(entry) : [...(this.servers ?? ["nothing found"])];
    if (this.also) lines.push(`// also: ${this.also.join(", ")}`);
    if (this.total > this.length) lines.push(`// ${this.length} of ${this.total} matches`);
    return [...lines, ...(this.hint ? [`// ${this.hint}`] : [])].join("\n");
  }

  [inspect.custom]() {
    return this.toString();
  }
}

const entry = ({ signature, tool, comment }) => [signature ?? tool, ...(comment ? [comment] : [])].join("\n");

async function find(query = "", limit = 5) {
  const most = typeof limit === "object" ? (limit?.limit ?? 5) : limit;
  const { tools, ...rest } = await ask("find", { query, limit: most, language: "node" });
  const found = new SearchResult();
  found.push(...tools);
  for (const name of ["total", "hint", "also", "servers"]) Object.defineProperty(found, name, { value: rest[name] });
  return found;
}

async function help(topic) {
  return new Text(await ask("help", topic === undefined ? {} : { topic: nameOf(topic), language: "node" }));
}

async function lookUpServer(name) {
  const all = await ask("servers");
  const server = findByName(name, all);
  if (server) return server;
  const names = all.map((one) => one.name);
  const message = `there is no server \`${name}\`; available: ${names.join(", ") || "none"}`;
  const hint = suggest(name, names) ?? 'see `await mcp.servers`, or `await mcp.find("what you want to do")`';
  throw problem("unknown_server", message, { hint, server: name });
}

// Returns a hint with similar names, by the pairs of letters that they share, or undefined.
function suggest(name, names) {
  const pairs = (text) => new Set(Array.from(fold(text), (letter, at) => letter + (fold(text)[at + 1] ?? "")));
  const wanted = pairs(name);
  const alike = (other) => {
    const found = pairs(other);
    return [...found].filter((pair) => wanted.has(pair)).length / Math.max(found.size, wanted.size, 1);
  };
  const sorted = names.map((one) => [alike(one), one]).filter(([how]) => how >= 0.5);
  const best = sorted.sort(([a], [b]) => b - a).slice(0, 3);
  return best.length ? `did you mean ${best.map(([, one]) => `\`${one}\``).join(" or ")}?` : undefined;
}

// mcp.runtime: the functions that similar MCP servers offer

function document(server, tool, detail) {
  const found = { server: server.name, serverAlias: server.alias, tool: tool.name, toolAlias: tool.alias };
  if (tool.description) found.description = tool.description;
  if (tool.node) found.signature = tool.node;
  if (detail === "full") found.inputSchema = tool.input_schema;
  if (detail === "full" && tool.output_schema) found.outputSchema = tool.output_schema;
  return found;
}

const runtime = {
  discovered_servers: async (detailed = false) =>
    (await ask("servers")).map(({ name, description }) => (detailed ? { name, description } : name)),
  list_servers: async () => (await ask("servers")).map(({ name }) => name),
  list_tools: async (name) => ask("tools", { server: (await lookUpServer(name)).name }),
  async describe_server(name) {
    const server = await lookUpServer(name);
    return { ...server, tools: await ask("tools", { server: server.name }) };
  },
  // A server whose tools are unknown has none here.
  async list_loaded_server_metadata() {
    const failed = (server) => (error) => ({ ...server, tools: [], error: error.message });
    const described = (server) => runtime.describe_server(server.name).catch(failed(server));
    return Promise.all((await ask("servers")).map(described));
  },
  async query_tool_docs(name, tool, detail = "summary") {
    if (detail !== "summary" && detail !== "full") {
      throw problem("bad_arguments", `\`detail\` must be "summary" or "full", not ${inspect(detail)}`);
    }
    const server = await lookUpServer(name);
    const tools = await ask("tools", { server: server.name });
    if (tool === undefined || tool === null) return tools.map((one) => document(server, one, detail));
    const found = findByName(tool, tools);
    if (found) return document(server, found, detail);
    const names = tools.map((one) => one.alias);
    const message = `${server.name} has no tool \`${tool}\`; available: ${names.slice(0, MAX_LISTED).join(", ") || "none"}`;
    throw problem("unknown_tool", message, { hint: suggest(`${tool}`, names), server: server.name, tool });
  },
  async search_tool_docs(query, { limit = 5, detail = "summary" } = {}) {
    const found = await find(query, limit);
    return Promise.all(found.map((one) => runtime.query_tool_docs(one.server, one.tool, detail)));
  },
  call_tool: (server, tool, args, options) => callTool(server, tool, args ?? {}, options),
  capability_summary: () => help(),
  MCPError: errors.MCPError,
};
// JavaScript cannot wait synchronously, so these are the same functions.
for (const name of ["list_servers", "list_tools", "query_tool_docs", "search_tool_docs"]) {
  runtime[`${name}_sync`] = runtime[name];
}

// mcp

// Approved servers that are not configured.
class ApprovedServers extends Array {
  static get [Symbol.species]() {
    return Array;
  }

  toString() {
    const line = ({ name, version, kinds, needs, description }) =>
      `${name} ${version} (${[kinds, ...needs.map((need) => `needs ${need}`)].join(", ")})${description && `: ${description}`}`;
    return [...Array.from(this, line), ...(this.hint ? [`// ${this.hint}`] : [])].join("\n");
  }

  [inspect.custom]() {
    return this.toString();
  }
}

async function findServers(query = "", limit = 20) {
  const most = typeof limit === "object" ? (limit?.limit ?? 20) : limit;
  const { servers: approved, total, hint } = await ask("find_servers", { query, limit: most });
  const found = new ApprovedServers();
  found.push(...approved);
  return withMembers(found, { total, hint });
}

// Asks the person to add an approved server. Installs nothing.
const requestServer = (name, why = "") =>
  ask("request_server", { name: `${name}`, why: `${typeof why === "object" ? (why?.why ?? "") : why}` });

// Returns a function whose members are the tools of a server that has the same name.
const withServer = (call, name) => new Proxy(call, { get: (_, key) => serverOf(name)[key] });

// `await mcp.servers`, `mcp.servers()`, `mcp.servers.github` and `mcp.servers["github"]`.
const listing = () => ask("servers");
listing[inspect.custom] = listing[Symbol.toPrimitive] = () => "[servers: await mcp.servers lists them]";
const servers = new Proxy(listing, {
  get(target, name) {
    if (name === "then") return (...then) => ask("servers").then(...then);
    if (name === "find") return withServer(findServers, name);
    if (name === "request") return withServer(requestServer, name);
    return isReserved(name) ? target[name] : serverOf(name);
  },
});

async function logs(server) {
  const answer = await ask("logs", { server: nameOf(server) });
  return withMembers(answer.logs, { dropped: answer.dropped });
}

const output = async (handle) => (await ask("output", { handle })).text;
const api = { __proto__: null, ...errors, Result, call, find, help, logs, output, runtime, servers };
const about = () => '[mcp: await mcp.help(), await mcp.find("what to do"), await mcp.servers]';
api[inspect.custom] = api[Symbol.toPrimitive] = about;
api[Symbol.toStringTag] = "mcp";

const mcp = new Proxy(api, {
  get: (target, name) => (name in target || isReserved(name) ? target[name] : serverOf(name)),
});
const define = (name, value) => {
  if (!Object.hasOwn(globalThis, name)) {
    Object.defineProperty(globalThis, name, { value, configurable: true, writable: true });
  }
};

// Defines the names that a cell with the word `mcp` may use: these two, and `mcp_NAME` for a server.
shim.defineNames = (code) => {
  define("mcp", mcp);
  define("mcp_servers", servers);
  for (const [name] of code.matchAll(/\bmcp_[\w$]+/g)) {
    if (name !== "mcp_servers") define(name, serverOf(name.slice(4)));
  }
};
