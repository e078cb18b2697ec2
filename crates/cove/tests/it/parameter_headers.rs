//! `Mcp-Param-*` headers through the real program: one process lists the tools, others call them.

use std::sync::{Arc, Mutex};

use cove_testkit::TestUser;
use cove_testkit::fixture::front::{FrontRequest, listen, write};
use cove_testkit::program::FinishedProgram;
use serde_json::{Value, json};

use crate::cove;
use crate::servers::ServersHome;

type SeenRequests = Arc<Mutex<Vec<FrontRequest>>>;

fn routed_tool(header: &str) -> Value {
    json!({"name": "route", "inputSchema": {"type": "object", "required": ["region"], "properties": {
        "region": {"type": "string", "x-mcp-header": header},
        "count": {"type": "integer", "x-mcp-header": "Count"},
        "where": {"type": "object", "properties": {"city": {"type": "string", "x-mcp-header": "City"}}},
        "query": {"type": "string"},
    }}})
}

/// A server of the modern era that refuses calls without the header `Mcp-Param-HEADER`, which may change. It never
/// announces `Count` for the region.
fn server(header: &Arc<Mutex<&'static str>>) -> (String, SeenRequests) {
    let (seen, header) = (SeenRequests::default(), Arc::clone(header));
    let kept = Arc::clone(&seen);
    let address = listen(move |asked, stream| {
        kept.lock().unwrap().push(asked.clone());
        let header = *header.lock().unwrap();
        let complete = |mut result: Value| {
            result["resultType"] = "complete".into();
            result["ttlMs"] = 0.into();
            result["cacheScope"] = "private".into();
            ("200 OK", json!({"jsonrpc": "2.0", "id": asked.body["id"], "result": result}))
        };
        let (status, body) = match asked.body["method"].as_str() {
            Some("server/discover") => complete(json!({
                "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}},
                "serverInfo": {"name": "x", "version": "1"},
            })),
            Some("tools/list") => {
                let wrong = json!({"name": "wrong", "inputSchema": {"type": "object", "properties": {
                    "score": {"type": "number", "x-mcp-header": "Score"},
                }}});
                let announced = if header == "Count" { "Region" } else { header };
                complete(json!({"tools": [routed_tool(announced), wrong]}))
            }
            Some("tools/call") if asked.headers.contains_key(&format!("mcp-param-{}", header.to_lowercase())) => {
                complete(json!({"content": [{"type": "text", "text": "routed"}]}))
            }
            _ => {
                let error = json!({"code": -32020, "message": "a header is missing"});
                ("400 Bad Request", json!({"jsonrpc": "2.0", "id": asked.body["id"], "error": error}))
            }
        };
        write(stream, status, "Content-Type: application/json\r\n", body.to_string().as_bytes());
    });
    (format!("http://{address}/mcp"), seen)
}

/// Calls the tool. Without a check of changes a process calls tools that another process listed.
fn call(home: &ServersHome, arguments: &Value) -> FinishedProgram {
    let mut command = cove().command(TestUser::Root);
    command.env("HOME", home.at("")).current_dir(home.at("project"));
    command.args(["tools", "call", "--tool-changes", "allow", "it.route", &arguments.to_string()]);
    FinishedProgram::from_output(command.output().unwrap())
}

/// The `Mcp-Param-*` headers of the calls since the last look, and how often the tools were listed.
fn take(seen: &SeenRequests) -> (Vec<Vec<(String, String)>>, usize) {
    let requests = std::mem::take(&mut *seen.lock().unwrap());
    let lists = requests.iter().filter(|asked| asked.body["method"] == "tools/list").count();
    let calls = requests.into_iter().filter(|asked| asked.body["method"] == "tools/call");
    let headers = calls.map(|asked| {
        let mut headers: Vec<_> =
            asked.headers.into_iter().filter(|(name, _)| name.starts_with("mcp-param-")).collect();
        headers.sort();
        headers
    });
    (headers.collect(), lists)
}

#[test]
fn every_process_sends_parameter_headers() {
    let header = Arc::new(Mutex::new("Region"));
    let (url, seen) = server(&header);
    let home = ServersHome::new();
    home.stdout_of(&["add", "it", "--url", &url]);
    assert_eq!(home.stdout_of(&["refresh"]), "it  1 tool\n", "a tool with a wrong annotation is dropped");
    take(&seen);

    let arguments = json!({
        "region": "Hello, 世界", "count": -7, "where": {"city": " x\r\nEvil: 1"}, "query": "not a header",
    });
    let finished = call(&home, &arguments);
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(0), "routed\n"), "{finished:?}");
    let expected = [
        ("mcp-param-city", "=?base64?IHgNCkV2aWw6IDE=?="),
        ("mcp-param-count", "-7"),
        ("mcp-param-region", "=?base64?SGVsbG8sIOS4lueVjA==?="),
    ];
    let expected: Vec<_> = expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    assert_eq!(take(&seen), (vec![expected], 0), "the second process did not list the tools");

    // Since then the server wants another header: its error makes Cove list the tools again, and call once more.
    *header.lock().unwrap() = "Place";
    let finished = call(&home, &json!({"region": "eu"}));
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(0), "routed\n"), "{finished:?}");
    let with = |name: &str| vec![(name.to_owned(), "eu".to_owned())];
    assert_eq!(take(&seen), (vec![with("mcp-param-region"), with("mcp-param-place")], 1));

    // If listing again does not help, the call is not repeated.
    *header.lock().unwrap() = "Count";
    let finished = call(&home, &json!({"region": "eu"}));
    assert_ne!(finished.code, Some(0), "{finished:?}");
    assert!(finished.stderr.contains("a header is missing"), "{finished:?}");
    assert_eq!(take(&seen).0.len(), 2, "once with the old header, once with the new ones");
}
