//! Errors, and how the agent sees them.

use serde_json::json;

use super::SurfaceRun;
use crate::sdk_client::SdkEra;

pub(super) fn exceptions(run: &mut SurfaceRun) {
    let code = "print('before')\ndef f():\n    return 1 / 0\nf()";
    let called = run.client.call("execute_code", json!({ "code": code, "session": "work" }));
    let text = called.expect_failure(&["before", "ZeroDivisionError: division by zero", "line 3"]);
    assert!(text.starts_with("before\n"), "output first: {called}");
    assert_eq!(text.matches("ZeroDivisionError").count(), 1, "nothing is said twice: {called}");
    assert!(!text.contains('\u{1b}'), "no colours: {called}");
    for (language, code) in [("node", "throw new TypeError('bad')"), ("bash", "echo bad >&2; exit 3")] {
        let arguments = json!({ "code": code, "language": language, "session": "work" });
        run.client.call("execute_code", arguments).expect_failure(&["bad"]);
    }
}

pub(super) fn arguments(run: &mut SurfaceRun) {
    let cases = [
        (json!({ "code": "1", "language": "cobol" }), &["cobol", "python", "bash", "node"][..]),
        (json!({ "code": "1", "langauge": "python" }), &["langauge", "language"]),
        (json!({ "code": "1", "timeout": 1000 }), &["timeout", "120"]),
        (json!({ "code": "1", "timeout": -1 }), &["timeout"]),
        (json!({ "code": 1 }), &["code"]),
        (json!({}), &["code"]),
    ];
    for (arguments, words) in cases {
        run.client.call("execute_code", arguments).expect_failure(words);
    }
    let more = json!({ "path": "/workspace/x", "contents": "x", "session": "work" });
    run.client.call("sandbox_write_file", more).expect_failure(&["contents"]);
    run.client.call("send_lines", json!({ "session_id": "s_0", "lines": "echo" })).expect_failure(&["lines"]);
}

pub(super) fn unknown_names(run: &mut SurfaceRun) {
    let handle = "s_0000000000000000";
    for (tool, arguments) in [
        ("execute_code", json!({ "code": "1", "session": handle })),
        ("send_lines", json!({ "session_id": handle, "lines": ["1"] })),
        ("sandbox_list_files", json!({ "session": handle })),
    ] {
        run.client.call(tool, arguments).expect_failure(&[handle]);
    }
    let tool = run.client.ask(&json!({ "do": "call", "tool": "execute_cobol", "arguments": {} }));
    assert_eq!(tool["error"]["code"], -32602, "{tool}");
    assert!(tool["error"]["message"].as_str().is_some_and(|text| text.contains("execute_cobol")), "{tool}");
    let resource = run.client.ask(&json!({ "do": "read", "uri": "cove://nothing/here" }));
    let code = match run.era {
        SdkEra::Legacy => -32002,
        SdkEra::Modern => -32602,
    };
    assert_eq!(resource["error"]["code"], code, "{resource}");
    let prompt = run.client.ask(&json!({ "do": "prompt", "name": "nothing" }));
    assert_eq!(prompt["error"]["code"], -32602, "{prompt}");
}

pub(super) fn timeout(run: &mut SurfaceRun) {
    let code = "still = 'here'\nprint('before', flush=True)\nwhile True: pass";
    let called = run.client.call("execute_code", json!({ "code": code, "session": "slow", "timeout": 5 }));
    let text = called.expect_failure(&["before", "cell stopped after 5", "limit `timeout`", "hint: ", "at most 120"]);
    assert!(text.starts_with("before\n"), "output first: {called}");
    let called = run.client.call("execute_code", json!({ "code": "still", "session": "slow" }));
    assert!(called.text().starts_with("'here'"), "variables were kept: {called}");
}
