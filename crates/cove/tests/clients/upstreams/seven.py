# Every server does something that only it can do; the answers are printed as one object.
import json

thought = {"thought": "first", "nextThoughtNeeded": True, "thoughtNumber": 1, "totalThoughts": 2}
mcp.sequential_thinking.sequentialthinking(**thought)
thinking = mcp_servers["sequential-thinking"].sequentialthinking(thought | {"nextThoughtNeeded": False, "thoughtNumber": 2})

log = mcp.git.git_log(repo_path="@HOUSE@/repo")
there = mcp.time.convert_time(source_timezone="Asia/Tokyo", time="12:00", target_timezone="Asia/Kolkata")

sqlite.create_table(query="create table things (name text, n integer)")
sqlite.write_query(query="insert into things values ('ü', null)")

memory.create_entities(entities=[{"name": "Ada", "entityType": "person", "observations": []}])
listing = filesystem.list_directory(path="@HOUSE@/files")

print(
    json.dumps(
        {
            "git": [line[9:] for line in log.splitlines() if line.startswith("Message: ")],
            "time": there.target.datetime[11:16],
            "sqlite": sqlite.read_query(query="select * from things"),
            "thoughts": thinking.thoughtHistoryLength,
            "echo": await mcp_everything.echo(message="grüße 🎉"),
            "graph": [entity.name for entity in memory.read_graph().entities],
            "files": sorted(line.removeprefix("[FILE] ") for line in listing.splitlines()),
        }
    )
)
