//! Running code, and the state that stays from one call to the next.

use serde_json::{Value, json};

use super::SurfaceRun;
use crate::sdk_client::SdkAnswer;

pub(super) fn default_session(run: &mut SurfaceRun) {
    let first = run.client.call("execute_code", json!({ "code": "kept = 41" }));
    if run.is_stateless() {
        let text = first.text();
        let handle = handle_in(&text).unwrap_or_else(|| panic!("should name its session: {first}"));
        let same = run.client.call("execute_code", json!({ "code": "kept + 1", "session": handle }));
        assert_eq!(first_line(&same), "42", "{same}");
    }
    first.text();
    let second = run.client.call("execute_code", json!({ "code": "kept + 1" }));
    assert_eq!(first_line(&second), "42", "{second}");
    run.client.call("sandbox_list_files", json!({})).text();
}

pub(super) fn named(run: &mut SurfaceRun) {
    for (session, value) in [("one", 1), ("two", 2)] {
        let code = format!("import json\ndef show():\n    print(json.dumps({value}))");
        run.client.call("execute_code", json!({ "code": code, "session": session })).text();
    }
    // Imports and functions stay, each in its own session.
    for (session, value) in [("one", "1"), ("two", "2")] {
        let shown = run.client.call("execute_code", json!({ "code": "show()", "session": session }));
        assert_eq!(first_line(&shown), value, "{shown}");
    }
}

pub(super) fn languages(run: &mut SurfaceRun) {
    let cells = [
        ("python", "import sys; open('/workspace/by', 'w').write('python'); print(sys.version_info[0])", "3"),
        ("Python", "print(open('/workspace/by').read())", "python"),
        ("bash", "echo ${BASH_VERSION:+bash} $(cat by)", "bash python"),
        ("sh", "echo $((6 * 7))", "42"),
        ("node", "globalThis.kept = 41; console.log(typeof process.versions.node)", "string"),
        ("javascript", "console.log(kept + 1)", "42"),
        ("NODE", "(await import('node:fs')).readFileSync('/workspace/by', 'utf8')", "python"),
    ];
    for (language, code, expected) in cells {
        let arguments = json!({ "code": code, "language": language, "session": "work" });
        let called = run.client.call("execute_code", arguments);
        let text = called.text();
        assert!(text.lines().next().is_some_and(|line| line.contains(expected)), "{called}");
        assert!(called.result.get("structuredContent").is_none(), "text only: {called}");
    }
}

pub(super) fn spellings(run: &mut SurfaceRun) {
    let cells = [
        "40 + 2",
        "import asyncio\nawait asyncio.sleep(0, 42)",
        "async def main():\n    return 42",
        "def run():\n    return 42\nrun()",
    ];
    for code in cells {
        let called = run.client.call("execute_code", json!({ "code": code, "session": "work" }));
        assert_eq!(first_line(&called), "42", "{called}");
    }
}

pub(super) fn python_tool(run: &mut SurfaceRun) {
    run.client.call("run_python", json!({ "code": "shared = 41", "session": "work", "servers": [] })).text();
    // All tools use the same session.
    let called = run.client.call("execute_code", json!({ "code": "shared + 1", "session": "work" }));
    assert_eq!(first_line(&called), "42", "{called}");
    let called = run.client.call("run_python", json!({ "code": "shared + 2", "session": "work" }));
    assert_eq!(first_line(&called), "43", "{called}");
    assert!(called.result.get("structuredContent").is_none(), "text only: {called}");
}

pub(super) fn images(run: &mut SurfaceRun) {
    let listed = run.client.call("list_images", json!({}));
    let images = images_in(&listed);
    for (image, language, good, bad) in [
        ("python", "python", ["twenty = 20", "print(twenty + 1)"], "raise ValueError('bad')"),
        ("node", "node", ["const twenty = 20", "console.log(twenty + 1)"], "throw new Error('bad')"),
        ("ubuntu", "sh", ["twenty=20", "echo $((twenty + 1))"], "echo bad >&2; (exit 3)"),
    ] {
        let about = images.iter().find(|one| one["name"] == image);
        let about = about.unwrap_or_else(|| panic!("there is no image `{image}`: {listed}"));
        assert!(["oneshot", "persistent"].iter().any(|kind| about["kind"] == *kind), "{about}");
        let spoken = about["languages"].as_array().map_or(&[][..], Vec::as_slice);
        assert!(spoken.iter().any(|one| one == language), "{about}");

        let session = start(run, image);
        let sent = send(run, &session, &good);
        assert!(!sent.is_error(), "{sent}");
        assert_eq!(*sent.structured(), json!({ "stdout": "21\n", "stderr": "", "return_code": 0 }), "{sent}");

        let sent = send(run, &session, &[bad]);
        sent.expect_failure(&["bad"]);
        let said = sent.structured();
        assert!(said["stderr"].as_str().is_some_and(|text| text.contains("bad")), "{sent}");
        assert!(said["return_code"].as_i64().is_some_and(|code| code != 0), "{sent}");
        assert!(said["stdout"].is_string(), "{sent}");

        let stopped = run.client.call("stop_session", json!({ "session_id": session }));
        assert!(stopped.text().contains(&session), "says what was stopped: {stopped}");
    }
    let unknown = run.client.call("start_session", json!({ "image": "plan9" }));
    unknown.expect_failure(&["plan9", "python", "node", "ubuntu"]);
}

pub(super) fn persistent(run: &mut SurfaceRun) {
    let listed = run.client.call("list_images", json!({}));
    let images = images_in(&listed);
    let ubuntu = images.iter().find(|one| one["name"] == "ubuntu");
    assert_eq!(ubuntu.map(|one| &one["kind"]), Some(&json!("persistent")), "{listed}");
    let session = start(run, "ubuntu");
    send(run, &session, &["kept=41", "cd /tmp"]).structured();
    let sent = send(run, &session, &["echo $((kept + 1))", "pwd"]);
    assert_eq!(sent.structured()["stdout"], "42\n/tmp\n", "{sent}");
    let arguments = json!({
        "session_id": session,
        "lines": ["cat /workspace/first.txt"],
        "files": { "/workspace/first.txt": "stored first\n" },
    });
    let sent = run.client.call("send_lines", arguments);
    assert_eq!(sent.structured()["stdout"], "stored first\n", "{sent}");
    // A session started by one tool can be used by every other.
    let read = json!({ "path": "/workspace/first.txt", "session": session });
    let read = run.client.call("sandbox_read_file", read);
    assert_eq!(read.text(), "stored first\n", "{read}");
    let arguments = json!({ "code": "cat /workspace/first.txt", "language": "sh", "session": session });
    let called = run.client.call("execute_code", arguments);
    assert_eq!(first_line(&called), "stored first", "{called}");
    run.client.call("stop_session", json!({ "session_id": session })).text();
}

pub(super) fn stopped(run: &mut SurfaceRun) {
    let session = start(run, "ubuntu");
    run.client.call("stop_session", json!({ "session_id": session })).text();
    send(run, &session, &["echo on"]).expect_failure(&[&session]);
    let again = run.client.call("stop_session", json!({ "session_id": session }));
    again.expect_failure(&[&session]);
    let called = run.client.call("execute_code", json!({ "code": "1", "session": session }));
    called.expect_failure(&[&session]);
}

fn start(run: &mut SurfaceRun, image: &str) -> String {
    let started = run.client.call("start_session", json!({ "image": image }));
    let said = started.structured();
    let session = said["session_id"].as_str().unwrap_or_else(|| panic!("should name its session: {started}"));
    assert!(session.starts_with("s_"), "{started}");
    assert!(started.text().contains(session), "as text too, for clients that show only those: {started}");
    session.to_owned()
}

fn send(run: &mut SurfaceRun, session: &str, lines: &[&str]) -> SdkAnswer {
    run.client.call("send_lines", json!({ "session_id": session, "lines": lines }))
}

/// The list, whatever its key is.
#[track_caller]
fn images_in(listed: &SdkAnswer) -> Vec<Value> {
    assert!(!listed.is_error(), "{listed}");
    let found = listed.structured().as_object().and_then(|all| all.values().find_map(Value::as_array));
    let images = found.unwrap_or_else(|| panic!("should have a list: {listed}")).clone();
    for image in &images {
        let name = image["name"].as_str().unwrap_or_default();
        assert!(!name.is_empty() && listed.all_text().contains(name), "as text too: {listed}");
    }
    images
}

/// The first line of the output. Remarks about the session come after the output.
#[track_caller]
fn first_line(called: &SdkAnswer) -> String {
    called.text().lines().next().unwrap_or_default().to_owned()
}

fn handle_in(text: &str) -> Option<&str> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == '-';
    text.split(|letter: char| !is_part(letter)).find(|word| word.starts_with("s_") && word.len() > 2)
}
