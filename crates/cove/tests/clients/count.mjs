// What tools cost a model: o200k tokens of the name, the description and the input schema of each, as one JSON text, and
// of the instructions. Reads `{ "NAME": { "tools": […], "instructions": "…" } }`, prints `{ "NAME": { "tools": 1,
// "instructions": 2 } }`.

import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';

const require = createRequire(join(process.env.COVE_TEST_JUDGES, 'package.json'));
const { countTokens } = require('gpt-tokenizer/encoding/o200k_base');

const counted = {};
for (const [name, { tools, instructions }] of Object.entries(JSON.parse(readFileSync(0, 'utf8')))) {
  const seen = tools.map(({ name, description, inputSchema }) => ({ name, description, inputSchema }));
  counted[name] = { tools: countTokens(JSON.stringify(seen)), instructions: countTokens(instructions) };
}
console.log(JSON.stringify(counted));
