# Tasks, completions, subscriptions and log messages of a real server.
everything = mcp.everything
report = everything.simulate_research_query(topic="cells")
assert "# Research Report: cells" in report, report

found = everything.prompts.complete("completable-prompt", "department", "S")
assert found == ["Sales", "Support"], found
found = everything.prompts.complete("completable-prompt", "name", "", department="Engineering")
assert found == ["Alice", "Bob", "Charlie"], found
template = everything.resources.list().templates[0].uriTemplate
assert everything.resources.complete(template, "resourceId", "7") == ["7"], template

uri = "demo://resource/dynamic/text/1"
with everything.resources.subscribe(uri) as changes:
    everything.toggle_subscriber_updates()
    assert changes.wait(60) >= 1
    everything.toggle_subscriber_updates()

messages = mcp.logs("everything")
assert any("Received Subscribe Resource request for URI: " + uri in str(one.data) for one in messages), messages
assert all(one.level != "debug" for one in messages), messages
print("all there")
