//! Attacks on network access, as data: the same for the embedded sandbox and for containers. Each is a cell of one
//! session. After all of them, servers that no rule names have seen no connection, the credential has gone to its own host
//! alone, no other name was looked up than those that may be, and the audit file has a line for each request.

#[path = "scripted_dns.rs"]
mod scripted_dns;

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cove_testkit::mcp::{ClientEra, TestStdioClient};
use cove_testkit::skip::skip;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use self::scripted_dns::{ScriptedDns, ScriptedName};
use crate::inspected_api::{TOKEN, TestApi, TestAuthority};

const PRELUDE: &str = include_str!("prelude.py");
const RULES: &str = include_str!("rules.toml");
const ATTACKS: &str = include_str!("attacks.toml");
/// How much memory the host may need for all attempts to use it up, in KiB.
const MAX_GROWTH: u64 = 32 << 10;
/// How many descriptors: a server for each stream that a session may have, and some for the sandbox itself.
const MAX_DESCRIPTORS: usize = 128 + 32;
/// How many threads: lookups of one session, digests, and some of the runtime.
const MAX_THREADS: usize = 32;

/// For how long a server keeps a body waiting that it does not read.
const UNREAD: Duration = Duration::from_secs(30);

/// One hostile program, and everything that may come of it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NetworkAttack {
    id: String,
    title: String,
    code: String,
    /// What the code prints, without the line break at its end.
    prints: String,
    /// How many notes the cell's result has.
    #[serde(default)]
    notes: usize,
    /// The host and the reason in each audit line, in the order of connections; `ok` if nothing was refused.
    audit: Vec<String>,
    /// The requests that the inspected API gets.
    #[serde(default)]
    served: Vec<String>,
    /// True if names must lead where the test says.
    #[serde(default)]
    resolver: bool,
}

/// One attempt to use up what the host has, and a part of its result.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExhaustionAttempt {
    id: String,
    title: String,
    code: String,
    result: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AttackList {
    name: Vec<ScriptedName>,
    attack: Vec<NetworkAttack>,
    exhaustion: Vec<ExhaustionAttempt>,
}

impl AttackList {
    fn read() -> Self {
        toml::from_str(ATTACKS).unwrap_or_else(|problem| panic!("attacks.toml: {problem}"))
    }
}

/// What the attacks may reach, and what they must not.
struct AttackedServers {
    /// Answers plain requests with what it got.
    echo: WatchedServer,
    secure: WatchedServer,
    /// No rule names its port.
    forbidden: WatchedServer,
    /// For inspected rules.
    api: TestApi,
    folder: tempfile::TempDir,
}

struct WatchedServer {
    port: u16,
    connections: Arc<AtomicUsize>,
    /// The first bytes of each connection.
    got: Arc<Mutex<Vec<String>>>,
}

impl WatchedServer {
    fn start(tls: Option<Arc<rustls::ServerConfig>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, connections) = (listener.local_addr().unwrap().port(), Arc::new(AtomicUsize::new(0)));
        let got = Arc::new(Mutex::new(Vec::new()));
        let (counted, kept) = (Arc::clone(&connections), Arc::clone(&got));
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                counted.fetch_add(1, Ordering::SeqCst);
                let (tls, kept) = (tls.clone(), Arc::clone(&kept));
                thread::spawn(move || match tls {
                    None => answer(&mut stream, &kept),
                    Some(config) => {
                        let mut session = rustls::ServerConnection::new(config).unwrap();
                        answer(&mut rustls::Stream::new(&mut session, &mut stream), &kept);
                        session.send_close_notify();
                        let _ = session.write_tls(&mut stream);
                    }
                });
            }
        });
        Self { port, connections, got }
    }
}

/// Answers a request with its own head and body.
fn answer(stream: &mut (impl Read + Write), got: &Mutex<Vec<String>>) {
    let (mut bytes, mut piece) = (Vec::new(), [0; 65536]);
    while !is_whole(&bytes) {
        if bytes.starts_with(b"POST /unread ") {
            return thread::sleep(UNREAD);
        }
        match stream.read(&mut piece) {
            Ok(count @ 1..) => bytes.extend(&piece[..count]),
            _ => break,
        }
    }
    let text = String::from_utf8_lossy(&bytes).into_owned();
    got.lock().unwrap().push(text.clone());
    if text.starts_with("GET /silent ") {
        // Until its client has gone.
        while let Ok(1..) = stream.read(&mut piece) {}
        return;
    }
    if text.starts_with("GET /endless ") {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
        while stream.write_all(&piece).is_ok() {}
    }
    if !text.is_empty() {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", text.len());
        let _ = stream.write_all(&[head.as_bytes(), text.as_bytes()].concat());
        let _ = stream.flush();
    }
}

/// True if a request has its head, and the body whose length that names.
fn is_whole(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
    body.len() >= length.map_or(0, |length| length.parse().unwrap_or(0))
}

fn tls_config() -> Arc<rustls::ServerConfig> {
    let file = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/tls").join(name);
    let chain = vec![CertificateDer::from_pem_file(file("ecdsa.pem")).unwrap()];
    let key = PrivateKeyDer::from_pem_file(file("ecdsa.key")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    Arc::new(config.with_no_client_auth().with_single_cert(chain, key).unwrap())
}

impl AttackedServers {
    fn start() -> Self {
        let authority = TestAuthority::new("trusted");
        let servers = Self {
            echo: WatchedServer::start(None),
            secure: WatchedServer::start(Some(tls_config())),
            forbidden: WatchedServer::start(None),
            api: TestApi::start(authority.server_config(&["api.test", "other.test"])),
            folder: tempfile::tempdir().unwrap(),
        };
        fs::write(servers.file("cove.toml"), servers.fill(RULES)).unwrap();
        fs::write(servers.file("authority.pem"), authority.certificate).unwrap();
        fs::set_permissions(servers.folder.path(), Permissions::from_mode(0o755)).unwrap();
        servers
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Where the program records requests. Its user makes the folder.
    fn state(&self) -> PathBuf {
        std::env::temp_dir().join(format!("cove-attacks-{}-{}", std::process::id(), self.echo.port))
    }

    /// Puts the ports, and what code may know of the credential, into a text.
    fn fill(&self, text: &str) -> String {
        let numbers = [
            ("ECHO_PORT", self.echo.port.to_string()),
            ("SECURE_PORT", self.secure.port.to_string()),
            ("FORBIDDEN_PORT", self.forbidden.port.to_string()),
            ("API_PORT", self.api.port.to_string()),
            ("TOKEN_LENGTH", TOKEN.len().to_string()),
            ("TOKEN_DIGEST", hex::encode(Sha256::digest(TOKEN))),
        ];
        numbers.iter().fold(text.to_owned(), |text, (name, number)| text.replace(name, number))
    }

    /// Gives a command the rules and the credential.
    fn add_rules(&self, command: &mut Command) {
        command.env("COVE_CONFIG", self.file("cove.toml")).env("COVE_STATE_DIR", self.state());
        command.env("SSL_CERT_FILE", self.file("authority.pem")).env("FORGE_TOKEN", TOKEN);
    }

    /// Returns the lines of the audit file.
    fn audit(&self) -> Vec<Value> {
        let lines = fs::read_to_string(self.state().join("audit.jsonl")).unwrap_or_default();
        let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.filter(|line| line["decision"] != "begun").collect()
    }

    /// Returns what the servers got that they must not get.
    fn trespasses(&self) -> Vec<String> {
        let mut found = Vec::new();
        let forbidden = self.forbidden.connections.load(Ordering::SeqCst);
        found.extend((forbidden > 0).then(|| format!("{forbidden} connections to a server that no rule names")));
        let misplaced = |head: &&String| head.contains("evil") || head.contains(TOKEN);
        for server in [&self.echo, &self.secure] {
            found.extend(server.got.lock().unwrap().iter().filter(misplaced).cloned());
        }
        // The credential of the rule, in its place and once; at the other host nowhere.
        let slot = format!("authorization: bearer {}\r\n", TOKEN.to_ascii_lowercase());
        let is_proper = |head: &String| {
            let head = head.to_ascii_lowercase();
            let is_own = head.contains("\r\nhost: api.test");
            let count = head.matches(&TOKEN.to_ascii_lowercase()).count();
            !head.contains("own-token")
                && !head.contains(": delete")
                && match is_own {
                    true => count == 1 && head.contains(&slot) && head.contains("accept-encoding: identity\r\n"),
                    false => count == 0 && !head.contains("\r\nauthorization:"),
                }
        };
        found.extend(self.api.requests().into_iter().filter(|head| !is_proper(head)));
        found
    }

    /// Returns the requests that the inspected API got, without their fields.
    fn served(&self) -> Vec<String> {
        let line = |head: String| {
            let host = head
                .to_ascii_lowercase()
                .split("host: ")
                .nth(1)
                .and_then(|rest| rest.split(':').next())
                .map(str::to_owned);
            let mut words = head.split(' ');
            format!("{} {} {}", words.next().unwrap(), host.unwrap_or_default(), words.next().unwrap())
        };
        self.api.requests().into_iter().map(line).collect()
    }
}

impl Drop for AttackedServers {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(self.state());
    }
}

/// Runs all attacks in a session that `command` makes: `cove run` with the flags of an environment. Panics with every
/// attack that had another result than its own.
pub(crate) fn check_attacks(test: &str, environment: &str, mut command: Command) {
    let servers = AttackedServers::start();
    let AttackList { name: names, attack: mut attacks, .. } = AttackList::read();
    let expected_lookups: Vec<(String, Option<usize>)> =
        names.iter().map(|name| (name.host.clone(), name.lookups)).collect();
    let dns = rustix::process::geteuid().is_root().then(|| ScriptedDns::start(names));
    if dns.is_none() {
        attacks.retain(|attack| !attack.resolver);
        skip(test, "not on this machine: only root can give the program a resolver of its own");
    }
    servers.add_rules(&mut command);
    command.args(["--json", "--timeout", "3m", "--max-timeout", "3m", "-c", &servers.fill(PRELUDE)]);
    for attack in &attacks {
        command.args(["-c", &servers.fill(&attack.code)]);
    }
    let mut command = match &dns {
        Some(dns) => dns.as_resolver_of(&command, servers.folder.path()),
        None => command,
    };
    let output = command.output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let cells: Vec<Value> = stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let lines = servers.audit();
    let mut wrong = String::new();
    for (number, attack) in attacks.iter().enumerate() {
        // The prelude is the first cell.
        let cell = cells.get(number + 1).unwrap_or(&Value::Null);
        let notes: Vec<&str> = cell["network"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let mut of_cell: Vec<&Value> = lines.iter().filter(|line| line["cell"] == number + 2).collect();
        of_cell.sort_by_key(|line| line["stream"].as_u64());
        let word = |line: &Value, key: &str, other: &str| line[key].as_str().unwrap_or(other).to_owned();
        let audit: Vec<String> =
            of_cell.iter().map(|line| format!("{} {}", word(line, "host", "?"), word(line, "reason", "ok"))).collect();
        let expected_audit: Vec<String> = attack.audit.iter().map(|line| servers.fill(line)).collect();
        let printed = cell["stdout"].as_str().unwrap_or_default().trim().replace('\r', "");
        let is_right =
            printed == servers.fill(attack.prints.trim()) && notes.len() == attack.notes && audit == expected_audit;
        if !is_right {
            wrong += &format!("{}: {}\n{cell:#}\nnotes: {notes:#?}\naudit: {audit:?}\n\n", attack.id, attack.title);
        }
    }
    let expected_served: Vec<String> =
        attacks.iter().flat_map(|attack| attack.served.iter().map(|request| servers.fill(request))).collect();
    let served = servers.served();
    if served != expected_served {
        wrong += &format!("the inspected API served {served:#?}\n");
    }
    wrong.extend(servers.trespasses().iter().map(|trespass| format!("a server got {trespass}\n")));
    wrong.extend(dns.iter().flat_map(|dns| wrong_lookups(dns, &expected_lookups)));
    let shown = format!("{stdout}{stderr}{lines:?}");
    if shown.contains(&TOKEN[4..]) {
        wrong += &format!("the credential is shown: {shown}\n");
    }
    assert!(wrong.is_empty() && output.status.success(), "in {environment}:\n{wrong}{stderr}");
}

/// Returns a line for each name that was looked up more or less often than it should be.
fn wrong_lookups(dns: &ScriptedDns, expected: &[(String, Option<usize>)]) -> Vec<String> {
    let counts = expected.iter().filter_map(|(name, expected)| Some((name, (*expected)?, dns.count(name))));
    let miscounted = counts.filter(|(_, expected, count)| expected != count);
    let miscounted = miscounted.map(|(name, expected, count)| format!("{name} {count} times, not {expected}"));
    let is_known = |name: &String| expected.iter().any(|(known, _)| known == name);
    let unknown = dns.lookups().into_iter().filter(|name| !is_known(name));
    miscounted.chain(unknown).map(|problem| format!("looked up: {problem}\n")).collect()
}

/// Runs all attempts to use up what the host has, each in a session of its own of a server that `command` starts:
/// `cove serve` with the flags of an environment. Meanwhile another session goes on as before.
pub(crate) fn check_exhaustion(environment: &str, mut command: Command) {
    let servers = AttackedServers::start();
    servers.add_rules(&mut command);
    command.args(["--timeout", "3m", "--max-timeout", "3m"]);
    let mut client = TestStdioClient::start(command, ClientEra::Modern);
    let prelude = servers.fill(PRELUDE);
    let calm = servers.fill("print(plain('http://echo.test:ECHO_PORT/calm').split()[1])");
    client.call("execute_code", json!({"code": prelude, "session": "calm"})).ok();
    let pid = client.pid();
    // Starting sessions takes more than they need later. This sets the peak to what the process has now.
    fs::write(format!("/proc/{pid}/clear_refs"), "5").unwrap();
    let before = peak_memory(pid);
    let (descriptors, threads) = (WatchedCount::start(pid, "fd"), WatchedCount::start(pid, "task"));
    for attempt in AttackList::read().exhaustion {
        let told = format!("in {environment}: {}: {}", attempt.id, attempt.title);
        let code = format!("{prelude}\n{}", servers.fill(&attempt.code));
        let under_way = client.begin_call("execute_code", json!({"code": code, "session": attempt.id}));
        for _ in 0..5 {
            let answer = client.call("execute_code", json!({"code": calm, "session": "calm"}));
            assert_eq!(answer.ok(), "/calm\n", "{told}");
        }
        let result = client.call_answer(under_way).ok();
        assert!(result.contains(&attempt.result), "{told}: {result}");
        let answer = client.call("execute_code", json!({"code": calm, "session": "calm"}));
        assert_eq!(answer.ok(), "/calm\n", "{told}");
        let grown = (descriptors.take_growth(), threads.take_growth());
        assert!(grown.0 < MAX_DESCRIPTORS && grown.1 < MAX_THREADS, "{told}: {grown:?} descriptors and threads");
    }
    let grown = peak_memory(pid) - before;
    assert!(grown < MAX_GROWTH, "in {environment}: the host grew by {grown} KiB");
    drop(client);
    assert_eq!(servers.trespasses(), Vec::<String>::new(), "in {environment}");
}

/// The most descriptors or threads that a process has had.
struct WatchedCount {
    first: usize,
    most: Arc<AtomicUsize>,
}

impl WatchedCount {
    /// Counts the entries of a folder of `/proc` until the process ends.
    fn start(pid: u32, folder: &str) -> Self {
        let folder = format!("/proc/{pid}/{folder}");
        let count = move || fs::read_dir(&folder).ok().map(Iterator::count);
        let (first, most) = (count().unwrap(), Arc::new(AtomicUsize::new(0)));
        let watched = Arc::clone(&most);
        thread::spawn(move || {
            while let Some(count) = count() {
                watched.fetch_max(count, Ordering::SeqCst);
                thread::sleep(Duration::from_millis(20));
            }
        });
        Self { first, most }
    }

    /// Returns how many more there have been since the last call than at the start.
    fn take_growth(&self) -> usize {
        self.most.swap(0, Ordering::SeqCst).saturating_sub(self.first)
    }
}

/// Runs the attacks on the credential in a session of a server that `command` starts, `cove serve` with the flags of an
/// environment, and looks for the credential in all that the server logs.
pub(crate) fn check_log(environment: &str, mut command: Command) {
    let servers = AttackedServers::start();
    servers.add_rules(&mut command);
    command.args(["--timeout", "3m", "--max-timeout", "3m", "--log-level", "debug"]);
    let mut client = TestStdioClient::start(command, ClientEra::Modern);
    client.call("execute_code", json!({"code": servers.fill(PRELUDE), "session": "attacked"})).ok();
    // The search of memory takes long, and sends nothing further.
    let sends = |attack: &&NetworkAttack| !attack.served.is_empty() && attack.id != "E11";
    for attack in AttackList::read().attack.iter().filter(sends) {
        let code = servers.fill(&attack.code);
        let answer = client.call("execute_code", json!({"code": code, "session": "attacked"}));
        let first = servers.fill(attack.prints.trim().lines().next().unwrap());
        assert!(answer.ok().contains(&first), "in {environment}: {}: {answer:?}", attack.id);
    }
    assert!(servers.served().len() > 10);
    client.close_input();
    client.wait();
    let log = client.errors();
    assert!(log.contains("DEBUG") || log.contains("INFO"), "in {environment}: it logs: {log}");
    let encoded = STANDARD.encode(TOKEN);
    assert!(![&TOKEN[4..], &encoded[8..40], &hex::encode(TOKEN)].iter().any(|form| log.contains(form)), "{log}");
    assert_eq!(servers.trespasses(), Vec::<String>::new(), "in {environment}");
}

/// Returns the most memory that a process has had, in KiB.
fn peak_memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}
