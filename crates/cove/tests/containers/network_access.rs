//! Containers without a network reach what the rules allow, through the same doors as the embedded sandbox.

#[path = "../egress_attacks/suite.rs"]
mod suite;

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::Mutex;

use cove_core::output::OutputCollector;
use cove_core::policy::{ImageSource, Policy};
use cove_core::session::{Cell, CellEnd, NoCalls};
use cove_egress::{
    CellNetwork, EgressAuditLine, EgressGateway, EgressRecorder, EgressRule, EgressRules, HostServices, NetworkCaller,
    RuleProtocol, SystemResolver,
};
use cove_protocol::Language;
use cove_testkit::measure;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use cove_testkit::TestUser;
use cove_testkit::containers::{TestEngine, recipe};

use crate::compose_sessions::in_pair;
use crate::container_ends::{LONG, backend, open, policy};
use crate::{available_engines, cove, for_each_engine};

#[derive(Default)]
struct KeptLines(Mutex<Vec<String>>);

impl EgressRecorder for KeptLines {
    fn prepare(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, line: &EgressAuditLine) {
        self.0.lock().unwrap().push(format!("{} {}", line.host, line.decision));
    }
}

const CODE: &str = r#"
import socket, urllib.request
print(urllib.request.urlopen("http://plain.test:PORT/").read().decode())
try:
    urllib.request.urlopen("http://evil.test:PORT/")
except OSError as error:
    print(error)
for address in [("192.0.2.1", 80), ("172.17.0.1", PORT)]:
    try:
        socket.create_connection(address, timeout=2)
        print("reached", address)
    except OSError:
        pass
"#;

/// For programs that know no proxy.
const CODE_BY_NAME: &str = r#"
import http.client, os, socket
connection = http.client.HTTPConnection("plain.test", PORT)
connection.request("GET", "/")
print(connection.getresponse().read().decode())
try:
    socket.getaddrinfo("evil.test", 443)
except OSError as error:
    print(type(error).__name__, error.errno)
print(socket.getaddrinfo("plain.test", 443)[0][4][0], "NODE_USE_ENV_PROXY" in os.environ)
"#;

/// What came of code with a rule for `plain.test` on this machine.
struct NetworkedCell {
    output: String,
    lines: Vec<String>,
    notes: Vec<String>,
    notice: Option<&'static str>,
}

/// Runs code in a container of the image for tests. `PORT` in it becomes that of a server.
async fn run_with_rule(engine: TestEngine, address: &str, code: &str) -> NetworkedCell {
    run_with_policy(engine, address, policy(), code).await
}

/// The same, in a sandbox that the policy describes.
async fn run_with_policy(engine: TestEngine, address: &str, policy: Policy, code: &str) -> NetworkedCell {
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nplain answer").await;
        }
    });
    let rule = EgressRule::parse(&format!("plain.test:{port}")).unwrap();
    let rule = EgressRule { protocol: RuleProtocol::Http, pinned: Some(IpAddr::from([127, 0, 0, 1])), ..rule };
    let rules = EgressRules { allow: vec![rule], ..EgressRules::default() };
    let door_names = rules.door_names().unwrap();
    let lines = Arc::new(KeptLines::default());
    let gateway = EgressGateway::new(rules, HostServices::new(Arc::clone(&lines) as _, Box::new(SystemResolver)));
    let caller = NetworkCaller { principal: "tests".into(), session: "s".into(), image: None };
    let network = CellNetwork::new(gateway, caller, Arc::new(NoCalls));

    let backend = backend(engine, address);
    let policy = Policy { proxy_door: true, door_names, ..policy };
    let session = open(&backend, &policy, "network").await.unwrap();
    let mut collector = OutputCollector::new(20_000_usize, None);
    let code = code.replace("PORT", &port.to_string());
    let cell = Cell { language: Language::Python, timeout: LONG, ..measure::cell(&measure::config(), &code) };
    let calls = Arc::clone(&network) as _;
    let end = session.run_with_calls(cell, |shown| collector.push(shown), std::future::pending(), calls).await;
    let notice = session.network_notice();
    session.stop().await;
    let collected = collector.finish();
    assert_eq!(end, CellEnd::Completed { forgotten: false }, "{engine:?}: {}", collected.stderr.text);
    let lines = lines.0.lock().unwrap().clone();
    NetworkedCell { output: collected.stdout.text, lines, notes: network.take_notes(), notice }
}

#[test]
fn containers_reach_what_the_rules_allow_and_nothing_else() {
    for_each_engine("containers_reach_what_the_rules_allow_and_nothing_else", async |engine, address, _| {
        let cell = run_with_rule(engine, address, CODE).await;
        let text = cell.output;
        assert!(text.starts_with("plain answer\nHTTP Error 403: Refused by Cove"), "{engine:?}: {text}");
        assert!(!text.contains("reached"), "{engine:?}: {text}");
        assert_eq!(cell.lines, ["plain.test allowed", "evil.test refused"]);
        assert_eq!(cell.notes.len(), 1);
    });
}

#[test]
fn containers_answer_the_names_that_rules_allow() {
    for_each_engine("containers_answer_the_names_that_rules_allow", async |engine, address, _| {
        let cell = run_with_rule(engine, address, CODE_BY_NAME).await;
        assert_eq!(cell.notice, None, "{engine:?}");
        assert_eq!(cell.output, "plain answer\ngaierror -2\n127.64.0.1 False\n", "{engine:?}");
        assert_eq!(cell.lines, ["plain.test allowed", "evil.test refused"]);
        assert_eq!(cell.notes.len(), 1);
    });
}

/// Compose itself answers the names of its services, so its sessions have the proxy door only, and say so.
const CODE_IN_COMPOSE: &str = r#"
import os, socket
for name in ["plain.test", "evil.test"]:
    try:
        print(socket.getaddrinfo(name, PORT))
    except OSError as error:
        print(type(error).__name__)
print(os.environ["NODE_USE_ENV_PROXY"])
"#;

#[test]
fn compose_sessions_reach_what_the_rules_allow_through_the_proxy_door() {
    let test = "compose_sessions_reach_what_the_rules_allow_through_the_proxy_door";
    for_each_engine(test, async |engine, address, _| {
        let folder = tempfile::tempdir().unwrap();
        let code = format!("{CODE}{CODE_IN_COMPOSE}");
        let cell = run_with_policy(engine, address, in_pair(&folder), &code).await;
        let (text, notice) = (cell.output, cell.notice.unwrap_or_default());
        assert!(text.starts_with("plain answer\nHTTP Error 403: Refused by Cove"), "{engine:?}: {text}");
        assert!(text.ends_with("\ngaierror\ngaierror\n1\n") && !text.contains("reached"), "{engine:?}: {text}");
        assert!(notice.starts_with("this sandbox answers no host names"), "{engine:?}: {notice:?}");
        assert_eq!(cell.lines, ["plain.test allowed", "evil.test refused"]);
        assert_eq!(cell.notes.len(), 1, "{engine:?}: {:?}", cell.notes);
    });
}

/// Returns a command of the program whose sessions are containers of the image for tests.
fn attacked_command(engine: TestEngine, address: &str, name: &str, images: &Path) -> Command {
    let ImageSource::Reference(reference) = recipe().source else { panic!("it has a name") };
    fs::create_dir(images.join("attacked")).unwrap();
    let image = format!("image = \"{reference}\"\noneshot = false\n");
    fs::write(images.join("attacked/image.toml"), image).unwrap();
    let mut command = cove().command(TestUser::Root);
    command.args([name, "--backend", engine.name(), "--image", "attacked", "--image-dir"]).arg(images);
    command.env(engine.variable(), address);
    command
}

#[test]
fn attacks_on_network_access_fail_in_containers() {
    let test = "attacks_on_network_access_fail_in_containers";
    for (engine, address) in available_engines(test) {
        let images = tempfile::tempdir().unwrap();
        suite::check_attacks(test, engine.name(), attacked_command(engine, &address, "run", images.path()));
    }
}

#[test]
fn one_session_cannot_use_up_the_network_of_containers() {
    for (engine, address) in available_engines("one_session_cannot_use_up_the_network_of_containers") {
        let images = tempfile::tempdir().unwrap();
        suite::check_exhaustion(engine.name(), attacked_command(engine, &address, "serve", images.path()));
    }
}

#[test]
fn the_most_verbose_log_has_no_credential_of_containers() {
    for (engine, address) in available_engines("the_most_verbose_log_has_no_credential_of_containers") {
        let images = tempfile::tempdir().unwrap();
        suite::check_log(engine.name(), attacked_command(engine, &address, "serve", images.path()));
    }
}
