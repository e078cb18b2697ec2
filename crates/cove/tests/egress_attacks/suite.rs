//! Attacks on network access, as data: the same for the embedded sandbox and for containers. Each is a cell of one
//! session. After all of them, servers that no rule names have seen no connection, and the audit file has a line for each
//! request.

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::Deserialize;
use serde_json::Value;

const PRELUDE: &str = include_str!("prelude.py");
const ATTACKS: &str = include_str!("attacks.toml");

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
    /// The host and the reason in each audit line, in the order of connections; `ok` if nothing was refused. Not there if
    /// chance decides.
    audit: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct AttackList {
    attack: Vec<NetworkAttack>,
}

/// What the attacks may reach, and what they must not.
struct AttackedServers {
    /// Answers plain requests with what it got.
    echo: WatchedServer,
    secure: WatchedServer,
    /// No rule names its port.
    forbidden: WatchedServer,
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

/// Answers a request with its own head and body, as far as they arrive in one read after the head.
fn answer(stream: &mut (impl Read + Write), got: &Mutex<Vec<String>>) {
    let (mut bytes, mut piece) = (Vec::new(), [0; 65536]);
    while !bytes.windows(4).any(|window| window == b"\r\n\r\n") {
        match stream.read(&mut piece) {
            Ok(count @ 1..) => bytes.extend(&piece[..count]),
            _ => break,
        }
    }
    let text = String::from_utf8_lossy(&bytes).into_owned();
    got.lock().unwrap().push(text.clone());
    if !text.is_empty() {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", text.len());
        let _ = stream.write_all(&[head.as_bytes(), text.as_bytes()].concat());
        let _ = stream.flush();
    }
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
        let servers = Self {
            echo: WatchedServer::start(None),
            secure: WatchedServer::start(Some(tls_config())),
            forbidden: WatchedServer::start(None),
            folder: tempfile::tempdir().unwrap(),
        };
        let rules = servers.fill(
            "[egress]\nallow = [\n  { host = \"echo.test\", ports = [ECHO_PORT], http = true, at = \"127.0.0.1\" },\n  \
             { host = \"secure.test\", ports = [SECURE_PORT], at = \"127.0.0.1\" },\n  \
             { host = \"bytes.test\", ports = [ECHO_PORT], tcp = true, at = \"127.0.0.1\" },\n  \
             { host = \"*.nowhere.invalid\" },\n  { host = \"*.wild.test\", ports = [SECURE_PORT], at = \"127.0.0.1\" },\n  \
             { host = \"localhost\", ports = [FORBIDDEN_PORT] },\n]\n\
             deny = [{ host = \"no.wild.test\" }]\n",
        );
        fs::write(servers.config(), rules).unwrap();
        fs::set_permissions(servers.folder.path(), Permissions::from_mode(0o755)).unwrap();
        servers
    }

    fn config(&self) -> PathBuf {
        self.folder.path().join("cove.toml")
    }

    /// Puts the ports into a text.
    fn fill(&self, text: &str) -> String {
        let servers = [("ECHO_PORT", &self.echo), ("SECURE_PORT", &self.secure), ("FORBIDDEN_PORT", &self.forbidden)];
        servers.iter().fold(text.to_owned(), |text, (name, server)| text.replace(name, &server.port.to_string()))
    }
}

/// Runs all attacks in a session that `command` makes: `cove run` with the flags of an environment. Panics with every
/// attack that had another result than its own.
pub(crate) fn check_attacks(environment: &str, mut command: Command) {
    let servers = AttackedServers::start();
    let attacks =
        toml::from_str::<AttackList>(ATTACKS).unwrap_or_else(|problem| panic!("attacks.toml: {problem}")).attack;
    // The user of the command makes it.
    let state = std::env::temp_dir().join(format!("cove-attacks-{}-{}", std::process::id(), servers.echo.port));
    command.env("COVE_CONFIG", servers.config()).env("COVE_STATE_DIR", &state);
    command.args(["--json", "--timeout", "3m", "--max-timeout", "3m", "-c", PRELUDE]);
    for attack in &attacks {
        command.args(["-c", &servers.fill(&attack.code)]);
    }
    let output = command.output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let cells: Vec<Value> = stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let lines = fs::read_to_string(state.join("audit.jsonl")).unwrap_or_default();
    let _ = fs::remove_dir_all(&state);
    let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let lines: Vec<Value> = lines.filter(|line| line["decision"] != "begun").collect();
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
        let expected_audit: Option<Vec<String>> =
            attack.audit.as_ref().map(|audit| audit.iter().map(|line| servers.fill(line)).collect());
        let printed = cell["stdout"].as_str().unwrap_or_default().trim().replace('\r', "");
        let is_right = printed == servers.fill(attack.prints.trim())
            && notes.len() == attack.notes
            && expected_audit.is_none_or(|expected| expected == audit);
        if !is_right {
            wrong += &format!("{}: {}\n{cell:#}\nnotes: {notes:#?}\naudit: {audit:?}\n\n", attack.id, attack.title);
        }
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(wrong.is_empty() && output.status.success(), "in {environment}:\n{wrong}{stderr}");
    assert_eq!(
        servers.forbidden.connections.load(Ordering::SeqCst),
        0,
        "in {environment}: a server that no rule names"
    );
    let got = servers.secure.got.lock().unwrap();
    assert!(!got.iter().any(|head| head.contains("evil")), "in {environment}: {got:#?}");
}
