"""A server of FastMCP on loopback that wants a token.

    notes_server.py bearer TOKEN | oauth ISSUER | own

`bearer` knows one token. `oauth` takes tokens of an authorization server and asks it about each; `write_note` needs a
further scope. `own` is its own authorization server, FastMCP's, which asks no person. Prints its address.
"""

import json
import socket
import sys

import uvicorn
from fastmcp import FastMCP
from fastmcp.server.auth import RemoteAuthProvider
from fastmcp.server.auth.auth import ClientRegistrationOptions, RevocationOptions
from fastmcp.server.auth.providers.in_memory import InMemoryOAuthProvider
from fastmcp.server.auth.providers.introspection import IntrospectionTokenVerifier
from fastmcp.server.auth.providers.jwt import StaticTokenVerifier
from pydantic import AnyHttpUrl
from starlette.middleware import Middleware


class StepUp:
    """Refuses `write_note` to tokens without `notes:write`, as the specification says."""

    def __init__(self, app, verifier, metadata):
        self.app, self.verifier, self.metadata = app, verifier, metadata

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http" or scope["method"] != "POST":
            return await self.app(scope, receive, send)
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        if await self.lacks_scope(scope, body):
            challenge = (
                'Bearer error="insufficient_scope", scope="notes:read notes:write", '
                f'resource_metadata="{self.metadata}"'
            )
            headers = [(b"www-authenticate", challenge.encode()), (b"content-length", b"0")]
            await send({"type": "http.response.start", "status": 403, "headers": headers})
            return await send({"type": "http.response.body", "body": b""})

        async def again():
            nonlocal body
            if body is None:
                return await receive()
            message, body = {"type": "http.request", "body": body, "more_body": False}, None
            return message

        return await self.app(scope, again, send)

    async def lacks_scope(self, scope, body):
        if (json.loads(body or b"{}").get("params") or {}).get("name") != "write_note":
            return False
        header = dict(scope["headers"]).get(b"authorization", b"").decode()
        token = await self.verifier.verify_token(header.removeprefix("Bearer "))
        return token is not None and "notes:write" not in token.scopes


def main():
    kind, *more = sys.argv[1:]
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    # Before the address is known, so that no client is refused.
    listener.listen(64)
    address = f"http://localhost:{listener.getsockname()[1]}"
    middleware = []
    if kind == "bearer":
        auth = StaticTokenVerifier({more[0]: {"client_id": "test", "scopes": []}})
    elif kind == "own":
        registration = ClientRegistrationOptions(enabled=True, valid_scopes=["notes:read"])
        revocation = RevocationOptions(enabled=True)
        auth = InMemoryOAuthProvider(
            base_url=address, client_registration_options=registration, revocation_options=revocation
        )
    else:
        issuer = more[0]
        verifier = IntrospectionTokenVerifier(
            introspection_url=f"{issuer}/token/introspection",
            client_id="resource-server",
            client_secret="resource-server-secret",
            required_scopes=["notes:read"],
            timeout_seconds=60,
        )
        auth = RemoteAuthProvider(verifier, [AnyHttpUrl(issuer)], address, scopes_supported=["notes:read"])
        metadata = f"{address}/.well-known/oauth-protected-resource/mcp"
        middleware = [Middleware(StepUp, verifier=verifier, metadata=metadata)]
    mcp = FastMCP("notes", auth=auth)
    notes = ["first"]

    @mcp.tool
    def read_note() -> str:
        return notes[-1]

    @mcp.tool
    def write_note(text: str) -> str:
        notes.append(text)
        return "written"

    print(f"{address}/mcp", flush=True)
    config = uvicorn.Config(mcp.http_app(middleware=middleware), log_level="warning")
    uvicorn.Server(config).run(sockets=[listener])


main()
