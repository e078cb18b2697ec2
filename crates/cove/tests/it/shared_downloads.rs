//! Downloads that sessions share, through the real program: what one session downloads, the next one gets from the host, by
//! its own rules, and nothing else.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use cove_testkit::TestUser;
use cove_testkit::mcp::{ClientEra, HttpServerProcess, TestHttpClient, send_raw};
use cove_testkit::program::FinishedProgram;
use serde_json::{Value, json};

use crate::inspected_api::TestAuthority;
use crate::{cove, wait_until};

const SIZE: usize = 200_000;
/// Each path, and the fields with which the server answers.
const ANSWERS: &[(&str, &str)] = &[
    ("/private", "Cache-Control: private, max-age=600\r\nContent-Length: LENGTH\r\n"),
    ("/no-store", "Cache-Control: public, no-store, max-age=600\r\nContent-Length: LENGTH\r\n"),
    ("/unsaid", "Content-Length: LENGTH\r\n"),
    ("/cookie", "Cache-Control: public, max-age=600\r\nSet-Cookie: a=b\r\nContent-Length: LENGTH\r\n"),
    ("/varies", "Cache-Control: public, max-age=600\r\nVary: Cookie\r\nContent-Length: LENGTH\r\n"),
    ("/old", "Cache-Control: public, max-age=600\r\nAge: 700\r\nContent-Length: LENGTH\r\n"),
    ("/endless", "Cache-Control: public, max-age=600\r\n"),
    ("/cut", "Cache-Control: public, max-age=600\r\nContent-Length: 999999\r\n"),
    ("/public?query", "Cache-Control: public, max-age=600\r\nContent-Length: LENGTH\r\n"),
];

/// A server of files that keeps what it is asked. A path that begins with `/public` may be shared.
struct FileSite {
    port: u16,
    requests: Arc<Mutex<Vec<String>>>,
}

impl FileSite {
    fn start(config: Arc<rustls::ServerConfig>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, requests) = (listener.local_addr().unwrap().port(), Arc::<Mutex<Vec<String>>>::default());
        let kept = Arc::clone(&requests);
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let (config, kept) = (Arc::clone(&config), Arc::clone(&kept));
                thread::spawn(move || {
                    let mut session = rustls::ServerConnection::new(config).unwrap();
                    let mut stream = rustls::Stream::new(&mut session, &mut stream);
                    if let Some(head) = read_head(&mut stream) {
                        kept.lock().unwrap().push(head.clone());
                        // The body of an upload, which a slow server does not read.
                        let length = head
                            .to_ascii_lowercase()
                            .split_once("content-length: ")
                            .map_or(0, |(_, length)| length.split("\r\n").next().unwrap().parse().unwrap());
                        if !head.contains("slow") {
                            std::io::copy(&mut (&mut stream).take(length), &mut std::io::sink()).unwrap();
                        }
                        // A client that ends half-way is its own business.
                        let _ = answer(&mut stream, &head);
                    }
                    stream.conn.send_close_notify();
                    let _ = stream.flush();
                });
            }
        });
        Self { port, requests }
    }

    /// Returns how often the server was asked for a path.
    fn count(&self, path: &str) -> usize {
        let requests = self.requests.lock().unwrap();
        requests.iter().filter(|head| head.split(' ').nth(1) == Some(path)).count()
    }
}

fn read_head(stream: &mut impl Read) -> Option<String> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    String::from_utf8(head).ok()
}

/// The body is the path, again and again.
fn answer(stream: &mut impl Write, head: &str) -> std::io::Result<()> {
    let path = head.split(' ').nth(1).unwrap_or_default();
    let body: Vec<u8> = path.bytes().cycle().take(SIZE).collect();
    let public = "Cache-Control: public, max-age=600\r\nContent-Length: LENGTH\r\n";
    let fields = ANSWERS.iter().find(|(of, _)| *of == path).map_or(public, |(_, fields)| fields);
    let fields = fields.replace("LENGTH", &SIZE.to_string());
    let status = if head.to_ascii_lowercase().contains("range: ") { "206 Partial Content" } else { "200 OK" };
    stream.write_all(format!("HTTP/1.1 {status}\r\n{fields}Connection: close\r\n\r\n").as_bytes())?;
    if path == "/public/slow" {
        stream.write_all(&body[..SIZE / 2])?;
        stream.flush()?;
        thread::sleep(Duration::from_secs(600));
    }
    stream.write_all(&body)?;
    stream.flush()
}

/// A site, rules that name it, and a folder of state for each user.
struct SharedSite {
    site: FileSite,
    folder: tempfile::TempDir,
}

impl SharedSite {
    fn start() -> Self {
        let authority = TestAuthority::new("trusted");
        let shared = Self {
            site: FileSite::start(authority.server_config(&["files.test"])),
            folder: tempfile::tempdir().unwrap(),
        };
        fs::set_permissions(shared.folder.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        fs::write(shared.folder.path().join("authority.pem"), authority.certificate).unwrap();
        shared
    }

    fn state(&self, who: TestUser) -> PathBuf {
        self.folder.path().join(format!("state-{who:?}"))
    }

    /// Returns the files that are kept for a user, from one folder.
    fn files(&self, who: TestUser, name: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.state(who).join("downloads").join(name)).into_iter().flatten();
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    /// A command with a rule for the site. `rule` and `table` are further keys.
    fn command_with(&self, who: TestUser, rule: &str, table: &str, args: &[&str]) -> Command {
        let config = self.folder.path().join(format!("{:x}.toml", rule.len() * 1000 + table.len()));
        let port = self.site.port;
        let text = format!(
            "[egress]\n{table}\nallow = [{{ host = \"files.test\", ports = [{port}], at = \"127.0.0.1\", {rule} }}]\n"
        );
        fs::write(&config, text).unwrap();
        let mut command = cove().command(who);
        command.env("COVE_CONFIG", config).env("COVE_STATE_DIR", self.state(who));
        command.env("SSL_CERT_FILE", self.folder.path().join("authority.pem")).args(args);
        command
    }

    /// Fetches paths in a session of its own, and returns a line for each: the path, the status, the length and whether the
    /// body is the right one, or the error.
    fn fetch_with(&self, who: TestUser, rule: &str, table: &str, paths: &[&str]) -> FinishedProgram {
        let paths: Vec<Value> = paths.iter().map(|path| Value::from(*path)).collect();
        let code = FETCH.replace("PORT", &self.site.port.to_string()).replace("PATHS", &Value::from(paths).to_string());
        let mut command = self.command_with(who, rule, table, &["run", "--backend", "jail", "-c", &code]);
        FinishedProgram::from_output(command.output().unwrap())
    }

    fn fetch(&self, who: TestUser, paths: &[&str]) -> String {
        self.fetch_with(who, "cache = true", "", paths).expect_success().to_owned()
    }

    fn audit(&self, who: TestUser) -> Vec<Value> {
        let args = ["audit", "--egress", "--json", "--lines", "1000"];
        let output = self.command_with(who, "cache = true", "", &args).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

const FETCH: &str = r#"
import http.client, urllib.request
for line in PATHS:
    path, *fields = line.split(" ")
    headers = dict(field.split("=") for field in fields)
    try:
        with urllib.request.urlopen(urllib.request.Request("https://files.test:PORT" + path, headers=headers)) as answer:
            body = answer.read()
        print(path, answer.status, len(body), body == (path.encode() * len(body))[:len(body)])
    except http.client.IncompleteRead as error:
        print(path, "cut off")
    except OSError as error:
        print(path, getattr(error, "code", type(error).__name__), getattr(error, "headers", {}).get("X-Cove-Refused"))
"#;

#[test]
fn the_second_session_gets_a_download_from_the_host() {
    for who in TestUser::all("the_second_session_gets_a_download_from_the_host") {
        let shared = SharedSite::start();
        for session in 0..3 {
            assert_eq!(shared.fetch(who, &["/public/a"]), "/public/a 200 200000 True\n", "{who:?} {session}");
        }
        assert_eq!(shared.site.count("/public/a"), 1, "{who:?}");
        let facts = |line: &Value| (line["status"].clone(), line["cached"].clone(), line["address"].is_string());
        let facts: Vec<_> = shared.audit(who).iter().map(facts).collect();
        let from_host = (Value::from(200), Value::from(true), false);
        assert_eq!(facts, [(Value::from(200), Value::Null, true), from_host.clone(), from_host]);
        assert!(
            shared.audit(who).iter().all(|line| line["bytes_down"].as_u64() > Some(200_000)),
            "counted as received"
        );
        let text = shared.command_with(who, "cache = true", "", &["audit", "--egress"]).output().unwrap().stdout;
        assert_eq!(String::from_utf8(text).unwrap().matches("allowed, kept").count(), 2);
        for name in ["bodies", "answers"] {
            let files = shared.files(who, name);
            assert_eq!(files.len(), 1);
            assert_eq!(fs::metadata(&files[0]).unwrap().permissions().mode() & 0o777, 0o600);
        }
    }
}

#[test]
fn only_what_a_server_lets_everyone_have_is_kept() {
    for who in TestUser::all("only_what_a_server_lets_everyone_have_is_kept") {
        let shared = SharedSite::start();
        let paths: Vec<&str> = ANSWERS.iter().map(|(path, _)| *path).collect();
        let asking = [
            "/public/b Range=bytes=0-9",
            "/public/c Authorization=own",
            "/public/d X-Forwarded-Host=evil",
            "/public/e Cookie=a=b",
            "/public/f Accept=text/html",
            "/public/g Cache-Control=no-cache",
        ];
        let asking = asking.map(|line| line.replacen("bytes=", "bytes:", 1).replacen("a=b", "ab", 1));
        let all: Vec<&str> = paths.iter().copied().chain(asking.iter().map(String::as_str)).collect();
        for round in 1..=2 {
            let printed = shared.fetch(who, &all);
            assert_eq!(printed.matches("200 200000 True").count(), all.len() - 2, "{printed}");
            assert!(printed.contains("/cut cut off\n") && printed.contains("/public/b 206 "), "{printed}");
            for line in &all {
                let path = line.split(' ').next().unwrap();
                assert_eq!(shared.site.count(path), round, "{who:?} {path}");
            }
        }
        let kept = ["bodies", "answers", "unfinished"].map(|name| shared.files(who, name).len());
        assert_eq!(kept, [0, 0, 0], "{who:?}");
    }
}

/// What code writes into a request cannot decide what others get.
#[test]
fn nothing_of_the_code_is_in_a_shared_request() {
    let who = TestUser::all("nothing_of_the_code_is_in_a_shared_request")[0];
    let shared = SharedSite::start();
    shared.fetch(who, &["/public/a User-Agent=mine Npm-Session=mine Accept-Encoding=gzip"]);
    let request = shared.site.requests.lock().unwrap()[0].to_ascii_lowercase();
    let (line, fields) = request.split_once("\r\n").unwrap();
    let fields: BTreeMap<&str, &str> = fields.lines().filter_map(|field| field.split_once(": ")).collect();
    let host = format!("files.test:{}", shared.site.port);
    let agent = concat!("cove/", env!("CARGO_PKG_VERSION"));
    let expected = [("accept", "*/*"), ("accept-encoding", "identity"), ("host", host.as_str()), ("user-agent", agent)];
    assert_eq!((line, fields), ("get /public/a http/1.1", BTreeMap::from(expected)));
    assert_eq!(shared.fetch(who, &["/public/a"]), "/public/a 200 200000 True\n");
    assert_eq!(shared.site.count("/public/a"), 1);
}

#[test]
fn a_changed_file_is_not_given_out() {
    for who in TestUser::all("a_changed_file_is_not_given_out") {
        let shared = SharedSite::start();
        for round in 1..=3 {
            assert_eq!(shared.fetch(who, &["/public/a"]), "/public/a 200 200000 True\n", "{who:?}");
            assert_eq!(shared.site.count("/public/a"), round);
            let (body, other) = (&shared.files(who, "bodies")[0], vec![b'x'; SIZE]);
            fs::write(body, &other[..SIZE - round + 1]).unwrap();
        }
    }
}

#[test]
fn a_kept_download_needs_a_rule_as_any_other() {
    let who = TestUser::all("a_kept_download_needs_a_rule_as_any_other")[0];
    let shared = SharedSite::start();
    shared.fetch(who, &["/public/a"]);
    let fetch = |rule, table| shared.fetch_with(who, rule, table, &["/public/a"]);
    for (rule, table, reason) in [
        ("cache = true, principals = [\"alice\"]", "", "/public/a URLError None\n"),
        ("cache = true, paths = [\"/public/b\"]", "", "/public/a 403 path-not-allowed\n"),
        ("cache = true", "deny = [{ host = \"files.test\" }]", "/public/a URLError None\n"),
    ] {
        let finished = fetch(rule, table);
        assert_eq!(finished.stdout, reason, "{rule} {table} {finished:#?}");
        assert!(finished.stderr.contains("network: refused "), "{finished:#?}");
    }
    let limited = fetch("cache = true", "max_download = \"100k\"");
    assert!(!limited.stdout.contains("200") && limited.stderr.contains("(limit: max_download)"), "{limited:#?}");
    assert_eq!(shared.site.count("/public/a"), 1);
    // Rules without the key, another address of the server, and a cache that is switched off.
    for (count, rule, table) in
        [(2, "inspect = true", ""), (3, "cache = true", "cache = false"), (4, "cache = true", "cache = 0")]
    {
        assert_eq!(fetch(rule, table).expect_success(), "/public/a 200 200000 True\n");
        assert_eq!(shared.site.count("/public/a"), count, "{rule} {table}");
    }
}

#[test]
fn sessions_that_download_the_same_at_once_all_get_it() {
    let who = TestUser::all("sessions_that_download_the_same_at_once_all_get_it")[0];
    let shared = SharedSite::start();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(shared.fetch(who, &["/public/a"; 5]), "/public/a 200 200000 True\n".repeat(5)));
        }
    });
    assert!((1..=4).contains(&shared.site.count("/public/a")), "{}", shared.site.count("/public/a"));
    assert_eq!(["bodies", "answers", "unfinished"].map(|name| shared.files(who, name).len()), [1, 1, 0]);
}

/// A process is killed between the first byte of a download and its last one, three times.
#[test]
fn a_killed_download_is_not_given_out_and_leaves_one_file_at_most() {
    let who = TestUser::all("a_killed_download_is_not_given_out_and_leaves_one_file_at_most")[0];
    let shared = SharedSite::start();
    for round in 1..=3 {
        let code = FETCH.replace("PORT", &shared.site.port.to_string()).replace("PATHS", "[\"/public/slow\"]");
        let mut command = shared.command_with(who, "cache = true", "", &["run", "--backend", "jail", "-c", &code]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_until("the download begins", || {
            shared.site.count("/public/slow") == round && !shared.files(who, "unfinished").is_empty()
        });
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(shared.files(who, "unfinished").len() <= 2 && shared.files(who, "answers").is_empty());
    }
    shared.fetch(who, &["/public/a"]);
    assert_eq!(["bodies", "answers", "unfinished"].map(|name| shared.files(who, name).len()), [1, 1, 0]);
}

#[test]
fn kept_downloads_stay_within_their_limit() {
    let who = TestUser::all("kept_downloads_stay_within_their_limit")[0];
    let shared = SharedSite::start();
    let paths: Vec<String> = (0..20).map(|number| format!("/public/{number}")).collect();
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    for _ in 0..2 {
        let finished = shared.fetch_with(who, "cache = true", "cache = \"1m\"", &paths);
        assert_eq!(finished.expect_success().matches("200 200000 True").count(), 20);
        let kept = ["bodies", "answers", "unfinished"].iter().flat_map(|name| shared.files(who, name));
        let total: u64 = kept.map(|path| fs::metadata(path).unwrap().len()).sum();
        assert!((SIZE as u64..=1 << 20).contains(&total), "{total}");
    }
}

#[test]
fn presets_of_packages_are_read_only_and_shared() {
    let run = |args: &[&str]| cove().run(TestUser::Root, args);
    for (preset, host) in
        [("pypi", "files.pythonhosted.org"), ("npm", "registry.npmjs.org"), ("crates", "static.crates.io")]
    {
        let rule = format!("preset {preset}: {host} inspected, GET HEAD, cache\n");
        assert!(run(&["net", "show", preset]).stdout.contains(&rule));
        for command in [&["net", "show"][..], &["explain", "--backend", "jail"], &["config", "show"]] {
            let shown = run(&[command, &["--allow-net", preset]].concat()).stdout;
            assert!(shown.contains(rule.trim_end()), "{shown}");
            assert!(shown.contains("downloads of rules with `cache` are kept, up to 2g"), "{shown}");
        }
        let check = |method| run(&["net", "check", "-X", method, &format!("https://{host}/x"), "--allow-net", preset]);
        assert_eq!((check("GET").code, check("PUT").code), (Some(0), Some(1)));
        assert!(check("PUT").stdout.contains("caused by: the rule allows GET, HEAD\n"));
    }
    assert!(!run(&["net", "show", "--allow-net", "github"]).stdout.contains("downloads"));
}

/// What was sent when a process was killed is on record, and a request that ended has one line.
#[test]
fn an_upload_that_is_killed_leaves_a_line() {
    let who = TestUser::all("an_upload_that_is_killed_leaves_a_line")[0];
    let shared = SharedSite::start();
    let code = "import urllib.request\nurllib.request.urlopen('https://files.test:PORT/PATH', b'x' * 100000).read()";
    let code = |path| code.replace("PORT", &shared.site.port.to_string()).replace("PATH", path);
    let start = |path| {
        let code = code(path);
        let mut command = shared.command_with(who, "inspect = true", "", &["run", "--backend", "jail", "-c", &code]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    assert!(start("done").wait().unwrap().success());
    let mut child = start("public/slow");
    wait_until("the upload begins", || shared.site.count("/public/slow") == 1);
    child.kill().unwrap();
    child.wait().unwrap();
    let facts = |line: &Value| ["method", "path", "mode", "decision"].map(|key| line[key].as_str().unwrap().to_owned());
    let facts: Vec<_> = shared.audit(who).iter().map(facts).collect();
    let expected = [["POST", "/done", "inspect", "allowed"], ["POST", "/public/slow", "inspect", "begun"]];
    assert_eq!(facts, expected.map(|facts| facts.map(str::to_owned)));
    let text = shared.command_with(who, "inspect = true", "", &["audit", "--egress"]).output().unwrap().stdout;
    assert!(String::from_utf8(text).unwrap().contains("begun, no end yet"));
}

#[test]
fn metrics_count_what_code_does_over_the_network() {
    let shared = SharedSite::start();
    let paths = r#"["/public/a", "/public/a"]"#;
    let code = FETCH.replace("PORT", &shared.site.port.to_string()).replace("PATHS", paths);
    let code = format!("{code}\ntry:\n    urllib.request.urlopen('https://evil.test')\nexcept OSError:\n    pass");
    let args = ["serve", "--http", "127.0.0.1:0", "--auth", "none", "--backend", "jail"];
    let server = HttpServerProcess::start(shared.command_with(TestUser::Root, "cache = true", "", &args));
    let mut client = TestHttpClient::new(server.address, None, ClientEra::Modern);
    client.call("execute_code", json!({"code": code})).ok();
    let page =
        || send_raw(server.address, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").body;
    wait_until("the connections are closed", || page().contains("\ncove_egress_streams 0\n"));
    let page = page();
    for line in [
        "cove_egress_requests_total{mode=\"inspect\",decision=\"allowed\"} 2",
        "cove_egress_requests_total{mode=\"tunnel\",decision=\"refused\"} 1",
        "cove_egress_refused_total{reason=\"host-not-allowed\"} 1",
        "cove_egress_connect_seconds_count 1",
        "cove_egress_cached_total 1",
    ] {
        assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
    }
    let value =
        |name: &str| page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<usize>().ok()).unwrap();
    assert!((2 * SIZE..2 * SIZE + 5000).contains(&value("cove_egress_bytes_total{direction=\"down\"}")), "{page}");
    assert!((1..5000).contains(&value("cove_egress_bytes_total{direction=\"up\"}")), "{page}");
    assert!(!page.contains(".test"), "no host is a label: {page}");
}
