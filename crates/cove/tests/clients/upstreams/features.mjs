// Tasks, completions, subscriptions and log messages of a real server.
import assert from "node:assert";

const { everything } = mcp;
assert.match(await everything.simulate_research_query({ topic: "cells" }), /# Research Report: cells/);

const { prompts, resources } = everything;
assert.deepEqual([...(await prompts.complete("completable-prompt", "department", "S"))], ["Sales", "Support"]);
const names = await prompts.complete("completable-prompt", "name", "B", { department: "Engineering" });
assert.deepEqual([...names], ["Bob"]);

const uri = "demo://resource/dynamic/text/2";
const changes = await resources.subscribe(uri);
await everything.toggle_subscriber_updates();
assert.ok((await changes.wait(60)) >= 1);
await everything.toggle_subscriber_updates();
await changes.close();

const messages = await mcp.logs("everything");
assert.ok(messages.some(({ data }) => `${data}`.includes(`request for URI: ${uri}`)), messages);
console.log("all there");
