//! Lists: tools, resources, prompts, and how the server introduces itself.

use serde_json::{Value, json};

use super::SurfaceRun;

/// In the order in which agents see them.
const TOOLS: [&str; 9] = [
    "execute_code",
    "run_python",
    "list_images",
    "start_session",
    "send_lines",
    "stop_session",
    "sandbox_read_file",
    "sandbox_write_file",
    "sandbox_list_files",
];
const READ_ONLY: [&str; 3] = ["list_images", "sandbox_read_file", "sandbox_list_files"];
/// Each tool's parameters and its required ones, both in alphabetical order.
const PARAMETERS: [(&str, &[&str], &[&str]); 9] = [
    ("execute_code", &["code", "language", "session", "timeout"], &["code"]),
    ("run_python", &["code", "servers", "session", "timeout"], &["code"]),
    ("list_images", &[], &[]),
    ("start_session", &["image", "mounts"], &["image"]),
    ("send_lines", &["files", "lines", "session_id", "timeout"], &["lines", "session_id"]),
    ("stop_session", &["session_id"], &["session_id"]),
    ("sandbox_read_file", &["path", "session"], &["path"]),
    ("sandbox_write_file", &["content", "path", "session"], &["content", "path"]),
    ("sandbox_list_files", &["path", "session"], &[]),
];

pub(super) fn greeting(run: &mut SurfaceRun) {
    let hello = &run.client.hello;
    assert_eq!(hello["protocol"], run.era.revision(), "{hello}");
    assert_eq!(hello["server"]["name"], "cove", "{hello}");
    assert!(hello["server"]["version"].as_str().is_some_and(|version| !version.is_empty()), "{hello}");
    assert!(hello["instructions"].as_str().is_some_and(|text| !text.is_empty()), "{hello}");
    for capability in ["tools", "resources", "prompts"] {
        assert!(hello["capabilities"][capability].is_object(), "should offer {capability}: {hello}");
    }
}

pub(super) fn list(run: &mut SurfaceRun) {
    let first = run.client.list("tools");
    let names: Vec<_> = first.iter().map(|tool| tool["name"].as_str().unwrap_or_default()).collect();
    assert_eq!(names, TOOLS);
    run.client.call("execute_code", json!({ "code": "1", "session": "work" }));
    assert_eq!(run.client.list("tools"), first, "the same again, also after a call");
}

pub(super) fn schemas(run: &mut SurfaceRun) {
    for (tool, (name, parameters, required)) in run.client.list("tools").iter().zip(PARAMETERS) {
        assert_eq!(tool["name"], name);
        assert!(tool["description"].as_str().is_some_and(|text| !text.is_empty()), "{tool}");
        let schema = &tool["inputSchema"];
        assert_eq!(schema["type"], "object", "{tool}");
        assert_eq!(schema["additionalProperties"], false, "unknown fields are rejected: {tool}");
        assert!(schema.get("$schema").is_none(), "{tool}");
        let mut found: Vec<_> = schema["properties"].as_object().into_iter().flat_map(|all| all.keys()).collect();
        found.sort_unstable();
        assert_eq!(found, parameters, "{tool}");
        let mut needed: Vec<_> = match &schema["required"] {
            Value::Array(needed) => needed.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        needed.sort_unstable();
        assert_eq!(needed, required, "{tool}");
    }
}

pub(super) fn annotations(run: &mut SurfaceRun) {
    for tool in run.client.list("tools") {
        let name = tool["name"].as_str().unwrap_or_default();
        let says = &tool["annotations"];
        assert!(says.is_object(), "{tool}");
        assert_eq!(says["readOnlyHint"] == true, READ_ONLY.contains(&name), "{tool}");
        if ["execute_code", "run_python", "send_lines"].contains(&name) {
            // Both are the protocol's defaults for a hint that is absent.
            assert_ne!(says["readOnlyHint"], true, "{tool}");
            assert_ne!(says["destructiveHint"], false, "{tool}");
        }
    }
}

pub(super) fn resources(run: &mut SurfaceRun) {
    let listed = run.client.list("resources");
    assert!(listed.iter().any(|one| one["uri"] == "cove://manual"), "{listed:?}");
    let manual = run.client.ask(&json!({ "do": "read", "uri": "cove://manual" }));
    let contents = &manual["result"]["contents"][0];
    assert_eq!(contents["uri"], "cove://manual", "{manual}");
    let text = contents["text"].as_str().unwrap_or_default();
    assert!(text.contains("execute_code") && text.contains("/workspace"), "the manual of the sandbox: {manual}");
    let templates = run.client.list("templates");
    assert!(templates.len() >= 2, "files of sessions and large outputs: {templates:?}");
    for template in &templates {
        let uri = template["uriTemplate"].as_str().unwrap_or_default();
        assert!(uri.starts_with("cove://") && uri.contains('{'), "{template}");
    }
}

pub(super) fn prompts(run: &mut SurfaceRun) {
    let listed = run.client.list("prompts");
    assert!(!listed.is_empty());
    for prompt in listed {
        let needs = |argument: &Value| argument["required"] == true;
        assert!(!prompt["arguments"].as_array().is_some_and(|all| all.iter().any(needs)), "{prompt}");
        let got = run.client.ask(&json!({ "do": "prompt", "name": prompt["name"] }));
        let text = got["result"]["messages"][0]["content"]["text"].as_str().unwrap_or_default();
        assert!(!text.is_empty(), "{prompt}\n{got}");
    }
}
