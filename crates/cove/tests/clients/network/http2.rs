//! HTTP/2 inside tunnels that the rules allow, which pass end to end, and in front of inspected rules, which have HTTP/1.1
//! only.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use cove_testkit::TestUser;
use cove_testkit::skip::skip_without_all;

use super::ClientBench;
use crate::judges::test_file;

/// A server for HTTP/2. It ends with the test.
struct Http2Server {
    process: Child,
    port: u16,
}

impl Http2Server {
    fn start() -> Self {
        let mut command = Command::new("node");
        command.arg(test_file("network/http2_server.mjs"));
        command.args(["server.key", "server.pem"].map(|name| test_file("network/tls").join(name)));
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut port = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut port).unwrap();
        Self { process, port: port.trim().parse().unwrap() }
    }
}

impl Drop for Http2Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

const CURL: &str = "curl --silent --show-error --http2 --write-out '%{http_version}\\n' https://api.test:PORT/";
/// Sends requests at once, on one connection.
const NODE: &str = r#"node -e "
const session = require('http2').connect('https://api.test:PORT');
session.on('error', (error) => { console.log(error.code); process.exit() });
let left = 20;
for (let number = left; number > 0; number--) {
    const request = session.request({ ':path': '/' + number });
    let text = '';
    request.on('error', () => {});
    request.on('data', (data) => text += data);
    request.on('end', () => { if (--left === 0) { console.log(text.trim()); session.close() } });
}""#;
const WITHOUT_PROXY: &str = "unset HTTPS_PROXY https_proxy ALL_PROXY all_proxy";

#[test]
fn http2_passes_through_tunnels() {
    let test = "http2_passes_through_tunnels";
    if !Path::new("/usr/bin/curl").exists() {
        return skip_without_all(test, "it installs curl");
    }
    let (bench, server) = (ClientBench::new(), Http2Server::start());
    let sites = bench.start_sites();
    let fill = |code: &str| code.replace("PORT", &server.port.to_string());
    let rules = |inspect: bool| {
        let rule = fill("{ host = \"api.test\", ports = [PORT], at = \"127.0.0.1\" }");
        fs::write(&sites.config, format!("[egress]\ninspect = {inspect}\nallow = [{rule}]\n")).unwrap();
    };
    for who in TestUser::all(test) {
        rules(false);
        let trust = "export CURL_CA_BUNDLE=/clients/ca.pem NODE_EXTRA_CA_CERTS=/clients/ca.pem";
        let code = fill(&format!("{trust}\n{CURL}\n{WITHOUT_PROXY}\n{CURL}\n{NODE}"));
        let finished = bench.run(who, &sites, "bash", &code);
        assert_eq!(finished.expect_success(), format!("{0}{0}hello by 2.0\n", "hello by 2.0\n2\n"), "{who:?}");
        // Where Cove reads requests, clients that can speak HTTP/1.1 do so, and others learn why they fail.
        rules(true);
        let finished = bench.run(who, &sites, "bash", &fill(&format!("{CURL}\n{WITHOUT_PROXY}\n{NODE}")));
        let (first, second) = finished.stdout.split_once("\n1.1\n").unwrap_or_default();
        assert_eq!((first, second.lines().count()), ("hello by 1.1", 1), "{who:?} {finished:#?}");
        assert!(finished.stderr.contains("does not offer HTTP/1.1"), "{who:?} {finished:#?}");
    }
}
