# A shop with more items than one answer holds. `shop.py FILE` sells what the file lists.
import json
import sys
from pathlib import Path
from typing_extensions import TypedDict

from mcp.server import MCPServer


class Item(TypedDict):
    name: str
    price: float


class ItemPage(TypedDict):
    items: list[Item]
    next_cursor: str | None


shop = MCPServer("shop")
everything = json.loads(Path(sys.argv[1]).read_text())


@shop.tool()
def list_items(cursor: str | None = None) -> ItemPage:
    """List the items on sale, 25 at a time. Pass next_cursor of the page before as cursor; it is null on the last page."""
    start = int(cursor or 0)
    end = start + 25
    return {"items": everything[start:end], "next_cursor": str(end) if end < len(everything) else None}


shop.run()
