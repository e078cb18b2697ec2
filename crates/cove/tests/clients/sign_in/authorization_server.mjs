// An authorization server on loopback: `oidc-provider`, which is certified, with its own pages for login and consent.
//
//     node authorization_server.mjs ACCESS_TOKEN_SECONDS
//
// Prints one JSON object a line: first its address, then what every client asked for and got. `POST /control/revoke` ends
// every grant, as an administrator does.

import { once } from 'node:events';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

const require = createRequire(join(process.env.COVE_TEST_JUDGES, 'package.json'));
const { default: Provider } = await import(pathToFileURL(require.resolve('oidc-provider')));

const accessTokenTTL = Number(process.argv[2]);
const report = (event) => console.log(JSON.stringify(event));
// Its warnings are about production.
console.warn = console.info = () => {};

const server = createServer();
server.listen(0, '127.0.0.1');
await once(server, 'listening');
const issuer = `http://localhost:${server.address().port}`;

const provider = new Provider(issuer, {
  clients: [
    {
      client_id: 'resource-server',
      client_secret: 'resource-server-secret',
      redirect_uris: [],
      grant_types: [],
      response_types: [],
    },
  ],
  cookies: { keys: ['test'] },
  pkce: { required: () => true },
  expiresWithSession: () => false,
  issueRefreshToken: (_, client) => client.grantTypeAllowed('refresh_token'),
  rotateRefreshToken: true,
  features: {
    introspection: { enabled: true },
    registration: { enabled: true },
    revocation: { enabled: true },
    resourceIndicators: {
      enabled: true,
      getResourceServerInfo: () => ({ scope: 'notes:read notes:write', accessTokenTTL, accessTokenFormat: 'opaque' }),
      useGrantedResource: () => true,
    },
  },
});

const grants = new Set();
provider.on('grant.success', (ctx) => grants.add(ctx.oidc.entities.Grant.jti));

provider.use(async (ctx, next) => {
  if (ctx.path === '/control/revoke') {
    for (const id of grants) {
      await provider.AccessToken.revokeByGrantId(id);
      await provider.RefreshToken.revokeByGrantId(id);
      await (await provider.Grant.find(id))?.destroy();
    }
    ctx.status = 204;
    return;
  }
  await next();
  if (['/reg', '/token', '/token/revocation'].includes(ctx.path)) {
    const { body, params } = ctx.oidc ?? {};
    report({ path: ctx.path, status: ctx.status, sent: { ...body, ...params }, answer: ctx.body });
  }
});

server.on('request', provider.callback());
report({ issuer });
