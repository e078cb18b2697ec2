// The official TypeScript SDK as a client that is steered from outside: the same questions and answers as `drive.py`.
//
//     node drive.mjs TARGET

import { createRequire } from 'node:module';
import { join } from 'node:path';
import { createInterface } from 'node:readline';

const require = createRequire(join(process.env.COVE_TEST_JUDGES, 'package.json'));
const { Client, StreamableHTTPClientTransport } = require('@modelcontextprotocol/client');
const { StdioClientTransport } = require('@modelcontextprotocol/client/stdio');

const target = JSON.parse(process.argv[2]);
const fresh = { timeout: 120_000, cacheMode: 'refresh' };

function transport() {
  if (target.command) {
    const [command, ...args] = target.command;
    return new StdioClientTransport({ command, args, cwd: '/' });
  }
  const headers = target.token ? { Authorization: `Bearer ${target.token}` } : {};
  return new StreamableHTTPClientTransport(new URL(target.url), { requestInit: { headers } });
}

async function pages(method, key) {
  const found = [];
  let cursor;
  do {
    const page = await method(cursor ? { cursor } : undefined, fresh);
    found.push(...page[key]);
    cursor = page.nextCursor;
  } while (cursor);
  return found;
}

async function call(client, ask) {
  const progress = [];
  const options = { timeout: 120_000 };
  if (ask.progress) options.onprogress = (note) => progress.push(note);
  let abandoned = false;
  let timer;
  if (ask.abandon_after) {
    const abort = new AbortController();
    options.signal = abort.signal;
    timer = setTimeout(() => {
      abandoned = true;
      abort.abort('abandoned');
    }, ask.abandon_after * 1000);
  }
  try {
    const result = await client.callTool({ name: ask.tool, arguments: ask.arguments }, options);
    return { result, progress };
  } catch (error) {
    if (!abandoned) throw error;
    return { abandoned, progress };
  } finally {
    clearTimeout(timer);
  }
}

async function answer(client, ask) {
  const lists = {
    tools: ['listTools', 'tools'],
    resources: ['listResources', 'resources'],
    templates: ['listResourceTemplates', 'resourceTemplates'],
    prompts: ['listPrompts', 'prompts'],
  };
  switch (ask.do) {
    case 'list': {
      const [method, key] = lists[ask.what];
      return { result: await pages(client[method].bind(client), key) };
    }
    case 'read':
      return { result: await client.readResource({ uri: ask.uri }, fresh) };
    case 'prompt':
      return { result: await client.getPrompt({ name: ask.name, arguments: ask.arguments }) };
    case 'call':
      return call(client, ask);
  }
}

const say = (found) => process.stdout.write(`${JSON.stringify(found)}\n`);
const mode = target.era === 'legacy' ? 'legacy' : { pin: target.era };
const client = new Client({ name: 'cove-tests', version: '1' }, { versionNegotiation: { mode } });
await client.connect(transport());
say({
  result: {
    protocol: client.getNegotiatedProtocolVersion(),
    server: client.getServerVersion(),
    capabilities: client.getServerCapabilities(),
    instructions: client.getInstructions(),
  },
});
for await (const line of createInterface({ input: process.stdin })) {
  const start = performance.now();
  let found;
  try {
    found = await answer(client, JSON.parse(line));
  } catch (error) {
    // A number is the protocol's own code; the SDK's complaints have words.
    found =
      typeof error.code === 'number'
        ? { error: { code: error.code, message: error.message } }
        : { refused: `${error.name}: ${error.message}` };
  }
  say({ ...found, ms: Math.round(performance.now() - start) });
}
await client.close();
