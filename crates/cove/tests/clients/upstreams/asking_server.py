"""A server of the official Python SDK whose tool asks a person: in the way of 2026-07-28, or of the revision before."""

from typing import Annotated

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve
from pydantic import BaseModel

server = MCPServer("asking")


class Guest(BaseModel):
    name: str
    nights: int


def ask(city: str) -> Elicit[Guest]:
    return Elicit(f"Who travels to {city}?", Guest)


@server.tool()
def book(city: str, guest: Annotated[Guest, Resolve(ask)]) -> str:
    """Books a room."""
    return f"{guest.name} stays in {city} for {guest.nights} nights"


server.run()
