// A fake host: answers the library's requests over a Unix socket, and misbehaves when a test asks for it.
import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Shim } from "./driver.mjs";

export const PNG = Buffer.from("\x89PNG\r\n\x1a\nrest", "latin1");

const tool = (name, properties = {}, required = [], alias = name.replaceAll("-", "_")) => ({
  name,
  alias,
  description: `Does ${name}. And more.`,
  input_schema: { type: "object", properties, required },
  output_schema: null,
  node: `mcp.github.${alias}({ ${Object.keys(properties).join(", ")} })`,
});

const TOOLS = {
  github: [
    tool("list_issues", { owner: {}, repo: {} }, ["owner"]),
    tool("echo"),
    tool("a_b"),
    tool("a-b", {}, [], "a_b_2"),
    tool("get-sum", { "cik-A": {}, from: {} }),
  ],
  "my-files": [tool("read", { path: {}, encoding: {} }, ["path"])],
};
const SERVERS = [
  { name: "github", alias: "github", description: "Issues", tools: 5, state: "ready" },
  { name: "my-files", alias: "my_files", description: "", tools: null, state: "idle" },
];

const later = (milliseconds, value) =>
  new Promise((resolve) => setTimeout(resolve, milliseconds, value));

class Problem extends Error {
  constructor(kind, message, more) {
    super(message);
    this.error = { kind, message, ...more };
  }
}

// What a broken host sends, as bytes, and whether it closes the connection then.
const frame = (text) => {
  const body = Buffer.from(text);
  const head = Buffer.alloc(4);
  head.writeUInt32BE(body.length);
  return Buffer.concat([head, body]);
};
const GARBAGE = {
  text: () => frame("hello"),
  length: () => Buffer.from([255, 255, 255, 255]),
  shape: () => frame("[]"),
  utf8: () => frame(Buffer.from([0x22, 0xff, 0x22])),
  "no id": () => frame('{"ok":{"value":1}}'),
  both: (id) => frame(`{"id":${id},"ok":1,"error":{}}`),
  error: (id) => frame(`{"id":${id},"error":"words"}`),
  two: (id) => Buffer.concat([frame(`{"id":${id},"ok":{"value":1}}`), frame(`{"id":${id},"ok":{"value":2}}`)]),
  bytes: (id) => frame(`{"id":${id},"ok":{"value":"slowly"}}`),
  refused: () => frame('{"id":null,"error":{"kind":"limit","message":"too long"}}'),
};

const CALLS = {
  list_issues: ({ owner, repo, ...rest }) => {
    if (Object.keys(rest).length) throw new Problem("bad_arguments", `no parameter ${Object.keys(rest)}`);
    return { value: [{ title: "first", user: { login: "é" } }] };
  },
  echo: (value) => ({ value }),
  read: (value) => ({ value }),
  a_b: () => ({ value: "underscore" }),
  "a-b": () => ({ value: "dash" }),
  "get-sum": (value) => {
    for (const name of Object.keys(value)) {
      if (!["cik-A", "from"].includes(name)) throw new Problem("bad_arguments", "wrong names");
    }
    return { value };
  },
  null: () => ({ value: null }),
  big: () => ({ value: "é".repeat(5 << 20) }),
  slow: (value) => later(value.ms ?? 100, { value }),
  fail: () => {
    const more = { hint: "check the name", server: "github", tool: "fail", structured: { code: 5 } };
    throw new Problem("tool", "no such repo", { ...more, content: [{ type: "text", text: "no such repo" }] });
  },
  error: ({ kind }) => {
    throw new Problem(kind, "words", { code: -32000, data: { a: 1 } });
  },
  image: () => {
    const image = { type: "image", mimeType: "image/png", data: PNG.toString("base64") };
    const blob = { type: "resource", resource: { uri: "a://2", blob: "AAE=", mimeType: "x/y" } };
    const content = [{ type: "text", text: "see" }, image, { type: "audio", mimeType: "audio/wav", data: "AAEC" }];
    return { rich: { text: "see", content: [...content, blob, { type: "resource_link", uri: "a://1" }] } };
  },
};

function respelled(tool, args) {
  const known = Object.keys(tool.input_schema.properties ?? {});
  const right = (name) => known.find((one) => one === name) ?? known.find((one) => one.replaceAll("-", "_") === name || `${one}_` === name) ?? name;
  return Object.fromEntries(Object.entries(args).map(([name, value]) => [right(name), value]));
}

const ASKS = {
  servers: () => SERVERS,
  tools: ({ server }) => TOOLS[server],
  help: ({ topic, language }) => {
    if (topic === undefined) return "the manual\nof two lines";
    const [server, name] = topic.split(".");
    const hint = "did you mean `github`?";
    if (!TOOLS[server]) throw new Problem("unknown_server", `there is no server \`${server}\``, { hint, server });
    const tools = TOOLS[server].filter((one) => !name || one.name === name);
    if (!tools.length) throw new Problem("unknown_tool", `no tool \`${name}\``, { server, tool: name });
    return tools.map((one) => one[language]).join("\n");
  },
  find: ({ query, limit, language }) => {
    if (!query) return { tools: [], servers: ["github (2 tools): Code", "time (1 tool)"], total: 0, hint: "search" };
    const tool = { server: "github", tool: "list_issues", signature: language, comment: "// Lists. Really." };
    return { tools: [tool].slice(0, limit), also: ["github.a", "time.b"], total: 7, hint: `for ${query}` };
  },
  output: ({ handle }) => {
    if (handle !== "o_1") throw new Problem("not_found", `no output \`${handle}\``);
    return { text: "all of it" };
  },
  resources: () => ({ resources: [{ uri: "a://1" }], templates: [{ uriTemplate: "a://{n}" }] }),
  read_resource: ({ uri }) => ({
    contents: { "a://1": [{ mimeType: "application/json", text: '{"a":[1]}' }], "a://2": [{ blob: "AP8=" }] }[uri],
  }),
  complete: ({ prompt, resource, argument, value, context }) => ({
    values: [prompt ?? resource, argument, value, JSON.stringify(context)], has_more: true, total: 9,
  }),
  subscribe: () => ({ subscription: 5, changes: 2 }),
  changes: ({ seen, timeout }) => ({ changes: seen + (timeout ? 3 : 0) }),
  unsubscribe: () => ({}),
  logs: ({ server }) => ({ logs: [{ level: "info", data: server }], dropped: 4 }),
  prompts: () => ({ prompts: [{ name: "greet" }] }),
  prompt: ({ name, arguments: content }) => ({ messages: [{ role: "user", content }], description: name }),
  call: ({ server, tool: name, arguments: args, raw }) => {
    if (raw) return { raw: { content: [], isError: false } };
    // Accepts names in any spelling, as the real host does.
    server = SERVERS.find((one) => one.alias === server)?.name ?? server;
    const known = TOOLS[server] ?? [];
    const tool = known.find((one) => one.name === name) ?? known.find((one) => one.alias === name);
    if (tool) [name, args] = [tool.name, respelled(tool, args)];
    if (!TOOLS[server]) throw new Problem("unknown_server", `no server \`${server}\``, { server });
    if (!CALLS[name]) {
      const hint = "did you mean `list_issues`?";
      throw new Problem("unknown_tool", `no tool \`${name}\``, { hint, server, tool: name });
    }
    return CALLS[name](args);
  },
};

export class Broker {
  constructor() {
    this.folder = mkdtempSync(join(tmpdir(), "cove-broker-"));
    this.path = join(this.folder, "mcp");
    this.requests = [];
    // The requests as text, and the JSON that the tool `literal` answers with.
    this.texts = [];
    this.literal = "null";
    // Wrong answers to give, by kind of request.
    this.instead = {};
    this.sockets = new Set();
    this.lines = this.now = this.most = 0;
    this.server = createServer((socket) => this.serve(socket));
    this.ready = new Promise((resolve) => this.server.listen(this.path, resolve));
  }

  calls() {
    return this.requests.filter(({ ask }) => ask === "call");
  }

  serve(socket) {
    this.lines += 1;
    this.sockets.add(socket);
    let buffer = Buffer.alloc(0);
    socket.on("error", () => {});
    socket.on("close", () => this.sockets.delete(socket));
    socket.on("data", (bytes) => {
      buffer = Buffer.concat([buffer, bytes]);
      while (buffer.length >= 4 && buffer.length >= 4 + buffer.readUInt32BE()) {
        const end = 4 + buffer.readUInt32BE();
        this.texts.push(buffer.toString("utf8", 4, end));
        this.answer(socket, JSON.parse(buffer.subarray(4, end)));
        buffer = buffer.subarray(end);
      }
    });
  }

  async answer(socket, request) {
    this.requests.push(request);
    const { id, ask, tool: name, arguments: args } = request;
    if (name === "hang_up") return socket.destroy();
    if (name === "literal") return socket.write(frame(`{"id":${id},"ok":{"value":${this.literal}}}`));
    if (name === "garbage") {
      const bytes = GARBAGE[args.how](id);
      if (args.how !== "bytes") return socket.write(bytes);
      for (const byte of bytes) {
        socket.write(Buffer.from([byte]));
        await later(0);
      }
      return undefined;
    }
    let reply;
    this.now += 1;
    this.most = Math.max(this.most, this.now);
    try {
      const value = await (this.instead[ask] ?? ASKS[ask])(request);
      reply = value?.error ? value : { ok: value };
    } catch (error) {
      reply = { error: error.error };
    }
    this.now -= 1;
    return socket.writable && socket.write(frame(JSON.stringify({ id, ...reply })));
  }

  // What the runner answers to calls whose cell has ended.
  cancelAll() {
    for (const socket of this.sockets) {
      for (const { id } of this.requests.slice(-3)) {
        socket.write(frame(`{"id":${id},"error":{"kind":"cancelled","message":"the cell ended"}}`));
      }
    }
  }

  close() {
    for (const socket of this.sockets) socket.destroy();
    this.server.close();
    rmSync(this.folder, { recursive: true, force: true });
  }
}

// Calls `test` with a shim and a broker of its own, and ends both afterwards.
export const withBroker = (run) => async () => {
  const broker = new Broker();
  await broker.ready;
  const shim = new Shim({ env: { COVE_MCP: broker.path } });
  try {
    await run(shim, broker);
    assert.equal(await shim.close(), 3);
  } catch (error) {
    shim.child.kill("SIGKILL");
    await shim.close();
    throw error;
  } finally {
    broker.close();
  }
};
