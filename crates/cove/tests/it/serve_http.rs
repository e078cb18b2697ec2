//! MCP over HTTP, through the real program: sessions, principals, authentication, cancelling, load, endings.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cove_testkit::TestUser;
use cove_testkit::mcp::{ClientEra, HttpServerProcess, TestHttpClient, send_raw};
use serde_json::{Value, json};

use crate::{cove, process, wait_until};

/// A server with a state directory of its own, which lives as long as the server.
struct HttpServerFixture {
    server: HttpServerProcess,
    state: tempfile::TempDir,
}

fn serve(args: &[&str]) -> HttpServerFixture {
    let state = tempfile::tempdir().unwrap();
    HttpServerFixture { server: serve_in(&state, args), state }
}

fn serve_in(state: &tempfile::TempDir, args: &[&str]) -> HttpServerProcess {
    let mut command = cove().command(TestUser::Root);
    command.args(["serve", "--http", "127.0.0.1:0", "--tools", "all", "--state-dir"]).arg(state.path());
    HttpServerProcess::start({
        command.args(args);
        command
    })
}

fn serve_open(args: &[&str]) -> HttpServerFixture {
    serve(&[&["--auth", "none"], args].concat())
}

fn run_code(client: &mut TestHttpClient, code: &str) -> String {
    client.call("execute_code", json!({"code": code})).ok()
}

#[test]
fn legacy_connection_has_its_own_session() {
    let served = serve_open(&["--warm", "1"]);
    let mut first = TestHttpClient::new(served.server.address, None, ClientEra::Legacy);
    let mut second = TestHttpClient::new(served.server.address, None, ClientEra::Legacy);
    assert_eq!(run_code(&mut first, "x = 'first'"), "(no output)");
    assert_eq!(run_code(&mut second, "x = 'second'"), "(no output)");
    assert_eq!(run_code(&mut first, "x"), "'first'\n");
    first.call("sandbox_write_file", json!({"path": "/workspace/f", "content": "kept"})).ok();
    for _ in 0..10 {
        assert_eq!(first.call("sandbox_read_file", json!({"path": "/workspace/f"})).ok(), "kept");
    }
    second.call("sandbox_read_file", json!({"path": "/workspace/f"})).failed();
    // Closing a connection ends its sandbox and no other. One more sandbox is kept ready.
    let sandboxes = || process::children(served.server.pid()).len();
    wait_until("two sessions and one ready", || sandboxes() == 3);
    let delete = format!(
        "DELETE /mcp HTTP/1.1\r\nHost: {}\r\nMcp-Session-Id: {}\r\nConnection: close\r\n\r\n",
        served.server.address,
        first.connection().unwrap()
    );
    let answer = send_raw(served.server.address, delete.as_bytes());
    assert!((200..300).contains(&answer.status), "{answer:?}");
    wait_until("its sandbox is gone", || sandboxes() == 2);
    assert_eq!(run_code(&mut second, "x"), "'second'\n");
    let gone = first.send("tools/list", Value::Null);
    assert_eq!(gone.status, 404, "{gone:?}");
}

#[test]
fn stateless_calls_of_a_client_share_its_default_session() {
    let served = serve_open(&[]);
    let client = |name: &str| TestHttpClient::new(served.server.address, None, ClientEra::Modern).with_name(name);
    let mut first = client("editor");
    let called = first.call("execute_code", json!({"code": "x = 7\nx"}));
    let session = called.session();
    assert_eq!(called.ok(), format!("7\nsession: {session} (pass it as `session` to go on here)"));
    let other = serve_open(&["--output", "json"]);
    let mut elsewhere = TestHttpClient::new(other.server.address, None, ClientEra::Modern);
    let structured = elsewhere.call("execute_code", json!({"code": "1"})).structured().clone();
    assert_eq!(structured["note"], "pass `session` to go on here", "{structured}");
    // Every request has a connection of its own, so what counts is the client's name.
    let again = client("editor").call("execute_code", json!({"code": "x"}));
    assert_eq!((again.ok().lines().next().unwrap(), again.session()), ("7", session.clone()));
    assert_eq!(first.call("execute_code", json!({"code": "x", "session": session})).ok(), "7\n");
    first.call("sandbox_write_file", json!({"path": "f", "content": "kept"})).ok();
    assert_eq!(first.call("sandbox_read_file", json!({"path": "f"})).ok(), "kept");
    let named = first.call("execute_code", json!({"code": "y = 1", "session": "mine"}));
    assert_eq!(named.ok(), "(no output)");
    assert_eq!(first.call("execute_code", json!({"code": "y", "session": "mine"})).ok(), "1\n");
    // Other clients have other sessions, also if their names look like names or handles of sessions.
    for name in ["Editor", "", "mine", session.as_str(), "../editor", "editor\0", "\u{202e}editor"] {
        let text = client(name).call("execute_code", json!({"code": "x, y"})).failed();
        assert!(text.contains("NameError"), "{name:?}: {text}");
    }
    for name in ["client/editor", "client:editor"] {
        let text = first.call("execute_code", json!({"code": "x", "session": name})).failed();
        assert!(text.contains("NameError") || text.contains("could not use"), "{name}: {text}");
    }
    // A client that does not say its name properly has a default session too.
    for info in [json!(null), json!(5), json!({"name": 5}), json!({"version": "1"})] {
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": ClientEra::Modern.version(),
            "io.modelcontextprotocol/clientCapabilities": {},
            "io.modelcontextprotocol/clientInfo": info,
        });
        let params = json!({"name": "execute_code", "arguments": {"code": "x"}, "_meta": meta});
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
        let answer = send_raw(served.server.address, &first.post(&message));
        let text = answer.body;
        assert!(text.contains("NameError") || text.contains("clientInfo"), "{info}: {text}");
    }
}

#[test]
fn creates_a_private_token_and_requires_it() {
    use std::os::unix::fs::PermissionsExt;
    let served = serve(&[]);
    let file = served.state.path().join("tokens");
    let kept = std::fs::read_to_string(&file).unwrap();
    let token = kept.lines().rev().find(|line| !line.is_empty() && !line.starts_with('#')).unwrap();
    let token = token.split_whitespace().last().unwrap().to_owned();
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    wait_until("it is shown once, ready to paste", || {
        let said = served.server.errors();
        said.contains(&token) && said.contains("mcpServers")
    });
    let mut right = TestHttpClient::new(served.server.address, Some(&token), ClientEra::Modern);
    right.call("execute_code", json!({"code": "1"})).ok();
    for wrong in [None, Some("cove_wrong_wrong_wrong"), Some("")] {
        let mut client = TestHttpClient::new(served.server.address, wrong, ClientEra::Modern);
        let answer = client.send("tools/list", Value::Null);
        assert_eq!(answer.status, 401, "{answer:?}");
        assert!(answer.header("www-authenticate").is_some_and(|value| value.starts_with("Bearer")), "{answer:?}");
        assert!(!answer.body.contains(&token));
    }
    for path in ["/metrics", "/healthz", "/readyz"] {
        let request = |authorization: &str| {
            let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{authorization}\r\n");
            send_raw(served.server.address, head.as_bytes())
        };
        assert_eq!(request("").status, if path == "/metrics" { 401 } else { 200 }, "{path}");
        let answer = request(&format!("Authorization: Bearer {token}\r\n"));
        assert_eq!(answer.status, 200, "{path}");
        if path == "/metrics" {
            let cells = "cove_cells_total{language=\"python\",outcome=\"completed\"} 1";
            assert!(answer.body.contains(cells), "{}", answer.body);
            assert!(answer.body.contains("cove_sessions 1\n"), "{}", answer.body);
            assert!(answer.body.contains("cove_sessions_started_total 1\n"), "{}", answer.body);
        }
    }
    let HttpServerFixture { server, state } = served;
    drop(server);
    let again = serve_in(&state, &["--log-level", "debug"]);
    let mut right = TestHttpClient::new(again.address, Some(&token), ClientEra::Legacy);
    right.call("execute_code", json!({"code": "print('canary-in-output')"})).ok();
    let said = again.errors();
    assert!(!said.contains(&token), "a token is shown once, and is in no log: {said}");
    assert!(!said.contains("canary-in-output"), "neither is code nor output: {said}");
}

#[test]
fn isolates_principals_from_each_other() {
    let state = tempfile::tempdir().unwrap();
    let file = state.path().join("team");
    std::fs::write(&file, "alice alice-0123456789abcdef\nbob bob-0123456789abcdef\n").unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let server = serve_in(&state, &["--token-file", file.to_str().unwrap()]);
    let mut alice = TestHttpClient::new(server.address, Some("alice-0123456789abcdef"), ClientEra::Modern);
    let mut bob = TestHttpClient::new(server.address, Some("bob-0123456789abcdef"), ClientEra::Modern);
    let called = alice.call("execute_code", json!({"code": "secret = 1\nprint('x' * 50_000)"}));
    let (session, uri) = (called.session(), called.block("resource_link").unwrap()["uri"].clone());
    let text = bob.call("execute_code", json!({"code": "secret"})).failed();
    assert!(text.contains("NameError"), "a client of the same name, for another principal: {text}");
    alice.request("resources/read", json!({"uri": uri})).unwrap();
    alice.call("execute_code", json!({"code": "secret = 2", "session": "shared name"})).ok();
    // By handle, by name, by address: bob cannot use the session, and no answer reveals that it exists.
    let text = bob.call("execute_code", json!({"code": "secret", "session": session})).failed();
    let never = "s_00000000000000000000000000000000";
    let unknown = bob.call("execute_code", json!({"code": "secret", "session": never})).failed();
    assert_eq!(text.replace(&session, never), unknown);
    let text = bob.call("execute_code", json!({"code": "secret", "session": "shared name"})).failed();
    assert!(text.contains("NameError"), "{text}");
    for tool in ["sandbox_list_files", "stop_session"] {
        let key = if tool == "stop_session" { "session_id" } else { "session" };
        let text = bob.call(tool, json!({key: session})).failed();
        assert!(text.contains("could not find the session"), "{text}");
    }
    let error = bob.request("resources/read", json!({"uri": uri})).unwrap_err();
    assert_eq!(error["code"], -32602, "{error}");
    let file = format!("cove://sessions/{session}/files/workspace/f");
    bob.request("resources/read", json!({"uri": file})).unwrap_err();
    assert_eq!(alice.call("execute_code", json!({"code": "secret", "session": session})).ok(), "1\n");
    // The same for connections of the old era.
    let alices = TestHttpClient::new(server.address, Some("alice-0123456789abcdef"), ClientEra::Legacy);
    let bobs = TestHttpClient::new(server.address, Some("bob-0123456789abcdef"), ClientEra::Legacy);
    let mut thief = bobs.with_connection(alices.connection());
    let answer = thief.send("tools/list", Value::Null);
    assert_eq!(answer.status, 404, "{answer:?}");
    let delete = format!(
        "DELETE /mcp HTTP/1.1\r\nHost: localhost\r\nMcp-Session-Id: {}\r\nConnection: close\r\n\
         Authorization: Bearer bob-0123456789abcdef\r\n\r\n",
        alices.connection().unwrap()
    );
    send_raw(server.address, delete.as_bytes());
    let mut alices = alices;
    assert_eq!(alices.send("tools/list", Value::Null).status, 200, "it is still there");
}

#[test]
fn refuses_foreign_origins_and_unsafe_addresses() {
    let served = serve_open(&[]);
    let address = served.server.address;
    let mut client = TestHttpClient::new(address, None, ClientEra::Modern);
    let list = client.message("tools/list", Value::Null);
    let honest = String::from_utf8(client.post(&list)).unwrap();
    assert_eq!(send_raw(address, honest.as_bytes()).status, 200);
    let own = format!("Host: {address}\r\n");
    for headers in [
        "Host: evil.example\r\n".to_owned(),
        format!("Host: 127.0.0.1.evil.example:{}\r\n", address.port()),
        format!("{own}Origin: https://evil.example\r\n"),
        format!("{own}Origin: null\r\n"),
        format!("{own}Host: evil.example\r\n"),
    ] {
        let answer = send_raw(address, honest.replace(&own, &headers).as_bytes());
        assert!(answer.status == 403 || answer.status == 400, "{headers}: {answer:?}");
    }
    let from_here = format!("{own}Origin: http://localhost:3000\r\n");
    assert_eq!(send_raw(address, honest.replace(&own, &from_here).as_bytes()).status, 200);
    // Refused before it is read: the body never comes.
    let huge = format!("POST /mcp HTTP/1.1\r\n{own}Content-Type: application/json\r\nContent-Length: 50000000\r\n\r\n");
    assert_eq!(send_raw(address, huge.as_bytes()).status, 413);

    let refused = cove().run(TestUser::Root, &["serve", "--http", "0.0.0.0:0", "--auth", "none"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.stderr.contains("anyone who can reach this machine") && refused.stderr.contains("hint: "));
}

#[test]
fn closed_stream_cancels_the_process_inside() {
    let served = serve_open(&[]);
    let mut client = TestHttpClient::new(served.server.address, None, ClientEra::Modern);
    let session = client.call("execute_code", json!({"code": "x = 1"})).session();
    let sleeps = || process::pids_with_text("sleep\u{0}5353").len();
    // Before any answer, and while progress streams.
    for meta in [json!({}), json!({"progressToken": 1})] {
        let code = "import subprocess\nsubprocess.run(['sleep', '5353'])";
        let arguments = json!({"code": code, "session": session});
        let params = json!({"name": "execute_code", "arguments": arguments, "_meta": meta});
        let mut stream = client.begin("tools/call", params);
        wait_until("the process inside runs", || sleeps() == 1);
        if meta != json!({}) {
            read_until(&mut stream, "notifications/progress");
        }
        drop(stream);
        wait_until("the process inside is gone", || sleeps() == 0);
        let again = client.call("execute_code", json!({"code": "x", "session": session}));
        assert_eq!(again.ok(), "1\n", "the session goes on");
    }
    // The old era cancels by a notification: a client may resume a broken stream.
    let mut legacy = TestHttpClient::new(served.server.address, None, ClientEra::Legacy);
    run_code(&mut legacy, "x = 2");
    let call =
        json!({"name": "execute_code", "arguments": {"code": "import subprocess\nsubprocess.run(['sleep', '5353'])"}});
    let message = legacy.message("tools/call", call);
    let mut stream = TcpStream::connect(served.server.address).unwrap();
    stream.write_all(&legacy.post(&message)).unwrap();
    wait_until("the process inside runs", || sleeps() == 1);
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": message["id"]}});
    assert_eq!(send_raw(served.server.address, &legacy.post(&cancel)).status, 202);
    wait_until("the process inside is gone", || sleeps() == 0);
    assert_eq!(run_code(&mut legacy, "x"), "2\n");
}

#[test]
fn unnamed_sessions_end_to_make_room() {
    let served = serve_open(&["--max-sessions", "3"]);
    let mut client = TestHttpClient::new(served.server.address, None, ClientEra::Modern);
    client.call("execute_code", json!({"code": "kept = 1", "session": "named"})).ok();
    // A client may invent any number of names.
    let first = client.call("execute_code", json!({"code": "1"})).session();
    for number in 0..6 {
        let mut other = client.clone().with_name(&format!("{number}{}", "x".repeat(10_000)));
        other.call("execute_code", json!({"code": "1"})).ok();
    }
    let text = client.call("execute_code", json!({"code": "1", "session": first})).failed();
    assert!(text.contains("ended to make room"), "{text}");
    let text = client.call("execute_code", json!({"code": "1"})).ok();
    assert!(text.contains("note: the session before this one ended to make room"), "{text}");
    assert_eq!(client.call("execute_code", json!({"code": "kept", "session": "named"})).ok(), "1\n");
}

#[test]
fn malformed_requests_get_http_error_codes() {
    let served = serve_open(&[]);
    let address = served.server.address;
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nConnection: close\r\n"
    );
    for (body, code) in [("{\"a\":", -32700), ("not json", -32700), ("[]", -32600), ("5", -32600)] {
        let answer = send_raw(address, format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes());
        assert_eq!(answer.status, 400, "{body}: {answer:?}");
        assert_eq!(answer.messages()[0]["error"]["code"], code, "{body}");
    }
    let delete = format!("DELETE /mcp HTTP/1.1\r\nHost: {address}\r\nMcp-Session-Id: no\r\nConnection: close\r\n\r\n");
    assert_eq!(send_raw(address, delete.as_bytes()).status, 404);
}

fn read_until(stream: &mut TcpStream, text: &str) {
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut seen = String::new();
    let mut piece = [0; 4096];
    while !seen.contains(text) {
        let count = stream.read(&mut piece).unwrap();
        assert!(count > 0, "no {text} in {seen}");
        seen.push_str(&String::from_utf8_lossy(&piece[..count]));
    }
}

#[test]
fn shutdown_answers_calls_in_flight() {
    for era in ClientEra::ALL {
        let mut served = serve_open(&[]);
        let mut client = TestHttpClient::new(served.server.address, None, era);
        client.call("execute_code", json!({"code": "1", "session": "s"})).ok();
        let arguments = json!({"code": "print('part', flush=True)\nwhile True: pass", "session": "s"});
        let meta = json!({"progressToken": 1});
        let params = json!({"name": "execute_code", "arguments": arguments, "_meta": meta});
        let mut stream = client.begin("tools/call", params);
        // The report of a running cell contains its last line.
        read_until(&mut stream, "\"part\"");
        let sandboxes = process::children(served.server.pid());
        process::terminate(served.server.pid());
        read_until(&mut stream, "aborted because the server is ending");
        assert!(served.server.wait().success(), "{}", served.server.errors());
        wait_until("no sandbox is left", || sandboxes.iter().all(|pid| !process::is_alive(*pid)));
    }
}

#[test]
fn two_hundred_sessions_and_thirty_two_cells_at_once() {
    const SESSIONS: usize = 200;
    const CELLS: usize = 32;
    const ROUNDS: usize = 6;
    let served = serve_open(&["--max-sessions", "256", "--rate-limit", "100000", "--memory", "256m"]);
    let address = served.server.address;
    let at_rest = process::status_value(served.server.pid(), "VmRSS:");
    let next = AtomicUsize::new(0);
    let all = Mutex::new(BTreeSet::new());
    let each = |work: &(dyn Fn(&mut TestHttpClient, usize) + Sync), count: usize| {
        next.store(0, Ordering::SeqCst);
        std::thread::scope(|scope| {
            for _ in 0..CELLS {
                scope.spawn(|| {
                    let mut client = TestHttpClient::new(address, None, ClientEra::Modern);
                    loop {
                        let number = next.fetch_add(1, Ordering::SeqCst);
                        if number >= count {
                            return;
                        }
                        work(&mut client, number);
                    }
                });
            }
        });
    };
    each(
        &|client, number| {
            let code = format!("me = {number}\nseen = []\nimport os\nos.getcwd()");
            let called = client.call("execute_code", json!({"code": code, "session": format!("n{number}")}));
            assert_eq!(called.ok(), "'/workspace'\n", "{number}");
        },
        SESSIONS,
    );
    let full = process::status_value(served.server.pid(), "VmRSS:");
    each(
        &|client, turn| {
            // Neighbours run at the same time, in a different order each round.
            let number = (turn * 37) % SESSIONS;
            let code = format!("seen.append({turn})\nprint(me, *seen, sep=',')\nme");
            let called = client.call("execute_code", json!({"code": code, "session": format!("n{number}")}));
            let text = called.ok();
            let (line, value) = text.trim_end().split_once('\n').unwrap();
            assert_eq!(value, number.to_string(), "{text}");
            let mut parts = line.split(',').map(|part| part.parse::<usize>().unwrap());
            assert_eq!(parts.next(), Some(number), "{text}");
            for turn in parts {
                assert_eq!((turn * 37) % SESSIONS, number, "what another session did: {text}");
            }
            all.lock().unwrap().insert(turn);
        },
        SESSIONS * ROUNDS,
    );
    assert_eq!(all.lock().unwrap().len(), SESSIONS * ROUNDS);
    let after = process::status_value(served.server.pid(), "VmRSS:");
    let metrics = send_raw(address, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").body;
    assert!(metrics.contains(&format!("cove_sessions {SESSIONS}\n")), "{metrics}");
    println!(
        "server memory: {at_rest} kB at rest, {full} kB with {SESSIONS} sessions, {after} kB after {} cells",
        SESSIONS * ROUNDS
    );
    // Far more than the server needs; a leak per session or cell would exceed it by far.
    assert!(after < at_rest + 100 * 1024, "{at_rest} kB, {full} kB, {after} kB");
    // One session more than allowed is refused.
    let mut client = TestHttpClient::new(address, None, ClientEra::Modern);
    for number in SESSIONS..256 {
        client.call("execute_code", json!({"code": "1", "language": "sh", "session": format!("n{number}")}));
    }
    let text = client.call("execute_code", json!({"code": "1", "session": "one too many"})).failed();
    assert!(text.contains("256 are open") && text.contains("hint: "), "{text}");
}
