// The Node shim: `mcp`, the tools of other servers. Fetched by a cell with that word. Run as the body of a
// function of `shim`.
//
// A tool is not looked up before it is called: the host knows all names and spellings, and says what is near when
// it knows none.
"use strict";
const { JSON } = shim.globals;
const { inspect } = shim.own("util");
const { writeFileSync } = shim.own("fs");
const { ask, errors, problem } = shim.wire;
// Lines of a list of tools that is shown as text.
const SHOWN = 50;

// Calls

function valueOf(answer) {
  if (Object.hasOwn(answer, "value")) return answer.value;
  return Object.hasOwn(answer, "rich") ? new Rich(answer.rich) : answer.raw;
}

async function callTool(fields) {
  try {
    return valueOf(await ask("call", fields));
  } catch (error) {
    // Nothing was sent to the server. Perhaps only the spelling is not the server's.
    const kinds = ["bad_arguments", "unknown_tool", "unknown_server"];
    const mended = kinds.includes(error?.kind) ? await respell(fields).catch(() => null) : null;
    if (!mended) throw error;
    return valueOf(await ask("call", mended));
  }
}

async function call(server, tool, args = {}, options = {}) {
  const { raw = false, timeout } = options === true ? { raw: true } : options;
  const fields = { server: nameOf(server), tool: `${tool}`, arguments: checked(server, tool, args) };
  return callTool({ ...fields, ...(raw && { raw }), ...(timeout !== undefined && { timeout }) });
}

function checked(server, tool, args) {
  if (args !== null && typeof args === "object" && !Array.isArray(args)) return args;
  const fields = { server: nameOf(server), tool, hint: `for example {"name": value}` };
  throw problem("bad_arguments", `the arguments of ${server}.${tool} are one object`, fields);
}

const fold = (name) => `${name}`.toLowerCase().replace(/[^\p{L}\p{N}]/gu, "_");
const NAME = Symbol("name");
const nameOf = (server) => server?.[NAME] ?? `${server}`;

function spelled(name, list, keys = ["name", "alias"]) {
  for (const key of keys) {
    const found = list.find((one) => one[key] === name);
    if (found) return found;
  }
  const found = list.filter((one) => fold(one.name) === fold(name));
  return found.length === 1 ? found[0] : undefined;
}

// The call with the server's own spelling of server, tool and parameters, if that is another one, or null.
async function respell(fields) {
  const server = spelled(fields.server, await ask("servers"));
  if (!server) return null;
  const tool = spelled(fields.tool, await ask("tools", { server: server.name }));
  if (!tool) return null;
  const known = Object.keys(tool.input_schema?.properties ?? {});
  let changed = server.name !== fields.server || tool.name !== fields.tool;
  const args = {};
  for (const [name, value] of Object.entries(fields.arguments)) {
    const fits = known.filter((one) => fold(one) === fold(name) || `${one}_` === name);
    const right = known.includes(name) || fits.length !== 1 ? name : fits[0];
    changed ||= right !== name;
    args[right] = value;
  }
  return changed ? { ...fields, server: server.name, tool: tool.name, arguments: args } : null;
}

// An argument without a name, where there is one way to understand it.
async function place(server, name, positional) {
  const tool = spelled(name, await ask("tools", { server }));
  const known = Object.keys(tool?.input_schema?.properties ?? {});
  const required = (tool?.input_schema?.required ?? []).filter((one) => known.includes(one));
  const only = required.length === 1 ? required : known;
  if (positional.length === 1 && only.length === 1) return { [only[0]]: positional[0] };
  const hint = `give one object of parameters: ${tool?.node ?? known.join(", ")}`;
  const message = `${server}.${name} was not given one object of parameters`;
  throw problem("bad_arguments", message, { hint, server, tool: name });
}

// Names

// What others ask of any object to see what it is.
const isForeign = (name) => typeof name === "symbol" || ["then", "toJSON", "constructor"].includes(name);

function toolOf(server, name) {
  const made = async (...args) => {
    const [given] = args;
    const isObject = given !== null && typeof given === "object" && !Array.isArray(given);
    const named = args.length === 0 || (args.length === 1 && (isObject || given === undefined));
    return callTool({ server, tool: name, arguments: named ? (given ?? {}) : await place(server, name, args) });
  };
  return Object.defineProperty(made, "name", { value: name });
}

function serverOf(name) {
  const members = {
    [NAME]: name,
    [inspect.custom]: () => `[server ${name}: await mcp.help("${name}") shows its tools]`,
    resources: {
      async list() {
        const { resources, templates } = await ask("resources", { server: name });
        return Object.defineProperty(resources, "templates", { value: templates ?? [] });
      },
      async read(uri) {
        const contents = (await ask("read_resource", { server: name, uri })).contents.map(contentOf);
        return contents.length === 1 ? contents[0] : contents;
      },
    },
    prompts: {
      list: async () => (await ask("prompts", { server: name })).prompts,
      async get(prompt, args = {}) {
        // In MCP all of them are strings.
        const text = ([key, value]) => [key, typeof value === "string" ? value : JSON.stringify(value)];
        const texts = Object.fromEntries(Object.entries(args).map(text));
        return ask("prompt", { server: name, name: prompt, arguments: texts });
      },
    },
  };
  return new Proxy(members, {
    get: (target, key) =>
      Object.hasOwn(target, key) || isForeign(key) ? target[key] : toolOf(name, key),
  });
}

// Results

class Blob {
  constructor(text, mime, uri) {
    this.mime = mime;
    if (uri !== undefined) this.uri = uri;
    this.bytes = Buffer.from(text ?? "", "base64");
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

class Rich {
  constructor({ text = "", content = [] }) {
    const of = (kind) => content.filter((one) => one?.type === kind);
    const blob = ({ data, mimeType }) => new Blob(data, mimeType);
    this.text = text;
    this.images = of("image").map(blob);
    this.audio = of("audio").map(blob);
    const embedded = of("resource").map((one) => contentOf(one.resource ?? {}));
    this.resources = [...embedded, ...of("resource_link")];
    Object.defineProperty(this, "content", { value: content });
  }

  // Writes the first image, or sound, or file; else the text.
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

// Shows a cell's value if it has images: these, and what else it is as text. As many as the runner takes.
shim.showImages = (value) => {
  const isImage = value instanceof Blob && `${value.mime}`.startsWith("image/");
  const images = isImage ? [value] : value instanceof Rich ? value.images : [];
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

// Finding

class Text extends String {
  [inspect.custom]() {
    return `${this}`;
  }
}

class Found extends Array {
  static get [Symbol.species]() {
    return Array;
  }

  toString() {
    const lines = this.length ? this.map(entry) : ["nothing was found"];
    if (this.total > this.length) lines.push(`// ${this.length} of ${this.total} tools that match`);
    return [...lines, ...(this.hint ? [`// ${this.hint}`] : [])].join("\n");
  }

  [inspect.custom]() {
    return this.toString();
  }
}

function entry(tool) {
  const signature = tool.signature ?? tool.node ?? tool.name;
  const [line] = (tool.description ?? "").trim().split("\n");
  const about = line.includes(". ") ? line.slice(0, line.indexOf(". ") + 1) : line;
  return about ? `${signature}\n    // ${about.slice(0, 200)}` : signature;
}

async function find(query, limit = 5) {
  const most = typeof limit === "object" ? (limit?.limit ?? 5) : limit;
  const { tools, total, hint } = await ask("find", { query, limit: most, language: "node" });
  const found = new Found();
  found.push(...tools);
  for (const [name, value] of Object.entries({ total, hint })) Object.defineProperty(found, name, { value });
  return found;
}

async function help(topic) {
  if (topic === undefined) return new Text(await ask("help"));
  const server = await serverNamed(nameOf(topic));
  const tools = await ask("tools", { server: server.name });
  const more = tools.length > SHOWN ? [`// … and ${tools.length - SHOWN} more`] : [];
  const lines = [`// ${server.name}: ${tools.length} tools`, ...tools.slice(0, SHOWN).map(entry), ...more];
  return new Text(lines.join("\n"));
}

async function serverNamed(name) {
  const all = await ask("servers");
  const server = spelled(name, all);
  if (server) return server;
  const names = all.map((one) => one.name).join(", ") || "none";
  throw problem("unknown_server", `no server is called \`${name}\`; there are: ${names}`, { server: name });
}

// mcp.runtime: the names that other servers of this kind have

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
  list_tools: async (name) => ask("tools", { server: (await serverNamed(name)).name }),
  async describe_server(name) {
    const server = await serverNamed(name);
    return { ...server, tools: await ask("tools", { server: server.name }) };
  },
  async list_loaded_server_metadata() {
    const names = await runtime.list_servers();
    return Promise.all(names.map(runtime.describe_server));
  },
  async query_tool_docs(name, tool, detail = "summary") {
    const server = await serverNamed(name);
    const tools = await ask("tools", { server: server.name });
    if (tool === undefined || tool === null) return tools.map((one) => document(server, one, detail));
    const found = spelled(tool, tools);
    if (found) return document(server, found, detail);
    const names = tools.slice(0, SHOWN).map((one) => one.alias);
    const fields = { server: server.name, tool };
    throw problem("unknown_tool", `${server.name} has no tool \`${tool}\`; it has ${names.join(", ")}`, fields);
  },
  async search_tool_docs(query, { limit = 5, detail = "summary" } = {}) {
    const found = await find(query, limit);
    return Promise.all(found.map((one) => runtime.query_tool_docs(one.server, one.tool, detail)));
  },
  call_tool: (server, tool, args) => call(server, tool, args ?? {}),
  capability_summary: () => help(),
};

// mcp

// `await mcp.servers`, `mcp.servers()`, `mcp.servers.github` and `mcp.servers["github"]`.
const servers = new Proxy(() => ask("servers"), {
  get(target, name) {
    if (name === "then") return (...then) => ask("servers").then(...then);
    if (name === inspect.custom) return () => "[servers: await mcp.servers lists them]";
    return isForeign(name) ? undefined : serverOf(name);
  },
});

const output = async (handle) => (await ask("output", { handle })).text;
const api = { __proto__: null, ...errors, call, find, help, output, runtime, servers };
api[inspect.custom] = () => '[mcp: await mcp.help(), await mcp.find("what to do"), await mcp.servers]';
api[Symbol.toStringTag] = "mcp";

const mcp = new Proxy(api, {
  get: (target, name) => (name in target || isForeign(name) ? target[name] : serverOf(name)),
});
Object.defineProperty(globalThis, "mcp", { value: mcp, configurable: true, writable: true });
