# Sums up tables that it reads through one server, and stores the sums through two others.
set -eu -o pipefail
mcp find "search for files that match a pattern" |
  jq -e 'any(.tools[]; .server == "filesystem" and .tool == "search_files")' >/dev/null

mcp call --text filesystem.search_files path=@HOUSE@/files pattern='*.csv' >paths
while read -r path; do
  mcp call --text filesystem.read_text_file path="$path" | tail -n +2
done <paths >rows
jq -R -s -c '
  [split("\n")[] | select(. != "") | split(",") | {name: .[0], amount: (.[1] | tonumber)}]
  | group_by(.name) | map({name: .[0].name, total: (map(.amount) | add)})' rows >totals

jq -c '{entities: map({name, entityType: "customer", observations: ["total \(.total)"]})}' totals |
  mcp call memory.create_entities @- | jq -e '.entities | length == 3' >/dev/null
mcp call sqlite.create_table query='create table totals (name text, amount integer)' >/dev/null
jq -r '.[] | "insert into totals values (\u0027\(.name)\u0027, \(.total))"' totals | while read -r query; do
  mcp call sqlite.write_query query="$query" >/dev/null
done
echo stored "$(jq length totals)"
