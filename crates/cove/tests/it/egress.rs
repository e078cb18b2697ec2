//! The network on the operator's terms, through the real program: code reaches exactly what the rules allow, and servers
//! that no rule names see no connection.

mod attacks;
mod scopes;

use std::fs;
use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use cove_testkit::TestUser;
use cove_testkit::mcp::{ClientEra, TestStdioClient};
use cove_testkit::program::FinishedProgram;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};

use crate::{cove, wait_until};

/// A server on this machine that answers every request with `answer`, and counts connections.
pub(crate) struct CountingServer {
    pub(crate) port: u16,
    connections: Arc<AtomicUsize>,
}

impl CountingServer {
    fn start(answer: &'static str, with_tls: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, connections) = (listener.local_addr().unwrap().port(), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&connections);
        let tls = with_tls.then(tls_config);
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                counted.fetch_add(1, Ordering::SeqCst);
                let tls = tls.clone();
                thread::spawn(move || match tls {
                    None => serve(&mut stream, answer),
                    Some(config) => {
                        let mut session = rustls::ServerConnection::new(config).unwrap();
                        serve(&mut rustls::Stream::new(&mut session, &mut stream), answer);
                        session.send_close_notify();
                        let _ = session.write_tls(&mut stream);
                    }
                });
            }
        });
        Self { port, connections }
    }

    pub(crate) fn count(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

fn serve(stream: &mut (impl Read + Write), answer: &str) {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return,
        }
    }
    let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
    let sent = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok()).unwrap_or(0);
    if io::copy(&mut stream.take(sent), &mut io::sink()).ok() != Some(sent) {
        return;
    }
    let length = answer.len();
    let _ = stream.write_all(
        format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{answer}").as_bytes(),
    );
    let _ = stream.flush();
}

fn tls_config() -> Arc<rustls::ServerConfig> {
    let file = |name: &str| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/tls").join(name);
    let chain = vec![CertificateDer::from_pem_file(file("ecdsa.pem")).unwrap()];
    let key = PrivateKeyDer::from_pem_file(file("ecdsa.key")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    Arc::new(config.with_no_client_auth().with_single_cert(chain, key).unwrap())
}

/// Three servers, and rules that name two of them.
pub(crate) struct RuledServers {
    pub(crate) plain: CountingServer,
    pub(crate) secure: CountingServer,
    pub(crate) forbidden: CountingServer,
    folder: tempfile::TempDir,
}

impl RuledServers {
    pub(crate) fn start() -> Self {
        let network = Self {
            plain: CountingServer::start("plain answer", false),
            secure: CountingServer::start("secure answer", true),
            forbidden: CountingServer::start("must not be seen", false),
            folder: tempfile::tempdir().unwrap(),
        };
        let rules = format!(
            "[egress]\nallow = [\n  {{ host = \"plain.test\", ports = [{}], http = true, at = \"127.0.0.1\" }},\n  \
             {{ host = \"secure.test\", ports = [{}], at = \"127.0.0.1\" }},\n  {{ host = \"*.nowhere.invalid\" }},\n  \
             {{ host = \"localhost\", ports = [{}] }},\n  \
             {{ host = \"bytes.test\", ports = [{}], tcp = true, at = \"127.0.0.1\" }},\n]\n",
            network.plain.port, network.secure.port, network.forbidden.port, network.plain.port
        );
        fs::write(network.config(), rules).unwrap();
        let readable = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
        fs::set_permissions(network.folder.path(), readable).unwrap();
        network
    }

    fn config(&self) -> PathBuf {
        self.folder.path().join("cove.toml")
    }

    /// Where this user's program records requests. An ordinary user cannot write to the folder itself.
    fn state(&self, who: TestUser) -> PathBuf {
        match who {
            TestUser::Root => self.folder.path().join("state"),
            TestUser::Ordinary => {
                std::env::temp_dir().join(format!("cove-egress-{}-{}", std::process::id(), self.plain.port))
            }
        }
    }

    pub(crate) fn command(&self, who: TestUser, args: &[&str]) -> Command {
        let mut command = cove().command(who);
        command.env("COVE_CONFIG", self.config()).env("COVE_STATE_DIR", self.state(who)).args(args);
        command
    }

    /// Puts the ports of the servers into code.
    fn fill(&self, code: &str) -> String {
        let numbers = [("PLAIN", &self.plain), ("SECURE", &self.secure), ("FORBIDDEN", &self.forbidden)];
        numbers.iter().fold(code.to_owned(), |code, (name, server)| code.replace(name, &server.port.to_string()))
    }

    /// Runs cells: those of the arguments, and then this one.
    pub(crate) fn run(&self, who: TestUser, args: &[&str], code: &str) -> FinishedProgram {
        let code = self.fill(code);
        let output = self.command(who, &["run", "--backend", "jail"]).args(args).args(["-c", &code]).output().unwrap();
        FinishedProgram::from_output(output)
    }

    pub(crate) fn audit(&self, who: TestUser) -> Vec<Value> {
        let output = self.command(who, &["audit", "--egress", "--json", "--lines", "1000"]).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

const FETCH_BOTH: &str = r#"
import ssl, urllib.request
trusting = ssl._create_unverified_context()
print(urllib.request.urlopen("http://plain.test:PLAIN/a?secret=1").read().decode())
print(urllib.request.urlopen("https://secure.test:SECURE/", context=trusting).read().decode())
"#;

#[test]
fn code_reaches_what_the_rules_allow() {
    for who in TestUser::all("code_reaches_what_the_rules_allow") {
        let network = RuledServers::start();
        assert_eq!(network.run(who, &[], FETCH_BOTH).expect_success(), "plain answer\nsecure answer\n", "{who:?}");
        let curl = "curl -sS http://plain.test:PLAIN/ && curl -sSk https://secure.test:SECURE/";
        assert_eq!(network.run(who, &["-l", "bash"], curl).expect_success(), "plain answersecure answer");
        let node = "const http = require('http'); const proxy = new URL(process.env.http_proxy);\n\
                    await new Promise(done => http.get({host: proxy.hostname, port: proxy.port, \
                    path: 'http://plain.test:PLAIN/', headers: {host: 'plain.test:PLAIN'}}, answer => { \
                    answer.on('data', bytes => console.log(String(bytes))); answer.on('end', done) }))";
        assert_eq!(network.run(who, &["-l", "node"], node).expect_success().lines().next(), Some("plain answer"));
        assert_eq!((network.plain.count(), network.secure.count(), network.forbidden.count()), (3, 2, 0));
        let lines = network.audit(who);
        let first = &lines[0];
        let facts = json!([first["host"], first["method"], first["path"], first["status"], first["decision"]]);
        assert_eq!(facts, json!(["plain.test", "GET", "/a", 200, "allowed"]), "{lines:#?}");
        assert!(!lines.iter().any(|line| line.to_string().contains("secret")), "no query is recorded");
        assert_eq!(lines.len(), 5, "one line for each request");
    }
}

/// Each request, and the reason for which it is refused.
const REFUSED: &[(&str, &str)] = &[
    ("CONNECT evil.test:443", "host-not-allowed"),
    ("CONNECT 127.0.0.1:FORBIDDEN", "host-not-allowed"),
    ("CONNECT 169.254.169.254:80", "host-not-allowed"),
    ("CONNECT [::ffff:127.0.0.1]:FORBIDDEN", "host-not-allowed"),
    ("CONNECT 2130706433:FORBIDDEN", "malformed-host"),
    ("CONNECT 0x7f.1:FORBIDDEN", "malformed-host"),
    ("CONNECT localhost:FORBIDDEN", "private-address"),
    ("CONNECT secure.test:22", "port-not-allowed"),
    ("CONNECT secure.test@evil.test:443", "malformed-host"),
    ("CONNECT plain.test:PLAIN", "protocol-not-allowed"),
    ("CONNECT sub.secure.test:SECURE", "host-not-allowed"),
    ("CONNECT secure.test.evil.test:SECURE", "host-not-allowed"),
    ("GET http://evil.test/", "host-not-allowed"),
    ("GET http://127.0.0.1:FORBIDDEN/", "host-not-allowed"),
    ("GET http://plain.test:FORBIDDEN/", "port-not-allowed"),
    ("GET http://secure.test:SECURE/", "protocol-not-allowed"),
    ("GET /", "malformed-request"),
    ("CONNECT a.nowhere.invalid:443", "unreachable"),
];

#[test]
fn everything_else_is_refused_and_reaches_no_server() {
    for who in TestUser::all("everything_else_is_refused_and_reaches_no_server") {
        let network = RuledServers::start();
        let requests: Vec<&str> = REFUSED.iter().map(|(request, _)| *request).collect();
        let code = format!(
            "import os, socket\nport = int(os.environ['https_proxy'].rsplit(':', 1)[1])\nfor request in {requests:?}:\n    \
             with socket.create_connection(('127.0.0.1', port)) as door:\n        host = request.split()[1]\n        \
             host = host.removeprefix('http://').split('/')[0] or 'x'\n        \
             door.sendall(f'{{request}} HTTP/1.1\\r\\nHost: {{host}}\\r\\n\\r\\n'.encode())\n        \
             answer = door.makefile('rb').read().decode()\n        \
             print(answer.split('X-Cove-Refused: ')[1].split('\\r\\n')[0])\n"
        );
        let finished = network.run(who, &[], &code);
        let reasons: Vec<&str> = finished.stdout.lines().collect();
        let expected: Vec<&str> = REFUSED.iter().map(|(_, reason)| *reason).collect();
        assert_eq!(reasons, expected, "{who:?} {finished:#?}");
        assert_eq!(finished.stderr.lines().filter(|line| line.starts_with("network: refused ")).count(), 5);
        assert!(finished.stderr.contains("the operator can add `--allow-net evil.test`"), "{finished:#?}");
        assert!(finished.stderr.contains("further requests were refused"), "{finished:#?}");
        assert_eq!((network.plain.count(), network.secure.count(), network.forbidden.count()), (0, 0, 0));
        assert_eq!(network.audit(who).len(), REFUSED.len());
    }
}

impl Drop for RuledServers {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(self.state(TestUser::Ordinary));
    }
}

/// What a hostile client does to the door. Each line of output is one attack.
const HOSTILE: &str = r#"
import os, socket, struct, threading
port = int(os.environ["https_proxy"].rsplit(":", 1)[1])
def connect():
    return socket.create_connection(("127.0.0.1", port), timeout=20)
def ask(text, door=None):
    with door or connect() as door:
        try:
            door.sendall(text)
            return door.makefile("rb").read().decode(errors="replace")
        except ConnectionError as error:
            return type(error).__name__
def reason(answer):
    return answer.split("X-Cove-Refused: ")[1].split("\r\n")[0] if "X-Cove-Refused" in answer else answer[:60]

# A tunnel for something other than its host.
print(ask(b"CONNECT secure.test:SECURE HTTP/1.1\r\n\r\nSSH-2.0-evil\r\n").split("\r\n")[0])
# A second request behind the first, and a body of two lengths.
plain = b"POST http://plain.test:PLAIN/ HTTP/1.1\r\nHost: plain.test:PLAIN\r\n"
print(reason(ask(plain + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")))
print(reason(ask(plain + b"Host: evil.test\r\n\r\n")))
print(ask(plain + b"\r\nGET http://127.0.0.1:FORBIDDEN/ HTTP/1.1\r\n\r\n").endswith("plain answer"))
# A head without end, and one of bytes.
print(reason(ask(b"CONNECT evil.test:443 HTTP/1.1\r\nX: " + b"a" * 70000)))
print(reason(ask(bytes(range(256)) + b"\r\n\r\n")))
# Clients that go away half-way, politely and not.
for _ in range(50):
    door = connect()
    door.sendall(b"CONNECT secure.test")
    door.close()
    door = connect()
    door.sendall(b"CONNECT secure.test:SECURE HTTP/1.1\r\n\r\n")
    door.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    door.close()
# A thousand connections, of which many wait and none is lost for the next client.
crowd = [socket.socket() for _ in range(300)]
for door in crowd:
    door.setblocking(False)
    door.connect_ex(("127.0.0.1", port))
for door in crowd:
    door.close()
refused = []
def many():
    for _ in range(100):
        refused.append(ask(b"CONNECT evil.test:443 HTTP/1.1\r\n\r\n"))
threads = [threading.Thread(target=many) for _ in range(7)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(len(refused), all("403 Refused by Cove" in answer or answer in ("", "ConnectionResetError") for answer in refused))
"#;

#[test]
fn hostile_clients_neither_get_through_nor_end_the_session() {
    let who = TestUser::all("hostile_clients_neither_get_through_nor_end_the_session")[0];
    let network = RuledServers::start();
    // The session opens again after the limit on new connections.
    let after = "import time; time.sleep(5)\nimport urllib.request\n\
                 print(urllib.request.urlopen('http://plain.test:PLAIN/').read().decode())";
    let (hostile, after) = (network.fill(HOSTILE), network.fill(after));
    let finished = network.run(who, &["--timeout", "100s", "-c", "x = 1", "-c", &hostile, "-c", &after], "print(x)");
    let lines: Vec<&str> = finished.stdout.lines().collect();
    let expected = [
        "ConnectionResetError",
        "malformed-request",
        "malformed-request",
        "True",
        "limit",
        "malformed-request",
        "700 True",
        "plain answer",
        "1",
    ];
    assert_eq!(lines, expected, "{finished:#?}");
    assert_eq!(network.forbidden.count(), 0);
    assert!(finished.stderr.contains("something other than TLS"), "{finished:#?}");
}

#[test]
fn without_rules_there_is_no_door() {
    for who in TestUser::all("without_rules_there_is_no_door") {
        let code = "import os, socket\nprint([name for name in os.environ if 'proxy' in name.lower()])\n\
                    print(socket.socket().connect_ex(('127.0.0.1', 3128)))";
        let expected = "[]\n111\n";
        assert_eq!(cove().run(who, &["run", "--backend", "jail", "-c", code]).expect_success(), expected);
        let network = RuledServers::start();
        assert_eq!(network.run(who, &["--no-net"], code).expect_success(), expected);
    }
}

#[test]
fn connections_end_with_their_cell() {
    let who = TestUser::all("connections_end_with_their_cell")[0];
    let network = RuledServers::start();
    let open = "import os, socket\ndoor = socket.create_connection(('127.0.0.1', 3128))\n\
                door.sendall(b'CONNECT secure.test:SECURE HTTP/1.1\\r\\n\\r\\n')\nprint(door.recv(15))";
    let open = network.fill(open);
    let read = "try:\n    print(door.recv(99)[-4:], door.recv(1))\nexcept ConnectionResetError:\n    print('reset')";
    let finished = network.run(who, &["-c", &open], read);
    assert_eq!(finished.expect_success(), "b'HTTP/1.1 200 Co'\nreset\n");
}

#[test]
fn a_session_uploads_no_more_than_it_may() {
    let code = "import http.client, ssl\n\
                def upload(kind, size):\n    \
                if kind == 'plain':\n        connection = http.client.HTTPConnection('127.0.0.1', 3128)\n    \
                elif kind == 'bytes':\n        connection = http.client.HTTPConnection('bytes.test', PLAIN)\n    \
                else:\n        context = ssl._create_unverified_context()\n        \
                connection = http.client.HTTPSConnection('secure.test', SECURE, context=context)\n    \
                try:\n        connection.request('POST', 'http://plain.test:PLAIN/' if kind == 'plain' else '/', bytes(size))\n        \
                return connection.getresponse().read().decode()\n    \
                except (OSError, http.client.HTTPException):\n        return 'broken off'\n";
    for who in TestUser::all("a_session_uploads_no_more_than_it_may") {
        let servers = RuledServers::start();
        let rules = fs::read_to_string(servers.config()).unwrap();
        fs::write(servers.config(), rules.replace("[egress]", "[egress]\nmax_upload = \"64k\"")).unwrap();
        for (kind, answer) in [("plain", "plain answer"), ("secure", "secure answer"), ("bytes", "plain answer")] {
            let code = format!("{code}print([upload('{kind}', size) for size in (30000, 40000, 10)])");
            // Each session begins with its whole limit.
            let finished = servers.run(who, &[], &code);
            assert_eq!(finished.stdout, format!("['{answer}', 'broken off', 'broken off']\n"), "{who:?} {finished:#?}");
            assert!(finished.stderr.contains("(limit: max_upload)"), "{who:?} {finished:#?}");
            let lines = servers.audit(who);
            // A tunnel may end after the next request has begun.
            let mut own = lines[lines.len() - 3..].to_vec();
            own.sort_by_key(|line| line["stream"].as_u64());
            let reasons: Vec<&str> = own.iter().map(|line| line["reason"].as_str().unwrap_or("ok")).collect();
            assert_eq!(reasons, ["ok", "limit", "limit"], "{kind} {own:#?}");
            let sent: u64 = own.iter().map(|line| line["bytes_up"].as_u64().unwrap()).sum();
            assert!((30_000..=64 << 10).contains(&sent), "{kind} {own:#?}");
        }
    }
}

#[test]
fn agents_see_refusals_in_the_result_of_the_cell() {
    let network = RuledServers::start();
    let who = TestUser::all("agents_see_refusals_in_the_result_of_the_cell")[0];
    let mut client = TestStdioClient::start(network.command(who, &["serve", "--backend", "jail"]), ClientEra::Modern);
    let code = "import urllib.request\ntry:\n    urllib.request.urlopen('https://evil.test/')\nexcept OSError as error:\n    print(error)";
    let result = client.call("execute_code", json!({"code": code})).ok();
    assert!(
        result.starts_with("<urlopen error Tunnel connection failed: 403 Refused by Cove: no egress rule"),
        "{result}"
    );
    assert!(
        result
            .contains("note: network: refused evil.test:443 (no egress rule allows this host; reachable: plain.test, "),
        "{result}"
    );
    let code = format!("print(urllib.request.urlopen('http://plain.test:{}/').read())", network.plain.port);
    let result = client.call("execute_code", json!({"code": code})).ok();
    assert_eq!(result, "b'plain answer'\n", "the note belongs to its cell");
    drop(client);
    wait_until("the audit has both lines", || network.audit(who).len() == 2);
    assert!(network.audit(who).iter().all(|line| line["session"].as_str().unwrap().starts_with("s_")));
}

#[test]
fn agents_read_at_the_start_what_they_can_reach() {
    let told = |rules: &[&str]| {
        let mut command = cove().command(TestUser::Root);
        command.args(["serve", "--backend", "jail"]).env("COVE_CONFIG", "/dev/null");
        command.args(rules.iter().flat_map(|rule| ["--allow-net", rule]));
        let client = TestStdioClient::start(command, ClientEra::Legacy);
        let told = client.handshake["instructions"].as_str().unwrap().to_owned();
        let network = told.split(" only what you need. ").nth(1).unwrap();
        network.strip_suffix(" Manual: mcp.help()").unwrap().to_owned()
    };
    assert_eq!(told(&[]), "No network.");
    assert_eq!(told(&["api.example.com", "pypi"]), "Network: api.example.com, preset `pypi`; nothing else.");
    let many: Vec<String> = (0..30).map(|number| format!("host-{number}.very-long-names.example.com")).collect();
    let many = told(&many.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(many, "Network: host-0.very-long-names.example.com, 29 more; nothing else.");
    let long = format!("{}.example.com", ["x".repeat(60), "y".repeat(60)].join("."));
    assert_eq!(told(&[&long]), "Network: 1 host; nothing else.");
}

#[test]
fn a_request_that_cannot_be_recorded_is_not_made() {
    let who = TestUser::all("a_request_that_cannot_be_recorded_is_not_made")[0];
    let network = RuledServers::start();
    let state = network.folder.path().join("file");
    fs::write(&state, "").unwrap();
    let finished = network.run(who, &["--state-dir", state.to_str().unwrap()], FETCH_BOTH);
    assert!(finished.stderr.contains("HTTP Error 503"), "{finished:#?}");
    assert_eq!(network.plain.count(), 0);
}

#[test]
fn net_check_and_config_show_say_what_the_rules_say() {
    let network = RuledServers::start();
    let run = |args: &[&str]| FinishedProgram::from_output(network.command(TestUser::Root, args).output().unwrap());
    let port = network.plain.port;
    let allowed = run(&["net", "check", &format!("http://plain.test:{port}/x")]);
    assert_eq!(
        allowed.expect_success(),
        format!("allowed: plain.test:{port} by the rule `plain.test:{port} (plain HTTP) at 127.0.0.1`\n")
    );
    let refused = run(&["net", "check", "evil.test"]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.stdout.starts_with(
        "refused: evil.test:443\ncaused by: no egress rule allows this host\nhint: reachable: plain.test, "
    ));
    assert!(refused.stdout.ends_with("the operator can add `--allow-net evil.test`\n"), "{refused:#?}");
    assert_eq!(run(&["net", "check", "evil.test", "--allow-net", "evil.test"]).code, Some(0));
    assert_eq!(run(&["net", "show", "npm"]).stdout, "preset npm: registry.npmjs.org inspected, GET HEAD, cache\n");
    assert!(run(&["config", "show", "--allow-net", "pypi"]).stdout.contains("preset pypi: files.pythonhosted.org"));
}

#[test]
fn rules_that_cannot_be_read_stop_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("cove.toml");
    let check = |text: &str, args: &[&str], expected: &[&str]| {
        fs::write(&config, text).unwrap();
        let mut command = cove().command(TestUser::Root);
        let finished = FinishedProgram::from_output(command.env("COVE_CONFIG", &config).args(args).output().unwrap());
        assert_eq!(finished.code, Some(2), "{finished:#?}");
        assert!(expected.iter().all(|part| finished.stderr.contains(part)), "{finished:#?}");
    };
    let serve = &["serve"][..];
    check(
        "[egress]\nallow = [{ hots = \"a.example\" }]\n",
        serve,
        &["cove.toml`, line 2", "`hots`", "did you mean `host`?"],
    );
    check("[egress]\nallow = [{ host = \"*.com\" }]\n", serve, &["`host = \"*.com\"`", "too wide"]);
    check("[egress]\npresets = [\"pipy\"]\n", serve, &["`pipy` is not a preset", "did you mean `pypi`?"]);
    check("[egres]\n", serve, &["did you mean `[egress]`?"]);
    check("", &["run", "--allow-net", "*", "-c", "1"], &["`--allow-net *`", "every host"]);
    check("", &["run", "--allow-net", "169.254.169.254", "-c", "1"], &["metadata"]);
    let host_network = ["run", "--allow-net", "npm", "--allow-compose", "host-network", "-c", "1"];
    check("", &host_network, &["allow-compose host-network", "--no-net"]);
    check("network = \"lab\"\n[egress]\npresets = [\"npm\"]\n", serve, &["network `lab`", "--no-net"]);
}
