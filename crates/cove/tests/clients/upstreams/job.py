# Sums up tables that it reads through one server, and stores the sums through two others.
import asyncio

found = mcp.find("search for files that match a pattern")
assert ("filesystem", "search_files") in [(tool.server, tool.tool) for tool in found], found

totals = {}
for path in filesystem.search_files(path="@HOUSE@/files", pattern="*.csv").splitlines():
    for line in mcp.filesystem.read_text_file(path=path).splitlines()[1:]:
        name, amount = line.split(",")
        totals[name] = totals.get(name, 0) + int(amount)

memory.create_entities(
    entities=[{"name": name, "entityType": "customer", "observations": [f"total {total}"]} for name, total in totals.items()]
)
sqlite.create_table(query="create table totals (name text, amount integer)")
await asyncio.gather(
    *(mcp_sqlite.write_query(query=f"insert into totals values ('{name}', {total})") for name, total in totals.items())
)
print("stored", len(totals))
