//! Code in a real sandbox calls the host: short Python code talks to the socket as the libraries do, and so does the
//! shell's `mcp`. The host's side answers from a script.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use cove::config::Config;
use cove_core::BoxFuture;
use cove_core::output::{CollectedOutput, OutputCollector};
use cove_core::session::calls::{MAX_CALLS_PER_CELL, error_reply};
use cove_core::session::{
    CallHandler, CallingCell, Cell, CellEnd, Session, SessionOptions, StopReason, SurvivingState,
};
use cove_protocol::Language;
use cove_testkit::{TestUser, measure};
use serde_json::{Value, json};

use crate::cove;

/// The host's scripted answers, and counters of what happened to them.
#[derive(Default)]
struct ScriptedHost {
    begun: AtomicUsize,
    dropped: AtomicUsize,
    now: AtomicUsize,
    most: AtomicUsize,
}

/// Counts a call as open until its answer is ready or is no longer wanted.
struct OpenCallCount<'a>(&'a ScriptedHost, bool);

impl<'a> OpenCallCount<'a> {
    fn new(script: &'a ScriptedHost) -> Self {
        script.begun.fetch_add(1, SeqCst);
        script.most.fetch_max(script.now.fetch_add(1, SeqCst) + 1, SeqCst);
        Self(script, false)
    }
}

impl Drop for OpenCallCount<'_> {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, SeqCst);
        self.0.dropped.fetch_add(usize::from(!self.1), SeqCst);
    }
}

impl CallHandler for ScriptedHost {
    fn answer<'a>(&'a self, _cell: CallingCell, request: Vec<u8>) -> BoxFuture<'a, Vec<u8>> {
        Box::pin(async move {
            let mut under_way = OpenCallCount::new(self);
            let request: Value = serde_json::from_slice(&request).expect("the runner checks that it is JSON");
            let number = |name: &str| request[name].as_u64().unwrap_or(0);
            let answer = match request["ask"].as_str() {
                Some("length") => json!({"ok": request["text"].as_str().map(str::len)}),
                Some("call") => json!({"ok": {"value": request["arguments"]}}),
                Some("help") => json!({"ok": "the manual"}),
                Some("find") => json!({"ok": {"tools": [], "total": 0, "hint": request["query"]}}),
                Some("slow") => {
                    tokio::time::sleep(Duration::from_millis(number("ms"))).await;
                    json!({"ok": number("ms")})
                }
                Some("large") => json!({"ok": "x".repeat(number("bytes") as usize)}),
                Some("hang") => std::future::pending().await,
                Some("panic") => panic!("as the test wants it"),
                _ => {
                    under_way.1 = true;
                    return error_reply("unknown_server", "there is no such thing", Some("ask for another"));
                }
            };
            under_way.1 = true;
            answer.to_string().into_bytes()
        })
    }
}

/// What the libraries do, in a few lines.
const LINK: &str = r#"
import socket, json, os, struct, threading, time, subprocess
class Link:
    def __init__(self):
        self.s = socket.socket(socket.AF_UNIX); self.s.connect(os.environ["COVE_MCP"])
    def send(self, ask, id=1, **more):
        b = json.dumps({"id": id, "ask": ask, **more}).encode(); self.s.sendall(struct.pack(">I", len(b)) + b)
    def take(self, n):
        b = bytearray()
        while len(b) < n:
            p = self.s.recv(min(n - len(b), 1 << 20))
            if not p: raise EOFError
            b += p
        return b
    def hear(self): return json.loads(self.take(int.from_bytes(self.take(4), "big")))
    def ask(self, *a, **k): self.send(*a, **k); return self.hear()
"#;

struct CallsFixture {
    config: Config,
    session: Session,
    script: Arc<ScriptedHost>,
}

impl CallsFixture {
    async fn new() -> Self {
        Self::with_config(measure::config()).await
    }

    async fn with_config(config: Config) -> Self {
        let jail = measure::jail(cove().path());
        let session = Session::start(&jail, &config.policy, SessionOptions::default()).await.expect("a session starts");
        let fixture = Self { config, session, script: Arc::default() };
        fixture.print(LINK).await;
        fixture
    }

    async fn run(&self, language: Language, code: &str, timeout: Duration) -> (CellEnd, CollectedOutput) {
        let cell = Cell { language, timeout, grace: Duration::from_secs(30), ..measure::cell(&self.config, code) };
        let mut collector = OutputCollector::new(100_000_usize, None);
        let calls = Arc::clone(&self.script) as Arc<dyn CallHandler>;
        let end = self.session.run_with_calls(cell, |shown| collector.push(shown), std::future::pending(), calls).await;
        (end, collector.finish())
    }

    /// Runs Python that must succeed and write nothing to standard error. Returns what it printed.
    async fn print(&self, code: &str) -> String {
        self.print_in(Language::Python, code).await
    }

    async fn print_in(&self, language: Language, code: &str) -> String {
        let (end, found) = self.run(language, code, Duration::from_secs(60)).await;
        assert!(end.is_success() && found.stderr.text.is_empty(), "{code}: {end:?} {found:?}");
        found.stdout.text
    }

    fn dropped(&self) -> usize {
        self.script.dropped.load(SeqCst)
    }

    async fn wait_for_drops(&self, count: usize) {
        let waited = async {
            while self.dropped() < count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(60), waited).await;
        assert!(waited.is_ok() && self.dropped() == count, "{} of {count}", self.dropped());
    }
}

#[tokio::test]
async fn code_calls_the_host_and_gets_answers() {
    let fixture = CallsFixture::new().await;
    let code = "l = Link()\nfor n in range(3): print(l.ask('call', n, arguments={'n': n})['ok']['value'], end=' ')\n\
                e = l.ask('what', 2**53); print(e['id'] == 2**53, e['error'])";
    assert_eq!(
        fixture.print(code).await,
        "{'n': 0} {'n': 1} {'n': 2} True {'kind': 'unknown_server', 'message': 'there is no such thing', \
         'hint': 'ask for another'}\n"
    );
    // The same connection in the next cell, and another one in another interpreter.
    assert_eq!(fixture.print("print(l.ask('help')['ok'])").await, "the manual\n");
    let node = "const s = require('net').connect(process.env.COVE_MCP); const b = Buffer.from('{\"id\":9,\"ask\":\"help\"}');\n\
                const n = Buffer.alloc(4); n.writeUInt32BE(b.length); s.write(Buffer.concat([n, b]));\n\
                console.log((await new Promise(f => s.once('data', f))).subarray(4).toString()); void s.destroy()";
    assert_eq!(fixture.print_in(Language::Node, node).await, "{\"id\":9,\"ok\":\"the manual\"}\n");
    fixture.session.stop().await;
}

#[tokio::test]
async fn passes_large_calls_and_rejects_oversized_ones() {
    let fixture = CallsFixture::new().await;
    let code = "l = Link(); print(l.ask('length', text='y' * (1 << 20))['ok'], end=' ')\n\
                print(l.ask('length', text='y' * (8 * 1024 * 1024 - 60))['ok'], end=' ')\n\
                print(len(l.ask('large', bytes=10_000_000)['ok']), end=' ')\n\
                print(len(l.ask('large', bytes=33_000_000)['ok']), end=' ')\n\
                print(l.ask('large', bytes=34_000_000)['error']['kind'], end=' ')\n\
                print(l.ask('panic')['error']['kind'], l.ask('help')['ok'])\n\
                try:\n    l.ask('length', text='y' * (8 * 1024 * 1024))\n\
                except (BrokenPipeError, ConnectionResetError, EOFError): pass\n\
                print(Link().ask('help')['ok'])";
    assert_eq!(
        fixture.print(code).await,
        format!("1048576 {} 10000000 33000000 limit internal the manual\nthe manual\n", 8 * 1024 * 1024 - 60)
    );
    fixture.session.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_parallel_calls_in_order_of_completion() {
    let fixture = CallsFixture::new().await;
    let code = "l = Link()\nfor n in range(100): l.send('slow', n, ms=3000 + (100 - n) * 5)\n\
                r = [l.hear() for _ in range(100)]\n\
                print(sorted(x['id'] for x in r) == list(range(100)), r[0]['id'] != 0, \
                all(x['ok'] == 3000 + (100 - x['id']) * 5 for x in r))";
    assert_eq!(fixture.print(code).await, "True True True\n");
    assert_eq!(fixture.script.most.load(SeqCst), 64, "the rest waits in the sandbox");
    // From a hundred threads with a connection each, which is more than the runner accepts at once.
    let code = "a = []\ndef f(n):\n    k = Link(); a.append(k.ask('slow', n, ms=20)['id'] == n); k.s.close()\n\
                t = [threading.Thread(target=f, args=(n,)) for n in range(100)]\n\
                [x.start() for x in t]; [x.join() for x in t]; print(a.count(True))";
    assert_eq!(fixture.print(code).await, "100\n");
    assert!(fixture.script.most.load(SeqCst) <= 64);
    fixture.session.stop().await;
}

#[tokio::test]
async fn ended_cell_drops_its_calls() {
    let fixture = CallsFixture::new().await;
    // A thread that still waits for the call gets the error.
    let code = "l = Link(); heard = []\n\
                t = threading.Thread(target=lambda: heard.append(l.ask('hang')['error']['kind'])); t.start(); \
                print(Link().ask('help')['ok'])";
    assert_eq!(fixture.print(code).await, "the manual\n");
    fixture.wait_for_drops(1).await;
    assert_eq!(fixture.print("t.join(); print(heard, l.ask('help')['ok'])").await, "['cancelled'] the manual\n");
    // A process that calls between cells gets an error, because no cell runs.
    let waits = "until [ -e go ]; do sleep 0.05; done; mcp help; code=$?; echo > called; exit $code";
    let code = format!("p = subprocess.Popen(['sh', '-c', '{waits}'], stderr=subprocess.PIPE)");
    assert_eq!(fixture.print(&code).await, "");
    fixture.session.write_file("go", b"").await.expect("a file goes in");
    let called = async {
        while fixture.session.read_file("called").await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), called).await.expect("it calls");
    let reported = fixture.print("print(p.communicate()[1].decode(), p.returncode)").await;
    assert!(reported.contains("no cell is running") && reported.ends_with(" 3\n"), "{reported}");
    fixture.session.stop().await;
}

#[tokio::test]
async fn stopped_cell_drops_calls_and_keeps_variables() {
    let fixture = CallsFixture::new().await;
    let code = "l = Link(); x = 7\nl.ask('hang')";
    let (end, _) = fixture.run(Language::Python, code, Duration::from_secs(3)).await;
    assert_eq!(end, CellEnd::Stopped { reason: StopReason::Deadline, survived: SurvivingState::Everything });
    fixture.wait_for_drops(1).await;
    let code = "import signal\nsignal.signal(signal.SIGINT, lambda *a: None)\nl = Link(); k = l.ask('hang')";
    let (end, _) = fixture.run(Language::Python, code, Duration::from_secs(3)).await;
    assert_eq!(end, CellEnd::Stopped { reason: StopReason::Deadline, survived: SurvivingState::Everything });
    assert_eq!(fixture.print("print(x, k['error']['kind'])").await, "7 cancelled\n", "it was told at once");
    let (end, _) =
        fixture.run(Language::Bash, "mcp call a.b --timeout 60 x=1; mcp hang", Duration::from_secs(20)).await;
    assert_eq!(end.exit_code(), 2);
    fixture.session.stop().await;
}

#[tokio::test]
async fn broken_connection_cancels_its_calls() {
    let fixture = CallsFixture::new().await;
    let code = "a, b, c = Link(), Link(), Link()\n\
                a.s.sendall(b'\\0\\0\\1\\0{\"id\":1,'); a.s.close()\n\
                b.s.sendall(b'\\0\\0'); b.s.shutdown(socket.SHUT_WR); print(b.s.recv(9), end=' ')\n\
                c.send('hang'); c.send('large', bytes=20_000_000); c.s.recv(9); c.s.close()\n\
                print(Link().ask('help')['ok'])";
    assert_eq!(fixture.print(&format!("{code}\ntime.sleep(0.2)")).await, "b'' the manual\n");
    fixture.wait_for_drops(1).await;
    // Connections that close in the middle of a call, again and again: no slot stays taken.
    let code = "for n in range(80):\n    l = Link(); l.send('hang'); l.s.close()\nprint(Link().ask('help')['ok'])";
    assert_eq!(fixture.print(code).await, "the manual\n");
    fixture.session.stop().await;
}

/// In a small sandbox: unread replies and endless requests must neither fill it nor block others.
#[tokio::test]
async fn survives_call_floods_and_unread_replies() {
    let mut config = measure::config();
    config.policy.limits.memory = 160 << 20;
    let fixture = CallsFixture::with_config(config).await;
    let code = "l = Link()\nfor n in range(60): l.send('large', n, bytes=8_000_000)\n\
                m = [Link() for _ in range(20)]\nfor k in m:\n    for n in range(40): k.send('large', n, bytes=10_000)\n\
                print(Link().ask('help')['ok'])\n\
                r = [(len(x.get('ok', '')), x.get('error', {}).get('kind')) for x in (l.hear() for _ in range(60))]\n\
                print(sum(n > 0 for n, _ in r) >= 10, set(r) <= {(8000000, None), (0, 'limit')})";
    assert_eq!(fixture.print(code).await, "the manual\nTrue True\n");
    let code = "stop = False\ndef flood():\n    k = Link(); k.s.settimeout(1)\n    try:\n        while not stop: k.send('length', text='y' * 1000)\n    \
                except OSError: pass\n\
                t = [threading.Thread(target=flood) for _ in range(8)]; [x.start() for x in t]\n\
                print('o' * 50000); r = Link().ask('help'); stop = True; [x.join() for x in t]\n\
                print(r.get('ok') or r['error']['kind'])";
    let reported = fixture.print(code).await;
    // Another connection is answered. On a busy machine the flood may have used up the cell's calls by then.
    let answers = ["the manual", "limit"].map(|answer| format!("{}\n{answer}\n", "o".repeat(50000)));
    assert!(answers.contains(&reported), "{reported}");
    // A connection with garbage is closed, and the next cell runs.
    let code = "g = Link(); g.s.sendall(b'GET / HTTP/1.1\\r\\n\\r\\n')\ntry:\n    print(g.hear()['error']['kind']); g.hear()\n\
                except (EOFError, ConnectionResetError): print('closed')";
    assert_eq!(fixture.print(code).await, "limit\nclosed\n");
    fixture.session.stop().await;
}

#[tokio::test]
async fn limits_the_number_of_calls_per_cell() {
    let fixture = CallsFixture::new().await;
    let code = format!(
        "l = Link(); a = [l.ask('help') for _ in range({MAX_CALLS_PER_CELL})]\nprint(all('ok' in x for x in a), l.ask('help')['error'])"
    );
    let reported = fixture.print(&code).await;
    assert!(reported.starts_with("True {'kind': 'limit', 'message': 'this cell has made 1000 calls"), "{reported}");
    assert_eq!(fixture.print("print(l.ask('help')['ok'])").await, "the manual\n");
    fixture.session.stop().await;
}

#[tokio::test]
async fn recreates_a_removed_call_socket() {
    let fixture = CallsFixture::new().await;
    for damage in
        ["rm -rf /tmp/.cove", "rm -rf /tmp/.cove; touch /tmp/.cove", "rm /tmp/.cove/mcp; mkfifo /tmp/.cove/mcp"]
    {
        assert_eq!(fixture.print_in(Language::Bash, damage).await, "");
        assert_eq!(fixture.print_in(Language::Bash, "mcp help").await, "the manual\n", "{damage}");
    }
    fixture.session.stop().await;
}

#[tokio::test]
async fn mcp_command_works_in_every_language() {
    let fixture = CallsFixture::new().await;
    let code = r#"mcp call a.b n=1 t='two words' 'o={"k":[]}'; mcp call a b '{"x": "y"}' --json
mcp help; mcp help --json; mcp find create an issue --limit 2; printf '[1,2]' > f; mcp call a.b v:=@f w=@f
head -c 3000000 /dev/zero | tr '\0' z | mcp call a.b t=@- | wc -c"#;
    let expected = "{\"n\":1,\"t\":\"two words\",\"o\":{\"k\":[]}}\n{\"x\":\"y\"}\nthe manual\n\"the manual\"\n\
                    {\"tools\":[],\"total\":0,\"hint\":\"create an issue\"}\n{\"v\":[1,2],\"w\":\"[1,2]\"}\n3000009\n";
    assert_eq!(fixture.print_in(Language::Bash, code).await, expected);
    assert_eq!(fixture.print_in(Language::Sh, "x=$(mcp call a.b n=1); echo \"$x\"").await, "{\"n\":1}\n");
    let node = "console.log(require('child_process').execFileSync('mcp', ['help']).toString().trim())";
    assert_eq!(fixture.print_in(Language::Node, node).await, "the manual\n");
    let python = "print(subprocess.run(['mcp', 'call', 'a.b', 'n=1'], capture_output=True, text=True).stdout)";
    assert_eq!(fixture.print(python).await, "{\"n\":1}\n\n");
    let (end, found) =
        fixture.run(Language::Bash, "mcp tools x; echo $?; mcp nonsense; echo $?", Duration::from_secs(60)).await;
    assert!(end.is_success());
    assert_eq!(found.stdout.text, "3\n2\n");
    assert_eq!(
        found.stderr.text,
        "mcp: there is no such thing\nhint: ask for another\nmcp: there is no command `nonsense`\n\
         hint: run `mcp --help` for usage\n"
    );
    // One after another and in parallel.
    let many = "for n in $(seq 40); do mcp call a.b n=$n & done | sort | uniq | wc -l";
    assert_eq!(fixture.print_in(Language::Bash, many).await, "40\n");
    fixture.session.stop().await;
}

/// As root and as an ordinary user, in the default sandbox: every language reports that there are no servers.
#[test]
fn reports_that_no_servers_are_configured() {
    for who in TestUser::all("reports_that_no_servers_are_configured") {
        for (language, code) in [
            ("bash", "mcp servers && mcp tools x; exit $?"),
            ("sh", "mcp servers && mcp tools x"),
            ("python", "import subprocess, sys; sys.exit(subprocess.call(['mcp', 'tools', 'x']))"),
            (
                "node",
                "process.exit(require('child_process').spawnSync('mcp', ['tools', 'x'], {stdio: 'inherit'}).status)",
            ),
        ] {
            let done = cove().run(who, &["run", "-l", language, "-c", code]);
            assert_eq!(done.code, Some(3), "{who:?} {language} {done:?}");
            assert!(done.stderr.contains("no servers are configured"), "{who:?} {language} {done:?}");
        }
    }
}
