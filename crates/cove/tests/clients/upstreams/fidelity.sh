# What a server says is what a shell gets, and the kind of a failure is the exit status.
set -u
same() {
  [ "$1" = "$2" ] || { printf 'got %.500s\nwant %.500s\n' "$1" "$2"; exit 1; }
}
# fails STATUS WORDS COMMAND…
fails() {
  status=0
  said=$("${@:3}" 2>&1) || status=$?
  same "$status" "$1"
  case $said in *"$2"*) ;; *) echo "$said does not say $2"; exit 1 ;; esac
}

same "$(mcp call --text everything.echo message='naïve 日本 🎉')" 'Echo: naïve 日本 🎉'
same "$(mcp call everything.echo message='naïve 日本 🎉' | jq -r .)" 'Echo: naïve 日本 🎉'
same "$(mcp call everything.get-sum a=2 b=40)" "$(mcp call everything get_sum '{"a": 2, "b": 40}')"
same "$(mcp call fixture.rich | jq -r '.content[1].data' | base64 -d | head -c 4 | tail -c 3)" PNG
same "$(mcp call fixture.rich | jq -r .text)" 'naïve 日本 🎉'
same "$(mcp call fixture.structured | jq -c .list)" '[1,2.5,null,{"a":"ü"}]'
same "$(mcp call fixture.structured | grep -o 9007199254740993)" 9007199254740993
same "$(mcp call fixture.null)" null
same "$(mcp call fixture.echo a=null b:='"007"' c=[] from=x | jq -S -c .)" '{"a":null,"b":"007","c":[],"from":"x"}'
same "$(mcp call fixture.echo | jq -c .)" '{}'
same "$(mcp call --raw fixture.rich | jq -c '[.isError, ._meta.took]')" '[false,1]'
same "$(mcp call --text fixture.big n=10485760 | wc -c)" 10485761
head -c 1048576 /dev/zero | tr '\0' y >large
same "$(mcp call fixture.echo text=@large | jq '.text | length')" 1048576

for n in 1 2 3 4 5 6 7 8 9 10; do mcp call --text fixture.slow ms=200 & done >slept
wait
same "$(sort -u slept)" done
same "$(wc -l <slept)" 10

same "$(mcp resources fixture | jq -r '[.resources[].name] | join(" ")')" 'a b json bytes'
same "$(mcp read fixture fixture://bytes | jq -r '.contents[0].blob')" 'AAECA/8='
same "$(mcp prompt everything args-prompt city=Rome | jq -r '.messages[0].content.text')" "What's weather in Rome?"
same "$(mcp tools time | jq -r '[.[].name] | sort | join(" ")')" 'convert_time get_current_time'

fails 1 'no such issue: 7' mcp call fixture.fail
fails 1 'not today' mcp call fixture.refuse
fails 1 'Access denied' mcp call filesystem.read_text_file path=/etc/passwd
fails 2 number mcp call everything.get-sum a=1 b=two
fails 3 get-sum mcp call everything.get_summ a=1
fails 3 everything mcp call everithing.echo message=x
fails 4 'asked to die' mcp call fixture.die
same "$(mcp call fixture.add a=1 b=2 | jq .sum)" 3
fails 4 'no database at' mcp call broken.anything
fails 4 'within 0.5 s' mcp call --timeout 0.5 fixture.never
echo faithful
