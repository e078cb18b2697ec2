# What a server says is what code gets, and what code says is what the server gets.
import asyncio
import base64
import mcp


def same(found, expected):
    assert found == expected, f"{str(found)[:500]!r} is not {str(expected)[:500]!r}"


def fails(kind, run, *words):
    try:
        found = run()
    except kind as error:
        for word in words:
            assert word in str(error), f"{error} does not say {word!r}"
        return error
    raise AssertionError(f"no {kind.__name__}, but {str(found)[:500]!r}")


# Text, and everything that is not text.
same(everything.echo(message="naïve 日本 🎉\n\tline\u0000\u2028end"), "Echo: naïve 日本 🎉\n\tline\u0000\u2028end")
rich = fixture.rich()
same(rich.text, "naïve 日本 🎉")
same([image.bytes[:8] for image in rich.images], [b"\x89PNG\r\n\x1a\n"])
same((rich.images[0].mime, rich.audio[0].mime, rich.audio[0].bytes), ("image/png", "audio/wav", b"RIFF"))
same(rich.resources[0], "b")
same((rich.resources[1].uri, rich.resources[1].name), ("fixture://a", "a"))
same(rich.content[0].annotations, {"audience": ["user"], "priority": 0.5})
same(rich.content[5], {"type": "hologram", "depth": None})

image = everything.get_tiny_image()
assert image.text.startswith("Here's the image"), image
same((len(image.images), image.images[0].mime, image.images[0].bytes[:4]), (1, "image/png", b"\x89PNG"))
same(open(image.images[0].save("tiny.png"), "rb").read(), image.images[0].bytes)
annotated = everything.get_annotated_message(messageType="error", includeImage=True)
same(annotated.content[0].annotations, {"audience": ["user", "assistant"], "priority": 1})
same(annotated.content[1].annotations.audience, ["user"])
links = everything.get_resource_links(count=3)
same([link.type for link in links.resources], ["resource_link"] * 3)
assert links.resources[0].uri.startswith("demo://resource/dynamic/"), links
embedded = everything.get_resource_reference(resourceType="Blob", resourceId=2).resources[0]
assert bytes(embedded).startswith(b"Resource 2:"), embedded
assert everything.get_resource_reference(resourceType="Text", resourceId=1).resources[0].startswith("Resource 1:")

# Structured content, numbers, null.
weather = everything.get_structured_content(location="New York")
same((weather["conditions"], weather.temperature), ("Cloudy", 33))
same(fixture.structured(), {"list": [1, 2.5, None, {"a": "ü"}], "large": 9007199254740993})
same(fixture.null(), None)
raw = mcp.call("fixture", "rich", raw=True)
same((raw["isError"], raw["_meta"], len(raw["content"])), (False, {"took": 1}, 6))

# Arguments as they were given: absent is not null, no default is sent, names as the server has them.
same(fixture.echo(a=None, b=[], c={}, d="", e=0, f=False, from_="x"), {"a": None, "b": [], "c": {}, "d": "", "e": 0, "f": False, "from": "x"})
same(fixture.echo({"Notion-Version": 1, "cik-A": "ü", "class": None}), {"Notion-Version": 1, "cik-A": "ü", "class": None})
same(fixture.echo(), {})
same(fixture.echo(n=2**63, small=-(2**63), f=1e-300), {"n": 2**63, "small": -(2**63), "f": 1e-300})
same(everything.get_sum(a=2, b=40), everything["get-sum"](a=2, b=40))

# Large.
large = "é" * 524288
same(fixture.echo(text=large), {"text": large})
same(len(everything.echo(message="x" * (1 << 20))), (1 << 20) + 6)
same(len(fixture.big(n=10 << 20)), 10 << 20)

# Many at once.
found = await asyncio.gather(*(mcp_fixture.add(a=n, b=1) for n in range(100)))
same([one["sum"] for one in found], list(range(1, 101)))
found = await asyncio.gather(*(mcp_everything.echo(message=f"{n}") for n in range(100)))
same(found, [f"Echo: {n}" for n in range(100)])

# Resources and prompts.
same([one.name for one in fixture.resources.list()], ["a", "b", "json", "bytes"])
same(fixture.resources.read("fixture://a"), "contents of it")
same(fixture.resources.read("fixture://json"), {"a": [1, None]})
same(fixture.resources.read("fixture://bytes").bytes, b"\x00\x01\x02\x03\xff")
same(fixture.prompts.get("greet", who="Ada").messages[0].content.text, "Greet Ada")
documents = everything.resources.list()
same(len(documents.templates), 2)
assert everything.resources.read(documents[0].uri).startswith("# "), documents[0]
assert everything.resources.read("demo://resource/dynamic/blob/7").bytes.startswith(b"Resource 7:")
same(everything.prompts.get("args-prompt", city="Rome").messages[0].content.text, "What's weather in Rome?")
assert {"simple-prompt", "args-prompt"} <= {one.name for one in everything.prompts.list()}

# Failures, each of its own kind.
error = fails(mcp.ToolError, lambda: fixture.fail(), "no such issue: 7")
same((error.server, error.tool, error.content[0].text), ("fixture", "fail", "no such issue: 7"))
fails(mcp.ToolError, lambda: filesystem.read_text_file(path="/etc/passwd"), "Access denied")
error = fails(mcp.ProtocolError, lambda: fixture.refuse(), "not today")
same(error.code, -32050)
fails(mcp.UnknownTool, lambda: everything.get_summ(a=1, b=2), "get-sum")
fails(mcp.UnknownTool, lambda: fixture.strukturd(), "structured")
fails(mcp.UnknownServer, lambda: mcp.everithing.echo(message=""), "everything")
fails(mcp.BadArguments, lambda: everything.get_sum(a=1), "b")
fails(mcp.BadArguments, lambda: everything.get_sum(a=1, b="two"), "b", "number")
error = fails(mcp.BadArguments, lambda: everything.get_structured_content(location="Rome"), "Chicago")
assert isinstance(error, mcp.MCPError)
fails(mcp.ServerGone, lambda: fixture.die(code=9), "asked to die")
same(fixture.add(a=1, b=2).sum, 3)
error = fails(mcp.ServerUnavailable, lambda: mcp.broken.anything(), "no database at", "exit")
fails(mcp.ServerUnavailable, lambda: mcp.needy.anything(), "COVE_TEST_MISSING")
fails(mcp.CallTimeout, lambda: mcp.call("fixture", "never", timeout=0.5))
same(fixture.slow(ms=300), "done")
print("faithful")
