//! The Python and Node libraries with which code in a sandbox calls tools, from the cell to the host and back. Their
//! own tests run against a stand-in; here the runner and the session are real, and the host's side answers from a
//! script.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use cove::config::Config;
use cove_core::BoxFuture;
use cove_core::output::{CollectedOutput, OutputCollector};
use cove_core::session::{
    CallHandler, CallingCell, Cell, CellEnd, Session, SessionOptions, StopReason, SurvivingState,
};
use cove_protocol::Language;
use cove_testkit::measure;
use serde_json::{Value, json};

use crate::cove;

#[derive(Default)]
struct GuestApiHost {
    now: AtomicUsize,
    most: AtomicUsize,
    finished: AtomicUsize,
}

impl GuestApiHost {
    async fn reply(&self, request: &Value) -> Value {
        let arguments = &request["arguments"];
        match (request["ask"].as_str().unwrap_or_default(), request["tool"].as_str().unwrap_or_default()) {
            ("servers", _) => json!({"ok": [
                {"name": "git-hub", "alias": "git_hub", "description": "Issues", "tools": 2, "state": "idle"},
                {"name": "time", "alias": "time", "description": "", "tools": 1, "state": "ready"},
                {"name": "servers", "alias": "servers", "description": "", "tools": 1, "state": "idle"},
                {"name": "class", "alias": "class_", "description": "", "tools": 1, "state": "idle"},
            ]}),
            ("tools", _) => json!({"ok": [{
                "name": "get-sum", "alias": "get_sum", "description": "Adds.",
                "input_schema": {"type": "object", "properties": {"cik-A": {}, "from": {}}},
                "output_schema": null, "python": "get_sum(*, cik_A, from_)", "node": "get_sum({ … })",
            }, {
                "name": "typed", "alias": "typed", "description": "",
                "input_schema": {"type": "object", "properties": {"year": {"type": "string"}}},
                "output_schema": null, "python": "", "node": "",
            }]}),
            ("find", _) => json!({"ok": {
                "tools": [{"server": "git-hub", "tool": "get-sum", "signature": request["language"], "description": ""}],
                "total": 1, "hint": request["query"],
            }}),
            ("help", _) => json!({"ok": "the manual"}),
            ("call", "typed") => match arguments["year"].as_str() {
                Some(year) => json!({"ok": {"value": year}}),
                None => json!({"error": {"kind": "bad_arguments", "message": "`year` is not a text"}}),
            },
            ("call", "text") => json!({"ok": {"value": "two\nlines"}}),
            ("call", "slow") => {
                tokio::time::sleep(Duration::from_millis(arguments["ms"].as_u64().unwrap_or(200))).await;
                json!({"ok": {"value": arguments}})
            }
            ("call", "hang") => std::future::pending().await,
            ("call", "large") => json!({"ok": {"value": "é".repeat(5_000_000)}}),
            ("call", "size") => json!({"ok": {"value": arguments["text"].as_str().map(str::len)}}),
            ("call", "image") => json!({"ok": {"rich": {"text": "see", "content": [
                {"type": "text", "text": "see"},
                {"type": "image", "mimeType": "image/png", "data": "iVBORw0KGgo="},
            ]}}}),
            ("call", "fail") => json!({"error": {
                "kind": "tool", "message": "no such repo", "hint": "look again", "server": "git-hub", "tool": "fail",
            }}),
            // The host resolves spellings: names arrive as the code wrote them.
            ("call", "get_sum") => {
                let plain = arguments.as_object().into_iter().flatten();
                let right = |name: &str| name.replace("cik_A", "cik-A").replace("from_", "from");
                let arguments: serde_json::Map<String, Value> =
                    plain.map(|(name, value)| (right(name), value.clone())).collect();
                json!({"ok": {"value": arguments}})
            }
            ("call", _) => json!({"ok": {"value": arguments}}),
            _ => json!({"error": {"kind": "internal", "message": "not in the script"}}),
        }
    }
}

impl CallHandler for GuestApiHost {
    fn answer<'a>(&'a self, _cell: CallingCell, request: Vec<u8>) -> BoxFuture<'a, Vec<u8>> {
        Box::pin(async move {
            self.most.fetch_max(self.now.fetch_add(1, SeqCst) + 1, SeqCst);
            let request: Value = serde_json::from_slice(&request).expect("libraries send JSON");
            let reply = self.reply(&request).await;
            self.now.fetch_sub(1, SeqCst);
            self.finished.fetch_add(1, SeqCst);
            reply.to_string().into_bytes()
        })
    }
}

struct GuestApiFixture {
    config: Config,
    session: Session,
    script: Arc<GuestApiHost>,
}

impl GuestApiFixture {
    async fn new() -> Self {
        let config = measure::config();
        let jail = measure::jail(cove().path());
        let session = Session::start(&jail, &config.policy, SessionOptions::default()).await.expect("a session starts");
        Self { config, session, script: Arc::default() }
    }

    async fn run(&self, language: Language, code: &str, timeout: Duration) -> (CellEnd, CollectedOutput) {
        let cell = Cell { language, timeout, grace: Duration::from_secs(30), ..measure::cell(&self.config, code) };
        let mut collector = OutputCollector::new(100_000_usize, None);
        let calls = Arc::clone(&self.script) as Arc<dyn CallHandler>;
        let end = self.session.run_with_calls(cell, |shown| collector.push(shown), std::future::pending(), calls).await;
        (end, collector.finish())
    }

    async fn check(&self, language: Language, code: &str, expected: &str) {
        let (end, found) = self.run(language, code, Duration::from_secs(60)).await;
        assert!(end.is_success(), "{code}: {end:?} {found:?}");
        assert_eq!((found.stdout.text.as_str(), found.stderr.text.as_str()), (expected, ""), "{code}");
    }

    async fn check_python(&self, code: &str, expected: &str) {
        self.check(Language::Python, code, expected).await;
    }

    async fn check_node(&self, code: &str, expected: &str) {
        self.check(Language::Node, code, expected).await;
    }
}

#[tokio::test]
async fn python_calls_tools() {
    let fixture = GuestApiFixture::new().await;
    fixture.check_python("mcp.find('sum')", "python\n# sum\n").await;
    fixture.check_python("mcp.help()", "the manual\n").await;
    fixture.check_python("git_hub.echo(a=None, b='é')", "{'a': None, 'b': 'é'}\n").await;
    fixture.check_python("mcp.git_hub.get_sum(cik_A=1, from_=2)", "{'cik-A': 1, 'from': 2}\n").await;
    fixture.check_python("await mcp_git_hub.get_sum(cik_A=1), await mcp.time.now()", "({'cik-A': 1}, {})\n").await;
    fixture.check_python("from mcp.servers.git_hub import *\nget_sum(cik_A=3)", "{'cik-A': 3}\n").await;
    fixture
        .check_python(
            "from mcp import runtime\nawait runtime.list_servers(), LOADED_MCP_SERVERS[0]",
            "(('git-hub', 'time', 'servers', 'class'), 'git-hub')\n",
        )
        .await;
    fixture
        .check_python("len(mcp.git_hub.large()), mcp.git_hub.size(text='x' * 1_000_000)", "(5000000, 1000000)\n")
        .await;
    let (end, found) = fixture.run(Language::Python, "mcp.git_hub.image()", Duration::from_secs(60)).await;
    assert!(end.is_success());
    assert_eq!((found.stdout.text.as_str(), found.images.len()), ("see\n", 1));
    let (end, found) = fixture.run(Language::Python, "1\nmcp.git_hub.fail()", Duration::from_secs(60)).await;
    let CellEnd::Raised { exception, message, .. } = &end else { panic!("{end:?}") };
    assert_eq!(
        (exception.as_str(), message.as_str()),
        ("mcp.ToolError", "git-hub.fail: no such repo\nhint: look again")
    );
    assert!(!found.stderr.text.contains("<mcp>"), "{}", found.stderr.text);
    fixture.session.stop().await;
}

#[tokio::test]
async fn node_calls_tools() {
    let fixture = GuestApiFixture::new().await;
    fixture.check_node("await mcp.find('sum')", "node\n// sum\n").await;
    fixture.check_node("await mcp.git_hub.get_sum({ cik_A: 1, from: 2 })", "{ 'cik-A': 1, from: 2 }\n").await;
    fixture.check_node("[await mcp.time.now(), (await mcp.servers).length]", "[ {}, 4 ]\n").await;
    fixture
        .check_node(
            "[(await mcp.time.large()).length, await mcp.time.size({ text: 'x'.repeat(1e6) })]",
            "[ 5000000, 1000000 ]\n",
        )
        .await;
    let (end, found) = fixture.run(Language::Node, "await mcp.time.image()", Duration::from_secs(60)).await;
    assert!(end.is_success());
    assert_eq!((found.stdout.text.as_str(), found.images.len()), ("see\n", 1));
    let (end, _) = fixture.run(Language::Node, "await mcp.time.fail()", Duration::from_secs(60)).await;
    let CellEnd::Raised { exception, message, .. } = &end else { panic!("{end:?}") };
    assert_eq!((exception.as_str(), message.as_str()), ("ToolError", "git-hub.fail: no such repo\nhint: look again"));
    fixture.session.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guest_calls_run_in_parallel_and_are_awaited() {
    let fixture = GuestApiFixture::new().await;
    let code = "import asyncio\nlen(await asyncio.gather(*[mcp_time.slow(n=n, ms=3000) for n in range(100)]))";
    fixture.check_python(code, "100\n").await;
    assert_eq!(fixture.script.most.swap(0, SeqCst), 64, "the rest waits in the sandbox");
    let code = "(await Promise.all(Array.from({ length: 100 }, (_, n) => mcp.time.slow({ n, ms: 3000 })))).length";
    fixture.check_node(code, "100\n").await;
    assert_eq!(fixture.script.most.load(SeqCst), 64);
    // Calls that the code does not await finish before the cell does.
    let before = fixture.script.finished.load(SeqCst);
    fixture.check_python("for n in range(3):\n    mcp_time.slow(n=n)\nx = 1", "").await;
    fixture.check_node("for (let n = 0; n < 3; n += 1) mcp.time.slow({ n }); undefined", "").await;
    assert_eq!(fixture.script.finished.load(SeqCst), before + 6);
    fixture.session.stop().await;
}

#[tokio::test]
async fn interrupts_a_hanging_call_and_continues() {
    let fixture = GuestApiFixture::new().await;
    // Starts both interpreters first.
    fixture.check_python("1", "1\n").await;
    fixture.check_node("1", "1\n").await;
    let cells = [
        (Language::Python, "mcp.time.hang()"),
        (Language::Python, "mcp_time.hang()"),
        (Language::Python, "await mcp_time.hang()"),
        (Language::Python, "import asyncio\nawait asyncio.gather(mcp_time.hang(), mcp_time.echo())"),
        (Language::Node, "await mcp.time.hang()"),
        (Language::Node, "mcp.time.hang(); 1"),
    ];
    for (language, code) in cells {
        let (end, _) = fixture.run(language, code, Duration::from_millis(700)).await;
        let kept =
            matches!(end, CellEnd::Stopped { reason: StopReason::Deadline, survived: SurvivingState::Everything });
        assert!(kept, "{code}: {end:?}");
        fixture.check_python("mcp.time.echo(a=1), await mcp_time.echo(a=2)", "({'a': 1}, {'a': 2})\n").await;
        fixture.check_node("await mcp.time.echo({ a: 1 })", "{ a: 1 }\n").await;
    }
    fixture.session.stop().await;
}

/// In each language: names that mean something else there, whole results, and attributes that are not calls.
#[tokio::test]
async fn reserved_names_work_as_server_names() {
    let fixture = GuestApiFixture::new().await;
    fixture.check_python("mcp_servers['servers'].echo(self=1)", "{'self': 1}\n").await;
    fixture.check_python("await mcp_class.echo(a=1), mcp.servers.class_.echo(a=2)", "({'a': 1}, {'a': 2})\n").await;
    fixture.check_python("git_hub['echo'](**{'from': 1}), mcp.time['__class__']()", "({'from': 1}, {})\n").await;
    fixture
        .check_python(
            "import json\njson.dumps(mcp_time.echo(a=1)), mcp_time.typed(year='1').upper()",
            "('{\"a\": 1}', '1')\n",
        )
        .await;
    fixture
        .check_node("[await mcp_class.echo({ a: 1 }), await mcp_servers.servers.echo()]", "[ { a: 1 }, {} ]\n")
        .await;
    let before = fixture.script.finished.load(SeqCst);
    fixture.check_node("[await mcp.time, `${mcp.time}`, mcp.time + 1].length", "3\n").await;
    assert_eq!(fixture.script.finished.load(SeqCst), before, "a server is no promise, and its text is no call");
    fixture.session.stop().await;
}

#[tokio::test]
async fn shell_converts_arguments_by_schema_and_prints_json() {
    let fixture = GuestApiFixture::new().await;
    let code = r#"mcp call time.typed year=2024; mcp call time text; mcp call time.text --text
echo '{"a": [1]}' | mcp call time.echo - b=2; mcp tools time get_sum | head -c 17; echo; mcp call time.fail; echo $?
mcp call time.typed year:=2024; echo $?; mcp tools time nope; echo $?"#;
    let (end, found) = fixture.run(Language::Bash, code, Duration::from_secs(60)).await;
    assert!(end.is_success(), "{end:?}");
    let expected = "\"2024\"\n\"two\\nlines\"\ntwo\nlines\n{\"a\":[1],\"b\":2}\n{\"name\":\"get-sum\"\n1\n2\n3\n";
    assert_eq!(found.stdout.text, expected);
    let expected = "mcp: git-hub.fail: no such repo\nhint: look again\nmcp: `year` is not a text\n\
                    mcp: the server has no tool `nope`\nhint: `mcp tools SERVER` lists its tools\n";
    assert_eq!(found.stderr.text, expected);
    fixture.session.stop().await;
}

/// Threads, forked children and other programs, all at the same time and through one runner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn threads_forks_and_programs_call_in_parallel() {
    let fixture = GuestApiFixture::new().await;
    let code = r#"
import concurrent.futures, multiprocessing, subprocess, asyncio, sys
first = mcp.time.echo(n=0)
def call(n): return mcp.time.echo(n=n).n + mcp_time.slow(n=n).n
async def gathered(): return sum(x.n for x in await asyncio.gather(*[mcp_time.slow(n=n) for n in range(20)]))
programs = [subprocess.Popen(["mcp", "call", "time.slow", f"n={n}"], stdout=-1, text=True) for n in range(5)]
with multiprocessing.get_context("fork").Pool(3) as pool, concurrent.futures.ThreadPoolExecutor(20) as threads:
    children = pool.map_async(call, range(12))
    loops = [threads.submit(asyncio.run, gathered()) for _ in range(2)]
    found = sum(threads.map(call, range(40)))
    print(found, sum(children.get()), [loop.result() for loop in loops])
print(sorted(p.communicate()[0].strip() for p in programs) == [f'{{"n":{n}}}' for n in range(5)])
"#;
    fixture.check_python(code, "1560 132 [190, 190]\nTrue\n").await;
    fixture.check_python("mcp.time.echo(n=1).n", "1\n").await;
    assert_eq!(fixture.script.now.load(SeqCst), 0);
    fixture.session.stop().await;
}

#[tokio::test]
async fn code_learns_that_no_servers_are_configured() {
    let fixture = GuestApiFixture::new().await;
    let cell = measure::cell(
        &fixture.config,
        "try:\n    mcp.find('x')\nexcept mcp.ServerUnavailable as e:\n    print(e)\ntime.x",
    );
    let mut collector = OutputCollector::new(100_000_usize, None);
    let end = fixture.session.run(cell, |shown| collector.push(shown), std::future::pending()).await;
    assert!(matches!(&end, CellEnd::Raised { exception, .. } if exception == "NameError"), "{end:?}");
    assert!(collector.finish().stdout.text.contains("no MCP servers are configured"));
    fixture.session.stop().await;
}
