//! `cove servers search` and `add` of published servers, through the real program: `catalog.d`, and a registry on this
//! machine that answers as the official one does, as its older version does, or with hostile answers.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex};

use cove_testkit::fixture;
use cove_testkit::fixture::front::{FixtureFront, FrontForm, FrontRequest, listen, write};
use cove_testkit::program::FinishedProgram;
use serde_json::{Value, json};

use crate::servers::ServersHome;
use crate::terminal::PseudoTerminal;

const META: &str = "io.modelcontextprotocol.registry/official";

/// The versions of the API that a registry offers.
#[derive(Clone, Copy, PartialEq)]
enum RegistryApi {
    /// `v0.1`, with documents in `camelCase`.
    Current,
    /// `v0` alone, with flat entries, `next_cursor` and no versions by name.
    Older,
}

/// A registry on loopback, and the requests that it got.
struct StandInRegistry {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
}

impl StandInRegistry {
    /// A registry with these documents, each with its status. A page has two entries.
    fn start(api: RegistryApi, servers: Vec<(Value, &'static str)>) -> Self {
        let requests: Arc<Mutex<Vec<String>>> = Arc::default();
        let log = Arc::clone(&requests);
        let address = listen(move |request, stream| {
            log.lock().unwrap().push(request.path.clone());
            let answer = answer(api, &servers, &request.path);
            let (status, body) = match answer {
                Some(body) => ("200 OK", body),
                None => ("404 Not Found", json!({"title": "Not Found", "status": 404})),
            };
            write(stream, status, "Content-Type: application/json\r\n", body.to_string().as_bytes());
        });
        Self { address, requests }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

fn answer(api: RegistryApi, servers: &[(Value, &str)], target: &str) -> Option<Value> {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let query: BTreeMap<&str, &str> = query.split('&').filter_map(|pair| pair.split_once('=')).collect();
    let wrap = |(server, status): &(Value, &str)| match api {
        RegistryApi::Current => json!({"server": server, "_meta": {META: {"status": status, "isLatest": true}}}),
        RegistryApi::Older => {
            let mut flat = server.clone();
            flat["status"] = json!(status);
            flat["_meta"] = json!({META: {"id": "b94b5f7e", "is_latest": true}});
            flat
        }
    };
    let (base, cursor_key) = match api {
        RegistryApi::Current => ("/v0.1/servers", "nextCursor"),
        RegistryApi::Older => ("/v0/servers", "next_cursor"),
    };
    if path == base {
        let wanted = query.get("search").copied().unwrap_or_default().replace("%2F", "/").replace('+', " ");
        let found: Vec<_> =
            servers.iter().filter(|(server, _)| server["name"].as_str().unwrap().contains(&wanted)).collect();
        let from: usize = query.get("cursor").map_or(0, |cursor| cursor.parse().unwrap());
        let page: Vec<Value> = found.iter().skip(from).take(2).map(|entry| wrap(entry)).collect();
        let mut metadata = json!({"count": page.len()});
        if from + 2 < found.len() {
            metadata[cursor_key] = json!((from + 2).to_string());
        }
        return Some(json!({"servers": page, "metadata": metadata}));
    }
    let parts: Vec<&str> = path.strip_prefix(base)?.split('/').collect();
    // The name must arrive as one part of the path.
    let ["", name, "versions", version] = parts[..] else { return None };
    if api == RegistryApi::Older {
        return None;
    }
    let name = name.replace("%2F", "/");
    let is_it = |server: &Value| server["name"] == name && (version == "latest" || server["version"] == version);
    servers.iter().find(|(server, _)| is_it(server)).map(wrap)
}

/// A document in the form of the published schema.
fn document(name: &str, fields: Value) -> Value {
    let mut document = json!({
        "$schema": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
        "name": name, "description": format!("The server {name}"), "version": "1.4.2",
    });
    document.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    check_form(&document);
    document
}

/// Checks what the published schema requires, so that these tests do not pass with documents of their own invention.
#[track_caller]
fn check_form(document: &Value) {
    let name = document["name"].as_str().unwrap();
    assert!(name.split('/').count() == 2 && (3..=200).contains(&name.len()), "{name}");
    assert!((1..=100).contains(&document["description"].as_str().unwrap().len()));
    for package in document["packages"].as_array().into_iter().flatten() {
        let known = [
            "registryType",
            "registryBaseUrl",
            "identifier",
            "version",
            "fileSha256",
            "runtimeHint",
            "transport",
            "runtimeArguments",
            "packageArguments",
            "environmentVariables",
        ];
        assert!(package.as_object().unwrap().keys().all(|key| known.contains(&key.as_str())), "{package}");
        assert!(["registryType", "identifier", "transport"].iter().all(|key| !package[key].is_null()), "{package}");
        let arguments = ["runtimeArguments", "packageArguments"].iter().filter_map(|key| package[key].as_array());
        for argument in arguments.flatten() {
            match argument["type"].as_str() {
                Some("named") => assert!(argument["name"].is_string(), "{argument}"),
                Some("positional") => assert!(argument["value"].is_string() || argument["valueHint"].is_string()),
                other => panic!("{other:?}"),
            }
        }
    }
    for remote in document["remotes"].as_array().into_iter().flatten() {
        assert!(matches!(remote["type"].as_str(), Some("streamable-http" | "sse")) && remote["url"].is_string());
    }
}

fn npm(name: &str, fields: Value) -> Value {
    let mut package = json!({"registryType": "npm", "identifier": "@example/tracker", "version": "1.4.2", "transport": {"type": "stdio"}});
    package.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    document(name, json!({"packages": [package]}))
}

fn definition(home: &ServersHome, name: &str) -> Value {
    let text = fs::read_to_string(home.at(&format!(".config/cove/servers.d/{name}.json"))).unwrap();
    serde_json::from_str::<Value>(&text).unwrap()["mcpServers"][name].clone()
}

#[track_caller]
fn check_no_control_characters(finished: &FinishedProgram) {
    let text = format!("{}{}", finished.stdout, finished.stderr);
    assert!(!text.contains(|c: char| (c.is_control() && c != '\n') || c == '\u{202e}'), "{text:?}");
}

#[test]
fn servers_of_a_registry_are_found_over_several_pages_of_both_versions_of_the_api() {
    for api in [RegistryApi::Current, RegistryApi::Older] {
        let names: Vec<String> = (1..=5).map(|number| format!("com.example/tracker{number}")).collect();
        let mut servers: Vec<(Value, &str)> = names.iter().map(|name| (npm(name, json!({})), "active")).collect();
        servers.push((npm("com.example/issues", json!({})), "active"));
        servers.push((npm("com.example/tracker-old", json!({})), "deleted"));
        let registry = StandInRegistry::start(api, servers);
        let url = registry.url();
        let home = ServersHome::new();
        let found = home.stdout_of(&["search", "--registry", &url, "tracker"]);
        let first: Vec<&str> = found.lines().map(|line| line.split_whitespace().next().unwrap()).collect();
        assert_eq!(first, names, "{found}");
        assert!(found.starts_with("com.example/tracker1  1.4.2  active  npm  The server"), "{found}");
        let pages = registry.requests().iter().filter(|request| request.contains("/servers?")).count();
        assert!(pages >= 3, "{:?}", registry.requests());
        // Several words are also searched for one by one, because a registry compares names alone.
        let found = home.stdout_of(&["search", "--registry", &url, "issues", "tracker1", "--json"]);
        let found: Value = serde_json::from_str(&found).unwrap();
        let names: Vec<&str> = found.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["com.example/issues", "com.example/tracker1"], "{found}");
        assert_eq!((&found[0]["source"], &found[0]["configured"]), (&json!("registry"), &Value::Null));
        // And added by name.
        let added = home.stdout_of(&["add", "--registry", &url, "com.example/tracker2", "--yes"]);
        assert!(added.starts_with("added `tracker2` in "), "{added}");
        assert_eq!(definition(&home, "tracker2")["args"], json!(["-y", "@example/tracker@1.4.2"]));
        let found = home.stdout_of(&["search", "--registry", &url, "tracker2"]);
        assert!(found.contains("configured as tracker2"), "{found}");
        let limited = home.run_servers(&["search", "--registry", &url, "tracker", "--limit", "2"]);
        assert_eq!(limited.stdout.lines().count(), 2);
        assert!(limited.stderr.contains("there are more"), "{limited:?}");
    }
}

#[test]
fn approved_servers_are_found_and_added_without_a_network() {
    let remote = document(
        "com.example/remote",
        json!({"remotes": [{"type": "streamable-http", "url": "https://mcp.example.com/mcp"}]}),
    );
    let both = json!([npm("com.example/tracker", json!({})), remote]).to_string();
    let wrong = json!([{"name": "../evil", "version": "1", "description": "x"}, 7]).to_string();
    let home = ServersHome::new()
        .with(".config/cove/catalog.d/a.json", &both)
        .with(".config/cove/catalog.d/b.json", &npm("com.example/alone", json!({})).to_string())
        .with(".config/cove/catalog.d/c.json", &wrong)
        .with(".config/cove/catalog.d/d.json", "{");
    let nowhere = "http://127.0.0.1:1";
    let listed = home.run_servers(&["search", "--registry", nowhere]);
    assert_eq!(listed.code, Some(0), "{listed:?}");
    let names: Vec<&str> = listed.stdout.lines().map(|line| line.split_whitespace().next().unwrap()).collect();
    assert_eq!(names, ["com.example/alone", "com.example/remote", "com.example/tracker"]);
    for problem in ["`../evil` cannot be used", "it is not an object", "d.json` could not be read"] {
        assert!(listed.stderr.contains(problem), "{problem}: {}", listed.stderr);
    }
    // A registry that cannot be reached does not hide what is approved.
    let found = home.run_servers(&["search", "--registry", nowhere, "tracker"]);
    assert_eq!(found.code, Some(0), "{found:?}");
    assert!(
        found.stdout.contains("approved") && found.stderr.contains("was not searched: it could not be reached"),
        "{found:?}"
    );
    let failed = home.run_servers(&["search", "--registry", nowhere, "zebra"]);
    assert_eq!(failed.code, Some(125), "{failed:?}");
    assert!(failed.stderr.contains("could not ask the registry http://127.0.0.1:1\n"), "{}", failed.stderr);
    assert_eq!(home.stdout_of(&["search", "--registry", "none", "zebra"]), "nothing found; try other words\n");
    // By its whole name, or by the part behind the slash.
    home.stdout_of(&["add", "--registry", "none", "com.example/remote", "--yes"]);
    assert_eq!(
        definition(&home, "remote"),
        json!({
            "description": "The server com.example/remote", "type": "http", "url": "https://mcp.example.com/mcp",
            "published": "com.example/remote@1.4.2",
        })
    );
    home.stdout_of(&["add", "--registry", "none", "alone", "--as", "other", "--yes"]);
    assert_eq!(definition(&home, "other")["published"], "com.example/alone@1.4.2");
    let unknown = home.refusal_of(&["add", "--registry", "none", "trackr"]);
    assert!(
        unknown.contains("no approved server of that name") && unknown.contains("did you mean `tracker`?"),
        "{unknown}"
    );
    let off = home.refusal_of(&["add", "--registry", "none", "com.other/server", "--yes"]);
    assert!(off.contains("`registry` is `none`"), "{off}");
}

#[test]
fn what_a_published_server_runs_is_shown_before_it_is_added() {
    let server = npm(
        "com.example/tracker",
        json!({
            "runtimeHint": "npx",
            "packageArguments": [
                {"type": "named", "name": "--port", "isRequired": true, "format": "number", "description": "Port to use"},
                {"type": "positional", "value": "; rm -rf ~"},
            ],
            "environmentVariables": [{"name": "LEVEL", "default": "info"}, {"name": "API_KEY", "isRequired": true, "isSecret": true}],
        }),
    );
    let registry = StandInRegistry::start(RegistryApi::Current, vec![(server, "deprecated")]);
    let home = ServersHome::new();
    let add = |more: &[&str]| {
        let mut args = vec!["add", "--registry"];
        let url = registry.url();
        args.push(&url);
        args.push("com.example/tracker");
        args.extend(more);
        home.run_servers(&args)
    };
    let missing = add(&["--yes"]);
    assert_eq!(missing.code, Some(2), "{missing:?}");
    assert!(
        missing.stderr.contains("it needs `port` (Port to use)\nhint: add `--set port=VALUE`"),
        "{}",
        missing.stderr
    );
    let asked = add(&["--set", "port=8080"]);
    assert_eq!(asked.code, Some(2), "{asked:?}");
    for line in [
        "com.example/tracker 1.4.2: The server com.example/tracker\n",
        "will run npx -y @example/tracker@1.4.2 --port 8080 '; rm -rf ~', as `tracker`\n",
        "  with LEVEL=info\n",
        "  needs secret `tracker.API_KEY`\n",
        "warning: this version is deprecated\n",
        "hint: read what it will do, then repeat the command with `--yes`\n",
    ] {
        assert!(asked.stderr.contains(line), "{line}: {}", asked.stderr);
    }
    assert!(!home.at(".config/cove/servers.d").exists(), "nothing was written");
    for (wrong, expected) in
        [("port=x", "it is no number"), ("prot=1", "did you mean `port`?"), ("API_KEY=s3cr3t", "is a secret")]
    {
        let said = add(&["--yes", "--set", "port=1", "--set", wrong]);
        let said = if wrong.starts_with("port") { add(&["--yes", "--set", wrong]) } else { said };
        assert_eq!(said.code, Some(2), "{said:?}");
        assert!(said.stderr.contains(expected) && !said.stderr.contains("s3cr3t"), "{wrong}: {}", said.stderr);
    }
    let added = add(&["--yes", "--set", "port=8080"]);
    assert_eq!(added.code, Some(0), "{added:?}");
    assert!(added.stdout.contains("next: `cove secrets set tracker.API_KEY`"), "{}", added.stdout);
    let written = definition(&home, "tracker");
    assert_eq!(written["args"], json!(["-y", "@example/tracker@1.4.2", "--port", "8080", "; rm -rf ~"]));
    assert_eq!(written["env"], json!({"LEVEL": "info", "API_KEY": "${secret:tracker.API_KEY}"}));
    let file = home.at(".config/cove/servers.d/tracker.json");
    assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    // Another version, and one that does not exist.
    let other = add(&["--version", "9.9.9", "--yes"]);
    assert!(other.stderr.contains("has no version 9.9.9 of `com.example/tracker`"), "{}", other.stderr);
    let flags = home.refusal_of(&["add", "x", "--set", "a=b", "--", "true"]);
    assert!(flags.starts_with("could not use `--set` with a command or an address"), "{flags}");
    let flags = home.refusal_of(&["add", "com.example/tracker", "--env", "a=b"]);
    assert!(flags.starts_with("could not use `--env` for `com.example/tracker`"), "{flags}");
}

#[test]
fn a_person_on_a_terminal_is_asked_for_inputs_and_consent() {
    let server = npm(
        "com.example/tracker",
        json!({
            "packageArguments": [{"type": "positional", "valueHint": "folder", "isRequired": true, "choices": ["/srv", "/opt"]}],
        }),
    );
    let home = ServersHome::new().with(".config/cove/catalog.d/a.json", &server.to_string());
    let start = || PseudoTerminal::start(&home.command(&["add", "--registry", "none", "tracker", "--no-try"]));
    let mut terminal = start();
    terminal.expect("folder (one of /srv, /opt): ");
    terminal.send("/srv\n").expect("Add it? [y/N] ");
    terminal.send("n\n");
    let (code, shown) = terminal.close();
    assert_eq!(code, Some(2), "{shown}");
    assert!(shown.contains("nothing was changed") && !home.at(".config/cove/servers.d").exists(), "{shown}");
    let mut terminal = start();
    terminal.expect("folder (one of /srv, /opt): ");
    terminal.send("/srv\n").expect("Add it? [y/N] ");
    terminal.send("y\n");
    let (code, shown) = terminal.close();
    assert_eq!(code, Some(0), "{shown}");
    assert_eq!(definition(&home, "tracker")["args"][2], "/srv");
}

#[test]
fn a_secret_is_asked_for_without_showing_it() {
    let variables = json!([{"name": "API_KEY", "isRequired": true, "isSecret": true}]);
    let server = npm("com.example/tracker", json!({"environmentVariables": variables}));
    let home = ServersHome::new().with(".config/cove/catalog.d/a.json", &server.to_string());
    let mut terminal = PseudoTerminal::start(&home.command(&["add", "--registry", "none", "tracker", "--no-try"]));
    terminal.expect("Add it? [y/N] ");
    terminal.send("y\n").expect("value of tracker.API_KEY (it is not shown): ");
    terminal.send("canary-secret\n");
    let (code, shown) = terminal.close();
    assert_eq!(code, Some(0), "{shown}");
    assert!(!shown.contains("canary-secret") && !shown.contains("cove secrets set"), "{shown}");
    assert_eq!(definition(&home, "tracker")["env"], json!({"API_KEY": "${secret:tracker.API_KEY}"}));
    let kept = fs::read_to_string(home.at(".local/state/cove/secrets.json")).unwrap();
    assert!(kept.contains("canary-secret"), "{kept}");
}

#[test]
fn a_reviewed_server_is_kept_in_the_catalog() {
    let registry =
        StandInRegistry::start(RegistryApi::Current, vec![(npm("com.example/tracker", json!({})), "active")]);
    let home = ServersHome::new();
    let saved = home.stdout_of(&["add", "--registry", &registry.url(), "com.example/tracker", "--save", "--yes"]);
    assert!(
        saved.starts_with("approved `com.example/tracker` in [HOME]/.config/cove/catalog.d/com.example_tracker.json\n"),
        "{saved}"
    );
    assert!(!home.at(".config/cove/servers.d").exists(), "it is approved, not added");
    let asked = registry.requests().len();
    home.stdout_of(&["add", "--registry", &registry.url(), "com.example/tracker", "--yes"]);
    assert_eq!(registry.requests().len(), asked, "the registry is not asked for what is approved");
    // A copy whose name is one letter away.
    let registry =
        StandInRegistry::start(RegistryApi::Current, vec![(npm("com.exarnple/trackers", json!({})), "active")]);
    let warned = home.run_servers(&["add", "--registry", &registry.url(), "com.exarnple/trackers", "--yes"]);
    assert!(warned.stderr.contains("warning: its name is one letter away from `tracker`"), "{}", warned.stderr);
}

#[test]
fn an_added_server_works() {
    let front = FixtureFront::start(&["--era", "modern"], FrontForm::Json);
    let remote = document(
        "com.example/remote",
        json!({"remotes": [{"type": "streamable-http", "url": front.definition()["url"]}]}),
    );
    let home = ServersHome::new().with(".config/cove/catalog.d/a.json", &remote.to_string()).with(
        "bin/npx",
        &format!(
            "#!/bin/sh\n[ \"$1 $2\" = '-y @example/tracker@1.4.2' ] || exit 9\nshift 2\nexec {} \"$@\"\n",
            fixture::program().display()
        ),
    );
    let script = home.at("bin/npx");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let local = npm(
        "com.example/tracker",
        json!({"packageArguments": [{"type": "named", "name": "--era", "value": "legacy"}]}),
    );
    let home = home.with(".config/cove/catalog.d/b.json", &local.to_string());
    for name in ["remote", "tracker"] {
        home.stdout_of(&["add", "--registry", "none", name, "--yes"]);
    }
    let mut refresh = home.command(&["refresh"]);
    refresh.env("PATH", format!("{}:/usr/bin:/bin", home.at("bin").display()));
    let refreshed = FinishedProgram::from_output(refresh.output().unwrap());
    assert_eq!(refreshed.stdout, "remote   21 tools\ntracker  21 tools\n", "{refreshed:?}");
}

/// Answers every request in the same way.
fn hostile(answer: impl Fn(&FrontRequest, &mut TcpStream) + Send + Sync + 'static) -> String {
    let address = listen(move |request, stream| answer(&request, stream));
    format!("http://{address}")
}

fn json_answer(stream: &mut TcpStream, body: &Value) {
    write(stream, "200 OK", "Content-Type: application/json\r\n", body.to_string().as_bytes());
}

#[test]
fn hostile_registries_are_bounded() {
    let home = ServersHome::new();
    let search = |url: &str| home.run_servers(&["search", "--registry", url, "tracker"]);
    // An answer of a gigabyte is not read.
    let url = hostile(|_, stream| {
        let head =
            format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", 1_u64 << 30);
        let _ = stream.write_all(head.as_bytes());
        let block = vec![b' '; 1 << 20];
        while stream.write_all(&block).is_ok() {}
    });
    let said = search(&url);
    assert_eq!(said.code, Some(125), "{said:?}");
    assert!(said.stderr.contains("its answer has more than 4194304 bytes"), "{}", said.stderr);
    // Cursors that never end: by number, and by repetition.
    for is_new in [true, false] {
        let count = Arc::new(Mutex::new(0));
        let counted = Arc::clone(&count);
        let url = hostile(move |_, stream| {
            let mut count = counted.lock().unwrap();
            *count += 1;
            let cursor = if is_new { count.to_string() } else { "same".to_owned() };
            json_answer(stream, &json!({"servers": [], "metadata": {"nextCursor": cursor}}));
        });
        let said = search(&url);
        assert_eq!((said.code, said.stdout.as_str()), (Some(0), "nothing found; try other words\n"), "{said:?}");
        assert!(*count.lock().unwrap() <= 10);
    }
    // Redirects elsewhere are not followed.
    for to in ["file:///etc/passwd", "http://192.0.2.1/v0.1/servers", "//192.0.2.1/x"] {
        let url = hostile(move |_, stream| write(stream, "302 Found", &format!("Location: {to}\r\n"), b""));
        let said = search(&url);
        assert_eq!(said.code, Some(125), "{said:?}");
        assert!(
            said.stderr.contains("redirect") || said.stderr.contains("could not be reached"),
            "{to}: {}",
            said.stderr
        );
        assert!(!said.stderr.contains("root:"), "{}", said.stderr);
    }
    // Not the protocol.
    for (body, expected) in
        [("<html>", "its answer is no JSON"), ("[]", "its answer has no `servers`"), ("7", "no `servers`")]
    {
        let url = hostile(move |_, stream| write(stream, "200 OK", "", body.as_bytes()));
        let said = search(&url);
        assert!(said.code == Some(125) && said.stderr.contains(expected), "{body}: {said:?}");
    }
    let deep = "[".repeat(100_000);
    let url = hostile(move |_, stream| write(stream, "200 OK", "", deep.as_bytes()));
    assert!(search(&url).stderr.contains("its answer is no JSON"));
    let said = home.refusal_of(&["search", "--registry", "http://registry.example.com", "x"]);
    assert!(said.contains("is not encrypted"), "{said}");
}

#[test]
fn hostile_documents_do_no_harm() {
    let dirty = "x\u{1b}[2J\u{1b}]0;title\u{7}\u{202e}y\nz";
    let mut terminal = npm("com.example/tracker-a", json!({}));
    terminal["description"] = json!(dirty);
    terminal["title"] = json!(dirty);
    let mut documents = vec![terminal];
    for (number, name) in
        ["../../etc/tracker", "com.example/../tracker", "tracker\u{1b}[2J/x", "tracker"].iter().enumerate()
    {
        documents.push(json!({"name": name, "version": format!("1.0.{number}"), "description": "tracker"}));
    }
    let with = |name: &str, package: Value| json!({"name": name, "version": "1.0.0", "description": "d", "packages": [package]});
    documents.push(with(
        "com.example/tracker-b",
        json!({"registryType": "npm", "identifier": "tracker", "version": "1.0.0", "transport": {"type": "stdio"},
        "environmentVariables": [{"name": "X", "value": "${HOME}"}]}),
    ));
    documents.push(with(
        "com.example/tracker-c",
        json!({"registryType": "npm", "identifier": "tracker", "version": "1.0.0", "transport": {"type": "stdio"},
        "packageArguments": [{"type": "positional", "value": "${cmd:touch /tmp/pwned}"}]}),
    ));
    documents.push(with(
        "com.example/tracker-d",
        json!({"registryType": "npm", "identifier": "--eval=1", "version": "1.0.0", "transport": {"type": "stdio"}}),
    ));
    let servers = documents.into_iter().map(|document| (document, "active")).collect();
    let registry = StandInRegistry::start(RegistryApi::Current, servers);
    let home = ServersHome::new();
    let url = registry.url();
    let found = home.run_servers(&["search", "--registry", &url, "tracker"]);
    assert_eq!(found.code, Some(0), "{found:?}");
    check_no_control_characters(&found);
    let names: Vec<&str> = found.stdout.lines().map(|line| line.split_whitespace().next().unwrap()).collect();
    assert_eq!(names, ["com.example/tracker-a", "com.example/tracker-d"], "{found:?}");
    assert_eq!(found.stderr.matches("warning: left out: ").count(), 4, "{}", found.stderr);
    for (name, expected) in [
        ("com.example/tracker-b", "would put in variables of your own"),
        ("com.example/tracker-c", "would put in variables of your own"),
        ("com.example/tracker-d", "is no name of a package"),
        ("../../etc/tracker", "not of the form"),
        ("com.example/../tracker", "not of the form"),
        ("com.example/", "not of the form"),
    ] {
        let said = home.run_servers(&["add", "--registry", &url, name, "--yes"]);
        assert!(matches!(said.code, Some(2)) && said.stderr.contains(expected), "{name}: {said:?}");
        check_no_control_characters(&said);
    }
    let said = home.run_servers(&["add", "--registry", &url, "com.example/tracker-a", "--yes", "--as", "../x"]);
    assert!(said.code == Some(2) && said.stderr.contains("could not use the name"), "{said:?}");
    assert!(!home.at(".config/cove/servers.d").exists(), "nothing was written");
    // A version that its publisher deleted, and an answer with another server than the one that was asked for.
    let registry =
        StandInRegistry::start(RegistryApi::Current, vec![(npm("com.example/tracker", json!({})), "deleted")]);
    let said = home.refusal_of(&["add", "--registry", &registry.url(), "com.example/tracker", "--yes"]);
    assert!(said.contains("its publisher deleted this version"), "{said}");
    let other = npm("com.evil/tracker", json!({}));
    let url = hostile(move |_, stream| json_answer(stream, &json!({"server": other})));
    let said = home.run_servers(&["add", "--registry", &url, "com.example/tracker", "--yes"]);
    assert!(
        said.code == Some(2) && said.stderr.contains("it answered with `com.evil/tracker` 1.4.2 instead"),
        "{said:?}"
    );
}

#[test]
fn a_registry_that_hangs_is_given_up() {
    let home = ServersHome::new();
    let url = hostile(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{");
        // Ends with the connection.
        let _ = std::io::copy(stream, &mut std::io::sink());
    });
    let said = home.run_servers(&["search", "--registry", &url, "tracker"]);
    assert!(said.code == Some(125) && said.stderr.contains("it did not answer within 20 seconds"), "{said:?}");
}
