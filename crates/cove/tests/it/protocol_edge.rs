//! The edge of the protocol, through the real program: requests with every fault, and clients that keep others waiting.
//! Each request that carries an id gets exactly one answer, and clients with a token are served whatever others do.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use cove_testkit::TestUser;
use cove_testkit::mcp::{ClientEra, HttpServerProcess, TestHttpClient, send_raw};
use cove_testkit::numbers::SeededNumbers;
use serde_json::{Value, json};

use crate::cove;

/// A server on standard input and output whose answers are read in their order.
struct RawServer {
    child: Child,
    input: ChildStdin,
    output: Receiver<Value>,
    pings: u64,
}

impl RawServer {
    /// Starts a server and makes no handshake.
    fn start() -> Self {
        let mut command = cove().command(TestUser::Root);
        command.arg("serve").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let (input, lines) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()).lines());
        let (sender, output) = channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let _ = sender.send(serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}")));
            }
        });
        Self { child, input, output, pings: 0 }
    }

    fn initialize(&mut self) {
        let hello = json!({
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"},
        });
        let request = json!({"jsonrpc": "2.0", "id": "hello", "method": "initialize", "params": hello});
        self.send(request.to_string().as_bytes());
        assert!(self.read()["result"].is_object());
        self.send(br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
    }

    fn send(&mut self, line: &[u8]) {
        self.input.write_all(line).and_then(|()| self.input.write_all(b"\n")).expect("the server reads");
    }

    fn read(&mut self) -> Value {
        self.output.recv_timeout(Duration::from_secs(60)).expect("an answer")
    }

    /// Sends a line and a ping. Returns the answers besides the one to the ping, of which so many are expected. Answers
    /// to requests that reach the server's handlers may come after the one to the ping, and one that is too many is
    /// seen at the latest by the next ping.
    fn answers_to(&mut self, line: &[u8], expected: usize) -> Vec<Value> {
        self.pings += 1;
        let id = format!("ping-{}", self.pings);
        self.send(line);
        self.send(json!({"jsonrpc": "2.0", "id": id, "method": "ping"}).to_string().as_bytes());
        let mut answers = Vec::new();
        let mut is_answered = false;
        while !is_answered || answers.len() < expected {
            let message = self.read();
            if message["id"] == id {
                assert!(message["result"].is_object(), "{message}");
                is_answered = true;
            } else if message.get("method").is_none() {
                // Refusals of what cannot be parsed come in the order of the lines.
                assert!(!is_answered || message["error"]["code"] != -32700, "{message}");
                answers.push(message);
            }
        }
        answers
    }
}

impl Drop for RawServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Requests with a fault, and the id and the code of the answer.
fn faulty_requests() -> Vec<(Vec<u8>, Value, i64)> {
    let code = |text: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{{"name":"execute_code","arguments":{{"code":"{text}"}}}}}}"#
        )
    };
    let with_id = |id: &str| format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/list"}}"#);
    let deep = "[".repeat(5000) + &"]".repeat(5000);
    let mut cases: Vec<(Vec<u8>, Value, i64)> = [
        (code("print('\\ud83d')"), json!(7), -32700),
        (code("\\udc00\\ud800"), json!(7), -32700),
        (code("a\u{1}b"), json!(7), -32700),
        (code("\\x41"), json!(7), -32700),
        (format!(r#"{{"jsonrpc":"2.0","id":7,"method":"ping","params":{{"a":{deep}}}}}"#), json!(7), -32700),
        (format!(r#"{{"params":{{"id":8,"a":{deep}}},"jsonrpc":"2.0","method":"ping","id":7}}"#), json!(7), -32700),
        (r#"{"jsonrpc":"2.0","id":7,"method":"ping""#.into(), json!(7), -32700),
        (r#"{"params":"\"id\":8,\ud83d","method":"ping","id":"seven"}"#.into(), json!("seven"), -32700),
        (with_id("1.5"), json!(1.5), -32600),
        (with_id("18446744073709551615"), json!(u64::MAX), -32600),
        (with_id("null"), Value::Null, -32600),
        (with_id("true"), Value::Null, -32600),
        (with_id(r#"{"id":7}"#), Value::Null, -32600),
        (with_id("[7]"), Value::Null, -32600),
        (with_id(r#"6,"id":7"#), json!(7), -32600),
        (r#"{"jsonrpc":"1.0","id":7,"method":"ping"}"#.into(), json!(7), -32600),
        (r#"{"id":7,"method":"ping"}"#.into(), json!(7), -32600),
        (r#"{"jsonrpc":"2.0","id":7}"#.into(), json!(7), -32600),
        (r#"{"jsonrpc":"2.0","id":7,"method":null}"#.into(), json!(7), -32600),
        (r#"{"jsonrpc":"2.0","id":7,"method":"ping","result":{}}"#.into(), json!(7), -32600),
        (r#"{"jsonrpc":"2.0","id":7,"method":"tools/list","params":[1]}"#.into(), json!(7), -32602),
        (r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":"x"}"#.into(), json!(7), -32602),
        (r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":5}}"#.into(), json!(7), -32602),
        (r#"{"jsonrpc":"2.0","id":7,"method":"no/such"}"#.into(), json!(7), -32601),
        (r#"[{"jsonrpc":"2.0","id":7,"method":"ping"}]"#.into(), json!(7), -32600),
        ("[]".into(), Value::Null, -32600),
        ("not json".into(), Value::Null, -32700),
    ]
    .into_iter()
    .map(|(line, id, code): (String, Value, i64)| (line.into_bytes(), id, code))
    .collect();
    let mut invalid = code("?").into_bytes();
    let at = invalid.iter().position(|byte| *byte == b'?').unwrap();
    invalid[at] = 0xff;
    cases.push((invalid, json!(7), -32700));
    cases
}

#[test]
fn every_request_with_an_id_gets_one_answer() {
    let mut server = RawServer::start();
    // Before the handshake, nothing ends the server, and every faulty request is answered, too.
    for line in [&br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#[..], br#"{"id":1,"result":{}}"#, b""] {
        assert_eq!(server.answers_to(line, 0), [] as [Value; 0]);
    }
    for is_initialized in [false, true] {
        if is_initialized {
            server.initialize();
        }
        for (line, id, code) in faulty_requests() {
            // rmcp asks for the handshake before it looks at the parameters of a known method.
            if !is_initialized && matches!(code, -32602 | -32601) {
                continue;
            }
            let shown = String::from_utf8_lossy(&line[..line.len().min(200)]).into_owned();
            let answers = server.answers_to(&line, 1);
            assert_eq!(answers.len(), 1, "{shown}: {answers:?}");
            let answer = &answers[0];
            assert_eq!((&answer["id"], &answer["error"]["code"]), (&id, &json!(code)), "{shown}: {answer}");
            assert_eq!(answer["jsonrpc"], "2.0");
        }
    }
    let silent: [&[u8]; 7] = [
        br#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"a":"\ud83d"}}"#,
        br#"{"jsonrpc":"2.0","method":"notifications/none","params":{"id":7}}"#,
        br#"{"jsonrpc":"2.0","id":7,"result":{"a":"\ud83d"}}"#,
        br#"{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"x"}}"#,
        br#"{"jsonrpc":"2.0","error":{}}"#,
        br#"[{"jsonrpc":"2.0","method":"notifications/none"}]"#,
        b"\r",
    ];
    for line in silent {
        assert_eq!(server.answers_to(line, 0), [] as [Value; 0], "{}", String::from_utf8_lossy(line));
    }
    // The remedy is in the message, and nothing of the code was run.
    let half = &server.answers_to(&faulty_requests()[0].0, 1)[0]["error"]["message"].to_string();
    assert!(half.contains("column") && half.contains("half of a character"), "{half}");
    // Each request of a batch waits for an answer.
    let batch = br#"[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","id":"b","method":"ping"}]"#;
    let ids: Vec<Value> = server.answers_to(batch, 2).iter().map(|answer| answer["id"].clone()).collect();
    assert_eq!(ids, [json!(1), json!("b")]);
    // And so does each of several on one line.
    let line = br#"{"jsonrpc":"2.0","id":1,"method":"ping"} {"jsonrpc":"2.0","id":"b","method":"ping"}"#;
    let ids: Vec<Value> = server.answers_to(line, 2).iter().map(|answer| answer["id"].clone()).collect();
    assert_eq!(ids, [json!(1), json!("b")]);
}

#[test]
fn an_id_that_is_in_use_is_refused_and_free_after_its_answer() {
    let mut server = RawServer::start();
    server.initialize();
    let call = |code: &str| {
        let params = json!({"name": "execute_code", "arguments": {"code": code}});
        json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}).to_string()
    };
    server.send(call("import time\nfor _ in range(30): time.sleep(0.1)\nprint('first')").as_bytes());
    server.send(call("print('second')").as_bytes());
    let refused = server.read();
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!(7), &json!(-32600)), "{refused}");
    let answer = server.read();
    assert_eq!((&answer["id"], &answer["result"]["content"][0]["text"]), (&json!(7), &json!("first\n")), "{answer}");
    // A client may use one id for all its requests, one after the other.
    for _ in 0..200 {
        server.send(br#"{"jsonrpc":"2.0","id":7,"method":"ping"}"#);
        let answer = server.read();
        assert!(answer["result"].is_object(), "{answer}");
    }
}

#[test]
fn a_last_line_without_an_end_is_answered() {
    let hello =
        json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    let hello = json!({"jsonrpc": "2.0", "id": "hello", "method": "initialize", "params": hello});
    for (line, code) in
        [(r#"{"jsonrpc":"2.0","id":7,"method":"no/such"}"#, -32601), (r#"{"jsonrpc":"2.0","id":7,"meth"#, -32700)]
    {
        let mut command = cove().command(TestUser::Root);
        command.arg("serve").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        write!(child.stdin.take().unwrap(), "{hello}\n{line}").unwrap();
        let output = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
        let answer: Value = serde_json::from_str(output.lines().nth(1).expect("two answers")).unwrap();
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(7), &json!(code)), "{output}");
    }
}

#[test]
fn an_id_that_is_in_use_is_refused_over_http() {
    let state = tempfile::tempdir().unwrap();
    let mut command = cove().command(TestUser::Root);
    command.args(["serve", "--http", "127.0.0.1:0", "--auth", "none", "--state-dir"]).arg(state.path());
    let server = HttpServerProcess::start(command);
    let mut client = TestHttpClient::new(server.address, None, ClientEra::Legacy);
    let call = |code: &str| json!({"name": "execute_code", "arguments": {"code": code}});
    let mut first =
        client.begin("tools/call", call("import time\nfor _ in range(30): time.sleep(0.1)\nprint('first')"));
    // The head of the answer comes when the request is under way.
    first.read_exact(&mut [0]).unwrap();
    let mut again = client.message("tools/call", call("print('second')"));
    let id = again["id"].as_u64().unwrap() - 1;
    again["id"] = json!(id);
    let refused = send_raw(server.address, &client.post(&again));
    let message = &refused.messages()[0];
    assert_eq!((refused.status, &message["id"], &message["error"]["code"]), (400, &json!(id), &json!(-32600)));
    let mut answer = String::new();
    first.read_to_string(&mut answer).unwrap();
    assert!(answer.contains(r#""text":"first\n""#), "{answer}");
    // A client may use one id for all its requests, one after the other.
    for _ in 0..50 {
        let ping = json!({"jsonrpc": "2.0", "id": id, "method": "ping"});
        let answer = send_raw(server.address, &client.post(&ping));
        assert_eq!((answer.status, &answer.messages()[0]["id"]), (200, &json!(id)), "{answer:?}");
    }
}

#[test]
fn long_ids_and_ids_after_long_content_are_found() {
    let mut server = RawServer::start();
    server.initialize();
    let long = "x".repeat(1 << 20);
    for params in [r#"{}"#, r#"{"a":"\ud83d"}"#] {
        let line = format!(r#"{{"jsonrpc":"2.0","id":"{long}","method":"tools/list","params":{params}}}"#);
        let answers = server.answers_to(line.as_bytes(), 1);
        assert_eq!(answers.len(), 1);
        assert!(answers[0]["id"] == *long, "another id");
    }
    let mut line = br#"{"jsonrpc":"2.0","params":{"id":1,"a":"},\"id\":2,"#.to_vec();
    line.resize(50_000_000, b'x');
    line.extend_from_slice(br#""},"method":"tools/list","id":"after"}"#);
    let answers = server.answers_to(&line, 1);
    assert_eq!((answers.len(), &answers[0]["id"], &answers[0]["error"]["code"]), (1, &json!("after"), &json!(-32600)));
    // A notification of that size has no answer.
    let mut line = br#"{"jsonrpc":"2.0","method":"notifications/none","params":{"a":""#.to_vec();
    line.resize(17_000_000, b'x');
    line.extend_from_slice(br#""}}"#);
    assert_eq!(server.answers_to(&line, 0), [] as [Value; 0]);
}

#[test]
fn mutated_requests_get_one_answer_each() {
    let mut server = RawServer::start();
    server.initialize();
    let mut numbers = SeededNumbers::new(7);
    let bodies = [
        r#""method":"tools/list","params":{"cursor":"a\"b","_meta":{"x":[1,2.5e3,null,true,{"y":"é😀"}]}}}"#,
        r#""params":{"name":"no_such_tool","arguments":{"code":"print(1)\n"}},"method":"tools/call"}"#,
        r#""method":"resources/read","params":{"uri":"cove://none"}}"#,
        r#""method":"ping"}"#,
    ];
    let pieces: [&[u8]; 14] = [
        b"\"",
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b"\\",
        b"\\ud83d",
        b"\xff",
        b"\x00",
        b"\x7f",
        b"0",
        b"\xe2\x80\xae",
    ];
    for number in 0..3000 {
        let mut body = numbers.choose(&bodies).as_bytes().to_vec();
        for _ in 0..=numbers.index(4) {
            if body.is_empty() {
                break;
            }
            let at = numbers.index(body.len());
            let piece = *numbers.choose(&pieces);
            match numbers.index(5) {
                0 => drop(body.remove(at)),
                1 => body.truncate(at),
                2 => drop(body.splice(at..at, piece.iter().copied())),
                3 => body[at] = numbers.index(256) as u8,
                _ => {
                    let end = at + numbers.index(body.len() - at);
                    body.drain(at..end);
                }
            }
        }
        body.retain(|byte| *byte != b'\n');
        let line = [format!(r#"{{"jsonrpc":"2.0","id":{number},"#).as_bytes(), &body].concat();
        let answers = server.answers_to(&line, 1);
        let shown = String::from_utf8_lossy(&line);
        assert_eq!(answers.len(), 1, "{shown}: {answers:?}");
        assert_eq!(answers[0]["id"], number, "{shown}: {answers:?}");
    }
    assert_eq!(server.answers_to(b"", 0), [] as [Value; 0]);
}

#[test]
fn faulty_requests_over_http_are_answered_with_their_id() {
    let state = tempfile::tempdir().unwrap();
    let mut command = cove().command(TestUser::Root);
    command.args(["serve", "--http", "127.0.0.1:0", "--auth", "none", "--state-dir"]).arg(state.path());
    let server = HttpServerProcess::start(command);
    for (body, id, code) in faulty_requests().into_iter().filter(|(.., code)| matches!(code, -32700 | -32600)) {
        let head = format!(
            "POST /mcp HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
             Accept: application/json, text/event-stream\r\nConnection: close\r\n\r\n",
            server.address,
            body.len()
        );
        let answer = send_raw(server.address, &[head.as_bytes(), &body].concat());
        let shown = String::from_utf8_lossy(&body[..body.len().min(200)]);
        assert_eq!(answer.status, 400, "{shown}");
        let message = &answer.messages()[0];
        assert_eq!((&message["id"], &message["error"]["code"]), (&id, &json!(code)), "{shown}: {message}");
    }
}

/// How a hostile client holds a connection.
#[derive(Clone, Copy)]
enum SlowClient {
    Silent,
    /// A head without a token, in single bytes.
    Head,
    /// A head with a right token, and a body in single bytes.
    Body,
}

/// Opens connections and opens each again that the server closes, until `stop`.
fn hold_connections(
    address: SocketAddr,
    kind: SlowClient,
    count: usize,
    stop: &Arc<AtomicBool>,
    renewed: &Arc<AtomicUsize>,
) {
    let (stop, renewed) = (Arc::clone(stop), Arc::clone(renewed));
    let open = move || {
        let mut stream = TcpStream::connect(address).ok()?;
        let head = match kind {
            SlowClient::Silent => String::new(),
            SlowClient::Head => "POST /mcp HTTP/1.1\r\nHost: localhost\r\nX-Slow: ".to_owned(),
            SlowClient::Body => format!(
                "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {MALLORY}\r\n\
                 Content-Type: application/json\r\nContent-Length: 16000000\r\n\r\n{{"
            ),
        };
        stream.write_all(head.as_bytes()).ok()?;
        stream.set_nonblocking(true).ok()?;
        Some(stream)
    };
    std::thread::spawn(move || {
        let mut held: Vec<Option<TcpStream>> = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            if held.len() < count {
                held.push(open());
                continue;
            }
            for place in &mut held {
                let is_open = place.as_mut().is_some_and(|stream| {
                    let is_writable = matches!(kind, SlowClient::Silent) || stream.write(b"a").is_ok();
                    let reads = stream.read(&mut [0; 64]);
                    is_writable && reads.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
                });
                if !is_open {
                    *place = open();
                    renewed.fetch_add(1, Ordering::Relaxed);
                }
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    });
}

const ALICE: &str = "alice-0123456789abcdef";
const MALLORY: &str = "mallory-0123456789abcdef";

#[test]
fn slow_clients_keep_no_client_with_a_token_out() {
    let state = tempfile::tempdir().unwrap();
    let file = state.path().join("team");
    std::fs::write(&file, format!("alice {ALICE}\nmallory {MALLORY}\n")).unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let mut command = cove().command(TestUser::Root);
    command.args(["serve", "--http", "127.0.0.1:0", "--state-dir"]).arg(state.path()).arg("--token-file").arg(&file);
    let server = HttpServerProcess::start(command);
    let stop = Arc::new(AtomicBool::new(false));
    let counts = [(SlowClient::Silent, 200), (SlowClient::Head, 200), (SlowClient::Body, 200)];
    let renewed: Vec<Arc<AtomicUsize>> = counts
        .iter()
        .map(|(kind, count)| {
            let renewed = Arc::default();
            hold_connections(server.address, *kind, *count, &stop, &renewed);
            renewed
        })
        .collect();
    crate::wait_until("connections without a token are pushed out and renewed", || {
        renewed[..2].iter().all(|renewed| renewed.load(Ordering::Relaxed) > 100)
    });
    for era in ClientEra::ALL {
        let mut client = TestHttpClient::new(server.address, Some(ALICE), era);
        for number in 0..8 {
            let called = client.call("execute_code", json!({"code": format!("{number}"), "session": "s"}));
            assert_eq!(called.ok().lines().next().unwrap(), number.to_string());
        }
    }
    let health = format!("GET /healthz HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", server.address);
    assert_eq!(send_raw(server.address, health.as_bytes()).status, 200);
    stop.store(true, Ordering::Relaxed);
}
