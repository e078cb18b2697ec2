// What a server says is what code gets, and what code says is what the server gets.
import assert from "node:assert/strict";

const same = assert.deepEqual;
const { everything, fixture, filesystem } = mcp;
const plain = (value) => JSON.parse(JSON.stringify(value));

async function fails(kind, run, ...words) {
  try {
    var found = await run();
  } catch (error) {
    assert.ok(error instanceof kind, `${error.name}: ${error.message} is no ${kind.name}`);
    for (const word of words) assert.ok(`${error.message}\n${error.hint}`.includes(word), `${error.message} does not say ${word}`);
    return error;
  }
  throw new Error(`no ${kind.name}, but ${JSON.stringify(found)?.slice(0, 500)}`);
}

// Text, and everything that is not text.
same(await everything.echo({ message: "naïve 日本 🎉\n\tline\u0000\u2028end" }), "Echo: naïve 日本 🎉\n\tline\u0000\u2028end");
const rich = await fixture.rich();
same(rich.text, "naïve 日本 🎉");
same([rich.images[0].mime, rich.images[0].bytes.toString("latin1", 1, 4)], ["image/png", "PNG"]);
same([rich.audio[0].mime, rich.audio[0].bytes.toString()], ["audio/wav", "RIFF"]);
same([rich.resources[0], rich.resources[1].uri], ["b", "fixture://a"]);
same(plain(rich.content[0].annotations), { audience: ["user"], priority: 0.5 });
same(plain(rich.content[5]), { type: "hologram", depth: null });
const tiny = await everything.get_tiny_image();
same(tiny.images[0].bytes.toString("latin1", 1, 4), "PNG");
same((await everything.get_resource_links({ count: 3 })).resources.length, 3);
const embedded = await everything.get_resource_reference({ resourceType: "Blob", resourceId: 2 });
assert.ok(embedded.resources[0].bytes.toString().startsWith("Resource 2:"));

// Structured content, null, absent.
same((await everything.get_structured_content({ location: "New York" })).temperature, 33);
same(plain((await fixture.structured()).list), [1, 2.5, null, { a: "ü" }]);
same((await fixture.structured()).large, 9007199254740993n);
same(await fixture.null(), null);
same(plain(await fixture.echo({ a: null, b: undefined, c: {}, from: "x", "Notion-Version": 0 })), {
  a: null,
  c: {},
  from: "x",
  "Notion-Version": 0,
});
same(plain(await fixture.echo()), {});
same(await everything["get-sum"]({ a: 2, b: 40 }), await everything.get_sum({ a: 2, b: 40 }));
const raw = await mcp.call("fixture", "rich", {}, { raw: true });
same([raw.isError, plain(raw._meta), raw.content.length], [false, { took: 1 }, 6]);

// Large, and many at once.
const large = "é".repeat(524288);
same((await fixture.echo({ text: large })).text, large);
same((await fixture.big({ n: 10 << 20 })).length, 10 << 20);
const numbers = [...Array(100).keys()];
same((await Promise.all(numbers.map((n) => fixture.add({ a: n, b: 1 })))).map(({ sum }) => sum), numbers.map((n) => n + 1));
same(await Promise.all(numbers.map((n) => everything.echo({ message: `${n}` }))), numbers.map((n) => `Echo: ${n}`));

// Resources and prompts.
same((await fixture.resources.list()).map(({ name }) => name), ["a", "b", "json", "bytes"]);
same(plain(await fixture.resources.read("fixture://json")), { a: [1, null] });
same([...(await fixture.resources.read("fixture://bytes")).bytes], [0, 1, 2, 3, 255]);
same((await fixture.prompts.get("greet", { who: "Ada" })).messages[0].content.text, "Greet Ada");
same((await everything.prompts.get("args-prompt", { city: "Rome" })).messages[0].content.text, "What's weather in Rome?");

// Failures, each of its own kind.
const error = await fails(mcp.ToolError, () => fixture.fail(), "no such issue: 7");
same([error.server, error.tool], ["fixture", "fail"]);
await fails(mcp.ToolError, () => filesystem.read_text_file({ path: "/etc/passwd" }), "Access denied");
same((await fails(mcp.ProtocolError, () => fixture.refuse(), "not today")).code, -32050);
await fails(mcp.UnknownTool, () => everything.get_summ({ a: 1, b: 2 }), "get-sum");
await fails(mcp.UnknownServer, () => mcp.everithing.echo({ message: "" }), "everything");
await fails(mcp.BadArguments, () => everything.get_sum({ a: 1, b: "two" }), "b", "number");
await fails(mcp.ServerGone, () => fixture.die({ code: 9 }), "asked to die");
same((await fixture.add({ a: 1, b: 2 })).sum, 3);
await fails(mcp.ServerUnavailable, () => mcp.broken.anything(), "no database at");
await fails(mcp.CallTimeout, () => mcp.call("fixture", "never", {}, { timeout: 0.5 }));
console.log("faithful");
