//! Code in a real sandbox calls the host: small python speaks to the socket as libraries do, and the shell's `mcp` does.
//! The host's side answers from a script.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use cove::backend::Pending;
use cove::config::Config;
use cove::output::{Collected, Collector};
use cove::session::calls::{MAX_A_CELL, error};
use cove::session::{Calls, Cell, CellEnd, Options, Session, Stop, Survived};
use cove_protocol::{CellId, Language};
use cove_testkit::{Who, measure};
use serde_json::{Value, json};

use crate::cove;

/// What the host answers, and what became of it.
#[derive(Default)]
struct Script {
    begun: AtomicUsize,
    dropped: AtomicUsize,
    now: AtomicUsize,
    most: AtomicUsize,
}

/// Counts a call until its answer is there or is not wanted any more.
struct UnderWay<'a>(&'a Script, bool);

impl<'a> UnderWay<'a> {
    fn new(script: &'a Script) -> Self {
        script.begun.fetch_add(1, SeqCst);
        script.most.fetch_max(script.now.fetch_add(1, SeqCst) + 1, SeqCst);
        Self(script, false)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, SeqCst);
        self.0.dropped.fetch_add(usize::from(!self.1), SeqCst);
    }
}

impl Calls for Script {
    fn answer<'a>(&'a self, _cell: CellId, request: Vec<u8>) -> Pending<'a, Vec<u8>> {
        Box::pin(async move {
            let mut under_way = UnderWay::new(self);
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
                    return error("unknown_server", "there is no such thing", Some("ask for another"));
                }
            };
            under_way.1 = true;
            answer.to_string().into_bytes()
        })
    }
}

/// What libraries do, in few lines.
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

struct Bench {
    config: Config,
    session: Session,
    script: Arc<Script>,
}

impl Bench {
    async fn new() -> Self {
        Self::with(measure::config()).await
    }

    async fn with(config: Config) -> Self {
        let jail = measure::jail(cove().path());
        let session =
            Session::start(&jail, &config.policy, Options::default()).await.expect("a session starts");
        let bench = Self { config, session, script: Arc::default() };
        bench.print(LINK).await;
        bench
    }

    async fn run(&self, language: Language, code: &str, timeout: Duration) -> (CellEnd, Collected) {
        let cell = Cell { language, timeout, ..measure::cell(&self.config, code) };
        let mut collector = Collector::new(100_000, None);
        let calls = Arc::clone(&self.script) as Arc<dyn Calls>;
        let end =
            self.session.run_with(cell, |shown| collector.show(shown), std::future::pending(), calls).await;
        (end, collector.finish())
    }

    /// Runs python that must succeed in silence on standard error; what it printed.
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
        let waited = tokio::time::timeout(Duration::from_secs(20), waited).await;
        assert!(waited.is_ok() && self.dropped() == count, "{} of {count}", self.dropped());
    }
}

#[tokio::test]
async fn code_calls_and_is_answered() {
    let bench = Bench::new().await;
    let code = "l = Link()\nfor n in range(3): print(l.ask('call', n, arguments={'n': n})['ok']['value'], end=' ')\n\
                e = l.ask('what', 2**53); print(e['id'] == 2**53, e['error'])";
    assert_eq!(
        bench.print(code).await,
        "{'n': 0} {'n': 1} {'n': 2} True {'kind': 'unknown_server', 'message': 'there is no such thing', \
         'hint': 'ask for another'}\n"
    );
    // The same connection in the next cell, and one in another interpreter.
    assert_eq!(bench.print("print(l.ask('help')['ok'])").await, "the manual\n");
    let node = "const s = require('net').connect(process.env.COVE_MCP); const b = Buffer.from('{\"id\":9,\"ask\":\"help\"}');\n\
                const n = Buffer.alloc(4); n.writeUInt32BE(b.length); s.write(Buffer.concat([n, b]));\n\
                console.log((await new Promise(f => s.once('data', f))).subarray(4).toString()); void s.destroy()";
    assert_eq!(bench.print_in(Language::Node, node).await, "{\"id\":9,\"ok\":\"the manual\"}\n");
    bench.session.stop().await;
}

#[tokio::test]
async fn large_requests_and_replies_pass_and_too_large_ones_do_not() {
    let bench = Bench::new().await;
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
        bench.print(code).await,
        format!("1048576 {} 10000000 33000000 limit internal the manual\nthe manual\n", 8 * 1024 * 1024 - 60)
    );
    bench.session.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_at_once_are_answered_as_they_are_ready() {
    let bench = Bench::new().await;
    let code = "l = Link()\nfor n in range(100): l.send('slow', n, ms=(100 - n) * 5)\n\
                r = [l.hear() for _ in range(100)]\n\
                print(sorted(x['id'] for x in r) == list(range(100)), r[0]['id'] != 0, \
                all(x['ok'] == (100 - x['id']) * 5 for x in r))";
    assert_eq!(bench.print(code).await, "True True True\n");
    assert_eq!(bench.script.most.load(SeqCst), 64, "the rest waits in the sandbox");
    // From a hundred threads with connections of their own, which are more than are accepted at once.
    let code = "a = []\ndef f(n):\n    k = Link(); a.append(k.ask('slow', n, ms=20)['id'] == n); k.s.close()\n\
                t = [threading.Thread(target=f, args=(n,)) for n in range(100)]\n\
                [x.start() for x in t]; [x.join() for x in t]; print(a.count(True))";
    assert_eq!(bench.print(code).await, "100\n");
    assert!(bench.script.most.load(SeqCst) <= 64);
    bench.session.stop().await;
}

#[tokio::test]
async fn a_cell_that_ends_drops_its_calls() {
    let bench = Bench::new().await;
    // A thread waits for it still, and hears.
    let code = "l = Link(); heard = []\n\
                t = threading.Thread(target=lambda: heard.append(l.ask('hang')['error']['kind'])); t.start(); \
                print(Link().ask('help')['ok'])";
    assert_eq!(bench.print(code).await, "the manual\n");
    bench.wait_for_drops(1).await;
    assert_eq!(
        bench.print("t.join(); print(heard, l.ask('help')['ok'])").await,
        "['cancelled'] the manual\n"
    );
    // A process that calls between cells is told that none runs.
    let code = "p = subprocess.Popen(['sh', '-c', 'sleep 0.3; mcp help'], stderr=subprocess.PIPE)";
    assert_eq!(bench.print(code).await, "");
    tokio::time::sleep(Duration::from_millis(1000)).await;
    let told = bench.print("print(p.communicate()[1].decode(), p.returncode)").await;
    assert!(told.contains("no cell is running") && told.ends_with(" 3\n"), "{told}");
    bench.session.stop().await;
}

#[tokio::test]
async fn a_cell_that_is_stopped_drops_its_calls_and_keeps_its_variables() {
    let bench = Bench::new().await;
    let code = "l = Link(); x = 7\nl.ask('hang')";
    let (end, _) = bench.run(Language::Python, code, Duration::from_millis(700)).await;
    assert_eq!(end, CellEnd::Stopped { why: Stop::Deadline, survived: Survived::Everything });
    bench.wait_for_drops(1).await;
    let code = "import signal\nsignal.signal(signal.SIGINT, lambda *a: None)\nl = Link(); k = l.ask('hang')";
    let (end, _) = bench.run(Language::Python, code, Duration::from_millis(700)).await;
    assert_eq!(end, CellEnd::Stopped { why: Stop::Deadline, survived: Survived::Everything });
    assert_eq!(bench.print("print(x, k['error']['kind'])").await, "7 cancelled\n", "it was told at once");
    let (end, _) =
        bench.run(Language::Bash, "mcp call a.b --timeout 60 x=1; mcp hang", Duration::from_secs(20)).await;
    assert_eq!(end.exit_code(), 2);
    bench.session.stop().await;
}

#[tokio::test]
async fn a_connection_that_breaks_off_cancels_what_it_asked_for() {
    let bench = Bench::new().await;
    let code = "a, b, c = Link(), Link(), Link()\n\
                a.s.sendall(b'\\0\\0\\1\\0{\"id\":1,'); a.s.close()\n\
                b.s.sendall(b'\\0\\0'); b.s.shutdown(socket.SHUT_WR); print(b.s.recv(9), end=' ')\n\
                c.send('hang'); c.send('large', bytes=20_000_000); c.s.recv(9); c.s.close()\n\
                print(Link().ask('help')['ok'])";
    assert_eq!(bench.print(&format!("{code}\ntime.sleep(0.2)")).await, "b'' the manual\n");
    bench.wait_for_drops(1).await;
    // Killed in the middle of a call, again and again: no slot stays taken.
    let code =
        "for n in range(80):\n    l = Link(); l.send('hang'); l.s.close()\nprint(Link().ask('help')['ok'])";
    assert_eq!(bench.print(code).await, "the manual\n");
    bench.session.stop().await;
}

/// A small sandbox: what is asked for and not read, and what is sent without end, must not fill it or hold others up.
#[tokio::test]
async fn floods_and_unread_replies_harm_nobody() {
    let mut config = measure::config();
    config.policy.limits.memory = 160 << 20;
    let bench = Bench::with(config).await;
    let code = "l = Link()\nfor n in range(60): l.send('large', n, bytes=8_000_000)\n\
                m = [Link() for _ in range(20)]\nfor k in m:\n    for n in range(40): k.send('large', n, bytes=10_000)\n\
                print(Link().ask('help')['ok'])\n\
                r = [(len(x.get('ok', '')), x.get('error', {}).get('kind')) for x in (l.hear() for _ in range(60))]\n\
                print(sum(n > 0 for n, _ in r) >= 10, set(r) <= {(8000000, None), (0, 'limit')})";
    assert_eq!(bench.print(code).await, "the manual\nTrue True\n");
    let code = "stop = False\ndef flood():\n    k = Link(); k.s.settimeout(1)\n    try:\n        while not stop: k.send('length', text='y' * 1000)\n    \
                except OSError: pass\n\
                t = [threading.Thread(target=flood) for _ in range(8)]; [x.start() for x in t]\n\
                print('o' * 50000); print(Link().ask('help')['ok']); stop = True; [x.join() for x in t]; print('end')";
    assert_eq!(bench.print(code).await, format!("{}\nthe manual\nend\n", "o".repeat(50000)));
    // Garbage, and whatever is left of it all, is closed and the next cell runs.
    let code = "g = Link(); g.s.sendall(b'GET / HTTP/1.1\\r\\n\\r\\n')\ntry:\n    print(g.hear()['error']['kind']); g.hear()\n\
                except (EOFError, ConnectionResetError): print('closed')";
    assert_eq!(bench.print(code).await, "limit\nclosed\n");
    bench.session.stop().await;
}

#[tokio::test]
async fn a_cell_may_make_so_many_calls_and_no_more() {
    let bench = Bench::new().await;
    let code = format!(
        "l = Link(); a = [l.ask('help') for _ in range({MAX_A_CELL})]\nprint(all('ok' in x for x in a), l.ask('help')['error'])"
    );
    let told = bench.print(&code).await;
    assert!(told.starts_with("True {'kind': 'limit', 'message': 'this cell has made 1000 calls"), "{told}");
    assert_eq!(bench.print("print(l.ask('help')['ok'])").await, "the manual\n");
    bench.session.stop().await;
}

#[tokio::test]
async fn the_socket_comes_back_when_code_removes_it() {
    let bench = Bench::new().await;
    for damage in [
        "rm -rf /tmp/.cove",
        "rm -rf /tmp/.cove; touch /tmp/.cove",
        "rm /tmp/.cove/mcp; mkfifo /tmp/.cove/mcp",
    ] {
        assert_eq!(bench.print_in(Language::Bash, damage).await, "");
        assert_eq!(bench.print_in(Language::Bash, "mcp help").await, "the manual\n", "{damage}");
    }
    bench.session.stop().await;
}

#[tokio::test]
async fn the_command_mcp_in_every_language() {
    let bench = Bench::new().await;
    let code = r#"mcp call a.b n=1 t='two words' 'o={"k":[]}'; mcp call a b '{"x": "y"}' --json
mcp help; mcp help --json; mcp find create an issue --limit 2; printf '[1,2]' > f; mcp call a.b v:=@f w=@f
head -c 3000000 /dev/zero | tr '\0' z | mcp call a.b t=@- | wc -c"#;
    let expected = "{\"n\":1,\"t\":\"two words\",\"o\":{\"k\":[]}}\n{\"x\":\"y\"}\nthe manual\n\"the manual\"\n\
                    {\"tools\":[],\"total\":0,\"hint\":\"create an issue\"}\n{\"v\":[1,2],\"w\":\"[1,2]\"}\n3000009\n";
    assert_eq!(bench.print_in(Language::Bash, code).await, expected);
    assert_eq!(bench.print_in(Language::Sh, "x=$(mcp call a.b n=1); echo \"$x\"").await, "{\"n\":1}\n");
    let node = "console.log(require('child_process').execFileSync('mcp', ['help']).toString().trim())";
    assert_eq!(bench.print_in(Language::Node, node).await, "the manual\n");
    let python =
        "print(subprocess.run(['mcp', 'call', 'a.b', 'n=1'], capture_output=True, text=True).stdout)";
    assert_eq!(bench.print(python).await, "{\"n\":1}\n\n");
    let (end, found) = bench
        .run(Language::Bash, "mcp tools x; echo $?; mcp nonsense; echo $?", Duration::from_secs(60))
        .await;
    assert!(end.is_success());
    assert_eq!(found.stdout.text, "3\n2\n");
    assert_eq!(
        found.stderr.text,
        "mcp: there is no such thing\nhint: ask for another\nmcp: there is no command `nonsense`\n\
         hint: `mcp --help` says how it is used\n"
    );
    // One after another and side by side.
    let many = "for n in $(seq 40); do mcp call a.b n=$n & done | sort | uniq | wc -l";
    assert_eq!(bench.print_in(Language::Bash, many).await, "40\n");
    bench.session.stop().await;
}

/// As root and as an ordinary user, in the sandbox that people get: without servers that is told in every language.
#[test]
fn without_servers_there_is_nothing_to_call() {
    for who in Who::all("without_servers_there_is_nothing_to_call") {
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
