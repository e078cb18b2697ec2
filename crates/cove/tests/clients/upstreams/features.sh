# Tasks, completions, subscriptions and log messages of a real server.
set -e
mcp call everything.simulate-research-query topic=cells --text | grep -q '# Research Report: cells'
mcp complete everything prompt completable-prompt department M | grep -q Marketing
mcp complete everything prompt completable-prompt name G department=Marketing | grep -q Grace

uri=demo://resource/dynamic/text/3
number=$(mcp subscribe everything "$uri" | tr -d ' \n' | sed 's/.*"subscription":\([0-9]*\).*/\1/')
mcp call everything.toggle-subscriber-updates > /dev/null
mcp changes "$number" 0 --timeout 60 | grep -q '[1-9]'
mcp call everything.toggle-subscriber-updates > /dev/null
mcp logs everything | grep -q "request for URI: $uri"
echo all there
