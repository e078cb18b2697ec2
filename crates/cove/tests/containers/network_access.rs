//! Containers without a network reach what the rules allow, through the same door as the embedded sandbox.

#[path = "../egress_attacks/suite.rs"]
mod suite;

use std::fs;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::Mutex;

use cove_core::output::OutputCollector;
use cove_core::policy::{ImageSource, Policy};
use cove_core::session::{Cell, CellEnd, NoCalls};
use cove_egress::{
    CellNetwork, EgressAuditLine, EgressGateway, EgressRecorder, EgressRule, EgressRules, NetworkCaller, RuleProtocol,
    SystemResolver,
};
use cove_protocol::Language;
use cove_testkit::measure;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use cove_testkit::TestUser;
use cove_testkit::containers::recipe;

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

#[test]
fn containers_reach_what_the_rules_allow_and_nothing_else() {
    for_each_engine("containers_reach_what_the_rules_allow_and_nothing_else", async |engine, address, _| {
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
        let lines = Arc::new(KeptLines::default());
        let gateway = EgressGateway::new(rules, Arc::clone(&lines) as _, Box::new(SystemResolver));
        let caller = NetworkCaller { principal: "tests".into(), session: "s".into(), image: None };
        let network = CellNetwork::new(gateway, caller, Arc::new(NoCalls));

        let backend = backend(engine, address);
        let session = open(&backend, &Policy { proxy_door: true, ..policy() }, "network").await.unwrap();
        let mut collector = OutputCollector::new(20_000_usize, None);
        let code = CODE.replace("PORT", &port.to_string());
        let cell = Cell { language: Language::Python, timeout: LONG, ..measure::cell(&measure::config(), &code) };
        let calls = Arc::clone(&network) as _;
        let end = session.run_with_calls(cell, |shown| collector.push(shown), std::future::pending(), calls).await;
        session.stop().await;
        let collected = collector.finish();
        assert_eq!(end, CellEnd::Completed { forgotten: false }, "{engine:?}: {}", collected.stderr.text);
        let text = collected.stdout.text;
        assert!(text.starts_with("plain answer\nHTTP Error 403: Refused by Cove"), "{engine:?}: {text}");
        assert!(!text.contains("reached"), "{engine:?}: {text}");
        assert_eq!(*lines.0.lock().unwrap(), ["plain.test allowed", "evil.test refused"]);
        assert_eq!(network.take_notes().len(), 1);
    });
}

#[test]
fn attacks_on_network_access_fail_in_containers() {
    for (engine, address) in available_engines("attacks_on_network_access_fail_in_containers") {
        let images = tempfile::tempdir().unwrap();
        let ImageSource::Reference(reference) = recipe().source else { panic!("it has a name") };
        fs::create_dir(images.path().join("attacked")).unwrap();
        fs::write(images.path().join("attacked/image.toml"), format!("image = \"{reference}\"\noneshot = false\n"))
            .unwrap();
        let mut command = cove().command(TestUser::Root);
        command.args(["run", "--backend", engine.name(), "--image", "attacked", "--image-dir"]).arg(images.path());
        command.env(engine.variable(), address);
        suite::check_attacks(engine.name(), command);
    }
}
