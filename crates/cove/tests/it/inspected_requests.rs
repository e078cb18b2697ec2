//! Requests that Cove reads, and credentials that stay outside the sandbox, through the real program: an API on this machine
//! sees the credential, and code sees neither it nor what the rules do not allow.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;

use cove_testkit::TestUser;
use cove_testkit::mcp::{ClientEra, TestStdioClient};
use cove_testkit::program::FinishedProgram;
use cove_testkit::skip::{skip, skip_without_all};
use serde_json::{Value, json};

use crate::cove;
use crate::inspected_api::{TOKEN, TestApi, TestAuthority};

const RULES: &str = r#"
[egress]
allow = [
  { host = "api.test", ports = [API], at = "127.0.0.1", methods = ["GET", "POST"], paths = ["/user", "/repos/acme/**", "/ws"], credential = "forge" },
  { host = "other.test", ports = [OTHER], at = "127.0.0.1", inspect = true },
  { host = "stranger.test", ports = [STRANGER], at = "127.0.0.1", inspect = true },
]
[credentials.forge]
value = "${FORGE_TOKEN}"
header = "Authorization"
format = "Bearer {}"
prefix = "ghp_"
env = ["FORGE_TOKEN", "GH_TOKEN"]
"#;

/// Three APIs, of which the program does not trust the last.
struct InspectedApis {
    api: TestApi,
    other: TestApi,
    stranger: TestApi,
    folder: tempfile::TempDir,
}

impl InspectedApis {
    fn start() -> Self {
        Self::with_rules("api.test", RULES)
    }

    fn with_rules(host: &str, rules: &str) -> Self {
        Self::with_listener(TcpListener::bind("127.0.0.1:0").unwrap(), host, rules)
    }

    /// With the API behind this listener.
    fn with_listener(listener: TcpListener, host: &str, rules: &str) -> Self {
        let (authority, stranger) = (TestAuthority::new("trusted"), TestAuthority::new("stranger"));
        let apis = Self {
            api: TestApi::serve(listener, authority.server_config(&[host])),
            other: TestApi::start(authority.server_config(&["other.test"])),
            stranger: TestApi::start(stranger.server_config(&["stranger.test"])),
            folder: tempfile::tempdir().unwrap(),
        };
        fs::write(apis.file("cove.toml"), apis.fill(rules)).unwrap();
        fs::write(apis.file("authority.pem"), authority.certificate).unwrap();
        let readable = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
        fs::set_permissions(apis.folder.path(), readable).unwrap();
        apis
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Where this user's program records requests. An ordinary user cannot write to the folder itself.
    fn state(&self, who: TestUser) -> PathBuf {
        match who {
            TestUser::Root => self.file("state"),
            TestUser::Ordinary => {
                std::env::temp_dir().join(format!("cove-inspected-{}-{}", std::process::id(), self.api.port))
            }
        }
    }

    /// Puts the ports of the servers into a text.
    fn fill(&self, text: &str) -> String {
        let ports = [("STRANGER", self.stranger.port), ("OTHER", self.other.port), ("API", self.api.port)];
        ports.iter().fold(text.to_owned(), |text, (name, port)| text.replace(name, &port.to_string()))
    }

    fn command(&self, who: TestUser, args: &[&str]) -> Command {
        let mut command = cove().command(who);
        command.env("COVE_CONFIG", self.file("cove.toml")).env("COVE_STATE_DIR", self.state(who));
        command.env("SSL_CERT_FILE", self.file("authority.pem")).env("FORGE_TOKEN", TOKEN).args(args);
        command
    }

    fn run(&self, who: TestUser, args: &[&str], code: &str) -> FinishedProgram {
        let code = self.fill(code);
        let output = self.command(who, &["run", "--backend", "jail"]).args(args).args(["-c", &code]).output().unwrap();
        let finished = FinishedProgram::from_output(output);
        assert!(!format!("{finished:?}").contains(&TOKEN[4..]), "the token is in the output: {finished:#?}");
        finished
    }

    fn audit(&self, who: TestUser) -> Vec<Value> {
        let output = self.command(who, &["audit", "--egress", "--json"]).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

impl Drop for InspectedApis {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(self.state(TestUser::Ordinary));
    }
}

#[test]
fn code_uses_an_api_without_its_token() {
    for who in TestUser::all("code_uses_an_api_without_its_token") {
        let apis = InspectedApis::start();
        let code = "import json, os, urllib.request\nsaw = urllib.request.urlopen('https://api.test:API/user')\n\
                    text = json.load(saw)\nprint(text['login'], text['saw'] == saw.headers['X-Saw'])\n\
                    print(text['saw'][7:11], len(text['saw']), text['saw'][7:] == os.environ['GH_TOKEN'])\n\
                    own = urllib.request.Request('https://api.test:API/user', headers={'Authorization': 'Bearer own'})\n\
                    print(json.load(urllib.request.urlopen(own))['login'])\n\
                    print(urllib.request.urlopen('https://api.test:API/repos/acme/x', b'body').read().decode())\n\
                    print(len(urllib.request.urlopen('https://api.test:API/repos/acme/split').read()))";
        let finished = apis.run(who, &[], code);
        let expected = format!("acme True\nghp_ {} False\nacme\n/repos/acme/x body\n47\n", 7 + TOKEN.len());
        // The placeholder has 36 characters, and takes the place of 40.
        assert_eq!(finished.expect_success(), expected, "{who:?}");
        let requests = apis.api.requests();
        assert_eq!(requests.len(), 4);
        for request in &requests {
            let request = request.to_ascii_lowercase();
            let sent = format!("authorization: bearer {}\r\n", TOKEN.to_ascii_lowercase());
            assert!(request.contains(&sent) && !request.contains("bearer own"), "{request}");
            assert!(request.contains("accept-encoding: identity\r\n"), "{request}");
        }
        let lines = apis.audit(who);
        let facts: Vec<Value> =
            lines.iter().map(|it| json!([it["method"], it["path"], it["status"], it["credential"]])).collect();
        let get = |path| json!(["GET", path, 200, "forge"]);
        let post = json!(["POST", "/repos/acme/x", 200, "forge"]);
        assert_eq!(facts, [get("/user"), get("/user"), post, get("/repos/acme/split")]);
        let written = fs::read_to_string(apis.state(who).join("audit.jsonl")).unwrap();
        assert!(!written.contains(&TOKEN[4..]), "{written}");
    }
}

#[test]
fn the_token_is_nowhere_in_the_sandbox() {
    for who in TestUser::all("the_token_is_nowhere_in_the_sandbox") {
        let apis = InspectedApis::start();
        let backwards: String = TOKEN.chars().rev().collect();
        let code = format!(
            "import os, urllib.request\nurllib.request.urlopen('https://api.test:API/user').read()\n\
             token, key, found, seen = {backwards:?}[::-1].encode(), b'PRIVATE' + b' KEY', [], 0\n\
             folders = ['/tmp', os.getcwd(), '/proc/1', '/proc/self', '/dev/shm', '/run', '/etc/ssl']\n\
             for folder in folders:\n    for place, _, names in os.walk(folder):\n        for name in names:\n            \
             try:\n                if os.path.isfile(f'{{place}}/{{name}}') and name not in ('kmsg', 'pagemap', 'clear_refs', 'mem'):\n                    \
             with open(f'{{place}}/{{name}}', 'rb') as file:\n                        bytes = file.read(1 << 20); seen += 1\n                    \
             found += [f'{{place}}/{{name}}'] if token in bytes or key in bytes and folder != '/etc/ssl' else []\n            \
             except OSError:\n                pass\nprint(found, seen > 10, 'FORGE_TOKEN' in os.environ)"
        );
        assert_eq!(apis.run(who, &[], &code).expect_success(), "[] True True\n", "{who:?}");
    }
}

#[test]
fn other_programs_trust_the_session() {
    for who in TestUser::all("other_programs_trust_the_session") {
        let apis = InspectedApis::start();
        let curl = "curl -sS https://api.test:API/repos/acme/curl && curl -sS https://api.test:API/user | grep -c acme";
        assert_eq!(apis.run(who, &["-l", "bash"], curl).expect_success(), "/repos/acme/curl 1\n", "{who:?}");
        let node = "const https = require('https'), http = require('http'), tls = require('tls');\n\
                    const proxy = new URL(process.env.https_proxy);\n\
                    await new Promise((done, fail) => http.request({host: proxy.hostname, port: proxy.port, method: 'CONNECT', \
                    path: 'api.test:API', headers: {host: 'api.test:API'}}).on('connect', (answer, socket) => https.get('https://api.test:API/repos/acme/node', \
                    {createConnection: () => tls.connect({socket, servername: 'api.test'})}, answer => { \
                    answer.on('data', bytes => console.log(String(bytes))); answer.on('end', done) }).on('error', fail)).end())";
        let finished = apis.run(who, &["-l", "node"], node);
        assert_eq!(finished.expect_success().lines().next(), Some("/repos/acme/node "), "{who:?}");
    }
}

/// Each request to the API, and the reason for which it is refused.
const REFUSED: &[(&str, &str)] = &[
    ("DELETE /user HTTP/1.1\r\nHost: HOST", "403 method-not-allowed"),
    ("GET /admin HTTP/1.1\r\nHost: HOST", "403 path-not-allowed"),
    ("GET /users HTTP/1.1\r\nHost: HOST", "403 path-not-allowed"),
    ("GET /repos/acme/../../admin HTTP/1.1\r\nHost: HOST", "400 malformed-request"),
    ("GET /repos/acme/%2e%2e/admin HTTP/1.1\r\nHost: HOST", "400 malformed-request"),
    ("GET /repos/acme/a%2fb HTTP/1.1\r\nHost: HOST", "400 malformed-request"),
    ("GET //user HTTP/1.1\r\nHost: HOST", "400 malformed-request"),
    ("GET /repos/acme/a\\b HTTP/1.1\r\nHost: HOST", "400 malformed-request"),
    ("GET /user HTTP/1.1\r\nHost: other.test", "421 host-mismatch"),
    ("GET /user HTTP/1.1\r\nHost: HOST\r\nHost: other.test", "400 malformed-request"),
    ("GET https://other.test/user HTTP/1.1\r\nHost: HOST", "400 malformed-request"),
    ("POST /user HTTP/1.1\r\nHost: HOST\r\nContent-Length: 3\r\nTransfer-Encoding: chunked", "400 malformed-request"),
    ("POST /user HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\nContent-Length: 3", "400 malformed-request"),
    ("GET /user HTTP/1.1\r\nHost: HOST\r\nX: a\r\n folded", "400 malformed-request"),
    ("CONNECT HOST HTTP/1.1\r\nHost: HOST", "400 malformed-request"),
    ("GET /user HTTP/1.1\r\nHost: HOST\r\nUpgrade: h2c\r\nConnection: Upgrade", "400 malformed-request"),
    ("GET /admin HTTP/1.1\r\nHost: HOST\r\nUpgrade: websocket\r\nConnection: Upgrade", "403 path-not-allowed"),
    ("GET /user HTTP/1.1\r\nHost: HOST\r\nX-Key: PLACEHOLDER", "403 credential-misplaced"),
    ("GET /user?key=PLACEHOLDER HTTP/1.1\r\nHost: HOST", "403 credential-misplaced"),
];

/// Sends raw requests inside TLS, and prints the status and the reason of each answer.
const RAW: &str = r#"
import os, socket, ssl
def connect(host, port):
    door = socket.create_connection(("127.0.0.1", int(os.environ["https_proxy"].rsplit(":", 1)[1])))
    door.sendall(f"CONNECT {host}:{port} HTTP/1.1\r\n\r\n".encode())
    assert b" 200 " in door.recv(4096)
    return ssl.create_default_context().wrap_socket(door, server_hostname=host)
def ask(request, host="api.test", port=API):
    request = request.replace("HOST", f"{host}:{port}").replace("PLACEHOLDER", os.environ["GH_TOKEN"])
    with connect(host, port) as inside:
        inside.sendall(request.encode() + b"\r\n\r\n")
        head = inside.recv(65536).decode()
        reason = head.lower().split("x-cove-refused: ")[-1].split("\r\n")[0]
        return head.split(" ")[1] + (" " + reason if "x-cove-refused" in head.lower() else "")
"#;

#[test]
fn requests_that_no_rule_allows_reach_no_server() {
    for who in TestUser::all("requests_that_no_rule_allows_reach_no_server") {
        let apis = InspectedApis::start();
        let requests: Vec<&str> = REFUSED.iter().map(|(request, _)| *request).collect();
        let code = format!(
            "{RAW}\nfor request in {}:\n    print(ask(request))\n\
             print(ask('GET /x HTTP/1.1\\r\\nHost: HOST\\r\\nAuthorization: Bearer PLACEHOLDER', 'other.test', OTHER))\n",
            json!(requests)
        );
        let finished = apis.run(who, &[], &code);
        let expected: Vec<&str> =
            REFUSED.iter().map(|(_, reason)| *reason).chain(["403 credential-misplaced"]).collect();
        assert_eq!(finished.stdout.lines().collect::<Vec<_>>(), expected, "{who:?} {finished:#?}");
        assert_eq!((apis.api.requests(), apis.other.requests()), (vec![], vec![]));
        let note =
            format!("network: refused DELETE https://api.test:{}/user (the rule allows GET, POST; ", apis.api.port);
        assert!(finished.stderr.contains(&note), "{finished:#?}");
        assert_eq!(apis.audit(who).len(), REFUSED.len() + 1);
    }
}

#[test]
fn each_request_of_a_connection_is_judged_anew() {
    let who = TestUser::all("each_request_of_a_connection_is_judged_anew")[0];
    let apis = InspectedApis::start();
    let code = format!(
        "{RAW}\nwith connect('api.test', API) as inside:\n    for line in ['GET /user', 'DELETE /user', 'GET /repos/acme/y']:\n        \
         host = 'api.test:API'\n        \
         inside.sendall(f'{{line}} HTTP/1.1\\r\\nHost: {{host}}\\r\\nX-HTTP-Method-Override: DELETE\\r\\n\\r\\n'.encode())\n        \
         print(inside.recv(65536).decode().split(' ')[1])\n    \
         inside.sendall(b'GET /user HTTP/1.1\\r\\nHost: other.test\\r\\n\\r\\n')\n    print(inside.recv(65536).decode().split(' ')[1])"
    );
    assert_eq!(apis.run(who, &[], &code).stdout, "200\n403\n200\n421\n");
    let requests = apis.api.requests();
    assert_eq!(requests.len(), 2);
    assert!(requests.iter().all(|request| !request.to_ascii_lowercase().contains("override")), "{requests:?}");
}

#[test]
fn a_websocket_passes_where_the_rule_allows_it() {
    let who = TestUser::all("a_websocket_passes_where_the_rule_allows_it")[0];
    let apis = InspectedApis::start();
    let code = format!(
        "{RAW}\nwith connect('api.test', API) as inside:\n    \
         inside.sendall(b'GET /ws HTTP/1.1\\r\\nHost: api.test:API\\r\\nConnection: Upgrade\\r\\nUpgrade: websocket\\r\\n\
         Sec-WebSocket-Version: 13\\r\\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\\r\\n\\r\\n')\n    \
         print(inside.recv(4096).decode().split(' ')[1])\n    inside.sendall(b'ping')\n    \
         got = inside.makefile('rb').read({})\n    print(got[2:13], got[-4:])",
        19 + TOKEN.len()
    );
    let expected = "101\nb'pingBearer ' b'ping'";
    assert_eq!(apis.run(who, &[], &code).expect_success().trim_end(), expected);
}

#[test]
fn servers_that_are_not_trusted_and_answers_that_cannot_be_searched_are_refused() {
    let who = TestUser::all("servers_that_are_not_trusted_and_answers_that_cannot_be_searched_are_refused")[0];
    let apis = InspectedApis::start();
    let code = format!(
        "{RAW}\nprint(ask('GET / HTTP/1.1\\r\\nHost: HOST', 'stranger.test', STRANGER))\n\
         print(ask('GET /repos/acme/gzip HTTP/1.1\\r\\nHost: HOST'))"
    );
    let finished = apis.run(who, &[], &code);
    assert_eq!(finished.stdout, "502 untrusted-server\n502 encoded-answer\n", "{finished:#?}");
    assert!(finished.stderr.contains("the certificate of the server is not trusted: UnknownIssuer"), "{finished:#?}");
    assert!(apis.stranger.requests().is_empty());
}

#[test]
fn a_program_that_does_not_trust_the_session_learns_why() {
    let who = TestUser::all("a_program_that_does_not_trust_the_session_learns_why")[0];
    let apis = InspectedApis::start();
    let curl = "curl -sS --cacert /etc/ssl/certs/ca-certificates.crt https://api.test:API/user; echo $?";
    let finished = apis.run(who, &["-l", "bash"], curl);
    assert_eq!(finished.stdout, "60\n", "{finished:#?}");
    assert!(finished.stderr.contains("the program does not accept the certificate of the session"), "{finished:#?}");
    let h2 = "import os, socket, ssl\ndoor = socket.create_connection(('127.0.0.1', 3128))\n\
              door.sendall(b'CONNECT api.test:API HTTP/1.1\\r\\n\\r\\n')\ndoor.recv(999)\n\
              context = ssl.create_default_context()\ncontext.set_alpn_protocols(['h2'])\ntry:\n    \
              context.wrap_socket(door, server_hostname='api.test')\nexcept OSError as error:\n    print(type(error).__name__)";
    let finished = apis.run(who, &[], h2);
    assert!(finished.stderr.contains("does not offer HTTP/1.1"), "{finished:#?}");
    assert!(apis.api.requests().is_empty());
}

#[test]
fn every_session_of_a_server_has_an_authority_of_its_own() {
    let who = TestUser::all("every_session_of_a_server_has_an_authority_of_its_own")[0];
    let apis = InspectedApis::start();
    let mut client = TestStdioClient::start(apis.command(who, &["serve", "--backend", "jail"]), ClientEra::Modern);
    let code = apis.fill(
        "import hashlib, os, urllib.request\nprint(urllib.request.urlopen('https://api.test:API/repos/acme/z').read().decode())\n\
         print(hashlib.sha256(open(os.environ['NODE_EXTRA_CA_CERTS'], 'rb').read() + os.environ['GH_TOKEN'].encode()).hexdigest())",
    );
    let mut results: Vec<String> =
        ["a", "b"].map(|name| client.call("execute_code", json!({"code": code, "session": name})).ok()).to_vec();
    assert!(results.iter().all(|result| result.starts_with("/repos/acme/z \n")), "{results:?}");
    results.dedup();
    assert_eq!(results.len(), 2, "certificate and placeholder differ");
}

#[test]
fn a_credential_without_a_value_stops_the_program() {
    let apis = InspectedApis::start();
    let start = |args: &[&str]| {
        let mut command = apis.command(TestUser::Root, args);
        FinishedProgram::from_output(command.env_remove("FORGE_TOKEN").output().unwrap())
    };
    for args in [&["serve"][..], &["run", "--backend", "jail", "-c", "print(1)"], &["repl", "--backend", "jail"]] {
        let finished = start(args);
        assert_eq!(finished.code, Some(2), "{finished:#?}");
        let written =
            format!("could not use `value` of `[credentials.forge]` in `{}`, line 9", apis.file("cove.toml").display());
        assert!(finished.stderr.contains(&written), "{finished:#?}");
        assert!(finished.stderr.contains("it needs FORGE_TOKEN"), "{finished:#?}");
    }
    assert_eq!(start(&["run", "--backend", "jail", "--no-net", "-c", "print(1)"]).stdout, "1\n");
    let mut command = apis.command(TestUser::Root, &["run", "--backend", "jail", "-c", "print(1)"]);
    let short = FinishedProgram::from_output(command.env("FORGE_TOKEN", "hunter2").output().unwrap());
    assert_eq!(short.code, Some(2), "{short:#?}");
    assert!(short.stderr.contains("could not use `value` of `[credentials.forge]`"), "{short:#?}");
    assert!(short.stderr.contains("it needs a value of 8 to 16384 bytes, and it has 7"), "{short:#?}");
}

#[test]
fn a_value_that_cannot_be_read_later_refuses_the_request() {
    let who = TestUser::all("a_value_that_cannot_be_read_later_refuses_the_request")[0];
    let apis = InspectedApis::start();
    let (config, value) = (apis.file("cove.toml"), apis.file("value"));
    let rules =
        fs::read_to_string(&config).unwrap().replace("${FORGE_TOKEN}", &format!("${{file:{}}}", value.display()));
    fs::write(&config, rules).unwrap();
    fs::write(&value, TOKEN).unwrap();
    let mut client = TestStdioClient::start(apis.command(who, &["serve", "--backend", "jail"]), ClientEra::Modern);
    assert_eq!(client.call("execute_code", json!({"code": "print(1)"})).ok(), "1\n", "the value is there at the start");
    fs::remove_file(&value).unwrap();
    let code = apis.fill(
        "import urllib.request\ntry:\n    urllib.request.urlopen('https://api.test:API/user')\nexcept OSError as error:\n    \
         print(error.code, error.headers['X-Cove-Refused'])",
    );
    let result = client.call("execute_code", json!({"code": code})).ok();
    assert!(result.starts_with("403 credential-missing\n"), "{result}");
    assert!(result.contains("the credential `forge` has no value on the host"), "{result}");
    assert!(!result.contains(&value.display().to_string()), "{result}");
    assert!(apis.api.requests().is_empty());
}

#[test]
fn commands_show_rules_and_credentials_without_values() {
    let apis = InspectedApis::start();
    let run = |args: &[&str]| FinishedProgram::from_output(apis.command(TestUser::Root, args).output().unwrap());
    let url = |path: &str| format!("https://api.test:{}{path}", apis.api.port);
    let check = |method, path: &str| run(&["net", "check", "-X", method, &url(path)]);
    let allowed = check("POST", "/repos/acme/x?q=1");
    assert!(allowed.stdout.starts_with("allowed: ") && allowed.stdout.contains("credential forge"), "{allowed:#?}");
    assert_eq!(allowed.code, Some(0));
    let refused = check("DELETE", "/user");
    assert!(refused.stdout.contains("caused by: the rule allows GET, POST\n"), "{refused:#?}");
    assert_eq!((refused.code, check("GET", "/x").code), (Some(1), Some(1)));
    for args in [&["net", "show"][..], &["config", "show"], &["explain", "--backend", "jail"]] {
        let shown = run(args);
        assert!(shown.stdout.contains("inspected, GET POST, /user"), "{shown:#?}");
        assert!(shown.stdout.contains("credential forge: header authorization"), "{shown:#?}");
        assert!(!shown.stdout.contains(TOKEN), "{shown:#?}");
    }
}

/// Returns a block of code of the section about credentials in the guide.
fn block_of_the_guide(kind: &str) -> String {
    let guide = include_str!("../../../../docs/guides/network-access.md");
    let section = guide.split("## Let agents use an API safely").nth(1).expect("the guide has the section");
    section.split(&format!("```{kind}\n")).nth(1).unwrap().split("```").next().unwrap().to_owned()
}

/// The rules and the code of the guide, with an API on this machine in place of the one that they name.
#[test]
fn the_guide_to_credentials_works() {
    let rules = block_of_the_guide("toml")
        .replace("host = \"api.github.com\"", "host = \"api.github.com\", ports = [API], at = \"127.0.0.1\"");
    let code = block_of_the_guide("python").replace("https://api.github.com", "https://api.github.com:API");
    for who in TestUser::all("the_guide_to_credentials_works") {
        let apis = InspectedApis::with_rules("api.github.com", &rules);
        let code = apis.fill(&code);
        let mut command = apis.command(who, &["run", "--backend", "jail", "-c", &code]);
        let finished = FinishedProgram::from_output(command.env("GITHUB_TOKEN", TOKEN).output().unwrap());
        assert_eq!(finished.expect_success(), "acme\n", "{who:?}");
        assert!(apis.api.requests()[0].contains(TOKEN));
        assert_eq!(apis.audit(who)[0]["credential"], "github");
    }
}

#[test]
fn certificates_that_do_not_fit_stop_the_program() {
    let apis = InspectedApis::start();
    for who in TestUser::all("certificates_that_do_not_fit_stop_the_program") {
        let run = |args: &[&str]| FinishedProgram::from_output(apis.command(who, args).output().unwrap());
        for args in [&["serve"][..], &["run", "-c", "print(1)"], &["repl"]] {
            let finished = run(&[args, &["--backend", "jail", "--tmp-size", "64k"]].concat());
            assert_eq!(finished.code, Some(125), "{finished:#?}");
            assert!(finished.stderr.contains("could not write the certificates of a session"), "{finished:#?}");
            assert!(finished.stderr.contains("hint: set `tmp-size` to at least `1m`; it is `64k`"), "{finished:#?}");
        }
        // What the message says is enough; and nothing else needs the certificates.
        let fitting = run(&["run", "--backend", "jail", "--tmp-size", "1m", "-c", "print(1)"]);
        assert_eq!(fitting.expect_success(), "1\n");
        let without = run(&["run", "--backend", "jail", "--tmp-size", "64k", "--no-net", "-c", "print(1)"]);
        assert_eq!(without.expect_success(), "1\n");
    }
}

#[test]
fn certificates_of_servers_that_cannot_be_read_stop_the_program() {
    let apis = InspectedApis::start();
    fs::write(apis.file("empty.pem"), "no certificate\n").unwrap();
    for (file, problem) in [("/nonexistent", "No such file"), ("empty.pem", "there is no certificate in it")] {
        let file = apis.file(file);
        for args in [&["serve"][..], &["run", "-c", "print(1)"], &["repl"]] {
            let mut command = apis.command(TestUser::Root, args);
            let output = command.args(["--backend", "jail"]).env("SSL_CERT_FILE", &file).output().unwrap();
            let finished = FinishedProgram::from_output(output);
            assert_eq!(finished.code, Some(2), "{finished:#?}");
            let shown = format!("could not use `SSL_CERT_FILE={}`", file.display());
            assert!(finished.stderr.contains(&shown) && finished.stderr.contains(problem), "{finished:#?}");
            assert!(finished.stderr.contains("hint: name a file of PEM certificates"), "{finished:#?}");
        }
        // Only inspected requests need it.
        let mut command = cove().command(TestUser::Root);
        command.env("SSL_CERT_FILE", &file).env("COVE_CONFIG", "/dev/null");
        command.args(["run", "--backend", "jail", "--allow-net", "api.example.com", "-c", "print(1)"]);
        assert_eq!(FinishedProgram::from_output(command.output().unwrap()).expect_success(), "1\n");
    }
}

/// Code could carry something out in a query or in large fields, so that a kill must not take the line away.
#[test]
fn a_request_with_a_query_has_a_line_from_before_its_first_byte() {
    let who = TestUser::all("a_request_with_a_query_has_a_line_from_before_its_first_byte")[0];
    let apis = InspectedApis::start();
    let code = "import urllib.request\nbase = 'https://api.test:API/repos/acme/'\nurllib.request.urlopen(base + 'plain')\n\
                urllib.request.urlopen(base + 'query?q=secret')\n\
                urllib.request.urlopen(urllib.request.Request(base + 'fields', headers={'X-Much': 'x' * 3000}))";
    apis.run(who, &[], code).expect_success();
    let written = fs::read_to_string(apis.state(who).join("audit.jsonl")).unwrap();
    let lines = written.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let facts: Vec<Value> = lines.map(|line| json!([line["decision"], line["path"]])).collect();
    let of = |decision: &str, path: &str| json!([decision, format!("/repos/acme/{path}")]);
    let expected = [
        of("allowed", "plain"),
        of("begun", "query"),
        of("allowed", "query"),
        of("begun", "fields"),
        of("allowed", "fields"),
    ];
    assert_eq!(facts, expected);
    assert!(!written.contains("secret"), "{written}");
}

/// The rules allow these, and then something else fails: their decision stays.
#[test]
fn what_the_rules_decide_is_apart_from_why_a_request_ends() {
    let who = TestUser::all("what_the_rules_decide_is_apart_from_why_a_request_ends")[0];
    let apis = InspectedApis::start();
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let rules = fs::read_to_string(apis.file("cove.toml")).unwrap().replacen(
        "allow = [",
        &format!(
            "allow = [\n  {{ host = \"down.test\", ports = [{gone}], at = \"127.0.0.1\" }},\n  {{ host = \"gone.test\", ports = \
             [{gone}], at = \"127.0.0.1\", inspect = true }},"
        ),
        1,
    );
    fs::write(apis.file("cove.toml"), rules).unwrap();
    let code = format!(
        "import urllib.request\nfor url in ['https://down.test:{gone}/', 'https://gone.test:{gone}/', \
         'https://stranger.test:STRANGER/', 'https://api.test:API/secret', 'https://evil.test/']:\n    try:\n        \
         urllib.request.urlopen(url)\n    except OSError:\n        pass"
    );
    assert_eq!(apis.run(who, &[], &code).code, Some(0));
    let facts: Vec<Value> =
        apis.audit(who).iter().map(|it| json!([it["mode"], it["decision"], it["reason"]])).collect();
    let expected = [
        json!(["tunnel", "allowed", "unreachable"]),
        json!(["inspect", "allowed", "unreachable"]),
        json!(["inspect", "allowed", "untrusted-server"]),
        json!(["inspect", "refused", "path-not-allowed"]),
        json!(["tunnel", "refused", "host-not-allowed"]),
    ];
    assert_eq!(facts, expected);
    let show = |args: &[&str]| {
        let output = apis.command(who, &[&["audit", "--egress"], args].concat()).output().unwrap();
        FinishedProgram::from_output(output).expect_success()
    };
    let text = show(&[]);
    assert_eq!(text.matches("  failed: unreachable  ").count(), 2, "{text}");
    assert!(text.contains("  failed: untrusted-server  ") && text.contains("  refused: path-not-allowed  "), "{text}");
    let refused = show(&["--refused"]);
    assert_eq!(refused.lines().count(), 2, "{refused}");
    assert!(refused.lines().all(|line| line.contains("  refused: ")), "{refused}");
}
/// Looks for the token in what code can read. The argument is the token backwards.
const SEARCH: &str = r#"
token=$(rev <<< TOKEN_BACKWARDS)
grep -rlFs "$token" /tmp /workspace /run /etc /dev/shm "$HOME" ~/.config; cat /proc/[0-9]*/environ | grep -cF "$token"
cat /proc/[0-9]*/environ | tr '\0' '\n' | grep -m 1 ^GH_TOKEN= | cut -c 1-13
"#;

/// `gh` with the rules and the commands of the guide. It knows no port of its API, so only root can take the part of that.
#[test]
fn gh_works_as_the_guide_says() {
    let test = "gh_works_as_the_guide_says";
    if !rustix::process::geteuid().is_root() {
        return skip(test, "not on this machine: only root can serve the port of HTTPS");
    }
    if !Path::new("/usr/bin/gh").exists() {
        return skip_without_all(test, "it installs gh");
    }
    let backwards: String = TOKEN.chars().rev().collect();
    for who in TestUser::all(test) {
        let mut listeners =
            (1..=u8::MAX).filter_map(|last| TcpListener::bind((Ipv4Addr::new(127, 44, 3, last), 443)).ok());
        let listener = listeners.next().expect("root can listen");
        let pinned = format!("host = \"api.github.com\", at = \"{}\"", listener.local_addr().unwrap().ip());
        let rules = block_of_the_guide("toml").replace("host = \"api.github.com\"", &pinned);
        let apis = InspectedApis::with_listener(listener, "api.github.com", &rules);
        let command = |args: &[&str]| {
            let mut command = apis.command(who, args);
            FinishedProgram::from_output(command.env("GITHUB_TOKEN", TOKEN).output().unwrap())
        };
        let search = SEARCH.replace("TOKEN_BACKWARDS", &backwards);
        let others = "gh api graphql -f query='mutation { done }' --jq .data.done\n\
                      gh api repos/acme/body -X DELETE\ngh api repos/other/body || true";
        let cells = [&block_of_the_guide("sh"), others, &search];
        let cells = cells.iter().flat_map(|code| ["-c", code]);
        let finished =
            command(&["run", "--backend", "jail", "-l", "bash"].into_iter().chain(cells).collect::<Vec<_>>());
        let expected = "acme\n7\tOpen the door\tdoor\tOPEN\t0001-01-01 00:00:00 +0000 UTC\ntrue\n";
        assert!(finished.stdout.starts_with(expected), "{who:?} {finished:#?}");
        assert!(finished.stdout.ends_with("\n0\nGH_TOKEN=ghp_\n"), "{who:?} {finished:#?}");
        for note in ["DELETE https://api.github.com/repos/acme/body", "GET https://api.github.com/repos/other/body"] {
            assert!(finished.stderr.contains(&format!("network: refused {note} (")), "{who:?} {finished:#?}");
        }
        let slot = format!("authorization: bearer {TOKEN}\r\n").to_ascii_lowercase();
        let requests = apis.api.requests();
        assert_eq!(requests.len(), 3, "{requests:?}");
        assert!(requests.iter().all(|request| request.to_ascii_lowercase().contains(&slot)), "{requests:?}");
        let audit = command(&["audit", "--egress"]);
        for part in ["/user", "/graphql", "/repos/acme/body", "/repos/other/body", "github"] {
            assert!(audit.stdout.contains(part), "{who:?} {audit:#?}");
        }
        assert!(!format!("{finished:?} {audit:?}").contains(&TOKEN[4..]), "{finished:#?} {audit:#?}");
    }
}
