// UTCP's code mode from npm over MCP on stdio. The package is a library without a server: this adds one with one tool,
// which answers as UTCP's own server does. The argument is the upstream servers as JSON.

import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js';
import { CodeModeUtcpClient } from '@utcp/code-mode';
import '@utcp/mcp';
import { z } from 'zod';

// Standard output belongs to the protocol.
console.log = console.info = console.warn = () => {};
const mcpServers = JSON.parse(process.argv[2]);
Object.values(mcpServers).forEach((one) => Object.assign(one, { transport: 'stdio' }));
const manual = { name: 'peer', call_template_type: 'mcp', config: { mcpServers } };
const manuals = Object.keys(mcpServers).length > 0 ? [manual] : [];
const client = await CodeModeUtcpClient.create(process.cwd(), { manual_call_templates: manuals });
const server = new McpServer({ name: 'peer', version: '0' });
server.registerTool('call_tool_chain', { inputSchema: { code: z.string() } }, async ({ code }) => {
  const answer = await client.callToolChain(code);
  return { content: [{ type: 'text', text: JSON.stringify(answer) }] };
});
await server.connect(new StdioServerTransport());
